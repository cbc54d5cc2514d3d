"""The tables of a SQLite store, the statements on them, and their rows as records."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, Self
from zlib import crc32

import msgspec

from whyloop.errors import LeaseLostError, StoreError
from whyloop.stores.cursor import position
from whyloop.stores.labels import Start, numbers, starts
from whyloop.stores.records import Checkpoint, Entry, Lease, SessionFilter, Summary
from whyloop.values.continuation import StopReason
from whyloop.values.plain import jsonable
from whyloop.values.state import AgentStatus

# This number in its header marks a file as one of ours: "whyl" in ASCII.
APPLICATION_ID = 0x7768796C

# The columns by which a session is listed, with their types. The first two are never updated.
_LISTED = {
    "agent_id": "TEXT NOT NULL UNIQUE",
    "identity": "TEXT NOT NULL",
    "status": "TEXT NOT NULL",
    "stop_reason": "TEXT",
    "resolved_by": "TEXT",
    "reason": "TEXT",
    "agent": "TEXT NOT NULL",
    "parent_agent_id": "TEXT",
    "started_at": "INTEGER NOT NULL",
    "updated_at": "INTEGER NOT NULL",
    "step_count": "INTEGER NOT NULL",
    "pending": "INTEGER NOT NULL",
    "cost": "TEXT",
    "title": "TEXT NOT NULL",
    "metadata": "TEXT NOT NULL",
}
_UPDATED = list(_LISTED)[2:]

# Times are microseconds since 1970, in UTC. A number is never used twice, so that nothing of a deleted
# session, not even its leases, can be taken for that of a later session with the same id.
#
# The place of an entry is the number of its session and its own number there, in 32 bits each. So the
# entries of a session are adjacent, and adding one touches one page: a key of two columns would need an
# index beside the table, and every step would write twice as much. Places of checkpoints are those of
# their entries.
_TABLES = f"""
CREATE TABLE migrations (name TEXT PRIMARY KEY, applied_at TEXT NOT NULL);
CREATE TABLE sessions (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    {", ".join(f"{name} {kind}" for name, kind in _LISTED.items())},
    checksum INTEGER NOT NULL,
    leases INTEGER NOT NULL DEFAULT 0,
    lease_owner TEXT,
    lease_seconds REAL,
    lease_until INTEGER,
    lease_runner TEXT,
    stop_request TEXT
);
CREATE INDEX sessions_by_update ON sessions (status, updated_at);
CREATE INDEX sessions_to_resume ON sessions (updated_at) WHERE status = 'paused' AND pending = 0;
CREATE INDEX stop_requests ON sessions (number) WHERE stop_request IS NOT NULL;
CREATE TABLE entries (place INTEGER PRIMARY KEY, body TEXT NOT NULL, checksum INTEGER NOT NULL);
CREATE TABLE checkpoints (
    place INTEGER PRIMARY KEY,
    checksum INTEGER NOT NULL,
    execution_id TEXT NOT NULL,
    seq INTEGER NOT NULL,
    step_count INTEGER NOT NULL,
    message_count INTEGER NOT NULL,
    state TEXT NOT NULL
);
CREATE TABLE keys (
    session INTEGER NOT NULL,
    key TEXT NOT NULL,
    digest TEXT NOT NULL,
    version INTEGER NOT NULL,
    PRIMARY KEY (session, key)
) WITHOUT ROWID;
CREATE TABLE labels (
    label INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    session INTEGER NOT NULL,
    PRIMARY KEY (label, started_at, session)
) WITHOUT ROWID;
"""

LONGEST_JOURNAL = 2**32 - 1

# After the first release, new migrations are added at the end, and none is ever changed.
MIGRATIONS = {"0001": _TABLES}


def prepare(db: sqlite3.Connection, path: Path) -> None:
    """Bring a file up to date; leave a file of another program, or of a newer whyloop, as it is."""
    db.execute("BEGIN")
    applied = _applied(db, path)
    db.execute("COMMIT")
    unknown = sorted(applied - MIGRATIONS.keys())
    if unknown:
        raise StoreError(
            f"{path} was written by a newer whyloop, with the unknown migrations {', '.join(unknown)}: "
            "upgrade whyloop. The file was left as it is"
        )
    if db.execute("PRAGMA journal_mode = WAL").fetchone() != ("wal",):
        raise StoreError(
            f"{path} is on a file system on which SQLite cannot keep its log, such as a network drive: "
            "move it to a disk of this machine, or use PostgreSQL"
        )
    for name in [name for name in MIGRATIONS if name not in applied]:
        db.execute("BEGIN IMMEDIATE")
        if name not in _applied(db, path):  # Another process may have come first.
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            for statement in MIGRATIONS[name].split(";\n"):
                db.execute(statement)
            db.execute("INSERT INTO migrations VALUES (?, datetime('now'))", (name,))
        db.execute("COMMIT")


def _applied(db: sqlite3.Connection, path: Path) -> set[str]:
    """Return the names of the migrations that the file has; none if it is empty."""
    (application_id,) = db.execute("PRAGMA application_id").fetchone()
    if application_id == APPLICATION_ID:
        return {str(name) for (name,) in db.execute("SELECT name FROM migrations")}
    if application_id or db.execute("SELECT 1 FROM sqlite_master").fetchone():
        raise StoreError(
            f"{path} is the SQLite database of another program: choose another file. It was left as it is"
        )
    return set()


# Journals

_VERSION = """
(SELECT coalesce(max(place), 0) & 0xFFFFFFFF FROM entries
 WHERE place > listed.number << 32 AND place < (listed.number + 1) << 32)
