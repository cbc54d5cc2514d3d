"""The history of a session as a chat UI shows it.

A UI message is a dict: `id`, `role` (user, assistant, tool or status), `content`, `timestamp` and
`metadata`; `schemas/ui_message.schema.json` describes it. The JavaScript package in `whyloop/ui` keeps the
same messages up to date while a run is in progress, and replaces them with this history when it ends.

The id of a message of a step consists of its execution, the number of the step and its part there, so a
client that builds the message from envelopes gives it the same id. A message outside of steps, such as a
user's question, has its index in the session as its id.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from whyloop.values import encoding
from whyloop.values.approval import Approval, Question
from whyloop.values.continuation import ContinuationOutcome, StopReason
from whyloop.values.failure import ErrorHandlingDecision
from whyloop.values.messages import Message, TextPart, ToolCall
from whyloop.values.state import AgentState, AgentStatus
from whyloop.values.step import OpenCall, OpenStep, Step, ToolRun, end_error
from whyloop.values.summaries import args_summary
from whyloop.values.transitions import RESUMED_BY
from whyloop.wire.envelope import timestamp

__all__ = ["UiMessage", "args_summary", "canonical_messages", "each_message", "status_text"]

UiMessage = dict[str, Any]

_THINKING = "Thinking…"
_WRAPPING_UP = "Wrapping up…"
_ERRORS = (StopReason.ERROR_FORBADE, StopReason.RETRY_LIMIT_REACHED)


def canonical_messages(state: AgentState) -> list[UiMessage]:
    """Return the history of a session for a UI.

    The last message of an execution has its `continuation`, and the `reason` if it does not continue. A
    failure is a status of its own, and so are feedback to the model and a tool call without a result.
    While an execution is in progress its status comes last, and the next envelope changes it. `seq` is the
    number of the last envelope that is in the messages. Of a session that was read from a checkpoint on,
    the history starts there.
    """
    return list(each_message(state))


def each_message(state: AgentState, first: int = 0, last: int | None = None) -> Iterator[UiMessage]:
    """Yield the messages of the history that start in a part of the session.

    `first` and `last` are indices of the session's messages. A step starts at its first message. A step
    without messages starts at the message before it. A part that is not a message yet starts at the last
    message. The state may end early, if it has a step with messages from `last` on.
    """
    history = _History(state, first)
    end = max(1, len(state.messages)) if last is None else last
    held: list[UiMessage] = []  # The latest message of an execution, and those outside of any after it.
    for index, message in history.parts():
        execution_id = _execution_of(message)
        if execution_id is not None:
            if held and _execution_of(held[0]) != execution_id:
                history.add_outcome(held[0])
            yield from held
            held = []
            if index >= end:
                return
        if first <= index < end:
            if execution_id is None and not held:
                yield message
            else:
                held.append(message)
    if held:
        history.add_outcome(held[0])
    yield from held
    if state.status is AgentStatus.IN_PROGRESS and first <= max(0, len(state.messages) - 1) < end:
        yield history.status()


def status_text(status: Mapping[str, Any]) -> str:
    """Return the text to show for an `agent.status` or a `continuation`."""
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
    """The parts of a history, from the step on that an index of the session's messages is in."""

    def __init__(self, state: AgentState, first: int) -> None:
        self._state = state
        self._first = first
        self._errors: set[str] = set()
        self._outcomes: dict[str, ContinuationOutcome | None] = {}

    def parts(self) -> Iterator[tuple[int, UiMessage]]:
        """Yield each message with the index of the session's message that it starts with."""
        state, previous = self._state, None
        written = max(self._first, state.messages.start)
        held = range(state.steps.start, len(state.steps))
        start = bisect_left(held, self._first, key=lambda index: state.steps[index].first_message)
        for index in held[max(0, start - 1) :]:
            step = state.steps[index]
            self._outcomes[step.execution_id] = step.outcome
            yield from self._outside(written, step.first_message, previous, step)
            place = max(0, step.first_message - (not step.message_count))
            for message in self._step(step) if place >= self._first else ():
                yield place, message
            written, previous = max(written, step.first_message + step.message_count), step
        yield from self._outside(written, len(state.messages), previous, None)
        wraps_up = state.execution.wrap_up is not None and state.status is AgentStatus.IN_PROGRESS
        self._outcomes[state.execution.id] = None if wraps_up else state.last_continuation_outcome
        for message in self._end():
            yield max(0, len(state.messages) - 1), message

    def add_outcome(self, message: UiMessage) -> None:
        """Put the outcome of an execution on its last message."""
        execution, metadata = self._state.execution, message["metadata"]
        outcome = self._outcomes.get(metadata["execution_id"])
        if outcome is not None:
            metadata |= _continuation(outcome)
        is_ended = self._state.status is not AgentStatus.IN_PROGRESS
        if metadata["execution_id"] == execution.id and execution.last_seq and is_ended:
            metadata["seq"] = execution.last_seq

    def _outside(
        self, first: int, last: int, previous: Step | None, following: Step | None
    ) -> Iterator[tuple[int, UiMessage]]:
        """Yield the messages outside of steps: queries, feedback, earlier history."""
        execution, messages = self._state.execution, self._state.messages
        asked = following.execution_id if following else execution.id
        moment = following.started_at if following and asked != execution.id else execution.started_at
        indices = range(first, min(last, len(messages)))
        # A step is only known to work on the last question before it.
        latest = next((index for index in reversed(indices) if not messages[index].is_system), None)
        for index in indices:
            message, own_id = messages[index], f"{self._state.agent_id}:{index}"
            if message.source == RESUMED_BY:
                continue  # For the model alone: people see that the run was resumed.
            if message.source:
                yield index, _feedback(own_id, message, previous, asked, moment)
            elif not message.is_system:
                known = {"execution_id": asked} if message.is_user and index == latest else {}
                metadata = {**known, **_contents(message)}
                yield index, _message(own_id, message.role.value, message.text, moment, metadata)

    def _step(self, step: Step) -> Iterator[UiMessage]:
        ids = _Ids(step.execution_id, step.number)
        answer, *results = self._state.messages_of(step) or (None,)
        if answer is not None:
            yield _assistant(ids, answer, answer.text, step.started_at)
        for message, run in zip(results, step.tool_calls, strict=False):
            result = _result(message.text, run.error, run.duration_ms, run.changed_by)
            yield _tool(ids, run, result, step.completed_at)
        yield from self._error(ids, step.outcome, step, step.completed_at)

    def _end(self) -> Iterator[UiMessage]:
        """Yield the parts that are not messages yet."""
        state, execution, step = self._state, self._state.execution, self._state.steps.last
        if state.open_step is not None:
            yield from _open_step(_Ids(execution.id, state.open_step.number), state.open_step)
        if execution.question is not None:
            yield self._question(execution.question)
        if step is not None and _is_error(step.outcome):
            self._errors.add(_Ids(step.execution_id, step.number).error)
        ids, outcome = _Ids(execution.id, execution.step_number), state.last_continuation_outcome
        yield from self._error(ids, outcome, state.current_step, state.state_info.updated_at)

    def _question(self, question: Question) -> UiMessage:
        """Return a question about the run itself."""
        execution, moment = self._state.execution, self._state.state_info.updated_at
        metadata = {
            **_Ids(execution.id, execution.next_step_number()).known,
            "status_type": "tool_call",
            "question_id": question.id,
            "question": question.text,
        }
        return _message(f"{execution.id}:question:{question.id}", "status", question.text, moment, metadata)

    def _error(
        self, ids: _Ids, outcome: ContinuationOutcome | None, step: Step | None, moment: datetime
    ) -> Iterator[UiMessage]:
        """Yield the failure that an execution ended with, once."""
        if outcome is None or not _is_error(outcome) or ids.error in self._errors:
            return
        self._errors.add(ids.error)
        error = end_error(outcome, step)
        text = status_text({"stop_reason": outcome.stop_reason, "error_message": error})
        metadata = {**ids.known, "status_type": "error", **_continuation(outcome)}
        yield _message(ids.error, "status", text, moment, metadata)

    def status(self) -> UiMessage:
        """Return the status of the execution in progress, as a live client shows it."""
        state, execution, step = self._state, self._state.execution, self._state.open_step
        number, moment, text = execution.next_step_number(), state.state_info.updated_at, _THINKING
        if execution.wrap_up is not None:
            text = _WRAPPING_UP
        if step is not None:
            number, moment = step.number, max(moment, step.started_at)
            text = _THINKING if all(call.is_done or call.is_waiting for call in step.calls) else ""
        metadata: dict[str, Any] = {
            "status_type": "thinking",
            **_Ids(execution.id, number).known,
            "seq": execution.last_seq,
            "agent_id": state.agent_id,
        }
        retry = _retry(state) if step is None else None
        if retry is not None:
            metadata |= {"status_type": "continuation", "retry": retry}
            text = f"Retrying ({retry['attempt']}/{retry['max']})"
        return _message(f"{execution.id}:status", "status", text, moment, metadata)


