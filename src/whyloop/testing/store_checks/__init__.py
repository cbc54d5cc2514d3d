"""The checks of `store_conformance` by topic, and the helpers that they share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from whyloop.loop.world import Clock
from whyloop.stores.records import Page, SessionFilter, Stored, Summary
from whyloop.stores.store import Store
from whyloop.testing.fakes import FakeClock
from whyloop.values.state import AgentStatus
from whyloop.values.text import shortened
from whyloop.wire.journal import Entry

OpenStore = Callable[[Clock], Awaitable[Store]]
Check = Callable[[OpenStore], Awaitable[None]]
E = TypeVar("E", bound=BaseException)

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(minutes: float) -> datetime:
    """Return a time, some minutes after the checks begin."""
    return START + timedelta(minutes=minutes)


def journal(*bodies: str) -> list[Entry]:
    """Return entries with these bodies."""
    return [Entry(body) for body in bodies]


def a_summary(agent_id: str = "a", *, started_at: datetime = START, **fields: Any) -> Summary:
    """Return the summary of a pending session, with these fields."""
    fields = {
        "status": AgentStatus.PENDING,
        "updated_at": started_at,
        "identity": f"the identity of {agent_id}",
        **fields,
    }
    return Summary(agent_id=agent_id, started_at=started_at, **fields)


@asynccontextmanager
async def stage(open_store: OpenStore, *sessions: str) -> AsyncIterator[tuple[Store, FakeClock]]:
    """Open a store and its clock, with these sessions of one entry each."""
    clock = FakeClock(START)
    async with await open_store(clock) as store:
        for agent_id in sessions:
            await store.create(a_summary(agent_id), journal("first"))
        yield store, clock


async def refused(kind: type[E], attempt: Awaitable[object], what: str) -> E:
    """Return the error with which an attempt was refused."""
    try:
        got = await attempt
    except kind as error:
        return error
    raise AssertionError(f"{what} should be refused with a {kind.__name__}, and it returned {_brief(got)}")


async def cancelled_after(rounds: int, work: asyncio.Task[Any]) -> bool:
    """Cancel some work after a few rounds of the event loop; return whether it was cancelled."""
    for _ in range(rounds):
        await asyncio.sleep(0)
    work.cancel()
    await asyncio.wait([work])
    if not work.cancelled():
        work.result()
    return work.cancelled()


async def only_one(attempts: Iterable[Awaitable[object]], loser: type[Exception]) -> tuple[int, Any]:
    """Make attempts at once; return the index and result of the one that succeeds."""
    results = await asyncio.gather(*attempts, return_exceptions=True)
    winners = [n for n, result in enumerate(results) if not isinstance(result, BaseException)]
    assert len(winners) == 1, f"one of {len(results)} attempts should succeed, and {len(winners)} did"
    for number, result in enumerate(results):
        assert number in winners or isinstance(result, loser), (
            f"the others should get a {loser.__name__}: {result!r}"
        )
    return winners[0], results[winners[0]]


def same(found: object, expected: object, what: str) -> None:
    """Fail unless two values are the same."""
    assert found == expected, f"{what} should be {_brief(expected)}, and it is {_brief(found)}"


async def pages(store: Store, wanted: SessionFilter, limit: int) -> list[str]:
    """Return the ids on all pages, in order."""
    ids: list[str] = []
    after: str | None = None
    while True:
        page = await store.find(wanted, limit=limit, after=after)
        assert len(page.sessions) <= limit, f"a page of {limit} shows {len(page.sessions)} sessions"
        ids += [session.agent_id for session in page.sessions]
        assert len(ids) < 10_000, "the pages never come to an end"
        if page.next is None:
            return ids
        assert page.sessions, "an empty page says that there is another one after it"
        after = page.next


async def listed(store: Store, **wanted: Any) -> list[str]:
    """Return the ids of all sessions that a filter finds, in order."""
    page = await store.find(SessionFilter(**wanted), limit=1000, after=None)
    return [session.agent_id for session in page.sessions]


async def seen(store: Store, agent_id: str = "a") -> tuple[Stored, Page]:
    """Return everything that a caller can see of a session, for comparison."""
    return await store.read(agent_id), await store.find(SessionFilter(), limit=1000, after=None)


def _brief(value: object) -> str:
    return shortened(repr(value), 300)
