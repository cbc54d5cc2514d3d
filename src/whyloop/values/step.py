"""A step: one model call and the tool calls that it asked for, open or closed."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from hashlib import sha256
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from whyloop.values.approval import Approval, PendingCall, Question
from whyloop.values.continuation import Budget, ContinuationOutcome, StopReason
from whyloop.values.failure import Failure
from whyloop.values.messages import NO_EXTRAS, Message, MessageRole, ToolCall, ToolResult
from whyloop.values.model import NO_USAGE, FinishReason, ModelSource, Usage
from whyloop.values.scalars import Count, Moment, Seconds
from whyloop.values.text import shortened

FAILURE_LENGTH = 200
_HASH_LENGTH = 16

_TOOL = MessageRole.TOOL


class StepType(StrEnum):
    """The kind of a closed step."""

    TOOL_EXECUTION = "tool_execution"
    FINAL = "final"
    ERROR = "error"


class Interruption(StrEnum):
    """Why a step was cut off before its work was done."""

    TRUNCATED = "truncated"
    """The answer was truncated."""
    STOPPED = "stopped"
    """A stop was requested."""
    OUT_OF_TIME = "out_of_time"
    """The time for the execution was up."""
    CANCELLED = "cancelled"
    """The task that ran it was cancelled."""
    SUPERSEDED = "superseded"
    """Another query arrived first."""

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

    The texts behind the hashes are in the session's `request_parts`, each stored once.
    """

    instructions: str | None = None
    """The hash of the instructions."""
    tools: str | None = None
    """The hash of the tools."""
    messages: tuple[tuple[int, int] | str, ...] | None = None
    """Ranges of the history, and hashes of inserted messages; None for the whole history."""
    changed_by: tuple[str, ...] = ()
    """The hooks that changed the request."""
    output: str | None = None
    """The hash of the form of the answer that the provider was asked for."""
    tool_choice: str | None = None
    """`none` for a request that declared the tools but let the model call none of them."""
    max_tokens: Count | None = None
    """The maximum length of the answer in tokens, if the request set one."""


class RequestPart(Struct, frozen=True, gc=False):
    """A text that requests of a session refer to by its hash."""

    hash: str
    """The hash of the text."""
    text: str
    """The text."""

    @classmethod
    def of(cls, text: str) -> RequestPart:
        """Return a text with its hash."""
        return cls(sha256(text.encode("utf-8", "replace")).hexdigest()[:_HASH_LENGTH], text)


class ToolRun(Struct, frozen=True, gc=False, omit_defaults=True):
    """The record of one tool call; its arguments and its result are in the messages."""

    id: str
    """The provider's id of the call."""
    name: str
    """The name of the tool."""
    success: bool = True
    """True if the tool returned a result; a blocked or denied call, or one that did not run, has none."""
    error: str | None = None
    """Why the call did not succeed, for people; None if it did."""
    duration_ms: Seconds = 0.0
    """How long the call took."""
    approvals: tuple[Approval, ...] = ()
    """The decisions of people about the call."""
    started_at: Moment | None = None
    """When the call started; None if it never did."""
    changed_by: tuple[str, ...] = ()
    """The hooks that made or replaced its result."""
    polling: bool = False
    """True if the tool is meant to be called repeatedly."""


