"""Requests that arrive together at a session on a real Temporal server, and the leases of its workflows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import CancelledError

from tests.real.temporal import Fleet, TemporalServer, fleet
from tests.real.temporal_scenarios import add
from tests.real.temporal_schedules import failed_tasks
from whyloop import Agent, AgentStatus, tool
from whyloop.errors import (
    ConfigurationError,
    KeyUsedError,
    StoreError,
    StoreUnavailableError,
    WhyloopError,
)
from whyloop.stores import MemoryStore, SqliteStore
from whyloop.stores.records import RequestKey
from whyloop.temporal import AgentWorkflow, Start, TemporalSession, wake, workflow_id
from whyloop.testing import ScriptedModel, call

pytestmark = [pytest.mark.slow]

SECONDS = 30


@tool(needs_approval=True)
def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


def cashier(*more: Any) -> Agent:
    return Agent(ScriptedModel([call("pay", {"amount": 5}), *more, "Paid."]), [pay], name="cashier")


async def paused(here: Fleet, agent_id: str) -> TemporalSession:
    session = await here.session("cashier", agent_id)
    assert (await asyncio.wait_for(session.send("Pay 5"), SECONDS)).status is AgentStatus.PAUSED
    return session


async def runner(here: Fleet, agent_id: str) -> str | None:
    return (await here.store.read(agent_id, limit=0)).summary.runner


# One at a time


class Deciding(MemoryStore):
    """A store that is slow to say that it has recorded a decision."""

    inline = False

    def __init__(self) -> None:
        super().__init__()
        self.recorded, self.answers = asyncio.Event(), asyncio.Event()

    async def append(self, *args: Any, lease: Any = None, **options: Any) -> str | None:
        stop = await super().append(*args, lease=lease, **options)
        if lease is None:
            self.recorded.set()
            await self.answers.wait()
        return stop


Decide = Callable[[TemporalSession, str], Coroutine[Any, Any, Any]]

DECISIONS: dict[str, Decide] = {
    "approve": lambda session, question: session.approve(question, by="Ann"),
    "deny": lambda session, question: session.deny(question, "no", by="Ann"),
    "edit": lambda session, question: session.edit(question, {"amount": 4}, by="Ann"),
}


@pytest.mark.parametrize("name", DECISIONS)
async def test_a_decision_that_races_with_a_wake_up_returns_and_the_run_ends(
    temporal: TemporalServer, name: str
) -> None:
    """The run of the wake-up would begin while the decision is known to the store, and to no one else."""
    store = Deciding()
    async with fleet(temporal, store, [cashier()]) as here:
        session = await paused(here, "race")
        (question,) = session.state.pending_calls
        deciding = asyncio.create_task(DECISIONS[name](session, question.id))
        await asyncio.wait_for(store.recorded.wait(), SECONDS)
        await wake(here.client, session.summary, task_queue=here.task_queue)
        with suppress(TimeoutError):  # Only a run that does not wait for its turn ends by now.
            await asyncio.wait_for(_ended(session), 1)
        store.answers.set()
        await asyncio.wait_for(deciding, SECONDS)
        state = await asyncio.wait_for(_ended(session), SECONDS)
        assert await failed_tasks(here, "race") == []
        await here.replay("race")
    assert state.status is AgentStatus.COMPLETED
    assert state.messages[-1].content == "Paid."


async def _ended(session: TemporalSession) -> Any:
    while not (await session.refresh()).status.has_ended:
        await asyncio.sleep(0.02)
    return session.state


@pytest.mark.parametrize("begin", ["send", "resume"])
async def test_a_repeated_key_on_a_paused_session_is_refused_and_leaves_it_as_it_was(
    temporal: TemporalServer, store: SqliteStore, begin: str
) -> None:
    key = RequestKey("one", "digest")
    async with fleet(temporal, store, [cashier()]) as here:
        session = await here.session("cashier", "repeat")
        await asyncio.wait_for(session.send("Pay 5", key=key), SECONDS)
        version = session.version
        repeated = session.send("Pay 5", key=key) if begin == "send" else session.resume(key=key)
        with pytest.raises(KeyUsedError) as used:
            await asyncio.wait_for(repeated, SECONDS)
        assert await runner(here, "repeat") is None
        assert (await session.refresh()).status is AgentStatus.PAUSED
        assert session.version == version
        assert (used.value.digest, used.value.version) == ("digest", 2)
        assert await store.request_stop("repeat", "enough")
        assert (await session.refresh()).status is AgentStatus.STOPPED
        assert await failed_tasks(here, "repeat") == []


# The lease of a workflow that ends


class Full(SqliteStore):
    """A store that has no room for the results of calls."""

    async def append(self, agent_id: str, entries: Any, **options: Any) -> str | None:
        if any("paid" in entry.body for entry in entries):
            raise StoreError("the disk is full")
        return await super().append(agent_id, entries, **options)


async def test_a_workflow_that_fails_releases_the_lease(temporal: TemporalServer, tmp_path: Path) -> None:
    async with Full(tmp_path / "full.db") as store, fleet(temporal, store, [cashier()]) as here:
        session = await paused(here, "fails")
        await session.approve(session.state.pending_calls[0].id)
        with pytest.raises(WhyloopError, match="the disk is full"):
            await asyncio.wait_for(session.resume(), SECONDS)
        with pytest.raises(WorkflowFailureError):
            await asyncio.wait_for(session.handle.result(), SECONDS)
        assert await runner(here, "fails") is None
        assert await failed_tasks(here, "fails") == []


class Opening(MemoryStore):
    """A store that is slow to say that it has given a lease."""

    inline = False

    def __init__(self) -> None:
        super().__init__()
        self.given, self.answers = asyncio.Event(), asyncio.Event()

    async def acquire(self, *args: Any, **options: Any) -> Any:
        lease = await super().acquire(*args, **options)
        self.given.set()
        await self.answers.wait()
        return lease


async def test_a_workflow_that_is_cancelled_while_it_gets_a_lease_releases_it(
    temporal: TemporalServer,
) -> None:
    store = Opening()
    async with fleet(temporal, store, [cashier()]) as here:
        session = await here.session("cashier", "cancelled")
        beginning = asyncio.create_task(session.begin("Pay 5"))
        await asyncio.wait_for(store.given.wait(), SECONDS)
        await session.handle.cancel()
        store.answers.set()
        with pytest.raises(WorkflowFailureError) as failed:
            await asyncio.wait_for(session.handle.result(), SECONDS)
        await asyncio.gather(beginning, return_exceptions=True)
        assert isinstance(failed.value.cause, CancelledError)
        assert await runner(here, "cancelled") is None


async def test_a_cancelled_workflow_delivers_the_decision_that_it_records_and_refuses_the_next(
    temporal: TemporalServer,
) -> None:
    store = Deciding()
    async with fleet(temporal, store, [cashier()]) as here:
        session, other = await paused(here, "decided"), await here.session("cashier", "decided")
        (question,) = session.state.pending_calls
        deciding = asyncio.create_task(session.approve(question.id))
        await asyncio.wait_for(store.recorded.wait(), SECONDS)
        waiting = asyncio.create_task(other.deny(question.id))
        while await _accepted(here, "decided") < 3:  # The query, and both decisions.
            await asyncio.sleep(0.02)
        await session.handle.cancel()
        store.answers.set()
        state = await asyncio.wait_for(deciding, SECONDS)
        with pytest.raises(StoreUnavailableError, match="was cancelled: try again"):
            await asyncio.wait_for(waiting, SECONDS)
        with pytest.raises(WorkflowFailureError):
            await asyncio.wait_for(session.handle.result(), SECONDS)
        assert await failed_tasks(here, "decided") == []
    assert state.pending_calls == ()


async def _accepted(here: Fleet, agent_id: str) -> int:
    """Return how many requests the workflow of a session has accepted."""
    (history,) = await here.histories(agent_id)
    accepted = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED
    return sum(event.event_type == accepted for event in history.events)


@pytest.mark.parametrize(("agent", "version"), [("cashier", 9), ("unknown", 1)])
async def test_a_workflow_that_cannot_continue_another_one_releases_its_lease(
    temporal: TemporalServer, store: SqliteStore, agent: str, version: int
) -> None:
    async with fleet(temporal, store, [cashier()]) as here:
        await here.session("cashier", "behind")
        lease = await store.acquire("behind", "temporal:default", 300, durable=True)
        with pytest.raises(WorkflowFailureError):
            await here.client.execute_workflow(
                AgentWorkflow.run,
                Start("behind", agent, lease=lease, version=version),
                id=workflow_id(here.task_queue, "behind"),
                task_queue=here.task_queue,
            )
        assert await runner(here, "behind") is None


async def test_a_session_whose_workflow_was_terminated_can_be_stopped_at_once(
    temporal: TemporalServer, store: SqliteStore
) -> None:
    begun = asyncio.Event()

    async def work() -> str:
        """Work."""
        begun.set()
        await asyncio.Event().wait()
        return ""

    agent = Agent(ScriptedModel([call("work"), "done"]), [work], name="worker", stop_grace=0)
    async with fleet(temporal, store, [agent]) as here:
        session = await here.session("worker", "terminated")
        await session.begin("Work")
        await asyncio.wait_for(begun.wait(), SECONDS)
        await session.handle.terminate()
        await session.request_stop("enough")
        state = await asyncio.wait_for(_ended(session), SECONDS)
        await asyncio.wait_for(session.handle.result(), SECONDS)
        assert await runner(here, "terminated") is None
    assert state.status is AgentStatus.STOPPED


async def test_a_session_that_ended_is_woken_again_and_again_and_its_workflow_ends(
    temporal: TemporalServer,
) -> None:
    """A wake-up that looked into the store each time would be followed by the next one."""
    store = Opening()
    store.answers.set()
    async with fleet(temporal, store, [cashier()]) as here:
        session = await paused(here, "woken")
        await store.request_stop("woken", "enough")
        store.given.clear()
        store.answers.clear()
        await session.handle.signal("wake")
        await asyncio.wait_for(store.given.wait(), SECONDS)
        store.given.clear()
        for _ in range(3):
            await session.handle.signal("wake")
        store.answers.set()
        await asyncio.wait_for(session.handle.result(), SECONDS)
    assert not store.given.is_set()


# Nothing that arrives fails a workflow task


async def test_signals_that_nobody_should_send_change_nothing(
    temporal: TemporalServer, store: SqliteStore
) -> None:
    async with fleet(temporal, store, [cashier()]) as here:
        session = await paused(here, "signals")
        for name, given in (("wake", [1]), ("wake", [1, 2]), ("waits", []), ("waits", ["x"]), ("other", [])):
            await session.handle.signal(name, args=given)
        await asyncio.wait_for(session.approve(session.state.pending_calls[0].id), SECONDS)
        state = await asyncio.wait_for(session.resume(), SECONDS)
        assert await failed_tasks(here, "signals") == []
        await here.replay("signals")
    assert state.status is AgentStatus.COMPLETED


@pytest.mark.parametrize("given", [[], [1], [{}], ["\ud800 enough", 2]], ids=repr)
async def test_a_stop_signal_with_anything_as_its_reason_stops_the_session(
    temporal: TemporalServer, store: SqliteStore, given: list[Any]
) -> None:
    async with fleet(temporal, store, [cashier()]) as here:
        session = await paused(here, "stop")
        await session.handle.signal("stop", args=given)
        state = await asyncio.wait_for(_ended(session), SECONDS)
        assert await failed_tasks(here, "stop") == []
    assert state.status is AgentStatus.STOPPED


async def test_a_stop_without_a_text_as_its_reason_is_refused(
    temporal: TemporalServer, store: SqliteStore
) -> None:
    async with fleet(temporal, store, [cashier()]) as here:
        session = await paused(here, "reason")
        with pytest.raises(ConfigurationError, match="invalid reason 5: the reason to stop must be text"):
            await session.request_stop(5)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [[], ["cashier"], [{"agent": "cashier"}], [1, 2]], ids=str)
async def test_a_workflow_that_is_started_with_something_else_fails(
    temporal: TemporalServer, store: SqliteStore, given: list[Any]
) -> None:
    async with fleet(temporal, store, [cashier()]) as here:
        with pytest.raises(WorkflowFailureError):
            await asyncio.wait_for(
                here.client.execute_workflow(
                    "WhyloopAgent", args=given, id=f"{here.task_queue}:odd", task_queue=here.task_queue
                ),
                SECONDS,
            )
        assert await failed_tasks(here, "odd") == []


@pytest.mark.parametrize("name", ["x" * 5000, "x\ud800", "add " * 200], ids=["long", "half", "words"])
async def test_a_model_that_calls_a_tool_with_any_name_fails_no_workflow_task(
    temporal: TemporalServer, store: SqliteStore, name: str
) -> None:
    agent = Agent(ScriptedModel([call(name), "Sorry."]), [add], name="adder", max_steps=3)
    async with fleet(temporal, store, [agent]) as here:
        session = await here.session("adder", "names")
        state = await asyncio.wait_for(session.send("Add"), SECONDS)
        assert await failed_tasks(here, "names") == []
    assert state.status.has_ended


@pytest.mark.parametrize("question", ["x" * 3_000_000, "\ud800"], ids=["long", "half"])
async def test_a_decision_about_any_question_is_refused_and_fails_no_workflow_task(
    temporal: TemporalServer, store: SqliteStore, question: str
) -> None:
    async with fleet(temporal, store, [cashier()]) as here:
        session = await paused(here, "questions")
        with pytest.raises(WhyloopError):
            await asyncio.wait_for(session.approve(question, by=question), SECONDS)
        assert await failed_tasks(here, "questions") == []
