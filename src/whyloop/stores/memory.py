"""Sessions in the memory of this process: the simplest implementation of a store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from threading import Lock
from typing import Self
from weakref import ref

from msgspec import Struct, field
from msgspec.structs import asdict, replace

from whyloop.errors import (
    ConflictError,
    KeyUsedError,
    LeaseLostError,
    SessionExistsError,
    SessionNotFoundError,
    SessionRunningError,
    WorkflowOpenError,
)
from whyloop.stores.listing import (
    labels_of,
    page_of,
    position,
    search_terms,
    tallies_of,
    wanted_labels,
    with_counts,
)
from whyloop.stores.live import ChunkReceiver, Deliver
from whyloop.stores.records import (
    Chunk,
    Lease,
    OpenWorkflow,
    Page,
    RequestKey,
    SessionFilter,
    Stored,
    Summary,
    Tally,
    Watch,
    check_lease,
    check_workflow,
    checked_claim,
    checked_key,
    checked_limit,
    claim_key,
    remaining_seconds,
)
from whyloop.stores.store import UNATTENDED, Store
from whyloop.values.encoding import jsonable
from whyloop.values.scalars import as_utc, utc_now
from whyloop.values.state import AgentStatus
from whyloop.wire.journal import Checkpoint, Counts, Entry


class MemoryStore(Store):
    """A store for tests, and for sessions that need not outlive the process; any thread may use it.

    A second store with `beside` has the same sessions, as if a second process had opened them.

    Args:
        clock: The clock by which leases lapse. Default: that of this machine.
        beside: Another store that has the same sessions. Default: none.
    """

    name = "memory"
    inline = True

    def __init__(self, clock: Watch | None = None, *, beside: MemoryStore | None = None) -> None:
        self._clock: Callable[[], datetime] = clock.now if clock else beside._clock if beside else utc_now
        self._shared: _Shared = beside._shared if beside else _Shared()
        self._runner = _Runner()

    async def create(
        self, summary: Summary, entries: Sequence[Entry], *, key: RequestKey | None = None
    ) -> None:
        copy = with_counts(_copy(summary), entries)
        session = _Session(copy, set(labels_of(copy)), list(entries))
        session.keep(key)
        with self._shared.lock:
            if summary.agent_id in self._shared.sessions:
                raise SessionExistsError(summary.agent_id)
            self._shared.sessions[summary.agent_id] = session

    async def append(
        self,
        agent_id: str,
        entries: Sequence[Entry],
        *,
        after: int,
        lease: Lease | None = None,
        summary: Summary | None = None,
        release: bool = False,
        key: RequestKey | None = None,
    ) -> str | None:
        added, changed = list(entries), _copy(summary) if summary else None
        with self._shared.lock:
            session = self._session(agent_id)
            session.must_not_have(key)
            if lease is None:
                reason = None
                session.must_be_free(self._clock())
            else:
                reason = session.held_with(lease).stop_request
            if len(session.entries) != after:
                raise ConflictError(agent_id, after, len(session.entries))
            session.entries += added
            session.keep(key)
            if changed is not None:
                changed = with_counts(changed, added)
                session.summary = replace(changed, agent_id=agent_id, identity=session.summary.identity)
                session.labels, session.counts = set(labels_of(changed)), None
            elif added:
                session.counts = added[-1].counts
            if release and lease is not None:
                session.held = None
            return reason

    async def key(self, agent_id: str, key: str) -> tuple[str, int] | None:
        with self._shared.lock:
            return self._session(agent_id).keys.get(key)

    async def read(self, agent_id: str, *, after: int = 0, limit: int | None = None) -> Stored:
        first = max(0, after)
        end = None if limit is None else first + limit
        with self._shared.lock:
            session = self._session(agent_id)
            bodies = tuple([entry.body for entry in session.entries[first:end]])
            return Stored(session.shown(self._clock()), bodies)

    async def checkpoint(
        self,
        agent_id: str,
        *,
        execution_id: str | None = None,
        seq: int | None = None,
        step_count: int | None = None,
        message_count: int | None = None,
    ) -> tuple[int, Checkpoint] | None:
        with self._shared.lock:
            entries = self._session(agent_id).entries
            for version in range(len(entries) - 1, -1, -1):
                found = entries[version].checkpoint
                if (
                    found is not None
                    and (execution_id is None or found.execution_id == execution_id)
                    and (seq is None or found.seq <= seq)
                    and (step_count is None or found.step_count <= step_count)
                    and (message_count is None or found.message_count <= message_count)
                ):
                    return version, found
        return None

    async def versions(self, agent_ids: Collection[str]) -> Mapping[str, tuple[str, int]]:
        with self._shared.lock:
            found = {agent_id: self._shared.sessions.get(agent_id) for agent_id in agent_ids}
            return {
                agent_id: (session.summary.identity, len(session.entries))
                for agent_id, session in found.items()
                if session is not None
            }

    async def acquire(self, agent_id: str, owner: str, seconds: float, *, durable: bool = False) -> Lease:
        check_lease(owner, seconds)
        with self._shared.lock:
            session, now = self._session(agent_id), self._clock()
            before = session.held
            if not (durable and before and before.lease.durable and before.lease.owner == owner):
                session.must_be_free(now)
            identity, version = session.summary.identity, len(session.entries)
            lease = Lease(agent_id, owner, next(self._shared.tokens), seconds, identity, version, durable)
            unseen = before.stop_request if before else None
            runner = None if durable else ref(self._runner)
            session.held = _Held(lease, now + timedelta(seconds=seconds), runner, unseen)
            return lease

    async def renew(self, lease: Lease) -> str | None:
        with self._shared.lock:
            held = self._session(lease.agent_id).held_with(lease)
            held.until = self._clock() + timedelta(seconds=lease.seconds)
            held.runner = None if held.lease.durable else ref(self._runner)
            return held.stop_request

    async def release(self, lease: Lease) -> str | None:
        with self._shared.lock:
            session = self._shared.sessions.get(lease.agent_id)
            if session is None or session.held is None or session.held.lease.token != lease.token:
                return None
            reason, session.held = session.held.stop_request, None
            return reason

    async def ask_to_stop(self, agent_id: str, reason: str, *, key: RequestKey | None = None) -> bool:
        with self._shared.lock:
            session = self._session(agent_id)
            session.must_not_have(key)
            held = session.holder(self._clock())
            if held is not None:
                held.stop_request = reason
                session.keep(key)
            return held is not None

    async def stop_requests(self, leases: Collection[Lease]) -> Mapping[int, str]:
        with self._shared.lock:
            found: dict[int, str] = {}
            for lease in leases:
                session = self._shared.sessions.get(lease.agent_id)
                held = session.held if session else None
                if held is not None and held.lease.token == lease.token and held.stop_request is not None:
                    found[lease.token] = held.stop_request
            return found

    async def find(self, wanted: SessionFilter, *, limit: int, after: str | None) -> Page:
        checked_limit(limit)
        end = None if after is None else position(after)
        with self._shared.lock:
            now = self._clock()
            matching = self._matching(wanted)
            found = [session for session in matching if end is None or _place(session.summary) < end]
            found.sort(key=lambda session: _place(session.summary), reverse=True)
            return page_of([session.shown(now) for session in found[: limit + 1]], limit)

    async def tally(self, wanted: SessionFilter, *, since: datetime) -> tuple[Tally, ...]:
        with self._shared.lock:
            found = [session.summary for session in self._matching(wanted)]
        return tallies_of(found, since)

    async def waiting(
        self, metadata: Mapping[str, str | int | float | bool | None], *, limit: int
    ) -> tuple[Summary, ...]:
        checked_limit(limit)
        with self._shared.lock:
            now, wanted = self._clock(), SessionFilter(metadata=metadata, waiting=True)
            found = [session.shown(now) for session in self._matching(wanted)]
        found.sort(key=lambda summary: (summary.updated_at, summary.agent_id))
        return tuple(found[:limit])

    async def unattended(
        self, *, limit: int = UNATTENDED, agents: Collection[str] | None = None
    ) -> tuple[Summary, ...]:
        checked_limit(limit)
        with self._shared.lock:
            now = self._clock()
            found = [
                session.shown(now)
                for session in self._shared.sessions.values()
                if _could_continue(session.summary)
                and (agents is None or session.summary.agent in agents)
                and session.holder(now) is None
            ]
        found.sort(key=lambda summary: (summary.updated_at, summary.agent_id))
        return tuple(found[:limit])

    async def keep_claim(self, agent_id: str, data: bytes) -> str:
        key = await claim_key(data)
        with self._shared.lock:
            self._session(agent_id).claims.setdefault(key, data)
        return key

    async def claim(self, agent_id: str, key: str) -> bytes:
        checked_key(key)
        with self._shared.lock:
            data = self._session(agent_id).claims.get(key)
        return await checked_claim(agent_id, key, data)

    async def record_workflow(self, agent_id: str, engine: str, workflow: str) -> OpenWorkflow:
        check_workflow(engine, workflow)
        with self._shared.lock:
            session = self._session(agent_id)
            session.must_have_no_workflow_but(engine, workflow)
            session.opened = OpenWorkflow(agent_id, engine, workflow, next(self._shared.tokens))
            session.opened_at = self._clock()
            return session.opened

    async def open_workflows(self, engine: str, *, limit: int) -> tuple[OpenWorkflow, ...]:
        checked_limit(limit)
        with self._shared.lock:
            now = self._clock()
            found = [
                replace(session.opened, seconds=(now - session.opened_at).total_seconds())
                for session in self._shared.sessions.values()
                if session.opened is not None
                and session.opened.engine == engine
                and session.summary.status not in (AgentStatus.IN_PROGRESS, AgentStatus.PAUSED)
            ]
        found.sort(key=lambda opened: (-opened.seconds, opened.token))
        return tuple(found[:limit])

    async def forget_workflow(self, agent_id: str, token: int) -> None:
        with self._shared.lock:
            session = self._shared.sessions.get(agent_id)
            if session is not None and session.opened is not None and session.opened.token == token:
                session.opened = None

    async def delete(self, agent_id: str, *, expected_version: int | None = None) -> None:
        with self._shared.lock:
            session = self._session(agent_id)
            session.must_be_free(self._clock())
            session.must_have_no_workflow_but()
            if expected_version is not None and len(session.entries) != expected_version:
                raise ConflictError(agent_id, expected_version, len(session.entries))
            del self._shared.sessions[agent_id]

    async def send_chunks(self, chunks: Sequence[Chunk]) -> None:
        with self._shared.lock:
            receivers = [each for each in self._shared.receivers if each.store is not self]
        for receiver in receivers:
            receiver.send(chunks)

    def receive_chunks(self, deliver: Deliver) -> ChunkReceiver:
        return _Receiver(self, self._shared, deliver)

    def now(self) -> datetime:
        return self._clock()

    async def close(self) -> None:
        """Void the leases of this object; there is nothing else to release."""
        self._runner = _Runner()

    def _matching(self, wanted: SessionFilter) -> list[_Session]:
        labels, terms = wanted_labels(wanted), search_terms(wanted)
        return [
            session
            for session in self._shared.sessions.values()
            if session.labels.issuperset(labels)
            and _is_within(session.summary, wanted)
            and all(term in session.summary.search for term in terms)
        ]

    def _session(self, agent_id: str) -> _Session:
        session = self._shared.sessions.get(agent_id)
        if session is None:
            raise SessionNotFoundError(agent_id)
        return session


class _Runner:
    """A runner, alive while its store object is open; afterwards its leases are void."""


class _Shared:
    """The sessions that several store objects share."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.sessions: dict[str, _Session] = {}
        # One counter for all sessions, so that a lease of a deleted one is never valid for its successor.
        self.tokens = count(1)
        self.receivers: list[_Receiver] = []


