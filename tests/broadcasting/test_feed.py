"""Envelopes read from the journal: pages after any cursor, and streams that miss and repeat nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from tests.support import RespondingModel, pay, scripted, two_stores
from whyloop import Agent, ModelRequest, ModelResponse, Session, TextDelta, tool
from whyloop.broadcasting import BroadcastConfig, EventFeed
from whyloop.broadcasting.feed import Cursor, FeedItem, read_cursor
from whyloop.errors import ConfigurationError, SessionNotFoundError
from whyloop.events import AgentEvent
from whyloop.stores import MemoryStore, Store
from whyloop.stores.live import live
from whyloop.stores.turns import LateTurns
from whyloop.testing import call, calls
from whyloop.wire.envelope import envelope

EVENTS_A_STEP = 6  # With those that have no envelope.


@tool
async def echo(what: str = "ok") -> str:
    return what


@pytest.fixture(params=["memory", "sqlite"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Store, Store]:
    """Two store objects on the same sessions, as two processes have them."""
    return two_stores(request.param, tmp_path)


def agent_with(*replies: Any, **options: Any) -> Agent:
    return scripted(*replies, tools=[echo, pay], max_steps=1000, **options)


async def ran(store: Store, *queries: Sequence[Any]) -> Session:
    """A session that was asked some queries, each with its own script."""
    replies = [reply for query in queries for reply in query]
    session = await Session.open(store, agent_with(*replies))
    for _ in queries:
        await session.send("go")
    return session


def numbers(items: Sequence[FeedItem]) -> list[int]:
    return [item.seq for item in items if item.is_numbered]


def events(items: Sequence[FeedItem]) -> list[str]:
    return [json.loads(item.body)["event"] for item in items]


async def test_a_page_has_every_numbered_envelope_in_order(stores: tuple[Store, Store]) -> None:
    session = await ran(stores[0], [call("echo"), "done"])
    page = await EventFeed(stores[1]).page(session.agent_id)
    assert events(page.items) == [
        "agent.status",
        "agent.tool.started",
        "agent.tool.completed",
        "agent.step.completed",
        "agent.step.completed",
        "agent.status",
    ]
    assert numbers(page.items) == [1, 2, 3, 4, 5, 6]
    assert (page.cursor, page.has_more) == (Cursor(session.state.execution.id, 6), False)


async def test_a_page_after_any_envelope_has_the_rest(stores: tuple[Store, Store]) -> None:
    steps = [calls(call("echo"), call("echo", {"what": "b"}))] * 70
    session = await ran(stores[0], [*steps, "done"], ["again"], [call("echo"), "third"])
    feed = EventFeed(stores[1])
    everything = (await feed.page(session.agent_id, limit=10_000)).items
    assert len(everything) == len({(item.execution_id, item.seq) for item in everything})
    for index in range(0, len(everything), 7):
        page = await feed.page(session.agent_id, everything[index].cursor, limit=10_000)
        assert page.items == everything[index + 1 :]


async def test_pages_follow_each_other(stores: tuple[Store, Store]) -> None:
    session = await ran(stores[0], [*[call("echo")] * 40, "done"])
    feed, cursor = EventFeed(stores[1]), None
    found: list[FeedItem] = []
    while True:
        page = await feed.page(session.agent_id, cursor, limit=9)
        found += page.items
        cursor = page.cursor
        if not page.has_more:
            break
    assert numbers(found) == list(range(1, session.state.execution.last_seq + 1))


async def test_a_page_renders_few_envelopes_that_it_does_not_have(
    stores: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await ran(stores[0], [*[call("echo")] * 200, "done"])
    rendered = []

    def count(event: AgentEvent, config: BroadcastConfig) -> dict[str, Any] | None:
        made = envelope(event, config)
        rendered.append(made)
        return made

    monkeypatch.setattr("whyloop.broadcasting.feed.envelope", count)
    for seq in range(40, 45):
        rendered.clear()
        page = await EventFeed(stores[1]).page(session.agent_id, Cursor(session.state.execution.id, seq))
        assert len(page.items) == 100
        assert len([made for made in rendered if made is not None]) <= 115


async def test_a_number_alone_is_of_the_latest_execution(stores: tuple[Store, Store]) -> None:
    session = await ran(stores[0], ["one"], [call("echo"), "two"])
    feed = EventFeed(stores[1])
    cursor = await feed.cursor(session.agent_id, "2")
    assert cursor == Cursor(session.state.execution.id, 2)
    assert numbers((await feed.page(session.agent_id, cursor)).items) == [3, 4, 5, 6]
    latest = await feed.cursor(session.agent_id, "latest")
    assert (await feed.page(session.agent_id, latest)).items == ()


async def test_an_unknown_execution_gets_everything(stores: tuple[Store, Store]) -> None:
    session = await ran(stores[0], ["one"], ["two"])
    page = await EventFeed(stores[1]).page(session.agent_id, Cursor("unknown", 7))
    assert numbers(page.items) == [1, 2, 3, 1, 2, 3]


@pytest.mark.parametrize("text", ["x", "1.5", "-1", "e:", "9" * 20, "١"])
def test_an_invalid_cursor_says_which_ones_are_valid(text: str) -> None:
    with pytest.raises(ConfigurationError, match="use '<seq>', '<execution_id>:<seq>' or 'latest'"):
        read_cursor(text)


async def test_decisions_of_another_process_are_read_back(stores: tuple[Store, Store]) -> None:
    session = await Session.open(stores[0], agent_with(call("pay", {"amount": 5}), "done"))
    state = await session.send("pay")
    await stores[1].deny(session.agent_id, state.pending_calls[0].id, "no", by="ann")
    await session.resume()
    page = await EventFeed(stores[1]).page(session.agent_id)
    assert numbers(page.items) == list(range(1, len(page.items) + 1))
    assert events(page.items)[1:5] == [
        "agent.approval.requested",
        "agent.status",
        "agent.approval.decided",
        "agent.tool.completed",
    ]


async def collected(feed: EventFeed, agent_id: str, after: Cursor | None = None) -> list[FeedItem]:
    """Everything that a follower receives until the run has ended."""
    found: list[FeedItem] = []
    async with asyncio.timeout(10), aclosing(feed.follow(agent_id, after)) as following:
        async for items in following:
            found += items
            if any('"status":"completed"' in item.body for item in items):
                return found
    return found


async def test_a_follower_receives_what_another_process_appends(stores: tuple[Store, Store]) -> None:
    session = await Session.open(stores[0], agent_with(*[call("echo")] * 20, "done"))
    feed = EventFeed(stores[1])
    following = asyncio.create_task(collected(feed, session.agent_id))
    await asyncio.sleep(0)
    await session.send("go")
    found = await following
    recorded = (await feed.page(session.agent_id, limit=1000)).items
    assert [item for item in found if item.is_numbered] == list(recorded)


async def test_a_follower_that_is_too_slow_misses_nothing(stores: tuple[Store, Store]) -> None:
    session = await Session.open(stores[0], agent_with(*[call("echo")] * 60, "done"))
    feed = EventFeed(stores[0], recent=5)
    found: list[FeedItem] = []

    async def slowly() -> None:
        async with aclosing(feed.follow(session.agent_id)) as following:
            async for items in following:
                found.extend(items)
                for _ in range(20):
                    await asyncio.sleep(0)
                if '"status":"completed"' in found[-1].body:
                    return

    following = asyncio.create_task(slowly())
    await asyncio.sleep(0)
    await session.send("go")
    async with asyncio.timeout(10):
        await following
    assert numbers(found) == list(range(1, session.state.execution.last_seq + 1))


async def test_followers_that_fell_behind_take_nothing_from_the_others(
    stores: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered = 0

    def count(event: AgentEvent, config: BroadcastConfig) -> dict[str, Any] | None:
        nonlocal rendered
        rendered += 1
        return envelope(event, config)

    monkeypatch.setattr("whyloop.broadcasting.feed.envelope", count)
    never = asyncio.Event()

    async def wait(self: LateTurns) -> None:
        await never.wait()

    monkeypatch.setattr(LateTurns, "take", wait)  # As on a machine that has no time for them.
    session = await Session.open(stores[0], agent_with(*[call("echo")] * 200, "done"))
    feed = EventFeed(stores[0], recent=50)

    async def slowly() -> None:
        async with aclosing(feed.follow(session.agent_id)) as following:
            async for _ in following:
                for _ in range(200):
                    await asyncio.sleep(0)

    slow = [asyncio.create_task(slowly()) for _ in range(10)]
    reading = asyncio.create_task(collected(feed, session.agent_id))
    await asyncio.sleep(0)
    await session.send("go")
    found = await reading
    for task in slow:
        task.cancel()
    await asyncio.gather(*slow, return_exceptions=True)
    assert numbers(found) == list(range(1, session.state.execution.last_seq + 1))
    assert rendered < 2 * 200 * EVENTS_A_STEP


async def test_many_followers_from_different_places_receive_the_same(stores: tuple[Store, Store]) -> None:
    session = await ran(stores[0], [call("echo"), call("echo"), "done"])
    feed = EventFeed(stores[1])
    everything = await collected(feed, session.agent_id)
    async with asyncio.timeout(10):
        found = await asyncio.gather(
            *[collected(feed, session.agent_id, item.cursor) for item in everything[:-1]]
        )
    assert found == [everything[index:] for index in range(1, len(everything))]


def streaming(*pieces: str) -> RespondingModel:
    async def respond(request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        for piece in pieces:
            yield TextDelta(piece)
            await asyncio.sleep(0)
        yield ModelResponse("".join(pieces))

    return RespondingModel(respond)


async def test_streaming_text_arrives_in_order_between_the_numbered_envelopes() -> None:
    store = MemoryStore()
    session = await Session.open(store, Agent(streaming("Hel", "lo ", "you")))
    following = asyncio.create_task(collected(EventFeed(store), session.agent_id))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await session.send("go")
    found = await following
    started, *chunks = [json.loads(item.body) for item in found if not item.is_numbered]
    assert (started["event"], started["seq"]) == ("agent.step.started", 1)
    assert [chunk["data"]["chunk"] for chunk in chunks] == ["Hel", "lo ", "you", ""]
    assert {chunk["seq"] for chunk in chunks} == {1}
    assert events(found)[0] == "agent.status"
    assert events(found)[-1] == "agent.status"


async def test_a_feed_without_chunks_passes_none_on() -> None:
    store = MemoryStore()
    session = await Session.open(store, Agent(streaming("a", "b")))
    feed = EventFeed(store, BroadcastConfig.minimal())
    following = asyncio.create_task(collected(feed, session.agent_id))
    await asyncio.sleep(0)
    await session.send("go")
    assert "agent.stream.chunk" not in events(await following)


async def test_a_deleted_session_ends_its_followers(stores: tuple[Store, Store]) -> None:
    session = await ran(stores[0], ["done"])
    feed = EventFeed(stores[1])

    async def follow() -> None:
        async with asyncio.timeout(10), aclosing(feed.follow(session.agent_id)) as following:
            async for _ in following:
                if session.agent_id in await stores[0].versions([session.agent_id]):
                    await stores[0].delete(session.agent_id)

    with pytest.raises(SessionNotFoundError):
        await follow()


async def test_a_closed_feed_ends_its_followers(stores: tuple[Store, Store]) -> None:
    session = await ran(stores[0], ["done"])
    feed = EventFeed(stores[1])
    async with asyncio.timeout(10), aclosing(feed.follow(session.agent_id)) as following:
        async for _ in following:
            await feed.close()
    async with asyncio.timeout(10), aclosing(feed.follow(session.agent_id)) as following:
        assert [numbers(items) async for items in following]


async def test_an_unknown_session_is_an_error(stores: tuple[Store, Store]) -> None:
    with pytest.raises(SessionNotFoundError):
        await EventFeed(stores[0]).page("unknown")


async def test_a_channel_lingers_and_is_dropped_without_followers() -> None:
    store = MemoryStore()
    session = await ran(store, ["done"])
    feed = EventFeed(store, linger_seconds=0.01)
    await collected(feed, session.agent_id)
    [channel] = feed._channels.values()
    await collected(feed, session.agent_id)
    assert [channel] == list(feed._channels.values())
    async with asyncio.timeout(10):
        while feed._channels:
            await asyncio.sleep(0.001)
    assert channel.has_ended


async def test_a_cursor_of_a_fork_gets_what_came_after_it(stores: tuple[Store, Store]) -> None:
    session = await ran(stores[0], ["one"], [*[call("echo")] * 3, "two"])
    forked = await stores[0].fork(session.agent_id, step=3, new_agent_id="fork")
    other = await Session.open(stores[0], agent_with(*[call("echo")] * 40, "three", "four"), "fork")
    await other.resume()
    await other.send("more")
    feed = EventFeed(stores[1])
    everything = (await feed.page("fork", limit=1000)).items
    own = [item for item in everything if item.execution_id == forked.execution.id]
    assert numbers(own) == list(range(1, len(own) + 1))
    for item in (own[0], own[5], own[-1]):
        page = await feed.page("fork", item.cursor, limit=1000)
        assert page.items == everything[everything.index(item) + 1 :]


async def test_pages_of_unnumbered_envelopes_repeat_none(stores: tuple[Store, Store]) -> None:
    session = await ran(stores[0], [call("echo"), call("echo"), "done"])
    feed, cursor, found = EventFeed(stores[1], BroadcastConfig.debug()), None, list[FeedItem]()
    everything = (await feed.page(session.agent_id)).items
    assert not all(item.is_numbered for item in everything)
    while True:
        page = await feed.page(session.agent_id, cursor, limit=1)
        found += page.items
        cursor = page.cursor
        if not page.has_more:
            break
    assert found == list(everything)


async def test_a_session_that_was_replaced_under_its_name_ends_its_followers(
    stores: tuple[Store, Store],
) -> None:
    session = await ran(stores[0], ["done"])
    feed, agent_id = EventFeed(stores[1]), session.agent_id

    async def follow() -> None:
        async with asyncio.timeout(10), aclosing(feed.follow(agent_id)) as following:
            async for _ in following:
                await stores[0].delete(agent_id)
                again = await Session.open(stores[0], agent_with("done"), agent_id, create=True)
                await again.send("go")

    with pytest.raises(SessionNotFoundError):
        await follow()


class Streaming:
    """A model whose whole answer streams in at once, and is then complete."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    async def respond(self, request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        self._left -= 1
        for word in ("It ", "is ", "so."):
            yield TextDelta(word)
        asked = call("echo").tool_calls if self._left else ()
        yield ModelResponse("It is so.", asked)


