"""The index of a SQLite store: a row for each number that a session is found under."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from whyloop.stores.labels import Start, numbers, starts
from whyloop.stores.records import SessionFilter
from whyloop.stores.sqlite_statements import ADD_LABEL, COUNT_LABEL, EVERY_SESSION, REMOVE_LABEL

# What it is found under, when the session started, and its own number.
Place = tuple[int, int, int]

# Finding out what is rare must not take longer than finding it: so many rows are counted in all.
COUNTED = 20_000


def places(
    session: int, started_at: int, status: str, stop_reason: str | None, metadata: Mapping[str, Any]
) -> set[Place]:
    """Where a session that is listed like this stands in the index."""
    return {(number, started_at, session) for number in numbers(status, stop_reason, metadata)}


def reindex(db: sqlite3.Connection, before: set[Place], after: set[Place]) -> None:
    """Move a session in the index; what stays the same is not touched."""
    db.executemany(REMOVE_LABEL, before - after)
    db.executemany(ADD_LABEL, after - before)


def index_everything(db: sqlite3.Connection) -> None:
    """Fill an empty index."""
    for number, status, stop_reason, started_at, metadata in db.execute(EVERY_SESSION).fetchall():
        found = places(number, started_at, status, stop_reason, msgspec.json.decode(metadata))
        reindex(db, set(), found)


def beginnings(db: sqlite3.Connection, wanted: SessionFilter, since: int, until: int) -> list[Start]:
    """The places of the index that together hold all that is wanted, and what to look up there."""
    return [_rarest(db, some, since, until) for some in starts(wanted)]


def _rarest(db: sqlite3.Connection, some: Sequence[Start], since: int, until: int) -> Start:
    if len(some) == 1:
        return some[0]
    most = COUNTED // len(some)
    return min(some, key=lambda start: db.execute(COUNT_LABEL, (start.number, since, until, most)).fetchone())
