"""Sessions in a PostgreSQL database, for many processes on many machines."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from secrets import randbits
from typing import Any
from weakref import finalize

import msgspec
from msgspec import Struct

from whyloop.errors import (
    ConfigurationError,
    ConflictError,
    KeyUsedError,
    LeaseLostError,
    SessionExistsError,
    SessionNotFoundError,
    SessionRunningError,
    SnapshotError,
    StoreError,
)
from whyloop.stores.cursor import cursor_of, position
from whyloop.stores.labels import Start, numbers, starts
from whyloop.stores.postgres_chunks import OwnConnection, PostgresReceiver
from whyloop.stores.postgres_connections import Appends, Connections, Row, to_the_end
from whyloop.stores.postgres_schema import COLUMNS, Statements
from whyloop.stores.records import (
    LONGEST_ID,
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
from whyloop.stores.store import UNATTENDED, ChunkReceiver, Deliver, Store
from whyloop.values.continuation import StopReason
from whyloop.values.plain import jsonable
from whyloop.values.state import AgentStatus
from whyloop.values.text import clean, shortened

# Choosing the rarest label must not take longer than reading it: so many rows of each are counted.
COUNTED = 1_000
# Entries per round trip when a journal is read: more of them would hold up the event loop.
SLICE = 500
# No journal is that long, and a version beyond it is not sent, since PostgreSQL may not take the number.
LARGEST_VERSION = 1 << 31
LARGEST_NUMBER = (1 << 63) - 1


class PostgresStore(Store):
    """A store behind an address like `postgresql://user:password@host:5432/name`.

    Its tables live in a schema of their own and are made when the store is first used. Leases use the
    server's clock, so the clocks of the runners need not agree, unless a clock is given.

    Besides its pool, a store that runs or follows sessions keeps one connection open. It holds a lock that
    the server releases when the process dies, so that other runners can take over at once.

    A connection may break while a change is on its way, and then it is unknown whether the change arrived.
    It is sent once more, and entries that are there already, at their version and to the letter, count as
    done. That is safe: the row of the session is locked, so the two attempts follow each other; only the
    holder of the lease writes to a session; and if two writers without a lease append the very same entry,
    both have what they asked for.
    """

    def __init__(
        self,
        address: str,
        *,
        schema: str = "whyloop",
        clock: Watch | None = None,
        min_connections: int = 1,
        max_connections: int = 10,
        timeout: float = 10.0,
    ) -> None:
        if not 0 <= min_connections <= max_connections or max_connections < 1 or not timeout > 0:
            raise ConfigurationError(
                f"invalid limits of a PostgreSQL store ({min_connections} to {max_connections} connections, "
                f"{timeout} s): use 1 connection or more, at most as many at least, and a timeout above 0"
            )
        self._clock = clock
        self._statements = Statements(schema)
        self._connections = Connections(address, schema, min_connections, max_connections, timeout)
        self._appends = Appends(self._connections, self._statements.append, clock)
        self._own = OwnConnection(self._connections, schema, self._statements.send_chunks)
        finalize(self, self._own.abandon).atexit = False

    async def create(
        self, summary: Summary, entries: Sequence[Entry], *, key: RequestKey | None = None
    ) -> None:
        change = _change(summary.agent_id, entries, key=key, listed=summary)
        await self._change(self._statements.create, summary.agent_id, {"change": change.decode()})

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
        token = None if lease is None else lease.token
        change = _change(
            agent_id, entries, after=after, token=token, release=release, key=key, listed=summary
        )
        return _answer(agent_id, await self._appends.append(change), after, key).stop_request

    async def key(self, agent_id: str, key: str) -> tuple[str, int] | None:
        digest, version = await self._row(self._statements.key, agent_id, {"key": written(key)})
        return None if digest is None else (read(digest), version)

    async def read(self, agent_id: str, *, after: int = 0, limit: int | None = None) -> Stored:
        first = min(max(0, after), LARGEST_VERSION)
        given = {"after": first, "limit": SLICE if limit is None else min(limit, SLICE)}
        *columns, number, bodies = await self._row(self._statements.read, agent_id, given)
        summary = _summary(columns)
        wanted = max(0, summary.version - first)
        wanted = wanted if limit is None else min(wanted, limit)
        while len(bodies) < wanted:
            # Entries are only ever added, so those up to a version are the same a moment later.
            given = {
                "number": number,
                "after": first + len(bodies),
                "limit": min(wanted - len(bodies), SLICE),
            }
            rows = await self._connections.fetch(self._statements.entries, given)
            if not rows:
                raise SessionNotFoundError(agent_id)
            bodies += [body for (body,) in rows]
        return Stored(summary, tuple(bodies))

    async def checkpoint(
        self,
        agent_id: str,
        *,
        execution_id: str | None = None,
        seq: int | None = None,
        step_count: int | None = None,
        message_count: int | None = None,
    ) -> tuple[int, Checkpoint] | None:
        given = {
            "execution_id": None if execution_id is None else written(execution_id),
            "seq": _bound(seq),
            "step_count": _bound(step_count),
            "message_count": _bound(message_count),
        }
        version, *found = await self._row(self._statements.checkpoint, agent_id, given)
        if version is None:
            return None
        execution_id, seq, step_count, message_count, state = found
        return version - 1, Checkpoint(read(execution_id), seq, step_count, message_count, state)

    async def versions(self, agent_ids: Collection[str]) -> Mapping[str, tuple[str, int]]:
        given = {"ids": [agent_id for agent_id in agent_ids if _is_possible(agent_id)]}
        rows = await self._connections.fetch(self._statements.versions, given)
        return {agent_id: (read(identity), version) for agent_id, identity, version in rows}

    async def acquire(self, agent_id: str, owner: str, seconds: float) -> Lease:
        given = {
            "owner": written(owner),
            "seconds": float(seconds),
            "lock": await self._own.runner_lock(),
            "mark": randbits(63),
        }
        acquiring = asyncio.ensure_future(self._change(self._statements.acquire, agent_id, given))
        try:
            answer = await to_the_end(acquiring)
        except asyncio.CancelledError:
            if not acquiring.cancelled() and acquiring.exception() is None:
                await self.release(Lease(agent_id, owner, acquiring.result().token, seconds))
            raise
        return Lease(agent_id, owner, answer.token, seconds)

    async def renew(self, lease: Lease) -> str | None:
        given = {"token": lease.token, "lock": await self._own.runner_lock()}
        return (await self._change(self._statements.renew, lease.agent_id, given)).stop_request

    async def release(self, lease: Lease) -> str | None:
        given = {"token": lease.token}
        return (await self._change(self._statements.release, lease.agent_id, given)).stop_request

    async def ask_to_stop(self, agent_id: str, reason: str) -> bool:
        answer = await self._change(self._statements.ask_to_stop, agent_id, {"reason": written(reason)})
        return answer.outcome == "done"

    async def stop_requests(self, leases: Collection[Lease]) -> Mapping[int, str]:
        given = {"tokens": [lease.token for lease in leases]}
        rows = await self._connections.fetch(self._statements.stop_requests, given)
        return {token: read(reason) for token, reason in rows}

    async def find(self, wanted: SessionFilter, *, limit: int, after: str | None) -> Page:
        checked_limit(limit)
        within = bounds(wanted, after)
        given = {**within, **places(await self._beginnings(wanted, within)), "limit": limit + 1}
        given |= {"updated_before": wanted.updated_before, "moment": self._moment()}
        # Never prepared: a plan that was made when the tables were small would be kept when they are not.
        rows = await self._connections.fetch(self._statements.page, given, prepare=False)
        sessions = tuple(_summary(row) for row in rows[:limit])
        return Page(sessions, cursor_of(sessions[-1]) if len(rows) > limit else None)

    async def _beginnings(self, wanted: SessionFilter, within: Mapping[str, Any]) -> list[Start]:
        """Return the places of the index that together hold all that is wanted; the rarest of each choice."""
        choices = list(starts(wanted))
        asked = [start.number for some in choices for start in some if len(some) > 1]
        given = {**within, "labels": asked, "limit": COUNTED}
        rows = await self._connections.fetch(self._statements.counts, given, prepare=False) if asked else []
        found: dict[int, int] = dict(rows)
        return [min(some, key=lambda start: found.get(start.number, 0)) for some in choices]

    async def unattended(self, *, limit: int = UNATTENDED) -> tuple[Summary, ...]:
        given = {"limit": checked_limit(limit), "moment": self._moment()}
        rows = await self._connections.fetch(self._statements.unattended, given)
        return tuple(_summary(row) for row in rows)

    async def delete(self, agent_id: str, *, expected_version: int | None = None) -> None:
        expected = None if expected_version is None else _bound(expected_version)
        await self._change(self._statements.delete, agent_id, {"expected": expected}, expected_version)

    async def prune(
        self,
        *,
        statuses: Collection[AgentStatus],
        updated_before: datetime,
        limit: int,
        dry_run: bool = False,
    ) -> tuple[str, ...]:
        given: dict[str, Any] = {
            "statuses": [status.value for status in prunable(statuses)],
            "before": updated_before,
            "limit": checked_limit(limit),
            "moment": self._moment(),
        }
        rows = await self._connections.fetch(self._statements.prunable, given)
        if rows and not dry_run:
            given |= {"ids": [agent_id for (agent_id,) in rows], "again": False}
            rows = await to_the_end(self._connections.fetch(self._statements.prune, given))
        return tuple(agent_id for (agent_id,) in rows)

    async def send_chunks(self, chunks: Sequence[Chunk]) -> None:
        await self._own.send(chunks)

    def receive_chunks(self, deliver: Deliver) -> ChunkReceiver:
        return PostgresReceiver(self._own, deliver)

    def now(self) -> datetime:
        return self._moment() or super().now()

    async def close(self) -> None:
        await self._appends.close()
        await self._own.close()
        await self._connections.close()

    def _moment(self) -> datetime | None:
        return self._clock.now() if self._clock else None

    async def _row(self, statement: bytes, agent_id: str, given: Mapping[str, Any]) -> Row:
        """Return the one row that a statement finds for a session."""
        given = {"agent_id": _checked_id(agent_id), "moment": self._moment(), **given}
        rows = await self._connections.fetch(statement, given)
        if not rows:
            raise SessionNotFoundError(agent_id)
        return rows[0]

    async def _change(
        self, statement: bytes, agent_id: str, given: Mapping[str, Any], expected: int | None = None
    ) -> _Answer:
        """Return the answer of a function in the database; raise the error that it stands for."""
        given = {"agent_id": _checked_id(agent_id), "again": False, "moment": self._moment(), **given}
        row = (await to_the_end(self._connections.fetch(statement, given)))[0]
        return _answer(agent_id, row, expected or 0)


class _Answer(Struct, frozen=True, gc=False):
    outcome: str
    token: int
    stop_request: str | None


def _answer(agent_id: str, row: Row, after: int = 0, key: RequestKey | None = None) -> _Answer:
    """Return what a function in the database answered; raise the error that it stands for."""
    outcome, version, owner, seconds, token, stop_request, digest = row
    owner = owner and read(owner)
    match outcome:
        case "missing":
            raise SessionNotFoundError(agent_id)
        case "exists":
            raise SessionExistsError(agent_id)
        case "running":
            raise SessionRunningError(agent_id, owner, seconds)
        case "lost":
            raise LeaseLostError(agent_id, owner)
        case "conflict":
            raise ConflictError(agent_id, after, version)
        case "used" if key is not None:
            raise KeyUsedError(agent_id, key.key, read(digest), version)
    return _Answer(outcome, token, stop_request and read(stop_request))


class _EntryRow(Struct, omit_defaults=True):
    body: str
    execution_id: str | None = None
    seq: int | None = None
    step_count: int | None = None
    message_count: int | None = None
    state: str | None = None


class _Change(Struct, omit_defaults=True):
    """A new session, or an append to one, as the functions in the database read it from JSON."""

    agent_id: str
    entries: list[_EntryRow]
    after: int
    token: int | None
    release: bool
    key: str | None = None
    digest: str | None = None
    listed: dict[str, Any] | None = None


def _change(
    agent_id: str,
    entries: Sequence[Entry],
    *,
    after: int = 0,
    token: int | None = None,
    release: bool = False,
    key: RequestKey | None = None,
    listed: Summary | None = None,
) -> bytes:
    change = _Change(
        _checked_id(agent_id),
        [_entry_row(agent_id, entry) for entry in entries],
        min(after, LARGEST_VERSION),
        token,
        release,
        written(key.key) if key else None,
        written(key.digest) if key else None,
        _listing(listed) if listed else None,
    )
    try:
        return msgspec.json.encode(change)
    except UnicodeEncodeError:
        raise StoreError(f"invalid entry of session {agent_id!r}: it has an unpaired surrogate") from None


def _entry_row(agent_id: str, entry: Entry) -> _EntryRow:
    checkpoint = entry.checkpoint
    if "\x00" in entry.body or (checkpoint is not None and "\x00" in checkpoint.state):
        raise StoreError(
            f"invalid entry of session {agent_id!r}: it has a NUL character, which is never part of JSON"
        )
    if checkpoint is None:
        return _EntryRow(entry.body)
    return _EntryRow(
        entry.body,
        written(checkpoint.execution_id),
        checkpoint.seq,
        checkpoint.step_count,
        checkpoint.message_count,
        checkpoint.state,
    )


def _listing(summary: Summary) -> dict[str, Any]:
    """Return the fields of a summary as they are stored."""
    listed: dict[str, Any] = {name: getattr(summary, name) for name in COLUMNS}
    listed = {name: written(value) if isinstance(value, str) else value for name, value in listed.items()}
    metadata = jsonable(summary.metadata)
    labels = numbers(
        summary.status, summary.stop_reason, metadata, agent=summary.agent, resolved_by=summary.resolved_by
    )
    return {**listed, "metadata": msgspec.json.encode(metadata).decode(), "labels": sorted(labels)}


def _summary(row: Sequence[Any]) -> Summary:
    """Return the summary that the columns of `SUMMARY` hold."""
    agent_id, *columns, version, runner = row
    stored: dict[str, Any] = dict(zip(COLUMNS, columns, strict=True))
    listed: dict[str, Any] = {
        name: read(value) if isinstance(value, str) else value for name, value in stored.items()
    }
    try:
        listed |= {
            "status": AgentStatus(stored["status"]),
            "stop_reason": stored["stop_reason"] and StopReason(stored["stop_reason"]),
            "started_at": stored["started_at"].astimezone(UTC),
            "updated_at": stored["updated_at"].astimezone(UTC),
            "metadata": msgspec.json.decode(stored["metadata"]),
        }
    except ValueError as error:
        raise SnapshotError(f"session {agent_id!r} cannot be listed: {error}; upgrade whyloop") from None
    return Summary(agent_id, **listed, version=version, runner=runner and read(runner))


def bounds(wanted: SessionFilter, after: str | None) -> dict[str, Any]:
    """Return the moment after which sessions are wanted, and the place in the list below which they are."""
    ends = [] if after is None else [position(after)]
    if wanted.started_before is not None:
        ends.append((wanted.started_before, ""))
    until, end = min(ends, default=(None, ""))
    return {"since": wanted.started_after, "until": until, "end": end}


def places(beginnings: Sequence[Start]) -> dict[str, Any]:
    """Return where to read a page, as the parameters of a statement."""
    return {
        "labels": [start.number for start in beginnings],
        "others": ["{" + ",".join(map(str, start.others)) + "}" for start in beginnings],
    }


def _bound(number: int | None) -> int:
    """Return the greatest number that is allowed, and that PostgreSQL can compare."""
    return LARGEST_NUMBER if number is None else max(-1, min(number, LARGEST_NUMBER))


_ESCAPED = re.compile(r"\\(\\|0)")


def written(text: str) -> str:
    """Return the text without NUL, which PostgreSQL cannot hold, so that `read` can put it back."""
    return clean(text).replace("\\", "\\\\").replace("\x00", "\\0")


def read(text: str) -> str:
    """Return the text as it was before `written`."""
    return _ESCAPED.sub(lambda escape: "\x00" if escape[0] == "\\0" else "\\", text) if "\\" in text else text


def _is_possible(agent_id: str) -> bool:
    return len(agent_id) <= LONGEST_ID and "\x00" not in agent_id and clean(agent_id) == agent_id


def _checked_id(agent_id: str) -> str:
    if not _is_possible(agent_id):
        raise ConfigurationError(
            f"invalid session id {shortened(repr(agent_id), 80)}: use up to {LONGEST_ID} characters, "
            "without NUL and without unpaired surrogates"
        )
    return agent_id
