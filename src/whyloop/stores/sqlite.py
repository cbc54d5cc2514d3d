"""Sessions in one SQLite file: the store that needs nothing but a path."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from zlib import crc32

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
from whyloop.stores.live import ChunkReceiver, Deliver
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
    Tally,
    Watch,
    checked_limit,
    cursor_of,
    decode_summary,
    listing_of,
    position,
)
from whyloop.stores.runner_lock import RunnerLock
from whyloop.stores.sqlite_file import (
    LONGEST_LOG,
    Durability,
    Sleep,
    SqliteChunks,
    SqliteFile,
    SqliteReceiver,
    Work,
    WriterThread,
    connect_to,
)
from whyloop.stores.sqlite_lists import (
    LEASE,
    SUMMARY,
    VERSION,
    add_listing,
    change_listing,
    listing_checksum,
    page,
    remove_labels,
    stamp,
    tallies,
    waiting_rows,
)
from whyloop.stores.store import UNATTENDED, Store
from whyloop.values.scalars import utc_now

T = TypeVar("T")

# To write so many entries takes about a millisecond; more of them are written in the thread.
MANY = 100
# The size of the log is looked at after so many writes, which takes 2 µs.
WRITES_PER_LOOK = 64

# Read before every change.
_SESSION = (
    f"SELECT number, identity, leases, stop_request, {VERSION}, {LEASE} FROM sessions WHERE agent_id = ?"
)
_RELEASE = """
UPDATE sessions SET
    lease_owner = NULL, lease_seconds = NULL, lease_until = NULL, lease_runner = NULL, stop_request = NULL
