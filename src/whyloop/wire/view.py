"""Events as a view of transitions: the same for a handler now and for a client next year."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any

from whyloop.errors import SnapshotError
from whyloop.events import (
    AgentEvent,
    AgentExecutionFailed,
    AgentExecutionFinished,
    AgentExecutionStarted,
    AgentStatusChanged,
    AgentStepCompleted,
    ApprovalDecided,
    ApprovalRequested,
    ContinuationEvaluated,
    RetryScheduled,
    TokenUsageReported,
    ToolCallCompleted,
    ToolCallStarted,
)
from whyloop.values.approval import Question
from whyloop.values.execution import AgentStatus
from whyloop.values.messages import ToolCall
from whyloop.values.state import AgentState
from whyloop.values.transitions import (
    Answered,
    AnyTransition,
    Begun,
    CallFinished,
    Decided,
    Forked,
    Judged,
    JudgedAlike,
    Recovered,
    Reopened,
    RetryPlanned,
    Transition,
    find_question,
)

Events = Iterator[AgentEvent]

INCONSISTENT = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)
"""What a transition raises that does not fit the state before it."""


def events_of(state: AgentState, transition: Transition) -> Events | tuple[()]:
    """Return the events of a transition, given the state before it."""
    view = _VIEWS.get(type(transition))
    return view(state, transition) if view is not None else ()


def read_back(state: AgentState, transitions: Iterable[AnyTransition]) -> Events:
    """Yield the events of recorded transitions, from the state before the first.

    A transition that does not follow from those before it is a `SnapshotError` that names it.
    """
    for index, transition in enumerate(transitions):
        try:
            events = list(events_of(state, transition))
            state = transition.apply_to(state)
        except SnapshotError:
            raise
        except INCONSISTENT as error:
            raise SnapshotError(
                f"the transition does not follow from those before it: {error}", f"$.transitions[{index}]"
            ) from None
        yield from events


def common(state: AgentState, time: datetime, step_number: int, seq: int) -> dict[str, Any]:
    """Return the fields that every event has."""
    return {
        "agent_id": state.agent_id,
        "parent_agent_id": state.parent_agent_id,
        "execution_id": state.execution.id,
        "step_number": step_number,
        "time": time,
        "seq": seq,
    }


def _begun(state: AgentState, t: Begun) -> Events:
    execution = state.execution
    resumed = execution.resumes > 0
    own = common(state, t.at, execution.step_count, execution.last_seq)
    asked = state.messages.last if not resumed else None
    yield AgentExecutionStarted(**own, query=asked, resumed=resumed)
    own["seq"] += 1
    yield AgentStatusChanged(
        **own,
        previous_status=execution.resumed_from or state.status,
        status=AgentStatus.IN_PROGRESS,
        step_count=execution.step_count,
    )


def _answered(state: AgentState, t: Answered) -> Events:
    if t.message is None:
        return
    calls = t.message.tool_calls
    yield from _started_and_asked(state, t, calls.__getitem__, state.execution.step_count + 1)


def _reopened(state: AgentState, t: Reopened) -> Events:
    step = state.open_step
    assert step is not None
    yield from _started_and_asked(state, t, step.call_to_run, step.number)


def _forked(state: AgentState, t: Forked) -> Events:
    if not t.questions or state.open_step is None:
        return
    own = common(state, t.at, state.open_step.number, 0)
    own["execution_id"] = t.execution_id
    for index, question in t.questions.items():
        own["seq"] += 1
        yield _asked(own, state.open_step.tool_calls[index], question)


def _started_and_asked(
    state: AgentState, t: Answered | Reopened, call_of: Callable[[int], ToolCall], number: int
) -> Events:
    own = common(state, t.at, number, state.execution.last_seq)
    for index in t.started:
        own["seq"] += 1
        call = call_of(index)
        yield ToolCallStarted(
            **own, tool=call.name, tool_call_id=call.id, args=call.arguments, changed_by=_changed_by(call)
        )
    for index, question in t.questions.items():
        own["seq"] += 1
        yield _asked(own, call_of(index), question)


def _asked(own: dict[str, Any], call: ToolCall, question: Question) -> ApprovalRequested:
    return ApprovalRequested(
        **own,
        question_id=question.id,
        tool=call.name,
        tool_call_id=call.id,
        question=question.text,
        args=call.arguments,
        changed_by=_changed_by(call),
    )


def _changed_by(call: ToolCall) -> tuple[str, ...]:
    return tuple([change.by for change in call.changes]) if call.changes else ()


RECOVERY = ToolCall("", "recovery", {})
"""Stands for the tool call in a question about the run itself."""


def _recovered(state: AgentState, t: Recovered) -> Events:
    if t.question is not None:
        execution = state.execution
        own = common(state, t.at, execution.step_count + 1, execution.last_seq + 1)
        yield _asked(own, RECOVERY, t.question)


def _call_finished(state: AgentState, t: CallFinished) -> Events:
    step, result = state.open_step, t.result
    assert step is not None
    call = step.tool_calls[t.index]
    yield ToolCallCompleted(
        **common(state, t.at, step.number, state.execution.last_seq + 1),
        tool=call.name,
        tool_call_id=call.id,
        success=result.error is None,
        error=result.error,
        duration_ms=t.seconds * 1000,
        result=result.content,
        changed_by=result.changed_by,
    )


def _decided(state: AgentState, t: Decided) -> Events:
    question, step, call = state.execution.question, state.open_step, RECOVERY
    if step is not None and (question is None or question.id != t.question_id):
        index, _ = find_question(step, t.question_id)
        call = step.tool_calls[index]
    number = step.number if step is not None else state.execution.step_count + 1
    yield ApprovalDecided(
        **common(state, t.at, number, state.execution.last_seq + 1),
        question_id=t.question_id,
        tool=call.name,
        tool_call_id=call.id,
        verdict=t.verdict,
        by=t.by,
        reason=t.reason,
    )


def _judged(state: AgentState, t: Judged) -> Events:
    execution, outcome = state.execution, t.outcome
    number = state.open_step.number if state.open_step is not None else execution.step_count
    own = common(state, t.at, number, execution.last_seq)
    step = state.steps[-1] if t.step is not None else None
    if step is not None and step.finish_reason is not None:
        yield TokenUsageReported(**own, usage=step.usage, execution_usage=execution.usage)
    yield ContinuationEvaluated(**own, outcome=outcome)
    if step is not None:
        own["seq"] += 1
        yield AgentStepCompleted(
            **own,
            has_tool_calls=bool(step.tool_calls),
            error_count=len(step.failures),
            usage=step.usage,
            finish_reason=step.finish_reason,
            duration_ms=step.duration_ms,
            outcome=outcome,
        )
    if not outcome.decision.continues:
        own["seq"] += 1
        yield from _ended(state, t, own)


def _judged_alike(state: AgentState, t: JudgedAlike) -> Events:
    yield from _judged(state, t.judged(state.last_continuation_outcome))


def _ended(state: AgentState, t: Judged, own: dict[str, Any]) -> Events:
    """Yield the events of a pause or an end; a pause is a change of the status alone."""
    outcome, status = t.outcome, AgentStatus.after(t.outcome)
    why: dict[str, Any] = {"resolved_by": outcome.resolved_by, "reason": outcome.reason or None}
    error = outcome.reason if status is AgentStatus.FAILED else None
    yield AgentStatusChanged(
        **own,
        previous_status=state.status,
        status=status,
        stop_reason=outcome.stop_reason,
        **why,
        step_count=state.execution.step_count,
        error_message=error,
        last_response=state.execution.last_response or None,
        pending_calls=state.pending_calls if outcome.pauses else (),
    )
    if outcome.stop_reason is not None:
        if error is not None:
            yield AgentExecutionFailed(
                **own, error=error, stop_reason=outcome.stop_reason, resolved_by=outcome.resolved_by
            )
        yield AgentExecutionFinished(**own, status=status, stop_reason=outcome.stop_reason, **why)


def _retry_planned(state: AgentState, t: RetryPlanned) -> Events:
    execution = state.execution
    yield RetryScheduled(
        **common(state, t.at, execution.step_count, execution.last_seq + 1),
        attempt=t.attempt,
        max_retries=t.max_retries,
        wait_seconds=t.seconds,
        error_type=t.error_type,
    )


_VIEWS: dict[type[Transition], Callable[[AgentState, Any], Events]] = {
    Answered: _answered,
    Begun: _begun,
    CallFinished: _call_finished,
    Decided: _decided,
    Forked: _forked,
    Judged: _judged,
    JudgedAlike: _judged_alike,
    Recovered: _recovered,
    Reopened: _reopened,
    RetryPlanned: _retry_planned,
}
