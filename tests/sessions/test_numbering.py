"""What is told of an execution has no number twice, however many processes tell it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.broadcasting.watching import settled
from tests.support import scripted
from whyloop import Agent, AgentState, Session, tool
from whyloop.broadcasting import AgentEventEnvelopeAdapter, BroadcastConfig, EventLog
from whyloop.broadcasting.adapter import Envelope
from whyloop.errors import StoreError, StoreUnavailableError
from whyloop.events import AgentEvent
from whyloop.sessions.numbering import LEAP
from whyloop.stores import MemoryStore, Store
from whyloop.stores.records import Told
from whyloop.testing import Reply, call


@tool(needs_approval=True)
async def pay() -> str:
    return "paid"


class Recorder:
    """A transport that remembers what it was given, and hands it on."""

    def __init__(self, log: EventLog) -> None:
        self.log = log
        self.told: list[Envelope] = []

    def broadcast(self, event: Envelope) -> None:
        self.broadcast_batch((event,))

    def broadcast_batch(self, events: Sequence[Envelope]) -> None:
        self.told += events
        self.log.broadcast_batch(events)


class Process:
    """A process of its own: with its log, its agent and its count of what it told."""

    def __init__(self, store: Store, log: EventLog, *replies: Reply | str) -> None:
        self.store = store
        self.recorder = Recorder(log)
        self.events = AgentEventEnvelopeAdapter(self.recorder, BroadcastConfig.debug())
        self.agent = scripted(*replies, tools=[pay])

    async def session(self, agent_id: str = "a") -> Session:
        return await Session.open(self.store, self.agent, agent_id, create=True, events=self.events)

    @property
    def seqs(self) -> list[int]:
        return [each["seq"] for each in self.recorder.told]


def statuses(recorder: Recorder) -> list[str]:
    return [each["data"]["status"] for each in recorder.told if each["event"] == "agent.status"]


@asynccontextmanager
async def process(store: Store, *replies: Reply | str) -> AsyncIterator[Process]:
    """A process that keeps all it told before it ends."""
    async with EventLog(store) as log:
        yield Process(store, log, *replies)


async def kept(store: Store) -> list[int]:
    return [each.seq for each in await store.events("a")]


async def paused(store: Store) -> int:
    """A session that waits for an approval, and the number of the last envelope of it."""
    async with process(store, call("pay")) as first:
        session = await first.session()
        assert (await session.send("go")).status == "paused"
        await session.approve(session.state.pending_calls[0].id)
    return first.seqs[-1]


async def test_another_process_goes_on_with_the_next_number(store: Store) -> None:
    last = await paused(store)
    async with process(store, "done") as second:
        await (await second.session()).resume()
    assert second.seqs == list(range(last + 1, last + 1 + len(second.seqs)))
    assert await kept(store) == sorted(set(await kept(store)))


async def test_after_a_process_that_died_in_the_middle_the_count_goes_on_at_a_distance(store: Store) -> None:
    last = await paused(store)
    # The one that resumed it told a few things more, and a few chunks that nobody kept.
    body = '{"event":"agent.status","data":{"status":"in_progress"}}'
    execution_id = (await store.load("a")).execution.id
    await store.add_events("a", [Told(execution_id, last + 1, body)])
    async with process(store, "done") as third:
        await (await third.session()).resume()
    assert third.seqs == list(range(last + 2 + LEAP, last + 2 + LEAP + len(third.seqs)))


@pytest.mark.parametrize(
    ("body", "leap"),
    [
        ('{"event":"agent.status","data":{"status":"completed","more":1}}', 0),
        ('{"event":"agent.status","data":{"status":"in_progress"}}', LEAP),
        ('{"event":"agent.step.completed","data":{"status":"completed"}}', LEAP),
        ('{"event":"agent.tool.completed","data":{"status":7}}', LEAP),
        ('{"event":"agent.status"}', LEAP),
        ("[]", LEAP),
        ("not even JSON", LEAP),
    ],
)
async def test_only_after_an_ending_there_is_no_distance(store: Store, body: str, leap: int) -> None:
    last = await paused(store)
    execution_id = (await store.load("a")).execution.id
    await store.add_events("a", [Told(execution_id, last + 5, body)])
    async with process(store, "done") as other:
        await (await other.session()).resume()
    assert other.seqs[0] == last + 5 + leap + 1


async def test_what_the_process_told_itself_it_knows_better_than_the_store(store: Store) -> None:
    async with process(store, call("pay"), "done") as only:
        session = await only.session()
        state = await session.send("go")
        await session.approve(state.pending_calls[0].id)
        # Of what it told the store has not all yet.
        await store.add_events(
            "a", [Told(state.execution.id, only.seqs[-1], '{"event":"agent.step.started"}')]
        )
        await session.resume()
        assert only.seqs == list(range(1, len(only.seqs) + 1))


async def test_a_run_that_was_cut_off_is_told_on_without_a_leap_in_the_same_process(store: Store) -> None:
    reached = asyncio.Event()

    @tool
    async def wait() -> str:
        reached.set()
        return await asyncio.Future()

    async with process(store) as only:
        only.agent = scripted(call("wait"), "done", tools=[wait])
        session = await only.session()
        run = asyncio.create_task(session.send("go"))
        await reached.wait()
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
        await session.resume()
        assert only.seqs == list(range(1, len(only.seqs) + 1))


async def test_two_processes_in_turn_never_tell_a_number_twice(store: Store) -> None:
    replies = [call("pay")] * 3
    async with process(store, *replies) as one, process(store, *replies) as two:
        sessions = [await one.session(), await two.session()]
        state = await sessions[0].send("go")
        told = [list(one.seqs)]
        for turn in (1, 0, 1):
            await settled(one.recorder.log, two.recorder.log)
            await sessions[turn].approve(state.pending_calls[0].id)
            before = len((one, two)[turn].seqs)
            state = await sessions[turn].resume()
            told.append((one, two)[turn].seqs[before:])
    numbers = [seq for some in told for seq in some]
    assert numbers == list(range(1, len(numbers) + 1))
    assert [len(some) > 3 for some in told] == [True] * 4


async def test_the_next_execution_is_numbered_from_one(store: Store) -> None:
    async with process(store, "one") as first:
        await (await first.session()).send("1")
    async with process(store, "two") as second:
        await (await second.session()).send("2")
    assert first.seqs == second.seqs == list(range(1, len(first.seqs) + 1))


async def test_who_listens_to_the_agent_and_to_the_session_hears_once(store: Store) -> None:
    async with process(store, "one", "two") as only:
        only.agent.subscribe(only.events)
        await (await only.session()).send("1")
        assert statuses(only.recorder) == ["in_progress", "completed"]
        before = len(only.seqs)
        # The agent still tells it what it does outside of sessions.
        await only.agent.run("2")
        assert only.seqs[before:] == list(range(1, len(only.seqs) - before + 1))


async def test_an_event_handler_that_is_the_adapter_hears_once(store: Store) -> None:
    async with EventLog(store) as log:
        recorder = Recorder(log)
        events = AgentEventEnvelopeAdapter(recorder)
        agent = scripted("done", event_handler=events)
        session = await Session.open(store, agent, events=events)
        await session.send("go")
        assert statuses(recorder) == ["in_progress", "completed"]


async def test_others_hear_the_agent_beside_the_session(store: Store) -> None:
    heard: list[AgentEvent] = []
    async with process(store, "one", "two") as only:
        remove = only.agent.subscribe(heard.append)
        session = await only.session()
        await session.send("1")
        count = len(heard)
        assert count >= len(only.seqs)
        remove()
        await session.send("2")
        assert len(heard) == count < len(only.seqs)


@pytest.mark.parametrize("error", [StoreError("damaged"), StoreUnavailableError("away")], ids=str)
async def test_a_log_that_cannot_be_read_keeps_no_session_from_running(
    error: StoreError, caplog: pytest.LogCaptureFixture
) -> None:
    class Unreadable(MemoryStore):
        async def last_event(self, agent_id: str, **which: Any) -> Told | None:
            raise error

    store = Unreadable()
    log = EventLog(store)
    only = Process(store, log, call("pay", id="c"), "done")
    with caplog.at_level(logging.WARNING, "whyloop"):
        session = await only.session()
        await session.send("go")
        await session.approve("c")
        state: AgentState = await session.resume()
    await log.close(timeout=0.01)
    assert state.status == "completed"
    assert only.seqs == list(range(1, len(only.seqs) + 1))
    assert f"what was told of session 'a' cannot be read: {error}" in caplog.text


async def test_a_session_without_events_asks_for_none() -> None:
    class Unasked(MemoryStore):
        async def last_event(self, agent_id: str, **which: Any) -> Told | None:
            raise AssertionError("nobody needs to know")

    agent: Agent = scripted("done")
    session = await Session.open(Unasked(), agent)
    assert (await session.send("go")).status == "completed"
