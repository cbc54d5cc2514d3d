"""What is told of sessions, kept in a real PostgreSQL: heard at once, and whatever becomes of connections."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.broadcasting.support import until
from tests.broadcasting.watching import add_session, seqs
from tests.real.postgres import PostgresServer
from tests.real.test_postgres_faults import ALL, process_ids, terminate
from whyloop.errors import StoreError, StoreUnavailableError
from whyloop.stores import PostgresStore
from whyloop.stores.records import Told

psycopg = pytest.importorskip("psycopg", reason='these tests need a driver: pip install "whyloop[postgres]"')

from whyloop.stores import postgres_news  # noqa: E402
from whyloop.stores.postgres_schema import MIGRATIONS  # noqa: E402

pytestmark = pytest.mark.slow

LISTENING = f"{ALL} AND query LIKE 'LISTEN%%'"
SOON = postgres_news.LOOK_AGAIN_SECONDS / 2


def told(*numbers: int, execution: str = "x") -> list[Told]:
    return [Told(execution, seq, f'{{"seq":{seq}}}') for seq in numbers]


def store_of(postgres: PostgresServer, schema: str, **options: Any) -> PostgresStore:
    """A store whose connections go by the schema's name."""
    address = f"{postgres.address(port=options.pop('port', None))}?application_name={schema}"
    return PostgresStore(address, schema=schema, **options)


@asynccontextmanager
async def opened(postgres: PostgresServer, schema: str, **options: Any) -> Any:
    """Two stores of one database with one session in it."""
    async with (
        store_of(postgres, schema, **options) as store,
        PostgresStore(postgres.address(), schema=schema) as other,
    ):
        await add_session(other)
        yield store, other


async def listener(postgres: PostgresServer, schema: str) -> int:
    """The server's process at which a store listens, once there is one."""
    async with asyncio.timeout(10):
        while not (found := await process_ids(postgres, LISTENING, schema)):
            await asyncio.sleep(0.01)
    return found[0]


async def soon(what: Awaitable[object]) -> None:
    """Wait for less long than anybody does before they look for themselves."""
    async with asyncio.timeout(SOON):
        await what


async def test_who_waits_hears_at_once_of_what_another_process_told(
    postgres: PostgresServer, schema: str
) -> None:
    async with opened(postgres, schema) as (store, other):
        await add_session(other, "b")
        idle = asyncio.create_task(store.wait_for_events("b", after=0))
        for last in range(5):
            waiters = [asyncio.create_task(store.wait_for_events("a", after=last)) for _ in range(3)]
            await listener(postgres, schema)
            await until(lambda: store._news._listens and len(store._news._waiting.get("a", ())) == 3)
            # Those who wait have looked by now, and found nothing.
            await store.events("a")
            await other.add_events("a", told(last + 1))
            await soon(asyncio.gather(*waiters))
        assert not idle.done()
        assert list(store._news._waiting) == ["b"]
        idle.cancel()
        await asyncio.wait([idle])
        assert store._news._waiting == {}
        assert len(await process_ids(postgres, LISTENING, schema)) == 1


@pytest.mark.parametrize("agent_id", ["x" * 500, "🐍" * 500, "odd \\ ' \" \n % id"], ids=ascii)
async def test_sessions_of_any_id_are_heard_of_at_once(
    postgres: PostgresServer, schema: str, agent_id: str
) -> None:
    async with opened(postgres, schema) as (store, other):
        await add_session(other, agent_id)
        waiter = asyncio.create_task(store.wait_for_events(agent_id, after=0))
        await until(lambda: store._news._listens)
        await store.events(agent_id)
        await other.add_events(agent_id, told(1))
        await soon(waiter)


async def test_what_was_told_while_nobody_listened_is_found_when_somebody_does(
    postgres: PostgresServer, schema: str
) -> None:
    async with opened(postgres, schema) as (store, other):
        waiter = asyncio.create_task(store.wait_for_events("a", after=0))
        first = await listener(postgres, schema)
        await until(lambda: store._news._listens)
        await store.events("a")
        await terminate(postgres, first)
        await other.add_events("a", told(1))
        await soon(waiter)


