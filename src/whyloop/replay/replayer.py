"""Replay a recorded execution under other rules.

The functions of the live loop apply the recorded transitions, and only the evaluations differ. Where a
decision was recorded, the rules decide again. Where one of their deadlines passes, the work in progress ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import islice

from msgspec.structs import replace

from whyloop.loop.calls import unfinished_calls
from whyloop.loop.interruptions import JUST_AFTER
from whyloop.replay.earlier import POLICY, Evaluate, earlier_end, without_ends
from whyloop.replay.reconstruction import JudgedLater, Lacking, Paused, RecordedExecution
from whyloop.replay.result import ExecutionReplay
from whyloop.rules.criteria import ContinuationCriteria, leaves_work
from whyloop.rules.criterion import Criterion, criterion_name
from whyloop.values.continuation import ContinuationDecision, ContinuationOutcome, StopReason
from whyloop.values.failure import ErrorHandlingDecision, Failure
from whyloop.values.judgement import Judged
from whyloop.values.model import ModelAttempt, ModelSource, Usage
from whyloop.values.state import AgentState
from whyloop.values.step import Interruption
from whyloop.values.step_transitions import (
    Answered,
    CallFinished,
    Closed,
    Decided,
    Left,
    ModelFailed,
    Reopened,
)
from whyloop.values.transitions import (
    Begun,
    Forked,
    Recovered,
    Resumed,
    RetryPlanned,
    StopRequested,
    Transition,
    Waited,
)

_FORBID = ContinuationDecision.FORBID_CONTINUATION
_RETRY = ErrorHandlingDecision.RETRY
_OUT_OF_TIME = Interruption.OUT_OF_TIME
_UNKNOWN_USAGE = Usage(reported=False)

# The transitions after which a process works, and those that it records without any work.
_WORK = (Answered, ModelFailed, Reopened, CallFinished, Closed)
# A stop that is requested before any work is that of a query that supersedes the run.
_WORK_OR_NOT = (*_WORK, Judged, Left, Decided, Resumed, Recovered, StopRequested)

# Rules whose decision about a step stays the same if the step is interrupted. The first always decides the
# same; the others do if the model had answered before.
_COUNTS_STEPS = frozenset({"StepsLimit"})
_KNOW_THE_ANSWER = frozenset({"StepsLimit", "TokenUsageLimit", "CostLimit", "FinishReasonCheck"})


def works_after(transitions: Sequence[Transition], index: int) -> bool:
    """Return whether a process worked on a step after this first transition."""
    rest = islice(transitions, index + 1, None)
    return isinstance(next((each for each in rest if isinstance(each, _WORK_OR_NOT)), None), _WORK)


class Replayer:
    """A replay of one execution under other rules.

    Args:
        execution: The recorded execution.
        rules: The rules, whose limits and deadlines may end it where no decision was recorded.
        evaluate: The decision of these rules at the end of a step.
        grants: False to leave out what people granted on top of the limits.
    """

    def __init__(
        self, execution: RecordedExecution, rules: ContinuationCriteria, evaluate: Evaluate, grants: bool
    ) -> None:
        self.execution, self.rules, self.evaluate, self.grants = execution, rules, evaluate, grants
        self.has_policy = any(criterion_name(rule) == POLICY for rule in rules.criteria)
        self.state, self.index = execution.before, 0
        self.assumed_from: int | None = None
        self.beyond = False
        self.missing: str | None = None
        # The step in progress: when work on it began, and the active seconds that are counted since.
        self.begun_at: datetime | None = None
        self.counted = 0.0
        # The recorded outcome of a step that is cut off, and its failures.
        self._settled: ContinuationOutcome | None = None
        self._settled_failures: tuple[Failure, ...] = ()

    def replay(self) -> ExecutionReplay:
        """Apply every transition up to the end of the execution."""
        for index, transition in enumerate(self.execution.transitions):
            self.index = index
            if self._ends_with(transition):
                break
        outcome, wrapped_up = self.state.last_continuation_outcome, self.execution.after.execution.wrap_up
        if wrapped_up and not self.state.execution.wrap_up and outcome and leaves_work(self.state, outcome):
            self._assume()  # It would have wrapped up here, but that answer is not recorded.
        has_ended = self.state.status.has_ended or (outcome is not None and outcome.pauses)
        return ExecutionReplay(
            state=self.state,
            recorded=self.execution.after,
            assumed_from=self.assumed_from,
            beyond=self.beyond or not has_ended,
            missing=self.missing,
        )

    def _rest(self) -> Iterator[Transition]:
        """Yield the recorded transitions after this one."""
        return islice(self.execution.transitions, self.index + 1, None)

    def _ends_with(self, transition: Transition) -> bool:
        """Apply a transition, or what happens instead; return whether the execution ends."""
        match transition:
            case Judged():
                return self._judge(transition)
            case Lacking():
                return self._lacks(transition.text)
            case Resumed() if not self.grants:
                self._apply(replace(transition, grant=None))
            case Begun() | Recovered() | Reopened():
                self._apply(transition)
                self.begun_at, self.counted = transition.at, 0.0
                return not isinstance(transition, Reopened) and self._is_exhausted(transition)
            case Decided() | Forked():
                self._apply(transition)
                self.begun_at = None  # Nobody works on it, however late that is.
            case Answered() | ModelFailed():
                return self._answer(transition)
            case CallFinished() | Left() | Closed():
                return self._work_on_calls(transition)
            case RetryPlanned():
                self._plan_retry(transition)
            case Waited():
                return self._wait(transition)
            case _:
                self._apply(transition)
        return False

    def _answer(self, transition: Answered | ModelFailed) -> bool:
        """Apply an answer or its failure; return whether a deadline ends the run before it."""
        started_at, source = transition.started_at, transition.source
        deadline = self._deadline(started_at, 0.0, transition.at, source)
        if deadline is not None:
            return self._cut_off_answer(transition, deadline)
        self._apply(transition)
        waited = 0.0 if source is None else source.waited
        self.begun_at, self.counted = started_at, transition.seconds + waited
        return False

    def _work_on_calls(self, transition: CallFinished | Left | Closed) -> bool:
        """Apply the progress of calls; return whether a deadline ends the run."""
        opened, begun_at, deadline = self.state.open_step, self.begun_at, None
        if opened is not None and not opened.is_done and begun_at is not None:
            deadline = self._deadline(begun_at, self.counted, transition.at)
        if deadline is not None and begun_at is not None:
            return self._cut_off_calls(begun_at, deadline)
        self._apply(transition)
        if isinstance(transition, Left):
            self.begun_at = None  # A denial during the pause is not work, however late it comes.
        return False

    def _apply(self, transition: Transition) -> None:
        self.state = transition.apply_to(self.state)

    # Decisions

    def _judge(self, recorded: Judged) -> bool:
        """Decide again where a decision was recorded; return whether the execution ends."""
        if isinstance(recorded, JudgedLater):
            ends = self._judge_later(recorded)
            if ends is not None or isinstance(recorded, Paused):
                return bool(ends)
        if recorded.outcome.partial:  # Nobody can ask the other rules.
            self._apply(recorded)
            return False
        outcome = self.evaluate(self.state, recorded.outcome)
        if recorded.step is not None and self._was_cut_off_by_replaced_rule(recorded.outcome, outcome):
            self.beyond = True
            return True
        if recorded.wraps_up:
            return self._wrap_up(recorded, outcome)
        self._apply(replace(recorded, outcome=outcome))
        before, continues = recorded.outcome, outcome.decision.continues
        if before.decision.continues and continues:
            if _feedback(before) != _feedback(outcome) or self._retries_differ(before, outcome):
                self._assume()
            return False
        ends = not continues and not outcome.pauses
        if before.decision.continues or (before.pauses and ends):
            return True  # It ends or waits here, and the recording continued.
        if ends or (outcome.pauses and before.pauses):
            return False  # As recorded: a person may have resumed it.
        if any(isinstance(each, Answered | ModelFailed) for each in self._rest()):
            self._assume()  # It would have continued by itself, and was resumed by a person.
            return False
        self.beyond = True
        return True

    def _lacks(self, text: str) -> bool:
        """End where the recording lacks what happened, and say so."""
        self.beyond, self.missing = True, f"the state lacks how {text}: judge the journal of the session"
        return True

    def _judge_later(self, recorded: JudgedLater) -> bool | None:
        """Decide again about a step whose outcome was replaced later; return whether the execution ends.

        The run had gone on or paused after the step. None if that is how these rules decide too.
        """
        end = earlier_end(self.rules, self.evaluate, self.state, recorded, list(self._rest()))
        if isinstance(end, str):
            return self._lacks(end)
        if end is not None:
            self._apply(Judged(recorded.at, outcome=end, step=recorded.step))
        return end is not None or None

    def _wrap_up(self, recorded: Judged, outcome: ContinuationOutcome) -> bool:
        """Decide again where a wrap-up began; it follows if limits still end the run here."""
        wraps_up = leaves_work(self.state, outcome)
        self._apply(replace(recorded, outcome=outcome, wraps_up=wraps_up))
        self.beyond = outcome.decision.continues
        return not wraps_up

    def _was_cut_off_by_replaced_rule(self, before: ContinuationOutcome, now: ContinuationOutcome) -> bool:
        """Return whether a deadline cut the step off that the new rules do not have."""
        step = self.state.latest_step()
        if step is None or step.interrupted is not _OUT_OF_TIME:
            return False
        for evaluation in now.evaluations:
            if evaluation.decision is _FORBID and evaluation.stop_reason is StopReason.TIME_LIMIT_REACHED:
                return False
        kept = [evaluation for evaluation in now.evaluations if evaluation.decision is _FORBID]
        forbade = [evaluation for evaluation in before.evaluations if evaluation.decision is _FORBID]
        return any(evaluation not in kept for evaluation in forbade)

    def _retries_differ(self, before: ContinuationOutcome, now: ContinuationOutcome) -> bool:
        """Return whether the wait before the next model call would have been different."""
        step, failures = self.state.current_step, self.state.execution.failures
        if step is None or step.model_failure is None:
            return False
        if (before.handling is _RETRY) != (now.handling is _RETRY):
            return True
        planned = next(self._rest(), None)
        return isinstance(planned, RetryPlanned) and planned.attempt != failures.consecutive

    def _plan_retry(self, recorded: RetryPlanned) -> None:
        outcome, execution = self.state.last_continuation_outcome, self.state.execution
        if outcome is None or outcome.handling is not _RETRY:
            return
        step = self.state.current_step
        is_free = step is not None and bool(step.failures) and step.failures[0].is_free
        if self.has_policy and not is_free:
            attempt, most = execution.failures.consecutive, self.rules.max_retries
            recorded = replace(recorded, attempt=attempt, max_retries=most)
        self._apply(recorded)

    def _assume(self) -> None:
        """Mark everything from the next step on as assumed."""
        if self.assumed_from is None:
            self.assumed_from = self.state.execution.next_step_number()

    def _end(self, at: datetime, number: int | None, kept: ContinuationOutcome | None) -> bool:
        """Decide where no decision was recorded.

        `kept` has the known evaluations of all other rules.
        """
        outcome = self.evaluate(self.state, kept, whole=True)
        self._apply(Judged(at, outcome=outcome, step=number))
        return True

    def _end_between_steps(self, at: datetime) -> bool:
        """End before the next step.

        All other rules decide as they did after the last one, except that a person has overruled an end.
        """
        last = self.state.current_step
        outcome = last.outcome if last is not None else None
        return self._end(at, None, outcome and without_ends(outcome))

    def _end_cut_off(self, at: datetime, number: int | None, unaffected: frozenset[str]) -> bool:
        """End with an interrupted step.

        Of the other rules, those that it does not affect are known.
        """
        settled, step = self._settled, self.state.current_step
        if number is not None and step is not None and step.failures and not self.has_policy:
            if step.failures[:1] == self._settled_failures[:1]:
                unaffected |= {POLICY}  # It decides by the first failure, and that came before the deadline.
            elif self.assumed_from is None:
                self.assumed_from = number  # The policy of the run might have stopped it for another failure.
        if settled is not None:
            known = [each for each in settled.evaluations if each.criterion in unaffected]
            settled = replace(settled, evaluations=tuple(known))
        return self._end(at, number, settled)

    # Limits that end a run between two decisions

    def _is_exhausted(self, begun: Transition) -> bool:
        """End a leg before its first step if a limit is exhausted."""
        if self.state.execution.wrap_up is not None or not self.rules.exhausted(self.state):
            return False
        if not works_after(self.execution.transitions, self.index):
            return False  # It ended here already, which is judged again, or its process did nothing.
        return self._end_between_steps(begun.at)

    def _deadline(
        self, started_at: datetime, counted: float, at: datetime, source: ModelSource | None = None
    ) -> datetime | None:
        """Return the rules' deadline if it has passed and the recording's has not.

        The `source` of an answer has the waits before it, during which no active time passed.
        """
        earliest = self.rules.deadline(self.state, started_at, counted)
        if earliest is None or earliest >= at or self.state.execution.wrap_up is not None:
            return None  # A wrap-up has time of its own.
        state, settled = self.state, None
        for transition in islice(self.execution.transitions, self.index, None):
            if isinstance(transition, Judged):
                settled = transition.outcome
                break
            state = transition.apply_to(state)
        self._settled = settled
        self._settled_failures = state.current_step.failures if state.current_step is not None else ()
        over = []
        for rule in [each for each in self.rules.criteria if isinstance(each, Criterion)]:
            deadline = self._deadline_of(rule, started_at, counted, source)
            if deadline is not None and deadline < at and not _decided_so(settled, rule, state):
                over.append(deadline)
        return min(over, default=None)

    def _deadline_of(
        self, rule: Criterion, started_at: datetime, counted: float, source: ModelSource | None
    ) -> datetime | None:
        """Return the deadline of one rule, after the waits that began before it."""
        deadline = rule.deadline(self.state, started_at, counted)
        begins = started_at
        for attempt in () if source is None else source.attempts:
            begins += timedelta(seconds=attempt.seconds)
            if deadline is None or deadline <= begins:
                break
            begins += timedelta(seconds=attempt.waited)
            counted += attempt.waited
            deadline = rule.deadline(self.state, started_at, counted)
        return deadline

    def _cut_off_answer(self, recorded: Answered | ModelFailed, deadline: datetime) -> bool:
        """Interrupt the model call at the deadline.

        Its text and usage so far are unknown.
        """
        at = max(recorded.started_at, deadline + JUST_AFTER)
        passed, source = (at - recorded.started_at).total_seconds(), recorded.source
        within = () if source is None else _attempts_within(source.attempts, passed)
        source = ModelSource(attempts=within) if within else None
        passed -= 0.0 if source is None else source.waited
        self._apply(
            Answered(
                at,
                started_at=recorded.started_at,
                usage=_UNKNOWN_USAGE,
                source=source,
                seconds=max(0.0, passed),
                interrupted=_OUT_OF_TIME,
                request=recorded.request,
            )
        )
        return self._close(at, 0.0, _COUNTS_STEPS)

    def _cut_off_calls(self, begun_at: datetime, deadline: datetime) -> bool:
        """Interrupt the calls that run at the deadline; others keep their results."""
        at = max(begun_at, deadline + JUST_AFTER)
        opened = self.state.open_step
        assert opened is not None
        stays_open = opened.stays_open(_OUT_OF_TIME)
        for result in unfinished_calls(opened, at, _OUT_OF_TIME, (), waiting=not stays_open):
            self._apply(result)
        seconds = max(0.0, (at - begun_at).total_seconds() - self.counted)
        if stays_open:
            self._apply(Left(at, seconds=seconds))
            return self._end_cut_off(at, None, _KNOW_THE_ANSWER)
        return self._close(at, seconds, _KNOW_THE_ANSWER)

    def _close(self, at: datetime, seconds: float, unaffected: frozenset[str]) -> bool:
        self._apply(Closed(at, seconds=seconds, interrupted=_OUT_OF_TIME))
        return self._end_cut_off(at, self.state.execution.step_number, unaffected)

    def _wait(self, recorded: Waited) -> bool:
        """Wait for a provider, unless a deadline ends the wait."""
        execution = self.state.execution
        until = execution.wait_until or recorded.at
        deadline = self._deadline(until, 0.0, min(until, recorded.at) + JUST_AFTER)
        if deadline is None:
            self._apply(recorded)
            return False
        at = deadline + JUST_AFTER
        unused = max(timedelta(0), recorded.at - at).total_seconds()
        self._apply(Waited(at, seconds=max(0.0, recorded.seconds - unused)))
        return self._end_between_steps(at)


def _attempts_within(attempts: Sequence[ModelAttempt], seconds: float) -> tuple[ModelAttempt, ...]:
    """Return the attempts that failed within these seconds, and the part of their waits."""
    within = []
    for attempt in attempts:
        seconds -= attempt.seconds
        if seconds <= 0.0:
            break
        within.append(replace(attempt, waited=min(attempt.waited, seconds)))
        seconds -= attempt.waited
    return tuple(within)


def _decided_so(recorded: ContinuationOutcome | None, rule: Criterion, state: AgentState) -> bool:
    """Return whether the recording has this evaluation, and so this deadline."""
    if recorded is None:
        return False
    new = rule.explain(state)
    return any(
        (old.criterion, old.decision, old.reason) == (new.criterion, new.decision, new.reason)
        for old in recorded.evaluations
    )


def _feedback(outcome: ContinuationOutcome) -> list[str]:
    return [evaluation.feedback for evaluation in outcome.evaluations if evaluation.feedback]
