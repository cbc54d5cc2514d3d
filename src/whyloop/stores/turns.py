"""Turns on the event loop, so that a burst of ready work does not delay everything else."""

from __future__ import annotations

import asyncio
from collections import deque
from time import perf_counter
from typing import Literal
from weakref import WeakKeyDictionary

APPENDS_PER_ROUND = 8
READERS_PER_ROUND = 8
READING_SECONDS = 0.001
LONGEST_REST_SECONDS = 0.004

Reason = Literal["request", "news", "late"]
"""Why a journal is read: for a request, for all who follow it live, or for followers that fell behind."""


class RunningTurns:
    """Turns for a few sessions in each round of the event loop, first come, first served.

    If 500 sessions were ready at once, one round would otherwise take more than 100 ms.
    """

    def __init__(self, per_round: int = APPENDS_PER_ROUND) -> None:
        self._per_round = self._left = per_round
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        """Return at once if this round of the event loop has a turn left, otherwise later."""
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
    """Turns of reading tasks on one event loop: a millisecond of work in every other round, first come first.

    In every round, a task whose sleep has just ended would still run after them.
    """

    def __init__(self) -> None:
        self._began: float | None = None
        self._will_end = False
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._woken_in_vain = 0

    async def take(self) -> None:
        """Return at once if this round of the event loop has time left, otherwise later."""
        if self._has_time():
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        await turn
        while not self._has_time():
            turn = asyncio.get_running_loop().create_future()
            self._waiting.insert(
                self._woken_in_vain, turn
            )  # Those before it in the queue are before it again.
            self._woken_in_vain += 1
            await turn

    def _has_time(self) -> bool:
        now = perf_counter()
        if self._began is None:
            self._began = now
            if not self._will_end:
                self._will_end = True
                asyncio.get_running_loop().call_soon(self._end_round)
        return now - self._began < READING_SECONDS

    def _end_round(self) -> None:
        """Wake a few for the next round: of all that wait, most would only wait again."""
        self._began, self._woken_in_vain = None, 0
        for _ in range(min(READERS_PER_ROUND, len(self._waiting))):
            turn = self._waiting.popleft()
            if not turn.done():  # The task that waited for it was not cancelled.
                turn.set_result(None)
        self._will_end = bool(self._waiting)
        if self._will_end:
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._end_round)


class LateTurns(ReadingTurns):
    """Turns of late readers on one event loop: after a millisecond of work, all of them rest.

    They rest four times as long as the event loop needs for its next two rounds. So they take a fifth of its
    time from those who are not late, however many they are, and all of it if nobody else needs it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._rest: asyncio.Event | None = None

    async def take(self) -> None:
        """Return at once if the late readers have time left, otherwise after their rest."""
        while True:
            now = perf_counter()
            if self._rest is None:
                if self._began is None or now - self._began > READING_SECONDS + LONGEST_REST_SECONDS:
                    self._began = now
                if now - self._began < READING_SECONDS:
                    return
                self._rest = asyncio.Event()
                loop = asyncio.get_running_loop()
                loop.call_soon(loop.call_soon, self._measure, now)
            await self._rest.wait()

    def _measure(self, since: float) -> None:
        seconds = min(4 * (perf_counter() - since), LONGEST_REST_SECONDS)
        asyncio.get_running_loop().call_later(seconds, self._end_rest)

    def _end_rest(self) -> None:
        self._began = None
        rest, self._rest = self._rest, None
        if rest is not None:
            rest.set()


class _Turns:
    """The turns of one event loop."""

    def __init__(self) -> None:
        self.running = RunningTurns()
        self.reading: dict[Reason, ReadingTurns] = {
            "request": ReadingTurns(),
            "news": ReadingTurns(),
            "late": LateTurns(),
        }


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, _Turns] = WeakKeyDictionary()


def _here() -> _Turns:
    loop = asyncio.get_running_loop()
    found = _turns.get(loop)
    if found is None:
        found = _turns[loop] = _Turns()
    return found


def running_turns() -> RunningTurns:
    """Return the turns of sessions that run on this event loop."""
    return _here().running


def reading_turns(reason: Reason = "request") -> ReadingTurns:
    """Return the turns of tasks that work on long sessions on this event loop."""
    return _here().reading[reason]
