"""Whatever fails and whoever comes and goes, what is kept is kept once, and heard once and in order."""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress

import pytest

from tests.broadcasting.watching import Teller, add_session, is_chunk, settled
from whyloop.broadcasting import EventLog
from whyloop.broadcasting.places import place_of
from whyloop.errors import StoreUnavailableError
from whyloop.stores import MemoryStore
from whyloop.stores.records import Stored, Told

SESSIONS = ("a", "b")
KINDS = ("chunk", "chunk", "chunk", "step", "end of step")


class _Impatient(selectors.SelectSelector):
    """Nothing is waited for: it is at once as late as it was to be."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "everybody waits, and for nothing"
            self.now += timeout
        return ready


class ImpatientLoop(asyncio.SelectorEventLoop):
    """An event loop with a time of its own, on which all happens in the same order each time."""

    def __init__(self) -> None:
        self._impatient = _Impatient()
        super().__init__(self._impatient)

    def time(self) -> float:
        return self._impatient.now


class Moody(MemoryStore):
    """A store that takes a while, and fails every now and then, before or after it has done its work."""

    poll_seconds = 0.1

    def __init__(self, chance: random.Random, before: float, after: float) -> None:
        super().__init__()
        self.inline = chance.random() < 0.5  # type: ignore[misc]
        self._chance, self._before, self._after = chance, before, after

    @asynccontextmanager
    async def _mood(self) -> AsyncIterator[None]:
        await some_turns(self._chance, 2)
        if self._chance.random() < self._before:
            raise StoreUnavailableError("nothing was done")
        yield
        await some_turns(self._chance, 2)
        if self._chance.random() < self._after:
            raise StoreUnavailableError("it was done")

    async def read(self, agent_id: str, *, after: int = 0) -> Stored:
        async with self._mood():
            return await super().read(agent_id, after=after)

    async def add_events(self, agent_id: str, told: Sequence[Told]) -> int:
        async with self._mood():
            return await super().add_events(agent_id, told)

    async def events(self, agent_id: str, *, after: int = 0, limit: int = 100) -> tuple[Told, ...]:
        async with self._mood():
            return await super().events(agent_id, after=after, limit=limit)

    async def last_event(
        self, agent_id: str, *, execution_id: str | None = None, up_to: int | None = None
    ) -> Told | None:
        async with self._mood():
            return await super().last_event(agent_id, execution_id=execution_id, up_to=up_to)


async def some_turns(chance: random.Random, most: int) -> None:
    """Let others go first, a few times."""
    for _ in range(chance.randint(0, most)):
        await asyncio.sleep(0)


class World:
    """Two processes that tell of sessions, and people who follow them, on one event loop after another."""

    def __init__(self, chance: random.Random, before: float, after: float) -> None:
        self.chance = chance
        self.store = Moody(chance, before, after)
        self.logs = [EventLog(self.store, recent=chance.choice([1, 3, 10, 500])) for _ in range(2)]
        for log in self.logs:
            log._delivery._sleep = self._nap
        self.told_by = {name: chance.choice(self.logs) for name in SESSIONS}
        self.clients: list[tuple[str, list[Told]]] = [(name, []) for name in SESSIONS for _ in range(2)]
        self.told: list[tuple[str, str, int]] = []
        self._loops = 0

    async def _nap(self, seconds: float) -> None:
        await asyncio.sleep(self.chance.choice([0, 0, 0.1]))

    def tell(self, teller: Teller, kind: str) -> None:
        teller.tell(kind)
        if kind != "chunk":
            self.told.append((teller.session, teller.execution, teller.last))

    async def live(self, turns: int | None = None) -> None:
        """Go on for so many turns, or to the end; what is under way then is cut off."""
        self._loops += 1
        if self._loops == 1:
            await add_session(self.store, *SESSIONS)
        following = [asyncio.create_task(self._follow(*client)) for client in self.clients]
        telling = [asyncio.create_task(self._tell_of(name)) for name in SESSIONS]
        if turns is not None:
            for _ in range(turns):
                await asyncio.sleep(0)
            return
        async with asyncio.timeout(3600):
            await asyncio.gather(*telling)
            for name in SESSIONS:
                self.tell(Teller(self.told_by[name], name, "last"), "end")
            await asyncio.gather(*following)
        for log in self.logs:
            await log.close()

    async def _tell_of(self, session: str) -> None:
        """One execution after another, each by whichever process; what was cut off is not gone on with."""
        for number in range(self.chance.randint(1, 3)):
            teller = Teller(self.told_by[session], session, f"{self._loops}.{number}")
            self.tell(teller, "begin")
            for _ in range(self.chance.randint(0, 20)):
                self.tell(teller, self.chance.choice(KINDS))
                await some_turns(self.chance, 6)
            self.tell(teller, "end")
            await settled(teller.log)
            self.told_by[session] = self.chance.choice(self.logs)

    async def _follow(self, session: str, heard: list[Told]) -> None:
        while not heard or heard[-1].execution_id != "last":
            visit = asyncio.create_task(self._visit(session, heard))
            if self.chance.random() < 0.5:
                await some_turns(self.chance, 80)
                visit.cancel()
            await asyncio.wait([visit])
            if not visit.cancelled():
                visit.result()

    async def _visit(self, session: str, heard: list[Told]) -> None:
        place = place_of(heard[-1]) if heard else None
        following = self.chance.choice(self.logs).follow(session, place)
        with suppress(StoreUnavailableError):
            async with aclosing(following):
                async for some in following:
                    is_cut_off = self.chance.random() < 0.1
                    heard += some[: self.chance.randint(1, len(some))] if is_cut_off else some
                    if is_cut_off or heard[-1].execution_id == "last":
                        return
                    await some_turns(self.chance, 4)

    def check(self) -> None:
        for log in self.logs:
            assert log.dropped == {}
            assert len(log._channels) == 0
        for session in SESSIONS:
            kept = self.store._session(session).events
            told = [(execution, seq) for name, execution, seq in self.told if name == session]
            assert sorted((each.execution_id, each.seq) for each in kept) == sorted(told)
            assert in_order(kept)
            for heard in [heard for name, heard in self.clients if name == session]:
                assert [each for each in heard if not is_chunk(each)] == kept
                assert in_order(heard)


def in_order(told: Sequence[Told]) -> bool:
    """Whether the numbers of each execution rise."""
    last: dict[str, int] = {}
    for each in told:
        if each.seq <= last.get(each.execution_id, 0):
            return False
        last[each.execution_id] = each.seq
    return True


def live(seed: int, before: float, after: float) -> World:
    """A world that is lived in to its end."""
    chance = random.Random(seed)
    world = World(chance, before, after)
    for turns in [*[chance.randint(1, 300) for _ in range(chance.choice([0, 0, 1, 2]))], None]:
        with asyncio.Runner(loop_factory=ImpatientLoop) as runner:
            runner.run(world.live(turns))
    return world


@pytest.mark.parametrize(("before", "after"), [(0, 0), (0.1, 0), (0, 0.1), (0.1, 0.05)])
@pytest.mark.parametrize("seeds", [range(first, first + 25) for first in (0, 25)], ids=str)
def test_nothing_is_lost_doubled_or_out_of_order(seeds: range, before: float, after: float) -> None:
    for seed in seeds:
        live(seed, before, after).check()


def test_the_same_happens_each_time() -> None:
    one, two = live(1, 0.2, 0.1), live(1, 0.2, 0.1)
    assert [heard for _, heard in one.clients] == [heard for _, heard in two.clients]
