"""A clock that stands still until a test moves it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta, timezone

import pytest

from whyloop.loop.world import Clock
from whyloop.testing import FakeClock


def test_it_is_a_clock() -> None:
    assert isinstance(FakeClock(), Clock)


def test_the_clock_stands_still() -> None:
    clock = FakeClock()
    assert clock.now() == clock.now()
    assert clock.monotonic() == clock.monotonic() == 0


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (datetime(2026, 1, 16, tzinfo=UTC), datetime(2026, 1, 16, tzinfo=UTC)),
        (datetime(2026, 1, 16), datetime(2026, 1, 16, tzinfo=UTC)),  # noqa: DTZ001
        (0, datetime(1970, 1, 1, tzinfo=UTC)),
        (1.5, datetime(1970, 1, 1, 0, 0, 1, 500000, tzinfo=UTC)),
    ],
)
def test_it_starts_at_the_given_time(start: datetime | float, expected: datetime) -> None:
    assert FakeClock(start=start).now() == expected


def test_a_start_in_another_time_zone_is_the_same_moment() -> None:
    start = datetime(2026, 1, 16, 12, tzinfo=timezone(timedelta(hours=2)))
    assert FakeClock(start=start).now() == datetime(2026, 1, 16, 10, tzinfo=UTC)


def test_advance_moves_both_of_its_hands() -> None:
    clock = FakeClock()
    before = clock.now()
    clock.advance(90.5)
    assert clock.now() - before == timedelta(seconds=90.5)
    assert clock.monotonic() == 90.5


async def test_sleep_returns_at_once_and_moves_it() -> None:
    clock = FakeClock()
    async with asyncio.timeout(1):
        await clock.sleep(3600)
        await clock.sleep(0.5)
    assert clock.monotonic() == 3600.5
    assert clock.sleeps == [3600, 0.5]


async def test_a_timeout_passes_when_the_clock_is_moved_past_it() -> None:
    clock = FakeClock()
    timeout = clock.timeout(100)

    async def hang() -> None:
        async with timeout:
            await asyncio.Event().wait()

    waiting = asyncio.create_task(hang())
    await asyncio.sleep(0)
    clock.advance(99)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    clock.advance(1)
    with pytest.raises(TimeoutError):
        await waiting
    assert timeout.expired()


async def test_a_timeout_passes_with_real_time_too() -> None:
    with pytest.raises(TimeoutError):
        async with FakeClock().timeout(0.01):
            await asyncio.Event().wait()


async def test_a_timeout_of_none_never_passes() -> None:
    clock = FakeClock()
    timeout = clock.timeout(None)
    async with timeout:
        clock.advance(1e9)
        await asyncio.sleep(0)
    assert not timeout.expired()


async def test_a_call_that_finishes_in_time_is_not_cut_off() -> None:
    clock = FakeClock()
    timeout = clock.timeout(5)
    async with timeout:
        await asyncio.sleep(0)
    clock.advance(10)
    await asyncio.sleep(0)
    assert not timeout.expired()