WHERE number = ?
"""
# The most frequent write, as one statement: 26 µs, where a transaction that begins with _SESSION takes 40 µs.
# If the lease is not held, a stop request waits or the entry before is missing, the checksum is NULL; if the
# entry exists, its place is taken. Both are refused, and the transaction finds out why.
_ADD_ENTRY_UNDER_LEASE = """
INSERT INTO entries (place, body, checksum) VALUES (?1, ?2, (
    SELECT ?3 FROM sessions
    WHERE number = ?4 AND leases = ?5 AND lease_owner IS NOT NULL AND stop_request IS NULL
        AND EXISTS (SELECT 1 FROM entries WHERE place = ?1 - 1)
))
"""
_LONGEST_JOURNAL = 2**32 - 1


class SqliteStore(Store):
    """A store in a file, for any number of processes on one machine; any thread may use it.

    Recorded entries survive the death of the process, however it died. With the durability "power" they
    also survive a power cut or a crash of the operating system, which may otherwise lose the last
    moments, though never the file. That is not the default because agents die of deploys, of
    memory running out and of bugs, and a write that waits for the disk takes five to ten times as
    long. Choose "power" where money is moved. Writes then run in a thread, one after the other. Writes
    that take long, such as deleting a session, always do.

    A write waits for another process that writes, for at most `busy_seconds`.

    Args:
        path: The file; it is created if it does not exist.
        durability: "process" or "power". Default: "process".
        busy_seconds: The seconds to wait for another process that writes. Default: 10.
        clock: The clock by which leases lapse. Default: that of this machine.
        sleep: The function that waits, for tests.
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
        database = Path(path).expanduser().absolute()
        self.name = database.name
        connect = partial(connect_to, durability=durability)
        file = partial(SqliteFile, database, connect, busy_seconds=busy_seconds, sleep=sleep)
        self._reads = file()
        self._reads.open()
        # The thread has a connection of its own: the event loop never waits for what it does.
        self._thread = WriterThread()
        self._slow = file(thread=self._thread)
        self._scan_thread = WriterThread()
        self._scans = file(thread=self._scan_thread)
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
        agent_id, identity, listing = summary.agent_id, summary.identity, listing_of(summary)

        def work(db: sqlite3.Connection) -> None:
            if db.execute("SELECT 1 FROM sessions WHERE agent_id = ?", (agent_id,)).fetchone():
                raise SessionExistsError(agent_id)
            number = add_listing(db, agent_id, identity, listing)
            _add(db, number, 0, entries, key)

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
        if lease is not None and len(entries) == 1 and summary is None and key is None and not release:
            entry, is_possible = entries[0], lease.agent_id == agent_id and 0 < after < _LONGEST_JOURNAL
            if entry.checkpoint is None and is_possible and await self._insert(lease, entry.body, after):
                return None
        listing = None if summary is None else listing_of(summary)

        def work(db: sqlite3.Connection) -> str | None:
            session = _session(db, agent_id)
            if key is not None and (used := _key(db, session.number, key.key)):
                raise KeyUsedError(agent_id, key.key, *used)
            if lease is None:
                self._must_be_free(agent_id, session)
            else:
                session.must_be_held_with(lease)
            if session.version != after:
                raise ConflictError(agent_id, after, session.version)
            _add(db, session.number, after, entries, key)
            if listing is not None:
                change_listing(db, session.number, agent_id, session.identity, listing)
            if lease is None:
                return None
            if release:
                db.execute(_RELEASE, (session.number,))
            return session.stop_request

        return await self._write(work, is_long=len(entries) > MANY)

    async def key(self, agent_id: str, key: str) -> tuple[str, int] | None:
        return await self._read(lambda db: _key(db, _number(db, agent_id), key))

    async def read(self, agent_id: str, *, after: int = 0, limit: int | None = None) -> Stored:
        first, most = max(0, after) + 1, -1 if limit is None else limit

        def work(db: sqlite3.Connection) -> Stored:
            row = db.execute(f"SELECT {SUMMARY} WHERE agent_id = ?", (agent_id,)).fetchone()
            if row is None:
                raise SessionNotFoundError(agent_id)
            number, summary = row[5], self._summary(row)
            last = summary.version if limit is None else min(summary.version, first + limit - 1)
            rows = db.execute(
                "SELECT place & 0xFFFFFFFF, body, checksum FROM entries "
                "WHERE place > (?1 << 32) + ?2 AND place < (?1 + 1) << 32 ORDER BY place LIMIT ?3",
                (number, first - 1, most),
            ).fetchall()
            if len(rows) != max(0, last + 1 - first):
                raise ValueError(
                    f"in session {agent_id!r}, there are {len(rows)} entries from {first} to {last}"
                )
            for expected, (seq, body, checksum) in enumerate(rows, first):
                if seq != expected or checksum != _checksum(number, seq, body):
                    raise ValueError(f"in session {agent_id!r}, entry {expected} is not what was stored")
            return Stored(summary, tuple([body for _, body, _ in rows]))

        return await self._read(work)

    async def checkpoint(
        self,
        agent_id: str,
        *,
        execution_id: str | None = None,
        seq: int | None = None,
        step_count: int | None = None,
        message_count: int | None = None,
    ) -> tuple[int, Checkpoint] | None:
        def work(db: sqlite3.Connection) -> tuple[int, Checkpoint] | None:
            number = _number(db, agent_id)
            row = db.execute(
                "SELECT place & 0xFFFFFFFF, checksum, execution_id, seq, step_count, message_count, state "
                "FROM checkpoints WHERE place > ?1 << 32 AND place < (?1 + 1) << 32 "
                "AND (?2 IS NULL OR execution_id = ?2) AND (?3 IS NULL OR seq <= ?3) "
                "AND (?4 IS NULL OR step_count <= ?4) AND (?5 IS NULL OR message_count <= ?5) "
                "ORDER BY place DESC LIMIT 1",
                (number, execution_id, seq, step_count, message_count),
            ).fetchone()
            if row is None:
                return None
            version, checksum, *columns = row
            found = Checkpoint(*columns)
            if checksum != _checkpoint_checksum(number, version, found):
                raise ValueError(
                    f"in session {agent_id!r}, the checkpoint of entry {version} is not what was stored"
                )
            return version - 1, found

        return await self._read(work)

    async def versions(self, agent_ids: Collection[str]) -> Mapping[str, tuple[str, int]]:
        if not agent_ids:
            return {}
        wanted = msgspec.json.encode(list(agent_ids)).decode()
        query = f"""
SELECT agent_id, identity, {VERSION}
FROM json_each(?) AS wanted CROSS JOIN sessions ON sessions.agent_id = wanted.value
"""
        rows = await self._read(lambda db: db.execute(query, (wanted,)).fetchall())
        return {agent_id: (identity, version) for agent_id, identity, version in rows}

    # Leases

    async def acquire(self, agent_id: str, owner: str, seconds: float) -> Lease:
        runner = self._runner.name()

        def work(db: sqlite3.Connection) -> Lease:
            session = _session(db, agent_id)
            self._must_be_free(agent_id, session)
            db.execute(
                "UPDATE sessions SET leases = leases + 1, lease_owner = ?, lease_seconds = ?, "
                "lease_until = ?, lease_runner = ? WHERE number = ?",
                (owner, seconds, self._until(seconds), runner, session.number),
            )
            return Lease(agent_id, owner, session.token + 1, seconds, session.identity, session.version)

        return await self._write(work)

    async def renew(self, lease: Lease) -> str | None:
        runner = self._runner.name()

        def work(db: sqlite3.Connection) -> str | None:
            session = _session(db, lease.agent_id)
            session.must_be_held_with(lease)
            until = self._until(lease.seconds)
            renew = "UPDATE sessions SET lease_until = ?, lease_runner = ? WHERE number = ?"
            db.execute(renew, (until, runner, session.number))
            return session.stop_request

        return await self._write(work)

    async def release(self, lease: Lease) -> str | None:
        def work(db: sqlite3.Connection) -> str | None:
            session = _session(db, lease.agent_id)
            session.must_be_held_with(lease)
            db.execute(_RELEASE, (session.number,))
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
            db.execute("UPDATE sessions SET stop_request = ? WHERE number = ?", (reason, session.number))
            return True

        return await self._write(work)

    async def stop_requests(self, leases: Collection[Lease]) -> Mapping[int, str]:
        if not leases:
            return {}
        query = (
            "SELECT number, leases, stop_request FROM sessions "
            "WHERE stop_request IS NOT NULL AND lease_owner IS NOT NULL"
        )
        rows = await self._read(lambda db: db.execute(query).fetchall())
        found = {_token(number, leases): reason for number, leases, reason in rows}
        return {lease.token: found[lease.token] for lease in leases if lease.token in found}

    # Lists

    async def find(self, wanted: SessionFilter, *, limit: int, after: str | None) -> Page:
        checked_limit(limit)
        end = None if after is None else position(after)

        def work(db: sqlite3.Connection) -> list[Summary]:
            return [self._summary(row) for row in page(db, wanted, end, limit + 1)]

        found = await (self._read(work) if wanted.search is None else self._scan(work))
        shown = tuple(found[:limit])
        return Page(shown, cursor_of(shown[-1]) if len(found) > limit else None)

    async def tally(self, wanted: SessionFilter, *, since: datetime) -> tuple[Tally, ...]:
        return await self._scan(lambda db: tallies(db, wanted, since))

    async def waiting(
        self, metadata: Mapping[str, str | int | float | bool | None], *, limit: int
    ) -> tuple[Summary, ...]:
        checked_limit(limit)
        wanted = SessionFilter(metadata=metadata)
        return await self._read(
            lambda db: tuple([self._summary(row) for row in waiting_rows(db, wanted, limit)])
        )

    async def unattended(self, *, limit: int = UNATTENDED) -> tuple[Summary, ...]:
        checked_limit(limit)
        query = f"""
SELECT {SUMMARY}
WHERE status = 'in_progress' OR (status = 'paused' AND waiting = 0) ORDER BY updated_at, agent_id
"""

        def work(db: sqlite3.Connection) -> tuple[Summary, ...]:
            free = (row for row in db.execute(query) if not self._seconds_left(row[-4:]))
            return tuple([self._summary(row) for row in islice(free, limit)])

        return await self._read(work)

    # Removal

    async def delete(self, agent_id: str, *, expected_version: int | None = None) -> None:
        def work(db: sqlite3.Connection) -> None:
            session = _session(db, agent_id)
            self._must_be_free(agent_id, session)
            if expected_version is not None and session.version != expected_version:
                raise ConflictError(agent_id, expected_version, session.version)
            _delete(db, session.number)

        await self._write(work, is_long=True)
        await self._chunks.forget(agent_id)

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
        await self._thread.run(self._scans.close)
        await self._thread.run(self._slow.close)
        await self._thread.run(self._reads.close)  # The last one to close empties the log into the file.
        self._thread.close()
        self._scan_thread.close()

    # Transactions

    async def _read(self, work: Work[T]) -> T:
        """Run a transaction that only reads, all of it at one moment."""
        return await self._reads.run("BEGIN", work)

    async def _scan(self, work: Work[T]) -> T:
        """Run a transaction that reads many rows, in a thread of its own."""
        return await self._scans.run("BEGIN", work)

    async def _write(self, work: Work[T], *, is_long: bool = False) -> T:
        """Run a transaction that writes, on the event loop, or in the thread if it waits or takes long."""
        result = await (self._slow if is_long else self._writes).run("BEGIN IMMEDIATE", work)
        self._look_at_log(WRITES_PER_LOOK if is_long else 1)
        return result

    async def _insert(self, lease: Lease, body: str, after: int) -> bool:
        """Append an entry with a single statement; False if `append` has to find out why it cannot."""
        number, leases = divmod(lease.token, 1 << _LEASE_BITS)
        seq = after + 1
        try:
            values = ((number << 32) + seq, body, _checksum(number, seq, body), number, leases)
        except UnicodeEncodeError:
            return False
        done = await self._writes.insert(_ADD_ENTRY_UNDER_LEASE, values)
        self._look_at_log(1)
        return done

    def _look_at_log(self, writes: int) -> None:
        """Have the thread empty a log that has become long: to sync it takes milliseconds, or many."""
        self._unlooked += writes
        if self._unlooked < WRITES_PER_LOOK:
            return
        self._unlooked = 0
        is_idle = self._emptying is None or self._emptying.done()
        if is_idle and self._slow.log_size() > LONGEST_LOG:
            emptying = self._thread.run(self._slow.empty_log)
            self._emptying = asyncio.get_running_loop().create_task(emptying, name="whyloop log")

    # Leases and rows

    def _until(self, seconds: float) -> int:
        return stamp(self._clock()) + round(seconds * 1_000_000)

    def _seconds_left(self, lease: Sequence[Any]) -> float:
        """Return how long a lease still holds; 0 once it has lapsed or its runner is dead.

        Clocks are corrected by a little all the time, and that costs no runner its lease. A lease that
        ends later than twice its seconds from now was given by a clock that was wrong.
        """
        owner, seconds, until, runner = lease
        if owner is None:
            return 0
        left: float = (until - stamp(self._clock())) / 1_000_000
        return left if 0 < left <= 2 * seconds and self._runner.is_alive(runner) else 0

    def _must_be_free(self, agent_id: str, session: _Session) -> None:
        left = self._seconds_left(session.lease)
        if left:
            raise SessionRunningError(agent_id, session.lease[0], left)

    def _summary(self, row: tuple[Any, ...]) -> Summary:
        agent_id, identity, text, search, checksum, _, version, *lease = row
        if checksum != listing_checksum(agent_id, identity, text, search):
            raise ValueError(f"in session {agent_id!r}, its summary is not what was stored")
        runner = lease[0] if self._seconds_left(lease) else None
        known = {"agent_id": agent_id, "identity": identity, "version": version, "runner": runner}
        return decode_summary(text, **known, search=search)


