"""Slim snapshots: what of a state goes over the wire or into a list of sessions, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, runtime_checkable

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from whyloop.errors import SnapshotError
from whyloop.values import encoding
from whyloop.values.continuation import ContinuationDecision, ContinuationOutcome, StopReason
from whyloop.values.failure import FailureTally
from whyloop.values.log import Log
from whyloop.values.messages import CallChange, Message, ToolCall
from whyloop.values.model import Usage
from whyloop.values.redaction import REMOVED, Redaction, plain_data
from whyloop.values.scalars import new_id
from whyloop.values.snapshot import check_open_step
from whyloop.values.state import AgentState, Execution, StateInfo
from whyloop.values.step import OpenStep, Step
from whyloop.wire.slim_document import (
    VERSION,
    MessageMetadata,
    Notes,
    SlimContinuation,
    SlimExecution,
    SlimMessage,
    SlimSerializationConfig,
    SlimState,
    SlimStep,
    StepTokens,
    Tokens,
    Truncated,
    tokens,
    utc,
)
from whyloop.wire.trim import (
    LEFT_OUT,
    Change,
    changed_execution,
    changed_message,
    changed_open_step,
    changed_outcome,
    changed_step,
    cut,
    kept_indices,
)


def read_slim(data: Mapping[str, Any]) -> AgentState:
    """The state in a slim snapshot, its execution clock unset."""
    _check_version(data)
    slim = encoding.decode(dict(data), SlimState)
    check_open_step(slim.open_step, "$.open_step")
    messages = [_message(message) for message in slim.messages]
    execution = _execution(slim.execution, messages)
    last = _outcome(slim.last_continuation) if slim.last_continuation else None
    current = _step(slim.current_step, execution, last) if slim.current_step else None
    # Where the steps were left out the current one is all that is known of them.
    steps = [_step(step, execution, None) for step in slim.steps] or [step for step in [current] if step]
    return AgentState(
        agent_id=slim.agent_id,
        identity=slim.identity or new_id(),
        agent=slim.agent,
        parent_agent_id=slim.parent_agent_id,
        status=slim.status,
        messages=Log(messages),
        steps=Log(steps),
        usage=_usage(slim.usage),
        metadata=slim.metadata,
        state_info=slim.state_info or _made_up(slim.execution),
        execution=execution,
        last_continuation_outcome=last,
        open_step=slim.open_step,
        request_parts=Log(slim.request_parts),
    )


def _check_version(data: object) -> None:
    if not isinstance(data, Mapping):
        raise SnapshotError(f"a snapshot is an object, this is {type(data).__name__}")
    version = data.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise SnapshotError("a slim snapshot names its version with a number from 1 on", "$.version")
    if version > VERSION:
        raise SnapshotError(
            f"it is of a version newer than {VERSION}, the newest that this whyloop reads: upgrade whyloop",
            "$.version",
        )


def _execution(slim: SlimExecution, messages: Sequence[Message]) -> Execution:
    since_query = _since_query(messages) if slim.step_count else []
    return Execution(
        id=slim.id,
        started_at=slim.started_at,
        updated_at=slim.updated_at,
        step_count=slim.step_count,
        usage=_usage(slim.usage) if slim.usage else Usage(),
        failures=slim.failures or FailureTally(),
        active_seconds=slim.cumulative_seconds,
        waiting_seconds=slim.waiting_seconds,
        backoff_seconds=slim.backoff_seconds,
        resumes=slim.resumes,
        granted=slim.granted,
        stop_request=slim.stop_request,
        leg_started_at=slim.leg_started_at,
        resumed_from=slim.resumed_from,
        last_seq=slim.last_seq,
        wait_until=slim.wait_until,
        recoveries=slim.recoveries,
        question=slim.question,
        approvals=slim.approvals,
        last_response=next((m.text for m in reversed(since_query) if m.is_assistant and m.text), ""),
        has_tool_results=slim.has_tool_results or any(m.is_tool for m in since_query),
    )


def _since_query(messages: Sequence[Message]) -> Sequence[Message]:
    """Return the messages after the last query."""
    last = max((index for index, message in enumerate(messages) if message.is_user), default=-1)
    return messages[last + 1 :]


def _made_up(slim: SlimExecution) -> StateInfo:
    """The clocks of a session that names none: those of its execution."""
    return StateInfo(slim.started_at, slim.updated_at or slim.started_at, slim.cumulative_seconds)


def _message(slim: SlimMessage) -> Message:
    metadata = slim.metadata or MessageMetadata()
    return Message(
        role=slim.role,
        content=slim.content,
        tool_calls=tuple(
            [
                ToolCall(
                    call.id,
                    call.name,
                    _arguments(call.args),
                    tuple([CallChange(each.by, _arguments(each.before), each.name) for each in call.changes]),
                )
                for call in metadata.tool_calls
            ]
        ),
        tool_call_id=metadata.tool_call_id,
        tool_name=metadata.tool_name,
        extras=metadata.extras,
        reasoning=metadata.reasoning,
        incomplete=metadata.incomplete,
        source=metadata.source,
    )


def _arguments(arguments: dict[str, Any] | str | UnsetType) -> dict[str, Any] | str:
    return {} if arguments is UNSET else arguments


def _step(slim: SlimStep, execution: Execution, outcome: ContinuationOutcome | None) -> Step:
    return Step(
        number=slim.step_number,
        execution_id=slim.execution_id or execution.id,
        started_at=slim.started_at or execution.started_at,
        completed_at=slim.completed_at or execution.updated_at or execution.started_at,
        first_message=slim.first_message,
        message_count=slim.message_count,
        tool_calls=slim.tool_calls,
        finish_reason=slim.finish_reason,
        usage=_usage(slim.usage),
        duration_ms=slim.duration_ms,
        failures=slim.failures,
        interrupted=slim.interrupted,
        source=slim.source,
        outcome=_outcome(slim.continuation) if slim.continuation else outcome,
        request=slim.request,
        response_changed_by=slim.response_changed_by,
        answered_at=slim.answered_at,
    )


def _usage(slim: Tokens | StepTokens) -> Usage:
    # A total alone is enough for a limit on tokens; it does not say which way they went.
    read = slim.input or max(0, slim.total - slim.output)
    cost = None if slim.cost is UNSET else slim.cost
    return Usage(read, slim.output, slim.cached, slim.reasoning, cost, slim.reported)


def _outcome(slim: SlimContinuation) -> ContinuationOutcome:
    return ContinuationOutcome(
        decision=slim.decision or _likely(slim),
        resolved_by=slim.resolved_by,
        stop_reason=slim.stop_reason,
        evaluations=slim.evaluations,
    )


def _likely(slim: SlimContinuation) -> ContinuationDecision:
    """The decision behind a continuation that does not name it."""
    if slim.should_continue:
        return ContinuationDecision.REQUEST_CONTINUATION
    if slim.stop_reason is StopReason.COMPLETED:
        return ContinuationDecision.ALLOW_STOP
    return ContinuationDecision.FORBID_CONTINUATION


class SlimWriter:
    """A state without its secrets, to be written in the requested detail.

    The secrets are removed once and first, so that no cut leaves half of one behind.
    """

    def __init__(self, state: AgentState, config: SlimSerializationConfig) -> None:
        hide = config.redaction.data if config.redaction else plain_data
        hide_text = partial(_beginning, config) if config.redaction and config.max_content_length else hide
        self._config = config
        self._state = state
        self._messages = {
            index: _without_secrets(state.messages[index], hide, hide_text)
            for index in kept_indices(state.messages, config.max_messages)
        }
        self._errors = {index: hide(error) for index, error in _tool_errors(state) if index in self._messages}
        step, outcome = state.current_step, state.last_continuation_outcome
        self._current = step and changed_step(step, hide)
        self._steps = [changed_step(step, hide) for step in state.steps] if config.include_all_steps else []
        self._outcome = outcome and changed_outcome(outcome, hide)
        self._open_step = state.open_step and _open_without_secrets(state.open_step, hide)
        self._execution = changed_execution(state.execution, hide)
        parts = state.request_parts if config.include_all_steps else ()
        self._parts = [part for part in parts if hide(part.text) == part.text]
        self._metadata: dict[str, Any] = hide(state.metadata) if config.include_metadata else {}

    def document(self) -> dict[str, Any]:
        """Return the snapshot."""
        config, state = self._config, self._state
        shorten = partial(cut, most=config.max_content_length)
        kept = list(self._messages)
        whole = list(self._messages.values())
        if not config.include_tool_args:
            whole = [self._without_arguments(index) for index in kept]
        messages = [changed_message(message, shorten, LEFT_OUT) for message in whole]
        notes = Notes(config, state.execution.id, kept, trimmed=len(kept) < len(state.messages))
        current = self._current and changed_step(self._current, shorten)
        steps = [changed_step(step, shorten) for step in self._steps]
        outcome = self._outcome and changed_outcome(self._outcome, shorten)
        execution = changed_execution(self._execution, shorten)
        parts = [part for part in self._parts if shorten(part.text) == part.text]
        open_step = self._open_step and changed_open_step(self._open_step, shorten, LEFT_OUT)
        if not config.include_tool_args:
            open_step = None  # No call is ever run without its arguments.
        before: list[object] = [self._current, *self._steps, self._outcome, self._execution]
        after: list[object] = [current, *steps, outcome, execution]
        if open_step is not None:
            before.append(self._open_step)
            after.append(open_step)
        slim = SlimState(
            version=VERSION,
            agent_id=state.agent_id,
            parent_agent_id=state.parent_agent_id,
            status=state.status,
            execution=notes.execution(execution),
            usage=tokens(state.usage),
            messages=tuple(notes.messages(messages)),
            current_step=notes.step(_judged_apart(current, outcome)) if current else None,
            steps=tuple([notes.step(step) for step in steps]),
            last_continuation=notes.continuation(outcome) if outcome else None,
            metadata=self._metadata,
            truncated=Truncated(
                messages=len(state.messages) - len(kept),
                contents=_differences(whole, messages),
                details=_differences(before, after) + self._count_left_out(len(parts)),
                open_step=int(state.open_step is not None and open_step is None),
            ),
            state_info=_state_info(state.state_info),
            open_step=open_step and notes.open_step(open_step),
            identity=state.identity,
            agent=state.agent,
            request_parts=tuple(parts),
        )
        document: dict[str, Any] = encoding.encode(slim)
        return document

    def _without_arguments(self, index: int) -> Message:
        """Return a message without the arguments that a tool's error for the model may quote."""
        message, error = self._messages[index], self._errors.get(index)
        return message if error is None else replace(message, content=f"Error: {error}")

    def _count_left_out(self, kept: int) -> int:
        """Return the number of request texts that are left out though they were asked for."""
        return len(self._state.request_parts) - kept if self._config.include_all_steps else 0


