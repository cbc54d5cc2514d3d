"""An event log in a world where stores fail, sessions go and logs are closed."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from tests.broadcasting.support import Naps, envelope, until
from tests.broadcasting.watching import Follower, Teller, add_session, is_chunk, seqs, settled
from tests.support import echo, scripted
from whyloop import Session
from whyloop.broadcasting import AgentEventEnvelopeAdapter, EventLog, channels
from whyloop.errors import SessionNotFoundError, StoreError, StoreUnavailableError
from whyloop.stores import MemoryStore, SqliteStore
from whyloop.stores.records import Told
from whyloop.testing import call

AWAY = StoreUnavailableError("the store is away")


class ShakyStore(MemoryStore):
    """A store that raises what it is given to raise, before or after it has done what it was asked."""

    poll_seconds = 0.001

    def __init__(self) -> None:
        super().__init__()
        self.before: dict[str, list[Exception]] = {}
        self.after: dict[str, list[Exception]] = {}

    def _meet(self, name: str, failures: dict[str, list[Exception]]) -> None:
        if failures.get(name):
            raise failures[name].pop(0)

    async def add_events(self, agent_id: str, told: Sequence[Told]) -> int:
        self._meet("add_events", self.before)
        self._meet(f"add_events {agent_id}", self.before)
        last = await super().add_events(agent_id, told)
        self._meet("add_events", self.after)
        return last

    async def events(self, agent_id: str, *, after: int = 0, limit: int = 100) -> tuple[Told, ...]:
        self._meet("events", self.before)
        return await super().events(agent_id, after=after, limit=limit)

    async def last_event(
        self, agent_id: str, *, execution_id: str | None = None, up_to: int | None = None
    ) -> Told | None:
        self._meet(f"last_event of {execution_id}", self.before)
        return await super().last_event(agent_id, execution_id=execution_id, up_to=up_to)

    async def wait_for_events(self, agent_id: str, *, after: int) -> None:
        self._meet("wait_for_events", self.before)
        await super().wait_for_events(agent_id, after=after)
        self._meet("wait_for_events", self.after)


@pytest.fixture
async def store() -> ShakyStore:
    store = ShakyStore()
    await add_session(store)
    return store


@pytest.fixture
async def log(store: ShakyStore, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[EventLog]:
    """A log that tries again without waiting."""
    monkeypatch.setattr(channels, "_PAUSE_SECONDS", 0.001)
    async with EventLog(store) as log:
        log._delivery._sleep = Naps()
        yield log


# Sessions


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


# Stores


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


# Closing, and what is left behind


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