@pytest.mark.parametrize("what", ["no connection", "no LISTEN"])
async def test_where_nobody_can_listen_those_who_wait_look_for_themselves(
    postgres: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    async with opened(postgres, schema) as (store, other):
        attempts = 0
        connect = store._news._connect

        async def refuse() -> Any:
            nonlocal attempts
            attempts += 1
            if what == "no connection":
                raise psycopg.OperationalError("too many connections")
            connection = await connect()
            monkeypatch.setattr(connection, "execute", refuse_to_listen)
            return connection

        async def refuse_to_listen(statement: str) -> None:
            raise psycopg.errors.FeatureNotSupported(f"{statement} is not supported by this pooler")

        monkeypatch.setattr(store._news, "_connect", refuse)
        for last in range(3):
            waiter = asyncio.create_task(store.wait_for_events("a", after=last))
            await until(lambda: store._news._waiting)
            await store.events("a")
            await other.add_events("a", told(last + 1))
            await soon(waiter)
        assert attempts >= 1
        assert not store._news._listens
        assert await process_ids(postgres, LISTENING, schema) == []


async def test_where_nobody_can_listen_any_more_those_who_wait_look_for_themselves(
    postgres: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse() -> Any:
        raise psycopg.OperationalError("too many connections")

    async with opened(postgres, schema) as (store, other):
        first = asyncio.create_task(store.wait_for_events("a", after=0))
        ended = await listener(postgres, schema)
        monkeypatch.setattr(store._news, "_connect", refuse)
        await terminate(postgres, ended)
        await until(lambda: not store._news._listens)
        waiter = asyncio.create_task(store.wait_for_events("a", after=0))
        await until(lambda: len(store._news._waiting.get("a", ())) == 2)
        await store.events("a")
        await other.add_events("a", told(1))
        await soon(waiter)
        await first


async def test_notices_that_are_swallowed_on_the_way_are_made_up_for(
    postgres: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_news, "LOOK_AGAIN_SECONDS", 0.05)
    async with opened(postgres, schema) as (store, other):
        monkeypatch.setattr(store._news, "_ring", lambda *agent_ids: None)
        waiter = asyncio.create_task(store.wait_for_events("a", after=0))
        await until(lambda: store._news._listens)
        await other.add_events("a", told(1))
        await soon(waiter)


async def test_a_closed_store_leaves_no_task_and_no_connection(postgres: PostgresServer, schema: str) -> None:
    before = asyncio.all_tasks()
    async with PostgresStore(postgres.address(), schema=schema) as other:
        await add_session(other)
    store = store_of(postgres, schema)
    waiters = [asyncio.create_task(store.wait_for_events("a", after=0)) for _ in range(3)]
    await until(lambda: store._news._listens)
    await store.events("a")
    await store.close()
    for waiter in waiters:
        with pytest.raises(StoreError, match="was closed"):
            await soon(waiter)
    with pytest.raises(StoreError, match="was closed"):
        await store.wait_for_events("a", after=0)
    assert asyncio.all_tasks() - before == set()
    await store.close()
    async with asyncio.timeout(10):
        while await process_ids(postgres, ALL, schema):
            await asyncio.sleep(0.01)


def test_who_waits_may_do_so_on_one_event_loop_after_another(postgres: PostgresServer, schema: str) -> None:
    store = store_of(postgres, schema, max_connections=2)

    async def work(last: int) -> None:
        if not last:
            await add_session(store)
        waiter = asyncio.create_task(store.wait_for_events("a", after=last))
        await until(lambda: store._news._listens)
        await store.add_events("a", told(last + 1))
        await soon(waiter)
        # One that is cut off with its event loop leaves nothing behind that the next one minds.
        cut_off = asyncio.create_task(store.wait_for_events("a", after=last + 1))
        await asyncio.sleep(0)
        assert not cut_off.done()

    for last in range(4):
        asyncio.run(work(last))
        with psycopg.connect(postgres.address()) as other:
            assert len(other.execute(ALL, [schema]).fetchall()) <= 3
    asyncio.run(store.close())


async def test_a_second_event_loop_does_not_take_the_listener_away(
    postgres: PostgresServer, schema: str
) -> None:
    async with opened(postgres, schema) as (store, other):
        waiter = asyncio.create_task(store.wait_for_events("a", after=0))
        await until(lambda: store._news._listens)
        listens = store._news._listener
        with pytest.raises(StoreError, match="another event loop"):
            await asyncio.to_thread(asyncio.run, store.wait_for_events("a", after=0))
        assert store._news._listener is listens
        await other.add_events("a", told(1))
        await soon(waiter)


async def test_a_server_that_is_away_is_an_error_for_who_waits(postgres: PostgresServer, schema: str) -> None:
    async with opened(postgres, schema, timeout=1) as (store, other):
        waiter = asyncio.create_task(store.wait_for_events("a", after=0))
        await until(lambda: store._news._listens)
        await asyncio.to_thread(postgres.stop)
        try:
            with pytest.raises(StoreUnavailableError):
                async with asyncio.timeout(20):
                    await waiter
        finally:
            await asyncio.to_thread(postgres.start)
        await other.add_events("a", told(1))
        await store.wait_for_events("a", after=0)


async def test_a_store_from_before_there_were_events_keeps_its_sessions(
    postgres: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *later = list(MIGRATIONS)
    with monkeypatch.context() as then:
        for name in later:
            then.delitem(MIGRATIONS, name)
        async with PostgresStore(postgres.address(), schema=schema) as old:
            await add_session(old, "a", "b")
            lease = await old.acquire("a", "one", 60)
            await old.append("a", ["second"], after=1, lease=lease)
            with pytest.raises(StoreError, match="events"):
                await old.events("a")
    async with PostgresStore(postgres.address(), schema=schema) as store:
        assert (await store.read("a")).entries == ("first", "second")
        assert [each.agent_id for each in (await store.sessions()).sessions] == ["b", "a"]
        await store.append("a", ["third"], after=2, lease=lease)
        assert await store.events("a") == ()
        assert await store.add_events("a", told(1)) == 1
        assert seqs(await store.events("a")) == [1]
        async with await psycopg.AsyncConnection.connect(postgres.address()) as other:
            found = await other.execute(f'SELECT name FROM "{schema}".migrations ORDER BY name')
            assert [name for (name,) in await found.fetchall()] == [first, *later]


async def test_events_of_schemas_side_by_side_are_not_mixed_up(postgres: PostgresServer, schema: str) -> None:
    async with (
        opened(postgres, schema) as (store, other),
        PostgresStore(postgres.address(), schema=f"{schema} too") as elsewhere,
    ):
        await add_session(elsewhere)
        waiter = asyncio.create_task(store.wait_for_events("a", after=0))
        await until(lambda: store._news._listens)
        await elsewhere.add_events("a", told(1))
        await store.events("a")
        assert not waiter.done()
        assert await store.events("a") == ()
        await other.add_events("a", told(1))
        await soon(waiter)
