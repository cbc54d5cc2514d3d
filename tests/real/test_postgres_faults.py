"""Faults between a store and a real PostgreSQL server, and the state that they leave."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.real.postgres import PostgresServer
from tests.real.postgres_proxy import Lost, Proxy
from whyloop.errors import (
    ConflictError,
    KeyUsedError,
    LeaseLostError,
    SessionExistsError,
    SessionNotFoundError,
    StoreConfigurationError,
    StoreError,
    StoreUnavailableError,
)
from whyloop.stores import PostgresStore
from whyloop.stores.records import Lease, RequestKey, Summary
from whyloop.values.state import AgentStatus
from whyloop.wire.journal import Entry

psycopg = pytest.importorskip("psycopg", reason='these tests need a driver: pip install ".[postgres]"')

pytestmark = pytest.mark.slow

NOW = datetime(2026, 1, 1, tzinfo=UTC)
WAITING = "SELECT pid FROM pg_stat_activity WHERE application_name = %s AND wait_event_type = 'Lock'"
ALL = "SELECT pid FROM pg_stat_activity WHERE application_name = %s"
POOLED = f"{ALL} AND pid NOT IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory')"
lost = pytest.mark.parametrize("lost", Lost)

CUT_OFF = """
import asyncio, sys
from datetime import datetime, UTC
from whyloop.stores import Entry, PostgresStore, Summary
from whyloop.values.state import AgentStatus

async def main():
    store = PostgresStore(sys.argv[1], schema=sys.argv[2])
    now = datetime.now(UTC)

    async def write(agent_id):
        await store.create(Summary(agent_id, AgentStatus.PENDING, now, now), [])
        for version in range(10**6):
            await store.append(agent_id, [Entry("x")], after=version)

    tasks = [asyncio.create_task(write(f"{number}")) for number in range(200)]
    await asyncio.sleep(1)
    raise RuntimeError("a mistake, while others write")

asyncio.run(main())
"""


def summary(agent_id: str = "a", status: AgentStatus = AgentStatus.PENDING) -> Summary:
    return Summary(agent_id, status, NOW, NOW)


def journal(*bodies: str) -> list[Entry]:
    return [Entry(body) for body in bodies]


@asynccontextmanager
async def opened(
    postgres: PostgresServer, schema: str, *, port: int | None = None, timeout: float = 10, **limits: Any
) -> AsyncIterator[tuple[PostgresStore, Lease]]:
    """A store with one session of one entry, which somebody runs; its connections go by the schema's name."""
    address = f"{postgres.address(port=port)}?application_name={schema}"
    async with PostgresStore(address, schema=schema, timeout=timeout, **limits) as store:
        await store.create(summary(), journal("first"))
        yield store, await store.acquire("a", "one", 60)


@asynccontextmanager
async def locked(postgres: PostgresServer, schema: str, agent_id: str = "a") -> AsyncIterator[None]:
    """Another program holds a lock on the session."""
    async with await psycopg.AsyncConnection.connect(postgres.address()) as other:
        await other.execute(f'SELECT FROM "{schema}".sessions WHERE agent_id = %s FOR UPDATE', [agent_id])
        yield


async def process_ids(postgres: PostgresServer, question: str, schema: str) -> list[int]:
    async with await psycopg.AsyncConnection.connect(postgres.address(), autocommit=True) as other:
        return [pid for (pid,) in await (await other.execute(question, [schema])).fetchall()]


async def waiting(postgres: PostgresServer, schema: str) -> int:
    """The server's process that waits for a lock, once there is one."""
    async with asyncio.timeout(10):
        while not (found := await process_ids(postgres, WAITING, schema)):
            await asyncio.sleep(0.01)
    return found[0]


async def terminate(postgres: PostgresServer, *ids: int) -> None:
    async with await psycopg.AsyncConnection.connect(postgres.address(), autocommit=True) as other:
        for pid in ids:
            await other.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])


async def entries(store: PostgresStore) -> tuple[str, ...]:
    return (await store.read("a")).entries


async def test_a_server_that_was_restarted_between_two_calls_is_not_noticed(
    postgres: PostgresServer, schema: str
) -> None:
    async with opened(postgres, schema, min_connections=4) as (store, lease):
        await asyncio.gather(*(store.read("a") for _ in range(20)))
        postgres.stop()
        postgres.start()
        await store.append("a", journal("second"), after=1, lease=lease)
        postgres.stop()
        postgres.start()
        assert await entries(store) == ("first", "second")
        postgres.stop()
        postgres.start()
        assert await store.renew(lease) is None


