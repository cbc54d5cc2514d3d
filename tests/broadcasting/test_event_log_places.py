"""Whoever shows the place where they left a session hears what came after it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.broadcasting.support import until
from tests.broadcasting.watching import Follower, Teller, add_session, is_chunk, seqs, settled
from whyloop.broadcasting import AgentEventEnvelopeAdapter, EventLog
from whyloop.broadcasting.places import place_of
from whyloop.errors import ConfigurationError, SessionNotFoundError
from whyloop.sessions.numbering import numbered_on
from whyloop.stores import MemoryStore, SqliteStore, Store
from whyloop.stores.records import Told
from whyloop.values.execution import Execution
from whyloop.values.state import AgentState


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """A store with one session, in which one need not wait long for news."""
    made: Store = MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "s.db")
    made.poll_seconds = 0.001
    async with made:
        await add_session(made)
        yield made


@pytest.fixture
async def log(store: Store) -> AsyncIterator[EventLog]:
    async with EventLog(store) as log:
        yield log


@pytest.mark.parametrize(
    ("after", "expected"),
    {
        None: [1, 2, 4, 1, 2, 5],
        "latest": [],
        "e1:2": [4, 1, 2, 5],
        "e1:3": [4, 1, 2, 5],
        "e1:0": [1, 2, 4, 1, 2, 5],
        "e1:4": [1, 2, 5],
        "e1:999": [1, 2, 5],
        "2": [5],
        "4": [5],
        "0": [1, 2, 5],
        ":2": [5],
        "9223372036854775807": [],
        "odd%3A%2F%20%0A%F0%9F%90%8D%00%25:1": [2, 5],
        "odd:/ \n🐍\0%25:2": [5],
        "unknown:3": [1, 2, 4, 1, 2, 5],
        "%zz:3": [1, 2, 4, 1, 2, 5],
        "%00%ff:3": [1, 2, 4, 1, 2, 5],
        "\ud800:3": [1, 2, 4, 1, 2, 5],
        "x" * 100_000 + ":3": [1, 2, 4, 1, 2, 5],
    }.items(),
    ids=lambda value: ascii(value)[:30],
)
async def test_it_goes_on_after_a_place(
    store: Store, log: EventLog, after: str | None, expected: list[int]
) -> None:
    Teller(log).tell("begin", "step", "chunk", "end")
    Teller(log, execution="odd:/ \n🐍\0%").tell("begin", "step", "chunk", "chunk", "end")
    await settled(log)
    assert seqs(await log.page("a", after)) == expected
    follower = Follower(log, after=after)
    await follower.hears(*expected)
    await until(lambda: log._channels)
    Teller(log, execution="e3", last=100).tell("begin")
    await follower.hears(*expected, 101)
    await follower.leave()


@pytest.mark.parametrize("after", [None, "latest", "3", "e1:3"])
async def test_of_a_session_that_nobody_told_of_all_is_heard(
    store: Store, log: EventLog, after: str | None
) -> None:
    assert await log.latest("a") is None
    assert await log.page("a", after) == ()
    follower = Follower(log, after=after)
    await until(lambda: log._channels)
    Teller(log, execution="e2").tell("begin", "chunk", "step")
    await follower.hears(1, 2, 3)
    await follower.leave()


async def test_every_envelope_can_be_shown_as_a_place(store: Store, log: EventLog) -> None:
    teller = Teller(log, execution="odd:/ \n🐍%")
    teller.tell("begin", "step", "chunk", "end")
    await settled(log)
    kept = await log.page("a")
    assert [seqs(await log.page("a", place_of(each))) for each in kept] == [[2, 4], [4], []]
    assert await log.latest("a") == place_of(kept[-1])
    assert place_of(kept[-1]).isascii()
    assert "\n" not in place_of(kept[-1])


@pytest.mark.parametrize(
    "after",
    [
        "",
        ":",
        "x",
        "e1",
        "e1:",
        "e1:x",
        "e1:-1",
        "-1",
        "+1",
        " 1",
        "1\n",
        "1.0",
        "0x10",
        "1_0",
        "\u0661",
        "²",
        "e1:1:",
        "Latest",
        "9223372036854775808",
        "9" * 19,
        "1" * 10_000,
        "0" * 10_000 + "1",
        "0" * 30 + "9" * 30,
        "e1:'; DROP TABLE events; --",
        "\0",
        "\ud800",
    ],
    ids=lambda after: ascii(after)[:30],
)
async def test_what_is_no_place_is_refused(store: Store, log: EventLog, after: str) -> None:
    Teller(log).tell("begin", "end")
    await settled(log)
    with pytest.raises(ConfigurationError, match="is no place in what was told of a session") as error:
        await log.page("a", after)
    assert len(str(error.value)) < 300
    with pytest.raises(ConfigurationError, match="is no place in what was told of a session"):
        await anext(aiter(log.follow("a", after)))
    assert len(log._channels) == 0


async def test_a_session_that_is_not_there_cannot_be_followed(log: EventLog) -> None:
    for attempt in (log.page("b"), log.latest("b"), log.page("b", "e1:3"), anext(aiter(log.follow("b")))):
        with pytest.raises(SessionNotFoundError, match="'b'"):
            await attempt
    assert len(log._channels) == 0


async def test_what_is_kept_late_is_heard_by_who_has_heard_greater_numbers(store: Store) -> None:
    async with EventLog(store) as first, EventLog(store) as second:
        teller = Teller(first)
        teller.tell("begin", "step")
        await settled(first)
        # Another process has taken the execution over, while the first still has some of it to keep.
        Teller(second, last=1000).tell("begin", "step")
        await settled(second)
        teller.tell("step", "pause")
        await settled(first)
        assert seqs(await first.page("a")) == [1, 2, 1001, 1002, 3, 4]
        expected = {"e1:2": [1001, 1002, 3, 4], "e1:1001": [1002, 3, 4], "e1:1002": [3, 4], "1002": [3, 4]}
        for after, heard in {**expected, "e1:999": [], "e1:3": [4], "e1:4": []}.items():
            assert seqs(await first.page("a", after)) == heard, after
            follower = Follower(second, after=after)
            await follower.hears(*heard)
            await follower.leave()


async def test_a_place_in_an_execution_that_is_numbered_again_from_one_is_where_it_was(store: Store) -> None:
    async with EventLog(store) as first, EventLog(store) as second:
        Teller(first).tell("begin", "step", "end of step", "pause")
        await settled(first)
        Teller(second).tell("begin", "step")
        await settled(second)
        assert seqs(await second.page("a", "e1:3")) == [4, 1, 2]
        assert seqs(await second.page("a", "e1:4")) == [1, 2]
        assert seqs(await second.page("a", "e1:2")) == []


async def test_a_third_process_goes_on_after_the_greatest_number_that_was_told(
    store: Store, log: EventLog
) -> None:
    teller = Teller(log)
    teller.tell("begin", "step")
    Teller(log, last=1000).tell("begin", "step")
    teller.tell("step", "pause")
    await settled(log)
    third = AgentEventEnvelopeAdapter(log)
    await numbered_on(third, store, AgentState(agent_id="a", execution=Execution("e1")))
    assert third.last("e1") > 1002


@pytest.mark.parametrize("seed", range(40))
async def test_whatever_place_somebody_leaves_at_they_hear_all_that_is_kept_once_and_in_order(
    seed: int,
) -> None:
    chance = random.Random(seed)
    store = MemoryStore()
    store.poll_seconds = 0.001
    await add_session(store)
    logs = [EventLog(store, recent=chance.choice([1, 3, 10, 500])) for _ in range(2)]
    heard: list[Told] = []
    place: str | None = None

    async def tell() -> None:
        log = logs[0]
        for execution in range(chance.randint(1, 4)):
            teller = Teller(log, execution=f"e{execution}")
            teller.tell("begin")
            for _ in range(chance.randint(0, 40)):
                teller.tell(chance.choice(["chunk", "chunk", "chunk", "step", "end of step"]))
                if chance.random() < 0.3:
                    await asyncio.sleep(chance.choice([0, 0, 0.001]))
                if chance.random() < 0.1:
                    teller.tell("pause")
                    await settled(log)
                    teller.log = log = chance.choice(logs)
                    teller.tell("begin")
            teller.tell("pause")
            await settled(log)
        Teller(log, execution="last").tell("end")
        await settled(log)

    telling = asyncio.create_task(tell())
    while not heard or heard[-1].execution_id != "last":
        log, most = chance.choice(logs), chance.randint(1, 25)
        following = log.follow("a", place)
        async with asyncio.timeout(10):
            async for told in following:
                # A connection may break in the middle of what was sent at once.
                heard += told[: chance.randint(1, len(told))]
                most -= 1
                if most < 1 or heard[-1] is not told[-1] or told[-1].execution_id == "last":
                    break
                await asyncio.sleep(chance.choice([0, 0, 0, 0.002]))
        await following.aclose()
        place = place_of(heard[-1])
    await telling

    kept = await store.events("a", limit=10_000)
    assert [each for each in heard if not is_chunk(each)] == list(kept)
    numbers = [(each.execution_id, each.seq) for each in heard]
    assert len(set(numbers)) == len(numbers)
    for execution in {name for name, _ in numbers}:
        own = [seq for name, seq in numbers if name == execution]
        assert own == sorted(own)
    for log in logs:
        await log.close()
        assert len(log._channels) == 0
        assert log.dropped == {}
