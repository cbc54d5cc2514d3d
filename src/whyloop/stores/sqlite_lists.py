"""The list of the sessions in a SQLite file: how it is written, found and counted."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from zlib import crc32

import msgspec

from whyloop.stores.records import DAY, Listing, SessionFilter, Tally, search_words, wanted_labels
from whyloop.values.continuation import StopReason
from whyloop.values.state import AgentStatus

LEASE = "lease_owner, lease_seconds, lease_until, lease_runner"
VERSION = """
(SELECT coalesce(max(place), 0) & 0xFFFFFFFF FROM entries
 WHERE place > sessions.number << 32 AND place < (sessions.number + 1) << 32)
"""
_COLUMNS = f"agent_id, identity, summary, search, checksum, number, {VERSION}, {LEASE}"
_WITH_SUMMARY = "CROSS JOIN summaries ON summaries.session = sessions.number"
SUMMARY = f"{_COLUMNS} FROM sessions {_WITH_SUMMARY}"
"""What a summary is made from, and the tables."""


# Writing


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


def remove_labels(db: sqlite3.Connection, number: int) -> None:
    """Take a session out of the index."""
    db.executemany(_REMOVE_LABEL, _stored_labels(db, number))


def listing_checksum(agent_id: str, identity: str, summary: str, search: str) -> int:
    """Return a number by which a summary is recognised as unchanged."""
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


# Finding and counting

# Counting where to begin must not take longer than beginning there: so many rows are counted in all.
_COUNTED = 6_000
# So many sessions are sorted rather than read in the order of the list.
_RECENT = 1_000
# Later than any date.
_NEVER = 2**62
_Place = tuple[int, str]


def page(
    db: sqlite3.Connection, wanted: SessionFilter, end: tuple[datetime, str] | None, limit: int
) -> list[Any]:
    """Return the rows of the newest sessions that a filter finds below a place in the list."""
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
    """Return the rows of sessions with questions, those that were updated first first."""
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
    words = search_words(wanted)
    conditions = f"""
    found.began > :since AND found.began <= :until AND (found.began < :until OR sessions.agent_id < :end)
    {_also(range(0 if is_recent else 1, len(labels)), "found.began", "found.session")}
    AND sessions.updated_at > :updated_after AND sessions.updated_at < :updated_before
    {" ".join(f"AND instr(summaries.search, :word{number}) > 0" for number in range(len(words)))}
"""
    values = {
        "since": since,
        "until": until,
        "end": name,
        "updated_after": updated_after,
        "updated_before": _NEVER if wanted.updated_before is None else stamp(wanted.updated_before),
    }
    values |= {**_numbered("label", labels), **_numbered("word", words)}
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
        SELECT 1 FROM labels WHERE label = ?1 AND started_at > ?2 AND started_at <= ?3 LIMIT ?4
    )),
    (SELECT min(started_at) FROM labels WHERE label = ?1 AND started_at > ?2),
    (SELECT max(started_at) FROM labels WHERE label = ?1 AND started_at <= ?3)
"""


def _plan(
    db: sqlite3.Connection, labels: list[int], since: int, end: _Place
) -> tuple[list[int], int, _Place]:
    """Return the labels, that of the fewest sessions first, and where sessions can have all of them."""
    if len(labels) > 1:
        most, counts = _COUNTED // len(labels), {}
        for label in labels:
            counts[label], oldest, newest = db.execute(_SPAN, (label, since, end[0], most)).fetchone()
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