class _Session(NamedTuple):
    """The row of a session that is read before each change."""

    number: int
    identity: str
    leases: int
    stop_request: str | None
    version: int
    lease: tuple[Any, ...]

    @property
    def token(self) -> int:
        """The token of its last lease: greater than all before, and unique among all sessions."""
        return _token(self.number, self.leases)

    def must_be_held_with(self, lease: Lease) -> None:
        """Raise unless this is the lease; whether it has time left matters to other runners only."""
        owner = self.lease[0]
        if owner is None or self.token != lease.token:
            raise LeaseLostError(lease.agent_id, owner)


def _session(db: sqlite3.Connection, agent_id: str) -> _Session:
    row = db.execute(_SESSION, (agent_id,)).fetchone()
    if row is None:
        raise SessionNotFoundError(agent_id)
    return _Session._make((*row[:5], row[5:]))


def _number(db: sqlite3.Connection, agent_id: str) -> int:
    row = db.execute("SELECT number FROM sessions WHERE agent_id = ?", (agent_id,)).fetchone()
    if row is None:
        raise SessionNotFoundError(agent_id)
    return int(row[0])


def _key(db: sqlite3.Connection, number: int, key: str) -> tuple[str, int] | None:
    query = "SELECT digest, version FROM keys WHERE session = ? AND key = ?"
    found: tuple[str, int] | None = db.execute(query, (number, key)).fetchone()
    return found


