"""What is left behind by those who leave, and by logs and event loops that end."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.broadcasting.shaky import ShakyStore, SlowStore
from tests.broadcasting.support import until
from tests.broadcasting.watching import Follower, Teller, add_session, seqs, settled
from tests.support import echo, scripted
from whyloop import Session
from whyloop.broadcasting import AgentEventEnvelopeAdapter, EventLog, channels
from whyloop.testing import call


async def test_a_log_that_is_closed_ends_those_who_follow_when_they_have_heard_all(
    store: ShakyStore,
) -> None:
    log = EventLog(store)
    quick, slow, teller = Follower(log), Follower(log), Teller(log)
    teller.tell("begin")
    await quick.hears(1)
    await slow.hears(1)
    slow.reads.clear()
    teller.tell("step")
    await slow.hears(1, 2)
    teller.tell("chunk", "end of step", "chunk")
    await log.close()
    await quick.ends()
    slow.reads.set()
    await slow.ends()
    assert quick.seqs == slow.seqs == [1, 2, 3, 4, 5]
    assert len(log._channels) == 0
    late = Follower(log, after="e1:1")
    await late.ends()
    assert late.seqs == [2, 4]
    assert len(log._channels) == 0
    assert log.dropped == {}
    teller.tell("end")
    assert log.dropped == {"agent.status": 1}


async def test_a_log_that_is_closed_ends_those_who_wait_for_another_process(store: ShakyStore) -> None:
    log = EventLog(store)
    follower = Follower(log)
    await until(lambda: log._channels)
    await log.close()
    await follower.ends()
    assert follower.heard == []


async def test_nothing_is_left_behind(store: ShakyStore, log: EventLog) -> None:
    before = asyncio.all_tasks()
    session = await Session.open(
        store,
        scripted(call("echo", {"value": "x"}), "done", tools=[echo]),
        events=AgentEventEnvelopeAdapter(log),
    )
    followers = [Follower(log, session.agent_id) for _ in range(3)]
    await session.send("go")
    await settled(log)
    assert len(log._channels) == 1
    for follower in followers:
        await follower.leave()
    assert len(log._channels) == 0
    others = {task.get_name() for task in asyncio.all_tasks() - before}
    assert "whyloop event log" not in others


async def test_the_chunks_of_many_sessions_at_work_are_remembered(
    store: ShakyStore, log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "_MOST", 10)
    names = [f"session {n}" for n in range(12)]
    await add_session(store, *names)
    for name in names[:8]:
        Teller(log, name).tell("begin", "chunk")
    await settled(log)
    assert len(log._channels) == 8
    first = Follower(log, names[0])
    await first.hears(1, 2)
    for name in names[8:]:
        Teller(log, name).tell("begin", "chunk")
    await settled(log)
    assert len(log._channels) == 11  # One is too many, and somebody follows it.
    assert [name for name in names if name not in {name for _, name in log._channels._channels}] == names[1:2]
    await first.leave()


def test_a_log_serves_one_event_loop_after_another(caplog: pytest.LogCaptureFixture) -> None:
    store = ShakyStore()
    log = EventLog(store)

    async def work(last: int) -> list[int]:
        if not last:
            await add_session(store)
        follower = Follower(log)
        Teller(log, last=last).tell("begin", "chunk", "pause")
        await follower.gets_to(last + 3)
        await follower.leave()
        return follower.seqs

    assert asyncio.run(work(0)) == [1, 2, 3]
    assert asyncio.run(work(3)) == [1, 3, 4, 5, 6]
    asyncio.run(log.close())
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize("when", ["before", "after"])
def test_what_was_kept_when_its_event_loop_ended_is_not_kept_again_by_the_next(
    when: str, inline: bool
) -> None:
    store = SlowStore(inline=inline)
    log = EventLog(store)

    async def is_cut_off() -> None:
        await add_session(store, "a", "b", "c")
        getattr(store, f"slow_{when}").add("b")
        for session in ("a", "b", "c"):
            Teller(log, session).tell("begin", "chunk", "step")
        await until(lambda: store.under_way)

    async def goes_on() -> None:
        store.go_on.set()
        for session in ("a", "b", "c"):
            Teller(log, session, last=3).tell("chunk", "end")
        await settled(log)

    asyncio.run(is_cut_off())
    asyncio.run(goes_on())
    for session in ("a", "b", "c"):
        assert seqs(asyncio.run(store.events(session))) == [1, 3, 5]
    asyncio.run(log.close())
    assert log.dropped == {}


async def test_who_comes_while_the_last_one_leaves_hears_all_in_order() -> None:
    """The first envelope is on its way to the store at that moment."""
    store = SlowStore()
    await add_session(store)
    store.slow_before.add("a")
    async with EventLog(store) as log:
        one, teller = Follower(log), Teller(log)
        await until(lambda: len(log._channels))
        teller.tell("begin", "chunk")
        await until(lambda: store.under_way)
        await one.leave()
        two = Follower(log)
        await until(lambda: [each.followers for each in log._channels._channels.values()] == [1])
        store.go_on.set()
        await settled(log)
        teller.tell("chunk", "step")
        await two.hears(1, 2, 3, 4)
        await two.leave()
        again = Follower(log, after="e1:3")
        teller.tell("step")
        await again.hears(4, 5)
        await again.leave()
