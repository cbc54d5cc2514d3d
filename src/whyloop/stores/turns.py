"""Turns on the event loop: work that is ready all at once does not keep everything else waiting."""

from __future__ import annotations

import asyncio
from time import perf_counter
from weakref import WeakKeyDictionary

RUNNING_SECONDS = 0.005
READING_SECONDS = 0.001


class Turns:
    """Share one event loop: after some milliseconds of work, the rest of those that are ready wait a round.

    With 500 sessions that are all ready, one round would otherwise take 100 ms and more.
    """

    def __init__(self, seconds: float, rounds: int = 1) -> None:
        self._seconds = seconds
        self._rounds = rounds
        self._began: float | None = None

    async def take(self) -> None:
        """Return at once if this round of the event loop has time left, else in a later one."""
        while True:
            now = perf_counter()
            if self._began is None:
                self._began = now
                asyncio.get_running_loop().call_soon(self._end_round)
            if now - self._began < self._seconds:
                return
            for _ in range(self._rounds):
                await asyncio.sleep(0)

    def _end_round(self) -> None:
        self._began = None


_running: WeakKeyDictionary[asyncio.AbstractEventLoop, Turns] = WeakKeyDictionary()
_reading: WeakKeyDictionary[asyncio.AbstractEventLoop, Turns] = WeakKeyDictionary()


def turns() -> Turns:
    """Return the turns of the sessions that run on this event loop."""
    return _running.setdefault(asyncio.get_running_loop(), Turns(RUNNING_SECONDS))


def reading_turns() -> Turns:
    """Return the turns of those who read, decode or render long sessions on this event loop.

    They wait for two rounds: a task that sleeps until now is ready in the first one only after them.
    """
    return _reading.setdefault(asyncio.get_running_loop(), Turns(READING_SECONDS, rounds=2))
