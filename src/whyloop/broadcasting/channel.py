"""What was told of a session lately, for those who follow it in this process."""

from __future__ import annotations

import asyncio
from collections import deque
from datetime import datetime
from itertools import islice

from msgspec import Struct

from whyloop.stores.records import Told


class Seen(Struct, frozen=True):
    """How far somebody has heard: the last position that is kept, and the number in its execution."""

    position: int
    execution_id: str = ""
    seq: int = 0

    def is_before(self, told: Told, is_kept: bool) -> bool:
        """Whether this was not heard yet. A chunk has the position of what was kept before it."""
        if told.position != self.position:
            return told.position > self.position
        return not is_kept and (told.execution_id != self.execution_id or told.seq > self.seq)


class Channel:
    """The latest envelopes of one session, chunks and all, in the order in which they were told.

    Nobody has a queue of their own: whoever is too slow for what is here finds in the store what was
    kept. It belongs to one event loop.
    """

    def __init__(self, agent_id: str, started_at: datetime, position: int, recent: int) -> None:
        self.agent_id = agent_id
        self.started_at = started_at  # When the session began, by which it is told from another of its id.
        self.position = position  # Of the last one here that is kept.
        self.lock = asyncio.Lock()
        self.users = 0
        self.followers = 0
        self.feeder: asyncio.Task[None] | None = None
        self.is_told_here = False
        self.has_ended = False
        self.why_ended: Exception | None = None
        self._latest: deque[tuple[Told, bool]] = deque(maxlen=recent)
        self._count = 0
        self._step_ended = 0
        self._changed = asyncio.Event()

    def add(self, told: Told, is_kept: bool) -> None:
        self._latest.append((told, is_kept))
        self._count += 1
        if is_kept:
            self.position = told.position

    def end_step(self) -> None:
        """Keep what was told since the end of the step before: for who is away for a moment just now."""
        while self._latest and self._count - len(self._latest) < self._step_ended:
            self._latest.popleft()
        self._step_ended = self._count

    def forget(self) -> None:
        """Keep nothing of what was told so far."""
        self._latest.clear()

    def tell(self) -> None:
        """Wake those who wait."""
        self._changed.set()
        self._changed = asyncio.Event()

    def end(self, why: Exception | None = None) -> None:
        """There is nothing more to come."""
        self.has_ended, self.why_ended = True, why
        self.tell()

    async def changed(self, count: int) -> None:
        """Wait until there is more than so many, or nothing more to come."""
        while self._count == count and not self.has_ended:
            await self._changed.wait()

    def is_over(self, count: int) -> bool:
        """Whether there is nothing after so many, and will not be."""
        return self.has_ended and self._count == count

    @property
    def start(self) -> int:
        """The position before the first that is here; what was kept up to there is in the store alone."""
        if not self._latest:
            return self.position
        told, is_kept = self._latest[0]
        return told.position - is_kept

    def after(self, seen: Seen) -> tuple[int, list[Told]] | None:
        """How many there were, and those that somebody has not heard; None if some are here no more."""
        return None if seen.position < self.start else (self._count, self._news(seen, 0))

    def since(self, count: int, seen: Seen) -> tuple[int, list[Told]] | None:
        """The same of those after the first so many."""
        start = len(self._latest) - (self._count - count)
        return None if start < 0 else (self._count, self._news(seen, start))

    def _news(self, seen: Seen, start: int) -> list[Told]:
        latest = islice(self._latest, start, None)
        return [told for told, is_kept in latest if seen.is_before(told, is_kept)]
