"""Sessions in a PostgreSQL database, for many processes on many machines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from copy import copy
from datetime import datetime, timedelta
from functools import partial
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
    StoreUnavailableError,
    WorkflowOpenError,
)
from whyloop.stores.listing import (
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
from whyloop.stores.live import ChunkReceiver, Deliver, ended, finish
from whyloop.stores.postgres_connection import Connections, OwnConnection, PostgresReceiver, Row, filled
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
    checked_id,
    checked_key,
    checked_limit,
    claim_key,
    is_valid_id,
)
from whyloop.stores.store import UNATTENDED, Store
from whyloop.values.continuation import StopReason
from whyloop.values.state import AgentStatus
from whyloop.values.text import clean
from whyloop.wire.journal import Checkpoint, Entry

# Choosing the rarest label must not take longer than reading it, so at most this many rows are counted.
COUNTED = 1_000
# Up to this many recently updated sessions are sorted instead of read in the order of the list.
RECENT = 1_000
# Entries per round trip when a journal is read: more of them would hold up the event loop.
SLICE = 500
# Appends per round trip, their size in bytes, and round trips at once: while one batch is being synced,
# the server works on the next.
LONGEST_BATCH = 64
LARGEST_BATCH = 1 << 20
MOST_BATCHES = 2
# No journal is that long, and a version beyond it is not sent, since PostgreSQL may not take the number.
LARGEST_VERSION = 1 << 31
LARGEST_NUMBER = (1 << 63) - 1
_MOMENT = timedelta(microseconds=1)


_SUMMARY = """
    session.agent_id, session.identity, summaries.summary, summaries.search,
    (SELECT coalesce(max(seq), 0) FROM {schema}.entries WHERE entries.session = session.number),
    (SELECT counts FROM {schema}.entries WHERE entries.session = session.number ORDER BY seq DESC LIMIT 1),
    CASE WHEN {schema}.seconds_left(
        session.lease_until, session.lease_seconds, session.lease_lock, %(moment)s
    ) > 0 THEN session.lease_owner END,
    session.workflow
"""
_WITH_SUMMARY = "JOIN {schema}.summaries ON summaries.session = session.number"
_FREE = """
    {schema}.seconds_left(session.lease_until, session.lease_seconds, session.lease_lock, %(moment)s) = 0
"""
_ENTRIES = """
    SELECT body FROM {schema}.entries
    WHERE entries.session = NUMBER AND entries.seq > %(after)s::bigint
    ORDER BY entries.seq LIMIT %(limit)s::bigint
"""
_WITHIN = """
    found.started_at > coalesce(%(since)s, '-infinity'::timestamptz)
    AND (found.started_at, found.agent_id) < (coalesce(%(until)s, 'infinity'::timestamptz), %(end)s)
"""

_SESSION_WITHIN = _WITHIN.replace("found", "session")
_HAS_WORDS = """
    NOT EXISTS (
        SELECT FROM unnest(%(terms)s::text[]) AS wanted (term)
        WHERE strpos(summaries.search, wanted.term) = 0
    )
"""
_UPDATED = """
    session.updated_at > coalesce(%(updated_after)s, '-infinity'::timestamptz)
    AND session.updated_at < coalesce(%(updated_before)s, 'infinity'::timestamptz)
