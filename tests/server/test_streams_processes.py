"""Streams beyond one server: after a restart, beside the one that runs the agent, and at the end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.server.other_process import assert_stop_reaches, assert_text_arrives
from tests.server.streams_support import stage
from tests.support import echo, scripted
from whyloop import Agent
from whyloop.stores import SqliteStore
from whyloop.testing import call
from whyloop.wire.envelope import NUMBERED


@pytest.fixture
def open_store(tmp_path: Path) -> Callable[[], SqliteStore]:
    def opened() -> SqliteStore:
        return SqliteStore(tmp_path / "whyloop.db")

    return opened


def numbered(envelopes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for each in envelopes if each["event"] in NUMBERED]


def an_agent() -> Agent:
    return scripted(call("echo", {"value": "one"}, "Let me see."), "It is one.", tools=[echo])


async def test_after_a_restart_the_store_has_what_was_missed(open_store: Callable[[], SqliteStore]) -> None:
    async with stage(open_store()) as a:
        await a.record("begin", "step", "step")
        async with a.to.events(a.url) as client:
            last = (await client.hears(1, 2))[-1].id
        port = a.server.port
    async with (
        stage(open_store(), port=port) as a,
        a.to.events(a.url, last=last) as client,
        a.to.socket(a.url, after=last) as other,
    ):
        await client.hears(3)
        await other.hears(3)
        await a.record("begin", execution="e2")
        await client.hears(1)
        await other.hears(1)


async def test_a_session_that_continues_after_a_restart_is_one_stream(
    open_store: Callable[[], SqliteStore],
) -> None:
    async with stage(open_store(), an_agent()) as a:
        await a.ask("go")
        await a.finished()
        kept = await a.to.page(a.url)
    async with stage(open_store(), scripted("And two.")) as a, a.to.events(a.url) as client:
        await a.ask("more?")
        assert await client.run() == kept
        assert (await client.run())[-1]["data"]["last_response"] == "And two."


async def test_a_server_streams_runs_of_another_process(
    open_store: Callable[[], SqliteStore],
) -> None:
    async with stage(open_store(), an_agent()) as a, stage(open_store()) as b:
        async with b.to.events(b.url) as client, b.to.socket(b.url) as other:
            await a.ask("go")
            heard, also = await client.run(), await other.run()
        recorded = await a.to.page(a.url)
        assert numbered(heard) == numbered(also) == recorded
        async with b.to.http.post(f"{b.url}/sessions/a/messages", json={"text": "go"}) as response:
            assert response.status == 405


async def test_entries_of_two_servers_come_in_one_order_to_the_clients_of_both(
    open_store: Callable[[], SqliteStore],
) -> None:
    async with (
        stage(open_store()) as a,
        stage(open_store()) as b,
        a.to.events(a.url) as near,
        b.to.events(b.url) as far,
    ):
        for number in range(1, 11):
            await a.record("begin", execution=f"of-a-{number}")
            await b.record("begin", execution=f"of-b-{number}")
            for client in (near, far):
                heard = await client.hears(1, 1)
                assert [each.id for each in heard] == [f"of-a-{number}:1", f"of-b-{number}:1"]


# The end


async def test_uvicorn_waits_for_open_streams_until_its_timeout(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with stage(seconds=0) as a:
        await a.record("begin")
        async with a.to.events(a.url) as client, a.to.socket(a.url) as other:
            await client.hears(1)
            await other.hears(1)
            await a.server.stop()
            assert (await other.closed())[0] == 1012
            with pytest.raises(aiohttp.ClientPayloadError):
                await client.next()
    assert "timeout graceful shutdown exceeded" in caplog.text


async def test_a_server_that_is_closed_first_ends_its_streams_in_good_order(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with stage(seconds=60, close_first=True) as a:
        await a.record("begin")
        async with a.to.events(a.url) as client, a.to.socket(a.url) as other:
            await client.hears(1)
            await other.hears(1)
            await a.server.stop()
            assert await client.next() is None
            assert (await other.closed())[0] in (1001, 1012)
    assert caplog.text == ""
    assert a.remembered() == 0


# A real other process


@pytest.mark.slow
async def test_text_of_another_process_is_shown_within_300_ms(
    tmp_path: Path, open_store: Callable[[], SqliteStore]
) -> None:
    async with stage(open_store()) as a:
        await assert_text_arrives(a, str(tmp_path / "whyloop.db"))


@pytest.mark.slow
async def test_a_stop_ends_an_answer_that_streams_in_another_process_within_a_second(
    tmp_path: Path, open_store: Callable[[], SqliteStore]
) -> None:
    async with stage(open_store()) as a:
        await assert_stop_reaches(a, str(tmp_path / "whyloop.db"))
