"""Streams of a session on real connections: the missed envelopes, then the live ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from starlette.types import Message

from tests.broadcasting.support import seqs
from tests.server.recorded import Recorder, new_session
from tests.server.streams_clients import LONG_ENOUGH, Event, events_url, read
from tests.server.streams_support import Stage, stage
from whyloop.broadcasting import EventFeed
from whyloop.broadcasting.feed import FeedItem
from whyloop.server import AgentServer, streams
from whyloop.stores import MemoryStore

A_RUN = ("begin", "step", "step", "end")


@pytest.fixture
async def a() -> AsyncIterator[Stage]:
    async with stage() as staged:
        yield staged


# From where


async def test_events_come_from_the_first_on_and_then_as_they_happen(a: Stage) -> None:
    await a.record(*A_RUN)
    async with a.to.events(a.url) as client:
        heard = await client.hears(1, 2, 3, 4)
        await a.record("begin", "step", "end")
        heard += await client.hears(5, 6, 7)
    assert [each.id for each in heard] == [f"e1:{number}" for number in range(1, 8)]
    assert client.parser.retry == 1000


async def test_a_socket_gets_the_same_an_envelope_in_each_message(a: Stage) -> None:
    await a.record(*A_RUN)
    async with a.to.socket(a.url) as client:
        await client.hears(1, 2, 3, 4)
        await a.record("begin", "end")
        await client.hears(5, 6)


async def test_streaming_text_has_the_id_of_the_numbered_envelope_before_it(a: Stage) -> None:
    async with a.to.events(a.url) as client, a.to.socket(a.url) as other:
        await a.record("begin")
        await client.hears(1)
        await other.hears(1)
        await a.record("chunk", "chunk", "step")
        heard = await client.hears(1, 1, 2)
        await other.hears(1, 1, 2)
    assert [each.id for each in heard] == ["e1:1", "e1:1", "e1:2"]
    assert ["agent.stream.chunk" in each.data for each in heard] == [True, True, False]


CURSORS = [
    (None, [1, 2, 3, 4, 1, 2]),
    ("e1:0", [1, 2, 3, 4, 1, 2]),
    ("e1:2", [3, 4, 1, 2]),
    ("e1%3A3", [4, 1, 2]),
    ("e1:99", [1, 2]),
    ("e2:1", [2]),
    ("0", [1, 2]),
    ("1", [2]),
    ("2", []),
    ("99", []),
    ("latest", []),
    ("unknown:3", [1, 2, 3, 4, 1, 2]),
]


@pytest.mark.parametrize(("cursor", "expected"), CURSORS)
async def test_a_cursor_means_the_same_everywhere(a: Stage, cursor: str | None, expected: list[int]) -> None:
    await a.record(*A_RUN)
    await a.record("begin", "end", execution="e2")
    assert seqs(await a.to.page(a.url, after=cursor)) == expected
    async with a.to.events(a.url, after=cursor) as client, a.to.socket(a.url, after=cursor) as other:
        await client.hears(*expected)
        await other.hears(*expected)
        await a.record("begin", execution="e3")
        await client.hears(1)
        await other.hears(1)


async def test_the_last_event_of_a_browser_goes_before_the_cursor_of_its_page(a: Stage) -> None:
    await a.record(*A_RUN)
    async with a.to.events(a.url, after="e1:1", last="e1:2") as client:
        await client.hears(3, 4)
    async with a.to.events(a.url, after="e1:3", last="") as client:
        await client.hears(4)


async def test_a_client_that_was_away_gets_exactly_what_it_missed(a: Stage) -> None:
    await a.record("begin", *["step"] * 40, "end")
    async with a.to.events(a.url, last="e1:17") as client, a.to.socket(a.url, after="e1:17") as other:
        await client.hears(*range(18, 43))
        await other.hears(*range(18, 43))
        await a.record("begin")
        await client.hears(43)
        await other.hears(43)


async def test_a_client_that_returns_in_the_middle_of_a_step_gets_its_text_again() -> None:
    async with stage(linger=60) as a:
        async with a.to.events(a.url) as client:
            await a.record("begin")
            await client.hears(1)
            await a.record("chunk", "chunk")
            last = (await client.hears(1, 1))[-1].id
        await a.record("chunk")
        async with a.to.events(a.url, last=last) as client, a.to.socket(a.url, after=last) as other:
            for found in (await client.hears(1, 1, 1), [await other.next() for _ in range(3)]):
                assert [_index(each) for each in found] == [1, 2, 3]
            await a.record("chunk", "step")
            assert _index((await client.hears(1, 2))[0]) == 4
            await other.hears(1, 2)
        async with a.to.events(a.url, last=last) as client:
            await client.hears(2)
        await a.server.do(a.agents.events.close)
        await a.left()


def _index(event: Event | dict[str, Any]) -> int:
    """The number of a piece of text."""
    envelope = read(event.data) if isinstance(event, Event) else event
    index: int = envelope["data"]["chunk_index"]
    return index


async def test_two_followers_receive_the_same_each_from_its_cursor(a: Stage) -> None:
    await a.record(*A_RUN)
    async with a.to.events(a.url) as first, a.to.events(a.url, after="latest") as second:
        await first.hears(1, 2, 3, 4)
        await second_is_there(a)
        await a.record("begin", "step")
        await first.hears(5, 6)
        await second.hears(5, 6)


async def second_is_there(a: Stage) -> None:
    channel = next(iter(a.agents.events._channels.values()))
    await a.server.until(lambda: channel.followers == 2)


# How they are answered


async def test_a_stream_is_neither_cached_nor_buffered(a: Stage) -> None:
    async with a.to.events(a.url) as client:
        headers = client.response.headers
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert headers["cache-control"] == "no-store"
    assert headers["x-accel-buffering"] == "no"
    assert headers["x-content-type-options"] == "nosniff"
    assert "content-length" not in headers


async def test_while_nothing_happens_a_comment_says_that_the_line_is_there(
    a: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "IDLE_SECONDS", 0.001)
    async with a.to.events(a.url) as client:
        for _ in range(3):
            assert await client.next() == Event("", "", comment="still here")
        await a.record("begin")
        while (event := await client.next()) and event.comment:
            pass
    assert event
    assert event.id == "e1:1"


REFUSED = [
    ("nobody", None, 404, "nobody"),
    ("a", "not-a-cursor", 400, "not-a-cursor"),
    ("a", "e1:", 400, "invalid cursor"),
    ("a", "e1:-1", 400, "invalid cursor"),
    ("a", "9" * 30, 400, "invalid cursor"),
]


@pytest.mark.parametrize(("agent_id", "after", "status", "words"), REFUSED)
async def test_an_invalid_cursor_or_session_is_refused_before_anything_is_sent(
    a: Stage, agent_id: str, after: str | None, status: int, words: str
) -> None:
    url = events_url(a.url, agent_id, after)
    for headers in ({}, {"accept": "text/event-stream"}):
        async with a.to.http.get(url, headers=headers) as response:
            assert response.status == status
            assert words in (await response.json())["error"]["message"]
    async with a.to.socket(a.url, agent_id, after) as client:
        code, why = await client.closed()
    assert code == 4000 + status
    assert words in why
    assert not await a.server.do(a.remembered)


async def test_a_bad_last_event_id_is_refused(a: Stage) -> None:
    headers = {"accept": "text/event-stream", "last-event-id": "é?"}
    async with a.to.http.get(events_url(a.url), headers=headers) as response:
        assert response.status == 400


# How they end


async def test_a_session_that_is_deleted_ends_its_streams(a: Stage) -> None:
    await a.record("begin", "end")
    async with a.to.events(a.url) as client, a.to.socket(a.url) as other:
        await client.hears(1, 2)
        await other.hears(1, 2)
        await a.server.do(lambda: a.agents.events.store.delete("a"))
        assert await client.next() is None
        assert (await other.closed())[0] == 1001
    async with a.to.http.get(events_url(a.url), headers={"accept": "text/event-stream"}) as response:
        assert response.status == 404
    assert not await a.server.do(a.remembered)


async def test_a_feed_that_is_closed_ends_its_streams(a: Stage) -> None:
    await a.record("begin")
    async with a.to.events(a.url) as client, a.to.socket(a.url) as other:
        await client.hears(1)
        await other.hears(1)
        await a.server.do(a.agents.close)
        assert await client.next() is None
        assert (await other.closed())[0] == 1001


async def test_a_client_that_leaves_leaves_nothing_behind(a: Stage) -> None:
    await a.record(*A_RUN)
    before = await a.server.do(asyncio.all_tasks)
    async with a.to.events(a.url) as client, a.to.socket(a.url) as other:
        await client.hears(1, 2, 3, 4)
        await other.hears(1, 2, 3, 4)
        assert await a.server.do(a.remembered) == 1
    await a.left()
    await a.server.until(lambda: not a.server.uvicorn.server_state.tasks)
    await a.server.until(lambda: len(asyncio.all_tasks()) <= len(before) + 1)  # The one that looks.
    assert await a.server.do(a.remembered) == 0


async def test_a_client_whose_connection_breaks_leaves_nothing_behind(a: Stage) -> None:
    await a.record(*A_RUN)
    async with a.to.events(a.url) as client, a.to.socket(a.url) as other:
        await client.hears(1, 2, 3, 4)
        await other.hears(1, 2, 3, 4)
        await a.server.cut_connections()
        await a.left()
        await a.server.until(lambda: not a.server.uvicorn.server_state.tasks)
        with pytest.raises(aiohttp.ClientError):
            await client.next()
    assert await a.server.do(a.remembered) == 0


async def test_messages_of_a_client_on_its_socket_are_dropped(a: Stage) -> None:
    async with a.to.socket(a.url) as client:
        await client.socket.send_str("hello?")
        await client.socket.send_bytes(b"\x00" * 100_000)
        await a.record("begin")
        await client.hears(1)


# What servers make of it


@pytest.mark.parametrize("kind", ["http", "websocket"])
async def test_a_failed_write_to_a_closed_connection_ends_the_stream(kind: str) -> None:
    refused: list[Message] = []

    async def send(message: Message) -> None:
        if b"id: " in message.get("body", b"") or message.get("text"):
            refused.append(message)
            raise BrokenPipeError("nobody is there")

    await asked(kind, send)
    assert len(refused) == 1


@pytest.mark.parametrize("kind", ["http", "websocket"])
async def test_an_internal_error_reaches_the_server(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def follow(*_: object, **options: object) -> AsyncIterator[list[FeedItem]]:
        yield [FeedItem("e1", 1, True, str(1 / 0))]

    async def send(message: Message) -> None:
        """Takes everything."""

    monkeypatch.setattr(EventFeed, "follow", follow)
    with pytest.raises(ZeroDivisionError):
        await asked(kind, send)


async def asked(kind: str, send: Callable[[Message], Awaitable[None]]) -> None:
    """Ask a server for a stream, by hand, and do not go away."""
    store = MemoryStore()
    await new_session(store)
    await Recorder(store).record("begin")
    come = iter([{"type": "websocket.connect"}])

    async def receive() -> Message:
        for message in come:
            return message
        await asyncio.Event().wait()
        raise AssertionError

    headers = [(b"accept", b"text/event-stream"), (b"host", b"localhost")]
    scope = {"type": kind, "method": "GET", "path": "/sessions/a/events", "query_string": b""}
    async with asyncio.timeout(LONG_ENOUGH):
        await AgentServer(store, public=True)(
            {**scope, "headers": headers, "subprotocols": []}, receive, send
        )