class _Ids:
    """The ids of the messages of a step. Of several calls with one id, the second is `tool2`."""

    def __init__(self, execution_id: str, step: int) -> None:
        self.known = {"execution_id": execution_id, "step_number": step}
        self._prefix = f"{execution_id}:{step}"
        self._seen: dict[str, int] = {}

    @property
    def assistant(self) -> str:
        return f"{self._prefix}:assistant"

    @property
    def error(self) -> str:
        return f"{self._prefix}:error"

    def of_call(self, call_id: str) -> str:
        self._seen[call_id] = occurrence = self._seen.get(call_id, 0) + 1
        return f"{self._prefix}:tool{occurrence if occurrence > 1 else ''}:{call_id}"


# Messages


def _message(id: str, role: str, content: str, moment: datetime, metadata: dict[str, Any]) -> UiMessage:
    message: UiMessage = {"id": id, "role": role, "content": content, "timestamp": timestamp(moment)}
    return {**message, "metadata": metadata} if metadata else message


def _execution_of(message: UiMessage) -> str | None:
    execution_id: str | None = message.get("metadata", {}).get("execution_id")
    return execution_id


def _assistant(ids: _Ids, message: Message, text: str, moment: datetime) -> UiMessage:
    return _message(ids.assistant, "assistant", text, moment, {**ids.known, **_contents(message)})


