"""Telling of sessions and following them in a real PostgreSQL, whatever becomes of connections."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.broadcasting.support import until
from tests.broadcasting.watching import LATER, Follower, Teller, add_session, seqs, settled
from tests.real.postgres import PostgresServer
from tests.real.postgres_proxy import Lost, Proxy
from tests.real.test_postgres_events import listener, opened, soon, told
from tests.real.test_postgres_faults import locked, terminate, waiting
from whyloop.broadcasting import EventLog
from whyloop.errors import SessionNotFoundError

psycopg = pytest.importorskip("psycopg", reason='these tests need a driver: pip install "whyloop[postgres]"')


pytestmark = pytest.mark.slow


@pytest.mark.parametrize("lost", Lost)
async def test_what_was_told_is_kept_once_whatever_the_network_loses(
    postgres: PostgresServer, schema: str, lost: Lost
) -> None:
    async with Proxy(postgres.port) as proxy, opened(postgres, schema, port=proxy.port) as (store, other):
        await store.add_events("a", told(1))
        proxy.cut = lost
        assert await store.add_events("a", told(2, 3)) == 3
        proxy.cut = lost
        assert await store.add_events("a", told(4)) == 4
        # To tell the same again on purpose is something else.
        assert await store.add_events("a", told(4)) == 5
        assert seqs(await other.events("a")) == [1, 2, 3, 4, 4]
        proxy.cut = lost
        with pytest.raises(SessionNotFoundError):
            await store.add_events("b", told(1))
        assert proxy.cuts == 3


async def test_a_connection_that_is_ended_while_events_are_added_costs_nothing(
    postgres: PostgresServer, schema: str
) -> None:
    async with opened(postgres, schema) as (store, other):
        await store.events("a")
        async with locked(postgres, schema):
            adding = asyncio.create_task(store.add_events("a", told(1, 2)))
            first = await waiting(postgres, schema)
            await terminate(postgres, first)
            assert await waiting(postgres, schema) != first
        assert await adding == 2
        assert seqs(await other.events("a")) == [1, 2]


async def test_followers_go_on_when_the_connection_that_listens_is_ended(
    postgres: PostgresServer, schema: str
) -> None:
    async with opened(postgres, schema) as (store, other), EventLog(store) as near, EventLog(other) as far:
        follower, teller = Follower(near), Teller(far)
        for last in range(1, 5):
            teller.tell("step")
            await soon(follower.hears(*range(1, last + 1)))
            await terminate(postgres, await listener(postgres, schema))
        await follower.leave()


async def test_following_and_telling_go_on_after_a_restart(postgres: PostgresServer, schema: str) -> None:
    async with opened(postgres, schema) as (store, other), EventLog(store) as near, EventLog(other) as far:
        follower, teller = Follower(near), Teller(far)
        teller.tell("begin", "step")
        await follower.hears(1, 2)
        await asyncio.to_thread(postgres.stop)
        teller.tell("step")
        await asyncio.to_thread(postgres.start)
        teller.tell("step", "end")
        async with asyncio.timeout(20):
            while len(follower.heard) < 5:
                await asyncio.sleep(0.01)
        assert follower.seqs == [1, 2, 3, 4, 5]
        assert seqs(await store.events("a")) == [1, 2, 3, 4, 5]
        # And news come by themselves again.
        await until(lambda: store._news._listens)
        teller.tell("begin")
        await soon(follower.hears(1, 2, 3, 4, 5, 6))
        await follower.leave()


async def test_what_was_kept_is_not_kept_again_when_the_store_seemed_to_be_away(
    postgres: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody answered at the second attempt either, so that the log has to try again itself."""
    async with (
        Proxy(postgres.port) as proxy,
        opened(postgres, schema, port=proxy.port) as (store, other),
        EventLog(store) as log,
    ):
        follower, teller = Follower(log), Teller(log)
        teller.tell("begin")
        await follower.hears(1)
        attempt = store._connections._attempt

        async def once(pool: Any, statement: bytes, parameters: Any, prepare: Any) -> Any:
            if parameters.get("again"):
                monkeypatch.undo()
                raise psycopg.OperationalError("the server is away")
            if b"add_events" in statement:
                proxy.cut = Lost.ANSWER
            return await attempt(pool, statement, parameters, prepare)

        monkeypatch.setattr(store._connections, "_attempt", once)
        teller.tell("step", "end")
        await follower.hears(1, 2, 3)
        await settled(log)
        assert seqs(await other.events("a")) == [1, 2, 3]
        assert log.dropped == {}
        assert proxy.cuts == 1
        await follower.leave()


