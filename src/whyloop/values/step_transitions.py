"""The transitions of a step, from the answer to its end, and the union of all transitions."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from whyloop.values.approval import Approval, Question, Verdict
from whyloop.values.failure import ErrorHandlingDecision, Failure, FailureTally
from whyloop.values.judgement import Judged, JudgedAlike
from whyloop.values.messages import Message, ToolResult
from whyloop.values.model import NO_USAGE, FinishReason, ModelSource, Usage
from whyloop.values.scalars import Count, Moment, Seconds
from whyloop.values.state import AgentState, StateInfo
from whyloop.values.step import Interruption, OpenCall, OpenStep, RequestRecord, Step
from whyloop.values.transitions import (
    Begun,
    Created,
    Forked,
    MetadataSet,
    Noted,
    Queried,
    Recovered,
    Restored,
    Resumed,
    RetryPlanned,
    StopRequested,
    Transition,
    Waited,
)

_IGNORE = ErrorHandlingDecision.IGNORE


class Answered(Transition, frozen=True, tag="answered", kw_only=True):
    """The model's answer. It opens the step and is recorded before any call runs."""

    started_at: Moment
    message: Message | None = None
    finish_reason: FinishReason | None = None
    usage: Usage = NO_USAGE
    source: ModelSource | None = None
    seconds: Seconds = 0.0
    """The active time up to the answer."""
    started: tuple[int, ...] = ()
    """The indices of the calls that start now."""
    questions: Mapping[int, Question] = {}
    """The questions about calls that wait for a person, by index."""
    failure: Failure | None = None
    """The problem with a wrong answer; None for a correct one."""
    interrupted: Interruption | None = None
    request: RequestRecord | None = None
    response_changed_by: tuple[str, ...] = ()
    output: str | None = None
    """The JSON of the output, if the answer is one."""

    def envelope_count(self) -> int:
        return len(self.started) + len(self.questions)

    def apply_to(self, state: AgentState) -> AgentState:
        execution, calls = state.execution, []
        if self.message is not None:
            for index in range(len(self.message.tool_calls)):
                if index in self.started:
                    calls.append(OpenCall(started=True, started_at=self.at))
                else:
                    calls.append(OpenCall(question=self.questions.get(index)))
        step = OpenStep(
            number=execution.next_step_number(),
            started_at=self.started_at,
            message=self.message,
            calls=tuple(calls),
            finish_reason=self.finish_reason,
            usage=self.usage,
            source=self.source,
            seconds=self.seconds,
            failure=self.failure,
            interrupted=self.interrupted,
            request=self.request,
            response_changed_by=self.response_changed_by,
            answered_at=self.at,
            output=self.output,
        )
        state = _spent(state, self.at, self.seconds, step, self.usage, self.envelope_count())
        return state if self.source is None else _backed_off(state, self.source)


class ModelFailed(Transition, frozen=True, tag="model_failed", kw_only=True):
    """The failure of the model call. It opens a step that contains only the failure."""

    started_at: Moment
    failure: Failure
    usage: Usage = NO_USAGE
    source: ModelSource | None = None
    """The attempts of the model that failed before."""
    seconds: Seconds = 0.0
    request: RequestRecord | None = None

    def apply_to(self, state: AgentState) -> AgentState:
        step = OpenStep(
            number=state.execution.next_step_number(),
            started_at=self.started_at,
            usage=self.usage,
            source=self.source,
            seconds=self.seconds,
            failure=self.failure,
            request=self.request,
            answered_at=self.at,
        )
        state = _spent(state, self.at, self.seconds, step, self.usage)
        return state if self.source is None else _backed_off(state, self.source)


class Reopened(Transition, frozen=True, tag="reopened", kw_only=True):
    """The continuation of an open step: calls start now, or wait for a person."""

    started: tuple[int, ...] = ()
    """The indices of the calls that start now."""
    questions: Mapping[int, Question] = {}
    """The questions about calls that wait for a person, by index."""

    def envelope_count(self) -> int:
        return len(self.started) + len(self.questions)

    def apply_to(self, state: AgentState) -> AgentState:
        step = _open(state)
        for index in self.started:
            call = step.calls[index]
            step = step.with_call(
                index, replace(call, started=True, approved=False, question=None, started_at=self.at)
            )
        for index, question in self.questions.items():
            step = step.with_call(index, replace(step.calls[index], question=question, approved=False))
        return _numbered(replace(state, open_step=step), self.envelope_count())


class CallFinished(Transition, frozen=True, tag="call_finished", kw_only=True):
    """The result of a call: done, failed, denied, not run, or unknown."""

    index: Count
    """The index of the call."""
    result: ToolResult
    """The result."""
    seconds: Seconds = 0.0
    """How long the call took."""

    def envelope_count(self) -> int:
        return 1

    def apply_to(self, state: AgentState) -> AgentState:
        step = _open(state)
        call = step.calls[self.index]
        call = replace(
            call, result=self.result, question=None, approved=False, duration_ms=self.seconds * 1000
        )
        execution = state.execution
        return replace(
            state,
            open_step=step.with_call(self.index, call),
            execution=replace(execution, last_seq=execution.last_seq + 1),
        )


