"""Live from a process that does not run the agent: two servers and one PostgreSQL."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.real.postgres import PostgresServer
from tests.server.gate import Gate
from tests.server.other_process import assert_run_appears, assert_stop_reaches, assert_text_arrives
from tests.server.streams_support import stage
from tests.server.support import Lab
from tests.support import echo, scripted
from whyloop.testing import call
from whyloop.wire.envelope import NUMBERED

pytest.importorskip("psycopg", reason='these tests need a driver: pip install ".[postgres]"')

from whyloop.stores.postgres import PostgresStore

pytestmark = pytest.mark.slow


def numbered(envelopes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for each in envelopes if each["event"] in NUMBERED]


async def test_a_server_that_runs_nothing_shows_what_another_one_runs(
    postgres: PostgresServer, schema: str
) -> None:
    def opened() -> PostgresStore:
        return PostgresStore(postgres.address(), schema=schema)

    agent = scripted(call("echo", {"value": "one"}, "Let me see."), "It is one.", tools=[echo])
    async with stage(opened(), agent) as a, stage(opened()) as b:
        async with b.to.events(b.url) as client, b.to.socket(b.url) as other:
            await a.ask("go")
            heard, also = numbered(await client.run()), numbered(await other.run())
            last = f"{heard[3]['execution_id']}:{heard[3]['seq']}"
        assert heard == also == await a.to.page(a.url)
        async with b.to.events(b.url, last=last) as client:
            assert await client.run() == heard[4:]


async def test_a_session_that_another_process_deletes_ends_its_streams(
    postgres: PostgresServer, schema: str
) -> None:
    def opened() -> PostgresStore:
        return PostgresStore(postgres.address(), schema=schema)

    async with stage(opened()) as a, stage(opened()) as b, b.to.events(b.url) as client:
        await a.record("begin", "end")
        await client.hears(1, 2)
        await a.server.do(lambda: a.agents.events.store.delete("a"))
        assert await client.next() is None


async def test_a_run_of_another_process_appears_in_the_live_list(
    postgres: PostgresServer, schema: str
) -> None:
    async with stage(PostgresStore(postgres.address(), schema=schema)) as a:
        await assert_run_appears(a, postgres.address(), schema)


async def test_text_of_another_process_is_shown_within_300_ms(postgres: PostgresServer, schema: str) -> None:
    async with stage(PostgresStore(postgres.address(), schema=schema)) as a:
        await assert_text_arrives(a, postgres.address(), schema)


async def test_a_stop_ends_an_answer_that_streams_in_another_process_within_a_second(
    postgres: PostgresServer, schema: str
) -> None:
    async with stage(PostgresStore(postgres.address(), schema=schema)) as a:
        await assert_stop_reaches(a, postgres.address(), schema)


async def test_requests_with_one_key_at_two_servers_are_carried_out_once(
    postgres: PostgresServer, schema: str
) -> None:
    gate = Gate()
    async with (
        PostgresStore(postgres.address(), schema=schema) as one,
        PostgresStore(postgres.address(), schema=schema) as other,
    ):
        labs = [Lab(one, gate.agent), Lab(other, gate.agent)]
        path = await labs[0].made()
        sent = [
            labs[number % 2].post(f"{path}/messages", {"text": "go"}, headers={"idempotency-key": "k"})
            for number in range(8)
        ]
        answers = await asyncio.gather(*sent)
        assert {(answer.status, answer.body) for answer in answers} == {(202, answers[0].body)}
        gate.open.set()
        for lab in labs:
            await lab.rest()
        assert len((await one.load("a")).messages) == 2
        assert (await labs[1].get(f"{path}/messages", query={"limit": 1})).json["has_more"] is True
        assert (await labs[1].delete(path, headers={"if-match": answers[0].headers["etag"]})).status == 412
        shown = await labs[1].get(path)
        assert (await labs[0].delete(path, headers={"if-match": shown.headers["etag"]})).status == 204
