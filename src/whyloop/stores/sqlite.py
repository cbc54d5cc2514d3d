"""Sessions in one SQLite file: the store that needs nothing but a path."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
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
    StoreError,
    WorkflowOpenError,
)
from whyloop.stores.listing import (
    DAY,
    Listing,
    agent_labels,
    decode_summary,
    encode_counts,
    listing_of,
    page_of,
    position,
    search_terms,
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
from whyloop.stores.sqlite_file import (
    LONGEST_LOG,
    READ,
    WRITE,
    Durability,
    Insert,
    RunnerLock,
    Sleep,
    SqliteChunks,
    SqliteFile,
    SqliteReceiver,
    Work,
    WriterThread,
    connect_to,
    watch_forks,
)
from whyloop.stores.sqlite_place import Place
from whyloop.stores.store import UNATTENDED, Store
from whyloop.values.continuation import StopReason
from whyloop.values.scalars import utc_now
from whyloop.values.state import AgentStatus
from whyloop.wire.journal import Checkpoint, Entry

T = TypeVar("T")

# Writing this many entries takes about a millisecond. The thread writes more than that.
MANY = 100
# The writes between two looks at the size of the log; a look takes 2 µs.
WRITES_PER_LOOK = 64

LEASE = "lease_owner, lease_seconds, lease_until, lease_runner"
VERSION = """
(SELECT coalesce(max(place), 0) & 0xFFFFFFFF FROM entries
 WHERE place > sessions.number << 32 AND place < (sessions.number + 1) << 32)
"""
_COUNTS = """
(SELECT counts FROM entries WHERE place > sessions.number << 32 AND place < (sessions.number + 1) << 32
 ORDER BY place DESC LIMIT 1)
"""
_COLUMNS = f"agent_id, identity, summary, search, checksum, number, {VERSION}, {_COUNTS}, workflow, {LEASE}"
_WITH_SUMMARY = "CROSS JOIN summaries ON summaries.session = sessions.number"
SUMMARY = f"{_COLUMNS} FROM sessions {_WITH_SUMMARY}"
"""The columns that a summary is made from, and their tables."""
_COULD_CONTINUE = f"SELECT {SUMMARY} WHERE (status = 'in_progress' OR (status = 'paused' AND waiting = 0))"
_COULD_CONTINUE_WITH = f"""
{_COULD_CONTINUE} AND EXISTS (
    SELECT 1 FROM json_each(?) AS wanted CROSS JOIN labels
    WHERE label = wanted.value AND labels.started_at = sessions.started_at
        AND labels.session = sessions.number
)
"""
# Read before every change.
_SESSION = (
    f"SELECT number, identity, leases, stop_request, {VERSION}, lease_durable, {LEASE} "
    "FROM sessions WHERE agent_id = ?"
)
_RELEASE = """
UPDATE sessions SET
    lease_owner = NULL, lease_durable = 0, lease_seconds = NULL, lease_until = NULL, lease_runner = NULL,
    stop_request = NULL
