"""Runners on a real PostgreSQL: the server releases the lock of a dead one, and its sessions are free."""

from __future__ import annotations

import asyncio
import gc
import logging
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.real.postgres import PostgresServer
from tests.real.postgres_proxy import Proxy
from whyloop.errors import LeaseLostError, SessionRunningError
from whyloop.stores.records import Lease, Summary
from whyloop.values.state import AgentStatus
from whyloop.wire.journal import Entry

psycopg = pytest.importorskip("psycopg", reason='these tests need a driver: pip install ".[postgres]"')

from whyloop.stores.postgres import PostgresStore  # noqa: E402

pytestmark = pytest.mark.slow

NOW = datetime(2026, 1, 1, tzinfo=UTC)
RUNNING = Summary("a", AgentStatus.IN_PROGRESS, NOW, NOW)
HOLDERS = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND mode = 'ExclusiveLock'"

RUNNER = """
import asyncio, sys
from whyloop.stores import PostgresStore

async def main():
    store = PostgresStore(sys.argv[1], schema=sys.argv[2])
    await store.acquire("a", "a runner", 3600)
    print("running", flush=True)
    await asyncio.sleep(3600)

asyncio.run(main())
"""


@asynccontextmanager
async def opened(postgres: PostgresServer, schema: str, **settings: Any) -> AsyncIterator[PostgresStore]:
    async with PostgresStore(postgres.address(), schema=schema, **settings) as store:
        await store.create(RUNNING, [Entry("first")])
        yield store


async def acquired(store: PostgresStore) -> Lease:
    """Return the lease of the session as soon as it is free."""
    async with asyncio.timeout(5):
        while True:
            try:
                return await store.acquire("a", "another", 60)
            except SessionRunningError:
                await asyncio.sleep(0.005)


async def rows(postgres: PostgresServer, statement: str) -> list[tuple[Any, ...]]:
    async with await psycopg.AsyncConnection.connect(postgres.address(), autocommit=True) as other:
        return await (await other.execute(statement)).fetchall()  # type: ignore[no-any-return]


async def test_the_session_of_a_killed_process_is_free_at_once(postgres: PostgresServer, schema: str) -> None:
    async with opened(postgres, schema) as store:
        command = [sys.executable, "-c", RUNNER, postgres.address(), schema]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert await asyncio.to_thread(process.stdout.readline) == "running\n"
            with pytest.raises(SessionRunningError, match="a runner"):
                await store.acquire("a", "another", 60)
            assert await store.unattended() == ()
            assert await store.ask_to_stop("a", "enough")
            process.kill()
        loop = asyncio.get_running_loop()
        begun = loop.time()
        async with asyncio.timeout(5):
            while not await store.unattended():
                await asyncio.sleep(0.005)
        assert loop.time() - begun < 1
        assert (await store.read("a")).summary.runner is None
        assert not await store.ask_to_stop("a", "nobody hears this")
        lease = await store.acquire("a", "another", 60)
        assert await store.renew(lease) == "enough"


async def test_the_session_of_a_closed_store_is_free_on_return(postgres: PostgresServer, schema: str) -> None:
    async with opened(postgres, schema) as store:
        for _ in range(20):
            async with PostgresStore(postgres.address(), schema=schema) as runner:
                await runner.acquire("a", "a runner", 60)
            await store.append("a", [], after=1)


async def test_the_session_of_a_store_that_was_dropped_is_free(postgres: PostgresServer, schema: str) -> None:
    async with opened(postgres, schema) as store:
        runner = PostgresStore(f"{postgres.address()}?application_name={schema}", schema=schema)
        await asyncio.gather(*[runner.versions(["a"]) for _ in range(3)])
        await runner.acquire("a", "a runner", 60)
        del runner
        gc.collect()
        await acquired(store)
        async with asyncio.timeout(5):
            while await rows(postgres, f"SELECT FROM pg_stat_activity WHERE application_name = '{schema}'"):
                await asyncio.sleep(0.01)


async def test_a_runner_that_loses_its_connection_takes_its_lock_again(
    postgres: PostgresServer, schema: str
) -> None:
    async with opened(postgres, schema) as store, PostgresStore(postgres.address(), schema=schema) as runner:
        lease = await runner.acquire("a", "a runner", 60)
        ((first,),) = await rows(postgres, HOLDERS)
        await rows(postgres, f"SELECT pg_terminate_backend({first}, 5000)")
        async with asyncio.timeout(5):
            while not (holders := await rows(postgres, HOLDERS)):
                await asyncio.sleep(0.005)
        assert holders != [(first,)]
        with pytest.raises(SessionRunningError, match="a runner"):
            await store.acquire("a", "another", 60)
        await runner.append("a", [Entry("second")], after=1, lease=lease)


async def test_a_runner_whose_session_was_taken_over_cannot_write(
    postgres: PostgresServer, schema: str
) -> None:
    async with opened(postgres, schema) as store, PostgresStore(postgres.address(), schema=schema) as runner:
        lease = await runner.acquire("a", "a runner", 60)
        await runner._own.close()
        await store.acquire("a", "another", 60)
        with pytest.raises(LeaseLostError, match="another"):
            await runner.append("a", [Entry("second")], after=1, lease=lease)


def test_a_lease_that_is_used_in_the_next_event_loop_is_held_there(
    postgres: PostgresServer, schema: str
) -> None:
    runner = PostgresStore(postgres.address(), schema=schema)

    async def begin() -> Lease:
        await runner.create(RUNNING, [])
        return await runner.acquire("a", "a runner", 60)

    async def resume(lease: Lease) -> None:
        await runner.renew(lease)
        async with PostgresStore(postgres.address(), schema=schema) as other:
            with pytest.raises(SessionRunningError):
                await other.acquire("a", "another", 60)
        await runner.close()

    asyncio.run(resume(asyncio.run(begin())))


async def test_behind_a_pooler_the_time_of_the_lease_decides(
    postgres: PostgresServer, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(postgres, schema) as store, Proxy(postgres.port, pooler=True) as proxy:
        with caplog.at_level(logging.WARNING):
            async with PostgresStore(postgres.address(port=proxy.port), schema=schema) as runner:
                lease = await runner.acquire("a", "a runner", 60)
                await runner.renew(lease)
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert "pooler" in caplog.text
        with pytest.raises(SessionRunningError, match="a runner"):
            await store.acquire("a", "another", 60)
        await store.release(lease)
        await store.acquire("a", "another", 60)