async def test_acknowledged_writes_survive_a_crash(postgres: PostgresServer, schema: str) -> None:
    async with opened(postgres, schema, timeout=1) as (store, lease):
        acknowledged = ["first"]

        async def write() -> None:
            while True:
                await store.append("a", journal(f"{len(acknowledged)}"), after=len(acknowledged), lease=lease)
                acknowledged.append(f"{len(acknowledged)}")

        writing = asyncio.create_task(write())
        while len(acknowledged) < 100:
            await asyncio.sleep(0.001)
        await asyncio.to_thread(postgres.kill)
        with pytest.raises(StoreUnavailableError):
            await writing
        postgres.start()

        found = await entries(store)
        # The one that was on its way may have arrived.
        assert list(found[: len(acknowledged)]) == acknowledged
        assert len(found) <= len(acknowledged) + 1


async def test_connections_that_were_ended_between_two_calls_are_replaced(
    postgres: PostgresServer, schema: str
) -> None:
    async with opened(postgres, schema, min_connections=4) as (store, lease):
        await asyncio.gather(*(store.read("a") for _ in range(20)))
        for version in range(1, 4):
            await terminate(postgres, *await process_ids(postgres, ALL, schema))
            await store.append("a", journal(f"{version}"), after=version, lease=lease)
        assert await entries(store) == ("first", "1", "2", "3")


async def test_a_connection_that_is_ended_in_the_middle_of_an_append_costs_nothing(
    postgres: PostgresServer, schema: str
) -> None:
    async with opened(postgres, schema) as (store, lease):
        async with locked(postgres, schema):
            appending = asyncio.create_task(store.append("a", journal("second"), after=1, lease=lease))
            first = await waiting(postgres, schema)
            await terminate(postgres, first)
            assert await waiting(postgres, schema) != first
        await appending
        assert await entries(store) == ("first", "second")


async def test_a_lock_that_is_held_for_too_long_is_an_error_and_nothing_is_written(
    postgres: PostgresServer, schema: str
) -> None:
    async with opened(postgres, schema, timeout=0.3) as (store, lease):
        async with locked(postgres, schema):
            with pytest.raises(StoreUnavailableError, match=r"within 0\.3 s, and nothing was changed"):
                await store.append("a", journal("second"), after=1, lease=lease)
            with pytest.raises(StoreUnavailableError):
                await store.acquire("a", "two", 60)
            assert await entries(store) == ("first",)
        await store.append("a", journal("second"), after=1, lease=lease)
        assert await entries(store) == ("first", "second")


async def test_a_cancelled_append_completes(postgres: PostgresServer, schema: str) -> None:
    async with opened(postgres, schema, max_connections=1) as (store, lease):
        async with locked(postgres, schema):
            appending = asyncio.create_task(store.append("a", journal("second"), after=1, lease=lease))
            await waiting(postgres, schema)
            appending.cancel()
            await asyncio.sleep(0)
            appending.cancel()
            await asyncio.wait([appending], timeout=0.01)
            assert not appending.done()
        with pytest.raises(asyncio.CancelledError):
            await appending
        assert await entries(store) == ("first", "second")
        assert await process_ids(postgres, f"{ALL} AND state <> 'idle'", schema) == []


async def test_a_lease_that_is_acquired_for_a_cancelled_caller_is_given_back(
    postgres: PostgresServer, schema: str
) -> None:
    async with opened(postgres, schema) as (store, lease):
        await store.release(lease)
        async with locked(postgres, schema):
            acquiring = asyncio.create_task(store.acquire("a", "two", 60))
            await waiting(postgres, schema)
            acquiring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await acquiring
        assert (await store.read("a")).summary.runner is None
        last = await store.acquire("a", "three", 60)
        assert last.token == lease.token + 2


async def test_appends_at_the_same_time_share_a_transaction_and_no_failure(
    postgres: PostgresServer, schema: str
) -> None:
    async with opened(postgres, schema) as (store, lease):
        for agent_id in "bcdef":
            await store.create(summary(agent_id), journal("first"))
        async with locked(postgres, schema, "b"):
            impossible = Lease("c", "one", 2**70, 60)
            alone = asyncio.create_task(store.append("b", journal("second"), after=1))
            results = await asyncio.gather(
                store.append("a", journal("second"), after=1, lease=lease),
                store.append("c", journal("refused"), after=1, lease=impossible),
                store.append("d", journal("second"), after=1),
                store.append("e", journal("too early"), after=7),
                store.append("f", journal("second"), after=1),
                store.append("f", journal("third"), after=2),
                store.append("x", journal("second"), after=1),
                return_exceptions=True,
            )
            assert not alone.done()
        await alone
        kinds = [type(result) for result in results]
        none = type(None)
        assert kinds == [none, StoreError, none, ConflictError, none, none, SessionNotFoundError]
        found = [(await store.read(agent_id)).summary.version for agent_id in "abcdef"]
        assert found == [2, 2, 1, 2, 1, 3]


