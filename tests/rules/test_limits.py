"""Limits compare two numbers and return both, with a reason and the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from tests.support import after_step, at, session
from whyloop import (
    AgentState,
    ContinuationDecision,
    ContinuationEvaluation,
    CumulativeExecutionTimeLimit,
    ExecutionTimeLimit,
    Message,
    StepsLimit,
    StopReason,
    TokenUsageLimit,
)
from whyloop.values.transitions import Queried, Resumed, Waited

T = TypeVar("T")

FORBID = ContinuationDecision.FORBID_CONTINUATION
ALLOW = ContinuationDecision.ALLOW_CONTINUATION

LIMITS = [StepsLimit, TokenUsageLimit, ExecutionTimeLimit, CumulativeExecutionTimeLimit]
limits = pytest.mark.parametrize("limit", LIMITS)


def next_query(state: AgentState, now: float) -> AgentState:
    return Queried(at(now), execution_id="execution-2", message=Message.user("next")).apply_to(state)


def numbers(said: ContinuationEvaluation) -> tuple[Any, Any, Any]:
    return said.context["used"], said.context["limit"], said.context["remaining"]


CASES: list[tuple[Any, AgentState, AgentState, AgentState, StopReason, float]] = [
    (
        StepsLimit(3),
        session(steps=2),
        session(steps=3),
        session(steps=4),
        StopReason.STEPS_LIMIT_REACHED,
        1,
    ),
    (
        TokenUsageLimit(300),
        session(steps=1, tokens=299),
        session(steps=3, tokens=100),
        session(steps=1, tokens=400),
        StopReason.TOKEN_LIMIT_REACHED,
        100,
    ),
    (
        ExecutionTimeLimit(1.5),
        session(steps=1, seconds=1.25),
        session(steps=1, seconds=1.5),
        session(steps=2, seconds=1),
        StopReason.TIME_LIMIT_REACHED,
        0.5,
    ),
    (
        CumulativeExecutionTimeLimit(1.5),
        session(steps=1, seconds=1.25),
        session(steps=1, seconds=1.5),
        session(steps=2, seconds=1),
        StopReason.TIME_LIMIT_REACHED,
        0.5,
    ),
]
cases = pytest.mark.parametrize(
    ("limit", "below", "exactly", "above", "reason", "overshoot"), CASES, ids=lambda v: repr(v)[:30]
)


@cases
def test_below_its_limit_it_allows_with_the_rest_in_the_context(
    limit: Any,
    below: AgentState,
    exactly: AgentState,
    above: AgentState,
    reason: StopReason,
    overshoot: float,
) -> None:
    said = limit.explain(below)
    assert said.decision is ALLOW
    assert (said.stop_reason, said.exhausted) == (None, False)
    used, most, remaining = numbers(said)
    assert most == limit.limit
    assert 0 < used < most
    assert remaining == pytest.approx(most - used)


@cases
def test_at_its_limit_it_forbids_with_its_own_stop_reason(
    limit: Any,
    below: AgentState,
    exactly: AgentState,
    above: AgentState,
    reason: StopReason,
    overshoot: float,
) -> None:
    said = limit.explain(exactly)
    assert said.decision is FORBID
    assert said.stop_reason is reason
    assert said.criterion == type(limit).__name__
    assert said.exhausted
    assert numbers(said) == (limit.limit, limit.limit, 0)


@cases
def test_above_its_limit_it_forbids_with_nothing_left(
    limit: Any,
    below: AgentState,
    exactly: AgentState,
    above: AgentState,
    reason: StopReason,
    overshoot: float,
) -> None:
    said = limit.explain(above)
    assert said.decision is FORBID
    assert numbers(said) == (pytest.approx(limit.limit + overshoot), limit.limit, 0)


@cases
def test_decide_equals_explain(
    limit: Any,
    below: AgentState,
    exactly: AgentState,
    above: AgentState,
    reason: StopReason,
    overshoot: float,
) -> None:
    assert limit.decide(below) is ALLOW
    assert limit.decide(exactly) is FORBID


@cases
def test_the_reason_has_the_numbers(
    limit: Any,
    below: AgentState,
    exactly: AgentState,
    above: AgentState,
    reason: StopReason,
    overshoot: float,
) -> None:
    assert f"{limit.limit:g}" in limit.explain(below).reason
    assert f"{limit.limit:g}" in limit.explain(exactly).reason


@cases
def test_the_next_query_starts_from_zero(
    limit: Any,
    below: AgentState,
    exactly: AgentState,
    above: AgentState,
    reason: StopReason,
    overshoot: float,
) -> None:
    said = limit.explain(next_query(above, now=1000))
    assert said.decision is ALLOW
    assert said.context["used"] == 0


@pytest.mark.parametrize(
    ("limit", "used"),
    [
        (StepsLimit(2, scope="session"), 2),
        (TokenUsageLimit(20, scope="session"), 20),
        (ExecutionTimeLimit(10, scope="session"), 1000),
        (CumulativeExecutionTimeLimit(2, scope="session"), 2),
    ],
    ids=repr,
)
def test_a_limit_for_the_whole_session_counts_earlier_queries_too(limit: Any, used: float) -> None:
    said = limit.explain(next_query(session(steps=2, tokens=10, seconds=1), now=1000))
    assert said.decision is FORBID
    assert said.context["used"] == used
    assert "session" in said.reason


@limits
@pytest.mark.parametrize("bad", [0, -1, 0.0, -0.5, float("nan"), float("inf"), float("-inf"), True, False])
def test_a_limit_that_is_not_positive_is_a_value_error(limit: Callable[..., Any], bad: Any) -> None:
    with pytest.raises(ValueError, match=limit.__name__):
        limit(bad)


@limits
@pytest.mark.parametrize("bad", [None, "5", [5]])
def test_a_limit_that_is_not_a_number_is_a_value_error(limit: Callable[..., Any], bad: Any) -> None:
    with pytest.raises(ValueError, match="number"):
        limit(bad)


@pytest.mark.parametrize("limit", [StepsLimit, TokenUsageLimit])
def test_a_count_is_limited_by_a_whole_number(limit: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="whole number"):
        limit(2.5)


@limits
def test_an_unknown_scope_is_a_value_error(limit: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match=r"scope.*forever"):
        limit(5, scope="forever")


def test_a_subclass_keeps_what_the_limits_and_classes_above_it_explain() -> None:
    class Doubled(StepsLimit):
        def explain(self, state: AgentState) -> ContinuationEvaluation:
            return replace(super().explain(state), reason="twice")

    class Twice(Doubled): ...

    class Reason:
        def explain(self, state: AgentState) -> ContinuationEvaluation:
            return ContinuationEvaluation.from_decision("Reason", FORBID)

    class Mixed(Reason, StepsLimit): ...

    class Typed(StepsLimit, Generic[T]): ...

    state = AgentState()
    assert Twice(3).explain(state).reason == "twice"
    assert Mixed(3).explain(state).decision is FORBID
    assert Typed[int](3).explain(state).reason == "0 of 3 steps used"


def test_a_limit_counts_tokens_read_and_written() -> None:
    from msgspec.structs import replace

    from whyloop import Usage

    state = session(steps=1)
    state = replace(state, execution=replace(state.execution, usage=Usage(input=60, output=40)))
    assert TokenUsageLimit(100).explain(state).decision is FORBID


def test_the_wall_clock_limit_is_exact_below_a_second() -> None:
    limit = ExecutionTimeLimit(0.25)
    assert limit.explain(session(steps=1, seconds=0.249)).decision is ALLOW
    assert limit.explain(session(steps=1, seconds=0.25)).decision is FORBID


def test_the_wall_clock_limit_reads_recorded_times_only() -> None:
    state = after_step(next_query(session(steps=1, seconds=1), now=86_400), seconds=5, now=at(86_405))
    restored = AgentState.from_dict(state.to_dict())
    assert restored.execution_started_at is None
    for each, used in ((state, 5), (restored, 5), (restored.mark_execution_started(at(10**6)), 0)):
        said = ExecutionTimeLimit(50).explain(each)
        assert (said.decision, said.context["used"]) == (ALLOW, used)


def test_the_wall_clock_limit_counts_from_the_last_resume() -> None:
    state = session(steps=1, seconds=100)
    assert ExecutionTimeLimit(50).explain(state).decision is FORBID
    resumed = after_step(Resumed(at(3600)).apply_to(state), seconds=2, now=at(3602))
    assert ExecutionTimeLimit(50).explain(resumed).context["used"] == 2


def test_a_clock_that_was_set_back_has_used_nothing() -> None:
    state = after_step(next_query(session(steps=1, seconds=1), now=500), now=at(400))
    assert ExecutionTimeLimit(5).explain(state).context["used"] == 0


def test_time_that_was_spent_waiting_is_not_in_the_cumulative_limit() -> None:
    state = session(steps=1, seconds=5)
    for transition in (Resumed(at(3605)), Waited(at(3665), seconds=60)):
        state = transition.apply_to(state)
    said = CumulativeExecutionTimeLimit(6).explain(state)
    assert said.decision is ALLOW
    assert said.context["used"] == 5
    assert state.execution.waiting_seconds == 3600
    assert state.execution.backoff_seconds == 60


@given(st.integers(1, 50), st.integers(0, 60))
def test_used_and_remaining_add_up_to_the_limit_until_it_is_reached(most: int, used: int) -> None:
    said = StepsLimit(most).explain(session(steps=used))
    assert said.context == {"used": used, "limit": most, "remaining": max(0, most - used)}
    assert (said.decision is FORBID) is (used >= most)