WHERE number = ?
"""
_RECORD_WORKFLOW = """
UPDATE sessions SET engine = ?, workflow = ?, workflows = workflows + 1, workflow_since = ?
WHERE number = ? RETURNING workflows
"""
_OPEN_WORKFLOWS = """
SELECT agent_id, workflow, number, workflows, workflow_since FROM sessions
WHERE engine = ? AND engine IS NOT NULL AND status NOT IN ('in_progress', 'paused')
ORDER BY workflow_since, number LIMIT ?
"""
# The most frequent write, as one statement: 26 µs, where a transaction that begins with _SESSION takes 40 µs.
# If the lease is not held, a stop request waits or the entry before is missing, the checksum is NULL; if the
# entry exists, its place is taken. Both are refused, and the transaction finds out why.
_ADD_ENTRY_UNDER_LEASE = """
INSERT INTO entries (place, body, counts, checksum) VALUES (?, ?, ?, (
    SELECT ? FROM sessions
    WHERE number = ? AND leases = ? AND lease_owner IS NOT NULL AND stop_request IS NULL
        AND EXISTS (SELECT 1 FROM entries WHERE place = ?)
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
                f"invalid path {str(path)!r}: use the path of a file, or MemoryStore for sessions that "
                "need not last"
            )
        if durability not in ("process", "power"):
            raise ConfigurationError(f"invalid durability {durability!r}: use 'process' or 'power'")
        self._clock: Callable[[], datetime] = clock.now if clock else utc_now
        database = Path(path).expanduser().absolute()
        self.name = database.name
        connect = partial(connect_to, durability=durability)
        place = Place(database)
        file = partial(SqliteFile, database, connect, place=place, busy_seconds=busy_seconds, sleep=sleep)
        self._reads = file()
        self._reads.open()
        # Each thread has a connection of its own: the event loop never waits for what it does.
        self._thread, self._scan_thread = WriterThread(), WriterThread()
        self._slow, self._scans = file(thread=self._thread), file(thread=self._scan_thread)
        self.inline = durability == "process"
        self._writes = self._reads if self.inline else self._slow
        self._unlooked = 0
        self._caring: asyncio.Task[None] | None = None  # While the thread empties or extends the log.
        self._chunks = SqliteChunks(database)
        self._runner = RunnerLock(database)
        files = self._reads, self._slow, self._scans, self._chunks
        watch_forks(*files, self._thread, self._scan_thread, self._runner)

    # Journals

    async def create(
        self, summary: Summary, entries: Sequence[Entry], *, key: RequestKey | None = None
    ) -> None:
        agent_id, identity = summary.agent_id, summary.identity
        listing = listing_of(with_counts(summary, entries), len(entries))

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
        insert = None
        if lease is not None and len(entries) == 1 and summary is None and key is None and not release:
            entry, is_possible = entries[0], lease.agent_id == agent_id and 0 < after < _LONGEST_JOURNAL
            if entry.checkpoint is None and is_possible:
                insert = _insertion(lease, entry, after)
        version = after + len(entries)
        listing = None if summary is None else listing_of(with_counts(summary, entries), version)

        def work(db: sqlite3.Connection) -> str | None:
            session = _session(db, agent_id)
            _must_not_have(db, agent_id, session.number, key)
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

        return await self._write(work, is_long=len(entries) > MANY, insert=insert)

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
                "SELECT place & 0xFFFFFFFF, body, counts, checksum FROM entries "
                "WHERE place >= ? AND place < ? ORDER BY place LIMIT ?",
                (_place_of(number, first), _place_of(number + 1), most),
            ).fetchall()
            if len(rows) != max(0, last + 1 - first):
                raise ValueError(
                    f"in session {agent_id!r}, there are {len(rows)} entries from {first} to {last}"
                )
            for expected, (seq, body, counts, checksum) in enumerate(rows, first):
                if seq != expected or checksum != _entry_checksum(number, seq, body, counts):
                    raise ValueError(f"in session {agent_id!r}, entry {expected} is not what was stored")
            return Stored(summary, tuple([body for _, body, _, _ in rows]))

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
                "FROM checkpoints WHERE place > :first AND place < :last "
                "AND (:execution IS NULL OR execution_id = :execution) AND (:seq IS NULL OR seq <= :seq) "
                "AND (:steps IS NULL OR step_count <= :steps) "
                "AND (:messages IS NULL OR message_count <= :messages) "
                "ORDER BY place DESC LIMIT 1",
                {
                    "first": _place_of(number),
                    "last": _place_of(number + 1),
                    "execution": execution_id,
                    "seq": seq,
                    "steps": step_count,
                    "messages": message_count,
                },
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

    async def acquire(self, agent_id: str, owner: str, seconds: float, *, durable: bool = False) -> Lease:
        check_lease(owner, seconds)
        runner = None if durable else self._runner.name()
        acquired: list[Lease] = []

        def work(db: sqlite3.Connection) -> Lease:
            session = _session(db, agent_id)
            if not (durable and session.durable and session.lease[0] == owner):
                self._must_be_free(agent_id, session)
            db.execute(
                "UPDATE sessions SET leases = leases + 1, lease_owner = ?, lease_durable = ?, "
                "lease_seconds = ?, lease_until = ?, lease_runner = ? WHERE number = ?",
                (owner, durable, seconds, self._until(seconds), runner, session.number),
            )
            token, identity, version = session.token + 1, session.identity, session.version
            acquired.append(Lease(agent_id, owner, token, seconds, identity, version, durable))
            return acquired[-1]

        try:
            return await self._writes.run(WRITE, work, until_cancelled=True)
        except asyncio.CancelledError:
            if acquired and not durable:  # A durable one is left to its engine, which acquires it again.
                with suppress(StoreError):
                    await self.release(acquired[-1])
            raise

    async def renew(self, lease: Lease) -> str | None:
        runner = None if lease.durable else self._runner.name()

        def work(db: sqlite3.Connection) -> str | None:
            session = _session(db, lease.agent_id)
            session.must_be_held_with(lease)
            until, bound_to = self._until(lease.seconds), None if session.durable else runner
            renew = "UPDATE sessions SET lease_until = ?, lease_runner = ? WHERE number = ?"
            db.execute(renew, (until, bound_to, session.number))
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
            return None  # Another runner has it now.

    async def ask_to_stop(self, agent_id: str, reason: str, *, key: RequestKey | None = None) -> bool:
        def work(db: sqlite3.Connection) -> bool:
            session = _session(db, agent_id)
            _must_not_have(db, agent_id, session.number, key)
            if not self._seconds_left(session.lease):
                return False
            db.execute("UPDATE sessions SET stop_request = ? WHERE number = ?", (reason, session.number))
            _add(db, session.number, session.version, (), key)
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

        return page_of(await (self._read(work) if wanted.search is None else self._scan(work)), limit)

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

    async def unattended(
        self, *, limit: int = UNATTENDED, agents: Collection[str] | None = None
    ) -> tuple[Summary, ...]:
        checked_limit(limit)
        query, values = _COULD_CONTINUE, []
        if agents is not None:
            query, values = _COULD_CONTINUE_WITH, [msgspec.json.encode(agent_labels(agents)).decode()]

        def work(db: sqlite3.Connection) -> tuple[Summary, ...]:
            rows = db.execute(f"{query} ORDER BY updated_at, agent_id", values)
            free = (row for row in rows if not self._seconds_left(row[-4:]))
            return tuple([self._summary(row) for row in islice(free, limit)])

        return await self._read(work)

    # Claims

    async def keep_claim(self, agent_id: str, data: bytes) -> str:
        key = await claim_key(data)

        def work(db: sqlite3.Connection) -> None:
            add = "INSERT INTO claims VALUES (?, ?, ?) ON CONFLICT (session, key) DO NOTHING"
            db.execute(add, (_number(db, agent_id), key, data))

        await self._write(work, is_long=True)
        return key

    async def claim(self, agent_id: str, key: str) -> bytes:
        checked_key(key)

        def work(db: sqlite3.Connection) -> bytes | None:
            query = "SELECT data FROM claims WHERE session = ? AND key = ?"
            row = db.execute(query, (_number(db, agent_id), key)).fetchone()
            return None if row is None else row[0]

        return await checked_claim(agent_id, key, await self._scan(work))

    # Workflows

    async def record_workflow(self, agent_id: str, engine: str, workflow: str) -> OpenWorkflow:
        check_workflow(engine, workflow)

        def work(db: sqlite3.Connection) -> OpenWorkflow:
            number = _number(db, agent_id)
            _must_have_no_workflow_but(db, agent_id, engine, workflow)
            row = (engine, workflow, self._until(0), number)
            (count,) = db.execute(_RECORD_WORKFLOW, row).fetchone()
            return OpenWorkflow(agent_id, engine, workflow, _token(number, count))

        return await self._write(work)

    async def open_workflows(self, engine: str, *, limit: int) -> tuple[OpenWorkflow, ...]:
        checked_limit(limit)

        def work(db: sqlite3.Connection) -> tuple[OpenWorkflow, ...]:
            rows, now = db.execute(_OPEN_WORKFLOWS, (engine, limit)), self._until(0)
            return tuple(
                [
                    OpenWorkflow(agent_id, engine, workflow, _token(number, count), (now - since) / 1_000_000)
                    for agent_id, workflow, number, count, since in rows
                ]
            )

        return await self._read(work)

    async def forget_workflow(self, agent_id: str, token: int) -> None:
        number, count = divmod(token, 1 << _LEASE_BITS)
        forget = (
            "UPDATE sessions SET engine = NULL, workflow = NULL, workflow_since = NULL "
            "WHERE number = ? AND workflows = ? AND agent_id = ?"
        )

        def work(db: sqlite3.Connection) -> None:
            db.execute(forget, (number, count, agent_id))

        await self._write(work)

    # Removal

    async def delete(self, agent_id: str, *, expected_version: int | None = None) -> None:
        def work(db: sqlite3.Connection) -> None:
            session = _session(db, agent_id)
            self._must_be_free(agent_id, session)
            _must_have_no_workflow_but(db, agent_id)
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
        try:
            await self._thread.run(self._close_files)  # The last to close empties the log into the file.
        finally:
            self._thread.close()
            self._scan_thread.close()

    def _close_files(self) -> None:
        for file in (self._scans, self._slow, self._reads):
            file.close()

    # Transactions

    async def _read(self, work: Work[T]) -> T:
        """Run a transaction that only reads, all of it at one moment."""
        return await self._reads.run(READ, work, until_cancelled=True)

    async def _scan(self, work: Work[T]) -> T:
        """Run a transaction that reads many rows, in a separate thread."""
        return await self._scans.run(READ, work, until_cancelled=True)

    async def _write(self, work: Work[T], *, is_long: bool = False, insert: Insert | None = None) -> T:
        """Run a write, on the event loop, or in the thread if it takes long."""
        result = await (self._slow if is_long else self._writes).run(WRITE, work, insert)
        self._look_at_log(WRITES_PER_LOOK if is_long else 1)
        return result

    def _look_at_log(self, writes: int) -> None:
        """Let the thread empty or extend the log, which takes many milliseconds."""
        self._unlooked += writes
        if self._unlooked < WRITES_PER_LOOK:
            return
        self._unlooked = 0
        if self._caring is not None and not self._caring.done():
            return
        is_long = self._slow.log_size() > LONGEST_LOG
        if is_long or not self.inline:
            caring = self._thread.run(self._slow.empty_log if is_long else self._slow.reserve_log)
            self._caring = asyncio.get_running_loop().create_task(caring, name="whyloop log")

    # Leases and rows

    def _until(self, seconds: float) -> int:
        return stamp(self._clock()) + round(seconds * 1_000_000)

    def _seconds_left(self, lease: Sequence[Any]) -> float:
        """Return how long a lease still holds; 0 once it has lapsed or its runner is dead."""
        owner, seconds, until, runner = lease
        if owner is None:
            return 0
        left = remaining_seconds((until - stamp(self._clock())) / 1_000_000, seconds)
        return left if left and self._runner.is_alive(runner) else 0

    def _must_be_free(self, agent_id: str, session: _Session) -> None:
        left = self._seconds_left(session.lease)
        if left:
            raise SessionRunningError(agent_id, session.lease[0], left)

    def _summary(self, row: tuple[Any, ...]) -> Summary:
        agent_id, identity, text, search, checksum, _, version, counts, workflow, *lease = row
        if checksum != listing_checksum(agent_id, identity, text, search):
            raise ValueError(f"in session {agent_id!r}, its summary is not what was stored")
        runner = lease[0] if self._seconds_left(lease) else None
        known = {"agent_id": agent_id, "identity": identity, "runner": runner, "workflow": workflow}
        return decode_summary(text, version, counts, **known, search=search)


