"""The judgement of a step: the transition with the evaluation of every criterion."""

from __future__ import annotations

from msgspec.structs import replace

from whyloop.values.continuation import (
    ContinuationDecision,
    ContinuationEvaluation,
    ContinuationOutcome,
    StopReason,
)
from whyloop.values.execution import AgentStatus
from whyloop.values.failure import ErrorHandlingDecision
from whyloop.values.messages import Message, MessageRole
from whyloop.values.scalars import Count
from whyloop.values.state import AgentState
from whyloop.values.step import Step
from whyloop.values.transitions import Transition

_IN_PROGRESS = AgentStatus.IN_PROGRESS
_DEVELOPER = MessageRole.DEVELOPER
_RETRY = ErrorHandlingDecision.RETRY


class Judged(Transition, frozen=True, tag="judged", kw_only=True):
    """The evaluations of all criteria; they settle `step`, or, between steps, none.

    If the run continues, the feedback of all criteria becomes one message to the model. If the run ends with
    a wrap-up, one more step follows, and another `Judged` ends the run.
    """

    outcome: ContinuationOutcome
    """All evaluations, and the outcome that they resolve to."""
    step: Count | None = None
    """The number of the step that this settles."""
    wraps_up: bool = False
    """True if a limit ended the run and its wrap-up follows."""

    def envelope_count(self) -> int:
        return (self.step is not None) + (not self.outcome.decision.continues and not self.wraps_up)

    def apply_to(self, state: AgentState) -> AgentState:
        outcome, steps, messages, execution = self.outcome, state.steps, state.messages, state.execution
        if state.open_step is None and execution.step_count and steps.last is not None:
            # The outcome of the last step says why the run ended, even if that was decided after it.
            step, later = steps.last, self.step is None and steps.last.outcome is not None
            after = execution.resumes if later else step.judged_after
            steps = steps.with_last(replace(step, outcome=outcome, judged_after=after))
        if outcome.decision.continues:
            status = _IN_PROGRESS
            if (feedback := feedback_of(outcome, steps.last)) is not None:
                messages = messages.appended(feedback)
        elif self.wraps_up:
            status, execution = _IN_PROGRESS, replace(execution, wrap_up=outcome.resolved_by)
        else:
            status = AgentStatus.after(outcome)
        return replace(
            state,
            status=status,
            steps=steps,
            messages=messages,
            last_continuation_outcome=outcome,
            execution=replace(execution, last_seq=execution.last_seq + self.envelope_count()),
        )


class JudgedAlike(Transition, frozen=True, tag="judged_alike", kw_only=True):
    """The stored form of `Judged`, with None for an evaluation that did not change.

    Most rules decide the same after every step. Leaving those out halves the stored size of a step, and the
    time to read it.
    """

    decision: ContinuationDecision
    resolved_by: str
    stop_reason: StopReason | None = None
    evaluations: tuple[ContinuationEvaluation | None, ...] = ()
    step: Count | None = None
    wraps_up: bool = False

    def envelope_count(self) -> int:
        return (self.step is not None) + (not self.decision.continues and not self.wraps_up)

    @staticmethod
    def can_follow(before: ContinuationOutcome, outcome: ContinuationOutcome) -> bool:
        """Return whether an outcome can be stored as the difference from another one."""
        return len(before.evaluations) == len(outcome.evaluations) and not outcome.partial

    @classmethod
    def of(cls, judged: Judged, before: ContinuationOutcome) -> JudgedAlike:
        """Return the difference from the previous outcome."""
        outcome = judged.outcome
        pairs = zip(outcome.evaluations, before.evaluations, strict=True)
        return cls(
            judged.at,
            decision=outcome.decision,
            resolved_by=outcome.resolved_by,
            stop_reason=outcome.stop_reason,
            evaluations=tuple([None if new is old else new for new, old in pairs]),
            step=judged.step,
            wraps_up=judged.wraps_up,
        )

    def judged(self, before: ContinuationOutcome | None) -> Judged:
        """Return the whole evaluation, given the previous outcome."""
        earlier = before.evaluations if before is not None else ()
        if len(earlier) != len(self.evaluations):
            raise ValueError("the outcome before it has other evaluations")
        pairs = zip(self.evaluations, earlier, strict=True)
        evaluations = tuple([old if new is None else new for new, old in pairs])
        outcome = ContinuationOutcome(self.decision, self.resolved_by, self.stop_reason, evaluations)
        return Judged(self.at, outcome=outcome, step=self.step, wraps_up=self.wraps_up)

    def apply_to(self, state: AgentState) -> AgentState:
        return self.judged(state.last_continuation_outcome).apply_to(state)


def feedback_of(outcome: ContinuationOutcome, step: Step | None) -> Message | None:
    """Return all feedback of a step as one message.

    A correction has a separate text for the model.
    """
    for evaluation in outcome.evaluations:
        if evaluation.feedback:
            break
    else:  # As after nearly every step.
        return None
    given = [evaluation for evaluation in outcome.evaluations if evaluation.feedback]
    text, source = "\n\n".join([e.feedback for e in given if e.feedback]), tuple([e.criterion for e in given])
    correction = step.failures[0].correction if step is not None and step.failures else None
    if correction is None or not correction.for_model:
        return Message(_DEVELOPER, text, source=source)
    texts = [correction.for_model if each.handling is _RETRY else each.feedback or "" for each in given]
    return Message(_DEVELOPER, "\n\n".join(texts), source=source, shown=text)
