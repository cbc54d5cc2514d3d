"""The earlier decision of a step, which a later one replaced.

A state only has the evaluations of the later one. A rule that decides there as the recorded one did is taken
for the same rule, so it decided the same before.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import takewhile
from typing import Protocol

from msgspec.structs import replace

from whyloop.replay.reconstruction import JudgedLater, Paused
from whyloop.rules.criteria import ContinuationCriteria
from whyloop.rules.criterion import criterion_name
from whyloop.values.continuation import ContinuationDecision, ContinuationEvaluation, ContinuationOutcome
from whyloop.values.judgement import Judged
from whyloop.values.state import AgentState
from whyloop.values.transitions import Transition, apply

POLICY = "ErrorPolicyCriterion"
_FORBID = ContinuationDecision.FORBID_CONTINUATION


class Evaluate(Protocol):
    """Evaluate the rules on a state, together with the recorded evaluations of all others."""

    def __call__(
        self, state: AgentState, recorded: ContinuationOutcome | None, *, whole: bool = False
    ) -> ContinuationOutcome:
        """Return the outcome; `whole` to evaluate the checks that every agent has again."""


def earlier_end(
    rules: ContinuationCriteria,
    evaluate: Evaluate,
    state: AgentState,
    recorded: JudgedLater,
    rest: Sequence[Transition],
) -> ContinuationOutcome | str | None:
    """Return the outcome with which other rules would have ended the run at the earlier decision.

    None if they go on or pause there, as the recorded ones did; a text about what is unknown, if anything is.

    Args:
        rules: The rules that replace the recorded ones.
        evaluate: Their decision.
        state: The state at the earlier decision.
        recorded: The later decision.
        rest: The transitions after the earlier one.
    """
    number = state.execution.next_step_number() - (state.open_step is None)
    if _has_failures(state) and any(criterion_name(rule) == POLICY for rule in rules.criteria):
        return f"a failure of step {number} was handled"
    running = replace(state, execution=replace(state.execution, stop_request=None, question=None))
    outcome = evaluate(running, without_ends(recorded.outcome), whole=True)
    ends = outcome.decision is _FORBID and not outcome.pauses
    new = _new_evaluations(rules, state, recorded, rest)
    overrules = _may_overrule_an_end(state, recorded.outcome, new)
    if state.open_step is not None:  # It had paused, or ended by the same rule and was continued.
        return f"it was decided in the middle of step {number}" if ends or overrules else None
    if recorded.wraps_up:  # That may have begun after a wait.
        return f"it was first decided after step {number}" if overrules else None
    wrapped_up = _may_have_wrapped_up(recorded)
    if (wrapped_up and new) or (_forbids(outcome.evaluations) and outcome.decision is not _FORBID):
        return f"it was first decided after step {number}"  # What made it go on is unknown.
    return outcome if ends and not wrapped_up else None


def without_ends(recorded: ContinuationOutcome) -> ContinuationOutcome:
    """Return a recorded outcome without the rules that forbade, since the run continued."""
    kept = [each for each in recorded.evaluations if each.decision is not _FORBID]
    return replace(recorded, evaluations=tuple(kept))


def _has_failures(state: AgentState) -> bool:
    """Return whether the error policy had a failure of the step to decide about."""
    step, opened = state.current_step, state.open_step
    if opened is not None:
        return any(call.result is not None and call.result.failure for call in opened.calls)
    return step is not None and bool(step.failures)


def _new_evaluations(
    rules: ContinuationCriteria, state: AgentState, recorded: JudgedLater, rest: Sequence[Transition]
) -> list[ContinuationEvaluation]:
    """Return the evaluations at the later decision that differ from the recorded ones."""
    if isinstance(recorded, Paused):  # The step was closed in between.
        state = reduce(apply, takewhile(lambda each: not isinstance(each, Judged), rest), state)
    known = {(each.criterion, each.decision, each.reason) for each in recorded.outcome.evaluations}
    evaluations = rules.evaluate(state).evaluations
    return [each for each in evaluations if (each.criterion, each.decision, each.reason) not in known]


def _may_overrule_an_end(
    state: AgentState, recorded: ContinuationOutcome, new: Sequence[ContinuationEvaluation]
) -> bool:
    """Return whether a rule that is replaced may have ended the run, and the new one does not."""
    if recorded.partial:  # It does not say which rules the agent had.
        return bool(new)
    replaced = {each.criterion for each in new}
    old = [each for each in recorded.evaluations if each.criterion in replaced]
    step, granted = state.current_step, state.execution.granted
    was_granted = granted != (None if step is None else step.granted)
    return bool(old) if was_granted else _forbids(old)


def _may_have_wrapped_up(recorded: JudgedLater) -> bool:
    """Return whether a wrap-up may have begun before the later decision."""
    forbade = [each for each in recorded.outcome.evaluations if each.decision is _FORBID]
    by_limits = bool(forbade) and all(each.exhausted for each in forbade)
    return recorded.forgot_wrap_up and (by_limits or recorded.outcome.partial)


def _forbids(evaluations: Sequence[ContinuationEvaluation]) -> bool:
    return any(each.decision is _FORBID for each in evaluations)