def _feedback(id: str, message: Message, previous: Step | None, asked: str, moment: datetime) -> UiMessage:
    """Return the feedback of rules to the model, with the step before it."""
    metadata: dict[str, Any] = {"execution_id": asked, "status_type": "info"}
    if previous is not None:
        metadata |= _Ids(previous.execution_id, previous.number).known
        moment = previous.completed_at
    return _message(id, "status", message.text, moment, {**metadata, "source": list(message.source)})


def _open_step(ids: _Ids, step: OpenStep) -> Iterator[UiMessage]:
    if step.message is not None:
        yield _assistant(ids, step.message, step.message.text, step.started_at)
    for index, call in enumerate(step.calls):
        asked, done = step.call_to_run(index), call.result
        if done is not None:
            result = _result(done.content, done.error, call.duration_ms, done.changed_by)
            yield _tool(ids, asked, result, step.started_at)
        else:
            yield _unfinished(ids, asked, call, step.started_at)


def _tool(ids: _Ids, call: ToolRun | ToolCall, result: Mapping[str, Any], moment: datetime) -> UiMessage:
    """Return a result; for a failed call, the error, since its text is for the model."""
    text = result.get("tool_error") or result.get("tool_result", "")
    metadata = {**ids.known, "tool_call_id": call.id, "tool_name": call.name, **result}
    return _message(ids.of_call(call.id), "tool", text, moment, metadata)