def _tool_errors(state: AgentState) -> Iterator[tuple[int, str]]:
    """Yield the index of each result of a failed call, with the text for people."""
    for step in state.steps:
        if not step.failures:
            continue
        failures = {failure.tool_call_id: failure.message for failure in step.failures}
        for index, run in enumerate(step.tool_calls, step.first_message + 1):
            known = index < len(state.messages) and state.messages[index].tool_call_id == run.id
            if known and run.id in failures:
                yield index, failures[run.id]


def _beginning(asked: SlimSerializationConfig, value: Any) -> Any:
    """Return a value without secrets, and of a text no more than the snapshot may show."""
    redaction, most = asked.redaction or Redaction(), asked.max_content_length or 0
    return redaction.beginning(value, most) if isinstance(value, str) else redaction.data(value)


def _without_secrets(message: Message, hide: Change, hide_text: Change) -> Message:
    # An image or a file is looked at as a whole: a part of it is of no use.
    message = changed_message(message, hide_text if isinstance(message.content, str) else hide, REMOVED)
    if message.extras and hide(message.extras) != message.extras:
        return replace(message, extras={})
    return message


def _open_without_secrets(step: OpenStep, hide: Change) -> OpenStep | None:
    extras = step.message.extras if step.message else {}
    if extras and hide(extras) != extras:
        return None
    return changed_open_step(step, hide, REMOVED)


