"""Hundreds of random calls, each compared with what a few lines of plain Python expect."""

from __future__ import annotations

from collections.abc import Awaitable
from hashlib import sha256
from random import Random
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from whyloop.errors import (
    ConflictError,
    KeyUsedError,
    LeaseLostError,
    SessionExistsError,
    SessionNotFoundError,
    SessionRunningError,
    StoreError,
)
from whyloop.stores.records import Lease, RequestKey, Summary
from whyloop.stores.store import Store
from whyloop.testing.fakes import FakeClock
from whyloop.testing.store_checks import OpenStore, a_summary, at, journal, listed, same, stage
from whyloop.values.state import AgentStatus

_SECONDS = 30
_IDS = ("a", "b", "c")
_KEYS = ("k1", "k2", "k3")


async def check_random_use_gives_what_a_model_expects(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, clock), await open_store(clock) as other:
        use = _Use(clock)
        for number in range(600):
            await use.one_call((store, other)[use.random.randrange(2)], number)
            await use.compare(store, f"after call {number}")


class _Known(Struct):
    """A session as the model knows it."""

    summary: Summary
    entries: tuple[str, ...]
    keys: dict[str, tuple[str, int]] = {}
    lease: Lease | None = None
    lapses_at: float = 0
    reason: str | None = None
    claims: set[str] = set()

    def keep(self, key: RequestKey | None) -> None:
        if key is not None:
            self.keys[key.key] = key.digest, len(self.entries)


