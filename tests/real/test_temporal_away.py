"""A real Temporal server that goes down and comes back while clients use it."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.real.temporal import NoTemporalError, TemporalServer, fleet
from tests.real.test_temporal_server import at_rest, cashier, lab_of, paused
from whyloop import Agent, AgentStatus, tool
from whyloop.cli.fleet import FleetSession
from whyloop.errors import StoreError, StoreUnavailableError
from whyloop.events import AgentEvent
from whyloop.stores import SqliteStore
from whyloop.temporal import Accepted, TemporalSession
from whyloop.testing import ScriptedModel, call
from whyloop.values.state import AgentState

pytestmark = [pytest.mark.slow]


@pytest.fixture
def server() -> Iterator[TemporalServer]:
    """A server of its own for each test, which stops it."""
    try:
        server = TemporalServer()
    except NoTemporalError as error:
        pytest.skip(str(error))
    server.start()
    yield server
    server.remove()


class Work:
    """The only tool of an agent; a call of it takes as long as the test wants."""

    def __init__(self) -> None:
        self.begun, self.free = asyncio.Event(), asyncio.Event()

    def agent(self) -> Agent:
        @tool(idempotent=True)
        async def work() -> str:
            """Work."""
            self.begun.set()
            await self.free.wait()
            return "worked"

        model = ScriptedModel([call("work"), "done"])
        return Agent(model, [work], name="worker", timeout=None, stop_grace=0)


async def test_a_waiting_client_learns_that_temporal_is_down_and_waits_again(
    server: TemporalServer, store: SqliteStore
) -> None:
    work = Work()
    async with fleet(server, store, [work.agent()]) as here:
        session = await here.session("worker", "away")
        accepted = await session.begin("Work")
        await asyncio.wait_for(work.begun.wait(), 30)
        waiting = asyncio.create_task(session.wait(accepted))
        server.stop()
        with pytest.raises(StoreUnavailableError, match=f"Temporal could not be reached at {server.address}"):
            await asyncio.wait_for(waiting, 60)
        work.free.set()
        server.start()
        state = await asyncio.wait_for(session.wait(accepted), 60)
        server.stop()
        again = await asyncio.wait_for(session.wait(accepted), 60)  # The store has the end.
    assert state.status is again.status is AgentStatus.COMPLETED
    assert state.messages[-1].content == "done"


class View:
    """A view of a run that remembers its notes."""

    def __init__(self) -> None:
        self.notes: asyncio.Queue[str] = asyncio.Queue()

    def __call__(self, event: AgentEvent, /) -> None:
        pass

    def note(self, text: str, /) -> None:
        self.notes.put_nowait(text)

    async def has_note(self, text: str) -> None:
        """Wait for a note; others may come before it on a slow machine."""
        async with asyncio.timeout(60):
            while await self.notes.get() != text:
                pass


async def test_a_command_waits_until_temporal_is_back(
    server: TemporalServer, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(self: TemporalSession, reason: str) -> None:
        raise StoreError("the disk is full")

    monkeypatch.setattr(TemporalSession, "request_stop", refuse)
    work, view = Work(), View()
    async with fleet(server, store, [work.agent()]) as here:
        args = Namespace(temporal=server.address, namespace=None, task_queue=here.task_queue)
        session = await FleetSession.open(store, "worker", args, None, None)
        running = asyncio.create_task(session.send("Work", on_event=view))
        await asyncio.wait_for(work.begun.wait(), 30)
        async with asyncio.timeout(30):
            while not session._has_begun:  # Temporal's answer may come later than the call.
                await asyncio.sleep(0.02)
        server.stop()
        await view.has_note(f"  no answer: the run continues when Temporal at {server.address} is back")
        assert session.request_stop("enough")
        await view.has_note("  the stop request failed: the disk is full")
        work.free.set()
        server.start()
        state = await asyncio.wait_for(running, 60)
    assert state.status is AgentStatus.COMPLETED


async def test_a_command_ends_if_the_store_is_away(
    server: TemporalServer, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unavailable(self: TemporalSession, accepted: Accepted) -> AgentState:
        raise StoreUnavailableError("the store is missing")

    async def unreadable(*_: object) -> AsyncIterator[object]:
        for never in list[object]():
            yield never
        raise StoreUnavailableError("the store is missing")

    monkeypatch.setattr(TemporalSession, "wait", unavailable)
    monkeypatch.setattr("whyloop.broadcasting.feed.EventFeed.follow", unreadable)
    async with fleet(server, store, [Agent(ScriptedModel(["Hi"]), name="worker")]) as here:
        args = Namespace(temporal=server.address, namespace=None, task_queue=here.task_queue)
        session = await FleetSession.open(store, "worker", args, None, None)
        with pytest.raises(StoreUnavailableError, match="the store is missing"):
            await asyncio.wait_for(session.send("Hello"), 30)


async def test_a_server_answers_503_while_temporal_is_away_and_still_records_a_stop(
    server: TemporalServer, store: SqliteStore, caplog: pytest.LogCaptureFixture
) -> None:
    async with fleet(server, store, [cashier()]) as here:
        lab = lab_of(here)
        path, question = await paused(lab)
        new = await lab.made("b")
        edit = {"question_id": question, "arguments": {"amount": 4}}
        server.stop()
        away = await asyncio.gather(
            lab.post(f"{new}/messages", {"text": "Pay 5"}),
            lab.post(f"{path}/resume"),
            lab.post(f"{path}/approve", edit),
        )
        stopped = await lab.post(f"{path}/stop", {"reason": "enough"})
        server.start()
        begun = await lab.post(f"{new}/messages", {"text": "Hi"}, headers={"idempotency-key": "one"})
        await at_rest(lab, new, "completed")
    for answer in away:
        assert (answer.status, answer.error) == (503, "unavailable")
        assert answer.message == "Sessions cannot be used at the moment. Try again."
        assert answer.headers["retry-after"] == "1"
    assert f"Temporal could not be reached at {server.address}" in caplog.text
    assert stopped.json == {"stopped": True}
    assert begun.status == 202
