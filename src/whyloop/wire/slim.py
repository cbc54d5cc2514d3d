"""Slim snapshots: a small part of a state, for the wire or for a list of sessions."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Protocol, TypeVar, runtime_checkable

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from whyloop.values import encoding
from whyloop.values.approval import Approval, Question
from whyloop.values.continuation import ContinuationEvaluation, ContinuationOutcome
from whyloop.values.credentials import REMOVED
from whyloop.values.encoding import copied
from whyloop.values.execution import Execution
from whyloop.values.failure import Correction, Failure
from whyloop.values.messages import CallChange, Message, Part, TextPart, ToolCall, ToolResult
from whyloop.values.model import ModelAttempt, ModelSource
from whyloop.values.redaction import Redaction
from whyloop.values.scalars import as_utc
from whyloop.values.state import AgentState
from whyloop.values.step import OpenCall, OpenStep, RequestPart, Step, ToolRun
from whyloop.wire.slim_document import (
    VERSION,
    MessageMetadata,
    SlimCall,
    SlimChange,
    SlimContinuation,
    SlimExecution,
    SlimMessage,
    SlimSerializationConfig,
    SlimState,
    SlimStep,
    StepTokens,
    Tokens,
    Truncated,
    kept_indices,
    state_from_slim,
)

T = TypeVar("T")

# Changes a piece of plain data: a text stays a text, an object an object.
Change = Callable[[Any], Any]

LEFT_OUT = "[left out]…"


@runtime_checkable
class CanSerializeAgentState(Protocol):
    """A serializer from a state to plain data, and back to a state that can be run."""

    def serialize(self, state: AgentState) -> dict[str, Any]:
        """Return a state as plain data."""

    def deserialize(self, data: Mapping[str, Any]) -> AgentState:
        """Return the state in plain data.

        Args:
            data: The data that `serialize` returned.
        """


class SlimAgentStateSerializer:
    """A serializer of the parts of a state that its configuration selects.

    It removes secrets, and counts its cuts. The document is described in `whyloop.wire.slim_document`.

    Args:
        config: The contents of a snapshot. Default: `SlimSerializationConfig()`.
    """

    def __init__(self, config: SlimSerializationConfig | None = None) -> None:
        self.config = config or SlimSerializationConfig()
        """The extent of a snapshot."""

    def serialize(self, state: AgentState) -> dict[str, Any]:
        """Return the slim snapshot of a state."""
        return _slim_snapshot(state, self.config)

    def deserialize(self, data: Mapping[str, Any]) -> AgentState:
        """Return the state in a slim snapshot, ready for the next query or to be resumed.

        Args:
            data: The snapshot that `serialize` returned.
        """
        return state_from_slim(data)


# Writing: choose what to show, remove the secrets, shorten the texts, leave out the details.


class _Excerpt(Struct, frozen=True):
    """The values of a state that a slim snapshot shows."""

    messages: tuple[Message, ...]
    current_step: Step | None
    steps: tuple[Step, ...]
    outcome: ContinuationOutcome | None
    execution: Execution
    open_step: OpenStep | None
    request_parts: tuple[RequestPart, ...]

    def changed(self, change: Change, change_message: Callable[[Message], Message]) -> _Excerpt:
        """Return the excerpt with its texts changed."""
        return _Excerpt(
            messages=tuple([change_message(message) for message in self.messages]),
            current_step=_changed(self.current_step, change),
            steps=_changed(self.steps, change),
            outcome=_changed(self.outcome, change),
            execution=_changed(self.execution, change),
            open_step=self.open_step and _changed_open_step(self.open_step, change),
            # A text is found by its hash, so one that would change is omitted.
            request_parts=tuple([part for part in self.request_parts if change(part.text) == part.text]),
        )

    def count_changed_details(self, before: _Excerpt) -> int:
        """Return how many values besides messages differ from those before."""
        whole = self.open_step is None or self.open_step == before.open_step
        return _differences(before._details, self._details) + (not whole)

    @property
    def _details(self) -> list[object]:
        return [self.current_step, *self.steps, self.outcome, self.execution]


def _slim_snapshot(state: AgentState, config: SlimSerializationConfig) -> dict[str, Any]:
    most, redaction = config.max_content_length, config.redaction
    hide = redaction.data if redaction else encoding.plain_data
    hide_text = partial(_beginning, redaction, most) if redaction and most else hide
    kept = kept_indices(state.messages, config.max_messages)
    # Secrets first, so that no cut leaves half a secret behind.
    whole = _excerpt(state, config, kept, hide).changed(hide, partial(_without_secrets, hide, hide_text))
    shown = whole
    if most is not None:
        shorten = partial(encoding.with_short_texts, longest=most)
        shown = whole.changed(shorten, partial(_changed_message, change=shorten, stand_in=LEFT_OUT))
    left_out = len(state.request_parts) - len(shown.request_parts) if config.include_all_steps else 0
    truncated = Truncated(
        messages=len(state.messages) - len(kept),
        contents=_differences(whole.messages, shown.messages),
        details=shown.count_changed_details(whole) + left_out,
        open_step=int(state.open_step is not None and shown.open_step is None),
    )
    current, outcome = shown.current_step, shown.outcome
    if current is not None and (outcome is None or current.outcome == outcome):
        current = replace(current, outcome=None)  # It is in `last_continuation`.
    writer = _Writer(config, state, kept)
    slim = copied(
        state,
        SlimState,
        version=VERSION,
        execution=writer.execution(shown.execution),
        usage=copied(state.usage, Tokens),
        messages=writer.messages(shown.messages),
        current_step=current and writer.step(current),
        steps=tuple([writer.step(step) for step in shown.steps]),
        last_continuation=outcome and writer.continuation(outcome),
        metadata=hide(state.metadata) if config.include_metadata else {},
        truncated=truncated,
        state_info=_stripped(state.state_info, {}),
        open_step=shown.open_step and writer.open_step(shown.open_step),
        request_parts=shown.request_parts,
    )
    document: dict[str, Any] = encoding.encode(slim)
    return document


def _excerpt(
    state: AgentState, config: SlimSerializationConfig, kept: Sequence[int], hide: Change
) -> _Excerpt:
    messages = {index: state.messages[index] for index in kept}
    # The text that a model reads about a failed call may quote the arguments of the call.
    for index, failure in _tool_failures(state):
        is_private = not config.include_tool_args or (failure.raised and not config.keeps_raised)
        if index in messages and is_private:
            content = f"Error: {hide(failure.message)}"
            messages[index] = replace(messages[index], content=content, shown=None)
    if not config.include_tool_args:
        messages = {index: _without_arguments(message) for index, message in messages.items()}
    return _Excerpt(
        messages=tuple(messages.values()),
        current_step=state.current_step,
        steps=tuple(state.steps) if config.include_all_steps else (),
        outcome=state.last_continuation_outcome,
        execution=state.execution,
        # No call is ever run without its arguments.
        open_step=_open_step_to_show(state.open_step, hide, config) if config.include_tool_args else None,
        request_parts=tuple(state.request_parts) if config.include_all_steps else (),
    )


def _without_arguments(message: Message) -> Message:
    """Return the message with only the text for people, without extras."""
    return (
        message if message.shown is None else replace(message, content=message.shown, shown=None, extras={})
    )


def _tool_failures(state: AgentState) -> Iterator[tuple[int, Failure]]:
    """Yield the index of each result of a failed call, with the failure."""
    for step in state.steps:
        if not step.failures:
            continue
        failures = {failure.tool_call_id: failure for failure in step.failures}
        for index, run in enumerate(step.tool_calls, step.first_message + 1):
            known = index < len(state.messages) and state.messages[index].tool_call_id == run.id
            if known and run.id in failures:
                yield index, failures[run.id]


def _open_step_to_show(
    step: OpenStep | None, hide: Change, config: SlimSerializationConfig
) -> OpenStep | None:
    """Return the open step, unless a provider's extras have a secret."""
    extras = step.message.extras if step and step.message else {}
    if step is None or (extras and hide(extras) != extras):
        return None
    if config.keeps_raised or all(call.result is None for call in step.calls):
        return step
    calls = [replace(each, result=each.result and each.result.without_raised()) for each in step.calls]
    return replace(step, calls=tuple(calls))