def _differences(before: Sequence[object], after: Sequence[object]) -> int:
    return sum(a != b for a, b in zip(before, after, strict=True))


def _judged_apart(step: Step, last: ContinuationOutcome | None) -> Step:
    """Return the current step without its outcome, unless the last outcome is about an open step."""
    return replace(step, outcome=None) if last is None or step.outcome == last else step


def _state_info(info: StateInfo) -> StateInfo:
    return replace(info, started_at=utc(info.started_at), updated_at=utc(info.updated_at))


@runtime_checkable
class CanSerializeAgentState(Protocol):
    """Turns a state into plain data, and that data into a state that can be run."""

    def serialize(self, state: AgentState) -> dict[str, Any]: ...

    def deserialize(self, data: Mapping[str, Any]) -> AgentState: ...


class SlimAgentStateSerializer:
    """Writes as much of a state as its configuration allows, without secrets, and counts what it cut.

    The document is described in `whyloop.wire.slim_document`.
    """

    def __init__(self, config: SlimSerializationConfig | None = None) -> None:
        self.config = config or SlimSerializationConfig()

    def serialize(self, state: AgentState) -> dict[str, Any]:
        """Return the slim snapshot of a state."""
        return SlimWriter(state, self.config).document()

    def deserialize(self, data: Mapping[str, Any]) -> AgentState:
        """The state in a slim snapshot, ready for the next query or to be resumed."""
        return read_slim(data)
