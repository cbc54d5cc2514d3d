"""Streaming text between store objects and processes on a real PostgreSQL."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from tests.real.postgres import PostgresServer
from whyloop.stores.records import Chunk

psycopg = pytest.importorskip("psycopg", reason='these tests need a driver: pip install ".[postgres]"')

from whyloop.stores.live import ChunkReceiver  # noqa: E402
from whyloop.stores.postgres import PostgresStore  # noqa: E402
from whyloop.stores.postgres_connection import _number  # noqa: E402

pytestmark = pytest.mark.slow

SENDER = """
import asyncio, sys, time
from whyloop.stores import Chunk, PostgresStore

async def main():
    async with PostgresStore(sys.argv[1], schema=sys.argv[2]) as store:
        await store.sessions()
        while True:
            await store.send_chunks([Chunk("a", repr(time.time())), Chunk("b", "not followed")])
            await asyncio.sleep(0.05)

asyncio.run(main())
"""


class Heard:
    """The chunks that a receiver got, and when."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.times: list[float] = []
        self._more = asyncio.Event()

    def __call__(self, chunks: Sequence[Chunk]) -> None:
        self.chunks += chunks
        self.times += [time.time()] * len(chunks)
        self._more.set()

    async def wait(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.chunks) < count:
                self._more.clear()
                await self._more.wait()

    def bodies(self) -> list[str]:
        return [chunk.body for chunk in self.chunks]


def store_at(postgres: PostgresServer, schema: str) -> PostgresStore:
    return PostgresStore(f"{postgres.address()}?application_name={schema}", schema=schema)


@asynccontextmanager
async def two_stores(
    postgres: PostgresServer, schema: str
) -> AsyncIterator[tuple[PostgresStore, PostgresStore]]:
    async with store_at(postgres, schema) as one, store_at(postgres, schema) as two:
        await one.sessions()
        yield one, two


@asynccontextmanager
async def follower(store: PostgresStore, *agent_ids: str) -> AsyncIterator[tuple[ChunkReceiver, Heard]]:
    """A receiver of these sessions, whose locks other connections see by now."""
    heard = Heard()
    async with store.receive_chunks(heard) as receiver:
        for agent_id in agent_ids:
            receiver.follow(agent_id)
        await store._own.ready()
        yield receiver, heard


@asynccontextmanager
async def listener(postgres: PostgresServer, schema: str) -> AsyncIterator[list[str]]:
    """What is sent on the channel of the schema, until the end of the block."""
    async with await psycopg.AsyncConnection.connect(postgres.address(), autocommit=True) as other:
        await other.execute(f"LISTEN whyloop_{_number(f'whyloop chunks {schema}')}")
        payloads: list[str] = []
        yield payloads
        payloads += [notice.payload async for notice in other.notifies(timeout=0.2)]


async def test_text_reaches_another_process_within_300_ms(postgres: PostgresServer, schema: str) -> None:
    async with store_at(postgres, schema) as store:
        await store.sessions()
        async with follower(store, "a") as (_, heard):
            with subprocess.Popen([sys.executable, "-c", SENDER, postgres.address(), schema]) as process:
                try:
                    await heard.wait(10)
                finally:
                    process.kill()
        assert {chunk.agent_id for chunk in heard.chunks} == {"a"}
        late = [at - float(body) for at, body in zip(heard.times, heard.bodies(), strict=True)]
        assert max(late) < 0.3


async def test_a_follower_hears_others_and_not_its_own_store(postgres: PostgresServer, schema: str) -> None:
    async with (
        two_stores(postgres, schema) as (one, two),
        follower(one, "a", "b") as (receiver, heard),
        follower(two, "a") as (_, other),
    ):
        await one.send_chunks([Chunk("a", "from one")])
        await two.send_chunks([Chunk("a", 'with "quotes", 5,3; and\nlines'), Chunk("b", "é 🦉 \\u0000")])
        await heard.wait(2)
        await other.wait(1)
        assert heard.bodies() == ['with "quotes", 5,3; and\nlines', "é 🦉 \\u0000"]
        assert other.chunks == [Chunk("a", "from one")]
        receiver.unfollow("a")
        await two.send_chunks([Chunk("a", "not wanted"), Chunk("b", "wanted")])
        await heard.wait(3)
        assert heard.bodies()[2:] == ["wanted"]


