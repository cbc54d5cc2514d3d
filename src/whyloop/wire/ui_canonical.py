"""The UI messages of a session as it is stored.

The id of a message of a step is made of its execution, the number of the step and its part there, so that
a client that built the message from envelopes knows it by the same id. A message outside of steps, such as
a user's question, is known by its index in the session.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from whyloop.values import plain
from whyloop.values.approval import Approval, Question
from whyloop.values.continuation import ContinuationOutcome, StopReason
from whyloop.values.failure import ErrorHandlingDecision
from whyloop.values.messages import Message, TextPart, ToolCall
from whyloop.values.state import AgentState, AgentStatus
from whyloop.values.step import OpenCall, OpenStep, Step, ToolRun, error_text
from whyloop.values.summaries import args_summary
from whyloop.wire.envelope import timestamp

UiMessage = dict[str, Any]

_THINKING = "Thinking…"
_ERRORS = (StopReason.ERROR_FORBADE, StopReason.RETRY_LIMIT_REACHED)


def canonical_messages(state: AgentState, first: int = 0, last: int | None = None) -> list[UiMessage]:
    """Return the history that a UI shows of a session.

    The last message of an execution has its `continuation`, and the `reason` if it does not continue. A
    failure is a status of its own, and so are feedback to the model and a tool call without a result.
    While an execution is in progress its status comes last, and the next envelope changes it. `seq` is the
    number of the last envelope that is in the messages. Of a session that was read from a checkpoint on,
    the history starts there.

    With `first` and `last`, indices of the session's messages, only what starts between them is returned:
    a step with its first message, a step without messages with the message before it, and whatever is not
    a message yet with the last message. Such a state need not be read to its end, if it holds a step with
    messages from `last` on.
    """
    return _History(state, first, last).shown


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
    def __init__(self, state: AgentState, first: int, last: int | None) -> None:
        self.messages: list[UiMessage] = []
        self._state = state
        self._first = first
        self._last = len(state.messages) if last is None else last
        self._count: int | None = None  # How many messages are shown; None while none comes after them.
        self._errors: set[str] = set()
        self._outcomes: dict[str, ContinuationOutcome | None] = {}
        if self._add_steps():
            self._add_end()
        self._add_outcomes()
        if self._count is None and state.status is AgentStatus.IN_PROGRESS:
            self._add_status(state.open_step)

    @property
    def shown(self) -> list[UiMessage]:
        return self.messages[: self._count]

    def _add_steps(self) -> bool:
        """Add the steps, and the messages before each.

        Return False as soon as a message of an execution comes after what is shown. It takes that one to
        know which message is the last one of an execution.
        """
        state, previous = self._state, None
        written = max(self._first, state.messages.start)
        held = range(state.steps.start, len(state.steps))
        start = bisect_left(held, self._first, key=lambda index: state.steps[index].first_message)
        for index in held[max(0, start - 1) :]:
            step = state.steps[index]
            self._outcomes[step.execution_id] = step.outcome
            self._outside(written, step.first_message, previous, step)
            if self._is_from_first_on(step):
                self._reach(step.first_message - (not step.message_count))
                if self._has_passed:
                    return False
                self._step(step)
            written, previous = max(written, step.first_message + step.message_count), step
        self._outside(written, len(state.messages), previous, None)
        return not self._has_passed

    def _is_from_first_on(self, step: Step) -> bool:
        if step.message_count or not step.first_message:
            return step.first_message >= self._first
        return step.first_message > self._first

    def _reach(self, index: int) -> None:
        """Note how many messages are shown, before the first thing that comes after them is added."""
        if index >= self._last and self._count is None:
            self._count = len(self.messages)

    @property
    def _has_passed(self) -> bool:
        """True once a message of an execution was added that is not shown."""
        later = self.messages[self._count :] if self._count is not None else ()
        return any("execution_id" in message.get("metadata", ()) for message in later)

    def _add_end(self) -> None:
        """Add what is not a message yet."""
        state, execution = self._state, self._state.execution
        if state.messages:
            if self._first >= len(state.messages):
                self._count = 0
            self._reach(len(state.messages) - 1)
        if state.open_step is not None:
            self._open_step(state.open_step)
        if execution.question is not None:
            self._question(execution.question)
        step = state.steps.last
        if step is not None and _is_error(step.outcome):
            self._errors.add(f"{step.execution_id}:{step.number}:error")
        outcome = state.last_continuation_outcome
        self._error(
            execution.id, execution.step_count, outcome, state.current_step, state.state_info.updated_at
        )

    def _outside(self, first: int, last: int, previous: Step | None, following: Step | None) -> None:
        """Add the messages outside of steps: questions, feedback, and a history from before the session."""
        execution, messages = self._state.execution, self._state.messages
        asked = following.execution_id if following else execution.id
        moment = following.started_at if following and asked != execution.id else execution.started_at
        indices = range(first, min(last, len(messages)))
        # Only the last question before a step is known to be the one that the step works on.
        latest = next((index for index in reversed(indices) if not messages[index].is_system), None)
        for index in indices:
            self._reach(index)
            message, own_id = messages[index], f"{self._state.agent_id}:{index}"
            if message.source:
                self._feedback(own_id, message, previous, asked, moment)
            elif not message.is_system and (self._count is None or index == latest):
                known = {"execution_id": asked} if message.is_user and index == latest else {}
                metadata = {**known, **_contents(message)}
                self._add(own_id, message.role.value, message.text, moment, metadata)

    def _feedback(
        self, id: str, message: Message, previous: Step | None, asked: str, moment: datetime
    ) -> None:
        """Add the feedback of rules to the model; the step before it is the one that they judged."""
        metadata: dict[str, Any] = {"execution_id": asked, "status_type": "info"}
        if previous is not None:
            metadata |= {"execution_id": previous.execution_id, "step_number": previous.number}
            moment = previous.completed_at
        self._add(id, "status", message.text, moment, {**metadata, "source": list(message.source)})

    def _step(self, step: Step) -> None:
        said = self._state.messages_of(step)
        if said:
            is_wrong = any(failure.readable for failure in step.failures)
            self._assistant(step.execution_id, step.number, said[0], step.started_at, is_wrong=is_wrong)
        ids = _Ids(step.execution_id, step.number)
        for message, run in zip(said[1:], step.tool_calls, strict=False):
            result = _result(message.text, run.error, run.duration_ms, run.changed_by)
            self._tool(ids, run, result, step.completed_at)
        self._error(step.execution_id, step.number, step.outcome, step, step.completed_at)

    def _open_step(self, step: OpenStep) -> None:
        execution_id = self._state.execution.id
        if step.message is not None:
            self._assistant(execution_id, step.number, step.message, step.started_at)
        ids = _Ids(execution_id, step.number)
        for index, call in enumerate(step.calls):
            asked, done = step.call_to_run(index), call.result
            if done is not None:
                result = _result(done.content, done.error, call.duration_ms, done.changed_by)
                self._tool(ids, asked, result, step.started_at)
            else:
                self._unfinished(ids, asked, call, step.started_at)

    def _assistant(
        self, execution_id: str, step: int, message: Message, moment: datetime, *, is_wrong: bool = False
    ) -> None:
        """Add an answer. A wrong one has no text: it may be a call, and the status after it says why."""
        metadata = {"execution_id": execution_id, "step_number": step, **_contents(message)}
        text = "" if is_wrong else message.text
        self._add(f"{execution_id}:{step}:assistant", "assistant", text, moment, metadata)

    def _tool(self, ids: _Ids, call: ToolRun | ToolCall, result: Mapping[str, Any], moment: datetime) -> None:
        """Add a result. Of a call that did not succeed people read the error: the text is for the model."""
        text = result.get("tool_error") or result.get("tool_result", "")
        metadata = {**ids.known, "tool_call_id": call.id, "tool_name": call.name, **result}
        self._add(ids.of(call.id), "tool", text, moment, metadata)

    def _unfinished(self, ids: _Ids, asked: ToolCall, call: OpenCall, moment: datetime) -> None:
        """Add a call that runs, was cut off while it ran, waits for a person, or was just decided."""
        metadata = {**ids.known, "tool_call_id": asked.id, "tool_name": asked.name}
        if call.approved:
            text = f"{asked.name}: {_decision(call.approvals[-1])}"
            self._add(ids.of(asked.id), "status", text, moment, {**metadata, "status_type": "info"})
            return
        shown = _call(asked)
        metadata |= {"status_type": "tool_call", "tool_calls": [shown]}
        if call.question is not None:
            metadata |= {"question_id": call.question.id, "question": call.question.text}
            metadata["args_summary"] = shown["args_summary"]
        text = call.question.text if call.question is not None else f"Running {asked.name}"
        self._add(ids.of(asked.id), "status", text, moment, metadata)

    def _question(self, question: Question) -> None:
        """Add a question about the run itself."""
        execution = self._state.execution
        metadata = {
            "execution_id": execution.id,
            "step_number": execution.step_count + 1,
            "status_type": "tool_call",
            "question_id": question.id,
            "question": question.text,
        }
        own_id, moment = f"{execution.id}:question:{question.id}", self._state.state_info.updated_at
        self._add(own_id, "status", question.text, moment, metadata)

    def _error(
        self,
        execution_id: str,
        number: int,
        outcome: ContinuationOutcome | None,
        step: Step | None,
        moment: datetime,
    ) -> None:
        """Add the failure that an execution ended with, though it may have been resumed since."""
        own_id = f"{execution_id}:{number}:error"
        if outcome is None or not _is_error(outcome) or own_id in self._errors:
            return
        self._errors.add(own_id)
        why = _why(outcome)
        error = error_text(outcome, step)
        text = status_text({"stop_reason": outcome.stop_reason, "error_message": error})
        metadata = {"execution_id": execution_id, "step_number": number, "status_type": "error", **why}
        self._add(own_id, "status", text, moment, metadata)

    def _add_outcomes(self) -> None:
        """Put the last outcome of each execution on its last message."""
        state, execution = self._state, self._state.execution
        decided = {**self._outcomes, execution.id: state.last_continuation_outcome}
        last = {message.get("metadata", {}).get("execution_id"): message for message in self.messages}
        for execution_id, outcome in decided.items():
            if outcome is not None and execution_id in last:
                last[execution_id]["metadata"] |= _why(outcome)
        if execution.id in last and execution.last_seq and state.status is not AgentStatus.IN_PROGRESS:
            last[execution.id]["metadata"]["seq"] = execution.last_seq

    def _add_status(self, step: OpenStep | None) -> None:
        """Add the status of the execution, as a live client shows it."""
        state, moment = self._state, self._state.state_info.updated_at
        number, text = state.execution.step_count + 1, _THINKING
        if step is not None:
            number, moment = step.number, max(moment, step.started_at)
            text = _THINKING if all(call.is_done or call.is_waiting for call in step.calls) else ""
        metadata: dict[str, Any] = {
            "status_type": "thinking",
            "execution_id": state.execution.id,
            "step_number": number,
            "seq": state.execution.last_seq,
            "agent_id": state.agent_id,
        }
        retry = _retry(state) if step is None else None
        if retry is not None:
            metadata |= {"status_type": "continuation", "retry": retry}
            text = f"Retrying ({retry['attempt']}/{retry['max']})"
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
    if message.reasoning:
        metadata["reasoning"] = message.reasoning
    if message.incomplete:
        metadata["incomplete"] = True
    parts = () if isinstance(message.content, str) else message.content
    attachments = [plain.encode(part) for part in parts if not isinstance(part, TextPart)]
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
        "args": plain.encode(call.arguments),
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
    attempt, most, until = (
        execution.failures.consecutive,
        policy.context.get("max_retries"),
        execution.wait_until,
    )
    if not attempt or not isinstance(most, int):
        return None
    return {
        "attempt": attempt,
        "max": most,
        "until": None if until is None else timestamp(until),
    }


def _is_error(outcome: ContinuationOutcome | None) -> bool:
    return outcome is not None and outcome.stop_reason in _ERRORS


def _why(outcome: ContinuationOutcome) -> dict[str, Any]:
    """Return the `continuation` of an outcome, and the `reason` if it does not continue."""
    stop_reason = outcome.stop_reason
    why: dict[str, Any] = {
        "continuation": {
            "should_continue": outcome.should_continue,
            "stop_reason": stop_reason.value if stop_reason else None,
            "resolved_by": outcome.resolved_by,
        }
    }
    if not outcome.should_continue and outcome.reason:
        why["reason"] = outcome.reason
    return why
