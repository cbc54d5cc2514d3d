"""The tables of a SQLite store, made by migrations that are applied in order, each once."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

from whyloop.errors import StoreError
from whyloop.stores.sqlite_labels import index_everything

# By this number in its header a file is known as one of ours: "whyl" in ASCII.
APPLICATION_ID = 0x7768796C

_MIGRATIONS = """
CREATE TABLE migrations (
    name       TEXT PRIMARY KEY,
    applied_at TEXT NOT NULL
)
"""

# Times are microseconds since 1970, in UTC. A number is never used twice, so that nothing of a
# deleted session, not even its leases, can be taken for that of a later one with the same id.
_SESSIONS = """
CREATE TABLE sessions (
    number          INTEGER PRIMARY KEY AUTOINCREMENT,
    agent_id        TEXT NOT NULL UNIQUE,
    status          TEXT NOT NULL,
    stop_reason     TEXT,
    started_at      INTEGER NOT NULL,
    updated_at      INTEGER NOT NULL,
    step_count      INTEGER NOT NULL,
    title           TEXT NOT NULL,
    parent_agent_id TEXT,
    metadata        TEXT NOT NULL,
    checksum        INTEGER NOT NULL,
    leases          INTEGER NOT NULL DEFAULT 0,
    lease_owner     TEXT,
    lease_seconds   REAL,
    lease_until     INTEGER,
    stop_request    TEXT
)
"""

# The place of an entry is the number of its session and its own number there, in 32 bits each. So
# the entries of a session lie side by side, and adding one touches one page: a key of two columns
# would need an index beside the table, and every step would write twice as much.
_ENTRIES = """
CREATE TABLE entries (
    place    INTEGER PRIMARY KEY,
    body     TEXT NOT NULL,
    checksum INTEGER NOT NULL
)
"""

_LABELS = """
CREATE TABLE labels (
    label      INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    session    INTEGER NOT NULL,
    PRIMARY KEY (label, started_at, session)
) WITHOUT ROWID
"""

# What was told of sessions, envelope by envelope, where somebody keeps it; places are as those of entries.
_EVENTS = """
CREATE TABLE events (
    place        INTEGER PRIMARY KEY,
    execution_id TEXT NOT NULL,
    seq          INTEGER NOT NULL,
    body         TEXT NOT NULL,
    checksum     INTEGER NOT NULL
)
"""


def _journals(db: sqlite3.Connection) -> None:
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.execute(_MIGRATIONS)
    db.execute(_SESSIONS)
    db.execute(_ENTRIES)


def _labels(db: sqlite3.Connection) -> None:
    db.execute(_LABELS)
    index_everything(db)


def _events(db: sqlite3.Connection) -> None:
    db.execute(_EVENTS)
    db.execute("CREATE INDEX events_by_number ON events (execution_id, seq)")


# New ones go to the end, and none is ever changed: there are files that it was applied to.
MIGRATIONS: dict[str, Callable[[sqlite3.Connection], None]] = {
    "0001_journals": _journals,
    "0002_labels": _labels,
    "0003_events": _events,
}


def prepare(db: sqlite3.Connection, path: Path) -> None:
    """Bring a file up to date; one of another program, or of a newer whyloop, is left as it is."""
    db.execute("BEGIN")
    applied = _applied(db, path)
    db.execute("COMMIT")
    unknown = sorted(applied - MIGRATIONS.keys())
    if unknown:
        raise StoreError(
            f"{path} was written by a newer whyloop, and this one does not know {', '.join(unknown)}: "
            "upgrade whyloop. The file was left as it is"
        )
    if db.execute("PRAGMA journal_mode = WAL").fetchone() != ("wal",):
        raise StoreError(
            f"{path} is where SQLite cannot keep its log, as on most network drives: "
            "put it on a disk of this machine, or use PostgreSQL"
        )
    for name in MIGRATIONS:
        if name not in applied:
            _apply(db, path, name)


def _apply(db: sqlite3.Connection, path: Path, name: str) -> None:
    db.execute("BEGIN IMMEDIATE")
    # Another process may have come first.
    if name not in _applied(db, path):
        MIGRATIONS[name](db)
        db.execute("INSERT INTO migrations VALUES (?, datetime('now'))", (name,))
    db.execute("COMMIT")


def _applied(db: sqlite3.Connection, path: Path) -> set[str]:
    """The names of the migrations that the file has; none if it is empty."""
    (application_id,) = db.execute("PRAGMA application_id").fetchone()
    if application_id == APPLICATION_ID:
        return {str(name) for (name,) in db.execute("SELECT name FROM migrations")}
    if application_id or db.execute("SELECT 1 FROM sqlite_master").fetchone():
        raise StoreError(
            f"{path} is the SQLite database of another program: choose another file. It was left as it is"
        )
    return set()
