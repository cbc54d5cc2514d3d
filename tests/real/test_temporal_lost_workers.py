"""Workers that are killed, and a server that is restarted: every session ends as it would have ended."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from uuid import uuid4

import pytest
from temporalio.client import Client

from tests.real.temporal import TemporalServer
from tests.real.temporal_worker import CALLS, Ledger, WorkerProcess
from whyloop import AgentStatus
from whyloop.errors import (
    ApprovalError,
    NotResumableError,
    SessionRunningError,
    StoreError,
    StoreUnavailableError,
)
from whyloop.stores import SqliteStore
from whyloop.temporal import TemporalSession, WhyloopPlugin
from whyloop.tools.tool import idempotency_key
from whyloop.values.state import AgentState

pytestmark = [pytest.mark.slow]


class Crew:
    """Worker processes, and the sessions that they run."""

    store: SqliteStore
    client: Client

    def __init__(self, server: TemporalServer, folder: Path, count: int) -> None:
        self.server, self.task_queue = server, f"queue-{uuid4().hex}"
        self.ledger = Ledger(folder / "ledger")
        self.address = str(folder / "sessions.db")
        self.workers = [self.new_worker() for _ in range(count)]

    def new_worker(self) -> WorkerProcess:
        return WorkerProcess(self.server.address, self.task_queue, self.address, self.ledger.path, "0.3")

    def replace(self, index: int) -> None:
        """Kill a worker, and start another one."""
        self.workers[index].kill()
        self.workers[index] = self.new_worker()

    async def session(self, agent: str, agent_id: str) -> TemporalSession:
        return await TemporalSession.open(
            self.client, self.store, agent, agent_id, create=True, task_queue=self.task_queue
        )


@asynccontextmanager
async def crew(server: TemporalServer, folder: Path, count: int) -> AsyncIterator[Crew]:
    made = Crew(server, folder, count)
    try:
        async with SqliteStore(made.address) as made.store:
            made.client = await server.connect(WhyloopPlugin(made.store))
            yield made
    finally:
        for worker in made.workers:
            worker.kill()


@pytest.fixture
def own_server() -> Iterator[TemporalServer]:
    """A server that a test can restart."""
    server = TemporalServer()
    server.start()
    yield server
    server.remove()


async def test_sessions_survive_killed_workers_and_a_restart(
    own_server: TemporalServer, tmp_path: Path
) -> None:
    await _survive(own_server, tmp_path, sessions=12, kills=2, pause=1.0, seconds=150)


@pytest.mark.soak(suite="temporal")
async def test_five_hundred_sessions_survive_killed_workers_and_a_restart(
    own_server: TemporalServer, tmp_path: Path
) -> None:
    await _survive(own_server, tmp_path, sessions=500, kills=12, pause=5.0, seconds=1800)


async def _survive(
    server: TemporalServer, folder: Path, *, sessions: int, kills: int, pause: float, seconds: float
) -> None:
    chance = random.Random(7)
    async with crew(server, folder, 3) as here:
        opened = [await here.session("clerk", f"s{number}") for number in range(sessions)]
        at_once = asyncio.Semaphore(50)
        async with asyncio.timeout(seconds), asyncio.TaskGroup() as tasks:
            for session in opened:
                tasks.create_task(_attend(here, session, at_once))
            while not here.ledger.counts():
                await asyncio.sleep(0.05)
            for number in range(kills):
                await asyncio.sleep(pause)
                here.replace(chance.randrange(3))
                if number == kills // 2:
                    server.stop()
                    server.start()
        states = [await session.refresh() for session in opened]
        counts = here.ledger.counts()
    answers = [state.messages[-1].content for state in states]
    assert answers == [f"{CALLS} calls"] * sessions
    assert {state.status for state in states} == {AgentStatus.COMPLETED}
    charges: list[str] = []
    books: list[str] = []
    for state in states:
        for step in state.execution_steps[:CALLS]:
            key = idempotency_key(state.execution.id, step.number, 0, f"c{step.number - 1}")
            (charges if step.number % 3 == 0 else books).append(key)
    ended = {key: counts[f"end {key}"] for key in [*charges, *books]}
    repeated = sum(ended[key] - 1 for key in books)
    asked = sum(counts[f"start {key}"] - 1 for key in charges)
    print(
        f"\n{sessions} sessions, {kills} workers killed: {repeated} idempotent calls repeated, {asked} others"
    )
    assert [ended[key] for key in charges] == [1] * len(charges), "a call that cannot be repeated ran twice"
    assert min(ended[key] for key in books) >= 1


async def _attend(here: Crew, session: TemporalSession, at_once: asyncio.Semaphore) -> None:
    """Begin a session, wait for its end, and answer the questions about calls that may have run or not."""
    accepted = None
    async with at_once:
        while not (await session.refresh()).messages:
            with suppress(StoreError, SessionRunningError):  # The server is restarted, or it has begun.
                accepted = await session.begin("Go")
    while not (state := await session.refresh()).status.has_ended:
        if accepted is not None and state.status is AgentStatus.IN_PROGRESS:
            with suppress(StoreUnavailableError):  # Nothing else: a lost connection is no failure.
                state = await session.wait(accepted)
        if state.status is AgentStatus.PAUSED:
            with suppress(StoreError, ApprovalError, NotResumableError, SessionRunningError):
                await _answer(here, session, state)
        await asyncio.sleep(0.3)


async def _answer(here: Crew, session: TemporalSession, state: AgentState) -> None:
    """Look into the ledger, as a person would: a call that has run is not repeated."""
    counts, opened = here.ledger.counts(), state.open_step
    for pending in state.pending_calls:
        if not pending.tool_call_id:  # The question is whether the run, often recovered, continues.
            await session.approve(pending.id)
            continue
        assert opened is not None
        call = opened.tool_calls[0]
        key = idempotency_key(state.execution.id, opened.number, 0, call.id)
        if counts[f"end {key}"]:
            await session.deny(pending.id, "it has run")
        else:
            await session.approve(pending.id)
    await session.resume()


async def test_an_approval_is_carried_out_after_all_workers_were_replaced(
    temporal: TemporalServer, tmp_path: Path
) -> None:
    async with crew(temporal, tmp_path, 2) as here:
        session = await here.session("cashier", "approval")
        state = await asyncio.wait_for(session.send("Pay"), 60)
        assert state.status is AgentStatus.PAUSED
        for index in range(2):
            here.replace(index)
        pids = {str(worker.pid) for worker in here.workers}
        await asyncio.wait_for(session.approve(state.pending_calls[0].id, by="Ann"), 60)
        state = await asyncio.wait_for(session.resume(), 60)
        assert state.messages[-1].content == "paid"
        (noted,) = here.ledger.counts()
    assert noted.removeprefix("pay ") in pids


async def test_a_person_is_asked_about_a_call_whose_worker_was_killed(
    temporal: TemporalServer, tmp_path: Path
) -> None:
    """Temporal repeats nothing by itself, and each attempt that there was is in the trace."""
    async with crew(temporal, tmp_path, 1) as here:
        session = await here.session("waiter", "lost")
        running = asyncio.create_task(session.send("Wait"))
        async with asyncio.timeout(60):
            while not here.ledger.counts():
                await asyncio.sleep(0.05)
        here.replace(0)
        state = await asyncio.wait_for(running, 60)
        assert state.status is AgentStatus.PAUSED
        await session.deny(state.pending_calls[0].id, "it has run")
        state = await asyncio.wait_for(session.resume(), 60)
        assert list(here.ledger.counts().values()) == [1]
        history = await session.handle.fetch_history()
    assert state.status is AgentStatus.COMPLETED
    attempts = [
        event.activity_task_started_event_attributes.attempt
        for event in history.events
        if event.HasField("activity_task_started_event_attributes")
    ]
    assert set(attempts) == {1}


async def test_a_stop_ends_a_tool_call_in_another_process(temporal: TemporalServer, tmp_path: Path) -> None:
    async with crew(temporal, tmp_path, 1) as here:
        session = await here.session("waiter", "stop")
        running = asyncio.create_task(session.send("Wait"))
        async with asyncio.timeout(60):
            while not here.ledger.counts():
                await asyncio.sleep(0.05)
        await session.request_stop("enough")
        state = await asyncio.wait_for(running, 60)
        kinds = {line.split()[0] for line in here.ledger.counts()}
    assert state.status is AgentStatus.STOPPED
    assert kinds == {"wait", "cancelled"}


async def test_a_stop_reaches_a_run_whose_worker_is_dead(temporal: TemporalServer, tmp_path: Path) -> None:
    async with crew(temporal, tmp_path, 1) as here:
        session = await here.session("waiter", "stop-lost")
        running = asyncio.create_task(session.send("Wait"))
        async with asyncio.timeout(60):
            while not here.ledger.counts():
                await asyncio.sleep(0.05)
        here.workers[0].kill()
        await session.request_stop("enough")
        here.replace(0)
        state = await asyncio.wait_for(running, 60)
    assert state.status is AgentStatus.STOPPED
    assert "outcome unknown: a stop was requested" in state.explain()
    assert state.pending_calls == ()
