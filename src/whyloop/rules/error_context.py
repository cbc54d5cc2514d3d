"""From a state to what an error policy needs to know about it."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from whyloop.values.failure import ErrorContext, ErrorType
from whyloop.values.state import AgentState


@runtime_checkable
class CanResolveErrorContext(Protocol):
    def resolve(self, state: AgentState) -> ErrorContext: ...


class AgentErrorContextResolver:
    """The failure of the latest step, with the counts that the state keeps.

    Of several failed calls the first in call order decides; `metadata["failures"]` lists them all.
    """

    def resolve(self, state: AgentState) -> ErrorContext:
        tally = state.execution.failures
        if not tally.total:
            return _NO_ERROR
        step = state.current_step if state.open_step is None else None
        if not tally.consecutive or step is None or not step.failures:
            return ErrorContext(ErrorType.UNKNOWN, 0, tally.total)
        first = step.failures[0]
        return ErrorContext(
            type=first.type,
            consecutive_failures=tally.consecutive,
            total_failures=tally.total,
            message=first.message,
            tool_name=first.tool_name,
            metadata={
                "failures": [
                    {"type": f.type.value, "tool_name": f.tool_name, "message": f.message, **f.details}
                    for f in step.failures
                ]
            },
            retryable=first.retryable,
        )


_NO_ERROR = ErrorContext.none()
