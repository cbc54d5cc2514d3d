"""Sessions in one SQLite file: the store that needs nothing but a path."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from whyloop.errors import (
    ConfigurationError,
    ConflictError,
    KeyUsedError,
    LeaseLostError,
    SessionExistsError,
    SessionNotFoundError,
    SessionRunningError,
)
from whyloop.stores import sqlite_schema as schema
from whyloop.stores.cursor import cursor_of
from whyloop.stores.records import (
    Checkpoint,
    Chunk,
    Entry,
    Lease,
    Page,
    RequestKey,
    SessionFilter,
    Stored,
    Summary,
    Watch,
    checked_limit,
    prunable,
)
from whyloop.stores.sqlite_chunks import SqliteChunks, SqliteReceiver
from whyloop.stores.sqlite_file import (
    LONGEST_LOG,
    Durability,
    RunnerLock,
    Sleep,
    SqliteFile,
    Work,
    WriterThread,
    connect_to,
    damaged,
)
from whyloop.stores.sqlite_schema import LONGEST_JOURNAL, HeldLease, SessionRow, stamp
from whyloop.stores.store import UNATTENDED, ChunkReceiver, Deliver, Store
from whyloop.values.scalars import utc_now
from whyloop.values.state import AgentStatus

T = TypeVar("T")

# To write so many entries takes about a millisecond; more of them are written in the thread.
MANY = 100
# The size of the log is looked at after so many writes, which takes 2 µs.
WRITES_PER_LOOK = 64


class SqliteStore(Store):
    """A store in a file, for any number of processes on one machine; any thread may use it.

    What was recorded survives the death of the process, whatever killed it. With the durability
    "power" it also survives a power cut or a crash of the operating system, which may otherwise lose
    the last moments, though never the file. That is not the default because agents die of deploys, of
    memory running out and of bugs, and a write that waits for the disk takes five to ten times as
    long. Choose "power" where money is moved. Writes then run in a thread, one after the other. Writes
    that take long, such as deleting a session, always do.

    A write waits for another process that writes, for at most `busy_seconds`.
    """

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
                f"{str(path)!r} is not a file: use the path of a file, or MemoryStore for what need not last"
            )
        if durability not in ("process", "power"):
            raise ConfigurationError(f"invalid durability {durability!r}: use 'process' or 'power'")
        self._clock: Callable[[], datetime] = clock.now if clock else utc_now
        self._busy_seconds = busy_seconds
        self._sleep = sleep
        database = Path(path).expanduser().absolute()
        connect = partial(connect_to, durability=durability)
        self._reads = SqliteFile(database, connect)
        self._reads.open()
        # The thread has a connection of its own: the event loop never waits for what it does.
        self._slow, self._thread = SqliteFile(database, connect), WriterThread()
        self.inline = durability == "process"
        self._writes = self._reads if self.inline else self._slow
        self._unlooked = 0
        self._emptying: asyncio.Task[None] | None = None
        self._runner = RunnerLock(database)
        self._chunks = SqliteChunks(database)

    # Journals

    async def create(
        self, summary: Summary, entries: Sequence[Entry], *, key: RequestKey | None = None
    ) -> None:
        def work(db: sqlite3.Connection) -> None:
            row = schema.listing(summary.agent_id, summary.identity, summary)
            if db.execute(schema.SESSION, (summary.agent_id,)).fetchone():
                raise SessionExistsError(summary.agent_id)
            number = db.execute(schema.CREATE, row).lastrowid or 0
            _add(db, number, 0, entries, key)
            schema.reindex(db, number, None, row)

        await self._write(work, is_long=len(entries) > MANY)

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
        if lease is not None and summary is None and key is None and not release and len(entries) == 1:
            entry = entries[0]
            if entry.checkpoint is None and lease.agent_id == agent_id and 0 < after < LONGEST_JOURNAL:
                done = (
                    self._add_one(lease, entry.body, after)
                    if self.inline
                    else await self._thread.run(partial(self._add_one, lease, entry.body, after))
                )
                if done:
                    self._look_at_log()
                    return None

        def work(db: sqlite3.Connection) -> str | None:
            session = _session(db, agent_id)
            if key is not None and (
                used := db.execute(schema.READ_KEY, (session.number, key.key)).fetchone()
            ):
                raise KeyUsedError(agent_id, key.key, *used)
            if lease is None:
                self._must_be_free(agent_id, session.lease)
            else:
                session.must_be_held_with(lease)
            if session.version != after:
                raise ConflictError(agent_id, after, session.version)
            _add(db, session.number, after, entries, key)
            if summary is not None:
                before = db.execute(schema.LISTING, (session.number,)).fetchone()
                row = schema.listing(agent_id, session.identity, summary)
                schema.reindex(db, session.number, before, row)
                db.execute(schema.UPDATE, (*row[2:], session.number))
            if lease is None:
                return None
            if release:
                db.execute(schema.RELEASE, (session.number,))
            return session.stop_request

        return await self._write(work, is_long=len(entries) > MANY)

    async def key(self, agent_id: str, key: str) -> tuple[str, int] | None:
        def work(db: sqlite3.Connection) -> tuple[str, int] | None:
            found: tuple[str, int] | None = db.execute(
                schema.READ_KEY, (_number(db, agent_id), key)
            ).fetchone()
            return found

        return await self._read(work)

    async def read(self, agent_id: str, *, after: int = 0, limit: int | None = None) -> Stored:
        first = max(0, after) + 1

        def work(db: sqlite3.Connection) -> tuple[tuple[Any, ...], list[tuple[int, str, int]]]:
            row = db.execute(schema.READ_SUMMARY, (agent_id,)).fetchone()
            if row is None:
                raise SessionNotFoundError(agent_id)
            most = -1 if limit is None else limit
            return row, db.execute(schema.READ_ENTRIES, (row[-1], first - 1, most)).fetchall()

        row, rows = await self._read(work)
        summary = self._summary(row)
        last = summary.version if limit is None else min(summary.version, first + limit - 1)
        with self._intact(agent_id):
            return Stored(summary, schema.bodies_in(row[-1], first, last, rows))

    async def checkpoint(
        self,
        agent_id: str,
        *,
        execution_id: str | None = None,
        seq: int | None = None,
        step_count: int | None = None,
        message_count: int | None = None,
    ) -> tuple[int, Checkpoint] | None:
        def work(db: sqlite3.Connection) -> tuple[int, Any]:
            number = _number(db, agent_id)
            values = (number, execution_id, seq, step_count, message_count)
            return number, db.execute(schema.READ_CHECKPOINT, values).fetchone()

        number, row = await self._read(work)
        with self._intact(agent_id):
            return None if row is None else schema.checkpoint_in(number, row)

    async def versions(self, agent_ids: Collection[str]) -> Mapping[str, tuple[str, int]]:
        if not agent_ids:
            return {}

        def work(db: sqlite3.Connection) -> list[tuple[str, str, int]]:
            wanted = msgspec.json.encode(list(agent_ids)).decode()
            return db.execute(schema.VERSIONS, (wanted,)).fetchall()

        rows = await self._read(work)
        return {agent_id: (identity, version) for agent_id, identity, version in rows}

    # Leases

    async def acquire(self, agent_id: str, owner: str, seconds: float) -> Lease:
        runner = self._runner.name()

        def work(db: sqlite3.Connection) -> Lease:
            session = _session(db, agent_id)
            self._must_be_free(agent_id, session.lease)
            db.execute(schema.ACQUIRE, (owner, seconds, self._until(seconds), runner, session.number))
            return Lease(agent_id, owner, session.token + 1, seconds)

        return await self._write(work)

    async def renew(self, lease: Lease) -> str | None:
        runner = self._runner.name()

        def work(db: sqlite3.Connection) -> str | None:
            session = _session(db, lease.agent_id)
            session.must_be_held_with(lease)
            db.execute(schema.RENEW, (self._until(lease.seconds), runner, session.number))
            return session.stop_request

        return await self._write(work)

    async def release(self, lease: Lease) -> str | None:
        def work(db: sqlite3.Connection) -> str | None:
            session = _session(db, lease.agent_id)
            session.must_be_held_with(lease)
            db.execute(schema.RELEASE, (session.number,))
            return session.stop_request

        try:
            return await self._write(work)
        except (LeaseLostError, SessionNotFoundError):
            return None  # Another runner has it by now.

    async def ask_to_stop(self, agent_id: str, reason: str) -> bool:
        def work(db: sqlite3.Connection) -> bool:
            session = _session(db, agent_id)
            if not self._seconds_left(session.lease):
                return False
            db.execute(schema.ASK_TO_STOP, (reason, session.number))
            return True

        return await self._write(work)

    async def stop_requests(self, leases: Collection[Lease]) -> Mapping[int, str]:
        if not leases:
            return {}
        rows = await self._read(lambda db: db.execute(schema.STOP_REQUESTS).fetchall())
        found = {schema.token_of(number, leases): reason for number, leases, reason in rows}
        return {lease.token: found[lease.token] for lease in leases if lease.token in found}

    # Lists

    async def find(self, wanted: SessionFilter, *, limit: int, after: str | None) -> Page:
        checked_limit(limit)
        rows = await self._read(lambda db: schema.matching(db, wanted, after, limit + 1))
        found = [self._summary(row) for row in rows]
        found.sort(key=lambda summary: (summary.started_at, summary.agent_id), reverse=True)
        page = tuple(found[:limit])
        return Page(page, cursor_of(page[-1]) if len(found) > limit else None)

    async def unattended(self, *, limit: int = UNATTENDED) -> tuple[Summary, ...]:
        checked_limit(limit)

        def work(db: sqlite3.Connection) -> list[tuple[Any, ...]]:
            free = self._free(db.execute(schema.UNATTENDED), limit)
            return [db.execute(schema.READ_SUMMARY, (row[1],)).fetchone() for row in free]

        return tuple([self._summary(row) for row in await self._read(work)])

    # Removal

    async def delete(self, agent_id: str, *, expected_version: int | None = None) -> None:
        def work(db: sqlite3.Connection) -> None:
            session = _session(db, agent_id)
            self._must_be_free(agent_id, session.lease)
            if expected_version is not None and session.version != expected_version:
                raise ConflictError(agent_id, expected_version, session.version)
            _delete(db, session.number)

        await self._write(work, is_long=True)
        await self._chunks.forget([agent_id])

    async def prune(
        self,
        *,
        statuses: Collection[AgentStatus],
        updated_before: datetime,
        limit: int,
        dry_run: bool = False,
    ) -> tuple[str, ...]:
        wanted, before = prunable(statuses), stamp(updated_before)
        checked_limit(limit)

        def work(db: sqlite3.Connection) -> tuple[str, ...]:
            found = sorted(
                row[:3]
                for status in wanted
                for row in self._free(db.execute(schema.PRUNABLE, (status.value, before)), limit)
            )[:limit]
            for _, _, number in () if dry_run else found:
                _delete(db, number)
            return tuple([agent_id for _, agent_id, _ in found])

        if dry_run:
            return await self._read(work)
        removed = await self._write(work, is_long=True)
        await self._chunks.forget(removed)
        return removed

    # Streaming text

    async def send_chunks(self, chunks: Sequence[Chunk]) -> None:
        await self._chunks.send(chunks)

    def receive_chunks(self, deliver: Deliver) -> ChunkReceiver:
        return SqliteReceiver(self._chunks, deliver)

    def now(self) -> datetime:
        return self._clock()

    async def close(self) -> None:
        self._runner.close()
        self._chunks.close()
        await self._thread.run(self._slow.close)
        await self._thread.run(self._reads.close)  # The last one to close empties the log into the file.
        self._thread.close()

    # Transactions

    async def _read(self, work: Work[T]) -> T:
        """Run a transaction that only reads, all of it at one moment."""

        async def attempt() -> T:
            return self._reads.transaction("BEGIN", work)

        return await self._reads.patiently(attempt, self._busy_seconds, self._sleep)

    async def _write(self, work: Work[T], *, is_long: bool = False) -> T:
        """Run a transaction that writes, on the event loop, or in the thread if it waits or takes long."""

        async def attempt() -> T:
            if self.inline and not is_long:
                return self._writes.transaction("BEGIN IMMEDIATE", work)
            return await self._thread.run(partial(self._slow.transaction, "BEGIN IMMEDIATE", work))

        result = await self._writes.patiently(attempt, self._busy_seconds, self._sleep)
        self._look_at_log(WRITES_PER_LOOK if is_long else 1)
        return result

    def _look_at_log(self, writes: int = 1) -> None:
        """Have the thread empty a log that has become long: to sync it takes milliseconds, or many."""
        self._unlooked += writes
        if self._unlooked >= WRITES_PER_LOOK:
            self._unlooked = 0
            is_idle = self._emptying is None or self._emptying.done()
            if is_idle and self._slow.log_size() > LONGEST_LOG:
                emptying = self._thread.run(self._slow.empty_log)
                self._emptying = asyncio.get_running_loop().create_task(emptying, name="whyloop log")

    def _add_one(self, lease: Lease, body: str, after: int) -> bool:
        """Append an entry with a single statement; False if `append` has to find out why it cannot."""
        try:
            values = schema.entry_under(lease, body, after)
        except UnicodeEncodeError:
            return False
        return self._writes.insert(schema.ADD_ENTRY_UNDER_LEASE, values)

    # Leases and rows

    def _until(self, seconds: float) -> int:
        return stamp(self._clock()) + round(seconds * 1_000_000)

    def _seconds_left(self, lease: HeldLease) -> float:
        """Return how long a lease still holds; 0 once it has lapsed or its runner is dead.

        Clocks are corrected by a little all the time, and that costs no runner its lease. A lease that
        ends later than twice its seconds from now was given by a clock that was wrong.
        """
        if lease.seconds is None or lease.until is None:
            return 0
        left = (lease.until - stamp(self._clock())) / 1_000_000
        return left if 0 < left <= 2 * lease.seconds and self._runner.is_alive(lease.runner) else 0

    def _must_be_free(self, agent_id: str, lease: HeldLease) -> None:
        left = self._seconds_left(lease)
        if left:
            raise SessionRunningError(agent_id, lease.owner or "", left)

    def _free(self, rows: sqlite3.Cursor, limit: int) -> list[tuple[Any, ...]]:
        """Return the first rows whose lease, in the last columns, does not hold."""
        free: list[tuple[Any, ...]] = []
        for row in rows:
            if not self._seconds_left(HeldLease(*row[-4:])):
                free.append(row)
                if len(free) == limit:
                    break
        return free

    def _summary(self, row: tuple[Any, ...]) -> Summary:
        lease = HeldLease(*row[-5:-1])
        with self._intact(row[0]):
            return schema.summary_in(row, lease.owner if self._seconds_left(lease) else None)

    @contextmanager
    def _intact(self, agent_id: str) -> Iterator[None]:
        """Report rows that cannot be read: they are not as this store wrote them."""
        try:
            yield
        except (ValueError, TypeError, AttributeError, OverflowError) as error:
            raise damaged(self._reads.path, f"in session {agent_id!r}, {error}") from None


def _session(db: sqlite3.Connection, agent_id: str) -> SessionRow:
    row = db.execute(schema.SESSION, (agent_id,)).fetchone()
    if row is None:
        raise SessionNotFoundError(agent_id)
    return SessionRow.of(row)


def _number(db: sqlite3.Connection, agent_id: str) -> int:
    row = db.execute("SELECT number FROM sessions WHERE agent_id = ?", (agent_id,)).fetchone()
    if row is None:
        raise SessionNotFoundError(agent_id)
    return int(row[0])


def _add(
    db: sqlite3.Connection, number: int, after: int, entries: Sequence[Entry], key: RequestKey | None
) -> None:
    """Add entries with their checkpoints, and the key under which they were added."""
    db.executemany(schema.ADD_ENTRY, schema.entry_rows(number, after, entries))
    db.executemany(schema.ADD_CHECKPOINT, schema.checkpoint_rows(number, after, entries))
    if key is not None:
        db.execute(schema.ADD_KEY, (number, key.key, key.digest, after + len(entries)))


def _delete(db: sqlite3.Connection, number: int) -> None:
    schema.reindex(db, number, db.execute(schema.LISTING, (number,)).fetchone(), None)
    for statement in schema.DELETE:
        db.execute(statement, (number,))
