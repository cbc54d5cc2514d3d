"""The document of a slim snapshot, field by field.

Fields without a default are always present. Those with one are written where they hold something, and are
what a state needs beyond the rest to continue exactly as it would have:

- `usage`: `cost` is decimal text, null if it is unknown; `reported` is false if a provider reported nothing;
- `execution`: `usage` and `failures` of the execution, the start of its leg, the seconds spent waiting and in
  backoff, its resumes, grants and stop request, the last number of its envelopes, and what a person is or
  was asked about the run itself;
- a step: when it began and ended, its execution if that is an earlier one, which of the snapshot's messages
  are its own, its `failures`, what `interrupted` it, the `source` of the answer, the record of its request,
  and in `steps` its `continuation`;
- a continuation: the `decision`, and the `evaluations` (those that decided and that handled a failure, or all
  of them where all steps are included);
- a message's metadata: the `extras` that its provider wants back, the model's `reasoning`, whether it is
  `incomplete`, the `source` of feedback, and the hooks that changed a call;
- `identity`, `agent` and `state_info`: the session itself, and its clocks;
- `request_parts`: the texts that requests refer to, where all steps are included; a text that would have to
  be changed is left out, since it goes by its hash;
- `open_step`: a step whose tool calls do not all have their results, in the form of the full snapshot. It is
  present only if the calls that are still to run are there word by word;
- `truncated`: `details` (steps, outcomes, questions, stop requests and request texts that were cut), and
  `open_step` if there is one that could not be kept.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from whyloop.errors import ConfigurationError
from whyloop.values.approval import Approval, Question
from whyloop.values.continuation import (
    Budget,
    ContinuationDecision,
    ContinuationEvaluation,
    ContinuationOutcome,
    StopReason,
)
from whyloop.values.failure import Failure, FailureTally
from whyloop.values.messages import Content, Message, MessageRole, ToolCall
from whyloop.values.model import FinishReason, ModelSource, Usage
from whyloop.values.redaction import Redaction
from whyloop.values.scalars import Count, Moment, Seconds
from whyloop.values.state import AgentStatus, Execution, StateInfo
from whyloop.values.step import (
    Interruption,
    OpenCall,
    OpenStep,
    RequestPart,
    RequestRecord,
    Step,
    StepType,
    ToolRun,
)

VERSION = 1


class SlimSerializationConfig(Struct, frozen=True):
    """What goes into a slim snapshot, and how much of it.

    `max_messages` and `max_content_length` (in characters) are None for no limit. `redaction` says
    what is secret, and is removed; with None, nothing is.
    """

    max_messages: int | None = 50
    max_content_length: int | None = 1000
    include_tool_args: bool = True
    include_metadata: bool = True
    include_all_steps: bool = False
    redaction: Redaction | None = Redaction()

    @classmethod
    def minimal(cls) -> SlimSerializationConfig:
        """The last words of a session, for a list or a notification."""
        return cls(10, 500, include_tool_args=False, include_metadata=False)

    @classmethod
    def standard(cls) -> SlimSerializationConfig:
        """What a page about one session shows."""
        return cls()

    @classmethod
    def full(cls) -> SlimSerializationConfig:
        """Everything but secrets, however much it is."""
        return cls(None, None, include_all_steps=True)

    def __post_init__(self) -> None:
        for field in ("max_messages", "max_content_length"):
            limit = getattr(self, field)
            if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
                raise _impossible(field, f"is a whole number greater than zero or None, not {limit!r}")
        for field in ("include_tool_args", "include_metadata", "include_all_steps"):
            if not isinstance(choice := getattr(self, field), bool):
                raise _impossible(field, f"is True or False, not {choice!r}")
        if self.redaction is not None and not isinstance(self.redaction, Redaction):
            raise _impossible("redaction", f"is a Redaction or None, not {self.redaction!r}")


def _impossible(field: str, words: str) -> ConfigurationError:
    return ConfigurationError(f"SlimSerializationConfig: {field} {words}")


class Tokens(Struct, frozen=True, omit_defaults=True):
    input: Count
    output: Count
    total: Count
    cost: Decimal | UnsetType | None = UNSET
    cached: Count = 0
    reasoning: Count = 0
    reported: bool = True


class StepTokens(Struct, frozen=True, omit_defaults=True):
    total: Count
    cost: Decimal | UnsetType | None = UNSET
    input: Count = 0
    output: Count = 0
    cached: Count = 0
    reasoning: Count = 0
    reported: bool = True


class SlimExecution(Struct, frozen=True, omit_defaults=True):
    id: str
    step_count: Count
    started_at: Moment
    updated_at: Moment | None
    cumulative_seconds: Seconds
    usage: Tokens | None = None
    failures: FailureTally | None = None
    waiting_seconds: Seconds = 0.0
    backoff_seconds: Seconds = 0.0
    resumes: Count = 0
    granted: Budget | None = None
    stop_request: str | None = None
    leg_started_at: Moment | None = None
    resumed_from: AgentStatus | None = None
    last_seq: Count = 0
    wait_until: Moment | None = None
    recoveries: Count = 0
    question: Question | None = None
    approvals: tuple[Approval, ...] = ()
    has_tool_results: bool = False


class SlimChange(Struct, frozen=True, omit_defaults=True):
    by: str
    before: dict[str, Any] | str | UnsetType = UNSET
    name: str | None = None


class SlimCall(Struct, frozen=True, omit_defaults=True):
    id: str
    name: str
    args: dict[str, Any] | str | UnsetType = UNSET
    changes: tuple[SlimChange, ...] = ()


class MessageMetadata(Struct, frozen=True, omit_defaults=True):
    tool_calls: tuple[SlimCall, ...] = ()
    tool_call_id: str | None = None
    tool_name: str | None = None
    extras: dict[str, Any] = {}
    reasoning: str = ""
    incomplete: bool = False
    source: tuple[str, ...] = ()


class SlimMessage(Struct, frozen=True, omit_defaults=True):
    role: MessageRole
    content: Content
    metadata: MessageMetadata | None = None


class SlimContinuation(Struct, frozen=True, omit_defaults=True):
    should_continue: bool
    stop_reason: StopReason | None
    resolved_by: str
    decision: ContinuationDecision | None = None
    evaluations: tuple[ContinuationEvaluation, ...] = ()


class SlimStep(Struct, frozen=True, omit_defaults=True):
    step_number: Count
    type: StepType
    has_tool_calls: bool
    finish_reason: FinishReason | None
    errors: Count
    usage: StepTokens
    duration_ms: Seconds
    tool_calls: tuple[ToolRun, ...]
    execution_id: str | None = None
    started_at: Moment | None = None
    completed_at: Moment | None = None
    first_message: Count = 0
    message_count: Count = 0
    failures: tuple[Failure, ...] = ()
    interrupted: Interruption | None = None
    source: ModelSource | None = None
    continuation: SlimContinuation | None = None
    request: RequestRecord | None = None
    response_changed_by: tuple[str, ...] = ()
    answered_at: Moment | None = None


class Truncated(Struct, frozen=True, omit_defaults=True):
    messages: Count
    contents: Count
    details: Count = 0
    open_step: Count = 0


class SlimState(Struct, frozen=True, omit_defaults=True):
    version: int
    agent_id: str
    parent_agent_id: str | None
    status: AgentStatus
    execution: SlimExecution
    usage: Tokens
    messages: tuple[SlimMessage, ...]
    current_step: SlimStep | None
    steps: tuple[SlimStep, ...]
    last_continuation: SlimContinuation | None
    metadata: dict[str, Any]
    truncated: Truncated
    state_info: StateInfo | None = None
    open_step: OpenStep | None = None
    identity: str | None = None
    agent: str = ""
    request_parts: tuple[RequestPart, ...] = ()


class Notes:
    """How values are written under one configuration."""

    def __init__(
        self, config: SlimSerializationConfig, execution_id: str, kept: list[int], *, trimmed: bool
    ) -> None:
        self._config = config
        self._execution_id = execution_id
        self._kept = kept
        self._trimmed = trimmed

    def messages(self, messages: list[Message]) -> list[SlimMessage]:
        # Providers insist on their extras only until the user speaks again.
        current = max((i for i, message in enumerate(messages) if message.is_user), default=-1)
        start = 0 if self._config.max_content_length is None else current
        wanted = self._config.include_metadata
        return [
            self._message(message, extras=wanted and index >= start) for index, message in enumerate(messages)
        ]

    def _message(self, message: Message, *, extras: bool) -> SlimMessage:
        metadata = MessageMetadata(
            tool_calls=tuple([self._call(call) for call in message.tool_calls]),
            tool_call_id=message.tool_call_id,
            tool_name=message.tool_name,
            extras=dict(message.extras) if extras else {},
            reasoning=message.reasoning if self._config.include_metadata else "",
            incomplete=message.incomplete,
            source=message.source,
        )
        return SlimMessage(message.role, message.content, None if metadata == _NO_METADATA else metadata)

    def _call(self, call: ToolCall) -> SlimCall:
        changes = [
            SlimChange(change.by, self._arguments(change.before), change.name) for change in call.changes
        ]
        return SlimCall(call.id, call.name, self._arguments(call.arguments), tuple(changes))

    def _arguments(self, arguments: Mapping[str, Any] | str) -> dict[str, Any] | str | UnsetType:
        if not self._config.include_tool_args:
            return UNSET
        return arguments if isinstance(arguments, str) else dict(arguments)

    def step(self, step: Step) -> SlimStep:
        first = bisect_left(self._kept, step.first_message)
        return SlimStep(
            step_number=step.number,
            type=step.type,
            has_tool_calls=step.has_tool_calls,
            finish_reason=step.finish_reason,
            errors=step.error_count,
            usage=_step_tokens(step.usage),
            duration_ms=step.duration_ms,
            tool_calls=tuple([self._run(run) for run in step.tool_calls]),
            execution_id=None if step.execution_id == self._execution_id else step.execution_id,
            started_at=utc(step.started_at),
            completed_at=utc(step.completed_at),
            first_message=first,
            message_count=bisect_left(self._kept, step.first_message + step.message_count) - first,
            failures=tuple([self._failure(failure) for failure in step.failures]),
            interrupted=step.interrupted,
            source=step.source if self._config.include_metadata else None,
            continuation=self.continuation(step.outcome) if step.outcome else None,
            request=self._request(step.request),
            response_changed_by=step.response_changed_by,
            answered_at=step.answered_at and utc(step.answered_at),
        )

    def _request(self, record: RequestRecord | None) -> RequestRecord | None:
        """Return the record of a request, unless it refers to messages that are counted otherwise here."""
        if record is None or not self._config.include_metadata:
            return None
        return None if self._trimmed and record.messages is not None else record

    def execution(self, execution: Execution) -> SlimExecution:
        return SlimExecution(
            id=execution.id,
            step_count=execution.step_count,
            started_at=utc(execution.started_at),
            updated_at=execution.updated_at and utc(execution.updated_at),
            cumulative_seconds=execution.active_seconds,
            usage=tokens(execution.usage),
            failures=execution.failures if execution.failures.total else None,
            waiting_seconds=execution.waiting_seconds,
            backoff_seconds=execution.backoff_seconds,
            resumes=execution.resumes,
            granted=execution.granted,
            stop_request=execution.stop_request,
            leg_started_at=execution.leg_started_at and utc(execution.leg_started_at),
            resumed_from=execution.resumed_from,
            last_seq=execution.last_seq,
            wait_until=execution.wait_until and utc(execution.wait_until),
            recoveries=execution.recoveries,
            question=execution.question,
            approvals=self._approvals(execution.approvals),
            has_tool_results=execution.has_tool_results,
        )

    def open_step(self, step: OpenStep) -> OpenStep:
        wanted, message = self._config.include_metadata, step.message
        if message is not None and not wanted:
            message = replace(message, extras={}, reasoning="")
        return replace(
            step,
            started_at=utc(step.started_at),
            message=message,
            calls=tuple([self._open_call(call) for call in step.calls]),
            source=step.source if wanted else None,
            failure=step.failure and self._failure(step.failure),
            request=self._request(step.request),
            answered_at=step.answered_at and utc(step.answered_at),
        )

    def _open_call(self, call: OpenCall) -> OpenCall:
        result = call.result
        if result is not None and result.failure is not None:
            result = replace(result, failure=self._failure(result.failure))
        return replace(
            call,
            result=result,
            approvals=self._approvals(call.approvals),
            started_at=call.started_at and utc(call.started_at),
        )

    def _run(self, run: ToolRun) -> ToolRun:
        started_at = run.started_at and utc(run.started_at)
        return replace(run, approvals=self._approvals(run.approvals), started_at=started_at)

    def _approvals(self, approvals: Sequence[Approval]) -> tuple[Approval, ...]:
        wanted = self._config.include_tool_args
        return tuple(
            [
                replace(approval, at=utc(approval.at), arguments=approval.arguments if wanted else None)
                for approval in approvals
            ]
        )

    def _failure(self, failure: Failure) -> Failure:
        return failure if self._config.include_metadata else replace(failure, details={})

    def continuation(self, outcome: ContinuationOutcome) -> SlimContinuation:
        evaluations = outcome.evaluations
        if not self._config.include_all_steps:
            # A failure that was ignored does not count, so its handling is part of how the run continues.
            needed = (outcome.resolving_evaluation, outcome.policy_evaluation)
            evaluations = tuple([each for each in evaluations if any(each is one for one in needed)])
        if not self._config.include_metadata:
            evaluations = tuple([replace(each, context={}) for each in evaluations])
        return SlimContinuation(
            should_continue=outcome.should_continue,
            stop_reason=outcome.stop_reason,
            resolved_by=outcome.resolved_by,
            decision=outcome.decision,
            evaluations=evaluations,
        )


_NO_METADATA = MessageMetadata()


def tokens(usage: Usage) -> Tokens:
    return Tokens(
        usage.input, usage.output, usage.total, usage.cost, usage.cached, usage.reasoning, usage.reported
    )


def _step_tokens(usage: Usage) -> StepTokens:
    return StepTokens(
        usage.total, usage.cost, usage.input, usage.output, usage.cached, usage.reasoning, usage.reported
    )


def utc(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError:  # The first and the last day of the calendar have no neighbours.
        return moment.replace(tzinfo=UTC)
