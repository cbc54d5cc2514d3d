"""Turns on the event loop: work that is ready all at once does not keep everything else waiting."""

from __future__ import annotations

import asyncio
from collections import deque
from time import perf_counter
from weakref import WeakKeyDictionary

APPENDS_PER_ROUND = 8
READING_SECONDS = 0.001


class RunningTurns:
    """Let so many sessions do their work in one round of the event loop, in the order in which they ask.

    With 500 sessions that are all ready, one round would otherwise take 100 ms and more.
    """

    def __init__(self, per_round: int = APPENDS_PER_ROUND) -> None:
        self._per_round = self._left = per_round
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        """Return at once if this round of the event loop has a turn left, else in a later one."""
        if self._left == self._per_round:
            asyncio.get_running_loop().call_soon(self._start_round)
        if self._left:
            self._left -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        await turn

    def _start_round(self) -> None:
        self._left = self._per_round
        while self._waiting and self._left:
            turn = self._waiting.popleft()
            if not turn.done():  # The task that waited for it was not cancelled.
                turn.set_result(None)
                self._left -= 1
        if self._left < self._per_round:
            asyncio.get_running_loop().call_soon(self._start_round)


class ReadingTurns:
    """Share one event loop: after a millisecond of work, the other tasks that are ready wait for two rounds.

    A task that sleeps until now is ready in the first round only after them.
    """

    def __init__(self) -> None:
        self._began: float | None = None

    async def take(self) -> None:
        """Return at once if this round of the event loop has time left, else in a later one."""
        while True:
            now = perf_counter()
            if self._began is None:
                self._began = now
                asyncio.get_running_loop().call_soon(self._end_round)
            if now - self._began < READING_SECONDS:
                return
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    def _end_round(self) -> None:
        self._began = None


_running: WeakKeyDictionary[asyncio.AbstractEventLoop, RunningTurns] = WeakKeyDictionary()
_reading: WeakKeyDictionary[asyncio.AbstractEventLoop, ReadingTurns] = WeakKeyDictionary()


def turns() -> RunningTurns:
    """Return the turns of the sessions that run on this event loop."""
    return _running.setdefault(asyncio.get_running_loop(), RunningTurns())


def reading_turns() -> ReadingTurns:
    """Return the turns of the tasks that read, decode or render long sessions on this event loop."""
    return _reading.setdefault(asyncio.get_running_loop(), ReadingTurns())
