"""What goes wrong between a store and a real PostgreSQL server, and what is left of it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.real.postgres import PostgresServer
from tests.real.postgres_proxy import Lost, Proxy
from whyloop.errors import (
    ConflictError,
    LeaseLostError,
    SessionExistsError,
    SessionNotFoundError,
    StoreError,
    StoreUnavailableError,
)
from whyloop.stores import PostgresStore
from whyloop.stores.records import Lease, Summary
from whyloop.values.state import AgentStatus

psycopg = pytest.importorskip("psycopg", reason='these tests need a driver: pip install "whyloop[postgres]"')

pytestmark = pytest.mark.slow

NOW = datetime(2026, 1, 1, tzinfo=UTC)
WAITING = "SELECT pid FROM pg_stat_activity WHERE application_name = %s AND wait_event_type = 'Lock'"
ALL = "SELECT pid FROM pg_stat_activity WHERE application_name = %s"
lost = pytest.mark.parametrize("lost", Lost)


def summary(agent_id: str = "a", status: AgentStatus = AgentStatus.PENDING) -> Summary:
    return Summary(agent_id, status, NOW, NOW)


@asynccontextmanager
async def opened(
    postgres: PostgresServer, schema: str, *, port: int | None = None, timeout: float = 10, **limits: Any
) -> AsyncIterator[tuple[PostgresStore, Lease]]:
    """A store with one session of one entry, which somebody runs; its connections go by the schema's name."""
    address = f"{postgres.address(port=port)}?application_name={schema}"
    async with PostgresStore(address, schema=schema, timeout=timeout, **limits) as store:
        await store.create(summary(), ["first"])
        yield store, await store.acquire("a", "one", 60)


@asynccontextmanager
async def locked(postgres: PostgresServer, schema: str) -> AsyncIterator[None]:
    """Another program holds a lock on the session."""
    async with await psycopg.AsyncConnection.connect(postgres.address()) as other:
        await other.execute(f'SELECT FROM "{schema}".sessions FOR UPDATE')
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
        await store.append("a", ["second"], after=1, lease=lease)
        postgres.stop()
        postgres.start()
        assert await entries(store) == ("first", "second")
        postgres.stop()
        postgres.start()
        assert await store.renew(lease) is None


async def test_whatever_was_acknowledged_is_there_after_a_crash(
    postgres: PostgresServer, schema: str
) -> None:
    async with opened(postgres, schema, timeout=1) as (store, lease):
        acknowledged = ["first"]

        async def write() -> None:
            while True:
                await store.append("a", [f"{len(acknowledged)}"], after=len(acknowledged), lease=lease)
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
            await store.append("a", [f"{version}"], after=version, lease=lease)
        assert await entries(store) == ("first", "1", "2", "3")


async def test_a_connection_that_is_ended_in_the_middle_of_an_append_costs_nothing(
    postgres: PostgresServer, schema: str
) -> None:
    async with opened(postgres, schema) as (store, lease):
        async with locked(postgres, schema):
            appending = asyncio.create_task(store.append("a", ["second"], after=1, lease=lease))
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
            with pytest.raises(StoreUnavailableError, match=r"within 0\.3 s and nothing was changed"):
                await store.append("a", ["second"], after=1, lease=lease)
            with pytest.raises(StoreUnavailableError):
                await store.acquire("a", "two", 60)
            assert await entries(store) == ("first",)
        await store.append("a", ["second"], after=1, lease=lease)
        assert await entries(store) == ("first", "second")


async def test_an_append_that_is_cancelled_leaves_no_transaction_behind(
    postgres: PostgresServer, schema: str
) -> None:
    async with opened(postgres, schema, max_connections=1) as (store, lease):
        async with locked(postgres, schema):
            appending = asyncio.create_task(store.append("a", ["second"], after=1, lease=lease))
            await waiting(postgres, schema)
            appending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await appending
            assert await process_ids(postgres, f"{ALL} AND state <> 'idle'", schema) == []
        await store.append("a", ["third"], after=1, lease=lease)
        assert await entries(store) == ("first", "third")


