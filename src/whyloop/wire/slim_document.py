"""The document of a slim snapshot, field by field.

Fields without a default are always present. Those with one are written where they hold something, and are
what a state needs beyond the rest to continue exactly as it would have:

- `usage`: `cost` is decimal text, null if it is unknown, and `known_cost` is the known part of an unknown
  one; `reported` is false if a provider reported nothing;
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
  present only if the calls that are still to run are unchanged;
- `truncated`: `details` (steps, outcomes, questions, stop requests and request texts that were cut), and
  `open_step` if there is one that could not be kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from whyloop.errors import ConfigurationError
from whyloop.values import encoding
from whyloop.values.approval import Approval, Question
from whyloop.values.continuation import (
    Budget,
    ContinuationDecision,
    ContinuationEvaluation,
    ContinuationOutcome,
    StopReason,
)
from whyloop.values.encoding import copied
from whyloop.values.execution import AgentStatus, Execution
from whyloop.values.failure import Failure, FailureTally
from whyloop.values.log import Log
from whyloop.values.messages import CallChange, Content, Message, MessageRole, ToolCall
from whyloop.values.model import FinishReason, ModelSource, Usage, refuse_impossible_cost
from whyloop.values.redaction import DEFAULT_REDACTION, Redaction
from whyloop.values.scalars import Count, Moment, Seconds, new_id
from whyloop.values.snapshot import check_open_step, check_version
from whyloop.values.state import AgentState, StateInfo
from whyloop.values.step import Interruption, OpenStep, RequestPart, RequestRecord, Step, StepType, ToolRun

VERSION = 1


class SlimSerializationConfig(Struct, frozen=True):
    """The extent of a slim snapshot."""

    max_messages: int | None = 50
    """The number of messages to keep; None for no limit."""
    max_content_length: int | None = 1000
    """The length of each text in characters; None for no limit."""
    include_tool_args: bool = True
    """Include the arguments of tool calls."""
    include_metadata: bool = True
    """Include metadata, reasoning and details of failures."""
    include_all_steps: bool = False
    """Include every step with all its evaluations."""
    redaction: Redaction | None = DEFAULT_REDACTION
    """The secrets to remove; None for none."""

    @classmethod
    def minimal(cls, *, redaction: Redaction | None = DEFAULT_REDACTION) -> SlimSerializationConfig:
        """Return the configuration for a list or a notification: the latest messages.

        Args:
            redaction: The secrets to remove; None for none. Default: `Redaction()`.
        """
        return cls(10, 500, include_tool_args=False, include_metadata=False, redaction=redaction)

    @classmethod
    def standard(cls, *, redaction: Redaction | None = DEFAULT_REDACTION) -> SlimSerializationConfig:
        """Return the configuration for a page about one session.

        Args:
            redaction: The secrets to remove; None for none. Default: `Redaction()`.
        """
        return cls(redaction=redaction)

    @classmethod
    def full(cls, *, redaction: Redaction | None = DEFAULT_REDACTION) -> SlimSerializationConfig:
        """Return the configuration for everything but secrets.

        Args:
            redaction: The secrets to remove; None for none. Default: `Redaction()`.
        """
        return cls(None, None, include_all_steps=True, redaction=redaction)

    @property
    def keeps_raised(self) -> bool:
        """True if the messages of tools' own exceptions are kept: only with everything else."""
        parts = (self.include_tool_args, self.include_metadata, self.include_all_steps)
        return all(parts) and self.max_messages is None and self.max_content_length is None

    def __post_init__(self) -> None:
        for field in ("max_messages", "max_content_length"):
            limit = getattr(self, field)
            if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
                raise _invalid(field, limit, "a whole number greater than zero, or None")
        for field in ("include_tool_args", "include_metadata", "include_all_steps"):
            if not isinstance(choice := getattr(self, field), bool):
                raise _invalid(field, choice, "True or False")
        if self.redaction is not None and not isinstance(self.redaction, Redaction):
            raise _invalid("redaction", self.redaction, "a Redaction or None")


def _invalid(field: str, value: object, use: str) -> ConfigurationError:
    return ConfigurationError(f"invalid {field} {value!r}: use {use}")


class Tokens(Struct, frozen=True, omit_defaults=True):
    input: Count
    output: Count
    total: Count
    cost: Decimal | UnsetType | None = UNSET
    cached: Count = 0
    reasoning: Count = 0
    reported: bool = True
    cache_writes: Count = 0
    known_cost: Decimal | None = None

    def __post_init__(self) -> None:
        refuse_impossible_cost(self.cost)
        refuse_impossible_cost(self.known_cost)


class StepTokens(Struct, frozen=True, omit_defaults=True):
    total: Count
    cost: Decimal | UnsetType | None = UNSET
    input: Count = 0
    output: Count = 0
    cached: Count = 0
    reasoning: Count = 0
    reported: bool = True
    cache_writes: Count = 0
    known_cost: Decimal | None = None

    def __post_init__(self) -> None:
        refuse_impossible_cost(self.cost)
        refuse_impossible_cost(self.known_cost)


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
    untimed: bool = False
    wrap_up: str | None = None
    wrap_ups: Count = 0


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
    tool: str | None = msgspec.field(default=None, name="tool_name")
    extras: dict[str, Any] = {}
    reasoning: str = ""
    incomplete: bool = False
    source: tuple[str, ...] = ()
    shown: str | None = None


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
    partial: bool = False


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
    output: str | None = None
    leg_started_at: Moment | None = None
    granted: Budget | None = None
    untimed: bool = False
    wrap_up: str | None = None
    resumes: Count = 0
    judged_after: Count | None = None


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