def _without_secrets(hide: Change, hide_text: Change, message: Message) -> Message:
    # An image or a file is kept or dropped as a whole, since a part is useless.
    message = _changed_message(message, hide_text if isinstance(message.content, str) else hide, REMOVED)
    if message.extras and hide(message.extras) != message.extras:
        return replace(message, extras={})
    return message


def _beginning(redaction: Redaction, most: int, value: Any) -> Any:
    """Return a value without secrets, and only the part of a text that is shown."""
    return redaction.beginning(value, most) if isinstance(value, str) else redaction.data(value)


def _differences(before: Sequence[object], after: Sequence[object]) -> int:
    return sum(a != b for a, b in zip(before, after, strict=True))


# The texts in a value

_TEXTS: dict[type, tuple[str, ...]] = {
    Approval: ("question", "reason", "arguments"),
    CallChange: ("before",),
    ContinuationEvaluation: ("reason", "context", "feedback"),
    ContinuationOutcome: ("evaluations",),
    Execution: ("stop_request", "question", "approvals"),
    Correction: ("for_model",),
    Failure: ("message", "details", "correction", "raised"),
    ModelAttempt: ("failure",),
    ModelSource: ("notes", "attempts"),
    OpenCall: ("question", "approvals", "arguments", "result"),
    Question: ("text",),
    Step: ("tool_calls", "failures", "source", "outcome", "output"),
    TextPart: ("text",),
    ToolCall: ("arguments", "changes"),
    ToolResult: ("content", "error", "failure", "note"),
    ToolRun: ("error", "approvals"),
}
"""The fields with texts of models, tools and people. Names and ids stay, since values refer to them."""