async def test_nothing_is_sent_for_a_session_that_no_other_store_follows(
    postgres: PostgresServer, schema: str
) -> None:
    async with two_stores(postgres, schema) as (one, two):
        async with listener(postgres, schema) as payloads:
            await one.send_chunks([Chunk("a", "nobody follows")])
            async with follower(one, "a"):
                await one.send_chunks([Chunk("a", "only the sender follows")])
                async with follower(two, "b") as (_, heard):
                    await one.send_chunks([Chunk("a", "another session"), Chunk("b", "is followed")])
                    await heard.wait(1)
                await two._own.ready()
                await one.send_chunks([Chunk("b", "nobody follows any more")])
        assert payloads == ["1,11;bis followed"]


async def test_a_store_that_follows_very_many_sessions_holds_few_locks(
    postgres: PostgresServer, schema: str
) -> None:
    many = [f"{number}" for number in range(10_000)]
    question = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid::bigint = %s"
    async with (
        two_stores(postgres, schema) as (one, two),
        await psycopg.AsyncConnection.connect(postgres.address(), autocommit=True) as other,
        follower(two, *many) as (receiver, heard),
    ):
        space = [_number(f"whyloop chunks {schema}")]
        await one.send_chunks([Chunk(agent_id, agent_id) for agent_id in ("9999", "not followed", "17")])
        await heard.wait(2)
        assert heard.bodies() == ["9999", "17"]
        assert await (await other.execute(question, space)).fetchone() == (1,)
        for agent_id in many[3:]:
            receiver.unfollow(agent_id)
        await two._own.ready()
        assert await (await other.execute(question, space)).fetchone() == (3,)
        await one.send_chunks([Chunk("2", "still followed")])
        await heard.wait(3)


async def test_large_batches_are_split_and_chunks_too_large_are_dropped(
    postgres: PostgresServer, schema: str
) -> None:
    async with two_stores(postgres, schema) as (one, two), follower(two, "a") as (_, heard):
        async with listener(postgres, schema) as payloads:
            sent = [f"{number} " + "é" * number for number in range(0, 3_600, 45)]
            chunks = [Chunk("a", body) for body in sent]
            unfit = [Chunk("a", "é" * 3_700), Chunk("a", "\ud800"), Chunk("a", "a \x00")]
            await one.send_chunks([*unfit, *chunks])
            await heard.wait(len(sent))
        assert heard.bodies() == sent
        assert max(len(payload.encode()) for payload in payloads) < 7_500
        assert len(payloads) < len(sent)


async def test_followers_and_senders_continue_after_their_connections_were_ended(
    postgres: PostgresServer, schema: str
) -> None:
    end = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = %s"
    async with (
        two_stores(postgres, schema) as (one, two),
        follower(two, "a") as (_, heard),
        await psycopg.AsyncConnection.connect(postgres.address(), autocommit=True) as other,
    ):
        for number in range(3):
            await other.execute(end, [schema])
            async with asyncio.timeout(10):
                while f"{number}" not in heard.bodies():
                    await one.send_chunks([Chunk("a", f"{number}")])
                    await asyncio.sleep(0.005)


async def test_sending_and_following_while_the_server_is_down_is_logged_and_not_raised(
    postgres: PostgresServer, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with two_stores(postgres, schema) as (one, two), follower(two, "a") as (receiver, heard):
        postgres.stop()
        try:
            with caplog.at_level(logging.WARNING, logger="whyloop"):
                async with asyncio.timeout(10):
                    while len(caplog.records) < 2:
                        await one.send_chunks([Chunk("a", "lost")])
                        receiver.follow("b")
                        await asyncio.sleep(0.01)
                for _ in range(10):
                    await one.send_chunks([Chunk("a", "lost")])
        finally:
            postgres.start()
        assert len(caplog.records) == 2  # one of each store
        async with asyncio.timeout(10):
            while "b" not in heard.bodies():
                await one.send_chunks([Chunk("b", "b")])
                await asyncio.sleep(0.01)
        assert "lost" not in heard.bodies()
