"""Sessions to tell of, those who tell, and those who follow."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing, suppress
from datetime import UTC, datetime, timedelta

import msgspec

from tests.broadcasting.support import envelope, until
from whyloop.broadcasting import EventLog
from whyloop.broadcasting.places import place_of
from whyloop.stores import Store, Summary
from whyloop.stores.records import Told
from whyloop.values.state import AgentStatus

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(seconds=1)


async def add_session(store: Store, *agent_ids: str, at: datetime = NOW) -> None:
    for agent_id in agent_ids or ("a",):
        await store.create(Summary(agent_id, AgentStatus.PENDING, at, at), ["first"])


class Teller:
    """Tells of one execution of a session, number by number."""

    def __init__(self, log: EventLog, session: str = "a", execution: str = "e1", last: int = 0) -> None:
        self.log, self.session, self.execution, self.last = log, session, execution, last

    def tell(self, *kinds: str) -> None:
        """Tell envelopes of these kinds: "chunk", "step", "end of step", "begin", "pause" or "end"."""
        for kind in kinds:
            self.last += 1
            told = envelope(_NAMES.get(kind, kind), self.last, self.session, status=_STATUSES.get(kind))
            self.log.broadcast({**told, "execution_id": self.execution})


_NAMES = {"end of step": "agent.step.completed", "begin": "status", "pause": "status", "end": "status"}
_STATUSES = {"begin": "in_progress", "pause": "paused", "end": "completed"}


async def settled(*logs: EventLog) -> None:
    """Wait until whatever was told is kept, or given up."""
    for log in logs:
        worker = log._delivery._worker
        if worker is not None:
            await until(worker._idle.is_set)


def seqs(told: Sequence[Told]) -> list[int]:
    return [each.seq for each in told]


def is_chunk(told: Told) -> bool:
    name: str = msgspec.json.decode(told.body)["event"]
    return name == "agent.stream.chunk"


class Follower:
    """Somebody who follows a session, and remembers what they heard."""

    def __init__(self, log: EventLog, session: str = "a", after: str | None = None) -> None:
        self.heard: list[Told] = []
        self.reads = asyncio.Event()
        self.reads.set()
        self.task = asyncio.create_task(self._follow(log, session, after))

    async def _follow(self, log: EventLog, session: str, after: str | None) -> None:
        async with aclosing(log.follow(session, after)) as told:
            async for some in told:
                self.heard += some
                await self.reads.wait()

    @property
    def seqs(self) -> list[int]:
        return seqs(self.heard)

    @property
    def place(self) -> str | None:
        return place_of(self.heard[-1]) if self.heard else None

    async def hears(self, *expected: int) -> None:
        """Wait for all of these numbers; there are no others before them."""
        await until(lambda: len(self.heard) >= len(expected) or self.task.done())
        assert self.seqs == list(expected)

    async def gets_to(self, seq: int) -> None:
        """Wait for a number, whatever comes before it."""
        await until(lambda: seq in self.seqs or self.task.done())
        assert seq in self.seqs

    async def ends(self) -> None:
        """Wait for the end, and raise what it ended with."""
        async with asyncio.timeout(10):
            await self.task

    async def leave(self) -> None:
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task