class Step(Struct, frozen=True, gc=False, omit_defaults=True):
    """A closed step, whether it succeeded or failed."""

    number: Count
    """The number of the step within the execution."""
    execution_id: str
    """The id of the execution."""
    started_at: Moment
    """When the request was made."""
    completed_at: Moment
    """When the step was closed."""
    first_message: Count
    """The index of the first message that the step added to the session."""
    message_count: Count = 0
    """The number of messages that it added."""
    tool_calls: tuple[ToolRun, ...] = ()
    """Its tool calls, in call order."""
    finish_reason: FinishReason | None = None
    """Why the model ended its answer; None without an answer."""
    usage: Usage = NO_USAGE
    """The tokens of the step."""
    duration_ms: Seconds = 0.0
    """The time in which the model or a tool was at work."""
    failures: tuple[Failure, ...] = ()
    """Its failures, in call order."""
    interrupted: Interruption | None = None
    """Why the step was cut off; None if it was not."""
    source: ModelSource | None = None
    """The origin of the answer."""
    outcome: ContinuationOutcome | None = None
    """Why the run continued or stopped after the step."""
    request: RequestRecord | None = None
    """The record of the request."""
    response_changed_by: tuple[str, ...] = ()
    """The hooks that changed the response."""
    answered_at: Moment | None = None
    """When the model answered or failed."""
    output: str | None = None
    """The JSON of the output, if the answer is one; `agent.output(state)` decodes it."""
    leg_started_at: Moment | None = None
    """When the query arrived, or when it was last resumed before the step was closed."""
    granted: Budget | None = None
    """The budget that a person had allowed on top of the limits by then."""
    untimed: bool = False
    """True if its times are unknown: it was imported from a log without them."""
    wrap_up: str | None = None
    """The limit that ended the run, if this step is its wrap-up; `step_count` does not include it."""
    resumes: Count = 0
    """How often the execution had been resumed when the step was closed."""
    judged_after: Count | None = None
    """The number of resumes before its `outcome`, if that was decided later and replaced an earlier one."""

    @property
    def has_tool_calls(self) -> bool:
        """True if the model asked for tool calls."""
        return bool(self.tool_calls)

    @property
    def has_answer(self) -> bool:
        """True if the model gave a complete answer."""
        return bool(self.message_count) and not self.failures and self.interrupted is None

    @property
    def wrap_up_note(self) -> str | None:
        """How the wrap-up ended, for people; None for any other step."""
        if self.wrap_up is None:
            return None
        if self.failures:
            return f"the wrap-up failed: {shortened(self.failures[0].message, FAILURE_LENGTH)}"
        if self.interrupted is not None:
            return f"the wrap-up was cut off: {self.interrupted.text}"
        return "the wrap-up answered"

    @property
    def error_count(self) -> int:
        """The number of failures."""
        return len(self.failures)

    @property
    def model_failure(self) -> Failure | None:
        """The failure of the model call itself; None if it was readable or did not fail."""
        first = self.failures[0] if self.failures else None
        return first if first is not None and first.is_model_call and not first.readable else None

    @property
    def type(self) -> StepType:
        """The kind of the step."""
        if self.failures:
            return StepType.ERROR
        return StepType.TOOL_EXECUTION if self.tool_calls else StepType.FINAL


def end_error(outcome: ContinuationOutcome, step: Step | None) -> str:
    """Return why a run failed, for people; after retries, with the last failure."""
    if outcome.stop_reason is not StopReason.RETRY_LIMIT_REACHED or step is None or not step.failures:
        return outcome.reason
    return f"{outcome.reason}: {shortened(step.failures[0].message, FAILURE_LENGTH)}"


class OpenCall(Struct, frozen=True, gc=False, omit_defaults=True):
    """The progress of a tool call in an open step.

    It is done once it has a `result`, and waits for a person while it has a `question`.
    """

    started: bool = False
    """True for a call that was ever started, even if its process ended before the result."""
    question: Question | None = None
    """The question to a person, while it is open."""
    approved: bool = False
    """True from a person's approval until the call starts."""
    approvals: tuple[Approval, ...] = ()
    """The decisions of people about the call."""
    arguments: Mapping[str, Any] | None = None
    """The arguments of a person, which replace the model's."""
    result: ToolResult | None = None
    """The result, once there is one."""
    duration_ms: Seconds = 0.0
    """How long the call took."""
    started_at: Moment | None = None
    """When the call started; None if it never did."""

    @property
    def is_done(self) -> bool:
        """True if the call has a result."""
        return self.result is not None

    @property
    def is_waiting(self) -> bool:
        """True if the call waits for a person."""
        return self.question is not None

    def run_of(self, asked: ToolCall, result: ToolResult) -> ToolRun:
        """Return how the call ended, given what the model asked for and the result."""
        return ToolRun(
            asked.id,
            asked.name,
            result.error is None,
            result.error,
            self.duration_ms,
            self.approvals,
            self.started_at,
            result.changed_by,
            polling=result.polling,
        )

    @property
    def is_running(self) -> bool:
        """True if the call started and has no result; its process may have ended since."""
        return self.started and self.result is None and self.question is None and not self.approved

    def without_decision(self) -> OpenCall:
        """Return the call without a decision that it has not started with."""
        approvals = self.approvals[:-1] if self.approved else self.approvals
        edits = [each.arguments for each in approvals if each.arguments is not None]
        return replace(self, approved=False, approvals=approvals, arguments=edits[-1] if edits else None)