async def test_appends_at_the_same_time_take_one_transaction(postgres: PostgresServer, schema: str) -> None:
    async with opened(postgres, schema) as (store, _):
        ids = [f"{n}" for n in range(20)]
        for agent_id in ids:
            await store.create(summary(agent_id), [])
        await asyncio.gather(*(store.append(agent_id, journal("x"), after=0) for agent_id in ids))
        async with await psycopg.AsyncConnection.connect(postgres.address()) as other:
            question = f"SELECT count(DISTINCT xmin::text) FROM \"{schema}\".entries WHERE body = 'x'"
            assert await (await other.execute(question)).fetchone() == (1,)


async def test_a_server_that_hangs_is_not_waited_for(postgres: PostgresServer, schema: str) -> None:
    async with opened(postgres, schema, timeout=0.2, max_connections=1) as (store, lease):
        [process] = await process_ids(postgres, POOLED, schema)
        os.kill(process, signal.SIGSTOP)
        try:
            begun = time.monotonic()
            with pytest.raises(StoreUnavailableError, match="does not answer"):
                await store.append("a", journal("second"), after=1, lease=lease)
            assert time.monotonic() - begun < 4
        finally:
            os.kill(process, signal.SIGCONT)
        # The append that hung is late, not lost: it may arrive until the server notices that its connection
        # has ended.
        async with asyncio.timeout(10):
            while process in await process_ids(postgres, POOLED, schema):
                await asyncio.sleep(0.01)
        version = (await store.read("a")).summary.version
        await store.append("a", journal("third"), after=version, lease=lease)
        assert (await entries(store))[-1] == "third"


async def test_a_server_that_is_down_is_an_error_within_the_timeout(
    postgres: PostgresServer, schema: str
) -> None:
    async with opened(postgres, schema, timeout=1) as (store, lease):
        postgres.stop()
        try:
            begun = time.monotonic()
            with pytest.raises(StoreUnavailableError, match="provided no connection within 1 s"):
                await store.append("a", journal("second"), after=1, lease=lease)
            assert time.monotonic() - begun < 1.5
            # A socket that is being closed still takes a connection, and ends it at once.
            with pytest.raises(StoreUnavailableError, match=r"refused|closed the connection"):
                await PostgresStore(postgres.address(), timeout=1).read("a")
        finally:
            postgres.start()
        assert await entries(store) == ("first",)


async def test_a_read_only_server_is_an_error(postgres: PostgresServer, schema: str) -> None:
    read_only = f"{postgres.address()}?options=-c%20default_transaction_read_only%3Don"
    async with PostgresStore(read_only, schema=schema) as early:
        with pytest.raises(StoreUnavailableError, match="read-only"):
            await early.read("a")
    async with opened(postgres, schema) as (store, lease), PostgresStore(read_only, schema=schema) as other:
        assert await entries(other) == ("first",)
        with pytest.raises(StoreUnavailableError, match="read-only"):
            await other.append("a", journal("second"), after=1, lease=lease)
        assert await entries(store) == ("first",)


@lost
async def test_an_append_is_recorded_once_on_a_lossy_network(
    postgres: PostgresServer, schema: str, lost: Lost
) -> None:
    async with Proxy(postgres.port) as proxy, opened(postgres, schema, port=proxy.port) as (store, lease):
        await store.ask_to_stop("a", "enough")
        proxy.cut = lost
        assert await store.append("a", journal("second", "third"), after=1, lease=lease) == "enough"
        assert await entries(store) == ("first", "second", "third")
        proxy.cut = lost
        await store.append(
            "a",
            journal("last"),
            after=3,
            lease=lease,
            summary=summary(status=AgentStatus.COMPLETED),
            release=True,
        )
        stored = await store.read("a")
        assert (stored.entries[3:], stored.summary.status) == (("last",), AgentStatus.COMPLETED)
        assert stored.summary.runner is None
        assert proxy.cuts == 2


