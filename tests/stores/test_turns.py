"""Tasks that read take turns on the event loop, however many they are."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from whyloop.stores import turns
from whyloop.stores.turns import READERS_PER_ROUND, ReadingTurns

MANY = 200
WORK = 0.0003


class Clock:
    """A clock that advances only when somebody works; it counts how often it was looked at."""

    def __init__(self) -> None:
        self.now, self.looks = 0.0, 0

    def __call__(self) -> float:
        self.looks += 1
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(turns, "perf_counter", clock)
    return clock


async def test_many_readers_get_their_turns_in_order_and_wake_only_when_it_may_be_theirs(
    clock: Clock,
) -> None:
    reading, served, rounds = ReadingTurns(), list[int](), list[int]()

    async def read(number: int) -> None:
        await reading.take()
        clock.now += WORK
        served.append(number)

    async def count() -> None:
        while len(served) < MANY:
            before = len(served)
            await asyncio.sleep(0)
            rounds.append(len(served) - before)

    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        tasks.create_task(count())
        for number in range(MANY):
            tasks.create_task(read(number))
    assert served == list(range(MANY))
    assert max(rounds) == 4  # After them, the millisecond is over.
    assert max(map(sum, pairwise(rounds))) == 4  # The round after it is for others.
    assert clock.looks <= MANY + READERS_PER_ROUND * MANY / 4


async def test_a_turn_of_a_task_that_was_cancelled_goes_to_others(clock: Clock) -> None:
    reading, served = ReadingTurns(), list[int]()

    async def read(number: int) -> None:
        await reading.take()
        clock.now += WORK
        served.append(number)

    readers = [asyncio.create_task(read(number)) for number in range(MANY)]
    await asyncio.sleep(0)
    for reader in readers[: MANY // 2]:
        reader.cancel()  # Those whose turn is next, too.
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for reader in readers[MANY // 2 : MANY // 2 + READERS_PER_ROUND]:
        reader.cancel()  # Some of these were woken just now.
    async with asyncio.timeout(10):
        await asyncio.gather(*readers, return_exceptions=True)
    assert served[-1] == MANY - 1