"""
_LISTED_LEASE = "listed.lease_owner, listed.lease_seconds, listed.lease_until, listed.lease_runner"

# Read before every change: the version, and the lease.
SESSION = f"""
SELECT listed.number, listed.identity, listed.leases, listed.stop_request, {_VERSION}, {_LISTED_LEASE}
FROM sessions AS listed WHERE agent_id = ?
"""

CREATE = f"""
INSERT INTO sessions ({", ".join(_LISTED)}, checksum)
VALUES ({", ".join("?" * len(_LISTED))}, ?)
"""
UPDATE = f"UPDATE sessions SET {' = ?, '.join(_UPDATED)} = ?, checksum = ? WHERE number = ?"
ADD_ENTRY = "INSERT INTO entries (place, body, checksum) VALUES (?, ?, ?)"
ADD_CHECKPOINT = "INSERT INTO checkpoints VALUES (?, ?, ?, ?, ?, ?, ?)"
ADD_KEY = "INSERT INTO keys (session, key, digest, version) VALUES (?, ?, ?, ?)"
READ_KEY = "SELECT digest, version FROM keys WHERE session = ? AND key = ?"

# The most frequent write, as one statement: 1.2 times a bare insert, where a transaction that begins with
# SESSION takes 2.0 times as long. Where the lease is not held, a stop request waits or
# the entry before is missing, the checksum is NULL, and where the entry exists its place is taken: both
# are refused, and the reason is then found out by the transaction.
ADD_ENTRY_UNDER_LEASE = """
INSERT INTO entries (place, body, checksum) VALUES (?1, ?2, (
    SELECT ?3 FROM sessions
    WHERE number = ?4 AND leases = ?5 AND lease_owner IS NOT NULL AND stop_request IS NULL
        AND EXISTS (SELECT 1 FROM entries WHERE place = ?1 - 1)
))
"""

SUMMARY = f"""
    {", ".join(f"listed.{name}" for name in _LISTED)}, listed.checksum, {_VERSION}, {_LISTED_LEASE},
    listed.number