class _Receiver(ChunkReceiver):
    """Receive chunks on the event loop on which it was entered."""

    def __init__(self, store: MemoryStore, shared: _Shared, deliver: Deliver) -> None:
        super().__init__(deliver)
        self.store = store
        self._shared = shared
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        with self._shared.lock:
            self._shared.receivers.append(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        with self._shared.lock:
            self._shared.receivers.remove(self)
        self.followed.clear()

    async def catch_up(self) -> None:
        await asyncio.sleep(0)  # For one round: what was sent before waits in the event loop.

    def send(self, chunks: Sequence[Chunk]) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.hand_over, tuple(chunks))


class _Held(Struct):
    """A lease that was not released, and when it expires."""

    lease: Lease
    until: datetime
    runner: ref[_Runner] | None
    stop_request: str | None = None

    def seconds_left(self, now: datetime) -> float:
        """Return the seconds left of the lease; 0 if it expired or its runner is dead."""
        is_alive = self.runner is None or self.runner() is not None
        return remaining_seconds((self.until - now).total_seconds(), self.lease.seconds) if is_alive else 0


class _Session(Struct):
    """One session as it is stored."""

    summary: Summary
    labels: set[int]
    entries: list[Entry]
    keys: dict[str, tuple[str, int]] = field(default_factory=dict)
    held: _Held | None = None
    claims: dict[str, bytes] = field(default_factory=dict)
    counts: Counts | None = None
    opened: OpenWorkflow | None = None
    opened_at: datetime = datetime.min.replace(tzinfo=UTC)

    def must_not_have(self, key: RequestKey | None) -> None:
        if key is not None and key.key in self.keys:
            raise KeyUsedError(self.summary.agent_id, key.key, *self.keys[key.key])

    def keep(self, key: RequestKey | None) -> None:
        if key is not None:
            self.keys[key.key] = key.digest, len(self.entries)

    def holder(self, now: datetime) -> _Held | None:
        """Return the lease that has not expired, if there is one."""
        return self.held if self.held is not None and self.held.seconds_left(now) else None

    def held_with(self, lease: Lease) -> _Held:
        """Return this lease as it is held, even if it has expired."""
        if self.held is None or self.held.lease.token != lease.token:
            raise LeaseLostError(self.summary.agent_id, self.held.lease.owner if self.held else None)
        return self.held

    def must_be_free(self, now: datetime) -> None:
        held = self.holder(now)
        if held is not None:
            raise SessionRunningError(self.summary.agent_id, held.lease.owner, held.seconds_left(now))

    def must_have_no_workflow_but(self, *names: str) -> None:
        """Raise if another workflow than this one is recorded."""
        opened = self.opened
        if opened is not None and (opened.engine, opened.workflow) != names:
            raise WorkflowOpenError(opened.agent_id, opened.engine, opened.workflow, opened.token)

    def shown(self, now: datetime) -> Summary:
        """Return the summary with the fields that only a store knows."""
        held, opened = self.holder(now), self.opened
        counts = {} if self.counts is None else asdict(self.counts)
        return replace(
            _copy(self.summary),
            **counts,
            version=len(self.entries),
            runner=held.lease.owner if held else None,
            workflow=opened.workflow if opened else None,
        )


def _copy(summary: Summary) -> Summary:
    """Return the summary with a copy of its metadata, which callers may change."""
    return replace(summary, metadata=jsonable(summary.metadata))


def _place(summary: Summary) -> tuple[datetime, str]:
    """Return the key by which sessions are listed, the greatest first."""
    return as_utc(summary.started_at), summary.agent_id


def _could_continue(summary: Summary) -> bool:
    return summary.status is AgentStatus.IN_PROGRESS or (
        summary.status is AgentStatus.PAUSED and not summary.pending
    )


def _is_within(summary: Summary, wanted: SessionFilter) -> bool:
    return (
        (wanted.started_after is None or summary.started_at > wanted.started_after)
        and (wanted.started_before is None or summary.started_at < wanted.started_before)
        and (wanted.updated_before is None or summary.updated_at < wanted.updated_before)
        and (wanted.updated_after is None or summary.updated_at > wanted.updated_after)
    )
