"""The UI messages of a session as it is stored.

The id of a message of a step is made of its execution, the number of the step and its part there, so that
a client that built the message from envelopes knows it by the same id. A message outside of steps, such as
a user's question, is known by its index in the session.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from whyloop.values import plain
from whyloop.values.approval import Approval
from whyloop.values.continuation import ContinuationOutcome, StopReason
from whyloop.values.messages import Message, TextPart, ToolCall
from whyloop.values.open_step import OpenCall, OpenStep
from whyloop.values.state import AgentState, AgentStatus
from whyloop.values.step import Step, ToolRun
from whyloop.wire.envelope import timestamp
from whyloop.wire.summaries import args_summary

UiMessage = dict[str, Any]

_THINKING = "Thinking…"
_ERRORS = (StopReason.ERROR_FORBADE, StopReason.RETRY_LIMIT_REACHED)


def canonical_messages(state: AgentState) -> list[UiMessage]:
    """Return the history that a UI shows of a session.

    The last message of an execution has its `continuation`, and the `reason` if it does not continue. A
    failure is a status of its own, and so is a tool call without a result. While an execution is in
    progress its status comes last, and the next envelope changes it.
    """
    return _History(state).messages


def status_text(status: Mapping[str, Any]) -> str:
    """Return the text to show for the data of an `agent.status`, or for a message's `continuation`."""
    name, reason, error = status.get("status"), status.get("stop_reason"), status.get("error_message")
    if name == "in_progress" or status.get("should_continue") is True:
        return _THINKING
    if isinstance(error, str) and error:
        return error
    if isinstance(reason, str) and reason and reason != "completed":
        return f"Agent stopped: {reason}"
    if name == "paused" or (status.get("should_continue") is False and reason is None):
        return "Waiting for a person"
    return ""