def _changed(value: T, change: Change) -> T:
    """Return a value with every text in it changed."""
    shown: Any
    if value is None:
        shown = None
    elif isinstance(value, tuple):
        shown = tuple([_changed(item, change) for item in value])
    elif isinstance(value, Struct):
        fields = {name: _changed(getattr(value, name), change) for name in _TEXTS[type(value)]}
        if isinstance(value, Step) and fields["output"] != value.output:
            fields["output"] = None  # A part of a JSON document is not an output.
        shown = replace(value, **fields)
    else:
        shown = change(value)
    return shown  # type: ignore[no-any-return]


def _changed_message(message: Message, change: Change, stand_in: str) -> Message:
    """Return the message with its content, reasoning and arguments changed.

    A provider's extras vouch for the exact text of the message: where it was changed they are left out.
    """
    content = message.content
    if isinstance(content, str):
        content = change(content)
    else:
        content = tuple([_changed_part(part, change, stand_in) for part in content])
    calls = _changed(message.tool_calls, change)
    shown = None if message.shown is None else change(message.shown)
    reasoning = change(message.reasoning)
    changed = replace(message, content=content, tool_calls=calls, reasoning=reasoning, shown=shown)
    return changed if _is_same_request(message, changed) else replace(changed, extras={})


def _changed_part(part: Part, change: Change, stand_in: str) -> Part:
    """Return a part with its text changed; a text replaces an image or a file."""
    if isinstance(part, TextPart):
        return _changed(part, change)
    fields = [value for name in part.__struct_fields__ if (value := getattr(part, name)) is not None]
    if all(change(value) == value for value in fields):
        return part
    return TextPart(change(f"{part.__struct_config__.tag}: {stand_in}"))


def _is_same_request(before: Message, after: Message) -> bool:
    """Return whether two versions of a message are the same to models and tools."""
    calls = zip(before.tool_calls, after.tool_calls, strict=True)
    return before.content == after.content and all(old.arguments == new.arguments for old, new in calls)


def _changed_open_step(step: OpenStep, change: Change) -> OpenStep | None:
    """Return the open step with its texts changed; None if a call to run would change."""
    message = step.message and _changed_message(step.message, change, LEFT_OUT)
    if step.message and message and not _is_same_request(step.message, message):
        return None
    calls = _changed(step.calls, change)
    for old, new in zip(step.calls, calls, strict=True):
        if new.arguments != old.arguments and not old.is_done:
            return None
    source, failure = _changed(step.source, change), _changed(step.failure, change)
    return replace(step, message=message, calls=calls, source=source, failure=failure)


# The document

_METADATA: dict[type, dict[str, Any]] = {
    ContinuationEvaluation: {"context": {}},
    Failure: {"details": {}},
    Message: {"extras": {}, "reasoning": ""},
    OpenStep: {"source": None, "request": None},
    Step: {"source": None, "request": None},
}
_NO_METADATA = MessageMetadata()
_ARGUMENTS: dict[type, dict[str, Any]] = {Approval: {"arguments": None}, Correction: {"for_model": ""}}