# Reading


def state_from_slim(data: Mapping[str, Any]) -> AgentState:
    """Return the state in a slim snapshot, its execution clock unset."""
    check_version(data, VERSION)
    slim = encoding.decode(dict(data), SlimState)
    check_open_step(slim.open_step, "$.open_step")
    messages = [_message(message) for message in slim.messages]
    execution = _execution(slim.execution, messages)
    last = _outcome(slim.last_continuation) if slim.last_continuation else None
    current = _step(slim.current_step, execution, last) if slim.current_step else None
    # If the steps were left out, only the current one is known.
    steps = [_step(step, execution, None) for step in slim.steps] or [step for step in [current] if step]
    return copied(
        slim,
        AgentState,
        identity=slim.identity or new_id(),
        messages=Log(messages),
        steps=Log(steps),
        usage=_usage(slim.usage),
        state_info=slim.state_info or _state_info(slim.execution),
        execution=execution,
        last_continuation_outcome=last,
        execution_started_at=None,
        decoded_output=UNSET,
        request_parts=Log(slim.request_parts),
        wrap_ups=len([step for step in steps if step.wrap_up is not None]),
    )


def _execution(slim: SlimExecution, messages: Sequence[Message]) -> Execution:
    since_query = _since_query(messages) if slim.step_count else []
    return copied(
        slim,
        Execution,
        usage=_usage(slim.usage) if slim.usage else Usage(),
        failures=slim.failures or FailureTally(),
        active_seconds=slim.cumulative_seconds,
        last_response=next((m.text for m in reversed(since_query) if m.is_assistant and m.text), ""),
        has_tool_results=slim.has_tool_results or any(m.is_tool for m in since_query),
    )


def _since_query(messages: Sequence[Message]) -> Sequence[Message]:
    """Return the messages after the last query."""
    last = max((index for index, message in enumerate(messages) if message.is_user), default=-1)
    return messages[last + 1 :]


def _state_info(slim: SlimExecution) -> StateInfo:
    """Return the clocks of a session that names none: those of its execution."""
    return StateInfo(slim.started_at, slim.updated_at or slim.started_at, slim.cumulative_seconds)


def _message(slim: SlimMessage) -> Message:
    metadata = slim.metadata or MessageMetadata()
    calls = tuple([_call(call) for call in metadata.tool_calls])
    return copied(metadata, Message, role=slim.role, content=slim.content, tool_calls=calls)


def _call(slim: SlimCall) -> ToolCall:
    changes = [CallChange(each.by, _arguments(each.before), each.name) for each in slim.changes]
    return ToolCall(slim.id, slim.name, _arguments(slim.args), tuple(changes))


def _arguments(arguments: dict[str, Any] | str | UnsetType) -> dict[str, Any] | str:
    return {} if arguments is UNSET else arguments


def _step(slim: SlimStep, execution: Execution, outcome: ContinuationOutcome | None) -> Step:
    return copied(
        slim,
        Step,
        number=slim.step_number,
        execution_id=slim.execution_id or execution.id,
        started_at=slim.started_at or execution.started_at,
        completed_at=slim.completed_at or execution.updated_at or execution.started_at,
        usage=_usage(slim.usage),
        outcome=_outcome(slim.continuation) if slim.continuation else outcome,
    )


def _usage(slim: Tokens | StepTokens) -> Usage:
    # A total is enough for a limit on tokens, although it does not distinguish input and output.
    read = slim.input or max(0, slim.total - slim.output)
    return copied(slim, Usage, input=read, cost=None if slim.cost is UNSET else slim.cost)


def _outcome(slim: SlimContinuation) -> ContinuationOutcome:
    return copied(slim, ContinuationOutcome, decision=slim.decision or _assumed_decision(slim))


def _assumed_decision(slim: SlimContinuation) -> ContinuationDecision:
    """Return the decision behind a continuation that does not name it."""
    if slim.should_continue:
        return ContinuationDecision.REQUEST_CONTINUATION
    if slim.stop_reason is StopReason.COMPLETED:
        return ContinuationDecision.ALLOW_STOP
    return ContinuationDecision.FORBID_CONTINUATION


def kept_indices(messages: Sequence[Message], most: int | None) -> list[int]:
    """Return which messages a history of at most this many keeps.

    The oldest are dropped first. A call and its results stay or go together. Instructions at the beginning
    stay. The next message is a user's, and is kept even if too many steps follow it.
    """
    count = len(messages)
    if most is None or count <= most:
        return list(range(count))
    body = next((i for i, message in enumerate(messages) if not message.is_system), count)
    head = list(range(min(body, most - 1)))
    room = most - len(head)
    start = _start_of_latest(messages, body, room)
    user = next((i for i in range(start, count) if messages[i].is_user), None)
    if user is not None:
        return head + list(range(user, count))
    user = next((i for i in range(start - 1, body - 1, -1) if messages[i].is_user), None)
    if user is None:
        return head + list(range(start, count))
    return [*head, user, *range(_start_of_latest(messages, body, room - 1), count)]


def _start_of_latest(messages: Sequence[Message], body: int, room: int) -> int:
    """Return the index of the first of the latest messages that fit into this number."""
    start = count = len(messages)
    for index in range(count - 1, max(body, count - room) - 1, -1):
        if not messages[index].is_tool:
            start = index
    return start