@lost
async def test_appends_that_share_a_round_trip_are_recorded_once_on_a_lossy_network(
    postgres: PostgresServer, schema: str, lost: Lost
) -> None:
    async with Proxy(postgres.port) as proxy, opened(postgres, schema, port=proxy.port) as (store, lease):
        await store.create(summary("b"), journal("first"))
        key = RequestKey("k", "digest")
        proxy.cut = lost
        results = await asyncio.gather(
            store.append("a", journal("second"), after=1, lease=lease),
            store.append("b", journal("second"), after=1, key=key),
            store.append("b", journal("third"), after=2, key=RequestKey("k", "another")),
            store.append("b", journal("late"), after=1),
            return_exceptions=True,
        )
        assert [type(result) for result in results] == [type(None), type(None), KeyUsedError, ConflictError]
        assert await store.key("b", "k") == ("digest", 2)
        assert await entries(store) == (await store.read("b")).entries == ("first", "second")
        assert proxy.cuts == 1


@lost
async def test_a_refusal_is_a_refusal_on_a_lossy_network(
    postgres: PostgresServer, schema: str, lost: Lost
) -> None:
    async with Proxy(postgres.port) as proxy, opened(postgres, schema, port=proxy.port) as (store, lease):
        proxy.cut = lost
        with pytest.raises(SessionExistsError):
            await store.create(summary(), journal("another first"))
        proxy.cut = lost
        with pytest.raises(ConflictError):
            await store.append("a", journal("not the first"), after=0, lease=lease)
        await store.release(lease)
        proxy.cut = lost
        with pytest.raises(LeaseLostError):
            await store.append("a", journal("second"), after=1, lease=lease)
        assert await entries(store) == ("first",)
        assert proxy.cuts == 3


@lost
async def test_a_session_is_created_acquired_and_deleted_once_on_a_lossy_network(
    postgres: PostgresServer, schema: str, lost: Lost
) -> None:
    async with Proxy(postgres.port) as proxy, opened(postgres, schema, port=proxy.port) as (store, _):
        proxy.cut = lost
        await store.create(summary("b"), journal("one", "two"))
        assert (await store.read("b")).entries == ("one", "two")
        proxy.cut = lost
        lease = await store.acquire("b", "one", 60)
        await store.append("b", journal("three"), after=2, lease=lease)
        proxy.cut = lost
        await store.release(lease)
        proxy.cut = lost
        await store.delete("b")
        with pytest.raises(SessionNotFoundError):
            await store.read("b")
        assert proxy.cuts == 4


def test_a_script_that_ends_in_the_middle_of_many_appends_ends(postgres: PostgresServer, schema: str) -> None:
    command = [sys.executable, "-c", CUT_OFF, postgres.address(), schema]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert "RuntimeError: a mistake" in done.stderr
    assert "never retrieved" not in done.stderr


async def test_tables_of_a_newer_version_are_left_alone(postgres: PostgresServer, schema: str) -> None:
    async with opened(postgres, schema), await psycopg.AsyncConnection.connect(postgres.address()) as other:
        await other.execute(f"INSERT INTO \"{schema}\".migrations VALUES ('2 from the future')")
    async with PostgresStore(postgres.address(), schema=schema) as store:
        for _ in range(2):
            with pytest.raises(StoreError, match=r"newer whyloop.*upgrade"):
                await store.read("a")


async def test_the_tables_are_made_once_however_many_begin_at_the_same_time(
    postgres: PostgresServer, schema: str
) -> None:
    async def begin(number: int) -> None:
        async with PostgresStore(postgres.address(), schema=schema) as store:
            await store.create(summary(f"{number}"), journal("first"))

    await asyncio.gather(
        *(asyncio.to_thread(asyncio.run, begin(number)) for number in range(6)),
        *(begin(number) for number in range(6, 12)),
    )

    async with PostgresStore(postgres.address(), schema=schema) as store:
        assert len((await store.sessions()).sessions) == 12


async def test_a_fault_never_shows_the_password(postgres: PostgresServer) -> None:
    async with PostgresStore(
        f"postgresql://postgres:hunter2@127.0.0.1:{postgres.port}/hunter2", timeout=2
    ) as store:
        with pytest.raises(StoreConfigurationError, match="does not exist") as caught:
            await store.read("a")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("password", ["sesame", "a", "again"])
async def test_an_address_without_a_server_is_explained_in_whole_sentences(password: str) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
    store = PostgresStore(f"postgresql://ann:{password}@127.0.0.1:{port}/shop", timeout=5)
    with pytest.raises(StoreUnavailableError) as caught:
        await store.sessions()
    await store.close()
    assert "Connection refused. Stored sessions are safe; a change on its way may" in str(caught.value)
    assert str(caught.value).endswith("arrived. Try again")
    assert "sesame" not in str(caught.value)
