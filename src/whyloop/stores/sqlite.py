"""Sessions in one SQLite file: the store that needs nothing but a path."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from whyloop.errors import (
    ConfigurationError,
    ConflictError,
    LeaseLostError,
    SessionExistsError,
    SessionNotFoundError,
)
from whyloop.loop.world import SystemClock
from whyloop.stores import sqlite_statements as statements
from whyloop.stores.cursor import cursor_of
from whyloop.stores.records import Lease, Page, SessionFilter, Stored, Summary, Told, Watch
from whyloop.stores.sqlite_connection import Durability, Sleep, SqliteFile
from whyloop.stores.sqlite_errors import damaged
from whyloop.stores.sqlite_labels import beginnings, reindex
from whyloop.stores.sqlite_rows import (
    bodies_in,
    bounds,
    entries_from,
    entry_under,
    events_from,
    later,
    listing,
    places_in,
    places_of,
    seconds_left,
    session_of,
    stamp,
    summary_in,
    told_in,
)
from whyloop.stores.store import EVENTS, Store

_GREATEST = 2**63 - 1


class SqliteStore(Store):
    """A store in a file, for any number of processes on one machine; any thread may use it.

    What was recorded survives the death of the process, whatever killed it. With the durability
    "power" it also survives a power cut or a crash of the operating system, which may otherwise
    take the last moments with it, though never the file. That is not the default because agents
    die of deploys, of memory running out and of bugs, and a write that waits for the disk takes
    five to ten times as long. Whoever moves money chooses "power".

    Another process that writes is waited for, for at most `busy_seconds`.
    """

    inline = True
    adds_at_once = True

    def __init__(
        self,
        path: str | Path,
        *,
        durability: Durability = "process",
        busy_seconds: float = 10.0,
        clock: Watch | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        if str(path).startswith((":memory:", "file:")):
            raise ConfigurationError(
                "a SqliteStore is a file: give its path, or use MemoryStore for what need not last"
            )
        if durability not in ("process", "power"):
            raise ConfigurationError(f"durability is 'process' or 'power', and not {durability!r}")
        self._clock: Watch = clock or SystemClock()
        # How far the journals are that are written under the leases of this store: only who holds the
        # lease adds entries, and a number that is taken already is refused.
        self._versions: dict[int, int] = {}
        self._file = SqliteFile(Path(path).expanduser().absolute(), durability, busy_seconds, sleep)

    async def create(self, summary: Summary, entries: Sequence[str]) -> None:
        def work(db: sqlite3.Connection) -> None:
            row = listing(summary.agent_id, summary)
            if db.execute(statements.SESSION, (summary.agent_id,)).fetchone():
                raise SessionExistsError(summary.agent_id)
            number = db.execute(statements.CREATE, (*row, summary.agent_id)).lastrowid or 0
            db.executemany(statements.ADD_ENTRY, entries_from(number, 0, entries))
            reindex(db, set(), places_of(number, row))

        await self._file.write(work)

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
        def work(db: sqlite3.Connection) -> str | None:
            session = session_of(db, agent_id)
            if lease is None:
                session.must_be_free(agent_id, self._now())
            else:
                session.must_be_held_with(lease)
            if session.version != after:
                raise ConflictError(agent_id, after, session.version)
            for entry in entries_from(session.number, after, entries):
                db.execute(statements.ADD_ENTRY, entry)
            if summary is not None:
                row = listing(agent_id, summary)
                reindex(db, places_in(db, session.number), places_of(session.number, row))
                db.execute(statements.UPDATE, (*row, session.number))
            if lease is None:
                return None
            self._versions[lease.token] = after + len(entries)
            if release:
                db.execute(statements.RELEASE, (session.number,))
                del self._versions[lease.token]
            return session.words

        return await self._file.write(work)

    def add_at_once(self, lease: Lease, entry: str, after: int) -> bool:
        if self._versions.get(lease.token) != after or type(self).append is not SqliteStore.append:
            return False  # Who appends in another way does so always.
        if not self._file.done_at_once(statements.ADD_AT_ONCE, entry_under(lease, entry, after)):
            return False
        self._versions[lease.token] = after + 1
        return True

    async def read(self, agent_id: str, *, after: int = 0) -> Stored:
        def work(db: sqlite3.Connection) -> tuple[Any, list[tuple[int, str, int]]]:
            row = db.execute(statements.READ_SUMMARY, (agent_id,)).fetchone()
            if row is None:
                raise SessionNotFoundError(agent_id)
            return row, db.execute(statements.READ_ENTRIES, (row[-1], after)).fetchall()

        row, rows = await self._file.read(work)
        summary = self._summary(row)
        with self._intact(agent_id):
            return Stored(summary, bodies_in(row[-1], after, summary.version, rows))

    async def acquire(self, agent_id: str, owner: str, seconds: float) -> Lease:
        def work(db: sqlite3.Connection) -> Lease:
            session, now = session_of(db, agent_id), self._now()
            session.must_be_free(agent_id, now)
            db.execute(statements.ACQUIRE, (owner, seconds, later(now, seconds), session.number))
            lease = Lease(agent_id, owner, session.token + 1, seconds)
            self._versions[lease.token] = session.version
            return lease

        return await self._file.write(work)

    async def renew(self, lease: Lease) -> str | None:
        def work(db: sqlite3.Connection) -> str | None:
            session = session_of(db, lease.agent_id)
            session.must_be_held_with(lease)
            until = later(self._now(), lease.seconds)
            db.execute(statements.RENEW, (until, session.number))
            return session.words

        return await self._file.write(work)

    async def release(self, lease: Lease) -> str | None:
        def work(db: sqlite3.Connection) -> str | None:
            session = session_of(db, lease.agent_id)
            session.must_be_held_with(lease)
            db.execute(statements.RELEASE, (session.number,))
            return session.words

        self._versions.pop(lease.token, None)
        try:
            return await self._file.write(work)
        except (LeaseLostError, SessionNotFoundError):
            return None  # It is somebody else's by now.

    async def ask_to_stop(self, agent_id: str, reason: str) -> bool:
        def work(db: sqlite3.Connection) -> bool:
            session = session_of(db, agent_id)
            if not seconds_left(session.seconds, session.until, self._now()):
                return False
            db.execute(statements.ASK_TO_STOP, (reason, session.number))
            return True

        return await self._file.write(work)

    async def find(self, wanted: SessionFilter, *, limit: int, after: str | None) -> Page:
        if limit < 1:
            raise ConfigurationError(f"a page shows one session or more, so its limit cannot be {limit}")
        since, (until, end) = bounds(wanted, after)

        def work(db: sqlite3.Connection) -> list[Any]:
            return [
                row
                for place, others in beginnings(db, wanted, since, until)
                for row in db.execute(
                    statements.page(len(others)), (place, since, until, *others, until, end, limit + 1)
                )
            ]

        found = [self._summary(row) for row in await self._file.read(work)]
        found.sort(key=lambda summary: (summary.started_at, summary.agent_id), reverse=True)
        page = tuple(found[:limit])
        return Page(page, cursor_of(page[-1]) if len(found) > limit else None)

    async def delete(self, agent_id: str) -> None:
        def work(db: sqlite3.Connection) -> None:
            session = session_of(db, agent_id)
            session.must_be_free(agent_id, self._now())
            reindex(db, places_in(db, session.number), set())
            db.execute(statements.DELETE_ENTRIES, (session.number,))
            db.execute(statements.DELETE_EVENTS, (session.number,))
            db.execute(statements.DELETE_SESSION, (session.number,))

        await self._file.write(work)

    async def add_events(self, agent_id: str, told: Sequence[Told]) -> int:
        def work(db: sqlite3.Connection) -> int:
            place, number = _last_place(db, agent_id)
            last = max(0, place - (number << 32))
            db.executemany(statements.ADD_EVENT, events_from(number, last, told))
            return last + len(told)

        return await self._file.write(work)

    async def events(self, agent_id: str, *, after: int = 0, limit: int = EVENTS) -> tuple[Told, ...]:
        def work(db: sqlite3.Connection) -> tuple[int, list[Any]]:
            _, number = _last_place(db, agent_id)
            return number, db.execute(statements.READ_EVENTS, (number, max(0, after), limit)).fetchall()

        number, rows = await self._file.read(work)
        with self._intact(agent_id):
            return tuple([told_in(number, row) for row in rows])

    async def last_event(
        self, agent_id: str, *, execution_id: str | None = None, up_to: int | None = None
    ) -> Told | None:
        def work(db: sqlite3.Connection) -> tuple[int, Any]:
            _, number = _last_place(db, agent_id)
            if execution_id is None:
                return number, db.execute(statements.LAST_EVENT, (number,)).fetchone()
            greatest = _GREATEST if up_to is None else up_to
            found = db.execute(statements.LAST_OF_EXECUTION, (number, execution_id, greatest))
            return number, found.fetchone()

        number, row = await self._file.read(work)
        with self._intact(agent_id):
            return None if row is None else told_in(number, row)

    async def last_position(self, agent_id: str) -> int:
        def work(db: sqlite3.Connection) -> int:
            place, number = _last_place(db, agent_id)
            return max(0, place - (number << 32))

        return await self._file.read(work)

    def now(self) -> datetime:
        return self._clock.now()

    async def close(self) -> None:
        self._file.close()

    def _now(self) -> int:
        return stamp(self._clock.now())

    def _summary(self, row: tuple[Any, ...]) -> Summary:
        with self._intact(row[0]):
            return summary_in(row, self._now())

    @contextmanager
    def _intact(self, agent_id: str) -> Iterator[None]:
        """What is made of rows here are rows that this store wrote."""
        try:
            yield
        except (ValueError, TypeError, AttributeError, OverflowError) as error:
            raise damaged(self._file.path, f"of session {agent_id!r}, {error}") from None


def _last_place(db: sqlite3.Connection, agent_id: str) -> tuple[int, int]:
    """The last place at which something told is kept, up to the session's own, and the session's number."""
    row: tuple[int, int] | None = db.execute(statements.LAST_PLACE, (agent_id,)).fetchone()
    if row is None:
        raise SessionNotFoundError(agent_id)
    return row
