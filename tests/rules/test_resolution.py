"""Resolution: order does not matter, forbid wins, and every evaluation is kept."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, strategies as st

from tests.support import session
from whyloop import (
    AgentState,
    ContinuationCriteria,
    ContinuationDecision,
    ContinuationEvaluation,
    ContinuationOutcome,
    StopReason,
)

FORBID = ContinuationDecision.FORBID_CONTINUATION
REQUEST = ContinuationDecision.REQUEST_CONTINUATION
STOP = ContinuationDecision.ALLOW_STOP
ALLOW = ContinuationDecision.ALLOW_CONTINUATION


class Says:
    """A criterion that gives one fixed evaluation."""

    def __init__(self, evaluation: ContinuationEvaluation) -> None:
        self.evaluation = evaluation

    def explain(self, state: AgentState) -> ContinuationEvaluation:
        return self.evaluation


evaluations = st.lists(
    st.builds(
        ContinuationEvaluation,
        criterion=st.text(alphabet="abcdefgh", min_size=1, max_size=8),
        decision=st.sampled_from(ContinuationDecision),
        reason=st.text(max_size=20),
        context=st.dictionaries(st.text(max_size=5), st.integers(-5, 5), max_size=3),
        stop_reason=st.none() | st.sampled_from(StopReason),
    ),
    max_size=8,
)


def resolved(given_evaluations: list[ContinuationEvaluation]) -> ContinuationOutcome:
    return ContinuationCriteria(*(Says(e) for e in given_evaluations)).evaluate(session())


@given(evaluations, st.randoms(use_true_random=False))
def test_the_order_of_the_criteria_does_not_change_the_decision(
    said: list[ContinuationEvaluation], random: Random
) -> None:
    shuffled = list(said)
    random.shuffle(shuffled)
    first, second = resolved(said), resolved(shuffled)
    assert first.decision is second.decision
    assert first.should_continue is second.should_continue


@given(evaluations, st.integers(0, 8))
def test_one_forbid_wins_over_everything_else(said: list[ContinuationEvaluation], place: int) -> None:
    said.insert(place, ContinuationEvaluation("Guard", FORBID, "no"))
    outcome = resolved(said)
    assert outcome.decision is FORBID
    assert not outcome.should_continue
    assert outcome.forbidding_criterion() == next(e.criterion for e in said if e.decision is FORBID)


@given(evaluations)
def test_the_trace_has_every_evaluation_in_the_order_of_the_criteria(
    said: list[ContinuationEvaluation],
) -> None:
    assert list(resolved(said).evaluations) == said


@given(evaluations)
def test_the_strongest_tier_decides_and_its_first_criterion_resolves(
    said: list[ContinuationEvaluation],
) -> None:
    outcome = resolved(said)
    present = {e.decision for e in said}
    expected = next((tier for tier in (FORBID, REQUEST, STOP, ALLOW) if tier in present), STOP)
    assert outcome.decision is expected
    assert outcome.should_continue is (expected in (REQUEST, ALLOW))
    winners = [e for e in said if e.decision is expected]
    assert outcome.resolved_by == (winners[0].criterion if winners else "ContinuationCriteria")


@given(evaluations)
def test_a_stop_reason_is_there_exactly_when_the_run_stops(said: list[ContinuationEvaluation]) -> None:
    outcome = resolved(said)
    assert (outcome.stop_reason is None) is outcome.should_continue


@given(evaluations)
def test_the_stop_reason_is_the_one_that_the_deciding_evaluation_carries(
    said: list[ContinuationEvaluation],
) -> None:
    outcome = resolved(said)
    if outcome.should_continue or not said:
        return
    winner = next(e for e in said if e.decision is outcome.decision)
    default = StopReason.GUARD_FORBADE if outcome.decision is FORBID else StopReason.COMPLETED
    assert outcome.stop_reason is (winner.stop_reason or default)


@given(evaluations)
def test_an_outcome_survives_a_round_trip(said: list[ContinuationEvaluation]) -> None:
    outcome = resolved(said)
    assert ContinuationOutcome.from_dict(outcome.to_dict()) == outcome


@given(evaluations)
def test_can_continue_and_decide_equal_evaluate(said: list[ContinuationEvaluation]) -> None:
    criteria = ContinuationCriteria(*(Says(e) for e in said))
    outcome = criteria.evaluate(session())
    assert criteria.can_continue(session()) is outcome.should_continue
    assert criteria.decide(session()) is outcome.decision


def test_without_criteria_the_run_is_completed_without_evaluations() -> None:
    outcome = ContinuationCriteria().evaluate(session())
    assert outcome.decision is STOP
    assert outcome.stop_reason is StopReason.COMPLETED
    assert outcome.evaluations == ()
    assert outcome.resolved_by == "ContinuationCriteria"
    assert "no criteria" in outcome.explain()


def test_only_allowances_mean_going_on() -> None:
    outcome = resolved(
        [ContinuationEvaluation("A", ALLOW, "fine"), ContinuationEvaluation("B", ALLOW, "fine")]
    )
    assert outcome.should_continue
    assert outcome.resolved_by == "A"


def test_a_guard_that_names_no_reason_gives_guard() -> None:
    outcome = resolved([ContinuationEvaluation("Budget", FORBID, "the budget is spent")])
    assert outcome.stop_reason is StopReason.GUARD_FORBADE
    assert outcome.resolved_by == "Budget"


def test_a_guard_may_name_its_stop_reason() -> None:
    said = ContinuationEvaluation("Budget", FORBID, "spent", stop_reason=StopReason.TOKEN_LIMIT_REACHED)
    assert resolved([said]).stop_reason is StopReason.TOKEN_LIMIT_REACHED


# The two refinements


def a_limit(*, exhausted: bool = True, pauses: bool = False) -> ContinuationEvaluation:
    reason = None if pauses else StopReason.STEPS_LIMIT_REACHED
    return ContinuationEvaluation(
        "Limit", FORBID, "no", stop_reason=reason, exhausted=exhausted, pauses=pauses
    )


LIMIT, PAUSE = a_limit(), a_limit(exhausted=False, pauses=True)
GUARD = ContinuationEvaluation("Guard", FORBID, "no")
ENDED, FAILED = (
    ContinuationEvaluation("Driver", STOP, "done"),
    ContinuationEvaluation("Driver", STOP, "no answer", stop_reason=StopReason.ERROR_FORBADE),
)
WANTED, FINE = (
    ContinuationEvaluation("Driver", REQUEST, "more"),
    ContinuationEvaluation("Other", ALLOW, "fine"),
)


@pytest.mark.parametrize(
    ("said", "interrupted", "stop_reason", "resolved_by"),
    [
        ((LIMIT, ENDED), False, "completed", "Driver"),
        ((ENDED, FINE, LIMIT, LIMIT), False, "completed", "Driver"),
        ((LIMIT, FAILED), False, "error", "Driver"),
        ((LIMIT, ENDED), True, "steps_limit", "Limit"),
        ((LIMIT, ENDED, WANTED), False, "steps_limit", "Limit"),
        ((LIMIT, FINE), False, "steps_limit", "Limit"),
        ((LIMIT, GUARD, ENDED), False, "steps_limit", "Limit"),
        ((GUARD, LIMIT, ENDED), False, "guard", "Guard"),
        ((a_limit(exhausted=False), ENDED), False, "steps_limit", "Limit"),
        ((PAUSE, ENDED), False, None, "Limit"),
        ((PAUSE, WANTED, FINE), False, None, "Limit"),
        ((PAUSE, GUARD, WANTED), False, "guard", "Guard"),
        ((PAUSE, LIMIT, WANTED), False, "steps_limit", "Limit"),
    ],
)
def test_a_natural_end_and_a_pause(
    said: tuple[ContinuationEvaluation, ...], interrupted: bool, stop_reason: str | None, resolved_by: str
) -> None:
    outcome = ContinuationOutcome.from_evaluations(said, interrupted=interrupted)
    assert not outcome.should_continue
    assert (outcome.stop_reason, outcome.resolved_by) == (stop_reason, resolved_by)
    assert outcome.pauses is (stop_reason is None)


every_kind = st.lists(st.sampled_from([LIMIT, PAUSE, GUARD, ENDED, FAILED, WANTED, FINE]), max_size=6)


@given(every_kind, st.booleans(), st.randoms(use_true_random=False))
def test_the_refinements_do_not_depend_on_the_order_either(
    said: list[ContinuationEvaluation], interrupted: bool, random: Random
) -> None:
    shuffled = list(said)
    random.shuffle(shuffled)
    first, second = (
        ContinuationOutcome.from_evaluations(each, interrupted=interrupted) for each in (said, shuffled)
    )
    assert (first.decision, first.pauses) == (second.decision, second.pauses)


@given(every_kind, st.booleans())
def test_the_outcome_follows_the_contract(said: list[ContinuationEvaluation], interrupted: bool) -> None:
    outcome = ContinuationOutcome.from_evaluations(said, interrupted=interrupted)
    tiers = {tier: [e for e in said if e.decision is tier] for tier in (FORBID, REQUEST, STOP, ALLOW)}
    natural = all(e.exhausted for e in tiers[FORBID]) and not tiers[REQUEST] and tiers[STOP]
    if tiers[FORBID] and not (natural and not interrupted):
        final = [e for e in tiers[FORBID] if not e.pauses]
        assert outcome.decision is FORBID
        assert outcome.pauses is not bool(final)
        assert outcome.resolved_by == (final or tiers[FORBID])[0].criterion
    elif tiers[REQUEST]:
        assert (outcome.decision, outcome.stop_reason) == (REQUEST, None)
    elif tiers[STOP]:
        assert (outcome.decision, outcome.resolved_by) == (STOP, "Driver")
        assert outcome.stop_reason is (tiers[STOP][0].stop_reason or StopReason.COMPLETED)
    else:
        assert outcome.decision is (ALLOW if tiers[ALLOW] else STOP)
