"""Faults around sessions on a real Temporal server, and the state that they leave."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.common.v1 import Payloads, WorkflowType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    StartWorkflowExecutionRequest,
)
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import CancelledError

from tests.real.postgres import PostgresServer
from tests.real.temporal import Fleet, TemporalServer, fleet, worker
from tests.real.temporal_scenarios import Ledger, add, pay
from whyloop import Agent, AgentStatus, tool
from whyloop.errors import (
    ConfigurationError,
    SessionRunningError,
    StoreError,
    StoreUnavailableError,
    WhyloopError,
)
from whyloop.events import AgentEvent
from whyloop.stores import PostgresStore, SqliteStore, Store
from whyloop.temporal import Start, TemporalSession, WhyloopPlugin, workflow_id
from whyloop.testing import ScriptedModel, call, calls
from whyloop.tools.tool import ToolContext

pytestmark = [pytest.mark.slow]


# Time


async def test_a_pause_of_thirty_days_keeps_the_question(
    temporal: TemporalServer, store: SqliteStore
) -> None:
    model = ScriptedModel([call("pay", {"amount": 5}), "Paid."])
    async with fleet(temporal, store, [Agent(model, [pay], name="cashier")]) as here:
        session = await here.session("cashier", "month")
        await _start_skipping(here, session)
        state = await asyncio.wait_for(session.send("Pay 5"), 30)
        assert state.status is AgentStatus.PAUSED
        async with asyncio.timeout(60):
            while (await _workflow_time(here, session)) - datetime.now(UTC) < timedelta(days=30):
                await asyncio.sleep(0.3)
        await session.approve(state.pending_calls[0].id)
        state = await asyncio.wait_for(session.resume(), 30)
        await here.replay("month")
    assert state.status is AgentStatus.COMPLETED


async def _start_skipping(here: Fleet, session: TemporalSession) -> None:
    """Start the workflow of a session so that its time is skipped while it waits."""
    converter = here.client.data_converter
    request = StartWorkflowExecutionRequest(
        namespace=here.client.namespace,
        workflow_id=workflow_id(here.task_queue, session.agent_id),
        workflow_type=WorkflowType(name="WhyloopAgent"),
        task_queue=TaskQueue(name=here.task_queue),
        input=Payloads(payloads=await converter.encode([Start(session.agent_id, "cashier")])),
        request_id="start",
    )
    request.time_skipping_config.enabled = True
    await here.client.workflow_service.start_workflow_execution(request)


async def _workflow_time(here: Fleet, session: TemporalSession) -> datetime:
    history = await session.handle.fetch_history()
    last: HistoryEvent = history.events[-1]
    return last.event_time.ToDatetime(UTC)


# Size


async def test_a_tool_result_of_ten_megabytes_is_recorded_whole(
    temporal: TemporalServer, store: SqliteStore
) -> None:
    @tool(max_result_chars=None)
    def read_log() -> str:
        """Read the log."""
        return "x" * 10_000_000

    agent = Agent(ScriptedModel([call("read_log"), "read"]), [read_log], name="reader")
    async with fleet(temporal, store, [agent]) as here:
        session = await here.session("reader", "large")
        state = await asyncio.wait_for(session.send("Read"), 60)
        (history,) = await here.histories("large")
        await here.replay("large")
    assert state.status is AgentStatus.COMPLETED
    assert len(state.messages[-2].content) == 10_000_000
    assert sum(event.ByteSize() for event in history.events) < 100_000


async def test_a_tool_result_that_is_too_large_is_a_failure_of_the_call_that_says_why(
    temporal: TemporalServer, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whyloop.temporal.claims.LARGEST_CLAIM", 1_000_000)

    @tool(max_result_chars=None)
    def read_log() -> str:
        """Read the log."""
        return '"' * 300_000  # As text within text it takes four times as much.

    agent = Agent(ScriptedModel([call("read_log"), "Too much."]), [read_log], name="reader")
    async with fleet(temporal, store, [agent]) as here:
        session = await here.session("reader", "too-large")
        state = await asyncio.wait_for(session.send("Read"), 60)
    assert (
        "the result takes 1 MB when recorded, and the maximum is 1 MB: shorten it"
        in state.messages[2].content
    )


class Small(SqliteStore):
    """A store that keeps payloads of seven megabytes at most."""

    async def keep_claim(self, agent_id: str, data: bytes) -> str:
        if len(data) > 7_000_000:
            raise ConfigurationError(f"invalid claim of {len(data):,} bytes")
        return await super().keep_claim(agent_id, data)


async def test_results_that_are_too_large_together_are_failures_of_their_calls(
    temporal: TemporalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whyloop.temporal.claims.LARGEST_CLAIM", 6_000_000)
    together = asyncio.Barrier(3)

    @tool(max_result_chars=None)
    async def read_log() -> str:
        """Read the log."""
        await together.wait()
        return "x" * 2_500_000

    three = calls(call("read_log"), call("read_log"), call("read_log"))
    agent = Agent(ScriptedModel([three, "Too much."]), [read_log], name="reader")
    async with Small(tmp_path / "small.db") as small, fleet(temporal, small, [agent]) as here:
        session = await here.session("reader", "together")
        state = await asyncio.wait_for(session.send("Read"), 30)
    results = [message.content for message in state.messages if message.role == "tool"]
    assert len(results) == 3
    assert all("the maximum is 2 MB" in result for result in results)


async def test_an_answer_that_is_too_large_is_a_failure_of_the_model_that_says_why(
    temporal: TemporalServer, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whyloop.temporal.claims.LARGEST_CLAIM", 1_000_000)
    async with fleet(temporal, store, [Agent(ScriptedModel(["x" * 2_000_000]), name="writer")]) as here:
        session = await here.session("writer", "too-long")
        state = await asyncio.wait_for(session.send("Write"), 60)
    assert state.status is AgentStatus.FAILED
    assert "the maximum is 1 MB" in state.explain()


async def test_a_message_that_is_too_large_is_refused_with_the_reason(
    temporal: TemporalServer, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whyloop.temporal.claims.LARGEST_CLAIM", 1_000_000)
    async with fleet(temporal, store, [Agent(ScriptedModel(["Read."]), name="reader")]) as here:
        session = await here.session("reader", "long-message")
        with pytest.raises(ConfigurationError, match="the message takes 2 MB when recorded"):
            await asyncio.wait_for(session.send('"' * 400_000), 30)
        state = await asyncio.wait_for(session.send("x" * 400_000), 60)
        await here.replay("long-message")
    assert state.status is AgentStatus.COMPLETED
    assert len(state.messages) == 2


class Refusing(SqliteStore):
    """A store that has no room for large payloads any more."""

    async def keep_claim(self, agent_id: str, data: bytes) -> str:
        raise StoreError("the disk is full")


async def test_a_store_that_refuses_a_large_result_ends_the_workflow_and_says_why(
    temporal: TemporalServer, tmp_path: Path
) -> None:
    @tool(max_result_chars=None)
    def read_log() -> str:
        """Read the log."""
        return "x" * 200_000

    agent = Agent(ScriptedModel([call("read_log"), "read"]), [read_log], name="reader")
    async with Refusing(tmp_path / "full.db") as store, fleet(temporal, store, [agent]) as here:
        session = await here.session("reader", "full")
        with pytest.raises(WhyloopError, match="the disk is full"):
            await asyncio.wait_for(session.send("Read"), 60)


# The store


async def test_sessions_wait_while_postgresql_is_away(
    temporal: TemporalServer, postgres: PostgresServer, schema: str
) -> None:
    await _wait_out(temporal, postgres, schema, seconds=3)


@pytest.mark.soak(suite="temporal")
async def test_sessions_wait_while_postgresql_is_away_for_a_minute(
    temporal: TemporalServer, postgres: PostgresServer, schema: str
) -> None:
    await _wait_out(temporal, postgres, schema, seconds=60)


async def _wait_out(
    temporal: TemporalServer, postgres: PostgresServer, schema: str, *, seconds: float
) -> None:
    began, away, ran = asyncio.Event(), asyncio.Event(), []

    async def work(context: ToolContext) -> str:
        """Work."""
        ran.append(context.idempotency_key)
        began.set()
        await away.wait()
        return "worked"

    model = ScriptedModel([call("work"), call("work"), "done"])
    agent = Agent(model, [work], name="worker", timeout=None)
    store: Store = PostgresStore(postgres.address(), schema=schema)
    async with store, fleet(temporal, store, [agent]) as here:
        session = await here.session("worker", "away")
        accepted = await session.begin("Work")
        await asyncio.wait_for(began.wait(), 30)
        postgres.stop()
        away.set()
        await asyncio.sleep(seconds)
        postgres.start()
        state = await asyncio.wait_for(session.wait(accepted), 60)
    assert state.status is AgentStatus.COMPLETED
    assert len(ran) == len(set(ran)) == 2


class Away(SqliteStore):
    """A store that is away for some of the times when a large payload is kept or read."""

    keeping = reading = 0

    async def keep_claim(self, agent_id: str, data: bytes) -> str:
        if self.keeping:
            self.keeping -= 1
            raise StoreUnavailableError("away")
        return await super().keep_claim(agent_id, data)

    async def claim(self, agent_id: str, key: str) -> bytes:
        if self.reading:
            self.reading -= 1
            raise StoreUnavailableError("away")
        return await super().claim(agent_id, key)


@pytest.mark.parametrize(("keeping", "reading", "ran"), [(2, 0, 1), (6, 0, 2), (0, 1, 1)])
async def test_a_store_that_is_away_for_a_large_result_is_waited_for(
    temporal: TemporalServer, tmp_path: Path, keeping: int, reading: int, ran: int
) -> None:
    keys: list[str] = []

    @tool(max_result_chars=None, idempotent=True)
    def read_log(context: ToolContext) -> str:
        """Read the log."""
        keys.append(context.idempotency_key)
        return "x" * 200_000

    agent = Agent(ScriptedModel([call("read_log"), "read", "read"]), [read_log], name="reader")
    async with Away(tmp_path / "away.db") as store, fleet(temporal, store, [agent]) as here:
        store.keeping, store.reading = keeping, reading
        session = await here.session("reader", "away")
        state = await asyncio.wait_for(session.send("Read"), 60)
    assert state.status is AgentStatus.COMPLETED
    assert (len(keys), len(set(keys))) == (ran, 1)


# Operators, clients and workers


async def test_a_session_whose_workflow_was_terminated_can_be_resumed(
    temporal: TemporalServer, store: SqliteStore
) -> None:
    begun, free = asyncio.Event(), asyncio.Event()

    @tool(idempotent=True)
    async def work() -> str:
        """Work."""
        begun.set()
        await free.wait()
        return "worked"

    agent = Agent(ScriptedModel([call("work"), "done"]), [work], name="worker")
    async with fleet(temporal, store, [agent]) as here:
        session = await here.session("worker", "terminated")
        running = asyncio.create_task(session.send("Work"))
        await asyncio.wait_for(begun.wait(), 30)
        await session.handle.terminate(reason="by an operator")
        with pytest.raises(WhyloopError, match="by an operator"):
            await asyncio.wait_for(running, 30)
        free.set()
        state = await asyncio.wait_for(session.resume(), 30)
    assert state.status is AgentStatus.COMPLETED
    assert state.messages[-1].content == "done"


async def test_a_cancelled_workflow_stops_its_session(temporal: TemporalServer, store: SqliteStore) -> None:
    begun = asyncio.Event()

    async def work() -> str:
        """Work."""
        begun.set()
        await asyncio.Event().wait()
        return ""

    agent = Agent(ScriptedModel([call("work"), "done"]), [work], name="worker", stop_grace=0)
    async with fleet(temporal, store, [agent]) as here:
        session = await here.session("worker", "cancelled")
        await session.begin("Work")
        await asyncio.wait_for(begun.wait(), 30)
        await session.handle.cancel()
        with pytest.raises(WorkflowFailureError) as failed:
            await asyncio.wait_for(session.handle.result(), 30)
        assert isinstance(failed.value.cause, CancelledError)
        state = await session.refresh()
    assert state.status is AgentStatus.STOPPED


async def test_of_two_clients_that_send_at_once_one_is_refused(
    temporal: TemporalServer, store: SqliteStore
) -> None:
    free = asyncio.Event()

    async def work() -> str:
        """Work."""
        await free.wait()
        return "worked"

    agent = Agent(ScriptedModel([call("work"), "done"]), [work], name="worker")
    async with fleet(temporal, store, [agent]) as here:
        first, second = [await here.session("worker", "both") for _ in range(2)]
        both = await asyncio.gather(first.begin("One"), second.begin("Two"), return_exceptions=True)
        refused = [each for each in both if isinstance(each, SessionRunningError)]
        (accepted,) = [each for each in both if not isinstance(each, BaseException)]
        free.set()
        state = await asyncio.wait_for(first.wait(accepted), 30)
    assert len(refused) == 1
    assert len([message for message in state.messages if message.role == "user"]) == 1


async def test_an_unknown_agent_is_refused_with_those_that_are_known(
    temporal: TemporalServer, store: SqliteStore
) -> None:
    async with fleet(temporal, store, [Agent(ScriptedModel(["hi"]), name="known")]) as here:
        session = await here.session("unknown", "unknown")
        with pytest.raises(WhyloopError, match=r"no agent is named 'unknown' here: .* are known"):
            await asyncio.wait_for(session.send("Hi"), 30)


async def test_deps_are_made_at_the_worker_and_are_not_in_the_history(
    temporal: TemporalServer, store: SqliteStore
) -> None:
    def whoami(context: ToolContext[dict[str, str]]) -> str:
        """Say who asks."""
        return str(len(context.deps["token"]))

    def deps(summary: Any) -> dict[str, str]:
        return {"token": f"secret of {summary.metadata['customer']}"}

    agent = Agent(ScriptedModel([call("whoami"), "done"]), [whoami], name="clerk", deps_type=dict[str, str])
    async with fleet(temporal, store, [agent], deps=deps) as here:
        session = await here.session("clerk", "deps", {"customer": "c-1"})
        state = await session.send("Who?")
        (history,) = await here.histories("deps")
    assert state.messages[-2].content == str(len("secret of c-1"))
    assert "secret of" not in history.to_json()


# Toolsets and handlers


async def test_an_idempotent_tool_of_a_toolset_is_repeated_after_a_lost_worker_and_no_other(
    temporal: TemporalServer, store: SqliteStore
) -> None:
    for name, status in (("count", AgentStatus.COMPLETED), ("charge", AgentStatus.PAUSED)):
        ledger = Ledger()
        agent = Agent(ScriptedModel([call(name), "done"]), [ledger], name="clerk")
        async with fleet(temporal, store, [agent]) as here:
            session = await here.session("clerk", name)
            accepted = await session.begin("Go")
            await asyncio.wait_for(ledger.begun.wait(), 30)
            ledger.released = True
            await here.replace_worker()
            state = await asyncio.wait_for(session.wait(accepted), 30)
            await here.replay(name)
        assert state.status is status
        assert len(ledger.calls) == (2 if name == "count" else 1)
        assert len(set(ledger.calls)) == 1


async def test_a_worker_lists_the_tools_of_a_toolset_once_for_an_execution(
    temporal: TemporalServer, store: SqliteStore
) -> None:
    ledger = Ledger()
    ledger.released = True
    model = ScriptedModel([call("count"), calls(call("count"), call("charge")), "done", "again"])
    async with fleet(temporal, store, [Agent(model, [ledger], name="clerk")]) as here:
        session = await here.session("clerk", "lists")
        await session.send("Go")
        assert ledger.lists == 1
        await session.send("Go")
    assert ledger.lists == 2


async def test_a_worker_that_did_not_ask_lists_the_tools_once_for_calls_at_once(
    temporal: TemporalServer, store: SqliteStore
) -> None:
    first, second = Ledger(), Ledger()
    second.released = True
    three = calls(call("count"), call("count"), call("count"))
    agents = [
        Agent(ScriptedModel([three]), [first], name="clerk"),
        Agent(ScriptedModel(["done"]), [second], name="clerk"),
    ]
    other = await temporal.connect(WhyloopPlugin(store, agents[1:]))
    async with fleet(temporal, store, agents[:1]) as here:
        session = await here.session("clerk", "lists")
        accepted = await session.begin("Go")
        async with asyncio.timeout(30):
            while len(first.calls) < 3:
                await asyncio.sleep(0.02)
        await here.replace_worker(other)
        state = await asyncio.wait_for(session.wait(accepted), 30)
    assert state.status is AgentStatus.COMPLETED
    assert second.lists == 1


async def test_handlers_get_each_event_once_like_those_of_a_local_agent(
    temporal: TemporalServer, store: SqliteStore
) -> None:
    """The worker keeps no workflow in its cache, so each task of a workflow repeats it from its history."""

    def script() -> ScriptedModel:
        return ScriptedModel([call("add", {"a": 1, "b": 2}), calls(call("add", {"a": 1, "b": 1})), "2"])

    expected: list[str] = []
    local = Agent(script(), [add], name="adder")
    await local.run("Add", on_event=lambda event: expected.append(_named(event)))
    found: dict[str, list[str]] = {"agent": [], "plugin": []}
    agent = Agent(script(), [add], name="adder")
    agent.subscribe(lambda event: found["agent"].append(_named(event)))
    plugin = WhyloopPlugin(store, [agent], handlers=[lambda event: found["plugin"].append(_named(event))])
    here = Fleet(await temporal.connect(plugin), store, "no-cache", plugin)
    async with worker(here.client, here.task_queue, max_cached_workflows=0):
        session = await here.session("adder", "events")
        await session.send("Add")
        await session.handle.result()
    await here.replay("events")
    wanted = sorted(each for each in expected if "Created" not in each)
    assert {name: sorted(events) for name, events in found.items()} == {"agent": wanted, "plugin": wanted}


def _named(event: AgentEvent) -> str:
    return type(event).__name__
