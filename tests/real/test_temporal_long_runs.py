"""Long runs on a real Temporal server: they continue in one workflow run after another, with one trace."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from temporalio import activity
from temporalio.client import WorkflowFailureError

from tests.real.temporal import NoTemporalError, TemporalServer, fleet
from tests.real.temporal_scenarios import SHORT_HISTORIES, add, pay
from whyloop import Agent, AgentStatus
from whyloop.errors import ApprovalError
from whyloop.stores import SqliteStore
from whyloop.temporal import AgentWorkflow, Start, workflow_id
from whyloop.temporal.claims import LARGEST_PAYLOAD
from whyloop.testing import ScriptedModel, call
from whyloop.testing.engine_conformance import CHECKS, Check

from .test_temporal_engine import engine_of

pytestmark = [pytest.mark.slow]


@pytest.fixture(scope="module")
def short_histories() -> Iterator[TemporalServer]:
    """A server on which every run continues in another workflow run after a few steps."""
    try:
        server = TemporalServer(SHORT_HISTORIES)
    except NoTemporalError as error:
        pytest.skip(str(error))
    server.start()
    yield server
    server.remove()


LONG = ("check_a_long_run", "check_a_stop_during_a_call", "check_model_errors_that_are_retried")


@pytest.mark.parametrize(
    "check", [each for each in CHECKS if each.__name__ in LONG], ids=lambda c: c.__name__
)
async def test_a_run_in_several_workflow_runs_is_like_the_local_one(
    check: Check, short_histories: TemporalServer, tmp_path: Path
) -> None:
    await check(engine_of(short_histories, tmp_path))


async def test_forty_steps_cost_the_same_history_each(
    short_histories: TemporalServer, store: SqliteStore
) -> None:
    await _cost_of_steps(short_histories, store, 40, late=25)


@pytest.mark.soak(suite="temporal")
async def test_two_thousand_steps_cost_the_same_history_each(
    temporal: TemporalServer, store: SqliteStore
) -> None:
    await _cost_of_steps(temporal, store, 2000, late=500)


async def _cost_of_steps(server: TemporalServer, store: SqliteStore, steps: int, *, late: int) -> None:
    """Take many steps, and compare the bytes of history of step 10 with those of later ones."""
    model = ScriptedModel([*[call("add", {"a": n, "b": 1}) for n in range(steps - 1)], "done"])
    agent = Agent(model, [add], name="adder", max_steps=None, timeout=None)
    async with fleet(server, store, [agent]) as here:
        session = await here.session("adder", "long")
        state = await session.send("Add")
        runs = (await here.histories("long"))[::-1]
        await here.replay("long")
    assert state.status is AgentStatus.COMPLETED
    assert [step.number for step in state.execution_steps] == list(range(1, steps + 1))
    assert len(runs) > 1
    costs = [cost for run in runs for cost in _costs(run)]
    assert len(costs) == steps
    early, *others = [sum(costs[number - 5 : number + 5]) / 10 for number in (10, late, steps - 10)]
    shown = ", ".join(f"{cost:,.0f}" for cost in (early, *others))
    print(f"\nbytes of history per step, at steps 10, {late} and {steps - 10}: {shown}; {len(runs)} runs")
    assert max(others) <= 1.2 * early
    for run in runs[1:]:  # What a workflow run begins with is small too, however long the session is.
        assert sum(event.ByteSize() for event in run.events[:12]) < 2 * LARGEST_PAYLOAD


def _costs(run) -> list[int]:  # type: ignore[no-untyped-def]
    """Return the bytes of history of every step of a workflow run, from one model call to the next."""
    costs: list[int] = []
    for event in run.events:
        if event.activity_task_scheduled_event_attributes.activity_type.name == "whyloop_ask":
            costs.append(0)
        if costs:
            costs[-1] += event.ByteSize()
    return costs


async def test_a_pause_with_many_requests_continues_in_another_workflow_run(
    short_histories: TemporalServer, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whyloop.temporal.workflow.MOST_EVENTS", 60)
    agent = Agent(ScriptedModel([call("pay", {"amount": 5}), "Paid."]), [pay], name="cashier")
    async with fleet(short_histories, store, [agent]) as here:
        session = await here.session("cashier", "pause")
        (question,) = (await session.send("Pay 5")).pending_calls
        async with asyncio.timeout(60):
            while len(await here.histories("pause")) == 1:
                with pytest.raises(ApprovalError):
                    await session.approve("unknown")  # It adds to the history.
        await session.approve(question.id)
        state = await asyncio.wait_for(session.resume(), 60)
        await here.replay("pause")
    assert state.status is AgentStatus.COMPLETED


class Held(SqliteStore):
    """A store that holds up a workflow run while it stores what the next one continues from."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.reached, self.free = asyncio.Event(), asyncio.Event()

    async def append(self, *args: Any, release: bool = False, **options: Any) -> str | None:
        if activity.in_activity() and activity.info().activity_type == "whyloop_append" and not release:
            self.reached.set()
            await self.free.wait()
        return await super().append(*args, release=release, **options)


async def test_a_stop_that_arrives_between_two_workflow_runs_is_not_lost(
    short_histories: TemporalServer, tmp_path: Path
) -> None:
    many = ScriptedModel([*[call("add", {"a": n, "b": 1}) for n in range(20)], "done"])
    agent = Agent(many, [add], name="adder", max_steps=None, timeout=None)
    async with Held(tmp_path / "held.db") as held, fleet(short_histories, held, [agent]) as here:
        session = await here.session("adder", "stop")
        running = asyncio.create_task(session.send("Add"))
        await asyncio.wait_for(held.reached.wait(), 60)
        await session.request_stop("enough")
        held.free.set()
        state = await asyncio.wait_for(running, 60)
        runs = await here.histories("stop")
    assert state.status is AgentStatus.STOPPED
    assert len(runs) == 2


async def test_a_store_without_entries_of_an_earlier_workflow_run_is_refused(
    temporal: TemporalServer, store: SqliteStore
) -> None:
    agent = Agent(ScriptedModel(["done"]), name="adder")
    async with fleet(temporal, store, [agent]) as here:
        session = await here.session("adder", "restored")
        with pytest.raises(WorkflowFailureError) as failed:
            await here.client.execute_workflow(
                AgentWorkflow.run,
                Start(session.agent_id, "adder", version=9),
                id=workflow_id(here.task_queue, session.agent_id),
                task_queue=here.task_queue,
            )
    assert "is at version 1 in the store, and its workflow continues from version 9" in str(
        failed.value.cause
    )
