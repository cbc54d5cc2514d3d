"""The transitions of a state, reconstructed from its steps.

A journal holds the transitions themselves. A state only holds their result, from which
they are reconstructed here. So states and snapshots can be judged, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import zip_longest

from msgspec import Struct
from msgspec.structs import replace

from whyloop.errors import ConfigurationError
from whyloop.rules.checks import ApprovalRequired, StopRequestedCheck
from whyloop.values.continuation import (
    Budget,
    ContinuationDecision,
    ContinuationOutcome,
)
from whyloop.values.execution import AgentStatus, Execution
from whyloop.values.failure import ErrorHandlingDecision, Failure
from whyloop.values.judgement import Judged
from whyloop.values.log import EMPTY
from whyloop.values.messages import Message, MessageRole, ToolResult
from whyloop.values.model import NO_USAGE
from whyloop.values.state import AgentState, StateInfo
from whyloop.values.step import Interruption, OpenStep, Step
from whyloop.values.step_transitions import Answered, CallFinished, Closed, Left, ModelFailed
from whyloop.values.text import counted
from whyloop.values.transitions import (
    Begun,
    Queried,
    Recovered,
    Resumed,
    RetryPlanned,
    StopRequested,
    Transition,
    Waited,
)

_FORBID = ContinuationDecision.FORBID_CONTINUATION


class RecordedExecution(Struct, frozen=True):
    """The work on one query, as it was recorded."""

    before: AgentState
    """The state in which the query arrived."""
    transitions: Sequence[Transition]
    """The transitions since then, the query first."""
    after: AgentState
    """The state that they led to."""
    states: Sequence[AgentState] = ()
    """The state before each transition."""


def has_work(transitions: Iterable[Transition]) -> bool:
    """Return whether any work or decision followed a query."""
    return any(isinstance(each, Answered | ModelFailed | Judged) for each in transitions)


class Lacking(Transition, frozen=True, tag="lacking", kw_only=True):
    """Something that happened, and of which the state holds no more than this."""

    text: str
    """The event, as a text."""
    resumes: int = 0
    """How many resumes it had."""

    def apply_to(self, state: AgentState) -> AgentState:
        execution = state.execution
        return replace(state, execution=replace(execution, resumes=execution.resumes + self.resumes))


class JudgedLater(Judged, frozen=True, tag="judged_later", kw_only=True):
    """A decision that replaced an outcome, after which the run had gone on or paused."""

    forgot_wrap_up: bool = False
    """True if the state would not show that a wrap-up had begun before."""


class Paused(JudgedLater, frozen=True, tag="paused_before", kw_only=True):
    """A pause in the middle of a step, of which the state only shows that there was one."""

    def apply_to(self, state: AgentState) -> AgentState:
        return state


class _ClosedAgain(Closed, frozen=True, tag="closed_again", kw_only=True):
    """The end of a step that a state holds, with all that is known about it."""

    step: Step
    messages: tuple[Message, ...]

    def apply_to(self, state: AgentState) -> AgentState:
        after = Closed.apply_to(self, state)
        step = replace(self.step, outcome=None, judged_after=None, first_message=state.messages.length)
        messages = state.messages.extended(self.messages)
        return replace(after, steps=after.steps.with_last(step), messages=messages)


class _OpenedAgain(Answered, frozen=True, tag="opened_again", kw_only=True):
    """The open step that a state holds."""

    opened: OpenStep

    def apply_to(self, state: AgentState) -> AgentState:
        return replace(Answered.apply_to(self, state), open_step=self.opened)


def executions_of(state: AgentState) -> tuple[RecordedExecution, ...]:
    """Return the executions of a state, as far as its steps show them."""
    if state.steps.start or (state.steps and state.steps[0].number != 1):
        raise _incomplete(state)
    executions: list[RecordedExecution] = []
    before = replace(
        state,
        status=AgentStatus.PENDING,
        messages=EMPTY,
        steps=EMPTY,
        usage=NO_USAGE,
        state_info=StateInfo(state.state_info.started_at, state.state_info.started_at),
        execution=Execution(id="", started_at=state.state_info.started_at),
        last_continuation_outcome=None,
        open_step=None,
        wrap_ups=0,
    )
    for steps, is_last in _by_execution(state):
        fold = _Refold(state, before, steps, is_last=is_last)
        before = fold.state
        if has_work(fold.transitions):
            executions.append(RecordedExecution(fold.before, fold.transitions, fold.state, fold.states))
    return tuple(executions)


def _incomplete(state: AgentState) -> ConfigurationError:
    return ConfigurationError(
        f"session {state.agent_id!r} lacks some of its steps or messages, so it cannot be judged: use its "
        "journal or a full snapshot"
    )


def _by_execution(state: AgentState) -> Iterator[tuple[list[Step], bool]]:
    """Yield the steps of each execution, and whether it is the last one."""
    steps: list[Step] = []
    for step in state.steps:
        if step.number == 1 and steps:
            yield steps, False
            steps = []
        steps.append(step)
    if steps and not state.execution.step_count:  # The latest query has no closed step.
        yield steps, False
        steps = []
    yield steps, True


class _Refold:
    """A builder of the transitions of one execution, which it applies."""

    def __init__(self, whole: AgentState, before: AgentState, steps: list[Step], *, is_last: bool) -> None:
        self.whole, self.is_last = whole, is_last
        end = steps[0].first_message if steps else len(whole.messages)
        gap = whole.messages[before.messages.length : max(0, end - 1)]
        self.before = self.state = replace(before, messages=before.messages.extended(gap))
        self.transitions: list[Transition] = []
        self.states: list[AgentState] = []
        execution = whole.execution
        query = whole.messages[end - 1] if 0 < end <= len(whole.messages) else Message(MessageRole.USER, "")
        if is_last:
            identity, asked_at = execution.id, execution.started_at
        else:
            identity, asked_at = steps[0].execution_id, steps[0].leg_started_at or steps[0].started_at
        untimed = steps[0].untimed if steps else execution.untimed
        self.add(Queried(asked_at, execution_id=identity, message=query, agent=whole.agent, untimed=untimed))
        if not is_last or whole.status is not AgentStatus.PENDING or steps:
            self.add(Begun(asked_at))
        for step, following in zip_longest(steps, steps[1:]):
            self._add_step(step, following)
        if is_last:
            self._add_end()

    def add(self, transition: Transition) -> None:
        self.transitions.append(transition)
        self.states.append(self.state)
        self.state = transition.apply_to(self.state)

    def _begin_leg(
        self, started_at: datetime | None, granted: Budget | None, resumes: int, *, begins: bool = True
    ) -> None:
        """Begin the leg in which a step was closed, or the latest one.

        Only the last of several resumes is known. A leg without a resume began between two steps.
        """
        execution = self.state.execution
        at = started_at or execution.updated_at or execution.started_at
        if (new := resumes - execution.resumes) <= 0:
            if started_at is not None and started_at != execution.leg_started_at:
                self.add(Begun(at, leg=True))
            return
        if new > 1:
            times = counted(new, "time")
            self.add(Lacking(at, text=f"it was resumed {times} {self._where}", resumes=new - 1))
        grant = None
        if granted is not None and granted != execution.granted:
            earlier = execution.granted or Budget()
            grant = Budget(
                granted.steps - earlier.steps,
                granted.tokens - earlier.tokens,
                granted.seconds - earlier.seconds,
                granted.usd - earlier.usd,  # type: ignore[operator]
            )
        self.add(Resumed(at, grant=grant))
        if begins:
            self.add(Begun(at))

    @property
    def _where(self) -> str:
        number = self.state.execution.step_number
        return f"in step {number + 1}" if self.state.open_step is not None else f"after step {number}"

    def _add_step(self, step: Step, following: Step | None) -> None:
        answered_at = step.answered_at or step.completed_at
        leg = step.leg_started_at
        during = leg is not None and leg > answered_at and not self.state.status.has_ended
        if not during:
            self._begin_leg(leg, step.granted, step.resumes)
        last = self.state.current_step
        if step.wrap_up is not None and self.state.execution.wrap_up is None and last and last.outcome:
            self.add(Judged(step.started_at, outcome=last.outcome, wraps_up=True))  # After a resume.
        self._wait(step)
        messages = self.whole.messages_of(step)
        message = messages[0] if messages and messages[0].is_assistant else None
        if len(message.tool_calls if message else ()) != len(step.tool_calls):
            raise _incomplete(self.whole)
        failure = step.failures[0] if step.failures and step.failures[0].is_model_call else None
        seconds = step.duration_ms / 1000
        active = min(seconds, _active_until(answered_at, step)) if during else 0.0
        self.add(_answer_of(step, message, failure, answered_at, active))
        # In the order in which they finished: a deadline may come between two.
        calls = sorted(
            _finished_calls(step, messages[1:], skip=failure is not None), key=lambda call: call.at
        )
        if during and leg is not None:
            left_at = max([answered_at, *[call.at for call in calls if call.at <= leg]])
            while calls and calls[0].at <= leg:
                self.add(calls.pop(0))
            worked = min(seconds - active, max(0.0, (left_at - answered_at).total_seconds()))
            active += worked
            self.add(Left(left_at, seconds=worked))
            self._begin_leg(leg, step.granted, step.resumes)
        for call in calls:
            self.add(call)
        # It waited when the next query arrived, or was resumed in the instant in which it was answered.
        resumed_at_once = leg == answered_at and any(run.approvals for run in step.tool_calls)
        if step.outcome is not None and (step.interrupted is Interruption.SUPERSEDED or resumed_at_once):
            self.add(Paused(answered_at, outcome=step.outcome))
        self.add(
            _ClosedAgain(
                step.completed_at,
                seconds=seconds - active,
                interrupted=step.interrupted,
                step=step,
                messages=messages,
            )
        )
        if step.outcome is not None:
            was_stopped = step.judged_after is not None and _stopped_a_wrap_up(step.outcome)
            self._judge(step.outcome, step, wraps_up=was_stopped or self._wraps_up(step, following))
            if was_stopped:
                self._judge(step.outcome)

    def _wraps_up(self, step: Step, following: Step | None) -> bool:
        """Return whether the run wrapped up after this step, before it was resumed."""
        if following is None:
            return self.is_last and bool(self.whole.execution.wrap_up) and step.wrap_up is None
        return following.wrap_up is not None and following.leg_started_at == step.leg_started_at

    def _judge(
        self,
        outcome: ContinuationOutcome,
        step: Step | None = None,
        *,
        wraps_up: bool = False,
        paused: bool = False,
    ) -> None:
        """Add the decision about a step, or about a run between two steps."""
        at, number = self.state.state_info.updated_at, None if step is None else step.number
        stop = outcome.evaluation_for("StopRequestedCheck")
        later = step.judged_after if step is not None else None
        if step is not None and later is not None and later > step.resumes:
            self.add(Lacking(at, text=f"it was resumed and ended again {self._where}"))
        if wraps_up:
            # The stop was requested after that, or the run would not have wrapped up.
            before = StopRequestedCheck().explain(self.state)
            evaluations = [before if each is stop else each for each in outcome.evaluations]
            outcome = replace(outcome, evaluations=tuple(evaluations))
        elif stop is not None and stop.decision is _FORBID and self.state.execution.stop_request is None:
            self.add(StopRequested(at, reason=stop.reason))
        approval, waits = outcome.evaluation_for("ApprovalRequired"), ApprovalRequired().explain(self.state)
        if approval is not None and approval.decision is not waits.decision:
            self.add(Lacking(at, text=f"a question was decided {self._where}"))
        if not paused and later is None:
            self.add(Judged(at, outcome=outcome, step=number, wraps_up=wraps_up))
            return
        forgot = later is not None and not (self.is_last and self.whole.execution.resumes == later)
        judged = JudgedLater(at, outcome=outcome, step=number, wraps_up=wraps_up, forgot_wrap_up=forgot)
        self.add(judged)

    def _wait(self, step: Step) -> None:
        """Add the wait of the run between two steps."""
        last, execution = self.state.current_step, self.state.execution
        if last is None or last.model_failure is None or last.outcome is None or execution.resumes:
            return
        seconds = (step.started_at - last.completed_at).total_seconds()
        if last.outcome.handling is not ErrorHandlingDecision.RETRY or seconds <= 0:
            return
        attempt = execution.failures.consecutive
        self.add(
            RetryPlanned(
                last.completed_at,
                seconds=seconds,
                attempt=attempt,
                max_retries=attempt,
                error_type=last.failures[0].type,
            )
        )
        self.add(Waited(step.started_at, seconds=seconds))

    def _add_end(self) -> None:
        """Add what happened after the last closed step."""
        whole, execution = self.whole, self.whole.execution
        opened, outcome = whole.open_step, whole.last_continuation_outcome
        leg, begins = execution.leg_started_at, whole.status is not AgentStatus.PENDING
        answered_at = opened.answered_at if opened is not None else None
        if answered_at is None or leg is None or leg <= answered_at or self.state.status.has_ended:
            self._begin_leg(leg, execution.granted, execution.resumes, begins=begins)
        if opened is not None:
            at = answered_at or opened.started_at
            active = min(opened.seconds, _active_until(at, opened))
            self.add(
                _OpenedAgain(
                    at,
                    started_at=opened.started_at,
                    message=opened.message,
                    usage=opened.usage,
                    source=opened.source,
                    seconds=active,
                    opened=replace(opened, seconds=active),
                )
            )
            self._begin_leg(leg, execution.granted, execution.resumes, begins=begins)
            left_at = execution.updated_at or at
            if left_at > (self.state.execution.updated_at or at):
                self.add(Left(left_at, seconds=max(0.0, opened.seconds - active)))
        if execution.question is not None:
            self.add(Recovered(execution.updated_at or execution.started_at, question=execution.question))
        if execution.stop_request is not None and self.state.execution.stop_request is None:
            self.add(StopRequested(whole.state_info.updated_at, reason=execution.stop_request))
        is_new = outcome != self.state.last_continuation_outcome or whole.status is not self.state.status
        if outcome is not None and is_new:
            is_pause = outcome.pauses and not outcome.partial
            self._judge(outcome, paused=_has_asked(opened) and not is_pause)
        elif outcome is None and _has_asked(opened):
            last = self.state.current_step
            if execution.resumes > (0 if last is None else last.resumes):  # It had paused, or ended.
                at = execution.updated_at or execution.started_at
                self.add(Lacking(at, text=f"it was decided {self._where}"))


def _has_asked(opened: OpenStep | None) -> bool:
    """Return whether a call of an open step has waited for a person."""
    return opened is not None and any(call.question or call.approvals for call in opened.calls)


def _stopped_a_wrap_up(outcome: ContinuationOutcome) -> bool:
    """Return whether a stop was requested during a wrap-up, whose limit still decides."""
    stop = outcome.evaluation_for("StopRequestedCheck")
    deciding = outcome.evaluation_for(outcome.resolved_by)
    return stop is not None and stop.decision is _FORBID and deciding is not None and deciding.exhausted


def _active_until(answered_at: datetime, step: Step | OpenStep) -> float:
    """Return the active seconds of a step up to its answer."""
    waited = 0.0 if step.source is None else step.source.waited
    return max(0.0, (answered_at - step.started_at).total_seconds() - waited)


def _answer_of(
    step: Step, message: Message | None, failure: Failure | None, at: datetime, seconds: float
) -> ModelFailed | Answered:
    """Return the transition of the model call of a step."""
    if message is None and failure is not None and step.interrupted is None:
        return ModelFailed(
            at,
            started_at=step.started_at,
            failure=failure,
            usage=step.usage,
            source=step.source,
            seconds=seconds,
            request=step.request,
        )
    started = [index for index, run in enumerate(step.tool_calls) if run.started_at is not None]
    return Answered(
        at,
        started_at=step.started_at,
        message=message,
        finish_reason=step.finish_reason,
        usage=step.usage,
        source=step.source,
        seconds=seconds,
        started=tuple(started),
        failure=failure,
        interrupted=step.interrupted if step.interrupted is Interruption.TRUNCATED else None,
        request=step.request,
    )


def _finished_calls(step: Step, results: Sequence[Message], *, skip: bool) -> Iterator[CallFinished]:
    """Yield the results of the calls of a step."""
    failures = list(step.failures[1:] if skip else step.failures)
    for index, run in enumerate(step.tool_calls):
        message = results[index] if index < len(results) else Message(MessageRole.TOOL, "")
        failure = None
        if failures and failures[0].tool_call_id == run.id and run.error is not None:
            failure = failures.pop(0)
        at = step.answered_at or step.completed_at
        if run.started_at is not None:
            at = min(step.completed_at, max(at, run.started_at + timedelta(milliseconds=run.duration_ms)))
        result = ToolResult(message.text, run.error, failure, run.changed_by)
        yield CallFinished(at, index=index, result=result, seconds=run.duration_ms / 1000)
