"""Runs on a real PostgreSQL whose writes are cancelled, refused or of unknown outcome: nothing is untrue."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from tests.real.postgres import PostgresServer
from tests.sessions.test_cancelled_writes import WRITES, Told, an_agent, assert_true, assert_usable
from whyloop import Session
from whyloop.errors import LeaseLostError, StoreUnavailableError
from whyloop.stores import Entry, PostgresStore

psycopg = pytest.importorskip("psycopg", reason='these tests need a driver: pip install ".[postgres]"')

from whyloop.stores.postgres_connection import _ConnectionBrokeError  # noqa: E402

pytestmark = pytest.mark.slow

EACH_WRITE = pytest.mark.parametrize("number", range(1, WRITES))
WAITING = "SELECT FROM pg_stat_activity WHERE application_name = %s AND wait_event_type = 'Lock'"


def before_append(store: PostgresStore, number: int, act: Callable[[str], Awaitable[None]]) -> None:
    """Do something right before the so many-th append."""
    append, appends = store.append, 0

    async def counted(agent_id: str, entries: Sequence[Entry], **rest: Any) -> str | None:
        nonlocal appends
        appends += 1
        if appends == number:
            await act(agent_id)
        return await append(agent_id, entries, **rest)

    store.append = counted  # type: ignore[method-assign]


async def opened(store: PostgresStore, told: Told) -> Session:
    return await Session.open(store, an_agent(), handlers=[told])


@EACH_WRITE
@pytest.mark.parametrize("is_lost", [True, False])
async def test_an_append_that_waits_has_an_outcome_before_its_cancellation(
    postgres: PostgresServer, schema: str, is_lost: bool, number: int
) -> None:
    """The row is locked meanwhile, and another runner may take the session before it is free again."""
    address = f"{postgres.address()}?application_name={schema}"
    taken = ", lease_token = -1, lease_until = now() - interval '1 day'" if is_lost else ""
    statement = f'UPDATE "{schema}".sessions SET waiting = waiting {taken} WHERE agent_id = %s'
    others: list[asyncio.Task[None]] = []
    async with PostgresStore(address, schema=schema) as store:

        async def hold(agent_id: str) -> None:
            locked = asyncio.Event()

            async def cancel_while_it_waits() -> None:
                async with await psycopg.AsyncConnection.connect(postgres.address()) as other:
                    await other.execute(statement, [agent_id])
                    locked.set()
                    while not (await other.execute(WAITING, [schema])).rowcount:
                        await asyncio.sleep(0.005)
                    running.cancel()
                    await asyncio.sleep(0.01)

            others.append(asyncio.create_task(cancel_while_it_waits()))
            await locked.wait()

        before_append(store, number, hold)
        told = Told()
        session = await opened(store, told)
        running = asyncio.create_task(session.send("go"))
        with pytest.raises(LeaseLostError if is_lost else asyncio.CancelledError):
            await running
        await asyncio.gather(*others)
        assert (session.version > number) is not is_lost
        await assert_true(session, store, told)
        await assert_usable(session, store, told)


@EACH_WRITE
@pytest.mark.parametrize("arrives", [True, False])
async def test_an_append_of_unknown_outcome_is_not_announced(
    postgres: PostgresServer, schema: str, arrives: bool, number: int
) -> None:
    """The connection breaks in the middle of it, and again when it is sent once more."""
    async with PostgresStore(postgres.address(), schema=schema) as store:
        attempt, broken = store._connections._attempt, list[bool]()

        async def cut(pool: Any, statement: bytes, *rest: Any) -> list[Any]:
            if b".append(" in statement and len(broken) < 2:
                broken.append(True)
                if arrives:
                    await attempt(pool, statement, *rest)
                raise _ConnectionBrokeError from psycopg.OperationalError("the connection is gone")
            return await attempt(pool, statement, *rest)

        async def begin_to_cut(agent_id: str) -> None:
            store._connections._attempt = cut  # type: ignore[method-assign, assignment]

        before_append(store, number, begin_to_cut)
        told = Told()
        session = await opened(store, told)
        with pytest.raises(StoreUnavailableError, match="may or may not have arrived"):
            await session.send("go")
        assert session.version == number
        await assert_true(session, store, told)
        assert (session.version > number) is arrives
        await assert_usable(session, store, told)
