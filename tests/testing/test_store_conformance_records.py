"""The suite for stores detects faults of keys, checkpoints, pages, identities and versions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from tests.testing.broken import assert_some_check_fails, broken_stores
from whyloop.errors import KeyUsedError, WhyloopError
from whyloop.stores import Checkpoint, Entry, MemoryStore, RequestKey, Stored, Summary

# Keys


class ForgetsKeys(MemoryStore):
    async def append(self, agent_id: str, entries: Sequence[Entry], **rest: Any) -> str | None:
        return await super().append(agent_id, entries, **{**rest, "key": None})


class ForgetsTheKeyOfACreation(MemoryStore):
    async def create(self, summary: Summary, entries: Sequence[Entry], **rest: Any) -> None:
        await super().create(summary, entries)


class WritesTwiceUnderOneKey(MemoryStore):
    async def append(
        self, agent_id: str, entries: Sequence[Entry], *, key: RequestKey | None = None, **rest: Any
    ) -> str | None:
        if key is not None and agent_id in self._shared.sessions:
            self._session(agent_id).keys.pop(key.key, None)
        return await super().append(agent_id, entries, key=key, **rest)


class ChecksKeysLast(MemoryStore):
    async def append(
        self, agent_id: str, entries: Sequence[Entry], *, key: RequestKey | None = None, **rest: Any
    ) -> str | None:
        keys = dict(self._session(agent_id).keys)
        try:
            return await super().append(agent_id, entries, key=key, **rest)
        except KeyUsedError:
            self._session(agent_id).keys.clear()
            before = list(self._session(agent_id).entries)
            try:
                await super().append(agent_id, entries, **rest)
            finally:
                self._session(agent_id).entries[:] = before
                self._session(agent_id).keys.update(keys)
            raise


class KeepsTheKeyOfARefusedAppend(MemoryStore):
    async def append(
        self, agent_id: str, entries: Sequence[Entry], *, key: RequestKey | None = None, **rest: Any
    ) -> str | None:
        try:
            return await super().append(agent_id, entries, key=key, **rest)
        except WhyloopError:
            if agent_id in self._shared.sessions:
                self._session(agent_id).keep(key)
            raise


class StoresTheVersionBeforeAKey(MemoryStore):
    async def key(self, agent_id: str, key: str) -> tuple[str, int] | None:
        found = await super().key(agent_id, key)
        return found and (found[0], found[1] - 1)


class TakesKeysInAnyCase(MemoryStore):
    async def key(self, agent_id: str, key: str) -> tuple[str, int] | None:
        keys = self._session(agent_id).keys
        return next((found for name, found in keys.items() if name.lower() == key.lower()), None)


class TrimsKeys(MemoryStore):
    async def key(self, agent_id: str, key: str) -> tuple[str, int] | None:
        return await super().key(agent_id, key.strip())


class SharesKeysBetweenSessions(MemoryStore):
    async def key(self, agent_id: str, key: str) -> tuple[str, int] | None:
        await super().key(agent_id, key)
        keys = [session.keys for session in self._shared.sessions.values()]
        return next((found[key] for found in keys if key in found), None)


class KeepsTheKeysOfADeletedSession(MemoryStore):
    async def delete(self, agent_id: str, *, expected_version: int | None = None) -> None:
        keys = self._session(agent_id).keys
        await super().delete(agent_id, expected_version=expected_version)
        self.__class__.kept = {agent_id: keys}

    kept: Mapping[str, dict[str, tuple[str, int]]] = {}

    async def create(self, summary: Summary, entries: Sequence[Entry], **rest: Any) -> None:
        await super().create(summary, entries, **rest)
        self._session(summary.agent_id).keys.update(self.kept.get(summary.agent_id, {}))


class NamesTheDigestOfTheSecondRequest(MemoryStore):
    async def append(
        self, agent_id: str, entries: Sequence[Entry], *, key: RequestKey | None = None, **rest: Any
    ) -> str | None:
        try:
            return await super().append(agent_id, entries, key=key, **rest)
        except KeyUsedError as error:
            assert key is not None
            raise KeyUsedError(agent_id, key.key, key.digest, error.version) from None


class NeverMissesASessionOfAKey(MemoryStore):
    async def key(self, agent_id: str, key: str) -> tuple[str, int] | None:
        return await super().key(agent_id, key) if agent_id in self._shared.sessions else None


# Checkpoints


class FindsAnyCheckpoint(MemoryStore):
    ignored: str

    async def checkpoint(self, agent_id: str, **wanted: Any) -> tuple[int, Checkpoint] | None:
        return await super().checkpoint(agent_id, **{**wanted, self.ignored: None})


class IgnoresTheExecution(FindsAnyCheckpoint):
    ignored = "execution_id"


class IgnoresTheSeq(FindsAnyCheckpoint):
    ignored = "seq"


class IgnoresTheSteps(FindsAnyCheckpoint):
    ignored = "step_count"


class IgnoresTheMessages(FindsAnyCheckpoint):
    ignored = "message_count"


class NamesTheVersionAfterTheEntry(MemoryStore):
    async def checkpoint(self, agent_id: str, **wanted: Any) -> tuple[int, Checkpoint] | None:
        found = await super().checkpoint(agent_id, **wanted)
        return found and (found[0] + 1, found[1])


class FindsTheFirstCheckpoint(MemoryStore):
    async def checkpoint(self, agent_id: str, **wanted: Any) -> tuple[int, Checkpoint] | None:
        entries = self._session(agent_id).entries
        self._session(agent_id).entries = entries[::-1]
        found = await super().checkpoint(agent_id, **wanted)
        self._session(agent_id).entries = entries
        return found and (len(entries) - 1 - found[0], found[1])


class FindsTheCheckpointWithTheMostSteps(MemoryStore):
    async def checkpoint(self, agent_id: str, **wanted: Any) -> tuple[int, Checkpoint] | None:
        if any(value is not None for value in wanted.values()):
            return await super().checkpoint(agent_id, **wanted)
        points = [
            (version, entry.checkpoint) for version, entry in enumerate(self._session(agent_id).entries)
        ]
        found = [(version, point) for version, point in points if point is not None]
        return max(found, key=lambda each: each[1].step_count, default=None)


class FindsSmallerNumbersOnly(MemoryStore):
    async def checkpoint(self, agent_id: str, **wanted: Any) -> tuple[int, Checkpoint] | None:
        if wanted.get("step_count") is not None:
            wanted["step_count"] -= 1
        return await super().checkpoint(agent_id, **wanted)


class CutsLongCheckpoints(MemoryStore):
    async def checkpoint(self, agent_id: str, **wanted: Any) -> tuple[int, Checkpoint] | None:
        found = await super().checkpoint(agent_id, **wanted)
        return found and (found[0], replace(found[1], state=found[1].state[:65_535]))


class ForgetsTheCheckpointsOfACreation(MemoryStore):
    async def create(self, summary: Summary, entries: Sequence[Entry], **rest: Any) -> None:
        await super().create(summary, [Entry(entry.body) for entry in entries], **rest)


class NeverMissesASessionOfACheckpoint(MemoryStore):
    async def checkpoint(self, agent_id: str, **wanted: Any) -> tuple[int, Checkpoint] | None:
        return await super().checkpoint(agent_id, **wanted) if agent_id in self._shared.sessions else None


# Pages of a journal, identities and versions


class IgnoresTheLimit(MemoryStore):
    async def read(self, agent_id: str, *, after: int = 0, limit: int | None = None) -> Stored:
        return await super().read(agent_id, after=after)


class CountsTheVersionOnThePage(MemoryStore):
    async def read(self, agent_id: str, *, after: int = 0, limit: int | None = None) -> Stored:
        stored = await super().read(agent_id, after=after, limit=limit)
        if limit is None:
            return stored
        return Stored(replace(stored.summary, version=after + len(stored.entries)), stored.entries)


class LimitsFromTheBeginning(MemoryStore):
    async def read(self, agent_id: str, *, after: int = 0, limit: int | None = None) -> Stored:
        stored = await super().read(agent_id, after=after)
        return stored if limit is None else Stored(stored.summary, stored.entries[: max(0, limit - after)])


class TakesTheIdentityOfAnAppend(MemoryStore):
    async def append(
        self, agent_id: str, entries: Sequence[Entry], *, summary: Summary | None = None, **rest: Any
    ) -> str | None:
        reason = await super().append(agent_id, entries, summary=summary, **rest)
        if summary is not None:
            session = self._session(agent_id)
            session.summary = replace(session.summary, identity=summary.identity)
        return reason


class ReadsListedSessionsAsTheyAreNow(MemoryStore):
    async def read_listed(self, sessions: Sequence[Summary]) -> Sequence[Sequence[str] | None]:
        found = [self._shared.sessions.get(each.agent_id) for each in sessions]
        return [None if each is None else [entry.body for entry in each.entries] for each in found]


class TakesTheIdOfAnAppend(MemoryStore):
    async def append(
        self, agent_id: str, entries: Sequence[Entry], *, summary: Summary | None = None, **rest: Any
    ) -> str | None:
        reason = await super().append(agent_id, entries, summary=summary, **rest)
        if summary is not None:
            session = self._session(agent_id)
            session.summary = replace(session.summary, agent_id=summary.agent_id)
        return reason


class ForgetsTheCost(MemoryStore):
    async def create(self, summary: Summary, entries: Sequence[Entry], **rest: Any) -> None:
        await super().create(replace(summary, cost=None, reason=None), entries, **rest)


class FindsVersionsOfMissingSessions(MemoryStore):
    async def versions(self, agent_ids: Collection[str]) -> Mapping[str, tuple[str, int]]:
        return {**dict.fromkeys(agent_ids, ("", 0)), **await super().versions(agent_ids)}


class CachesVersions(MemoryStore):
    async def versions(self, agent_ids: Collection[str]) -> Mapping[str, tuple[str, int]]:
        found = await super().versions(agent_ids)
        self.cache = {**found, **getattr(self, "cache", {})}
        return {agent_id: self.cache[agent_id] for agent_id in found}


class FindsAThousandVersions(MemoryStore):
    async def versions(self, agent_ids: Collection[str]) -> Mapping[str, tuple[str, int]]:
        return await super().versions(list(agent_ids)[:999])


# Counts


def _without_counts(entries: Sequence[Entry]) -> list[Entry]:
    return [replace(entry, counts=None) for entry in entries]


class ListsTheCountsOfTheBeginning(MemoryStore):
    async def append(self, agent_id: str, entries: Sequence[Entry], **rest: Any) -> str | None:
        return await super().append(agent_id, _without_counts(entries), **rest)


class ForgetsTheCountsOfACreation(MemoryStore):
    async def create(self, summary: Summary, entries: Sequence[Entry], **rest: Any) -> None:
        await super().create(summary, _without_counts(entries), **rest)


class ListsTheCountsOfTheFirstEntry(MemoryStore):
    async def append(self, agent_id: str, entries: Sequence[Entry], **rest: Any) -> str | None:
        return await super().append(agent_id, [*entries[:1], *_without_counts(entries[1:])], **rest)


class PrefersTheCountsOfASummary(MemoryStore):
    async def append(
        self, agent_id: str, entries: Sequence[Entry], *, summary: Summary | None = None, **rest: Any
    ) -> str | None:
        entries = entries if summary is None else _without_counts(entries)
        return await super().append(agent_id, entries, summary=summary, **rest)


class PrefersTheCountsBeforeASummary(MemoryStore):
    async def append(self, agent_id: str, entries: Sequence[Entry], **rest: Any) -> str | None:
        session = self._shared.sessions.get(agent_id)
        before = session.counts if session else None
        stop = await super().append(agent_id, entries, **rest)
        self._session(agent_id).counts = self._session(agent_id).counts or before
        return stop


class ListsTheCountsOfARefusedAppend(MemoryStore):
    async def append(self, agent_id: str, entries: Sequence[Entry], **rest: Any) -> str | None:
        if entries and agent_id in self._shared.sessions:
            self._session(agent_id).counts = entries[-1].counts
        return await super().append(agent_id, entries, **rest)


class ListsASessionAsChangedWithItsCounts(MemoryStore):
    async def append(
        self, agent_id: str, entries: Sequence[Entry], *, summary: Summary | None = None, **rest: Any
    ) -> str | None:
        if summary is None and entries and entries[-1].counts:
            known = self._session(agent_id).summary
            summary = replace(known, updated_at=known.updated_at + timedelta(days=1))
        return await super().append(agent_id, entries, summary=summary, **rest)


BROKEN = broken_stores(globals(), FindsAnyCheckpoint)


@pytest.mark.parametrize("kind", BROKEN, ids=lambda kind: kind.__name__)
async def test_a_broken_store_fails_a_check(kind: type[MemoryStore]) -> None:
    await assert_some_check_fails(kind)