class _History:
    def __init__(self, state: AgentState) -> None:
        self.messages: list[UiMessage] = []
        self._state = state
        self._errors: set[str] = set()
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
        self._add_outcomes()
        if state.status is AgentStatus.IN_PROGRESS:
            self._add_status(state.open_step)

    def _outside(self, first: int, last: int, following: Step | None) -> None:
        """Add the messages outside of steps: questions, and a history that the session began with."""
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
            own_id = f"{self._state.agent_id}:{index}"
            self._add(own_id, message.role.value, message.text, moment, metadata)

    def _step(self, step: Step) -> None:
        said = self._state.messages_of(step)
        if said:
            self._assistant(step.execution_id, step.number, said[0], step.started_at)
        ids = _Ids(step.execution_id, step.number)
        for message, run in zip(said[1:], step.tool_calls, strict=False):
            result = _result(message.text, run.error, run.duration_ms)
            self._tool(ids, run, message.text, result, step.completed_at)
        self._error(step.execution_id, step.number, step.outcome, step.completed_at)

    def _open_step(self, step: OpenStep) -> None:
        execution_id = self._state.execution.id
        self._assistant(execution_id, step.number, step.message, step.started_at)
        ids = _Ids(execution_id, step.number)
        for index, call in enumerate(step.calls):
            asked, done = step.call_as_decided(index), call.result
            if done is not None:
                result = _result(done.content, done.error, call.duration_ms)
                self._tool(ids, asked, done.content, result, step.started_at)
            else:
                self._unfinished(ids, asked, call, step.started_at)

    def _assistant(self, execution_id: str, step: int, message: Message, moment: datetime) -> None:
        metadata = {"execution_id": execution_id, "step_number": step, **_contents(message)}
        self._add(f"{execution_id}:{step}:assistant", "assistant", message.text, moment, metadata)

    def _tool(
        self, ids: _Ids, call: ToolRun | ToolCall, text: str, result: Mapping[str, Any], moment: datetime
    ) -> None:
        metadata = {**ids.known, "tool_call_id": call.id, "tool_name": call.name, **result}
        self._add(ids.of(call.id), "tool", text, moment, metadata)

    def _unfinished(self, ids: _Ids, asked: ToolCall, call: OpenCall, moment: datetime) -> None:
        """Add a call that runs, was cut off while it ran, waits for a person, or was just decided."""
        shown, is_running = _call(asked), self._state.status is AgentStatus.IN_PROGRESS
        metadata = {**ids.known, "tool_call_id": asked.id, "tool_name": asked.name}
        if call.question is None and call.approvals and not is_running:
            text = f"{asked.name}: {_decision(call.approvals[-1])}"
            self._add(ids.of(asked.id), "status", text, moment, {**metadata, "status_type": "info"})
            return
        metadata |= {"status_type": "tool_call", "tool_calls": [shown]}
        if call.question is not None:
            metadata |= {"question_id": asked.id, "question": call.question}
            metadata["args_summary"] = shown["args_summary"]
        self._add(ids.of(asked.id), "status", call.question or f"Running {asked.name}", moment, metadata)

    def _error(
        self, execution_id: str, step: int, outcome: ContinuationOutcome | None, moment: datetime
    ) -> None:
        """Add the failure that an execution ended with, though it may have been resumed since."""
        own_id = f"{execution_id}:{step}:error"
        if outcome is None or outcome.stop_reason not in _ERRORS or own_id in self._errors:
            return
        self._errors.add(own_id)
        why = _why(outcome)
        text = status_text({"stop_reason": outcome.stop_reason.value, "error_message": why.get("reason", "")})
        metadata = {"execution_id": execution_id, "step_number": step, "status_type": "error", **why}
        self._add(own_id, "status", text, moment, metadata)

    def _add_outcomes(self) -> None:
        """Put the last outcome of each execution on its last message."""
        state = self._state
        decided = {step.execution_id: step.outcome for step in state.steps}
        decided[state.execution.id] = state.last_continuation_outcome
        last = {message.get("metadata", {}).get("execution_id"): message for message in self.messages}
        for execution_id, outcome in decided.items():
            if outcome is not None and execution_id in last:
                last[execution_id]["metadata"] |= _why(outcome)

    def _add_status(self, step: OpenStep | None) -> None:
        """Add the status of the execution as a live client shows it: "Thinking…", unless calls run."""
        state, moment = self._state, self._state.state_info.updated_at
        number, text = state.execution.step_count + 1, _THINKING
        if step is not None:
            number, moment = step.number, max(moment, step.started_at)
            text = _THINKING if all(call.is_done or call.is_waiting for call in step.calls) else ""
        metadata = {
            "status_type": "thinking",
            "execution_id": state.execution.id,
            "step_number": number,
            "seq": 0,
            "agent_id": state.agent_id,
        }
        self._add(f"{state.execution.id}:status", "status", text, moment, metadata)

    def _add(self, id: str, role: str, content: str, moment: datetime, metadata: dict[str, Any]) -> None:
        message: UiMessage = {"id": id, "role": role, "content": content, "timestamp": timestamp(moment)}
        self.messages.append({**message, "metadata": metadata} if metadata else message)


class _Ids:
    """The ids of the results of a step. Of several calls with one id, the second is `tool2`."""

    def __init__(self, execution_id: str, step: int) -> None:
        self.known = {"execution_id": execution_id, "step_number": step}
        self._prefix = f"{execution_id}:{step}:tool"
        self._seen: dict[str, int] = {}

    def of(self, call_id: str) -> str:
        self._seen[call_id] = occurrence = self._seen.get(call_id, 0) + 1
        return f"{self._prefix}{occurrence if occurrence > 1 else ''}:{call_id}"


def _contents(message: Message) -> dict[str, Any]:
    """Return what a message holds besides its text; the bytes of images and files stay in the store."""
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


def _result(text: str, error: str | None, duration_ms: float) -> dict[str, Any]:
    result: dict[str, Any] = {"tool_result": text} if error is None else {"tool_error": error}
    return {**result, "tool_duration_ms": round(duration_ms, 3)}


def _decision(approval: Approval) -> str:
    return f"{approval.verdict} by {approval.by}" + (f": {approval.reason}" if approval.reason else "")


def _why(outcome: ContinuationOutcome) -> dict[str, Any]:
    """Return the `continuation` of an outcome, and the `reason` if it does not continue."""
    stop_reason, decided = outcome.stop_reason, outcome.resolving_evaluation
    why: dict[str, Any] = {
        "continuation": {
            "should_continue": outcome.should_continue,
            "stop_reason": stop_reason.value if stop_reason else None,
            "resolved_by": outcome.resolved_by,
        }
    }
    if not outcome.should_continue and decided is not None:
        why["reason"] = decided.reason
    return why