"""


# The functions of the database, with their arguments.
CALLS = {
    "create_session": "json_populate_record(NULL::{schema}.change, %(change)s::json), %(again)s",
    "append": "%(changes)s::json, %(waiting)s, %(again)s, %(moment)s",
    "acquire": "%(agent_id)s, %(owner)s, %(seconds)s, %(durable)s, %(lock)s, %(mark)s, %(moment)s",
    "renew": "%(agent_id)s, %(token)s, %(lock)s, %(moment)s",
    "release": "%(agent_id)s, %(token)s",
    "ask_to_stop": "%(agent_id)s, %(reason)s, %(key)s, %(digest)s, %(again)s, %(moment)s",
    "keep_claim": "%(agent_id)s, %(key)s, %(data)b",
    "record_workflow": "%(agent_id)s, %(engine)s, %(workflow)s, %(moment)s",
    "forget_workflow": "%(agent_id)s, %(token)s::bigint",
    "delete_session": "%(agent_id)s, %(expected)s::bigint, %(again)s, %(moment)s",
    "tally": (
        "%(label)s::bigint, %(others)s::bigint[], %(terms)s::text[], %(since)s, %(until)s, "
        "%(updated_after)s, %(updated_before)s, %(first_day)s"
    ),
    "send_chunks": "%(channel)s, %(space)s, %(chunks)s::json, %(longest)s",
}
QUERIES = {
    "read": f"""
SELECT {_SUMMARY}, session.number, ARRAY({_ENTRIES.replace("NUMBER", "session.number")})
FROM {{schema}}.sessions AS session {_WITH_SUMMARY} WHERE session.agent_id = %(agent_id)s
""",
    "entries": _ENTRIES.replace("NUMBER", "%(number)s"),
    "listed": """
SELECT asked.place, ARRAY(
    SELECT body FROM {schema}.entries WHERE session = sessions.number AND seq <= asked.version ORDER BY seq
)
FROM unnest(%(ids)s::text[], %(identities)s::text[], %(versions)s::bigint[])
    WITH ORDINALITY AS asked (agent_id, identity, version, place)
JOIN {schema}.sessions ON sessions.agent_id = asked.agent_id AND sessions.identity = asked.identity
""",
    "checkpoint": """
SELECT found.version, found.execution_id, found.seq, found.step_count, found.message_count, found.state
FROM {schema}.sessions AS session
LEFT JOIN LATERAL (
    SELECT * FROM {schema}.checkpoints
    WHERE checkpoints.session = session.number
        AND (%(execution_id)s::text IS NULL OR checkpoints.execution_id = %(execution_id)s)
        AND checkpoints.seq <= %(seq)s::bigint
        AND checkpoints.step_count <= %(step_count)s::bigint
        AND checkpoints.message_count <= %(message_count)s::bigint
    ORDER BY checkpoints.version DESC LIMIT 1
) AS found ON true
WHERE session.agent_id = %(agent_id)s
""",
    "key": """
SELECT keys.digest, keys.version FROM {schema}.sessions
LEFT JOIN {schema}.keys ON keys.session = sessions.number AND keys.key = %(key)s
WHERE sessions.agent_id = %(agent_id)s
""",
    "claim": """
SELECT claims.data FROM {schema}.sessions
LEFT JOIN {schema}.claims ON claims.session = sessions.number AND claims.key = %(key)s
WHERE sessions.agent_id = %(agent_id)s
""",
    "open_workflows": """
SELECT agent_id, engine, workflow, workflow_token,
    extract(epoch FROM coalesce(%(moment)s, clock_timestamp()) - workflow_since)::double precision
FROM {schema}.sessions
WHERE engine = %(engine)s AND engine IS NOT NULL AND status NOT IN ('in_progress', 'paused')
ORDER BY workflow_since, workflow_token LIMIT %(limit)s
""",
    "versions": """
SELECT agent_id, identity, (SELECT coalesce(max(seq), 0) FROM {schema}.entries WHERE session = number)
FROM {schema}.sessions WHERE agent_id = ANY (%(ids)s::text[])
""",
    "stop_requests": """
SELECT lease_token, stop_request FROM {schema}.sessions
WHERE stop_request IS NOT NULL AND lease_token = ANY (%(tokens)s::bigint[])
""",
    "unattended": f"""
SELECT {_SUMMARY} FROM {{schema}}.sessions AS session {_WITH_SUMMARY}
WHERE (session.status = 'in_progress' OR (session.status = 'paused' AND session.waiting = 0)) AND {_FREE}
    AND (%(labels)s::bigint[] IS NULL OR session.labels && %(labels)s::bigint[])