class _Session(NamedTuple):
    """The row of a session that is read before each change."""

    number: int
    identity: str
    leases: int
    stop_request: str | None
    version: int
    durable: bool
    lease: tuple[Any, ...]

    @property
    def token(self) -> int:
        """The token of its last lease, greater than all before in any session."""
        return _token(self.number, self.leases)

    def must_be_held_with(self, lease: Lease) -> None:
        """Raise unless this is the lease, even if it has expired."""
        owner = self.lease[0]
        if owner is None or self.token != lease.token:
            raise LeaseLostError(lease.agent_id, owner)


def _session(db: sqlite3.Connection, agent_id: str) -> _Session:
    row = db.execute(_SESSION, (agent_id,)).fetchone()
    if row is None:
        raise SessionNotFoundError(agent_id)
    return _Session._make((*row[:6], row[6:]))


def _must_have_no_workflow_but(db: sqlite3.Connection, agent_id: str, *names: str) -> None:
    """Raise if another workflow than this one is recorded."""
    query = "SELECT engine, workflow, number, workflows FROM sessions WHERE agent_id = ?"
    engine, workflow, number, count = db.execute(query, (agent_id,)).fetchone()
    if engine is not None and (engine, workflow) != names:
        raise WorkflowOpenError(agent_id, engine, workflow, _token(number, count))