class _Writer:
    """The form of values in a document, under one configuration."""

    def __init__(self, config: SlimSerializationConfig, state: AgentState, kept: list[int]) -> None:
        self._config = config
        self._execution_id = state.execution.id
        self._kept = kept
        self._trimmed = len(kept) < len(state.messages)
        self._left_out: dict[type, dict[str, Any]] = {}
        if not config.include_metadata:
            self._left_out |= _METADATA
        if not config.include_tool_args:
            self._left_out |= _ARGUMENTS
        if not config.keeps_raised:
            self._left_out[Failure] = {**self._left_out.get(Failure, {}), "raised": None}

    def messages(self, messages: Sequence[Message]) -> tuple[SlimMessage, ...]:
        # Providers only require their extras until the next message of the user.
        current = max((i for i, message in enumerate(messages) if message.is_user), default=-1)
        start = 0 if self._config.max_content_length is None else current
        wanted = self._config.include_metadata
        return tuple([self._message(m, extras=wanted and i >= start) for i, m in enumerate(messages)])

    def _message(self, message: Message, *, extras: bool) -> SlimMessage:
        metadata = copied(
            message,
            MessageMetadata,
            tool_calls=tuple([self._call(call) for call in message.tool_calls]),
            extras=dict(message.extras) if extras else {},
            reasoning=message.reasoning if self._config.include_metadata else "",
        )
        return SlimMessage(message.role, message.content, None if metadata == _NO_METADATA else metadata)

    def _call(self, call: ToolCall) -> SlimCall:
        changes = [SlimChange(each.by, self._arguments(each.before), each.name) for each in call.changes]
        return SlimCall(call.id, call.name, self._arguments(call.arguments), tuple(changes))

    def _arguments(self, arguments: Mapping[str, Any] | str) -> dict[str, Any] | str | UnsetType:
        if not self._config.include_tool_args:
            return UNSET
        return arguments if isinstance(arguments, str) else dict(arguments)

    def execution(self, execution: Execution) -> SlimExecution:
        return copied(
            _stripped(execution, self._left_out),
            SlimExecution,
            cumulative_seconds=execution.active_seconds,
            usage=copied(execution.usage, Tokens),
            failures=execution.failures if execution.failures.total else None,
        )

    def step(self, step: Step) -> SlimStep:
        first = bisect_left(self._kept, step.first_message)
        step = _stripped(step, self._left_out)
        return copied(
            step,
            SlimStep,
            step_number=step.number,
            errors=step.error_count,
            usage=copied(step.usage, StepTokens),
            execution_id=None if step.execution_id == self._execution_id else step.execution_id,
            first_message=first,
            message_count=bisect_left(self._kept, step.first_message + step.message_count) - first,
            continuation=self.continuation(step.outcome) if step.outcome else None,
            request=None if self._is_out_of_place(step) else step.request,
        )

    def open_step(self, step: OpenStep) -> OpenStep:
        step = _stripped(step, self._left_out)
        return replace(step, request=None) if self._is_out_of_place(step) else step

    def _is_out_of_place(self, step: Step | OpenStep) -> bool:
        """Return whether a request refers to messages by indices of the whole history."""
        return self._trimmed and step.request is not None and step.request.messages is not None

    def continuation(self, outcome: ContinuationOutcome) -> SlimContinuation:
        outcome = _stripped(outcome, self._left_out)
        evaluations = outcome.evaluations
        if not self._config.include_all_steps:
            # A failure that was ignored does not count, so its handling is part of how the run continues.
            needed = (outcome.resolving_evaluation, outcome.policy_evaluation)
            evaluations = tuple([each for each in evaluations if any(each is one for one in needed)])
        return copied(outcome, SlimContinuation, evaluations=evaluations)


def _stripped(value: T, left_out: dict[type, dict[str, Any]]) -> T:
    """Return a value with its times in UTC, and with some fields emptied."""
    shown: Any = value
    if isinstance(value, datetime):
        shown = as_utc(value)
    elif isinstance(value, tuple):
        shown = tuple([_stripped(item, left_out) for item in value])
    elif isinstance(value, Struct):
        fields = dict(left_out.get(type(value), {}))
        for name in value.__struct_fields__:
            field = getattr(value, name)
            if isinstance(field, datetime | tuple | Struct) and name not in fields:
                fields[name] = _stripped(field, left_out)
        shown = replace(value, **fields) if fields else value
    return shown  # type: ignore[no-any-return]
