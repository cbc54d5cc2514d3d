"""The suite for stores can fail: whatever a store does wrong, some check says so."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest
from msgspec.structs import replace

from tests.testing.broken import assert_some_check_fails, broken_stores, fails
from whyloop import AgentState
from whyloop.errors import (
    ConflictError,
    LeaseLostError,
    SessionExistsError,
    SessionNotFoundError,
    SessionRunningError,
    WhyloopError,
)
from whyloop.stores import Entry, Lease, MemoryStore, Page, RequestKey, SessionFilter, Stored, Summary, Tally
from whyloop.stores.listing import cursor_of
from whyloop.testing.store_conformance import CHECKS


class LetsAnAppendBeCutOff(MemoryStore):
    async def append(self, agent_id: str, entries: Sequence[Entry], **rest: Any) -> str | None:
        await asyncio.sleep(0)
        return await super().append(agent_id, entries, **rest)


class HidesARefusalBehindACancellation(MemoryStore):
    async def append(self, agent_id: str, entries: Sequence[Entry], **rest: Any) -> str | None:
        try:
            return await super().append(agent_id, entries, **rest)
        except ConflictError:
            await asyncio.sleep(0)
            raise


class KeepsTheLeaseOfACancelledCaller(MemoryStore):
    async def acquire(self, agent_id: str, owner: str, seconds: float, **rest: Any) -> Lease:
        lease = await super().acquire(agent_id, owner, seconds, **rest)
        await asyncio.sleep(0)
        return lease


class IgnoresVersions(MemoryStore):
    async def append(self, agent_id: str, entries: Sequence[Entry], *, after: int, **rest: Any) -> str | None:
        after = (await self.read(agent_id)).summary.version
        return await super().append(agent_id, entries, after=after, **rest)


class IgnoresLostLeases(MemoryStore):
    async def append(
        self, agent_id: str, entries: Sequence[Entry], *, after: int, lease: Lease | None = None, **rest: Any
    ) -> str | None:
        held = self._session(agent_id).held
        lease = held.lease if held and lease else lease
        return await super().append(agent_id, entries, after=after, lease=lease, **rest)


class LetsAnybodyWriteBesideARunner(MemoryStore):
    async def append(
        self, agent_id: str, entries: Sequence[Entry], *, after: int, lease: Lease | None = None, **rest: Any
    ) -> str | None:
        held = self._session(agent_id).held
        lease = held.lease if held and lease is None else lease
        return await super().append(agent_id, entries, after=after, lease=lease, **rest)


class WritesAndThenRefuses(MemoryStore):
    async def append(
        self, agent_id: str, entries: Sequence[Entry], *, after: int, lease: Lease | None = None, **rest: Any
    ) -> str | None:
        try:
            return await super().append(agent_id, entries, after=after, lease=lease, **rest)
        except WhyloopError:
            if agent_id in self._shared.sessions:
                self._session(agent_id).entries += entries
            raise


class ListsWhatItRefused(MemoryStore):
    async def append(
        self,
        agent_id: str,
        entries: Sequence[Entry],
        *,
        after: int,
        summary: Summary | None = None,
        **rest: Any,
    ) -> str | None:
        if summary is not None and agent_id in self._shared.sessions:
            self._session(agent_id).summary = summary
        return await super().append(agent_id, entries, after=after, summary=summary, **rest)


class GivesBackTheLeaseOfARefusedAppend(MemoryStore):
    async def append(
        self, agent_id: str, entries: Sequence[Entry], *, after: int, release: bool = False, **rest: Any
    ) -> str | None:
        try:
            return await super().append(agent_id, entries, after=after, release=release, **rest)
        except WhyloopError:
            if release and agent_id in self._shared.sessions:
                self._session(agent_id).held = None
            raise


class KeepsTheOldSummary(MemoryStore):
    async def append(
        self,
        agent_id: str,
        entries: Sequence[Entry],
        *,
        after: int,
        summary: Summary | None = None,
        **rest: Any,
    ) -> str | None:
        return await super().append(agent_id, entries, after=after, **rest)


class NeverGivesBackWithAnAppend(MemoryStore):
    async def append(
        self, agent_id: str, entries: Sequence[Entry], *, after: int, release: bool = False, **rest: Any
    ) -> str | None:
        return await super().append(agent_id, entries, after=after, **rest)


class SaysNoWordsInAppend(MemoryStore):
    async def append(self, agent_id: str, entries: Sequence[Entry], *, after: int, **rest: Any) -> str | None:
        await super().append(agent_id, entries, after=after, **rest)
        return None


class SaysNoWordsInRenew(MemoryStore):
    async def renew(self, lease: Lease) -> str | None:
        await super().renew(lease)
        return None


class SaysWordsOnce(MemoryStore):
    async def renew(self, lease: Lease) -> str | None:
        words = await super().renew(lease)
        self._session(lease.agent_id).held_with(lease).stop_request = None
        return words


class ForgetsUnheardWords(MemoryStore):
    async def acquire(self, agent_id: str, owner: str, seconds: float, **rest: Any) -> Lease:
        lease = await super().acquire(agent_id, owner, seconds, **rest)
        self._session(agent_id).held_with(lease).stop_request = None
        return lease


class KeepsWordsThatWereHeard(MemoryStore):
    async def release(self, lease: Lease) -> str | None:
        self._heard = await super().release(lease)
        return self._heard

    async def acquire(self, agent_id: str, owner: str, seconds: float, **rest: Any) -> Lease:
        lease = await super().acquire(agent_id, owner, seconds, **rest)
        self._session(agent_id).held_with(lease).stop_request = getattr(self, "_heard", None)
        return lease


class AlwaysSaysThatSomebodyWasAsked(MemoryStore):
    async def ask_to_stop(self, agent_id: str, reason: str, **rest: Any) -> bool:
        return await super().ask_to_stop(agent_id, reason, **rest) or True


class AsksWhoeverLapsed(MemoryStore):
    async def ask_to_stop(self, agent_id: str, reason: str, **rest: Any) -> bool:
        held = self._session(agent_id).held
        if held is not None:
            held.stop_request = reason
        return held is not None


class LosesOrder(MemoryStore):
    async def read(self, agent_id: str, *, after: int = 0, limit: int | None = None) -> Stored:
        stored = await super().read(agent_id, after=after, limit=limit)
        return Stored(stored.summary, tuple(sorted(stored.entries)))


class KeepsEntriesThatAreAlikeOnce(MemoryStore):
    async def read(self, agent_id: str, *, after: int = 0, limit: int | None = None) -> Stored:
        stored = await super().read(agent_id, after=after, limit=limit)
        return Stored(stored.summary, tuple(dict.fromkeys(stored.entries)))


class ReadsFromTheBeginning(MemoryStore):
    async def read(self, agent_id: str, *, after: int = 0, limit: int | None = None) -> Stored:
        return await super().read(agent_id, limit=limit)


class TrimsEntries(MemoryStore):
    async def read(self, agent_id: str, *, after: int = 0, limit: int | None = None) -> Stored:
        stored = await super().read(agent_id, after=after, limit=limit)
        return Stored(stored.summary, tuple(entry.strip() for entry in stored.entries))


class CutsLongEntries(MemoryStore):
    async def create(self, summary: Summary, entries: Sequence[Entry], **rest: Any) -> None:
        await super().create(
            summary, [Entry(entry.body[:65_535], entry.checkpoint) for entry in entries], **rest
        )


class BelievesTheVersionThatItIsGiven(MemoryStore):
    async def read(self, agent_id: str, *, after: int = 0, limit: int | None = None) -> Stored:
        stored = await super().read(agent_id, after=after, limit=limit)
        version = self._session(agent_id).summary.version or stored.summary.version
        return Stored(replace(stored.summary, version=version), stored.entries)


class OverwritesWhatIsThere(MemoryStore):
    async def create(self, summary: Summary, entries: Sequence[Entry], **rest: Any) -> None:
        self._shared.sessions.pop(summary.agent_id, None)
        await super().create(summary, entries, **rest)


class SharesItsMetadata(MemoryStore):
    async def create(self, summary: Summary, entries: Sequence[Entry], **rest: Any) -> None:
        await super().create(summary, entries, **rest)
        self._session(summary.agent_id).summary = summary


class TakesIdsInAnyCase(MemoryStore):
    async def create(self, summary: Summary, entries: Sequence[Entry], **rest: Any) -> None:
        if summary.agent_id.lower() in {agent_id.lower() for agent_id in self._shared.sessions}:
            raise SessionExistsError(summary.agent_id)
        await super().create(summary, entries, **rest)


class RoundsMoments(MemoryStore):
    async def create(self, summary: Summary, entries: Sequence[Entry], **rest: Any) -> None:
        await super().create(
            replace(summary, started_at=summary.started_at.replace(microsecond=0)), entries, **rest
        )


class TakesTheTimeOnTheWallForUtc(MemoryStore):
    async def create(self, summary: Summary, entries: Sequence[Entry], **rest: Any) -> None:
        wall = summary.started_at.replace(tzinfo=UTC)
        await super().create(replace(summary, started_at=wall), entries, **rest)


class LeasesTwice(MemoryStore):
    async def acquire(self, agent_id: str, owner: str, seconds: float, **rest: Any) -> Lease:
        if agent_id in self._shared.sessions:
            self._session(agent_id).held = None
        return await super().acquire(agent_id, owner, seconds, **rest)


class LetsAnOwnerLeaseTwice(MemoryStore):
    async def acquire(self, agent_id: str, owner: str, seconds: float, **rest: Any) -> Lease:
        session = self._shared.sessions.get(agent_id)
        if session and session.held and session.held.lease.owner == owner:
            session.held = None
        return await super().acquire(agent_id, owner, seconds, **rest)


class NamesTheWrongOwner(MemoryStore):
    async def acquire(self, agent_id: str, owner: str, seconds: float, **rest: Any) -> Lease:
        try:
            return await super().acquire(agent_id, owner, seconds, **rest)
        except SessionRunningError as error:
            raise SessionRunningError(agent_id, owner, error.seconds) from None


class NeverLetsALeaseLapse(MemoryStore):
    async def acquire(self, agent_id: str, owner: str, seconds: float, **rest: Any) -> Lease:
        if agent_id in self._shared.sessions and self._session(agent_id).held:
            raise SessionRunningError(agent_id, owner, seconds)
        return await super().acquire(agent_id, owner, seconds, **rest)


class CountsLeasesOfEachSessionAnew(MemoryStore):
    async def create(self, summary: Summary, entries: Sequence[Entry], **rest: Any) -> None:
        await super().create(summary, entries, **rest)
        self._shared.tokens = count(1)


class RefusesALeaseThatLapsed(MemoryStore):
    async def append(
        self, agent_id: str, entries: Sequence[Entry], *, after: int, lease: Lease | None = None, **rest: Any
    ) -> str | None:
        if lease and agent_id in self._shared.sessions and not self._session(agent_id).holder(self._clock()):
            raise LeaseLostError(agent_id)
        return await super().append(agent_id, entries, after=after, lease=lease, **rest)


class NeverRenewsALeaseThatLapsed(MemoryStore):
    async def renew(self, lease: Lease) -> str | None:
        if not self._session(lease.agent_id).holder(self._clock()):
            raise LeaseLostError(lease.agent_id)
        return await super().renew(lease)


class RenewsNothing(MemoryStore):
    async def renew(self, lease: Lease) -> str | None:
        return self._session(lease.agent_id).held_with(lease).stop_request


class RenewsWithEveryAppend(MemoryStore):
    async def append(
        self, agent_id: str, entries: Sequence[Entry], *, after: int, lease: Lease | None = None, **rest: Any
    ) -> str | None:
        words = await super().append(agent_id, entries, after=after, lease=lease, **rest)
        if lease and self._session(agent_id).held:
            await self.renew(lease)
        return words


class RenewsWhatWasGivenBack(MemoryStore):
    async def renew(self, lease: Lease) -> str | None:
        session = self._session(lease.agent_id)
        if session.held is None:
            await self.acquire(lease.agent_id, lease.owner, lease.seconds)
            return None
        return await super().renew(lease)


class ReleasesWhoeverRuns(MemoryStore):
    async def release(self, lease: Lease) -> None:
        if lease.agent_id in self._shared.sessions:
            self._session(lease.agent_id).held = None


class ReleasesNothing(MemoryStore):
    async def release(self, lease: Lease) -> None:
        pass


class TrustsAClockThatWasPutBack(MemoryStore):
    async def acquire(self, agent_id: str, owner: str, seconds: float, **rest: Any) -> Lease:
        held = self._shared.sessions[agent_id].held if agent_id in self._shared.sessions else None
        if held and held.until > self._clock():
            raise SessionRunningError(agent_id, held.lease.owner, seconds)
        return await super().acquire(agent_id, owner, seconds, **rest)


class LosesALeaseToEveryPutBackClock(MemoryStore):
    async def acquire(self, agent_id: str, owner: str, seconds: float, **rest: Any) -> Lease:
        session = self._shared.sessions.get(agent_id)
        if session and session.held and session.held.until - self._clock() > timedelta(seconds=seconds):
            session.held = None
        return await super().acquire(agent_id, owner, seconds, **rest)


class DeletesWhatRuns(MemoryStore):
    async def delete(self, agent_id: str, *, expected_version: int | None = None) -> None:
        self._session(agent_id)
        del self._shared.sessions[agent_id]


class DeletesInSilence(MemoryStore):
    async def delete(self, agent_id: str, *, expected_version: int | None = None) -> None:
        if agent_id in self._shared.sessions:
            await super().delete(agent_id, expected_version=expected_version)


class ForgetsNothing(MemoryStore):
    async def delete(self, agent_id: str, *, expected_version: int | None = None) -> None:
        self._session(agent_id).must_be_free(self._clock())


class DeletesAnyVersion(MemoryStore):
    async def delete(self, agent_id: str, *, expected_version: int | None = None) -> None:
        await super().delete(agent_id)


class ChecksTheVersionBeforeItDeletes(MemoryStore):
    async def delete(self, agent_id: str, *, expected_version: int | None = None) -> None:
        found = len(self._session(agent_id).entries)
        self._session(agent_id).must_be_free(self._clock())
        if expected_version not in (None, found):
            raise ConflictError(agent_id, expected_version or 0, found)
        await asyncio.sleep(0)
        await super().delete(agent_id)


class ForksAnyVersion(MemoryStore):
    async def fork(self, agent_id: str, *, expected_version: int | None = None, **rest: Any) -> AgentState:
        return await super().fork(agent_id, **rest)


class ForksWithoutTheKey(MemoryStore):
    async def fork(self, agent_id: str, *, key: RequestKey | None = None, **rest: Any) -> AgentState:
        return await super().fork(agent_id, **rest)


class ForgetsWhenItIsClosed(MemoryStore):
    async def close(self) -> None:
        self._shared.sessions.clear()


class CannotReleaseWhatIsGone(MemoryStore):
    async def release(self, lease: Lease) -> None:
        if lease.agent_id not in self._shared.sessions:
            raise SessionNotFoundError(lease.agent_id)
        await super().release(lease)


class PagesByCounting(MemoryStore):
    """Right as long as nothing comes or goes between two pages."""

    async def find(self, wanted: SessionFilter, *, limit: int, after: str | None) -> Page:
        page = await super().find(wanted, limit=10_000 if limit > 0 else limit, after=None)
        begin = 0
        if after is not None:
            try:
                begin = int(after.removeprefix("from "))
            except ValueError:
                await super().find(wanted, limit=limit, after="")
        end = begin + limit
        return Page(page.sessions[begin:end], f"from {end}" if len(page.sessions) > end else None)


class AlwaysHasAnotherPage(MemoryStore):
    async def find(self, wanted: SessionFilter, *, limit: int, after: str | None) -> Page:
        page = await super().find(wanted, limit=limit, after=after)
        return Page(page.sessions, cursor_of(page.sessions[-1]) if page.sessions else None)


class StartsAnewWithABrokenCursor(MemoryStore):
    async def find(self, wanted: SessionFilter, *, limit: int, after: str | None) -> Page:
        try:
            return await super().find(wanted, limit=limit, after=after)
        except WhyloopError:
            return await super().find(wanted, limit=max(1, limit), after=None)


class OldestFirst(MemoryStore):
    async def find(self, wanted: SessionFilter, *, limit: int, after: str | None) -> Page:
        page = await super().find(wanted, limit=limit, after=after)
        return Page(page.sessions[::-1], page.next)


class OrdersIdsInAnyCase(MemoryStore):
    async def find(self, wanted: SessionFilter, *, limit: int, after: str | None) -> Page:
        page = await super().find(wanted, limit=limit, after=after)
        key = lambda summary: (summary.started_at, summary.agent_id.lower())  # noqa: E731
        return Page(tuple(sorted(page.sessions, key=key, reverse=True)), page.next)


class ListsNoRunner(MemoryStore):
    async def find(self, wanted: SessionFilter, *, limit: int, after: str | None) -> Page:
        page = await super().find(wanted, limit=limit, after=after)
        return Page(tuple(replace(summary, runner=None) for summary in page.sessions), page.next)


class ListsDeadRunners(MemoryStore):
    async def find(self, wanted: SessionFilter, *, limit: int, after: str | None) -> Page:
        page = await super().find(wanted, limit=limit, after=after)
        held = {agent_id: session.held for agent_id, session in self._shared.sessions.items()}
        names = {agent_id: lease.lease.owner if lease else None for agent_id, lease in held.items()}
        shown = tuple(replace(summary, runner=names[summary.agent_id]) for summary in page.sessions)
        return Page(shown, page.next)


class TakesOneForTrue(MemoryStore):
    async def find(self, wanted: SessionFilter, *, limit: int, after: str | None) -> Page:
        entries = wanted.metadata
        page = await super().find(replace(wanted, metadata={}), limit=limit, after=after)
        found = tuple(s for s in page.sessions if entries.items() <= _hashable(s.metadata).items())
        return Page(found, page.next)


class TakesNothingForNull(MemoryStore):
    async def find(self, wanted: SessionFilter, *, limit: int, after: str | None) -> Page:
        entries = {key: value for key, value in wanted.metadata.items() if value is not None}
        return await super().find(replace(wanted, metadata=entries), limit=limit, after=after)


class ForgetsOneFilter(MemoryStore):
    forgotten: str

    async def find(self, wanted: SessionFilter, *, limit: int, after: str | None) -> Page:
        return await super().find(replace(wanted, **{self.forgotten: None}), limit=limit, after=after)


class ForgetsTheStatus(ForgetsOneFilter):
    forgotten = "status"


class ForgetsTheReason(ForgetsOneFilter):
    forgotten = "stop_reason"


class ForgetsTheBeginning(ForgetsOneFilter):
    forgotten = "started_after"


class ForgetsTheEnd(ForgetsOneFilter):
    forgotten = "started_before"


class ChecksTheVersionAndThenWrites(MemoryStore):
    async def append(self, agent_id: str, entries: Sequence[Entry], *, after: int, **rest: Any) -> str | None:
        version = (await self.read(agent_id)).summary.version
        await asyncio.sleep(0)
        if version == after:
            after = (await self.read(agent_id)).summary.version
        return await super().append(agent_id, entries, after=after, **rest)


class LooksForALeaseAndThenTakesIt(MemoryStore):
    async def acquire(self, agent_id: str, owner: str, seconds: float, **rest: Any) -> Lease:
        free = agent_id in self._shared.sessions and self._session(agent_id).holder(self._clock()) is None
        await asyncio.sleep(0)
        if free:
            self._session(agent_id).held = None
        return await super().acquire(agent_id, owner, seconds, **rest)


class LooksForAnIdAndThenTakesIt(MemoryStore):
    async def create(self, summary: Summary, entries: Sequence[Entry], **rest: Any) -> None:
        free = summary.agent_id not in self._shared.sessions
        await asyncio.sleep(0)
        if free:
            self._shared.sessions.pop(summary.agent_id, None)
        await super().create(summary, entries, **rest)


class MixesSessionsUp(MemoryStore):
    writing = ""

    async def append(self, agent_id: str, entries: Sequence[Entry], *, after: int, **rest: Any) -> str | None:
        self.writing = agent_id
        await asyncio.sleep(0)
        return await super().append(self.writing, entries, after=after, **rest)


class LeasesWholeSeconds(MemoryStore):
    async def acquire(self, agent_id: str, owner: str, seconds: float, **rest: Any) -> Lease:
        return await super().acquire(agent_id, owner, int(seconds) or 1, **rest)


class MakesUpATitle(MemoryStore):
    async def create(self, summary: Summary, entries: Sequence[Entry], **rest: Any) -> None:
        await super().create(replace(summary, title=summary.title or "untitled"), entries, **rest)


class CannotKeepANul(MemoryStore):
    async def create(self, summary: Summary, entries: Sequence[Entry], **rest: Any) -> None:
        await super().create(replace(summary, title=summary.title.replace("\0", "")), entries, **rest)


class CutsLongMetadata(MemoryStore):
    async def find(self, wanted: SessionFilter, *, limit: int, after: str | None) -> Page:
        entries = {k: v[:1000] if isinstance(v, str) else v for k, v in wanted.metadata.items()}
        return await super().find(replace(wanted, metadata=entries), limit=limit, after=after)


class SaysNothingWithAnEmptyCursor(MemoryStore):
    async def find(self, wanted: SessionFilter, *, limit: int, after: str | None) -> Page:
        page = await super().find(wanted, limit=limit, after=after)
        return page if page.sessions else Page((), "")


def _hashable(metadata: Any) -> dict[str, Any]:
    return {key: value for key, value in metadata.items() if not isinstance(value, list | dict)}


class ForgetsTheRule(ForgetsOneFilter):
    forgotten = "resolved_by"


class ForgetsTheAgent(ForgetsOneFilter):
    forgotten = "agent"


class ForgetsTheLastUpdate(ForgetsOneFilter):
    forgotten = "updated_before"


class ForgetsTheFirstUpdate(ForgetsOneFilter):
    forgotten = "updated_after"


class ForgetsThatItWaits(ForgetsOneFilter):
    forgotten = "waiting"


class ForgetsTheSearch(ForgetsOneFilter):
    forgotten = "search"


class SearchesForTheWholeText(MemoryStore):
    async def find(self, wanted: SessionFilter, *, limit: int, after: str | None) -> Page:
        words = wanted.search and "_".join(wanted.search.split())
        return await super().find(replace(wanted, search=words), limit=limit, after=after)


class CountsAllSessions(MemoryStore):
    async def tally(self, wanted: SessionFilter, *, since: datetime) -> tuple[Tally, ...]:
        return await super().tally(SessionFilter(), since=since)


class CountsFromAnotherDay(MemoryStore):
    async def tally(self, wanted: SessionFilter, *, since: datetime) -> tuple[Tally, ...]:
        return await super().tally(wanted, since=since + timedelta(hours=1))


class ShowsTheNewestQuestionFirst(MemoryStore):
    async def waiting(self, metadata: Mapping[str, Any], *, limit: int) -> tuple[Summary, ...]:
        return tuple(reversed(await super().waiting(metadata, limit=limit)))


class ShowsAllQuestions(MemoryStore):
    async def waiting(self, metadata: Mapping[str, Any], *, limit: int) -> tuple[Summary, ...]:
        return await super().waiting({}, limit=limit)


BROKEN = broken_stores(globals(), ForgetsOneFilter)


@pytest.mark.parametrize("kind", BROKEN, ids=lambda kind: kind.__name__)
async def test_a_broken_store_fails_a_check(kind: type[MemoryStore]) -> None:
    await assert_some_check_fails(kind)


async def test_a_store_that_keeps_the_contract_fails_none() -> None:
    assert [check.__name__ for check in CHECKS if await fails(MemoryStore, check)] == []


def test_every_check_is_there_once_and_says_what_it_checks() -> None:
    names = [check.__name__ for check in CHECKS]
    assert len(names) == len(set(names)) > 100
    assert all(name.startswith("check_") for name in names)
