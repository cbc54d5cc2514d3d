"""Sessions in the memory of this process: the contract of a store in its plainest form."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from threading import Lock
from typing import ClassVar

from msgspec import Struct
from msgspec.structs import replace

from whyloop.errors import (
    ConfigurationError,
    ConflictError,
    LeaseLostError,
    SessionExistsError,
    SessionNotFoundError,
    SessionRunningError,
)
from whyloop.loop.world import SystemClock
from whyloop.stores.cursor import cursor_of, position
from whyloop.stores.records import Lease, Page, SessionFilter, Stored, Summary, Told, Watch, label, labels_of
from whyloop.stores.store import EVENTS, Store
from whyloop.values.plain import jsonable


class MemoryStore(Store):
    """A store for tests, and for sessions that need not outlive the process; any thread may use it."""

    inline: ClassVar[bool] = True

    def __init__(self, clock: Watch | None = None) -> None:
        self._clock: Watch = clock or SystemClock()
        self._sessions: dict[str, _Session] = {}
        # One count for all sessions: no lease of a deleted one is ever that of its successor.
        self._tokens = count(1)
        self._lock = Lock()

    async def create(self, summary: Summary, entries: Sequence[str]) -> None:
        session = _Session(_copy(summary), list(entries))
        with self._lock:
            if summary.agent_id in self._sessions:
                raise SessionExistsError(summary.agent_id)
            self._sessions[summary.agent_id] = session

    async def append(
        self,
        agent_id: str,
        entries: Sequence[str],
        *,
        after: int,
        lease: Lease | None = None,
        summary: Summary | None = None,
        release: bool = False,
    ) -> str | None:
        added, changed = list(entries), _copy(summary) if summary else None
        with self._lock:
            session = self._session(agent_id)
            if lease is None:
                words = None
                session.must_be_free(self._clock.now())
            else:
                words = session.held_with(lease).words
            if len(session.entries) != after:
                raise ConflictError(agent_id, after, len(session.entries))
            session.entries += added
            session.summary = changed or session.summary
            if release and lease is not None:
                session.held = None
            return words

    async def read(self, agent_id: str, *, after: int = 0) -> Stored:
        with self._lock:
            session = self._session(agent_id)
            return Stored(session.shown(self._clock.now()), tuple(session.entries[after:]))

    async def acquire(self, agent_id: str, owner: str, seconds: float) -> Lease:
        with self._lock:
            session, now = self._session(agent_id), self._clock.now()
            session.must_be_free(now)
            lease = Lease(agent_id, owner, next(self._tokens), seconds)
            unheard = session.held.words if session.held else None
            session.held = _Held(lease, now + timedelta(seconds=seconds), unheard)
            return lease

    async def renew(self, lease: Lease) -> str | None:
        with self._lock:
            held = self._session(lease.agent_id).held_with(lease)
            held.until = self._clock.now() + timedelta(seconds=lease.seconds)
            return held.words

    async def release(self, lease: Lease) -> str | None:
        with self._lock:
            session = self._sessions.get(lease.agent_id)
            if session is None or session.held is None or session.held.lease != lease:
                return None
            words, session.held = session.held.words, None
            return words

    async def ask_to_stop(self, agent_id: str, reason: str) -> bool:
        with self._lock:
            held = self._session(agent_id).holder(self._clock.now())
            if held is not None:
                held.words = reason
            return held is not None

    async def find(self, wanted: SessionFilter, *, limit: int, after: str | None) -> Page:
        if limit < 1:
            raise ConfigurationError(f"a page shows one session or more, so its limit cannot be {limit}")
        end = None if after is None else position(after)
        with self._lock:
            now = self._clock.now()
            found = [
                session
                for session in self._sessions.values()
                if _matches(session.summary, wanted) and (end is None or _place(session.summary) < end)
            ]
            found.sort(key=lambda session: _place(session.summary), reverse=True)
            page = tuple(session.shown(now) for session in found[:limit])
        return Page(page, cursor_of(page[-1]) if len(found) > limit else None)

    async def delete(self, agent_id: str) -> None:
        with self._lock:
            self._session(agent_id).must_be_free(self._clock.now())
            del self._sessions[agent_id]

    async def add_events(self, agent_id: str, told: Sequence[Told]) -> int:
        with self._lock:
            events = self._session(agent_id).events
            events += [replace(each, position=place) for place, each in enumerate(told, len(events) + 1)]
            return len(events)

    async def events(self, agent_id: str, *, after: int = 0, limit: int = EVENTS) -> tuple[Told, ...]:
        first = max(0, after)
        with self._lock:
            return tuple(self._session(agent_id).events[first : first + limit])

    async def last_event(
        self, agent_id: str, *, execution_id: str | None = None, up_to: int | None = None
    ) -> Told | None:
        with self._lock:
            events = self._session(agent_id).events
            if execution_id is None:
                return events[-1] if events else None
            own = [
                told
                for told in events
                if told.execution_id == execution_id and (up_to is None or told.seq <= up_to)
            ]
            return max(own, key=lambda told: (told.seq, told.position), default=None)

    def now(self) -> datetime:
        return self._clock.now()

    async def close(self) -> None:
        """There is nothing to let go of."""

    def _session(self, agent_id: str) -> _Session:
        session = self._sessions.get(agent_id)
        if session is None:
            raise SessionNotFoundError(agent_id)
        return session


class _Held(Struct):
    """A lease that was not given back, until when it holds, and the words left for whoever has it."""

    lease: Lease
    until: datetime
    words: str | None = None

    def seconds_left(self, now: datetime) -> float:
        """None are left once the lease has lapsed.

        A clock is put right by a little all the time, and that costs nobody a lease. One that lies
        further ahead than twice its seconds was given by a clock that went wrong.
        """
        left = (self.until - now).total_seconds()
        return left if 0 < left <= 2 * self.lease.seconds else 0


class _Session(Struct):
    """What is stored of one session."""

    summary: Summary
    entries: list[str]
    held: _Held | None = None
    events: list[Told] = []

    def holder(self, now: datetime) -> _Held | None:
        """The lease that has time left, if there is one."""
        return self.held if self.held is not None and self.held.seconds_left(now) else None

    def held_with(self, lease: Lease) -> _Held:
        """The lease as it is held; whether it has time left matters to others only."""
        if self.held is None or self.held.lease != lease:
            raise LeaseLostError(self.summary.agent_id, self.held.lease.owner if self.held else None)
        return self.held

    def must_be_free(self, now: datetime) -> None:
        held = self.holder(now)
        if held is not None:
            raise SessionRunningError(self.summary.agent_id, held.lease.owner, held.seconds_left(now))

    def shown(self, now: datetime) -> Summary:
        """The summary with what only the store knows."""
        held = self.holder(now)
        return replace(
            _copy(self.summary), version=len(self.entries), runner=held.lease.owner if held else None
        )


def _copy(summary: Summary) -> Summary:
    """The summary with metadata of its own, so that nobody else can change it."""
    return replace(summary, metadata=jsonable(summary.metadata))


def _place(summary: Summary) -> tuple[datetime, str]:
    """By this sessions are listed, the greatest first."""
    return summary.started_at.astimezone(UTC), summary.agent_id


def _matches(summary: Summary, wanted: SessionFilter) -> bool:
    labels = labels_of(summary.metadata)
    return (
        (wanted.status is None or summary.status == wanted.status)
        and (wanted.stop_reason is None or summary.stop_reason == wanted.stop_reason)
        and (wanted.started_after is None or summary.started_at > wanted.started_after)
        and (wanted.started_before is None or summary.started_at < wanted.started_before)
        and all((label(key), label(value)) in labels for key, value in wanted.metadata.items())
    )