def _number(db: sqlite3.Connection, agent_id: str) -> int:
    row = db.execute("SELECT number FROM sessions WHERE agent_id = ?", (agent_id,)).fetchone()
    if row is None:
        raise SessionNotFoundError(agent_id)
    return int(row[0])


def _key(db: sqlite3.Connection, number: int, key: str) -> tuple[str, int] | None:
    query = "SELECT digest, version FROM keys WHERE session = ? AND key = ?"
    found: tuple[str, int] | None = db.execute(query, (number, key)).fetchone()
    return found


def _must_not_have(db: sqlite3.Connection, agent_id: str, number: int, key: RequestKey | None) -> None:
    """Raise if the session has this key already."""
    if key is not None and (used := _key(db, number, key.key)):
        raise KeyUsedError(agent_id, key.key, *used)


def _add(
    db: sqlite3.Connection, number: int, after: int, entries: Sequence[Entry], key: RequestKey | None
) -> None:
    """Add entries with their checkpoints, and the key under which they were added."""
    for seq, entry in enumerate(entries, after + 1):
        place, body, checkpoint = _place_of(number, seq), entry.body, entry.checkpoint
        counts = encode_counts(entry.counts)
        row = (place, body, counts, _entry_checksum(number, seq, body, counts))
        db.execute("INSERT INTO entries VALUES (?, ?, ?, ?)", row)
        if checkpoint is not None:
            checksum = _checkpoint_checksum(number, seq, checkpoint)
            fields = (place, checksum, *msgspec.structs.astuple(checkpoint))
            db.execute("INSERT INTO checkpoints VALUES (?, ?, ?, ?, ?, ?, ?)", fields)
    if key is not None:
        used = (number, key.key, key.digest, after + len(entries))
        db.execute("INSERT INTO keys VALUES (?, ?, ?, ?)", used)


