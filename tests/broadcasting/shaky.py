"""Stores that fail, or take their time, when they are told to."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from whyloop.errors import StoreUnavailableError
from whyloop.stores import MemoryStore
from whyloop.stores.records import Told

AWAY = StoreUnavailableError("the store is away")
Failures = dict[str, list[Exception | None]]


class ShakyStore(MemoryStore):
    """A store that raises what it is given to raise, before or after it has done what it was asked.

    None is for a time when all goes well.
    """

    poll_seconds = 0.001

    def __init__(self) -> None:
        super().__init__()
        self.before: Failures = {}
        self.after: Failures = {}

    def _meet(self, name: str, failures: Failures) -> None:
        failure = failures[name].pop(0) if failures.get(name) else None
        if failure is not None:
            raise failure

    async def add_events(self, agent_id: str, told: Sequence[Told]) -> int:
        self._meet("add_events", self.before)
        self._meet(f"add_events {agent_id}", self.before)
        last = await super().add_events(agent_id, told)
        self._meet("add_events", self.after)
        return last

    async def events(self, agent_id: str, *, after: int = 0, limit: int = 100) -> tuple[Told, ...]:
        self._meet("events", self.before)
        return await super().events(agent_id, after=after, limit=limit)

    async def last_event(
        self, agent_id: str, *, execution_id: str | None = None, up_to: int | None = None
    ) -> Told | None:
        self._meet(f"last_event of {execution_id}", self.before)
        return await super().last_event(agent_id, execution_id=execution_id, up_to=up_to)

    async def wait_for_events(self, agent_id: str, *, after: int) -> None:
        self._meet("wait_for_events", self.before)
        await super().wait_for_events(agent_id, after=after)
        self._meet("wait_for_events", self.after)


class SlowStore(MemoryStore):
    """A store that takes its time to add events to sessions, before it does so or after."""

    poll_seconds = 0.001

    def __init__(self, *, inline: bool = True) -> None:
        super().__init__()
        self.inline = inline  # type: ignore[misc]
        self.calls: list[tuple[str, list[int]]] = []
        self.slow_before: set[str] = set()
        self.slow_after: set[str] = set()
        self.under_way: set[str] = set()
        self.go_on = asyncio.Event()

    async def add_events(self, agent_id: str, told: Sequence[Told]) -> int:
        self.calls.append((agent_id, [each.seq for each in told]))
        await self._take_time(agent_id, self.slow_before)
        last = await super().add_events(agent_id, told)
        await self._take_time(agent_id, self.slow_after)
        return last

    async def _take_time(self, agent_id: str, slow: set[str]) -> None:
        if agent_id in slow:
            self.under_way.add(agent_id)
            await self.go_on.wait()
            self.under_way.remove(agent_id)
