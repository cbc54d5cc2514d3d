"""Live from a process that does not run the agent: two servers and one PostgreSQL."""

from __future__ import annotations

import pytest

from tests.real.postgres import PostgresServer
from tests.server.streams_support import stage
from tests.support import echo, scripted
from whyloop.testing import call

pytest.importorskip("psycopg_pool", reason='these tests need a driver: pip install "whyloop[postgres]"')

from whyloop.stores import postgres_news
from whyloop.stores.postgres import PostgresStore

pytestmark = pytest.mark.slow


async def test_a_server_that_runs_nothing_tells_what_another_one_runs(
    postgres: PostgresServer, schema: str
) -> None:
    def opened() -> PostgresStore:
        return PostgresStore(postgres.address(), schema=schema)

    agent = scripted(call("echo", {"value": "one"}, "Let me see."), "It is one.", tools=[echo])
    async with stage(opened(), agent) as a, stage(opened()) as b:
        async with b.to.events(b.url) as client, b.to.socket(b.url) as other:
            await a.ask("go")
            heard = await client.run()
            assert await other.run() == heard
            last = f"{heard[3]['execution_id']}:{heard[3]['seq']}"
        assert heard == await a.to.page(a.url)
        async with b.to.events(b.url, last=last) as client:
            assert await client.run() == heard[4:]


async def test_a_session_that_another_process_deletes_ends_its_streams(
    postgres: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_news, "LOOK_AGAIN_SECONDS", 0.01)

    def opened() -> PostgresStore:
        return PostgresStore(postgres.address(), schema=schema)

    async with stage(opened()) as a, stage(opened()) as b, b.to.events(b.url) as client:
        await a.tell("begin", "end")
        await client.hears(1, 2)
        await a.server.do(lambda: a.agents.events.store.delete("a"))
        assert await client.next() is None