def _insertion(lease: Lease, entry: Entry, after: int) -> Insert | None:
    """Return the statement that appends an entry, or None for text that is not Unicode."""
    number, leases = divmod(lease.token, 1 << _LEASE_BITS)
    seq, body, counts = after + 1, entry.body, encode_counts(entry.counts)
    place = _place_of(number, seq)
    try:
        checksum = _entry_checksum(number, seq, body, counts)
    except UnicodeEncodeError:
        return None
    return _ADD_ENTRY_UNDER_LEASE, (place, body, counts, checksum, number, leases, place - 1)


def _place_of(number: int, seq: int = 0) -> int:
    """Return the place of an entry among all entries; 0 is before a session's first."""
    return (number << 32) + seq


def _delete(db: sqlite3.Connection, number: int) -> None:
    db.executemany(_REMOVE_LABEL, _stored_labels(db, number))
    for table in ("entries", "checkpoints"):
        db.execute(
            f"DELETE FROM {table} WHERE place > ? AND place < ?", (_place_of(number), _place_of(number + 1))
        )
    for table in ("keys", "claims", "summaries"):
        db.execute(f"DELETE FROM {table} WHERE session = ?", (number,))
    db.execute("DELETE FROM sessions WHERE number = ?", (number,))


_LEASE_BITS = 24


def _token(number: int, leases: int) -> int:
    return (number << _LEASE_BITS) + leases


def _checksum(number: int, seq: int, text: str) -> int:
    """Return the checksum of a row, since SQLite does not check its pages."""
    return crc32(text.encode(), (number * 1_000_003 + seq) & 0xFFFFFFFF)


def _entry_checksum(number: int, seq: int, body: str, counts: str | None) -> int:
    checksum = _checksum(number, seq, body)
    return checksum if counts is None else crc32(counts.encode(), checksum)


def _checkpoint_checksum(number: int, seq: int, checkpoint: Checkpoint) -> int:
    return _checksum(number, seq, msgspec.json.encode(checkpoint).decode())


# The list of sessions: how it is written