async def test_a_server_that_hangs_is_not_waited_for(postgres: PostgresServer, schema: str) -> None:
    async with opened(postgres, schema, timeout=0.2, max_connections=1) as (store, lease):
        [process] = await process_ids(postgres, ALL, schema)
        os.kill(process, signal.SIGSTOP)
        try:
            begun = time.monotonic()
            with pytest.raises(StoreUnavailableError, match="does not answer"):
                await store.append("a", ["second"], after=1, lease=lease)
            assert time.monotonic() - begun < 4
        finally:
            os.kill(process, signal.SIGCONT)
        # The one that hung is late, not lost: what it did shows to whoever looks.
        version = (await store.read("a")).summary.version
        await store.append("a", ["third"], after=version, lease=lease)
        assert (await entries(store))[-1] == "third"


async def test_a_server_that_is_down_is_an_error_within_the_timeout(
    postgres: PostgresServer, schema: str
) -> None:
    async with opened(postgres, schema, timeout=1) as (store, lease):
        postgres.stop()
        try:
            begun = time.monotonic()
            with pytest.raises(StoreUnavailableError, match="gave no connection within 1 s"):
                await store.append("a", ["second"], after=1, lease=lease)
            assert time.monotonic() - begun < 1.5
            with pytest.raises(StoreUnavailableError, match="refused"):
                await PostgresStore(postgres.address(), timeout=1).read("a")
        finally:
            postgres.start()
        assert await entries(store) == ("first",)


async def test_a_server_that_takes_no_changes_says_so(postgres: PostgresServer, schema: str) -> None:
    read_only = f"{postgres.address()}?options=-c%20default_transaction_read_only%3Don"
    async with PostgresStore(read_only, schema=schema) as early:
        with pytest.raises(StoreUnavailableError, match="read-only"):
            await early.read("a")
    async with opened(postgres, schema) as (store, lease), PostgresStore(read_only, schema=schema) as other:
        assert await entries(other) == ("first",)
        with pytest.raises(StoreUnavailableError, match="read-only"):
            await other.append("a", ["second"], after=1, lease=lease)
        assert await entries(store) == ("first",)


@lost
async def test_an_append_is_recorded_once_whatever_the_network_loses(
    postgres: PostgresServer, schema: str, lost: Lost
) -> None:
    async with Proxy(postgres.port) as proxy, opened(postgres, schema, port=proxy.port) as (store, lease):
        await store.ask_to_stop("a", "enough")
        proxy.cut = lost
        assert await store.append("a", ["second", "third"], after=1, lease=lease) == "enough"
        assert await entries(store) == ("first", "second", "third")
        proxy.cut = lost
        await store.append(
            "a", ["last"], after=3, lease=lease, summary=summary(status=AgentStatus.COMPLETED), release=True
        )
        stored = await store.read("a")
        assert (stored.entries[3:], stored.summary.status) == (("last",), AgentStatus.COMPLETED)
        assert stored.summary.runner is None
        assert proxy.cuts == 2


@lost
async def test_a_refusal_is_a_refusal_whatever_the_network_loses(
    postgres: PostgresServer, schema: str, lost: Lost
) -> None:
    async with Proxy(postgres.port) as proxy, opened(postgres, schema, port=proxy.port) as (store, lease):
        proxy.cut = lost
        with pytest.raises(SessionExistsError):
            await store.create(summary(), ["another first"])
        proxy.cut = lost
        with pytest.raises(ConflictError):
            await store.append("a", ["not the first"], after=0, lease=lease)
        await store.release(lease)
        proxy.cut = lost
        with pytest.raises(LeaseLostError):
            await store.append("a", ["second"], after=1, lease=lease)
        assert await entries(store) == ("first",)
        assert proxy.cuts == 3


@lost
async def test_a_session_is_created_acquired_and_deleted_once_whatever_the_network_loses(
    postgres: PostgresServer, schema: str, lost: Lost
) -> None:
    async with Proxy(postgres.port) as proxy, opened(postgres, schema, port=proxy.port) as (store, _):
        proxy.cut = lost
        await store.create(summary("b"), ["one", "two"])
        assert (await store.read("b")).entries == ("one", "two")
        proxy.cut = lost
        lease = await store.acquire("b", "one", 60)
        await store.append("b", ["three"], after=2, lease=lease)
        proxy.cut = lost
        await store.release(lease)
        proxy.cut = lost
        await store.delete("b")
        with pytest.raises(SessionNotFoundError):
            await store.read("b")
        assert proxy.cuts == 4


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
            await store.create(summary(f"{number}"), ["first"])

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
        with pytest.raises(StoreUnavailableError, match="does not exist") as caught:
            await store.read("a")
    assert "hunter2" not in str(caught.value)
