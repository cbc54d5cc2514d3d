"""One model call and the tool calls that it asked for."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from whyloop.values.continuation import ContinuationOutcome
from whyloop.values.failure import Failure
from whyloop.values.model import FinishReason
from whyloop.values.times import Count, Moment
from whyloop.values.usage import Usage


class StepType(StrEnum):
    TOOL_EXECUTION = "tool_execution"
    FINAL = "final"
    ERROR = "error"


class ToolRun(Struct, frozen=True, gc=False, omit_defaults=True):
    """How one tool call of a step went.

    The arguments and the result are in the messages. A call that was blocked, skipped or cut off
    has not succeeded and has not failed either: `note` says what became of it.
    """

    id: str
    name: str
    duration_ms: float = 0.0
    failure: Failure | None = None
    note: str | None = None

    @property
    def success(self) -> bool:
        return self.failure is None and self.note is None

    @property
    def error(self) -> str | None:
        return self.failure.message if self.failure else self.note


class Step(Struct, frozen=True, gc=False, omit_defaults=True):
    """A step as it was recorded, whether it succeeded or failed.

    `number` counts within the execution. `outcome` holds what every criterion said after it.
    The step's messages are `message_count` messages of the session from `first_message` on.
    """

    number: Count
    execution_id: str
    started_at: Moment
    completed_at: Moment
    first_message: Count
    message_count: Count = 0
    tool_calls: tuple[ToolRun, ...] = ()
    finish_reason: FinishReason | None = None
    usage: Usage = Usage()
    duration_ms: float = 0.0
    model_failure: Failure | None = None
    interrupted: str | None = None
    outcome: ContinuationOutcome | None = None

    @property
    def has_tool_calls(self) -> bool:
        return bool(self.tool_calls)

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Everything that failed, in call order."""
        if self.model_failure is not None:
            return (self.model_failure,)
        return tuple([run.failure for run in self.tool_calls if run.failure is not None])

    @property
    def error_count(self) -> int:
        return len(self.failures)

    @property
    def type(self) -> StepType:
        if self.failures:
            return StepType.ERROR
        return StepType.TOOL_EXECUTION if self.tool_calls else StepType.FINAL
