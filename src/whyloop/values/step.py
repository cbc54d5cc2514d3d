"""One model call and the tool calls that it asked for, while it is open and when it is closed."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from whyloop.values.approval import Approval, PendingCall, Question
from whyloop.values.continuation import ContinuationOutcome, StopReason
from whyloop.values.failure import Failure
from whyloop.values.messages import Message, ToolCall, ToolResult
from whyloop.values.model import NO_USAGE, FinishReason, ModelSource, Usage
from whyloop.values.scalars import Count, Moment, Seconds
from whyloop.values.text import shortened

FAILURE_LENGTH = 200


class StepType(StrEnum):
    TOOL_EXECUTION = "tool_execution"
    FINAL = "final"
    ERROR = "error"


class Interruption(StrEnum):
    """Why a step was cut off before its work was done."""

    TRUNCATED = "truncated"
    STOPPED = "stopped"
    OUT_OF_TIME = "out_of_time"
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"

    @property
    def text(self) -> str:
        """The reason for a person and for the model."""
        return _INTERRUPTIONS[self]


_INTERRUPTIONS = {
    Interruption.TRUNCATED: "the answer was truncated",
    Interruption.STOPPED: "a stop was requested",
    Interruption.OUT_OF_TIME: "the time for this execution was up",
    Interruption.CANCELLED: "the task that ran it was cancelled",
    Interruption.SUPERSEDED: "another query arrived first",
}


class RequestRecord(Struct, frozen=True, gc=False, omit_defaults=True):
    """The parts of a model request that are not in the history, by the hash of each.

    The texts behind the hashes are in the session's `request_parts`, each stored once. `messages` is None
    if the request held the whole history as it was; otherwise ranges of it, and hashes of what a hook put in.
    """

    instructions: str | None = None
    tools: str | None = None
    messages: tuple[tuple[int, int] | str, ...] | None = None
    changed_by: tuple[str, ...] = ()


class RequestPart(Struct, frozen=True, gc=False):
    """A text that requests of a session refer to by its hash."""

    hash: str
    text: str


class ToolRun(Struct, frozen=True, gc=False, omit_defaults=True):
    """How one tool call of a step went; its arguments and its result are in the messages.

    A call that was blocked, denied or not run has no success either: `error` says why, and it is not among
    the step's failures. `started_at` is None for a call that never started. `approvals` are the decisions of
    people about it. `changed_by` names the hooks that made or replaced its result.
    """

    id: str
    name: str
    success: bool = True
    error: str | None = None
    duration_ms: Seconds = 0.0
    approvals: tuple[Approval, ...] = ()
    started_at: Moment | None = None
    changed_by: tuple[str, ...] = ()


class Step(Struct, frozen=True, gc=False, omit_defaults=True):
    """A closed step, whether it succeeded or failed.

    `number` counts within the execution. `failures` are in call order. `outcome` holds every criterion's
    evaluation. The step added `message_count` messages to the session, from `first_message` on.
    """

    number: Count
    execution_id: str
    started_at: Moment
    completed_at: Moment
    first_message: Count
    message_count: Count = 0
    tool_calls: tuple[ToolRun, ...] = ()
    finish_reason: FinishReason | None = None
    usage: Usage = NO_USAGE
    duration_ms: Seconds = 0.0
    failures: tuple[Failure, ...] = ()
    interrupted: Interruption | None = None
    source: ModelSource | None = None
    outcome: ContinuationOutcome | None = None
    request: RequestRecord | None = None
    response_changed_by: tuple[str, ...] = ()
    answered_at: Moment | None = None

    @property
    def has_tool_calls(self) -> bool:
        return bool(self.tool_calls)

    @property
    def error_count(self) -> int:
        return len(self.failures)

    @property
    def model_failure(self) -> Failure | None:
        """The failure of the model call itself; None if it was readable or did not fail."""
        first = self.failures[0] if self.failures else None
        return first if first is not None and first.is_model_call and not first.readable else None

    @property
    def type(self) -> StepType:
        if self.failures:
            return StepType.ERROR
        return StepType.TOOL_EXECUTION if self.tool_calls else StepType.FINAL


def error_text(outcome: ContinuationOutcome, step: Step | None) -> str:
    """Return the reason of a failed run for people; where retries ran out, with what failed last."""
    if outcome.stop_reason is not StopReason.RETRY_LIMIT_REACHED or step is None or not step.failures:
        return outcome.reason
    return f"{outcome.reason}: {shortened(step.failures[0].message, FAILURE_LENGTH)}"


class OpenCall(Struct, frozen=True, gc=False, omit_defaults=True):
    """How far a tool call has come.

    It is done once it has a `result`, and waits for a person while it has a `question`. `started` stays True
    for a call whose process ended before it could tell the result. `approved` is True from a person's
    approval until the call starts. `arguments` are those that a person put in the place of the model's.
    """

    started: bool = False
    question: Question | None = None
    approved: bool = False
    approvals: tuple[Approval, ...] = ()
    arguments: Mapping[str, Any] | None = None
    result: ToolResult | None = None
    duration_ms: Seconds = 0.0
    started_at: Moment | None = None

    @property
    def is_done(self) -> bool:
        return self.result is not None

    @property
    def is_waiting(self) -> bool:
        return self.question is not None

    @property
    def is_running(self) -> bool:
        """True if the call started and has no result; its process may have ended since."""
        return self.started and self.result is None and self.question is None and not self.approved


class OpenStep(Struct, frozen=True, gc=False, omit_defaults=True):
    """A step that is not closed: the model's answer or its failure, and how far each call has come.

    It is part of a state while the calls run, while some of them wait for a person, and after the process
    that ran them has died. `seconds` is the active time that it has taken so far.
    """

    number: Count
    started_at: Moment
    message: Message | None = None
    calls: tuple[OpenCall, ...] = ()
    finish_reason: FinishReason | None = None
    usage: Usage = NO_USAGE
    source: ModelSource | None = None
    seconds: Seconds = 0.0
    failure: Failure | None = None
    interrupted: Interruption | None = None
    request: RequestRecord | None = None
    response_changed_by: tuple[str, ...] = ()
    answered_at: Moment | None = None

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls that the model asked for, as they run after hooks."""
        return self.message.tool_calls if self.message is not None else ()

    @property
    def pending(self) -> tuple[PendingCall, ...]:
        """The calls that wait for a person."""
        return tuple(
            PendingCall(call.question.id, asked.id, asked.name, _arguments(asked, call), call.question.text)
            for asked, call in zip(self.tool_calls, self.calls, strict=True)
            if call.question is not None
        )

    def call_to_run(self, index: int) -> ToolCall:
        """Return the call with the arguments that it runs with, after hooks and a person's edit."""
        asked, call = self.tool_calls[index], self.calls[index]
        return asked if call.arguments is None else replace(asked, arguments=call.arguments)

    def with_call(self, index: int, call: OpenCall) -> OpenStep:
        calls = list(self.calls)
        calls[index] = call
        return replace(self, calls=tuple(calls))

    @property
    def is_done(self) -> bool:
        """True if every call has its result."""
        for call in self.calls:  # noqa: SIM110  `all` of a generator costs three times as much.
            if call.result is None:
                return False
        return True

    def stays_open(self, interrupted: Interruption | None) -> bool:
        """Return whether a call waits for a person, or may be running although its task was cancelled."""
        if interrupted is Interruption.CANCELLED:
            return not self.is_done
        if interrupted is Interruption.SUPERSEDED:
            return False
        return any(call.question is not None for call in self.calls)


def _arguments(asked: ToolCall, call: OpenCall) -> Mapping[str, Any] | str:
    return asked.arguments if call.arguments is None else call.arguments
