"""Write the document of a slim snapshot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from whyloop.values import plain
from whyloop.values.continuation import ContinuationOutcome
from whyloop.values.execution import StateInfo
from whyloop.values.messages import Message
from whyloop.values.redaction import REMOVED, Redaction, plain_data
from whyloop.values.state import AgentState
from whyloop.values.step import OpenStep, Step
from whyloop.wire.config import SlimSerializationConfig
from whyloop.wire.slim_notes import Notes, tokens, utc
from whyloop.wire.slim_schema import VERSION, SlimState, Truncated
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
        document: dict[str, Any] = plain.encode(slim)
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
