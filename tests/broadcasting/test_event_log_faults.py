"""An event log in a world where stores fail."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.broadcasting.shaky import AWAY, ShakyStore
from tests.broadcasting.support import envelope, until
from tests.broadcasting.watching import Follower, Teller, add_session, seqs, settled
from tests.support import echo, scripted
from whyloop import Session
from whyloop.broadcasting import AgentEventEnvelopeAdapter, EventLog
from whyloop.errors import StoreError
from whyloop.stores import MemoryStore, SqliteStore
from whyloop.stores.records import Told
from whyloop.testing import call


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("times", [1, 3])
async def test_a_store_that_fails_for_a_while_is_tried_again_and_nothing_is_lost_or_doubled(
    store: ShakyStore, log: EventLog, when: str, times: int
) -> None:
    follower, teller = Follower(log), Teller(log)
    teller.tell("begin", "chunk")
    await follower.hears(1, 2)
    getattr(store, when)["add_events"] = [AWAY] * times
    teller.tell("step", "chunk", "end of step")
    teller.tell("end")
    await settled(log)
    assert seqs(await store.events("a")) == [1, 3, 5, 6]
    await follower.gets_to(6)
    assert [seq for seq in follower.seqs if seq not in (2, 4)] == [1, 3, 5, 6]
    assert follower.seqs == sorted(set(follower.seqs))
    assert log.dropped == {}
    assert len(getattr(store, when)["add_events"]) < times
    await follower.leave()


async def test_an_ending_that_arrived_and_was_given_up_is_not_kept_twice(
    store: ShakyStore, log: EventLog
) -> None:
    follower, teller = Follower(log), Teller(log)
    teller.tell("begin")
    await follower.hears(1)
    store.after["add_events"], store.before["last_event of e1"] = [AWAY], [AWAY] * 5
    teller.tell("step", "end")
    await follower.hears(1, 2, 3)
    await settled(log)
    assert seqs(await store.events("a")) == follower.seqs == [1, 2, 3]
    assert store.before["last_event of e1"] == []
    await follower.leave()


async def test_what_another_process_told_cannot_be_read_for_a_while_and_nothing_is_doubled(
    store: ShakyStore, log: EventLog
) -> None:
    teller = Teller(log)
    teller.tell("begin")
    await settled(log)
    await store.add_events("a", [Told("other", 1, '{"event":"x"}')])
    store.before["events"] = [AWAY, AWAY]
    teller.tell("step", "chunk")
    await settled(log)
    follower = Follower(log)
    await follower.hears(1, 1, 2, 3)
    assert log.dropped == {}
    assert store.before["events"] == []
    await follower.leave()


@pytest.mark.parametrize("name", ["wait_for_events", "events"])
async def test_following_goes_on_when_the_store_is_back(store: ShakyStore, log: EventLog, name: str) -> None:
    async with EventLog(store) as other:
        follower, teller = Follower(log), Teller(other)
        teller.tell("begin")
        await follower.hears(1)
        store.before[name] = [AWAY] * 3
        store.after["wait_for_events"] = [AWAY]
        for last in range(2, 6):
            teller.tell("step")
            await follower.hears(*range(1, last + 1))
        assert store.before[name] == store.after["wait_for_events"] == []
        await follower.leave()


async def test_a_store_that_fails_for_good_ends_those_who_follow(store: ShakyStore, log: EventLog) -> None:
    follower = Follower(log)
    await until(lambda: log._channels)
    store.after["wait_for_events"] = [StoreError("the file is damaged")]
    Teller(log).tell("begin", "end")
    with pytest.raises(StoreError, match="the file is damaged"):
        await follower.ends()
    assert len(log._channels) == 0
    again = Follower(log)
    await again.hears(1, 2)
    await again.leave()


async def test_what_was_kept_of_one_session_is_not_kept_again_when_another_has_to_wait(
    store: ShakyStore, log: EventLog
) -> None:
    await add_session(store, "b", "c")
    store.before["add_events b"] = [AWAY, AWAY]
    for session in ("a", "b", "c"):
        Teller(log, session).tell("begin", "step", "end")
    await settled(log)
    assert [seqs(await store.events(session)) for session in ("a", "b", "c")] == [[1, 2, 3]] * 3
    assert log.dropped == {}


@pytest.mark.parametrize("error", [StoreError("damaged"), RuntimeError("a bug")], ids=str)
async def test_what_is_wrong_with_one_session_is_no_harm_to_others(
    store: ShakyStore, log: EventLog, error: Exception
) -> None:
    await add_session(store, "b", "c")
    store.before["add_events b"] = [error]
    for session in ("a", "b", "c"):
        Teller(log, session).tell("begin", "step", "end")
    await settled(log)
    assert [len(await store.events(session)) for session in ("a", "b", "c")] == [3, 0, 3]
    assert log.dropped == {"agent.status": 2, "agent.step.started": 1}


async def test_an_envelope_that_cannot_be_written_is_no_harm_to_others(
    store: ShakyStore, log: EventLog
) -> None:
    await add_session(store, "b")
    Teller(log).tell("begin")
    log.broadcast({**envelope(session="b"), "data": {"odd": object()}})
    Teller(log, last=1).tell("end")
    await settled(log)
    assert seqs(await store.events("a")) == [1, 2]
    assert log.dropped == {"agent.step.started": 1}


async def test_a_damaged_event_is_no_harm_to_other_sessions(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "s.db") as store, EventLog(store) as log:
        await add_session(store, "a", "b")
        Teller(log, "a").tell("begin", "end")
        await settled(log)
        with sqlite3.connect(tmp_path / "s.db") as db:
            db.execute("UPDATE events SET body = replace(body, 'completed', 'cancelled')")
        db.close()
        Teller(log, "a", "e2").tell("begin", "end")
        Teller(log, "b").tell("begin", "end")
        await settled(log)
        assert seqs(await log.page("b")) == [1, 2]
        assert log.dropped == {"agent.status": 2}
        with pytest.raises(StoreError, match="is damaged: of session 'a', event 2 is not what was stored"):
            await anext(log.follow("a"))


async def test_a_store_that_never_answers_does_not_slow_the_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Silent(MemoryStore):
        async def add_events(self, agent_id: str, told: Sequence[Told]) -> int:
            return await asyncio.Future()

    store = Silent()
    log = EventLog(store, capacity=3)
    agent = scripted(call("echo", {"value": "x"}), "done", tools=[echo])
    session = await Session.open(store, agent, events=AgentEventEnvelopeAdapter(log))
    async with asyncio.timeout(5):
        assert (await session.send("go")).status == "completed"
    await log.close(timeout=0.01)
    assert sum(log.dropped.values()) > 4
    assert await store.events(session.agent_id) == ()
    assert "envelopes are dropped" in caplog.text


async def test_what_came_before_a_read_failed_is_heard(store: ShakyStore, log: EventLog) -> None:
    """Nothing more is told that could wake those who wait."""
    async with EventLog(store) as other:
        follower = Follower(log)
        await until(lambda: len(log._channels))
        store.before["events"] = [None, AWAY]
        Teller(other).tell("begin", "end")
        await follower.hears(1, 2)
        await until(lambda: store.before["events"] == [])
        await follower.leave()


class Pause:
    """A sleep until somebody says that it is over."""

    def __init__(self) -> None:
        self.begun, self.over = asyncio.Event(), asyncio.Event()

    async def __call__(self, seconds: float) -> None:
        self.begun.set()
        await self.over.wait()


@pytest.mark.parametrize("is_followed", [True, False])
async def test_what_seemed_to_fail_is_not_kept_twice_when_nobody_follows_any_more(
    store: ShakyStore, log: EventLog, is_followed: bool
) -> None:
    log._delivery._sleep = pause = Pause()
    follower = Follower(log) if is_followed else None
    await until(lambda: len(log._channels) == is_followed)
    store.after["add_events"] = [AWAY]
    Teller(log).tell("begin", "step", "end")
    await pause.begun.wait()
    if follower is not None:
        await follower.leave()
    pause.over.set()
    await settled(log)
    assert seqs(await store.events("a")) == [1, 2, 3]
    assert len(log._channels) == 0


@pytest.mark.parametrize("times", [0, 1, 2])
async def test_what_seemed_to_fail_and_was_given_up_is_not_kept_twice_with_what_came_later(
    store: ShakyStore, log: EventLog, times: int
) -> None:
    """Of what is given up endings are kept, which are tried again together with what was told since."""
    log._delivery._sleep = pause = Pause()
    log._delivery._retries = 0
    follower, teller = Follower(log), Teller(log)
    teller.tell("begin")
    await follower.hears(1)
    store.after["add_events"] = [AWAY]
    teller.tell("step", "pause")
    await pause.begun.wait()
    log._delivery._retries = times
    store.before["add_events"] = [AWAY] * times
    teller.tell("begin", "chunk", "step", "end")
    pause.over.set()
    await settled(log)
    assert seqs(await store.events("a")) == [1, 2, 3, 4, 6, 7]
    await follower.gets_to(7)
    assert follower.seqs == [1, 2, 3, 4, 5, 6, 7]
    await follower.leave()