"""
READ_SUMMARY = f"SELECT {SUMMARY} FROM sessions AS listed WHERE agent_id = ?"
READ_ENTRIES = """
SELECT place & 0xFFFFFFFF, body, checksum FROM entries
WHERE place > (?1 << 32) + ?2 AND place < (?1 + 1) << 32 ORDER BY place LIMIT ?3
"""
READ_CHECKPOINT = """
SELECT place & 0xFFFFFFFF, checksum, execution_id, seq, step_count, message_count, state FROM checkpoints
WHERE place > ?1 << 32 AND place < (?1 + 1) << 32
    AND (?2 IS NULL OR execution_id = ?2) AND (?3 IS NULL OR seq <= ?3)
    AND (?4 IS NULL OR step_count <= ?4) AND (?5 IS NULL OR message_count <= ?5)
ORDER BY place DESC LIMIT 1
"""
VERSIONS = f"""
SELECT listed.agent_id, listed.identity, {_VERSION}
FROM json_each(?) AS wanted CROSS JOIN sessions AS listed ON listed.agent_id = wanted.value
"""

# Leases

ACQUIRE = """
UPDATE sessions SET
    leases = leases + 1, lease_owner = ?, lease_seconds = ?, lease_until = ?, lease_runner = ?
WHERE number = ?
"""
RENEW = "UPDATE sessions SET lease_until = ?, lease_runner = ? WHERE number = ?"
RELEASE = """
UPDATE sessions SET
    lease_owner = NULL, lease_seconds = NULL, lease_until = NULL, lease_runner = NULL, stop_request = NULL
WHERE number = ?
"""
ASK_TO_STOP = "UPDATE sessions SET stop_request = ? WHERE number = ?"
STOP_REQUESTS = """
SELECT number, leases, stop_request FROM sessions
WHERE stop_request IS NOT NULL AND lease_owner IS NOT NULL
"""

# Removal, and the sessions that can continue

DELETE = (
    "DELETE FROM entries WHERE place > ?1 << 32 AND place < (?1 + 1) << 32",
    "DELETE FROM checkpoints WHERE place > ?1 << 32 AND place < (?1 + 1) << 32",
    "DELETE FROM keys WHERE session = ?1",
    "DELETE FROM sessions WHERE number = ?1",
)
PRUNABLE = f"""
SELECT listed.updated_at, listed.agent_id, listed.number, {_LISTED_LEASE} FROM sessions AS listed
WHERE status = ? AND updated_at < ? ORDER BY updated_at, agent_id
"""
UNATTENDED = f"""
SELECT listed.updated_at, listed.agent_id, {_LISTED_LEASE} FROM sessions AS listed
WHERE status = 'in_progress'
UNION ALL
SELECT listed.updated_at, listed.agent_id, {_LISTED_LEASE} FROM sessions AS listed
WHERE status = 'paused' AND pending = 0
ORDER BY 1, 2
"""

# The index of the list

LISTING = f"SELECT {', '.join(_LISTED)}, checksum FROM sessions WHERE number = ?"
_ADD_LABEL = "INSERT INTO labels (label, started_at, session) VALUES (?, ?, ?)"
_REMOVE_LABEL = "DELETE FROM labels WHERE label = ? AND started_at = ? AND session = ?"
_COUNT_LABEL = """
SELECT count(*) FROM (
    SELECT 1 FROM labels WHERE label = ? AND started_at > ? AND started_at <= ? LIMIT ?
)
"""
_ALSO = """
    AND EXISTS (
        SELECT 1 FROM labels
        WHERE label = ? AND started_at = found.started_at AND session = found.session
    )
"""

# Counting where to begin must not take longer than beginning there: so many rows are counted in all.
_COUNTED = 20_000
# Later than any date.
_NEVER = 2**62


def page_of(others: int) -> str:
    """Return the query of the newest sessions under one label that have so many others as well.

    CROSS JOIN keeps the order of the two tables, and with it that of the list.
    """
    return f"""