ORDER BY session.updated_at, session.agent_id LIMIT %(limit)s
""",
    # How many sessions there are under some labels, counted up to a limit, the oldest and the newest.
    "spans": f"""
SELECT asked.label,
    (SELECT count(*) FROM (
        SELECT FROM {{schema}}.labels AS found WHERE found.label = asked.label AND {_WITHIN} LIMIT %(limit)s
    ) AS counted),
    (SELECT found.started_at FROM {{schema}}.labels AS found WHERE found.label = asked.label AND {_WITHIN}
     ORDER BY found.started_at LIMIT 1),
    (SELECT found.started_at FROM {{schema}}.labels AS found WHERE found.label = asked.label AND {_WITHIN}
     ORDER BY found.started_at DESC LIMIT 1)
FROM unnest(%(labels)s::bigint[]) AS asked (label)
""",
    "waiting": f"""
SELECT {_SUMMARY} FROM {{schema}}.sessions AS session {_WITH_SUMMARY}
WHERE session.waiting > 0 AND session.labels @> %(labels)s::bigint[]
ORDER BY session.updated_at, session.agent_id LIMIT %(limit)s
""",
    "is_recent": """
SELECT FROM {schema}.sessions WHERE updated_at > %(updated_after)s LIMIT 1 OFFSET %(recent)s
""",
    # The same page where only a few sessions were updated after a time.
    "recent_page": f"""
SELECT {_SUMMARY} FROM {{schema}}.sessions AS session {_WITH_SUMMARY}
WHERE session.updated_at > %(updated_after)s AND {_UPDATED} AND {_SESSION_WITHIN} AND {_HAS_WORDS}
    AND session.labels @> %(labels)s::bigint[]
ORDER BY session.started_at DESC, session.agent_id DESC LIMIT %(limit)s
""",
    # The newest sessions under one label that have some others as well. The index is read in the order of
    # the list, and a subquery that counts is answered session by session: a planner has no other choice.
    "page": f"""
