"""The store in memory beyond the contract: use from any thread, and its own clock."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from threading import Event, Thread, get_ident

import pytest

from whyloop.errors import ConfigurationError, ConflictError, SessionRunningError, StoreError
from whyloop.stores import Chunk, MemoryStore, SessionFilter, Summary
from whyloop.stores.listing import cursor_of, position
from whyloop.testing import FakeClock
from whyloop.testing.store_checks import journal
from whyloop.values.state import AgentStatus

START = datetime(2026, 1, 1, tzinfo=UTC)


def summary(agent_id: str = "a", started_at: datetime = START, **metadata: object) -> Summary:
    return Summary(agent_id, AgentStatus.PENDING, started_at, started_at, metadata=metadata)


def in_threads(*work: object) -> list[object]:
    """What each coroutine returned or raised, each run by an event loop in a thread of its own."""

    def outcome(coroutine: object) -> object:
        try:
            return asyncio.run(coroutine)  # type: ignore[arg-type]
        except StoreError as error:
            return type(error)

    with ThreadPoolExecutor(len(work)) as pool:
        return list(pool.map(outcome, work))


def test_of_threads_that_write_at_one_version_one_wins() -> None:
    store = MemoryStore()
    asyncio.run(store.create(summary(), []))
    for version in range(20):
        outcomes = in_threads(*(store.append("a", journal(str(n)), after=version) for n in range(8)))
        assert outcomes.count(None) == 1
        assert outcomes.count(ConflictError) == 7
    assert asyncio.run(store.read("a")).summary.version == 20


def test_of_threads_that_want_a_lease_one_gets_it() -> None:
    store = MemoryStore()
    asyncio.run(store.create(summary(), []))
    outcomes = in_threads(*(store.acquire("a", str(n), 30) for n in range(8)))
    assert outcomes.count(SessionRunningError) == 7


def test_threads_list_while_others_create() -> None:
    store = MemoryStore()

    async def create(prefix: str) -> None:
        for n in range(200):
            await store.create(summary(f"{prefix}{n}"), [])

    async def look() -> None:
        for _ in range(50):
            await store.find(SessionFilter(), limit=10, after=None)

    assert in_threads(create("a"), look(), create("b"), look()) == [None] * 4
    page = asyncio.run(store.find(SessionFilter(), limit=1000, after=None))
    assert len(page.sessions) == 400


async def test_without_a_clock_it_uses_that_of_the_machine() -> None:
    store = MemoryStore()
    await store.create(summary(), [])
    await store.acquire("a", "one", 3600)
    with pytest.raises(SessionRunningError) as refused:
        await store.acquire("a", "two", 3600)
    assert 3590 < refused.value.seconds <= 3600


async def test_a_lease_that_lies_too_far_ahead_has_lapsed() -> None:
    clock = FakeClock()
    store = MemoryStore(clock)
    await store.create(summary(), [])
    await store.acquire("a", "one", 30)
    clock.advance(-30)
    with pytest.raises(SessionRunningError):
        await store.acquire("a", "two", 30)
    clock.advance(-1)
    assert (await store.acquire("a", "two", 30)).owner == "two"


async def test_metadata_that_is_not_json_is_refused_and_nothing_is_stored() -> None:
    store = MemoryStore()
    with pytest.raises(ConfigurationError, match="JSON"):
        await store.create(summary(broken=object()), [])
    await store.create(summary(), journal("one"))
    with pytest.raises(ConfigurationError, match="JSON"):
        await store.append("a", journal("two"), after=1, summary=summary(broken=object()))
    assert (await store.read("a")).entries == ("one",)


async def test_a_limit_that_shows_nothing_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="invalid limit 0"):
        await MemoryStore().find(SessionFilter(), limit=0, after=None)


@pytest.mark.parametrize("agent_id", ["a", "", 'quo"ted', "日本 \U0001f600\u202e", "x" * 500, "../a+b/=="])
def test_a_cursor_is_plain_text_that_names_a_session(agent_id: str) -> None:
    moment = datetime(2026, 1, 1, 3, 4, 5, 6, tzinfo=timezone(timedelta(hours=5)))
    cursor = cursor_of(summary(agent_id, moment))
    assert cursor.isascii()
    assert cursor.replace("-", "").replace("_", "").isalnum()
    started_at, found = position(cursor)
    assert (started_at, found) == (moment, agent_id)
    assert started_at.tzinfo is UTC


def written(content: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).decode()


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "x",
        "!!!!",
        "é",
        "\ud800",
        "A" * 1000,
        cursor_of(summary())[:-4],
        written([]),
        written(["2026-01-01T00:00:00+00:00"]),
        written(["2026-01-01T00:00:00+00:00", 1]),
        written(["2026-01-01T00:00:00", "a zone is missing"]),
        written(["0001-01-01T00:00:00+14:00", "before the first year"]),
        written(["yesterday", "a"]),
        written({"started_at": "2026-01-01T00:00:00+00:00"}),
        7,
    ],
)
def test_an_invalid_cursor_is_refused(cursor: object) -> None:
    with pytest.raises(ConfigurationError, match="invalid cursor") as refused:
        position(cursor)  # type: ignore[arg-type]
    assert len(str(refused.value)) < 250


# Two stores beside each other


async def test_stores_beside_each_other_have_the_same_sessions_and_clock() -> None:
    clock = FakeClock()
    store = MemoryStore(clock)
    other = MemoryStore(beside=store)
    await store.create(summary(), journal("one"))
    assert (await other.read("a")).entries == ("one",)
    assert other.now() == clock.now()
    assert (await MemoryStore().find(SessionFilter(), limit=9, after=None)).sessions == ()


async def test_a_closed_store_is_dead_and_of_use_again() -> None:
    store = MemoryStore()
    other = MemoryStore(beside=store)
    await store.create(summary(), [])
    await store.acquire("a", "one", 3600)
    await store.close()
    lease = await other.acquire("a", "two", 3600)
    await other.release(lease)
    await store.acquire("a", "three", 3600)
    assert (await other.read("a")).summary.runner == "three"


async def test_a_store_that_is_garbage_is_dead() -> None:
    store = MemoryStore()
    other = MemoryStore(beside=store)
    await store.create(summary(), [])
    await other.acquire("a", "one", 3600)
    assert (await store.read("a")).summary.runner == "one"
    del other
    gc.collect()
    assert (await store.read("a")).summary.runner is None


def test_chunks_are_delivered_on_the_event_loop_of_their_receiver() -> None:
    store = MemoryStore()
    other = MemoryStore(beside=store)
    ready, threads = Event(), list[int]()

    async def receive() -> None:
        done = asyncio.Event()

        def deliver(chunks: Sequence[Chunk]) -> None:
            threads.append(get_ident())
            done.set()

        async with other.receive_chunks(deliver) as receiver:
            receiver.follow("a")
            ready.set()
            await done.wait()

    receiving = Thread(target=asyncio.run, args=(receive(),))
    receiving.start()
    ready.wait()
    asyncio.run(store.send_chunks([Chunk("a", "x")]))
    receiving.join()
    assert threads == [receiving.ident]


def test_a_receiver_whose_event_loop_is_gone_disturbs_no_sender() -> None:
    store = MemoryStore()
    receiver = MemoryStore(beside=store).receive_chunks(lambda _: None)
    asyncio.run(receiver.__aenter__())
    receiver.follow("a")
    asyncio.run(store.send_chunks([Chunk("a", "x")]))
