"""The UI messages of a session as it is stored."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from whyloop.values import plain
from whyloop.values.continuation import ContinuationOutcome, StopReason
from whyloop.values.messages import Message, TextPart, ToolCall
from whyloop.values.open_step import OpenCall, OpenStep
from whyloop.values.state import AgentState, AgentStatus
from whyloop.values.step import Step, ToolRun
from whyloop.wire.envelope import timestamp
from whyloop.wire.summaries import args_summary
from whyloop.wire.ui_message import (
    UiMessage,
    assistant_id,
    error_id,
    metadata_of,
    outside_id,
    position,
    status_message,
    tool_id,
    ui_message,
    with_metadata,
)
from whyloop.wire.ui_words import THINKING, status_text

_ERRORS = (StopReason.ERROR_FORBADE, StopReason.RETRY_LIMIT_REACHED)


def canonical_messages(state: AgentState) -> list[UiMessage]:
    """The history that a UI shows, the same whenever it is asked for.

    The last message of an execution says in `continuation` why it ended; a failure is a status of
    its own, and so is a tool call that waits for a person. While an execution is in progress its
    status comes last, from which the next envelope goes on; if its process has died, nobody can know.
    """
    return _History(state).messages


class _History:
    def __init__(self, state: AgentState) -> None:
        self.messages: list[UiMessage] = []
        self._state = state
        written = 0
        for step in state.steps:
            self._outside(written, step.first_message, step)
            self._step(step)
            written = max(written, step.first_message + step.message_count)
        self._outside(written, len(state.messages), None)
        if state.open_step is not None:
            self._open_step(state.open_step)
        outcome = state.last_continuation_outcome
        self._error(state.execution.id, state.execution.step_count, outcome, state.state_info.updated_at)
        self._say_why()
        if state.status is AgentStatus.IN_PROGRESS:
            self._under_way(state.open_step)

    def _outside(self, first: int, last: int, following: Step | None) -> None:
        """What belongs to no step: questions, and a history that was brought along."""
        execution, messages = self._state.execution, self._state.messages
        asked = following.execution_id if following else execution.id
        moment = following.started_at if following and asked != execution.id else execution.started_at
        for index in range(first, min(last, len(messages))):
            message = messages[index]
            if message.is_system:
                continue
            # Only the last question before a step is known to be the one that the step works on.
            known = {"execution_id": asked} if message.is_user and index == last - 1 else {}
            metadata = {**known, **_contents(message)}
            self._add(
                outside_id(self._state.agent_id, index), message.role.value, message.text, moment, metadata
            )

    def _step(self, step: Step) -> None:
        said = self._state.messages_of(step)
        if said:
            self._assistant(step.execution_id, step.number, said[0], step.started_at)
        ids = _Ids(step.execution_id, step.number)
        for message, run in zip(said[1:], step.tool_calls, strict=False):
            came_of = _came_of(message.text, run.error, run.duration_ms)
            self._tool(ids, run, message.text, came_of, step.completed_at)
        self._error(step.execution_id, step.number, step.outcome, step.completed_at)

    def _open_step(self, step: OpenStep) -> None:
        execution_id = self._state.execution.id
        self._assistant(execution_id, step.number, step.message, step.started_at)
        ids = _Ids(execution_id, step.number)
        for index, call in enumerate(step.calls):
            asked, result = step.call_as_decided(index), call.result
            if result is not None:
                came_of = _came_of(result.content, result.error, call.duration_ms)
                self._tool(ids, asked, result.content, came_of, step.started_at)
            else:
                self._unfinished(ids, asked, call, step.started_at)

    def _assistant(self, execution_id: str, step: int, message: Message, moment: datetime) -> None:
        metadata = {"execution_id": execution_id, "step_number": step, **_contents(message)}
        self._add(assistant_id(execution_id, step), "assistant", message.text, moment, metadata)

    def _tool(
        self, ids: _Ids, call: ToolRun | ToolCall, text: str, came_of: Mapping[str, Any], moment: datetime
    ) -> None:
        metadata = {**ids.known, "tool_call_id": call.id, "tool_name": call.name, **came_of}
        self._add(ids.of(call.id), "tool", text, moment, metadata)

    def _unfinished(self, ids: _Ids, asked: ToolCall, call: OpenCall, moment: datetime) -> None:
        """A call that runs, or was cut off while it ran, or waits for a person."""
        metadata = {
            **ids.known,
            "status_type": "tool_call",
            "tool_call_id": asked.id,
            "tool_name": asked.name,
            "tool_calls": [_call(asked)],
        }
        if call.is_waiting:
            metadata["waiting"] = True
        self._add(ids.of(asked.id), "status", call.question or f"Running {asked.name}", moment, metadata)

    def _error(
        self, execution_id: str, step: int, outcome: ContinuationOutcome | None, moment: datetime
    ) -> None:
        """The failure that an execution ended with, though it may have been resumed since."""
        own_id = error_id(execution_id, step)
        if outcome is None or outcome.stop_reason not in _ERRORS or position(self.messages, own_id) >= 0:
            return
        said = outcome.resolving_evaluation
        words = {"stop_reason": outcome.stop_reason.value, "error_message": said.reason if said else ""}
        metadata = {"execution_id": execution_id, "step_number": step, "status_type": "error"}
        self._add(
            own_id, "status", status_text(words), moment, {**metadata, "continuation": _continuation(outcome)}
        )

    def _say_why(self) -> None:
        """Put what was decided last about each execution on its last message."""
        state = self._state
        decided = {step.execution_id: step.outcome for step in state.steps}
        decided[state.execution.id] = state.last_continuation_outcome
        last = {metadata_of(message).get("execution_id"): i for i, message in enumerate(self.messages)}
        for execution_id, outcome in decided.items():
            if outcome is not None and execution_id in last:
                index = last[execution_id]
                self.messages[index] = with_metadata(
                    self.messages[index], continuation=_continuation(outcome)
                )

    def _under_way(self, step: OpenStep | None) -> None:
        """What a live client shows: that it thinks, unless calls are seen to run."""
        state, moment = self._state, self._state.state_info.updated_at
        number, words = state.execution.step_count + 1, THINKING
        if step is not None:
            number, moment = step.number, max(moment, step.started_at)
            words = THINKING if all(call.is_done or call.is_waiting for call in step.calls) else ""
        self.messages.append(
            status_message(state.execution.id, state.agent_id, number, words, timestamp(moment))
        )

    def _add(self, id: str, role: str, content: str, moment: datetime, metadata: dict[str, Any]) -> None:
        self.messages.append(ui_message(id, role, content, timestamp(moment), metadata))


class _Ids:
    """The ids of the results of a step; models may give several calls one id."""

    def __init__(self, execution_id: str, step: int) -> None:
        self.known = {"execution_id": execution_id, "step_number": step}
        self._where = (execution_id, step)
        self._seen: dict[str, int] = {}

    def of(self, call_id: str) -> str:
        self._seen[call_id] = occurrence = self._seen.get(call_id, 0) + 1
        return tool_id(*self._where, call_id, occurrence)


def _contents(message: Message) -> dict[str, Any]:
    """What a message holds besides its text; the bytes of images and files stay in the store."""
    metadata: dict[str, Any] = {}
    if message.tool_calls:
        metadata["tool_calls"] = [_call(call) for call in message.tool_calls]
    if message.is_tool:
        metadata |= {"tool_call_id": message.tool_call_id, "tool_name": message.tool_name}
        metadata["tool_result"] = message.text
    parts = () if isinstance(message.content, str) else message.content
    attachments = [plain.encode(part) for part in parts if not isinstance(part, TextPart)]
    if attachments:
        metadata["attachments"] = [
            {key: value for key, value in part.items() if value is not None and key != "data"}
            for part in attachments
        ]
    return metadata


def _call(call: ToolCall) -> dict[str, Any]:
    return {
        "id": call.id,
        "name": call.name,
        "args": plain.encode(call.arguments),
        "args_summary": args_summary(call.arguments),
    }


def _came_of(text: str, error: str | None, duration_ms: float) -> dict[str, Any]:
    came_of: dict[str, Any] = {"tool_result": text} if error is None else {"tool_error": error}
    return {**came_of, "tool_duration_ms": round(duration_ms, 3)}


def _continuation(outcome: ContinuationOutcome) -> dict[str, Any]:
    reason = outcome.stop_reason
    return {
        "should_continue": outcome.should_continue,
        "stop_reason": reason.value if reason else None,
        "resolved_by": outcome.resolved_by,
    }