_ADD = """
INSERT INTO sessions (agent_id, identity, status, stop_reason, resolved_by, waiting, started_at, updated_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
_CHANGE = """
UPDATE sessions
SET status = ?, stop_reason = ?, resolved_by = ?, waiting = ?, started_at = ?, updated_at = ?
WHERE number = ?
"""
_SUMMARIZE = "REPLACE INTO summaries (session, summary, search, labels, checksum) VALUES (?, ?, ?, ?, ?)"
_ADD_LABEL = "INSERT INTO labels (label, started_at, session) VALUES (?, ?, ?)"
_REMOVE_LABEL = "DELETE FROM labels WHERE label = ? AND started_at = ? AND session = ?"


def add_listing(db: sqlite3.Connection, agent_id: str, identity: str, listing: Listing) -> int:
    """List a new session, and return its number."""
    number = db.execute(_ADD, (agent_id, identity, *_fields(listing))).lastrowid or 0
    db.execute(_SUMMARIZE, _summary_row(number, agent_id, identity, listing))
    db.executemany(_ADD_LABEL, _label_rows(number, stamp(listing.started_at), listing.labels))
    return number


def change_listing(
    db: sqlite3.Connection, number: int, agent_id: str, identity: str, listing: Listing
) -> None:
    """List a session as it is now; labels that stay the same are not touched."""
    before = _stored_labels(db, number)
    db.execute(_CHANGE, (*_fields(listing), number))
    db.execute(_SUMMARIZE, _summary_row(number, agent_id, identity, listing))
    after = _label_rows(number, stamp(listing.started_at), listing.labels)
    db.executemany(_REMOVE_LABEL, before - after)
    db.executemany(_ADD_LABEL, after - before)


def listing_checksum(agent_id: str, identity: str, summary: str, search: str) -> int:
    """Return a number by which a summary is recognized as unchanged."""
    return crc32(f"{agent_id} {identity} {summary} {search}".encode())


def _fields(listing: Listing) -> tuple[Any, ...]:
    return (
        listing.status.value,
        None if listing.stop_reason is None else listing.stop_reason.value,
        listing.resolved_by,
        listing.waiting,
        stamp(listing.started_at),
        stamp(listing.updated_at),
    )


def _summary_row(number: int, agent_id: str, identity: str, listing: Listing) -> tuple[Any, ...]:
    labels = msgspec.json.encode(listing.labels).decode()
    checksum = listing_checksum(agent_id, identity, listing.summary, listing.search)
    return number, listing.summary, listing.search, labels, checksum


def _label_rows(number: int, started_at: int, labels: Iterable[int]) -> set[tuple[int, int, int]]:
    return {(label, started_at, number) for label in labels}


def _stored_labels(db: sqlite3.Connection, number: int) -> set[tuple[int, int, int]]:
    query = f"SELECT started_at, labels FROM sessions {_WITH_SUMMARY} WHERE number = ?"
    started_at, labels = db.execute(query, (number,)).fetchone()
    return _label_rows(number, started_at, msgspec.json.decode(labels))


# The list of sessions: how it is searched and counted

# Counting to find the best start must not take longer than reading, so at most this many rows are counted.
_COUNTED = 6_000
# Up to this many sessions are sorted instead of read in the order of the list.
_RECENT = 1_000
# Later than any date.
_NEVER = 2**62
_Place = tuple[int, str]


def page(
    db: sqlite3.Connection, wanted: SessionFilter, end: tuple[datetime, str] | None, limit: int
) -> list[Any]:
    """Return the rows of the newest matching sessions after a cursor."""
    found, values = _found(db, wanted, end)
    query = f"""
SELECT {_COLUMNS} FROM {found[0]} {_WITH_SUMMARY} WHERE {found[1]}
ORDER BY found.began DESC, sessions.agent_id DESC LIMIT :limit
"""
    return db.execute(query, {**values, "limit": limit}).fetchall()


def tallies(db: sqlite3.Connection, wanted: SessionFilter, since: datetime) -> tuple[Tally, ...]:
    """Return how many of the sessions that a filter finds there are of each kind."""
    (tables, conditions), values = _found(db, wanted, None)
    query = f"""
SELECT status, stop_reason, resolved_by,
    CASE WHEN updated_at >= :first_day THEN (updated_at - :first_day) / :day END,
    count(*), sum(waiting > 0), sum(waiting)
FROM {tables} {_WITH_SUMMARY if wanted.search else ""} WHERE {conditions} GROUP BY 1, 2, 3, 4
"""
    values |= {"first_day": stamp(since), "day": DAY // _MICROSECOND}
    return tuple(
        [
            Tally(AgentStatus(status), None if reason is None else StopReason(reason), *rest)
            for status, reason, *rest in db.execute(query, values)
        ]
    )


def waiting_rows(db: sqlite3.Connection, wanted: SessionFilter, limit: int) -> list[Any]:
    """Return the rows of sessions with questions, least recently updated first."""
    labels = wanted_labels(wanted)
    query = f"""
