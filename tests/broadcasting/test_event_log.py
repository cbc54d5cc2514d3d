"""What is told of a session is replayed and followed: nothing that is kept is missed or doubled."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from tests.broadcasting.support import until
from tests.broadcasting.watching import Follower, Teller, add_session, is_chunk, seqs, settled
from tests.support import echo, scripted
from whyloop import Session
from whyloop.broadcasting import AgentEventEnvelopeAdapter, BroadcastConfig, EventLog
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


async def test_a_late_follower_gets_the_chunks_of_the_step_under_way_and_of_the_one_before(
    store: Store, log: EventLog
) -> None:
    teller = Teller(log)
    teller.tell("begin", "step", "chunk", "end of step")
    await settled(log)
    teller.tell("step", "chunk", "end of step")
    await settled(log)
    teller.tell("step", "chunk", "chunk")
    await settled(log)
    follower = Follower(log)
    await follower.hears(1, 2, 4, 5, 6, 7, 8, 9, 10)
    teller.tell("chunk", "end of step")
    await follower.hears(1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12)
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
    # A step that has just ended may be what somebody missed the last word of.
    teller.tell("chunk", "end of step")
    await settled(log)
    teller.tell("step", "chunk")
    await settled(log)
    for after, expected in {"e1:6": [7, 8, 9, 10], "e1:8": [9, 10], "e1:10": []}.items():
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
    # Another process tells, and somebody comes who knows of it before the one who feeds the channel.
    (channel,) = log._channels._channels.values()
    async with channel.lock:
        await store.add_events("a", [Told("e1", seq, "{}") for seq in range(4, 8)])
        second, third = Follower(log), Follower(log, after="e1:6")
        await second.hears(1, 2, 3)
        await until(lambda: channel.followers == 3)
    await first.hears(*range(1, 8))
    await second.hears(*range(1, 8))
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
