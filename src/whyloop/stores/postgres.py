"""Sessions in a PostgreSQL database, for many processes on many machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from secrets import randbits
from typing import Any

from msgspec import Struct

from whyloop.errors import (
    ConfigurationError,
    ConflictError,
    LeaseLostError,
    SessionExistsError,
    SessionNotFoundError,
    SessionRunningError,
)
from whyloop.stores.cursor import cursor_of
from whyloop.stores.labels import Start, starts
from whyloop.stores.postgres_connections import Connections
from whyloop.stores.postgres_news import News
from whyloop.stores.postgres_statements import (
    Statements,
    bounds,
    known_id,
    listing,
    places,
    read,
    summary_in,
    told_in,
    written,
)
from whyloop.stores.records import Lease, Page, SessionFilter, Stored, Summary, Told, Watch
from whyloop.stores.store import EVENTS, Store

# Finding out what is rare must not take longer than finding it: so many rows of each are counted.
COUNTED = 1_000


class PostgresStore(Store):
    """A store behind an address like `postgresql://user:password@host:5432/name`.

    Its tables live in a schema of their own and are made when the store is first used. Leases go
    by the server's clock, so the clocks of the runners need not agree, unless one is given.

    A connection may break when a change is on its way, and nobody knows then whether it arrived.
    It is sent once more, and what turns out to be there already, in its place and to the letter,
    counts as done. That is safe: the row of the session is locked, so the two attempts come one
    after the other; only the holder of the lease writes to a session; and where two who need no
    lease write the very same entry, both get what they wanted.
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
                "a PostgreSQL store needs 1 connection or more, no fewer at most than at least, and a "
                f"timeout above 0: got {min_connections} to {max_connections}, and {timeout} s"
            )
        self._clock = clock
        self._statements = Statements(schema)
        self._connections = Connections(address, schema, min_connections, max_connections, timeout)
        self._news = News(self._connections.connect)

    async def create(self, summary: Summary, entries: Sequence[str]) -> None:
        await self._ask(
            self._statements.create, summary.agent_id, {**listing(summary), "entries": list(entries)}
        )

    async def append(
        self,
        agent_id: str,
        entries: Sequence[str],
        *,
        after: int,
        lease: Lease | None = None,
        summary: Summary | None = None,
        release: bool = False,
    ) -> str | None:
        statement = self._statements.append if summary is None else self._statements.append_listed
        given = {
            "entries": list(entries),
            "after": after,
            "token": None if lease is None else lease.token,
            "release": release,
            **({} if summary is None else listing(summary)),
        }
        return (await self._ask(statement, agent_id, given)).words

    async def read(self, agent_id: str, *, after: int = 0) -> Stored:
        given: dict[str, Any] = {"agent_id": known_id(agent_id), "moment": self._moment()}
        rows = await self._connections.fetch(self._statements.summary, given)
        if not rows:
            raise SessionNotFoundError(agent_id)
        *columns, number = rows[0]
        summary = summary_in(tuple(columns))
        # Entries are only ever added, so those up to a version are the same a moment later.
        given = {"number": number, "after": after, "version": summary.version}
        entries = await self._connections.fetch(self._statements.entries, given)
        if len(entries) < summary.version - max(0, after):
            raise SessionNotFoundError(agent_id)
        return Stored(summary, tuple(body for (body,) in entries))

    async def acquire(self, agent_id: str, owner: str, seconds: float) -> Lease:
        given = {"owner": written(owner), "seconds": float(seconds), "mark": randbits(63)}
        answer = await self._ask(self._statements.acquire, agent_id, given)
        return Lease(agent_id, owner, answer.token, seconds)

    async def renew(self, lease: Lease) -> str | None:
        answer = await self._ask(self._statements.renew, lease.agent_id, {"token": lease.token})
        return answer.words

    async def release(self, lease: Lease) -> str | None:
        given = {"agent_id": known_id(lease.agent_id), "token": lease.token}
        ((words,),) = await self._connections.fetch(self._statements.release, given)
        return None if words is None else read(words)

    async def ask_to_stop(self, agent_id: str, reason: str) -> bool:
        answer = await self._ask(self._statements.ask_to_stop, agent_id, {"reason": written(reason)})
        return answer.outcome == "done"

    async def find(self, wanted: SessionFilter, *, limit: int, after: str | None) -> Page:
        if limit < 1:
            raise ConfigurationError(f"a page shows one session or more, so its limit cannot be {limit}")
        within = bounds(wanted, after)
        given = {**within, **places(await self._beginnings(wanted, within)), "limit": limit + 1}
        given["moment"] = self._moment()
        # Never prepared: a plan that was made when the tables were small would be kept when they are not.
        rows = await self._connections.fetch(self._statements.page, given, prepare=False)
        sessions = tuple(summary_in(row) for row in rows[:limit])
        return Page(sessions, cursor_of(sessions[-1]) if len(rows) > limit else None)

    async def _beginnings(self, wanted: SessionFilter, within: Mapping[str, Any]) -> list[Start]:
        """The places of the index that together hold all that is wanted; where to choose, the rarest."""
        choices = list(starts(wanted))
        asked = [start.number for some in choices for start in some if len(some) > 1]
        given = {**within, "labels": asked, "limit": COUNTED}
        rows = await self._connections.fetch(self._statements.counts, given, prepare=False) if asked else []
        found: dict[int, int] = dict(rows)
        return [min(some, key=lambda start: found.get(start.number, 0)) for some in choices]

    async def delete(self, agent_id: str) -> None:
        await self._ask(self._statements.delete, agent_id, {})

    async def add_events(self, agent_id: str, told: Sequence[Told]) -> int:
        given = {
            "executions": [written(each.execution_id) for each in told],
            "numbers": [each.seq for each in told],
            "bodies": [each.body for each in told],
        }
        return (await self._ask(self._statements.add_events, agent_id, given)).version

    async def events(self, agent_id: str, *, after: int = 0, limit: int = EVENTS) -> tuple[Told, ...]:
        return await self._told(self._statements.events, agent_id, {"after": after, "limit": limit})

    async def last_event(
        self, agent_id: str, *, execution_id: str | None = None, up_to: int | None = None
    ) -> Told | None:
        if execution_id is None:
            found = await self._told(self._statements.last_event, agent_id, {})
        else:
            given = {"execution_id": written(execution_id), "up_to": up_to}
            found = await self._told(self._statements.last_of_execution, agent_id, given)
        return found[0] if found else None

    async def last_position(self, agent_id: str) -> int:
        given = {"agent_id": known_id(agent_id)}
        rows = await self._connections.fetch(self._statements.last_position, given)
        if not rows:
            raise SessionNotFoundError(agent_id)
        position: int = rows[0][0]
        return position

    async def wait_for_events(self, agent_id: str, *, after: int) -> None:
        while True:
            # Listened for before it is looked for, so that nothing falls in between.
            with self._news.of(agent_id) as heard:
                if await self.has_events(agent_id, after=after):
                    return
                await self._news.wait(heard)

    async def _told(self, statement: bytes, agent_id: str, given: Mapping[str, Any]) -> tuple[Told, ...]:
        rows = await self._connections.fetch(statement, {"agent_id": known_id(agent_id), **given})
        if not rows:
            raise SessionNotFoundError(agent_id)
        return tuple([told_in(row) for row in rows if row[-1] is not None])

    def now(self) -> datetime:
        return self._moment() or super().now()

    async def close(self) -> None:
        await self._news.close()
        await self._connections.close()

    def _moment(self) -> datetime | None:
        return self._clock.now() if self._clock else None

    async def _ask(self, statement: bytes, agent_id: str, given: Mapping[str, Any]) -> _Answer:
        """What a function in the database answers; raises what it was refused with."""
        given = {"agent_id": known_id(agent_id), "again": False, "moment": self._moment(), **given}
        outcome, version, owner, seconds, token, words = (await self._connections.fetch(statement, given))[0]
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
                raise ConflictError(agent_id, given["after"], version)
        return _Answer(outcome, version, token, words and read(words))


class _Answer(Struct, frozen=True, gc=False):
    outcome: str
    version: int
    token: int
    words: str | None