SELECT {SUMMARY} FROM labels AS found CROSS JOIN sessions AS listed ON listed.number = found.session
WHERE found.label = ? AND found.started_at > ? AND found.started_at <= ? {_ALSO * others}
    AND (found.started_at < ? OR listed.agent_id < ?) AND listed.updated_at < ?
ORDER BY found.started_at DESC, listed.agent_id DESC LIMIT ?
"""


def matching(
    db: sqlite3.Connection, wanted: SessionFilter, after: str | None, limit: int
) -> list[tuple[Any, ...]]:
    """Return the rows of the first sessions that match; they come from several places of the index."""
    since = -_NEVER if wanted.started_after is None else stamp(wanted.started_after)
    updated = _NEVER if wanted.updated_before is None else stamp(wanted.updated_before)
    ends = [(_NEVER, "")]
    if wanted.started_before is not None:
        ends.append((stamp(wanted.started_before), ""))
    if after is not None:
        moment, agent_id = position(after)
        ends.append((stamp(moment), agent_id))
    until, end = min(ends)
    return [
        row
        for choices in starts(wanted)
        for label, others in [_rarest(db, choices, since, until)]
        for row in db.execute(
            page_of(len(others)), (label, since, until, *others, until, end, updated, limit)
        )
    ]


def _rarest(db: sqlite3.Connection, choices: Sequence[Start], since: int, until: int) -> Start:
    if len(choices) == 1:
        return choices[0]
    most = _COUNTED // len(choices)

    def frequency(start: Start) -> int:
        (count,) = db.execute(_COUNT_LABEL, (start.number, since, until, most)).fetchone()
        return int(count)

    return min(choices, key=frequency)


def reindex(
    db: sqlite3.Connection, number: int, before: Sequence[Any] | None, after: Sequence[Any] | None
) -> None:
    """Move a session in the index from one listing to another; rows that stay are not touched."""
    old, new = (set() if row is None else _labels(number, row) for row in (before, after))
    db.executemany(_REMOVE_LABEL, old - new)
    db.executemany(_ADD_LABEL, new - old)


def _labels(number: int, row: Sequence[Any]) -> set[tuple[int, int, int]]:
    listed = dict(zip(_LISTED, row, strict=False))
    found = numbers(
        listed["status"],
        listed["stop_reason"],
        msgspec.json.decode(listed["metadata"]),
        agent=listed["agent"],
        resolved_by=listed["resolved_by"],
    )
    return {(label, listed["started_at"], number) for label in found}


# Rows and records

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LEASE_BITS = 24


class HeldLease(NamedTuple):
    """The lease of a session as its row has it."""

    owner: str | None
    seconds: float | None
    until: int | None
    runner: str | None


class SessionRow(NamedTuple):
    """What has to be known of a session before it is changed."""

    number: int
    identity: str
    leases: int
    stop_request: str | None
    version: int
    lease: HeldLease

    @classmethod
    def of(cls, row: tuple[Any, ...]) -> Self:
        """Return what a row of `SESSION` says."""
        return cls._make((*row[:5], HeldLease._make(row[5:])))

    @property
    def token(self) -> int:
        """That of its last lease: greater than all before, and not that of any other session."""
        return token_of(self.number, self.leases)

    def must_be_held_with(self, lease: Lease) -> None:
        """Raise unless this is the lease; whether it has time left matters to other runners only."""
        if self.lease.owner is None or self.token != lease.token:
            raise LeaseLostError(lease.agent_id, self.lease.owner)


def token_of(number: int, leases: int) -> int:
    return (number << _LEASE_BITS) + leases


def stamp(moment: datetime) -> int:
    """Return a moment as the microseconds since 1970."""
    return (moment - _EPOCH) // _MICROSECOND


def entry_rows(number: int, version: int, entries: Sequence[Entry]) -> Iterator[tuple[int, str, int]]:
    """Return the rows of entries that come after a version."""
    for seq, entry in enumerate(entries, version + 1):
        yield (number << 32) + seq, entry.body, _checksum(number, seq, entry.body)


def entry_under(lease: Lease, body: str, after: int) -> tuple[int | str, ...]:
    """Return the values of `ADD_ENTRY_UNDER_LEASE`."""
    number, leases = divmod(lease.token, 1 << _LEASE_BITS)
    seq = after + 1
    return (number << 32) + seq, body, _checksum(number, seq, body), number, leases


def checkpoint_rows(number: int, version: int, entries: Sequence[Entry]) -> Iterator[tuple[Any, ...]]:
    """Return the rows of the checkpoints that belong to entries after a version."""
    for seq, entry in enumerate(entries, version + 1):
        if (found := entry.checkpoint) is not None:
            columns = msgspec.structs.astuple(found)
            yield (number << 32) + seq, _checkpoint_checksum(number, seq, found), *columns


def _checksum(number: int, seq: int, text: str) -> int:
    """Return a number by which a row is recognised as unchanged: SQLite does not check its pages."""
    return crc32(text.encode(), (number * 1_000_003 + seq) & 0xFFFFFFFF)


def _checkpoint_checksum(number: int, seq: int, checkpoint: Checkpoint) -> int:
    return _checksum(number, seq, msgspec.json.encode(checkpoint).decode())


def bodies_in(number: int, first: int, last: int, rows: Sequence[tuple[int, str, int]]) -> tuple[str, ...]:
    """Return the entries from one to another; `ValueError` if they are not as they were stored."""
    if len(rows) != max(0, last + 1 - first):
        raise ValueError(f"there are {len(rows)} entries from {first} to {last}")
    for expected, (seq, body, checksum) in enumerate(rows, first):
        if seq != expected or checksum != _checksum(number, seq, body):
            raise ValueError(f"entry {expected} is not what was stored")
    return tuple([body for _, body, _ in rows])


def checkpoint_in(number: int, row: tuple[Any, ...]) -> tuple[int, Checkpoint]:
    """Return a checkpoint and the version before its entry; `ValueError` if it was changed."""
    seq, checksum, *columns = row
    found = Checkpoint(*columns)
    if checksum != _checkpoint_checksum(number, seq, found):
        raise ValueError(f"the checkpoint of entry {seq} is not what was stored")
    return seq - 1, found


def listing(agent_id: str, identity: str, summary: Summary) -> tuple[Any, ...]:
    """Return the columns by which a session is listed, and their checksum."""
    columns = (
        agent_id,
        identity,
        summary.status.value,
        summary.stop_reason and summary.stop_reason.value,
        summary.resolved_by,
        summary.reason,
        summary.agent,
        summary.parent_agent_id,
        stamp(summary.started_at),
        stamp(summary.updated_at),
        summary.step_count,
        summary.pending,
        summary.cost,
        summary.title,
        msgspec.json.encode(jsonable(summary.metadata)).decode(),
    )
    return *columns, crc32(msgspec.json.encode(columns))


def summary_in(row: tuple[Any, ...], runner: str | None) -> Summary:
    """Return a session as a list shows it; `ValueError` if its row is not as it was stored."""
    columns, (checksum, version) = row[: len(_LISTED)], row[len(_LISTED) : len(_LISTED) + 2]
    if checksum != crc32(msgspec.json.encode(columns)):
        raise ValueError("its summary is not what was stored")
    listed = dict(zip(_LISTED, columns, strict=True))
    reason = listed["stop_reason"]
    return Summary(
        **listed
        | {
            "status": AgentStatus(listed["status"]),
            "stop_reason": None if reason is None else StopReason(reason),
            "started_at": _EPOCH + timedelta(microseconds=listed["started_at"]),
            "updated_at": _EPOCH + timedelta(microseconds=listed["updated_at"]),
            "metadata": msgspec.json.decode(listed["metadata"]),
            "version": version,
            "runner": runner,
        }
    )
