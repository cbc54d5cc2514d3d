"""What the rows of a SQLite store say."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

from whyloop.errors import LeaseLostError, SessionNotFoundError, SessionRunningError
from whyloop.stores.cursor import position
from whyloop.stores.records import Lease, SessionFilter, Summary, Told
from whyloop.stores.sqlite_labels import Place, places
from whyloop.stores.sqlite_statements import LISTING, SESSION
from whyloop.values.continuation import StopReason
from whyloop.values.plain import jsonable
from whyloop.values.state import AgentStatus

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
# Later than any date that there is.
_NEVER = 2**62
LEASE_BITS = 24

Entry = tuple[int, str, int]


class Session(NamedTuple):
    """What has to be known of a session before it is changed."""

    number: int
    leases: int
    owner: str | None
    seconds: float | None
    until: int | None
    words: str | None
    version: int

    @property
    def token(self) -> int:
        """That of its last lease; greater than all before, and not that of any other session."""
        return (self.number << LEASE_BITS) + self.leases

    def must_be_free(self, agent_id: str, now: int) -> None:
        left = seconds_left(self.seconds, self.until, now)
        if left:
            raise SessionRunningError(agent_id, self.owner or "", left)

    def must_be_held_with(self, lease: Lease) -> None:
        """Whether the lease has time left matters to others only."""
        if self.owner is None or self.token != lease.token:
            raise LeaseLostError(lease.agent_id, self.owner)


def session_of(db: sqlite3.Connection, agent_id: str) -> Session:
    row = db.execute(SESSION, (agent_id,)).fetchone()
    if row is None:
        raise SessionNotFoundError(agent_id)
    return Session._make(row)


def seconds_left(seconds: float | None, until: int | None, now: int) -> float:
    """None are left once a lease has lapsed.

    A clock is put right by a little all the time, and that costs nobody a lease. One that lies
    further ahead than twice its seconds was given by a clock that went wrong.
    """
    if seconds is None or until is None:
        return 0
    left = (until - now) / 1_000_000
    return left if 0 < left <= 2 * seconds else 0


def stamp(moment: datetime) -> int:
    """A moment as the microseconds since 1970."""
    return (moment - _EPOCH) // _MICROSECOND


def later(moment: int, seconds: float) -> int:
    return moment + round(seconds * 1_000_000)


def entries_from(session: int, version: int, bodies: Sequence[str]) -> Iterator[Entry]:
    """Rows for the entries that come after a version."""
    for seq, body in enumerate(bodies, version + 1):
        yield (session << 32) + seq, body, entry_checksum(session, seq, body)


def entry_under(lease: Lease, body: str, after: int) -> tuple[int | str, ...]:
    """What `ADD_AT_ONCE` is given: an entry, and the lease under which it is written."""
    number, leases = divmod(lease.token, 1 << LEASE_BITS)
    seq = after + 1
    return (number << 32) + seq, body, entry_checksum(number, seq, body), number, leases


def entry_checksum(session: int, seq: int, body: str) -> int:
    """By this an entry is known to be what was stored there: SQLite does not look into its pages."""
    return crc32(body.encode(), (session * 1_000_003 + seq) & 0xFFFFFFFF)


def bodies_in(
    session: int, after: int, version: int, rows: Sequence[tuple[int, str, int]]
) -> tuple[str, ...]:
    """The entries after one version up to another; a `ValueError` if they are not what was stored."""
    first = max(0, after) + 1
    if len(rows) != max(0, version + 1 - first):
        raise ValueError(f"there are {len(rows)} entries from {first} to {version}")
    for expected, (seq, body, checksum) in enumerate(rows, first):
        if seq != expected or checksum != entry_checksum(session, seq, body):
            raise ValueError(f"entry {expected} is not what was stored")
    return tuple([body for _, body, _ in rows])


def events_from(session: int, last: int, told: Sequence[Told]) -> Iterator[tuple[int, str, int, str, int]]:
    """Rows for envelopes that come after a position."""
    for place, each in enumerate(told, last + 1):
        checksum = entry_checksum(session, place, f"{each.execution_id}:{each.seq}:{each.body}")
        yield (session << 32) + place, each.execution_id, each.seq, each.body, checksum


def told_in(session: int, row: tuple[int, str, int, str, int]) -> Told:
    """An envelope as it was kept; a `ValueError` if it is not what was stored."""
    place, execution_id, seq, body, checksum = row
    if checksum != entry_checksum(session, place, f"{execution_id}:{seq}:{body}"):
        raise ValueError(f"event {place} is not what was stored")
    return Told(execution_id, seq, body, place)


def listing(agent_id: str, summary: Summary) -> tuple[Any, ...]:
    """How a session is listed, in the order of its columns."""
    columns = (
        summary.status.value,
        summary.stop_reason and summary.stop_reason.value,
        stamp(summary.started_at),
        stamp(summary.updated_at),
        summary.step_count,
        summary.title,
        summary.parent_agent_id,
        msgspec.json.encode(jsonable(summary.metadata)).decode(),
    )
    return *columns, _listing_checksum(agent_id, *columns)


def _listing_checksum(*columns: object) -> int:
    return crc32(msgspec.json.encode(columns))


def places_of(number: int, row: tuple[Any, ...]) -> set[Place]:
    """Where a session that is listed like this stands in the index."""
    status, stop_reason, started_at, *_, metadata, _ = row
    return places(number, started_at, status, stop_reason, msgspec.json.decode(metadata))


def places_in(db: sqlite3.Connection, number: int) -> set[Place]:
    """Where a session stands in the index now."""
    return places_of(number, db.execute(LISTING, (number,)).fetchone())


def summary_in(row: tuple[Any, ...], now: int) -> Summary:
    """A session as a list shows it at this moment; a `ValueError` if that is not what was stored."""
    columns, (stored, owner, seconds, until, version, _) = row[:9], row[9:]
    if stored != _listing_checksum(*columns):
        raise ValueError("how it is listed is not what was stored")
    agent_id, status, stop_reason, started_at, updated_at, step_count, title, parent, metadata = columns
    return Summary(
        agent_id=agent_id,
        status=AgentStatus(status),
        started_at=_EPOCH + timedelta(microseconds=started_at),
        updated_at=_EPOCH + timedelta(microseconds=updated_at),
        stop_reason=None if stop_reason is None else StopReason(stop_reason),
        parent_agent_id=parent,
        step_count=step_count,
        title=title,
        metadata=msgspec.json.decode(metadata),
        version=version,
        runner=owner if seconds_left(seconds, until, now) else None,
    )


def bounds(wanted: SessionFilter, after: str | None) -> tuple[int, tuple[int, str]]:
    """The moment after which sessions are wanted, and the place in the list below which they are."""
    since = -_NEVER if wanted.started_after is None else stamp(wanted.started_after)
    ends = [(_NEVER, "")]
    if wanted.started_before is not None:
        ends.append((stamp(wanted.started_before), ""))
    if after is not None:
        moment, agent_id = position(after)
        ends.append((stamp(moment), agent_id))
    return since, min(ends)
