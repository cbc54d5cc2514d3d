"""Sessions that are deleted, created again or not there, while somebody tells of them or follows."""

from __future__ import annotations

import pytest

from tests.broadcasting.shaky import ShakyStore
from tests.broadcasting.support import until
from tests.broadcasting.watching import LATER, Follower, Teller, add_session, is_chunk, seqs, settled
from tests.support import echo, scripted
from whyloop.broadcasting import AgentEventEnvelopeAdapter, EventLog
from whyloop.errors import SessionNotFoundError
from whyloop.stores.records import Told
from whyloop.testing import call


async def test_a_session_that_is_deleted_is_followed_no_more(store: ShakyStore, log: EventLog) -> None:
    followers, teller = [Follower(log), Follower(log)], Teller(log)
    teller.tell("begin", "chunk", "end")
    for follower in followers:
        await follower.hears(1, 2, 3)
    await store.delete("a")
    for follower in followers:
        with pytest.raises(SessionNotFoundError, match="'a'"):
            await follower.ends()
    teller.tell("step")
    await settled(log)
    assert log.dropped == {"agent.step.started": 1}
    assert len(log._channels) == 0


async def test_a_session_that_was_created_again_is_another_session(store: ShakyStore, log: EventLog) -> None:
    follower, teller = Follower(log), Teller(log)
    teller.tell("begin", "step", "end")
    await follower.hears(1, 2, 3)
    await store.delete("a")
    await add_session(store)
    Teller(log, execution="e2").tell("begin", "chunk")
    with pytest.raises(SessionNotFoundError):
        await follower.ends()
    again = Follower(log, after=follower.place)
    await again.gets_to(1)
    assert [each.execution_id for each in again.heard if not is_chunk(each)] == ["e2"]
    await again.leave()


async def test_of_a_session_that_was_cut_off_and_created_again_all_is_heard(
    store: ShakyStore, log: EventLog
) -> None:
    Teller(log).tell("begin", "step", "chunk", "step", "step")
    await settled(log)
    await store.delete("a")
    await add_session(store)
    Teller(log, execution="e2").tell("begin", "step", "chunk")
    await settled(log)
    follower = Follower(log)
    await follower.hears(1, 2, 3)
    assert {each.execution_id for each in follower.heard} == {"e2"}
    await follower.leave()


async def test_a_session_that_is_not_in_the_store_is_dropped_and_breaks_nothing(
    store: ShakyStore, log: EventLog, caplog: pytest.LogCaptureFixture
) -> None:
    agent = scripted(call("echo", {"value": "x"}), "done", tools=[echo])
    agent.subscribe(AgentEventEnvelopeAdapter(log))
    state = await agent.run("go")
    Teller(log).tell("begin", "end")
    await settled(log)
    assert state.status == "completed"
    assert log.dropped["agent.status"] == 2
    assert sum(log.dropped.values()) > 4
    assert f"there is no session {state.agent_id!r}" in caplog.text
    assert seqs(await log.page("a")) == [1, 2]
    assert len(log._channels) == 0


@pytest.mark.parametrize("last", ["chunk", "end of step"])
async def test_what_is_remembered_of_a_session_that_was_deleted_is_nobodys_to_hear(
    store: ShakyStore, log: EventLog, last: str
) -> None:
    Teller(log).tell("begin", "step", last)
    await settled(log)
    assert len(log._channels) == 1
    await store.delete("a")
    await add_session(store)
    again = Follower(log)
    await until(lambda: len(log._channels) == 1)
    Teller(log, execution="e2").tell("begin", "chunk")
    await again.hears(1, 2)
    await again.leave()


async def heard_before_it_ended(follower: Follower) -> list[tuple[str, int]]:
    """What somebody heard of a session that was there no more at the end."""
    with pytest.raises(SessionNotFoundError, match="'a'"):
        await follower.ends()
    return [(each.execution_id, each.seq) for each in follower.heard]


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("told", ["in this process", "in another"])
async def test_who_follows_a_session_hears_nothing_of_another_that_gets_its_id(
    store: ShakyStore, log: EventLog, told: str, before: int
) -> None:
    """There is more to hear of the other one, so that nothing but its beginning tells them apart."""
    if told == "in this process":
        store.poll_seconds = 3600
    async with EventLog(store) as other:
        Teller(log).tell(*["step"] * before)
        follower = Follower(log)
        await follower.hears(*range(1, before + 1))
        await until(lambda: len(log._channels))
        await store.delete("a")
        await add_session(store, at=LATER)
        teller = Teller(log if told == "in this process" else other, execution="e2")
        teller.tell("begin", "step", "chunk", "step", "end")
        assert await heard_before_it_ended(follower) == [("e1", seq) for seq in range(1, before + 1)]
        await settled(log, other)
        assert seqs(await store.events("a")) == [1, 2, 4, 5]
        assert log.dropped == other.dropped == {}
    assert len(log._channels) == 0


async def test_who_comes_for_the_other_session_gets_no_channel_of_the_first(
    store: ShakyStore, log: EventLog
) -> None:
    store.poll_seconds = 3600
    first = Follower(log)
    Teller(log).tell("begin", "step", "chunk")
    await first.hears(1, 2, 3)
    await store.delete("a")
    await add_session(store, at=LATER)
    await store.add_events("a", [Told("e2", seq, '{"event":"x"}') for seq in (1, 2, 3)])
    second = Follower(log)
    await second.hears(1, 2, 3)
    assert {each.execution_id for each in second.heard} == {"e2"}
    assert await heard_before_it_ended(first) == [("e1", 1), ("e1", 2), ("e1", 3)]
    Teller(log, execution="e2", last=3).tell("chunk", "step")
    await second.hears(1, 2, 3, 4, 5)
    await second.leave()


async def test_who_is_slow_finds_nothing_of_another_session_in_the_store(store: ShakyStore) -> None:
    async with EventLog(store, recent=2) as log, EventLog(store) as other:
        follower, teller = Follower(log), Teller(log)
        teller.tell("begin")
        await follower.hears(1)
        follower.reads.clear()
        teller.tell("step")
        await follower.hears(1, 2)
        teller.tell("step", "step", "step", "step")
        await settled(log)
        await store.delete("a")
        await add_session(store, at=LATER)
        Teller(other, execution="e2").tell(*["step"] * 5)
        await settled(other)
        follower.reads.set()
        assert await heard_before_it_ended(follower) == [("e1", 1), ("e1", 2)]


async def test_nothing_is_remembered_of_sessions_that_were_deleted_at_work(
    store: ShakyStore, log: EventLog
) -> None:
    for name in ("b", "c", "d"):
        await add_session(store, name)
        teller = Teller(log, name)
        teller.tell("begin", "step", "chunk", "chunk")
        await settled(log)
        assert len(log._channels) == 1
        await store.delete(name)
        teller.tell("end")
        await settled(log)
        assert len(log._channels) == 0
    assert log.dropped == {"agent.status": 3}
