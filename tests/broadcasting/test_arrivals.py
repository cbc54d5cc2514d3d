"""A follower gets everything once and in order, whichever way it arrives."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path
from random import Random

import pytest

from tests.broadcasting.arrivals import Connection, FeedSource, HttpSource, Place, problems_of, write
from tests.broadcasting.support import until
from tests.server.recorded import Recorder, new_session
from tests.server.streams_support import stage
from tests.support import seeds, two_stores
from whyloop.broadcasting import EventFeed
from whyloop.broadcasting.feed import Cursor, FeedItem
from whyloop.stores import Store
from whyloop.stores.live import live


@pytest.fixture(params=["memory", "sqlite"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Store, Store]:
    """Two store objects on the same sessions, as two processes have them."""
    return two_stores(request.param, tmp_path)


def places(items: list[FeedItem]) -> list[tuple[str, int, bool]]:
    return [(item.execution_id, item.seq, item.is_numbered) for item in items]


async def heard(feed: EventFeed, after: Cursor | None, last: Cursor) -> list[FeedItem]:
    """Everything that a follower gets up to a numbered envelope."""
    found: list[FeedItem] = []
    async with asyncio.timeout(10), aclosing(feed.follow("a", after)) as following:
        async for items in following:
            found += items
            if any(item.is_numbered and item.cursor == last for item in items):
                break
    return found


async def test_a_follower_that_returns_while_news_is_read_gets_it_once(
    stores: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = stores[0]
    await new_session(store)
    recorder = Recorder(store)
    await recorder.record("begin", "chunk")
    reading, go_on = asyncio.Event(), asyncio.Event()

    async def catch_up() -> None:
        reading.set()
        await go_on.wait()

    async with EventFeed(store) as feed, aclosing(feed.follow("a")) as first:
        assert places(list(await anext(first))) == [("e1", 1, True)]
        monkeypatch.setattr(live(store), "catch_up", catch_up)
        waiting = asyncio.ensure_future(anext(first))
        await asyncio.sleep(0)
        await recorder.record("chunk", "step")
        await asyncio.wait_for(reading.wait(), 10)
        returning = asyncio.create_task(heard(feed, Cursor("e1", 1), Cursor("e1", 3)))
        await until(lambda: next(iter(feed._channels.values())).followers == 2)
        for _ in range(20):
            await asyncio.sleep(0)
        go_on.set()
        await recorder.record("step")
        found = await returning
        await waiting
    assert [place for place in places(found) if place[2]] == [("e1", 2, True), ("e1", 3, True)]


async def test_a_follower_that_read_further_gets_only_what_is_later(stores: tuple[Store, Store]) -> None:
    store, other = stores
    await new_session(store)
    recorder = Recorder(store)
    await recorder.record("begin")
    async with EventFeed(store) as feed, aclosing(feed.follow("a")) as first:
        await anext(first)
        text = asyncio.ensure_future(anext(first))
        await asyncio.sleep(0)
        await recorder.record("chunk")
        assert places(list(await text)) == [("e1", 1, False)]
        # Nobody says that this was recorded, so it is found a little later than by those who read.
        await Recorder(other).record("step", "step")
        after = await feed.latest("a")
        arriving = asyncio.create_task(heard(feed, after, Cursor("e1", 4)))
        for _ in range(5):
            await asyncio.sleep(0)
        await recorder.record("step")
        assert places(await arriving) == [("e1", 4, True)]


@pytest.mark.parametrize("process", [0, 1])
@seeds(5)
async def test_random_followers_get_everything_once_and_in_order(
    stores: tuple[Store, Store], process: int, seed: int
) -> None:
    random = Random(seed)
    await new_session(stores[0])
    recorder = Recorder(stores[process])
    async with (
        EventFeed(stores[0], recent=random.choice((3, 20, 500)), linger_seconds=0.01) as feed,
        FeedSource(feed).connect(None),
    ):
        writing = write(recorder, random, 12)
        assert await problems_of(FeedSource(feed), writing, random, followers=12) == []


@pytest.mark.parametrize("way", ["events", "socket"])
@seeds(2)
async def test_random_clients_get_everything_once_and_in_order(
    stores: tuple[Store, Store], way: str, seed: int
) -> None:
    random = Random(seed)
    async with stage(stores[0], linger=0.01) as a:
        writing = a.server.do(lambda: write(a.recorder, random, 8))
        assert await problems_of(HttpSource(a, way), writing, random, followers=6) == []


def test_a_wrong_order_is_a_problem() -> None:
    recorded = [Place("e", 1), Place("e", 2), Place("f", 1)]

    def envelope(execution: str, seq: int, chunk: int | None = None) -> dict[str, object]:
        name = "agent.status" if chunk is None else "agent.stream.chunk"
        return {"event": name, "execution_id": execution, "seq": seq, "data": {"chunk_index": chunk}}

    good = [envelope("e", 2), envelope("e", 2, 0), envelope("e", 2, 1), envelope("f", 1)]
    assert Connection(Place("e", 1), good).problem(recorded) is None
    for bad in ([envelope("e", 1)], [good[0], good[0]], [good[3]], [*good, good[1]], [*good[:3], good[2]]):
        assert Connection(Place("e", 1), bad).problem(recorded)