SELECT {SUMMARY}
WHERE waiting > 0 {_also(range(len(labels)), "sessions.started_at", "sessions.number")}
ORDER BY updated_at, agent_id LIMIT :limit
"""
    return db.execute(query, {**_numbered("label", labels), "limit": limit}).fetchall()


_BY_LABEL = """
(SELECT started_at AS began, session FROM labels WHERE label = :label0) AS found
CROSS JOIN sessions ON sessions.number = found.session
"""
_BY_UPDATE = """
(SELECT started_at AS began, number AS session FROM sessions WHERE updated_at > :updated_after) AS found
CROSS JOIN sessions ON sessions.number = found.session
"""


def _found(
    db: sqlite3.Connection, wanted: SessionFilter, end: tuple[datetime, str] | None
) -> tuple[tuple[str, str], dict[str, Any]]:
    """Return the tables to read for a filter, the conditions, and their values.

    Sessions are read under the label of the fewest sessions. CROSS JOIN keeps the order of the tables, and
    with it that of the list. If only a few sessions were updated recently, all of these are read instead.
    """
    ends = [(_NEVER, "")]
    if wanted.started_before is not None:
        ends.append((stamp(wanted.started_before), ""))
    if end is not None:
        ends.append((stamp(end[0]), end[1]))
    updated_after = -_NEVER if wanted.updated_after is None else stamp(wanted.updated_after)
    is_recent = wanted.updated_after is not None and _is_recent(db, updated_after)
    since = -_NEVER if wanted.started_after is None else stamp(wanted.started_after)
    labels, since, (until, name) = _plan(db, wanted_labels(wanted), since, min(ends))
    terms = search_terms(wanted)
    conditions = f"""
    found.began > :since AND found.began <= :until AND (found.began < :until OR sessions.agent_id < :end)
    {_also(range(0 if is_recent else 1, len(labels)), "found.began", "found.session")}
    AND sessions.updated_at > :updated_after AND sessions.updated_at < :updated_before
    {" ".join(f"AND instr(summaries.search, :term{number}) > 0" for number in range(len(terms)))}
"""
    values = {
        "since": since,
        "until": until,
        "end": name,
        "updated_after": updated_after,
        "updated_before": _NEVER if wanted.updated_before is None else stamp(wanted.updated_before),
    }
    values |= {**_numbered("label", labels), **_numbered("term", terms)}
    return (_BY_UPDATE if is_recent else _BY_LABEL, conditions), values


def _also(labels: Iterable[int], began: str, session: str) -> str:
    return " ".join(
        f"AND EXISTS (SELECT 1 FROM labels WHERE label = :label{number} "
        f"AND started_at = {began} AND session = {session})"
        for number in labels
    )


def _numbered(name: str, values: Sequence[Any]) -> dict[str, Any]:
    return {f"{name}{number}": value for number, value in enumerate(values)}


def _is_recent(db: sqlite3.Connection, updated_after: int) -> bool:
    """Return whether only a few sessions were updated after a time."""
    query = "SELECT 1 FROM sessions WHERE updated_at > ? LIMIT 1 OFFSET ?"
    return db.execute(query, (updated_after, _RECENT)).fetchone() is None


_SPAN = """
SELECT
    (SELECT count(*) FROM (
        SELECT 1 FROM labels WHERE label = :label AND started_at > :since AND started_at <= :end LIMIT :most
    )),
    (SELECT min(started_at) FROM labels WHERE label = :label AND started_at > :since),
    (SELECT max(started_at) FROM labels WHERE label = :label AND started_at <= :end)
"""


def _plan(
    db: sqlite3.Connection, labels: list[int], since: int, end: _Place
) -> tuple[list[int], int, _Place]:
    """Return the labels, rarest first, and the range that can have all of them."""
    if len(labels) > 1:
        most, counts = _COUNTED // len(labels), {}
        for label in labels:
            span = {"label": label, "since": since, "end": end[0], "most": most}
            counts[label], oldest, newest = db.execute(_SPAN, span).fetchone()
            if not counts[label]:
                return [label], 0, (0, "")
            since, end = max(since, oldest - 1), min(end, (newest + 1, ""))
        labels = sorted(labels, key=lambda label: counts[label])
    return labels, since, end


# Times

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def stamp(moment: datetime) -> int:
    """Return a moment as the microseconds since 1970."""
    return (moment - _EPOCH) // _MICROSECOND
