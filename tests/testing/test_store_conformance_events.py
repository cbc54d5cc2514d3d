"""The suite for stores can fail: whatever a store does wrong with what was told, some check says so."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from tests.testing.test_store_conformance import fails
from whyloop.errors import SessionNotFoundError
from whyloop.stores import MemoryStore
from whyloop.stores.records import Told
from whyloop.testing.store_checks import events
from whyloop.testing.store_conformance import CHECKS


class Adding(MemoryStore):
    """A store that does something else with what it is told."""

    async def add_events(self, agent_id: str, told: Sequence[Told]) -> int:
        return await super().add_events(agent_id, self.other(told))

    def other(self, told: Sequence[Told]) -> Sequence[Told]:
        return told


class AddsHalfOfABatch(Adding):
    def other(self, told: Sequence[Told]) -> Sequence[Told]:
        return told[: (len(told) + 1) // 2]


class AddsTheLastFirst(Adding):
    def other(self, told: Sequence[Told]) -> Sequence[Told]:
        return told[::-1]


class KeepsANumberOnce(Adding):
    def other(self, told: Sequence[Told]) -> Sequence[Told]:
        return list({each.seq: each for each in told}.values())


class TrimsWhatWasTold(Adding):
    def other(self, told: Sequence[Told]) -> Sequence[Told]:
        return [replace(each, body=each.body.strip()) for each in told]


class CutsWhatWasTold(Adding):
    def other(self, told: Sequence[Told]) -> Sequence[Told]:
        return [replace(each, body=each.body[:1_000_000]) for each in told]


class TrimsExecutions(Adding):
    def other(self, told: Sequence[Told]) -> Sequence[Told]:
        return [replace(each, execution_id=each.execution_id.strip()) for each in told]


class CutsGreatNumbers(Adding):
    def other(self, told: Sequence[Told]) -> Sequence[Told]:
        return [replace(each, seq=each.seq & 0xFFFFFFFF) for each in told]


class MixesBatches(MemoryStore):
    async def add_events(self, agent_id: str, told: Sequence[Told]) -> int:
        for each in told:
            await super().add_events(agent_id, [each])
            await asyncio.sleep(0)
        return len(self._session(agent_id).events)


class ForgetsWhatWasToldMeanwhile(MemoryStore):
    async def add_events(self, agent_id: str, told: Sequence[Told]) -> int:
        before = list(self._session(agent_id).events)
        await asyncio.sleep(0)
        self._session(agent_id).events[:] = before
        return await super().add_events(agent_id, told)


class ReturnsHowManyWereAdded(MemoryStore):
    async def add_events(self, agent_id: str, told: Sequence[Told]) -> int:
        await super().add_events(agent_id, told)
        return len(told)


class ReturnsTheNextPosition(MemoryStore):
    async def add_events(self, agent_id: str, told: Sequence[Told]) -> int:
        return await super().add_events(agent_id, told) + 1


class ReturnsTheLastNumber(MemoryStore):
    async def add_events(self, agent_id: str, told: Sequence[Told]) -> int:
        last = await super().add_events(agent_id, told)
        return told[-1].seq if told else last


class ChangesTheVersion(MemoryStore):
    async def add_events(self, agent_id: str, told: Sequence[Told]) -> int:
        session = self._session(agent_id)
        session.entries.append("told")
        return await super().add_events(agent_id, told)


class ChangesTheSummary(MemoryStore):
    async def add_events(self, agent_id: str, told: Sequence[Told]) -> int:
        session = self._session(agent_id)
        session.summary = replace(session.summary, step_count=session.summary.step_count + 1)
        return await super().add_events(agent_id, told)


class TakesTheLeaseToAdd(MemoryStore):
    async def add_events(self, agent_id: str, told: Sequence[Told]) -> int:
        self._session(agent_id).held = None
        return await super().add_events(agent_id, told)


class CreatesWhatIsToldOf(MemoryStore):
    async def add_events(self, agent_id: str, told: Sequence[Told]) -> int:
        return await super().add_events(agent_id, told) if agent_id in self._sessions else len(told)


class Reading(MemoryStore):
    """A store that reads something else than what it has."""

    async def events(self, agent_id: str, *, after: int = 0, limit: int = 100) -> tuple[Told, ...]:
        return tuple(self.chosen(await super().events(agent_id, limit=100_000), after, limit))

    def chosen(self, told: Sequence[Told], after: int, limit: int) -> Sequence[Told]:
        return [each for each in told if each.position > after][:limit]


class OrdersByNumber(Reading):
    def chosen(self, told: Sequence[Told], after: int, limit: int) -> Sequence[Told]:
        return sorted(super().chosen(told, after, limit), key=lambda each: each.seq)


class OrdersByExecution(Reading):
    def chosen(self, told: Sequence[Told], after: int, limit: int) -> Sequence[Told]:
        return sorted(super().chosen(told, after, limit), key=lambda each: each.execution_id)


class ReadsTheLatest(Reading):
    def chosen(self, told: Sequence[Told], after: int, limit: int) -> Sequence[Told]:
        return [each for each in told if each.position > after][-limit:]


class ForgetsTheLimit(Reading):
    def chosen(self, told: Sequence[Told], after: int, limit: int) -> Sequence[Told]:
        return super().chosen(told, after, 100_000)


class ForgetsTheUsualSize(Reading):
    def chosen(self, told: Sequence[Told], after: int, limit: int) -> Sequence[Told]:
        return super().chosen(told, after, 100_000 if limit == 100 else limit)


class ForgetsWhereToBegin(Reading):
    def chosen(self, told: Sequence[Told], after: int, limit: int) -> Sequence[Told]:
        return super().chosen(told, 0, limit)


class BeginsOneTooEarly(Reading):
    def chosen(self, told: Sequence[Told], after: int, limit: int) -> Sequence[Told]:
        return super().chosen(told, after - 1, limit)


class BeginsAfterANumber(Reading):
    def chosen(self, told: Sequence[Told], after: int, limit: int) -> Sequence[Told]:
        return [each for each in told if each.seq > after][:limit]


class CountsFromTheEndBelowZero(Reading):
    def chosen(self, told: Sequence[Told], after: int, limit: int) -> Sequence[Told]:
        return told[after:][:limit]


class CountsPositionsFromZero(Reading):
    def chosen(self, told: Sequence[Told], after: int, limit: int) -> Sequence[Told]:
        found = super().chosen(told, after, limit)
        return [replace(each, position=each.position - 1) for each in found]


class SaysNoPositions(Reading):
    def chosen(self, told: Sequence[Told], after: int, limit: int) -> Sequence[Told]:
        return [replace(each, position=0) for each in super().chosen(told, after, limit)]


class ReadsOfEverySession(MemoryStore):
    async def events(self, agent_id: str, *, after: int = 0, limit: int = 100) -> tuple[Told, ...]:
        self._session(agent_id)
        told = [each for session in self._sessions.values() for each in session.events]
        return tuple([each for each in told if each.position > after][:limit])


class CountsPositionsAcrossSessions(MemoryStore):
    async def add_events(self, agent_id: str, told: Sequence[Told]) -> int:
        others = sum(len(session.events) for key, session in self._sessions.items() if key != agent_id)
        last = await super().add_events(agent_id, told)
        kept = self._session(agent_id).events
        kept[:] = [
            *kept[: last - len(told)],
            *[replace(e, position=others + e.position) for e in kept[last:]],
        ]
        return others + last


class ReadsNothingOfWhatIsNotThere(MemoryStore):
    async def events(self, agent_id: str, *, after: int = 0, limit: int = 100) -> tuple[Told, ...]:
        return await super().events(agent_id, after=after, limit=limit) if agent_id in self._sessions else ()


class Last(MemoryStore):
    """A store that finds something else for the last that was told."""

    async def last_event(
        self, agent_id: str, *, execution_id: str | None = None, up_to: int | None = None
    ) -> Told | None:
        found = self.found(await self.events(agent_id, limit=100_000), execution_id, up_to)
        if execution_id is not None:
            found = sorted(found, key=self.order)
        return found[-1] if found else None

    def order(self, told: Told) -> tuple[int, int]:
        return told.seq, told.position

    def found(self, told: Sequence[Told], execution_id: str | None, up_to: int | None) -> Sequence[Told]:
        return [
            each
            for each in told
            if (execution_id is None or each.execution_id == execution_id)
            and (up_to is None or each.seq <= up_to)
        ]


class GoesByPosition(Last):
    def order(self, told: Told) -> tuple[int, int]:
        return told.position, told.seq


class TakesTheFirstOfTwo(Last):
    def order(self, told: Told) -> tuple[int, int]:
        return told.seq, -told.position


class ForgetsTheExecution(Last):
    def found(self, told: Sequence[Told], execution_id: str | None, up_to: int | None) -> Sequence[Told]:
        return super().found(told, None, up_to)


class TakesNoNameForAnyExecution(Last):
    def found(self, told: Sequence[Told], execution_id: str | None, up_to: int | None) -> Sequence[Told]:
        return super().found(told, execution_id or None, up_to)


class TakesExecutionsInAnyCase(Last):
    def found(self, told: Sequence[Told], execution_id: str | None, up_to: int | None) -> Sequence[Told]:
        return super().found(told, execution_id and execution_id.lower(), up_to)


class ForgetsUpTo(Last):
    def found(self, told: Sequence[Told], execution_id: str | None, up_to: int | None) -> Sequence[Told]:
        return super().found(told, execution_id, None)


class ForgetsUpToZero(Last):
    def found(self, told: Sequence[Told], execution_id: str | None, up_to: int | None) -> Sequence[Told]:
        return super().found(told, execution_id, up_to or None)


class StopsBeforeUpTo(Last):
    def found(self, told: Sequence[Told], execution_id: str | None, up_to: int | None) -> Sequence[Told]:
        return super().found(told, execution_id, None if up_to is None else up_to - 1)


class FindsOnlyTheVeryNumber(Last):
    def found(self, told: Sequence[Told], execution_id: str | None, up_to: int | None) -> Sequence[Told]:
        found = super().found(told, execution_id, up_to)
        return [each for each in found if up_to in (None, each.seq)]


class FindsTheGreatestNumber(Last):
    def found(self, told: Sequence[Told], execution_id: str | None, up_to: int | None) -> Sequence[Told]:
        return sorted(super().found(told, execution_id, up_to), key=lambda each: each.seq)


class FindsTheFirst(Last):
    def found(self, told: Sequence[Told], execution_id: str | None, up_to: int | None) -> Sequence[Told]:
        return super().found(told, execution_id, up_to)[::-1]


class LooksForNothingWhereNothingIs(MemoryStore):
    async def last_event(
        self, agent_id: str, *, execution_id: str | None = None, up_to: int | None = None
    ) -> Told | None:
        if agent_id not in self._sessions:
            return None
        return await super().last_event(agent_id, execution_id=execution_id, up_to=up_to)


class KeepsWhatWasToldOfADeletedSession(MemoryStore):
    async def delete(self, agent_id: str) -> None:
        kept = self._session(agent_id).events if agent_id in self._sessions else []
        await super().delete(agent_id)
        self.__dict__.setdefault("left", {})[agent_id] = kept

    async def events(self, agent_id: str, *, after: int = 0, limit: int = 100) -> tuple[Told, ...]:
        found = await super().events(agent_id, after=after, limit=limit)
        return found or tuple(self.__dict__.get("left", {}).get(agent_id, ())[after:][:limit])


class GoesOnCountingAfterADeletion(KeepsWhatWasToldOfADeletedSession):
    async def add_events(self, agent_id: str, told: Sequence[Told]) -> int:
        return await super().add_events(agent_id, told) + len(self.__dict__.get("left", {}).get(agent_id, ()))


class DeletesWhatWasToldOfAll(MemoryStore):
    async def delete(self, agent_id: str) -> None:
        await super().delete(agent_id)
        for session in self._sessions.values():
            session.events.clear()


class NeverWaits(MemoryStore):
    async def wait_for_events(self, agent_id: str, *, after: int) -> None:
        self._session(agent_id)


class WaitsForEver(MemoryStore):
    async def wait_for_events(self, agent_id: str, *, after: int) -> None:
        self._session(agent_id)
        await asyncio.Future()


class WaitsForWhatIsToldFromNowOn(MemoryStore):
    async def wait_for_events(self, agent_id: str, *, after: int) -> None:
        await super().wait_for_events(agent_id, after=len(self._session(agent_id).events))


class WaitsForAnySession(MemoryStore):
    async def wait_for_events(self, agent_id: str, *, after: int) -> None:
        self._session(agent_id)
        while not any(len(session.events) > after for session in self._sessions.values()):
            await asyncio.sleep(0.001)


class WakesOne(MemoryStore):
    async def wait_for_events(self, agent_id: str, *, after: int) -> None:
        async with self.__dict__.setdefault("turn", asyncio.Lock()):
            await super().wait_for_events(agent_id, after=after)
            await asyncio.Future()


class WaitsForWhatWasDeleted(MemoryStore):
    async def wait_for_events(self, agent_id: str, *, after: int) -> None:
        self._session(agent_id)
        try:
            await super().wait_for_events(agent_id, after=after)
        except SessionNotFoundError:
            await asyncio.Future()


class WaitsForAnotherSessionToCatchUp(MemoryStore):
    async def has_events(self, agent_id: str, *, after: int) -> bool:
        return len(self._session(agent_id).events) > after


class WaitsForWhatIsNotThere(MemoryStore):
    async def wait_for_events(self, agent_id: str, *, after: int) -> None:
        if agent_id in self._sessions:
            await super().wait_for_events(agent_id, after=after)


BROKEN = [
    kind
    for kind in list(globals().values())
    if isinstance(kind, type)
    and issubclass(kind, MemoryStore)
    and kind not in (MemoryStore, Adding, Reading, Last)
]


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_PATIENCE", 0.3)
    monkeypatch.setattr(MemoryStore, "poll_seconds", 0.001)


@pytest.mark.parametrize("kind", BROKEN, ids=lambda kind: kind.__name__)
async def test_a_broken_store_fails_a_check_of_events(kind: type[MemoryStore]) -> None:
    for check in CHECKS:
        if check.__module__ == events.__name__ and await fails(kind, check):
            return
    pytest.fail(f"no check notices a store that {kind.__name__}")


@pytest.mark.parametrize("kind", [MemoryStore, Adding, Reading, Last])
async def test_a_store_that_only_does_it_otherwise_fails_none(kind: type[MemoryStore]) -> None:
    checks = [check for check in CHECKS if check.__module__ == events.__name__]
    assert len(checks) > 8
    assert [check.__name__ for check in checks if await fails(kind, check)] == []