SELECT {_SUMMARY}
FROM (
    SELECT found.agent_id FROM {{schema}}.labels AS found
    WHERE found.label = %(label)s AND {_WITHIN}
        AND cardinality(%(others)s::bigint[]) = (
            SELECT count(*) FROM {{schema}}.labels AS other
            WHERE other.label = ANY (%(others)s::bigint[])
                AND other.started_at = found.started_at AND other.agent_id = found.agent_id
        )
        AND ((%(updated_before)s::timestamptz IS NULL AND %(updated_after)s::timestamptz IS NULL) OR EXISTS (
            SELECT FROM {{schema}}.sessions AS session
            WHERE session.agent_id = found.agent_id AND {_UPDATED}
        ))
        AND (cardinality(%(terms)s::text[]) = 0 OR EXISTS (
            SELECT FROM {{schema}}.sessions AS session {_WITH_SUMMARY}
            WHERE session.agent_id = found.agent_id AND {_HAS_WORDS}
        ))
    ORDER BY found.started_at DESC, found.agent_id DESC LIMIT %(limit)s
) AS found,
LATERAL (SELECT * FROM {{schema}}.sessions WHERE sessions.agent_id = found.agent_id OFFSET 0) AS session
{_WITH_SUMMARY}
ORDER BY session.started_at DESC, session.agent_id DESC
""",
}


class PostgresStore(Store):
    """A store behind an address like `postgresql://user:password@host:5432/name`.

    Its tables are in a separate schema and are created when the store is first used. Leases use the
    server's clock, so the clocks of the runners need not agree, unless a clock is given.

    Besides its pool, a store that runs or follows sessions keeps one connection open. It holds a lock that
    the server releases when the process dies, so that other runners can take over at once.

    A connection may break while a change is on its way, and then it is unknown whether the change arrived.
    It is sent once more, and entries that are there already, at their version and to the letter, count as
    done. That is safe: the row of the session is locked, so the two attempts follow each other; only the
    holder of the lease writes to a session; and if two writers without a lease append exactly the same entry,
    both have what they asked for.

    Args:
        address: The address of the database.
        schema: The schema of the tables; it is created if it does not exist. Default: "whyloop".
        clock: The clock by which leases lapse. Default: that of the server.
        min_connections: The connections that stay open. Default: 1.
        max_connections: The maximum number of connections. Default: 10.
        timeout: The seconds after which a call that the server did not answer is an error. Default: 10.
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
                f"{timeout} s): use a maximum of 1 or more, a minimum up to it, and a timeout above 0"
            )
        self._clock = clock
        calls = {name: f"SELECT * FROM {{schema}}.{name}({arguments})" for name, arguments in CALLS.items()}
        self._sql = {name: filled(text, schema) for name, text in (calls | QUERIES).items()}
        self._connections = Connections(address, schema, min_connections, max_connections, timeout)
        self.name = self._connections.database
        self._appends = Appends(self._connections, self._sql["append"], clock)
        self._own = OwnConnection(self._connections, schema, self._sql["send_chunks"])
        finalize(self, self._own.abandon).atexit = False
        finalize(self, self._connections.abandon).atexit = False

    async def create(
        self, summary: Summary, entries: Sequence[Entry], *, key: RequestKey | None = None
    ) -> None:
        change = _change(summary.agent_id, entries, key=key, summary=summary)
        await self._change("create_session", summary.agent_id, {"change": change.decode()})

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
            agent_id, entries, after=after, token=token, release=release, key=key, summary=summary
        )
        read_answer = partial(_answer, agent_id, after=after, key=key)
        return (await self._appends.append(change, read_answer)).stop_request

    async def key(self, agent_id: str, key: str) -> tuple[str, int] | None:
        digest, version = await self._row("key", agent_id, {"key": written(key)})
        return None if digest is None else (read(digest), version)

    async def read(self, agent_id: str, *, after: int = 0, limit: int | None = None) -> Stored:
        first = min(max(0, after), LARGEST_VERSION)
        given = {"after": first, "limit": SLICE if limit is None else min(limit, SLICE)}
        *columns, number, bodies = await self._row("read", agent_id, given)
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
            rows = await self._connections.fetch(self._sql["entries"], given)
            if not rows:
                raise SessionNotFoundError(agent_id)
            bodies += [body for (body,) in rows]
        return Stored(summary, tuple(bodies))

    async def read_listed(self, sessions: Sequence[Summary]) -> Sequence[Sequence[str] | None]:
        given = {
            "ids": [summary.agent_id for summary in sessions],
            "identities": [written(summary.identity) for summary in sessions],
            "versions": [min(summary.version, LARGEST_VERSION) for summary in sessions],
        }
        found: list[Sequence[str] | None] = [None] * len(sessions)
        for place, bodies in await self._connections.fetch(self._sql["listed"], given):
            found[place - 1] = bodies
        return found

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
        version, *found = await self._row("checkpoint", agent_id, given)
        if version is None:
            return None
        execution_id, seq, step_count, message_count, state = found
        return version - 1, Checkpoint(read(execution_id), seq, step_count, message_count, state)

    async def versions(self, agent_ids: Collection[str]) -> Mapping[str, tuple[str, int]]:
        given = {"ids": [agent_id for agent_id in agent_ids if is_valid_id(agent_id)]}
        rows = await self._connections.fetch(self._sql["versions"], given)
        return {agent_id: (read(identity), version) for agent_id, identity, version in rows}

    async def acquire(self, agent_id: str, owner: str, seconds: float, *, durable: bool = False) -> Lease:
        check_lease(owner, seconds)
        deadline = self._connections.deadline()
        given = {
            "owner": written(owner),
            "seconds": float(seconds),
            "durable": durable,
            "lock": None if durable else await self._own.runner_lock(),
            "mark": randbits(63),
        }
        acquiring, cancelled = await ended(self._change("acquire", agent_id, given, deadline=deadline))
        answer = acquiring.result()
        if cancelled is not None:
            # A durable lease is left to its engine, which acquires it again with its stop request.
            if not durable:
                with suppress(StoreError):
                    await self.release(Lease(agent_id, owner, answer.token, seconds))
            raise cancelled
        return Lease(agent_id, owner, answer.token, seconds, answer.identity, answer.version, durable)

    async def renew(self, lease: Lease) -> str | None:
        deadline = self._connections.deadline()
        lock = None if lease.durable else await self._own.runner_lock()
        given = {"token": lease.token, "lock": lock}
        return (await self._change("renew", lease.agent_id, given, deadline=deadline)).stop_request

    async def release(self, lease: Lease) -> str | None:
        given = {"token": lease.token}
        return (await self._change("release", lease.agent_id, given)).stop_request

    async def ask_to_stop(self, agent_id: str, reason: str, *, key: RequestKey | None = None) -> bool:
        given = {"reason": written(reason), **_key_columns(key)}
        return (await self._change("ask_to_stop", agent_id, given, key=key)).outcome == "done"

    async def stop_requests(self, leases: Collection[Lease]) -> Mapping[int, str]:
        given = {"tokens": [lease.token for lease in leases]}
        rows = await self._connections.fetch(self._sql["stop_requests"], given)
        return {token: read(reason) for token, reason in rows}

    async def find(self, wanted: SessionFilter, *, limit: int, after: str | None) -> Page:
        checked_limit(limit)
        ends = [] if after is None else [position(after)]
        if wanted.started_before is not None:
            ends.append((wanted.started_before, ""))
        until, end = min(ends, default=(None, ""))
        labels = wanted_labels(wanted)
        within: dict[str, Any] = {"since": wanted.started_after, "until": until, "end": end}
        updated = {"updated_after": wanted.updated_after, "updated_before": wanted.updated_before}
        if wanted.updated_after is not None and await self._is_recent(wanted.updated_after):
            query, given = "recent_page", {**within, "labels": labels}
        else:
            query, given = "page", await self._plan(labels, within)
        given |= {**updated, "terms": search_terms(wanted), "limit": limit + 1, "moment": self._moment()}
        # Never prepared: a plan that was made when the tables were small would be kept when they are not.
        rows = await self._connections.fetch(self._sql[query], given, prepare=False)
        return page_of([_summary(row) for row in rows], limit)

    async def tally(self, wanted: SessionFilter, *, since: datetime) -> tuple[Tally, ...]:
        labels = wanted_labels(wanted)
        within: dict[str, Any] = {"since": wanted.started_after, "until": wanted.started_before, "end": ""}
        given: dict[str, Any] = {"label": None, "others": [], **within}
        if labels != wanted_labels(SessionFilter()):
            given = await self._plan(labels, within)
        given |= {"updated_after": wanted.updated_after, "updated_before": wanted.updated_before}
        given |= {"first_day": since, "terms": search_terms(wanted)}
        rows = await self._connections.fetch(self._sql["tally"], given, prepare=False)
        return tuple(
            Tally(AgentStatus(status), reason and StopReason(reason), rule and read(rule), *rest)
            for status, reason, rule, *rest in rows
        )

    async def waiting(
        self, metadata: Mapping[str, str | int | float | bool | None], *, limit: int
    ) -> tuple[Summary, ...]:
        labels = wanted_labels(SessionFilter(metadata=metadata))
        given = {"labels": labels, "limit": checked_limit(limit), "moment": self._moment()}
        rows = await self._connections.fetch(self._sql["waiting"], given)
        return tuple(_summary(row) for row in rows)

    async def _is_recent(self, updated_after: datetime) -> bool:
        """Return whether only a few sessions were updated after a time."""
        given = {"updated_after": updated_after, "recent": RECENT}
        return not await self._connections.fetch(self._sql["is_recent"], given, prepare=False)

    async def _plan(self, labels: list[int], within: dict[str, Any]) -> dict[str, Any]:
        """Return the labels, rarest first, and the range that can have all of them."""
        if len(labels) > 1:
            given = {**within, "labels": labels, "limit": COUNTED}
            rows = await self._connections.fetch(self._sql["spans"], given, prepare=False)
            labels = [label for _, label in sorted((count, label) for label, count, _, _ in rows)]
            if all(count for _, count, _, _ in rows):
                oldest, newest = max(row[2] for row in rows), min(row[3] for row in rows)
                with suppress(OverflowError):  # It is the first moment of all.
                    within["since"] = oldest - _MOMENT
                with suppress(OverflowError):  # It is the last one.
                    if within["until"] is None or newest < within["until"]:
                        within |= {"until": newest + _MOMENT, "end": ""}
        return {**within, "label": labels[0], "others": labels[1:]}

    async def unattended(
        self, *, limit: int = UNATTENDED, agents: Collection[str] | None = None
    ) -> tuple[Summary, ...]:
        labels = None if agents is None else agent_labels(agents)
        given = {"labels": labels, "limit": checked_limit(limit), "moment": self._moment()}
        rows = await self._connections.fetch(self._sql["unattended"], given)
        return tuple(_summary(row) for row in rows)

    async def keep_claim(self, agent_id: str, data: bytes) -> str:
        key = await claim_key(data)
        await self._change("keep_claim", agent_id, {"key": key, "data": data})
        return key

    async def claim(self, agent_id: str, key: str) -> bytes:
        (data,) = await self._row("claim", agent_id, {"key": checked_key(key)})
        return await checked_claim(agent_id, key, data)

    async def record_workflow(self, agent_id: str, engine: str, workflow: str) -> OpenWorkflow:
        check_workflow(engine, workflow)
        given = {"engine": engine, "workflow": workflow}
        answer = await self._change("record_workflow", agent_id, given)
        return OpenWorkflow(agent_id, engine, workflow, answer.token)

    async def open_workflows(self, engine: str, *, limit: int) -> tuple[OpenWorkflow, ...]:
        given = {"engine": engine, "limit": checked_limit(limit), "moment": self._moment()}
        rows = await self._connections.fetch(self._sql["open_workflows"], given)
        return tuple(OpenWorkflow(*row) for row in rows)

    async def forget_workflow(self, agent_id: str, token: int) -> None:
        await self._change("forget_workflow", agent_id, {"token": token})

    async def delete(self, agent_id: str, *, expected_version: int | None = None) -> None:
        expected = None if expected_version is None else _bound(expected_version)
        await self._change("delete_session", agent_id, {"expected": expected}, expected_version)

    async def send_chunks(self, chunks: Sequence[Chunk]) -> None:
        await self._own.send(chunks)

    def receive_chunks(self, deliver: Deliver) -> ChunkReceiver:
        return PostgresReceiver(self._own, deliver)

    def now(self) -> datetime:
        return self._moment() or super().now()

    async def close(self) -> None:
        await self._appends.close()
        await self._own.close()
        self._connections.close()

    def _moment(self) -> datetime | None:
        return self._clock.now() if self._clock else None

    async def _row(self, query: str, agent_id: str, given: Mapping[str, Any]) -> Row:
        """Return the one row that a statement finds for a session."""
        given = {"agent_id": checked_id(agent_id), "moment": self._moment(), **given}
        rows = await self._connections.fetch(self._sql[query], given)
        if not rows:
            raise SessionNotFoundError(agent_id)
        return rows[0]

    async def _change(
        self,
        function: str,
        agent_id: str,
        given: Mapping[str, Any],
        expected: int | None = None,
        key: RequestKey | None = None,
        deadline: float | None = None,
    ) -> _Answer:
        """Call a function in the database; raise the error that its answer names."""
        given = {"agent_id": checked_id(agent_id), "again": False, "moment": self._moment(), **given}

        async def change() -> _Answer:
            (row,) = await self._connections.fetch(self._sql[function], given, deadline=deadline)
            return _answer(agent_id, row, expected or 0, key)

        return await finish(change())