def _unfinished(ids: _Ids, asked: ToolCall, call: OpenCall, moment: datetime) -> UiMessage:
    """Return a call that has no result yet."""
    own_id = ids.of_call(asked.id)
    metadata = {**ids.known, "tool_call_id": asked.id, "tool_name": asked.name}
    if call.approved:
        text = f"{asked.name}: {_decision(call.approvals[-1])}"
        return _message(own_id, "status", text, moment, {**metadata, "status_type": "info"})
    shown = _call(asked)
    metadata |= {"status_type": "tool_call", "tool_calls": [shown]}
    if call.question is None:
        return _message(own_id, "status", f"Running {asked.name}", moment, metadata)
    metadata |= {"question_id": call.question.id, "question": call.question.text}
    metadata["args_summary"] = shown["args_summary"]
    return _message(own_id, "status", call.question.text, moment, metadata)


# Their metadata


def _contents(message: Message) -> dict[str, Any]:
    """Return the attachments of a message, without their bytes."""
    metadata: dict[str, Any] = {}
    if message.tool_calls:
        metadata["tool_calls"] = [_call(call) for call in message.tool_calls]
    if message.is_tool:
        metadata |= {"tool_call_id": message.tool_call_id, "tool_name": message.tool}
        metadata["tool_result"] = message.text
    if message.reasoning:
        metadata["reasoning"] = message.reasoning
    if message.incomplete:
        metadata["incomplete"] = True
    parts = () if isinstance(message.content, str) else message.content
    attachments = [encoding.encode(part) for part in parts if not isinstance(part, TextPart)]
    if attachments:
        metadata["attachments"] = [
            {key: value for key, value in part.items() if value is not None and key != "data"}
            for part in attachments
        ]
    return metadata


def _call(call: ToolCall) -> dict[str, Any]:
    shown = {
        "id": call.id,
        "name": call.name,
        "args": encoding.encode(call.arguments),
        "args_summary": args_summary(call.arguments),
    }
    return {**shown, "changed_by": [change.by for change in call.changes]} if call.changes else shown


def _result(text: str, error: str | None, duration_ms: float, changed_by: tuple[str, ...]) -> dict[str, Any]:
    result: dict[str, Any] = {"tool_result": text} if error is None else {"tool_error": error}
    if changed_by:
        result["changed_by"] = list(changed_by)
    return {**result, "tool_duration_ms": round(duration_ms, 3)}


def _decision(approval: Approval) -> str:
    return f"{approval.verdict} by {approval.by}" + (f": {approval.reason}" if approval.reason else "")


def _retry(state: AgentState) -> dict[str, Any] | None:
    """Return the retry that an execution is at, with the end of its wait."""
    outcome, execution = state.last_continuation_outcome, state.execution
    policy = outcome.policy_evaluation if outcome is not None and outcome.should_continue else None
    if policy is None or policy.handling is not ErrorHandlingDecision.RETRY:
        return None
    attempt, most = execution.failures.consecutive, policy.context.get("max_retries")
    failures = state.current_step.failures if state.current_step else ()
    if failures and failures[0].correction is not None and failures[0].is_free:
        attempt, most = failures[0].correction.attempt, failures[0].correction.limit
    if not attempt or not isinstance(most, int):
        return None
    until = execution.wait_until
    return {"attempt": attempt, "max": most, "until": None if until is None else timestamp(until)}


def _is_error(outcome: ContinuationOutcome | None) -> bool:
    return outcome is not None and outcome.stop_reason in _ERRORS


def _continuation(outcome: ContinuationOutcome) -> dict[str, Any]:
    """Return the `continuation` of an outcome, and the `reason` of a stop."""
    stop_reason = outcome.stop_reason
    ended: dict[str, Any] = {
        "continuation": {
            "should_continue": outcome.should_continue,
            "stop_reason": stop_reason.value if stop_reason else None,
            "resolved_by": outcome.resolved_by,
        }
    }
    if not outcome.should_continue and outcome.reason:
        ended["reason"] = outcome.reason
    return ended