@pytest.mark.parametrize("before", [0, 2])
async def test_who_follows_a_session_hears_nothing_of_another_that_gets_its_id(
    postgres: PostgresServer, schema: str, before: int
) -> None:
    """There is more to hear of the other one, so that nothing but its beginning tells them apart."""
    async with opened(postgres, schema) as (store, other), EventLog(store) as near, EventLog(other) as far:
        Teller(far).tell(*["step"] * before)
        await settled(far)
        follower = Follower(near)
        await follower.hears(*range(1, before + 1))
        await until(lambda: store._news._listens and store._news._waiting)
        await other.delete("a")
        await add_session(other, at=LATER)
        Teller(far, execution="e2").tell("begin", "step", "step", "end")
        with pytest.raises(SessionNotFoundError, match="'a'"):
            await follower.ends()
        assert [each.execution_id for each in follower.heard] == ["e1"] * before
        again = Follower(near)
        await again.hears(1, 2, 3, 4)
        await again.leave()


async def test_what_is_kept_late_is_heard_by_who_has_heard_greater_numbers(
    postgres: PostgresServer, schema: str
) -> None:
    async with opened(postgres, schema) as (store, _), EventLog(store) as log:
        await store.add_events("a", told(1, 2, 1001, 1002, 3, 4))
        assert seqs(await log.page("a", "x:1002")) == [3, 4]
        assert seqs(await log.page("a", "x:2")) == [1001, 1002, 3, 4]
        assert seqs(await log.page("a", "x:3")) == [4]


async def test_many_sessions_are_told_of_in_turn_and_kept_at_once(
    postgres: PostgresServer, schema: str
) -> None:
    names = [f"session {n}" for n in range(30)]
    async with opened(postgres, schema, max_connections=3) as (store, other), EventLog(store) as log:
        await add_session(other, *names)
        tellers = [Teller(log, name) for name in names]
        for kind in ("begin", "step", "end"):
            for teller in tellers:
                teller.tell(kind)
        await settled(log)
        assert [seqs(await other.events(name)) for name in names] == [[1, 2, 3]] * 30
        assert log.dropped == {}


@pytest.mark.parametrize("turns", range(4))
async def test_who_is_cancelled_when_a_connection_gets_free_is_cancelled(
    postgres: PostgresServer, schema: str, turns: int
) -> None:
    async with opened(postgres, schema, max_connections=1, timeout=1) as (store, _):
        await store.events("a")
        pool = store._connections._pool
        held = await pool.getconn()
        reading = asyncio.create_task(store.events("a"))
        await until(lambda: pool.get_stats().get("requests_waiting"))
        await pool.putconn(held)
        for _ in range(turns):
            await asyncio.sleep(0)
        assert not reading.done()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        # Its connection is there for the next one.
        assert await store.events("a") == ()


async def test_followers_that_come_and_go_at_once_leave_nothing_behind(
    postgres: PostgresServer, schema: str
) -> None:
    names = [f"session {n}" for n in range(20)]
    async with opened(postgres, schema, max_connections=2) as (store, other), EventLog(store) as log:
        await add_session(other, *names)
        await store.events("a")
        pool = store._connections._pool
        for enough in range(0, 60, 3):
            pool.pop_stats()
            followers = [Follower(log, name) for name in names]
            async with asyncio.timeout(10):
                while pool.get_stats().get("requests_num", 0) < enough:
                    await asyncio.sleep(0)
                for follower in followers:
                    follower.task.cancel()
                await asyncio.wait([follower.task for follower in followers])
            assert [follower.task.cancelled() for follower in followers] == [True] * 20
        await until(lambda: not store._news._waiting)
        assert len(log._channels) == 0
        assert "whyloop event log" not in {task.get_name() for task in asyncio.all_tasks()}