class Appends:
    """Combine the appends that wait at the same time into one round trip and one transaction."""

    def __init__(self, connections: Connections, statement: bytes, clock: Watch | None) -> None:
        self._connections = connections
        self._statement = statement
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: list[_Append] = []
        self._senders = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def append(self, change: bytes, read_answer: Callable[[Row], _Answer]) -> _Answer:
        """Return the answer to a change, or raise an error within the timeout of the store.

        A cancellation does not cut it off.
        """
        loop = self._connections.claim()
        if self._loop is not loop:
            self._loop, self._waiting, self._senders, self._tasks = loop, [], 0, set()
        append = _Append(change, read_answer, loop.create_future(), self._connections.deadline())
        self._waiting.append(append)
        too_late = loop.call_at(append.deadline, self._give_up, append)
        # It starts when this round of the event loop is over, with all that was appended in it.
        if self._senders < MOST_BATCHES:
            self._senders += 1
            self._start(self._send_waiting())
        try:
            return await finish(append.answer)
        finally:
            too_late.cancel()

    def _give_up(self, append: _Append) -> None:
        """Fail an append that waited for as long as it may, behind others or for the server."""
        append.fail(self._connections.fault(TimeoutError()))

    async def close(self) -> None:
        """Wait for the appends on their way."""
        while self._tasks and self._loop is asyncio.get_running_loop():
            await asyncio.wait(self._tasks)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_waiting(self) -> None:
        try:
            while self._waiting:
                self._waiting = [each for each in self._waiting if not each.answer.done()]
                size = count = 0
                while count < len(self._waiting) and count < LONGEST_BATCH and size < LARGEST_BATCH:
                    size += len(self._waiting[count].change)
                    count += 1
                batch, self._waiting = self._waiting[:count], self._waiting[count:]
                if batch:
                    await self._deliver(batch, waiting=False)
        except asyncio.CancelledError:
            # The event loop is about to end, and these appends with it.
            for each in self._waiting:
                each.fail(_cut_off("was not sent"))
            raise
        finally:
            # At once, and not when the task is done: an append in between would find no sender.
            self._senders -= 1

    async def _deliver(self, batch: Sequence[_Append], *, waiting: bool) -> None:
        """Send a batch; appends to a locked session wait separately."""
        try:
            given = {
                "changes": (b"[" + b",".join([each.change for each in batch]) + b"]").decode(),
                "waiting": waiting,
                "again": False,
                "moment": self._clock and self._clock.now(),
            }
            # The last one has the latest deadline; those before it give up by themselves.
            rows = await self._connections.fetch(self._statement, given, deadline=batch[-1].deadline)
            for each, row in zip(batch, rows, strict=True):
                if row[0] == "locked":
                    self._start(self._deliver([each], waiting=True))
                else:
                    each.receive(row)
        except StoreError as error:
            if len(batch) > 1 and not isinstance(error, StoreUnavailableError):
                for each in batch:  # One of them is refused, and nothing was changed.
                    await self._deliver([each], waiting=waiting)
            else:
                for each in batch:
                    each.fail(copy(error))
        except BaseException:
            for each in batch:
                each.fail(_cut_off("may or may not have arrived"))
            raise


