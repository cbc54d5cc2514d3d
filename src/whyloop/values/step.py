"""One model call and the tool calls that it asked for."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from whyloop.values.approval import Approval
from whyloop.values.continuation import ContinuationOutcome
from whyloop.values.failure import Failure
from whyloop.values.model import FinishReason, ModelSource
from whyloop.values.times import Count, Moment, Seconds
from whyloop.values.usage import Usage


class StepType(StrEnum):
    TOOL_EXECUTION = "tool_execution"
    FINAL = "final"
    ERROR = "error"


class ToolRun(Struct, frozen=True, gc=False, omit_defaults=True):
    """How one tool call of a step went; its arguments and its result are in the messages.

    A call that was blocked, skipped or cut off has no success either, and `error` says what became
    of it, but it is not among the step's failures. `approvals` are the decisions of people about it.
    """

    id: str
    name: str
    success: bool = True
    error: str | None = None
    duration_ms: Seconds = 0.0
    approvals: tuple[Approval, ...] = ()


class Step(Struct, frozen=True, gc=False, omit_defaults=True):
    """A step as it was recorded, whether it succeeded or failed.

    `number` counts within the execution. `failures` are in call order. `outcome` holds what every
    criterion said after the step. What it added to the conversation are `message_count` messages
    of the session from `first_message` on.
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
    duration_ms: Seconds = 0.0
    failures: tuple[Failure, ...] = ()
    interrupted: str | None = None
    source: ModelSource | None = None
    outcome: ContinuationOutcome | None = None

    @property
    def has_tool_calls(self) -> bool:
        return bool(self.tool_calls)

    @property
    def error_count(self) -> int:
        return len(self.failures)

    @property
    def model_failure(self) -> Failure | None:
        """The failure of the model call itself, if that is what failed."""
        return self.failures[0] if self.failures and self.failures[0].is_model_call else None

    @property
    def type(self) -> StepType:
        if self.failures:
            return StepType.ERROR
        return StepType.TOOL_EXECUTION if self.tool_calls else StepType.FINAL
