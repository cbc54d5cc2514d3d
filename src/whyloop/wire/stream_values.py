"""The values that the streams of a run share: calls, results, decisions, the end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Struct

from whyloop.events import AgentEvent, AgentExecutionStarted, ApprovalDecided, ToolCallCompleted
from whyloop.values.approval import Verdict
from whyloop.values.continuation import StopReason
from whyloop.values.messages import ToolCall
from whyloop.values.model import NO_USAGE, FinishReason, Usage
from whyloop.values.state import AgentState, AgentStatus
from whyloop.values.step import OpenCall
from whyloop.values.text import clean
from whyloop.wire.envelope import usage_data
from whyloop.wire.view import RECOVERY


class Call(Struct, frozen=True):
    """A tool call in a stream."""

    stream_id: str
    """The provider's id, made unique within the run."""
    name: str
    """The name of the tool."""
    arguments: Any
    """The arguments as JSON holds them; None if the call never started."""
    changed_by: tuple[str, ...]
    """The hooks that changed the arguments."""
    known: bool
    """True if the step of the call began before this run, so that an earlier stream sent its arguments."""


class Result(Struct, frozen=True):
    """The end of a tool call in a stream."""

    stream_id: str
    """The id of the call."""
    step: int
    """The number of the step."""
    text: str
    """The result of the tool; the error if it did not succeed."""
    error: str | None
    """Why the call did not succeed; None if it did."""
    denied: bool
    """True if a person denied the call."""
    duration_ms: float
    """How long the call took."""
    changed_by: tuple[str, ...]
    """The hooks that made or replaced the result."""


class RunEnd(Struct, frozen=True):
    """The end of a run, or its pause."""

    status: AgentStatus
    """The status of the session."""
    stop_reason: StopReason | None = None
    """Why the run ended; None at a pause."""
    resolved_by: str | None = None
    """The rule that decided."""
    reason: str | None = None
    """The reason that the rule gave."""
    step_count: int = 0
    """The closed steps of the execution."""
    error_message: str | None = None
    """The error of a failed run."""
    last_response: str | None = None
    """The last text of the assistant."""
    finish_reason: FinishReason | None = None
    """Why the model ended its last answer."""
    usage: Usage = NO_USAGE
    """The tokens of the run."""

    def summary(self) -> dict[str, Any]:
        """Return the fields that a user interface shows."""
        return {
            "status": str(self.status),
            "stop_reason": self.stop_reason and str(self.stop_reason),
            "resolved_by": self.resolved_by and clean(self.resolved_by),
            "reason": self.reason and clean(self.reason),
            "step_count": self.step_count,
            "last_response": self.last_response and clean(self.last_response),
            "usage": _readable_usage(self.usage),
        }


LARGEST_COUNT = 2**53 - 1
"""The largest whole number that JavaScript can read."""


def _readable_usage(usage: Usage) -> dict[str, Any]:
    counts = usage_data(usage)
    return counts | {name: min(counts[name], LARGEST_COUNT) for name in ("input", "output", "total")}


def query_id(execution_id: str) -> str:
    """Return the id of the user's message that an execution works on."""
    return f"{clean(execution_id)}:query"


def query_of(run: Iterable[AgentEvent]) -> AgentExecutionStarted | None:
    """Return the event of a run with its query; None after a resume."""
    begun = (event for event in run if isinstance(event, AgentExecutionStarted))
    return next((event for event in begun if event.query is not None), None)


def decisions_since_pause(state: AgentState) -> Iterator[AgentEvent]:
    """Yield the events of decisions since the pause, and the results of denied calls."""
    execution, step = state.execution, state.open_step
    paused_after = execution.leg_started_at or execution.started_at
    common: dict[str, Any] = {
        "agent_id": state.agent_id,
        "parent_agent_id": state.parent_agent_id,
        "execution_id": execution.id,
        "step_number": execution.next_step_number() if step is None else step.number,
    }
    asked: list[tuple[ToolCall, OpenCall]] = [(RECOVERY, OpenCall(approvals=execution.approvals))]
    asked += zip(step.tool_calls, step.calls, strict=True) if step is not None else ()
    for call, progress in asked:
        decisions = [approval for approval in progress.approvals if approval.at >= paused_after]
        about = {**common, "tool": call.name, "tool_call_id": call.id}
        for approval in decisions:
            yield ApprovalDecided(
                **about,
                time=approval.at,
                question_id=approval.question_id,
                verdict=approval.verdict,
                by=approval.by,
                reason=approval.reason,
            )
        result = progress.result
        if decisions and decisions[-1].verdict is Verdict.DENIED and result is not None:
            yield ToolCallCompleted(
                **about,
                time=decisions[-1].at,
                success=False,
                error=result.error,
                duration_ms=progress.duration_ms,
                result=result.error or result.content,
            )
