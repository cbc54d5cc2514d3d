"""The wait before a failed model call is made again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from whyloop import Backoff

PLAIN = Backoff(base=1, factor=2, cap=60, jitter=0)


def test_each_failure_in_a_row_doubles_the_wait_up_to_the_cap() -> None:
    waits = [PLAIN.delay(failures, 0.5) for failures in range(1, 9)]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_jitter_takes_away_at_most_its_share_and_never_adds(failures: int, randomness: float) -> None:
    backoff = Backoff(base=1, factor=2, cap=60, jitter=0.25)
    full = PLAIN.delay(failures, 0)
    assert full * 0.75 <= backoff.delay(failures, randomness) <= full


def test_jitter_spreads_the_waits() -> None:
    backoff = Backoff(jitter=0.5)
    assert backoff.delay(1, 0.0) != backoff.delay(1, 1.0)


@given(st.floats(0, 1000), st.integers(1, 50), st.floats(0, 1))
def test_a_providers_wish_is_honoured_up_to_the_cap(wish: float, failures: int, randomness: float) -> None:
    assert Backoff(cap=60).delay(failures, randomness, wish) == min(wish, 60)


@pytest.mark.parametrize("wish", [float("nan"), -1.0])
def test_a_wish_that_makes_no_sense_is_passed_over(wish: float) -> None:
    assert PLAIN.delay(3, 0, wish) == PLAIN.delay(3, 0)


def test_an_infinite_retry_after_is_cut_at_the_cap() -> None:
    assert PLAIN.delay(1, 0, float("inf")) == 60


@pytest.mark.parametrize(
    "bad",
    [
        {"base": 0},
        {"base": -1},
        {"base": 61},
        {"factor": 0.5},
        {"cap": float("inf")},
        {"cap": float("nan")},
        {"jitter": -0.1},
        {"jitter": 1.1},
        {"jitter": float("nan")},
        {"base": float("nan")},
        {"factor": float("nan")},
    ],
    ids=str,
)
def test_a_backoff_that_cannot_work_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="Backoff"):
        Backoff(**bad)