def _add(
    db: sqlite3.Connection, number: int, after: int, entries: Sequence[Entry], key: RequestKey | None
) -> None:
    """Add entries with their checkpoints, and the key under which they were added."""
    for seq, entry in enumerate(entries, after + 1):
        place, body, checkpoint = (number << 32) + seq, entry.body, entry.checkpoint
        db.execute("INSERT INTO entries VALUES (?, ?, ?)", (place, body, _checksum(number, seq, body)))
        if checkpoint is not None:
            checksum = _checkpoint_checksum(number, seq, checkpoint)
            row = (place, checksum, *msgspec.structs.astuple(checkpoint))
            db.execute("INSERT INTO checkpoints VALUES (?, ?, ?, ?, ?, ?, ?)", row)
    if key is not None:
        row = (number, key.key, key.digest, after + len(entries))
        db.execute("INSERT INTO keys VALUES (?, ?, ?, ?)", row)


def _delete(db: sqlite3.Connection, number: int) -> None:
    remove_labels(db, number)
    for table in ("entries", "checkpoints"):
        db.execute(f"DELETE FROM {table} WHERE place > ?1 << 32 AND place < (?1 + 1) << 32", (number,))
    db.execute("DELETE FROM keys WHERE session = ?", (number,))
    db.execute("DELETE FROM summaries WHERE session = ?", (number,))
    db.execute("DELETE FROM sessions WHERE number = ?", (number,))


_LEASE_BITS = 24


def _token(number: int, leases: int) -> int:
    return (number << _LEASE_BITS) + leases


def _checksum(number: int, seq: int, text: str) -> int:
    """Return a number by which a row is recognised as unchanged: SQLite does not check its pages."""
    return crc32(text.encode(), (number * 1_000_003 + seq) & 0xFFFFFFFF)


def _checkpoint_checksum(number: int, seq: int, checkpoint: Checkpoint) -> int:
    return _checksum(number, seq, msgspec.json.encode(checkpoint).decode())