class _Append(Struct, frozen=True):
    """An append on its way, and its outcome: the answer, or the error that it names."""

    change: bytes
    read_answer: Callable[[Row], _Answer]
    answer: asyncio.Future[_Answer]
    deadline: float

    def receive(self, row: Row) -> None:
        try:
            answer = self.read_answer(row)
            if not self.answer.done():
                self.answer.set_result(answer)
        except StoreError as error:
            self.fail(error)

    def fail(self, error: StoreError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


def _cut_off(what: str) -> StoreError:
    return StoreUnavailableError(
        f"a change {what}, because the program ended meanwhile. What was stored before is safe: continue "
        "the session"
    )


class _Answer(Struct, frozen=True, gc=False):
    outcome: str
    token: int
    stop_request: str | None
    identity: str
    version: int


def _answer(agent_id: str, row: Row, after: int = 0, key: RequestKey | None = None) -> _Answer:
    """Return the answer of a function in the database; raise the error that it names."""
    outcome, version, owner, seconds, token, stop_request, digest, identity, workflow = row
    if outcome == "open":
        raise WorkflowOpenError(agent_id, owner, workflow, token)
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
    return _Answer(outcome, token, stop_request and read(stop_request), identity and read(identity), version)


def _change(
    agent_id: str,
    entries: Sequence[Entry],
    *,
    after: int = 0,
    token: int | None = None,
    release: bool = False,
    key: RequestKey | None = None,
    summary: Summary | None = None,
) -> bytes:
    """Return a new session or an append as JSON for the database functions."""
    change = {
        "agent_id": checked_id(agent_id),
        "entries": [_entry_row(agent_id, entry) for entry in entries],
        "after": min(after, LARGEST_VERSION),
        "token": token,
        "release": release,
    }
    if key is not None:
        change |= _key_columns(key)
    if summary is not None:
        listed = listing_of(with_counts(summary, entries), after + len(entries))
        listing = msgspec.structs.asdict(listed)
        rule = None if summary.resolved_by is None else written(summary.resolved_by)
        change["listed"] = {**listing, "identity": written(summary.identity), "resolved_by": rule}
    try:
        return msgspec.json.encode(change)
    except UnicodeEncodeError:
        raise StoreError(f"invalid entry of session {agent_id!r}: it has an unpaired surrogate") from None


def _key_columns(key: RequestKey | None) -> dict[str, str | None]:
    if key is None:
        return {"key": None, "digest": None}
    return {"key": written(key.key), "digest": written(key.digest)}


def _entry_row(agent_id: str, entry: Entry) -> dict[str, Any]:
    checkpoint = entry.checkpoint
    if "\x00" in entry.body or (checkpoint is not None and "\x00" in checkpoint.state):
        raise StoreError(
            f"invalid entry of session {agent_id!r}: it has a NUL character, which is never part of JSON"
        )
    row: dict[str, Any] = {"body": entry.body, "counts": encode_counts(entry.counts)}
    if checkpoint is None:
        return row
    columns = msgspec.structs.asdict(checkpoint)
    return {**row, **columns, "execution_id": written(checkpoint.execution_id)}


def _summary(row: Sequence[Any]) -> Summary:
    """Return the summary that the columns of `_SUMMARY` hold."""
    agent_id, identity, text, search, version, counts, runner, workflow = row
    known = {"agent_id": agent_id, "identity": read(identity), "search": search, "workflow": workflow}
    try:
        return decode_summary(text, version, counts, **known, runner=runner and read(runner))
    except msgspec.DecodeError as error:
        raise SnapshotError(f"session {agent_id!r} cannot be listed: {error}; upgrade whyloop") from None


def _bound(number: int | None) -> int:
    """Return the greatest number that is allowed, and that PostgreSQL can compare."""
    return LARGEST_NUMBER if number is None else max(-1, min(number, LARGEST_NUMBER))


def written(text: str) -> str:
    """Return the text as JSON, which has no NUL: PostgreSQL cannot hold one."""
    return msgspec.json.encode(clean(text)).decode()


def read(text: str) -> str:
    """Return the text as it was before `written`."""
    return msgspec.json.decode(text, type=str)