@pytest.mark.parametrize("process", [0, 1])
@pytest.mark.parametrize("preset", ["minimal", "standard"])
async def test_followers_in_any_process_get_all_that_is_sent_live(
    stores: tuple[Store, Store], process: int, preset: str
) -> None:
    steps, found = 5, list[FeedItem]()
    agent = Agent(RespondingModel(Streaming(steps).respond), [echo], max_steps=steps)
    session = await Session.open(stores[0], agent)
    async with (
        asyncio.timeout(10),
        EventFeed(stores[process], getattr(BroadcastConfig, preset)()) as feed,
        aclosing(feed.follow(session.agent_id)) as following,
    ):
        waiting = asyncio.ensure_future(anext(following))
        await is_followed(stores[process], session.agent_id)
        await session.send("go")
        while not found or '"status":"completed"' not in found[-1].body:
            found += await waiting
            waiting = asyncio.ensure_future(anext(following))
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    text = ["agent.stream.chunk"] * 4 if preset == "standard" else []
    step = ["agent.step.started", *text, "agent.tool.started", "agent.tool.completed", "agent.step.completed"]
    last = ["agent.step.started", *text, "agent.step.completed", "agent.status"]
    assert events(found) == ["agent.status", *step * (steps - 1), *last]
    assert numbers(found) == list(range(1, session.state.execution.last_seq + 1))


async def is_followed(store: Store, agent_id: str) -> None:
    """Wait until the store receives the text of a session for its followers."""
    while True:
        receiver = live(store)._receiver
        if receiver is not None and agent_id in getattr(receiver, "_registered", receiver.followed):
            return
        await asyncio.sleep(0)