class _Use:
    """The sessions that should be stored, and every lease that was given."""

    def __init__(self, clock: FakeClock) -> None:
        self.random = Random(3)
        self.clock = clock
        self.known: dict[str, _Known] = {}
        self.leases: list[Lease] = []

    async def one_call(self, store: Store, number: int) -> None:
        """Make a random call for a random session, and compare its result."""
        often = [self.append] * 8 + [self.acquire, self.renew, self.create, self.ask] * 2
        call = self.random.choice([*often, self.release, self.delete, self.wait, self.keep_claim, self.claim])
        agent_id = self.random.choice(_IDS)
        attempt, expected = call(store, agent_id, number)
        what = f"what call {number}, {call.__name__} of {agent_id!r}, gives"
        got = await _outcome(attempt)
        if isinstance(got, Lease) and expected is Lease:
            self.leases.append(got)
            self.known[agent_id].lease = got
        else:
            same(got, expected, what)

    async def compare(self, store: Store, when: str) -> None:
        """Compare all that is stored with what the model knows."""
        for agent_id, known in self.known.items():
            stored = await store.read(agent_id)
            runner = known.lease.owner if known.lease and self.runs(known) else None
            expected = replace(known.summary, version=len(known.entries), runner=runner)
            same(stored.summary, expected, f"the summary of {agent_id!r} {when}")
            same(stored.entries, known.entries, f"the entries of {agent_id!r} {when}")
            for key in _KEYS:
                same(await store.key(agent_id, key), known.keys.get(key), f"a key of {agent_id!r} {when}")
        versions = {name: (known.summary.identity, len(known.entries)) for name, known in self.known.items()}
        same(dict(await store.versions(_IDS)), versions, f"the versions {when}")
        reason = {
            known.lease.token: known.reason
            for known in self.known.values()
            if known.lease is not None and known.reason is not None
        }
        same(dict(await store.stop_requests(self.leases)), reason, f"the stop requests {when}")
        status, user = self.random.choice(list(AgentStatus)), self.random.choice(["ann", "bob"])
        found = [known.summary for known in self.known.values()]
        found.sort(key=lambda summary: (summary.started_at, summary.agent_id), reverse=True)
        for wanted in ({}, {"status": status}, {"metadata": {"user": user}}):
            ids = [
                summary.agent_id
                for summary in found
                if wanted.get("status", summary.status) == summary.status
                and wanted.get("metadata", summary.metadata) == summary.metadata
            ]
            same(await listed(store, **wanted), ids, f"what {wanted} finds {when}")

    def runs(self, known: _Known) -> bool:
        return known.lease is not None and self.clock.monotonic() < known.lapses_at

    # Each returns the call to make and its expected result: a value, or the type of an error.

    def create(self, store: Store, agent_id: str, number: int) -> tuple[Awaitable[object], object]:
        summary, entries = self._summary(agent_id, number), self._entries(number)
        key = self._key(number)
        attempt = store.create(summary, journal(*entries), key=key)
        if agent_id in self.known:
            return attempt, SessionExistsError
        self.known[agent_id] = _Known(summary, entries)
        self.known[agent_id].keep(key)
        return attempt, None

    def append(self, store: Store, agent_id: str, number: int) -> tuple[Awaitable[object], object]:
        known, entries = self.known.get(agent_id), self._entries(number)
        lease = self.random.choice([None, known.lease if known else None, self._some_lease(agent_id)])
        summary = self.random.choice([None, self._summary(agent_id, number)])
        release = self.random.random() < 0.2
        wrong = self.random.choice([0, 0, 0, 0, 1, -1])
        after = max(0, len(known.entries) + wrong) if known else 0
        key = self._key(number)
        attempt = store.append(
            agent_id, journal(*entries), after=after, lease=lease, summary=summary, release=release, key=key
        )
        if known is None:
            return attempt, SessionNotFoundError
        if key is not None and key.key in known.keys:
            return attempt, KeyUsedError
        if lease is not None and known.lease is not lease:
            return attempt, LeaseLostError
        if lease is None and self.runs(known):
            return attempt, SessionRunningError
        if after != len(known.entries):
            return attempt, ConflictError
        known.entries += entries
        known.keep(key)
        known.summary = summary or known.summary
        reason = known.reason if lease else None
        if release and lease:
            known.lease = known.reason = None
        return attempt, reason

    def acquire(self, store: Store, agent_id: str, number: int) -> tuple[Awaitable[object], object]:
        owner, durable = self.random.choice(["one", "two"]), self.random.random() < 0.5
        attempt, known = store.acquire(agent_id, owner, _SECONDS, durable=durable), self.known.get(agent_id)
        if known is None:
            return attempt, SessionNotFoundError
        held = known.lease
        again = durable and held is not None and held.durable and held.owner == owner
        if self.runs(known) and not again:
            return attempt, SessionRunningError
        known.lapses_at = self.clock.monotonic() + _SECONDS
        return attempt, Lease

    def renew(self, store: Store, agent_id: str, number: int) -> tuple[Awaitable[object], object]:
        lease = self._some_lease(agent_id) or Lease(agent_id, "another", 0, _SECONDS)
        attempt, known = store.renew(lease), self.known.get(agent_id)
        if known is None:
            return attempt, SessionNotFoundError
        if known.lease is not lease:
            return attempt, LeaseLostError
        known.lapses_at = self.clock.monotonic() + _SECONDS
        return attempt, known.reason

    def release(self, store: Store, agent_id: str, number: int) -> tuple[Awaitable[object], object]:
        lease = self._some_lease(agent_id) or Lease(agent_id, "another", 0, _SECONDS)
        known = self.known.get(agent_id)
        reason = None
        if known is not None and known.lease is lease:
            reason, known.lease, known.reason = known.reason, None, None
        return store.release(lease), reason

    def ask(self, store: Store, agent_id: str, number: int) -> tuple[Awaitable[object], object]:
        attempt, known = store.ask_to_stop(agent_id, "please"), self.known.get(agent_id)
        if known is None:
            return attempt, SessionNotFoundError
        if self.runs(known):
            known.reason = "please"
        return attempt, self.runs(known)

    def keep_claim(self, store: Store, agent_id: str, number: int) -> tuple[Awaitable[object], object]:
        data = b"claim %d" % self.random.randrange(3)
        attempt, known = store.keep_claim(agent_id, data), self.known.get(agent_id)
        if known is None:
            return attempt, SessionNotFoundError
        key = sha256(data).hexdigest()
        known.claims.add(key)
        return attempt, key

    def claim(self, store: Store, agent_id: str, number: int) -> tuple[Awaitable[object], object]:
        data = b"claim %d" % self.random.randrange(3)
        key = sha256(data).hexdigest()
        attempt, known = store.claim(agent_id, key), self.known.get(agent_id)
        if known is None:
            return attempt, SessionNotFoundError
        return attempt, data if key in known.claims else StoreError

    def delete(self, store: Store, agent_id: str, number: int) -> tuple[Awaitable[object], object]:
        known, expected = self.known.get(agent_id), self.random.choice([None, None, 1, 2, 3])
        attempt = store.delete(agent_id, expected_version=expected)
        if known is None:
            return attempt, SessionNotFoundError
        if self.runs(known):
            return attempt, SessionRunningError
        if expected not in (None, len(known.entries)):
            return attempt, ConflictError
        del self.known[agent_id]
        return attempt, None

    def wait(self, store: Store, agent_id: str, number: int) -> tuple[Awaitable[object], object]:
        return self.clock.sleep(self.random.choice([1, 10, 31])), None

    def _summary(self, agent_id: str, number: int) -> Summary:
        return a_summary(
            agent_id,
            # Fixed for an id: when a session started never changes.
            started_at=at(_IDS.index(agent_id) % 2),
            status=self.random.choice(list(AgentStatus)),
            title=f"call {number}",
            metadata={"user": self.random.choice(["ann", "bob"])},
        )

    def _key(self, number: int) -> RequestKey | None:
        key = self.random.choice([None] * 9 + list(_KEYS))
        return None if key is None else RequestKey(key, f"digest {number}")

    def _entries(self, number: int) -> tuple[str, ...]:
        return tuple(f"{number}.{part}" for part in range(self.random.randrange(4)))

    def _some_lease(self, agent_id: str) -> Lease | None:
        """Return one of the latest leases of a session, lost or not."""
        latest = [lease for lease in self.leases if lease.agent_id == agent_id][-2:]
        return self.random.choice(latest) if latest else None


async def _outcome(attempt: Awaitable[Any]) -> object:
    try:
        return await attempt
    except StoreError as error:
        return type(error)