class Decided(Transition, frozen=True, tag="decided", kw_only=True):
    """A person's answer to a question. The result of the call follows a denial."""

    question_id: str
    """The id of the question."""
    verdict: Verdict
    by: str
    """The name of the person."""
    reason: str | None = None
    arguments: Mapping[str, Any] | None = None
    """The arguments of an edit."""
    key: str | None = None
    """The idempotency key of the request."""

    def envelope_count(self) -> int:
        return 1

    def apply_to(self, state: AgentState) -> AgentState:
        state = _numbered(
            replace(state, state_info=replace(state.state_info, updated_at=self.at)), self.envelope_count()
        )
        execution = state.execution
        question = execution.question
        if question is not None and question.id == self.question_id:
            approvals = (*execution.approvals, self._approval(question.text))
            execution = replace(execution, question=None, recoveries=0, approvals=approvals)
            return replace(state, execution=execution)
        step = _open(state)
        index, call = step.find_question(self.question_id)
        approval = self._approval(call.question.text if call.question else "")
        call = replace(
            call,
            question=None,
            approved=self.verdict is not Verdict.DENIED,
            approvals=(*call.approvals, approval),
            arguments=call.arguments if self.arguments is None else self.arguments,
        )
        return replace(state, open_step=step.with_call(index, call))

    def _approval(self, question: str) -> Approval:
        return Approval(
            self.verdict, self.by, self.at, question, self.reason, self.arguments, self.question_id
        )


class Left(Transition, frozen=True, tag="left", kw_only=True):
    """The end of work on a step that stays open: a call waits, or was cancelled."""

    seconds: Seconds = 0.0

    def apply_to(self, state: AgentState) -> AgentState:
        step = _open(state)
        return _spent(state, self.at, self.seconds, replace(step, seconds=step.seconds + self.seconds))


class Closed(Transition, frozen=True, tag="closed", kw_only=True):
    """The end of a step: its messages join the history, and the counters increase."""

    seconds: Seconds = 0.0
    interrupted: Interruption | None = None
    """Why the step was cut off; None if it was not."""

    def apply_to(self, state: AgentState) -> AgentState:
        opened, execution, history = _open(state), state.execution, state.messages
        messages, runs, failures = opened.finished()
        answer, response, tally = opened.message, execution.last_response, execution.failures
        if answer is not None and answer.content and opened.failure is None:
            response = answer.text or response  # A wrong answer is for the model to correct.
        wrap_up = execution.wrap_up
        if (failures or tally.consecutive or tally.corrected) and wrap_up is None:
            tally = _tally(state, failures)
        step = Step(
            opened.number,
            execution.id,
            opened.started_at,
            self.at,
            history.length,
            len(messages),
            tuple(runs),
            opened.finish_reason,
            opened.usage,
            (opened.seconds + self.seconds) * 1000,
            tuple(failures),
            opened.interrupted or self.interrupted,
            opened.source,
            None,
            opened.request,
            opened.response_changed_by,
            opened.answered_at,
            opened.output,
            execution.leg_started_at,
            execution.granted,
            execution.untimed,
            wrap_up,
            execution.resumes,
        )
        info = state.state_info
        after = replace(
            state,
            messages=history.extended(messages),
            steps=state.steps.appended(step),
            open_step=None,
            state_info=StateInfo(info.started_at, self.at, info.cumulative_execution_seconds + self.seconds),
            execution=replace(
                execution,
                updated_at=self.at,
                step_count=execution.step_count + 1,
                failures=tally,
                active_seconds=execution.active_seconds + self.seconds,
                recoveries=0,
                last_response=response,
                has_tool_results=execution.has_tool_results or bool(runs),
            ),
        )
        return after if wrap_up is None else _uncounted(after)


AnyTransition = (
    Created
    | Restored
    | Forked
    | MetadataSet
    | Queried
    | Resumed
    | Begun
    | Recovered
    | StopRequested
    | Waited
    | Noted
    | Answered
    | ModelFailed
    | Reopened
    | CallFinished
    | Decided
    | Left
    | Closed
    | Judged
    | JudgedAlike
    | RetryPlanned
)


def _uncounted(state: AgentState) -> AgentState:
    """Return the state with its last step as a wrap-up, which does not count."""
    execution, count = state.execution, state.execution.step_count - 1
    execution = replace(execution, step_count=count, wrap_ups=execution.wrap_ups + 1)
    return replace(state, execution=execution, wrap_ups=state.wrap_ups + 1)


def _open(state: AgentState) -> OpenStep:
    if state.open_step is None:
        raise ValueError("the state has no open step")
    return state.open_step


def _numbered(state: AgentState, count: int) -> AgentState:
    execution = state.execution
    return replace(state, execution=replace(execution, last_seq=execution.last_seq + count))


def _spent(
    state: AgentState,
    at: datetime,
    seconds: float,
    step: OpenStep,
    usage: Usage = NO_USAGE,
    numbered: int = 0,
) -> AgentState:
    """Return the state with this open step, and the time and tokens counted."""
    execution, info = state.execution, state.state_info
    total = spent = state.usage + usage
    if execution.usage is not state.usage:  # Not the first query of the session.
        spent = execution.usage + usage
    return replace(
        state,
        open_step=step,
        usage=total,
        state_info=StateInfo(info.started_at, at, info.cumulative_execution_seconds + seconds),
        execution=replace(
            execution,
            updated_at=at,
            usage=spent,
            active_seconds=execution.active_seconds + seconds,
            last_seq=execution.last_seq + numbered,
        ),
    )


def _backed_off(state: AgentState, source: ModelSource) -> AgentState:
    """Return the state with the waits of a model before its answer as backoff."""
    if not source.attempts:
        return state
    execution = state.execution
    seconds = execution.backoff_seconds + source.waited
    return replace(state, execution=replace(execution, backoff_seconds=seconds))


def _tally(state: AgentState, failed: list[Failure]) -> FailureTally:
    """Return the failure counts after a step.

    An ignored failure is forgotten here, not when it is judged, because judging again must see it.
    """
    failures = state.execution.failures
    previous = state.current_step
    outcome = previous.outcome if previous is not None else None
    forgiven, free = outcome is not None and outcome.handling is _IGNORE, bool(failed) and failed[0].is_free
    return failures.after_step(failed=bool(failed), forgiven=forgiven, free=free)
