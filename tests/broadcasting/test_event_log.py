"""What is told of a session is replayed and followed: nothing that is kept is missed or doubled."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from tests.broadcasting.support import until
from tests.broadcasting.watching import Follower, Teller, add_session, is_chunk, seqs, settled
from tests.support import echo, scripted
from whyloop import Session
from whyloop.broadcasting import AgentEventEnvelopeAdapter, BroadcastConfig, EventLog
from whyloop.broadcasting.places import place_of
from whyloop.errors import ConfigurationError, SessionNotFoundError
from whyloop.stores import MemoryStore, SqliteStore, Store
from whyloop.stores.records import Told
from whyloop.testing import call


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


# Following


async def test_who_follows_nearby_gets_chunks_and_all_in_order(store: Store, log: EventLog) -> None:
    follower, teller = Follower(log), Teller(log)
    teller.tell("begin", "step", "chunk", "chunk")
    await follower.hears(1, 2, 3, 4)
    teller.tell("chunk", "end of step", "step", "chunk", "end of step", "end")
    await follower.hears(*range(1, 11))
    assert [is_chunk(each) for each in follower.heard].count(True) == 4
    assert [each.position for each in follower.heard] == [1, 2, 2, 2, 2, 3, 4, 4, 5, 6]
    assert msgspec.json.decode(follower.heard[4].body)["seq"] == 5
    await follower.leave()


async def test_who_follows_in_another_process_gets_all_but_chunks(store: Store, log: EventLog) -> None:
    async with EventLog(store) as other:
        follower, teller = Follower(other), Teller(log)
        teller.tell("begin", "step", "chunk", "chunk", "end of step")
        await follower.hears(1, 2, 5)
        teller.tell("step", "chunk", "end")
        await follower.hears(1, 2, 5, 6, 8)
        assert [each.position for each in follower.heard] == [1, 2, 3, 4, 5]
        await follower.leave()


async def test_every_follower_hears_everything_once(store: Store, log: EventLog) -> None:
    teller, followers = Teller(log), []
    for kind in ("begin", "step", "chunk", "chunk", "end of step", "end"):
        followers.append(Follower(log))
        teller.tell(kind)
        await settled(log)
    for follower in followers:
        await follower.hears(*range(1, 7))
        await follower.leave()


async def test_a_run_is_followed_as_it_goes(store: Store, log: EventLog) -> None:
    agent = scripted(call("echo", {"value": "x"}), "done and dusted", tools=[echo])
    events = AgentEventEnvelopeAdapter(log, BroadcastConfig.debug())
    session = await Session.open(store, agent, events=events)
    follower = Follower(log, session.agent_id)
    await session.send("go")
    await until(lambda: follower.heard and '"completed","previous' in follower.heard[-1].body)
    assert follower.seqs == list(range(1, len(follower.heard) + 1))
    kept = await log.page(session.agent_id)
    assert list(kept) == [each for each in follower.heard if not is_chunk(each)]
    assert len(kept) < len(follower.heard)
    assert log.dropped == {}
    await follower.leave()


async def test_a_late_follower_gets_the_chunks_of_the_step_under_way(store: Store, log: EventLog) -> None:
    teller = Teller(log)
    teller.tell("begin", "step", "chunk", "end of step")
    await settled(log)
    teller.tell("step", "chunk", "chunk")
    await settled(log)
    follower = Follower(log)
    await follower.hears(1, 2, 4, 5, 6, 7)
    teller.tell("chunk", "end of step")
    await follower.hears(1, 2, 4, 5, 6, 7, 8, 9)
    await follower.leave()


async def test_a_reconnect_in_the_middle_of_a_step_misses_and_doubles_nothing(
    store: Store, log: EventLog
) -> None:
    teller, follower = Teller(log), Follower(log)
    teller.tell("begin", "step", "chunk", "chunk")
    await follower.hears(1, 2, 3, 4)
    await follower.leave()
    assert follower.place == "e1:4"
    teller.tell("chunk", "chunk")
    await settled(log)
    again = Follower(log, after=follower.place)
    await again.hears(5, 6)
    await again.leave()
    # A step that has ended needs its chunks no more.
    teller.tell("chunk", "end of step")
    await settled(log)
    teller.tell("step", "chunk")
    await settled(log)
    for after, expected in {"e1:6": [8, 9, 10], "e1:8": [9, 10], "e1:10": []}.items():
        last = Follower(log, after=after)
        teller.tell("chunk")
        await last.hears(*expected, *range(11, teller.last + 1))
        await last.leave()


async def test_who_is_too_slow_loses_chunks_and_nothing_else(store: Store) -> None:
    async with EventLog(store, recent=5) as log:
        follower, teller = Follower(log), Teller(log)
        teller.tell("begin")
        await follower.hears(1)
        follower.reads.clear()
        for _ in range(30):
            teller.tell("step", "chunk", "chunk", "chunk", "end of step")
            await settled(log)
        follower.reads.set()
        kept = [each.seq for each in await store.events("a")]
        await until(lambda: follower.seqs[-1:] == kept[-1:])
        assert [each.seq for each in follower.heard if not is_chunk(each)] == kept
        assert follower.seqs == sorted(set(follower.seqs))
        assert len(follower.heard) < teller.last
        # From here on it keeps up again.
        heard = len(follower.heard)
        teller.tell("step", "chunk", "chunk")
        await until(lambda: follower.seqs[heard:] == [teller.last - 2, teller.last - 1, teller.last])
        await follower.leave()


async def test_so_many_chunks_that_some_are_forgotten_are_no_loss_of_those_that_are_left(
    store: Store,
) -> None:
    async with EventLog(store, recent=5) as log:
        teller = Teller(log)
        teller.tell("begin", *["chunk"] * 20)
        await settled(log)
        for after, expected in {"e1:3": range(17, 22), "e1:19": range(20, 22)}.items():
            follower = Follower(log, after=after)
            await follower.hears(*expected)
            await follower.leave()


async def test_chunks_of_executions_side_by_side_are_all_heard_once(store: Store, log: EventLog) -> None:
    outer, inner = Teller(log), Teller(log, execution="e2")
    outer.tell("begin", "chunk", "chunk")
    await settled(log)
    follower = Follower(log, after="e1:2")
    await follower.hears(3)
    inner.tell("chunk")
    await follower.hears(3, 1)
    outer.tell("chunk")
    inner.tell("chunk")
    await follower.hears(3, 1, 4, 2)
    await follower.leave()


async def test_two_processes_that_tell_in_turn_are_heard_in_order_in_both(store: Store) -> None:
    async with EventLog(store) as one, EventLog(store) as two:
        followers = Follower(one), Follower(two)
        for turn in range(6):
            teller = Teller([one, two][turn % 2], last=turn * 5)
            teller.tell("begin", "step", "chunk", "end of step", "pause")
            await settled(teller.log)
        kept = [seq for seq in range(1, 31) if seq % 5 != 3]
        chunks = [3, 13, 23], [8, 18, 28]
        for follower, near in zip(followers, chunks, strict=True):
            await follower.gets_to(30)
            assert [seq for seq in follower.seqs if seq % 5 != 3] == kept
            assert follower.seqs == sorted(follower.seqs)
            assert [seq for seq in follower.seqs if seq % 5 == 3] == near
            await follower.leave()


async def test_what_the_store_has_and_the_channel_not_yet_is_heard_once(store: Store, log: EventLog) -> None:
    await store.add_events("a", [Told("e1", seq, "{}") for seq in range(1, 4)])
    first = Follower(log)
    await first.hears(1, 2, 3)
    # Another process tells, and others are quicker to read it than the one who feeds the channel.
    (channel,) = log._channels._channels.values()
    async with channel.lock:
        await store.add_events("a", [Told("e1", seq, "{}") for seq in range(4, 8)])
        second, third = Follower(log), Follower(log, after="e1:6")
        await second.hears(*range(1, 8))
        await until(lambda: channel.followers == 3)
    await first.hears(*range(1, 8))
    await store.add_events("a", [Told("e1", 8, "{}")])
    await first.hears(*range(1, 9))
    await second.hears(*range(1, 9))
    await third.hears(7, 8)
    for follower in (first, second, third):
        await follower.leave()


async def test_a_long_log_is_replayed_page_by_page(store: Store, log: EventLog) -> None:
    await store.add_events("a", [Told("e1", seq, '{"event":"x"}') for seq in range(1, 351)])
    follower = Follower(log)
    await follower.hears(*range(1, 351))
    await follower.leave()
    assert seqs(await log.page("a")) == list(range(1, 101))
    assert seqs(await log.page("a", "e1:340", limit=4)) == [341, 342, 343, 344]


async def test_two_hundred_sessions_are_told_of_at_once(store: Store, log: EventLog) -> None:
    names = [f"session {n}" for n in range(200)]
    await add_session(store, *names)
    followers = [Follower(log, name) for name in names]
    tellers = [Teller(log, name, execution=f"execution of {name}") for name in names]
    for kinds in (["begin", "step", "chunk"], ["chunk", "end of step", "end"]):
        for teller in tellers:
            teller.tell(*kinds)
        await settled(log)
    for teller, follower in zip(tellers, followers, strict=True):
        await follower.gets_to(6)
        assert follower.seqs == sorted(set(follower.seqs))
        assert {1, 2, 5, 6} <= set(follower.seqs)
        assert {each.execution_id for each in follower.heard} == {teller.execution}
        await follower.leave()
    assert log.dropped == {}
    assert len(log._channels) == 0


# Places


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


# Whatever happens


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