class OpenStep(Struct, frozen=True, gc=False, omit_defaults=True):
    """A step that is not closed: the answer, and the progress of each call.

    It is part of a state while the calls run, while some of them wait for a person, and after the process
    that ran them has died.
    """

    number: Count
    """The number of the step within the execution."""
    started_at: Moment
    """When the request was made."""
    message: Message | None = None
    """The model's answer; None if there is none."""
    calls: tuple[OpenCall, ...] = ()
    """The progress of each call of the message, in call order."""
    finish_reason: FinishReason | None = None
    """Why the model ended its answer."""
    usage: Usage = NO_USAGE
    """The tokens of the step."""
    source: ModelSource | None = None
    """The origin of the answer."""
    seconds: Seconds = 0.0
    """The active time that the step has taken so far."""
    failure: Failure | None = None
    """The failure of the model call, or what is wrong with the answer."""
    interrupted: Interruption | None = None
    """Why the answer was cut off; None if it was not."""
    request: RequestRecord | None = None
    """The record of the request."""
    response_changed_by: tuple[str, ...] = ()
    """The hooks that changed the response."""
    answered_at: Moment | None = None
    """When the model answered or failed."""
    output: str | None = None
    """The JSON of the output, if the answer is one; `agent.output(state)` decodes it."""

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls that the model asked for, as they run after hooks."""
        return self.message.tool_calls if self.message is not None else ()

    @property
    def pending(self) -> tuple[PendingCall, ...]:
        """The calls that wait for a person."""
        return tuple(
            PendingCall(call.question.id, asked.name, asked.id, _arguments(asked, call), call.question.text)
            for asked, call in zip(self.tool_calls, self.calls, strict=True)
            if call.question is not None
        )

    def call_to_run(self, index: int) -> ToolCall:
        """Return a call with the arguments after hooks and a person's edit."""
        assert self.message is not None
        asked, call = self.message.tool_calls[index], self.calls[index]
        return asked if call.arguments is None else replace(asked, arguments=call.arguments)

    @property
    def calls_to_run(self) -> tuple[ToolCall, ...]:
        """The calls with the arguments after hooks and edits of people."""
        return tuple([self.call_to_run(index) for index in range(len(self.calls))])

    def find_question(self, question_id: str) -> tuple[int, OpenCall]:
        """Return the call that waits for the answer to this question, with its index."""
        for index, call in enumerate(self.calls):
            if call.question is not None and call.question.id == question_id:
                return index, call
        raise LookupError(f"no call waits for an answer to question {question_id!r}")

    def with_call(self, index: int, call: OpenCall) -> OpenStep:
        """Return the step with the progress of one call replaced."""
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

    def finished(self) -> tuple[list[Message], list[ToolRun], list[Failure]]:
        """Return the messages of the step, how each call ended, and all failures."""
        failures = [] if self.failure is None else [self.failure]
        runs: list[ToolRun] = []
        if self.message is None:
            return [], runs, failures
        messages = [self.message]
        for index, call in enumerate(self.calls):
            asked, result = self.message.tool_calls[index], call.result
            if result is None:
                raise ValueError(f"call {asked.id!r} has no result, so the step cannot be closed")
            content, shown = result.content, None
            if result.note:
                content, shown = f"{result.note}\n{result.content}", result.content
            messages.append(Message(_TOOL, content, (), asked.id, asked.name, NO_EXTRAS, shown=shown))
            runs.append(call.run_of(asked, result))
            if result.failure is not None:
                failures.append(result.failure)
        return messages, runs, failures

    def stays_open(self, interrupted: Interruption | None) -> bool:
        """Return whether a call waits for a person, or may run although it was cancelled."""
        if interrupted is Interruption.CANCELLED:
            return not self.is_done
        if interrupted is Interruption.SUPERSEDED:
            return False
        return any(call.question is not None for call in self.calls)


def _arguments(asked: ToolCall, call: OpenCall) -> dict[str, Any]:
    arguments = asked.arguments if call.arguments is None else call.arguments
    return {} if isinstance(arguments, str) else dict(arguments)  # A call with text for them never waits.
