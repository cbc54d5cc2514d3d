"""Sessions on a real Temporal server: the outcomes of local sessions, and features of Temporal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from tests.real.temporal import Fleet, TemporalServer, fleet, worker
from whyloop import Agent, AgentStatus, Backoff, Budget, ErrorPolicy, StopReason, tool
from whyloop.errors import (
    ApprovalError,
    ConfigurationError,
    NotResumableError,
    RateLimitError,
    StoreUnavailableError,
)
from whyloop.stores import SqliteStore
from whyloop.temporal import TemporalSession, WhyloopPlugin, activities, session as sessions
from whyloop.temporal.connection import signal
from whyloop.temporal.display import RULE
from whyloop.testing import ScriptedModel, call, calls
from whyloop.tools.tool import ToolContext

pytestmark = [pytest.mark.slow]


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(needs_approval=True)
def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


async def test_a_run_with_calls_ends_like_a_local_one_and_shows_why_in_temporal(
    temporal: TemporalServer, store: SqliteStore
) -> None:
    two = calls(call("add", {"a": 1, "b": 2}), call("add", {"a": 3, "b": 4}))
    model = ScriptedModel([call("add", {"a": 1, "b": 2}), two, "It is 3."])
    async with fleet(temporal, store, [Agent(model, [add], name="adder")]) as here:
        session = await here.session("adder", "calls", {"customer": "c-1"})
        state = await session.send("How much is 1 + 2?")
        ended = await session.handle.result()
        query = "WhyloopStatus = 'completed' AND WhyloopRule = 'ToolCallPresenceCheck'"
        query += f" AND TaskQueue = '{here.task_queue}'"
        found = await _found(here, query)
        explained, trace = await session.handle.query("explain"), await session.handle.query("trace")
    assert state.status is AgentStatus.COMPLETED
    assert state.metadata == {"customer": "c-1"}
    assert [message.content for message in state.messages if message.role == "tool"] == ["3", "3", "7"]
    assert (ended.status, ended.resolved_by, ended.steps) == (
        AgentStatus.COMPLETED,
        "ToolCallPresenceCheck",
        3,
    )
    assert explained == state.explain()
    assert [outcome["resolved_by"] for outcome in trace] == ["ToolCallPresenceCheck"] * 3
    assert found == [f"{here.task_queue}:calls"]


async def test_each_call_is_an_activity_with_its_key_and_its_limits(
    temporal: TemporalServer, store: SqliteStore
) -> None:
    keys: list[str] = []

    @tool(timeout=7)
    def book(context: ToolContext) -> str:
        """Book."""
        keys.append(context.idempotency_key)
        return "booked"

    model = ScriptedModel([calls(call("book"), call("book")), "Booked."])
    async with fleet(temporal, store, [Agent(model, [book], name="clerk")], heartbeat=9) as here:
        await (await here.session("clerk", "activities")).send("Book")
        (history,) = await here.histories("activities")
    found = {"model": [], "book": []}  # type: ignore[var-annotated]
    for event in history.events:
        if event.HasField("activity_task_scheduled_event_attributes"):
            summary = event.user_metadata.summary.data.decode().strip('"')
            found.setdefault(summary, []).append(event.activity_task_scheduled_event_attributes)
    assert sorted(each.activity_id for each in found["book"]) == sorted(keys)
    assert [len(found["model"]), len(set(keys))] == [2, 2]
    for name, seconds in (("book", 7 + 30), ("model", 24 * 60 * 60)):
        for each in found[name]:
            assert each.start_to_close_timeout.ToTimedelta() == timedelta(seconds=seconds)
            assert each.heartbeat_timeout.ToTimedelta() == timedelta(seconds=9)
            assert each.retry_policy.maximum_attempts == 1


async def test_timers_are_named_after_what_waits(temporal: TemporalServer, store: SqliteStore) -> None:
    patient: dict[str, Any] = {"error_policy": ErrorPolicy.retry_all(), "backoff": Backoff(base=0.01)}
    model = ScriptedModel([RateLimitError(), call("pay", {"amount": 5})])
    async with fleet(temporal, store, [Agent(model, [pay], name="cashier", timeout=300, **patient)]) as here:
        await (await here.session("cashier", "timers")).send("Pay 5")
        async with asyncio.timeout(30):
            while len(found := await _timers(here, "timers")) < 3:  # The last one begins after the pause.
                await asyncio.sleep(0.05)
    (look,), (retry,) = found.pop("a look at the store"), found.pop("a wait before a retry")
    assert (look, retry < 1) == (24 * 60 * 60, True)
    assert set(found) == {""}  # The deadline, which is one of asyncio.


async def _timers(here: Fleet, agent_id: str) -> dict[str, list[float]]:
    """Return the seconds of the timers of a session, by name."""
    found: dict[str, list[float]] = {}
    (history,) = await here.histories(agent_id)
    for event in history.events:
        if event.HasField("timer_started_event_attributes"):
            name = event.user_metadata.summary.data.decode().strip('"')
            limit = event.timer_started_event_attributes.start_to_fire_timeout
            found.setdefault(name, []).append(limit.ToTimedelta().total_seconds())
    return found


async def test_a_worker_of_a_program_defines_the_search_attributes(store: SqliteStore) -> None:
    server = TemporalServer(in_memory=True)  # It has none yet.
    server.start()
    try:
        plugin = WhyloopPlugin(store, [Agent(ScriptedModel(["Hi"]), name="greeter")])
        client = await Client.connect(server.address, plugins=[plugin])
        async with worker(client):
            session = await TemporalSession.open(client, store, "greeter", "new", create=True)
            state = await asyncio.wait_for(session.send("Hello"), 30)
            await session.handle.result()
            shown = (await session.handle.describe()).typed_search_attributes
    finally:
        server.remove()
    assert state.status is AgentStatus.COMPLETED
    assert shown[RULE] == "ToolCallPresenceCheck"


async def test_a_worker_that_may_not_define_search_attributes_logs_the_commands(
    temporal: TemporalServer,
    store: SqliteStore,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def refuse(client: Client) -> None:
        raise ConfigurationError("define them with `temporal operator`")

    monkeypatch.setattr("whyloop.temporal.plugin.add_search_attributes", refuse)
    async with fleet(temporal, store, [Agent(ScriptedModel(["Hi"]), name="greeter")]) as here:
        state = await asyncio.wait_for((await here.session("greeter", "logged")).send("Hello"), 30)
    assert state.status is AgentStatus.COMPLETED
    assert "if their search attributes are missing: define them with `temporal operator`" in caplog.text


class Slow(SqliteStore):
    """A store that is slow to say that it has stored the end of a run."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.released = asyncio.Event()

    async def append(self, *args: Any, release: bool = False, **options: Any) -> str | None:
        stop = await super().append(*args, release=release, **options)
        if release:
            await self.released.wait()
        return stop


async def test_a_workflow_explains_an_end_as_soon_as_it_is_in_the_store(
    temporal: TemporalServer, tmp_path: Path
) -> None:
    agent = Agent(ScriptedModel(["Hi."]), name="greeter")
    async with Slow(tmp_path / "slow.db") as slow, fleet(temporal, slow, [agent]) as here:
        session = await here.session("greeter", "end")
        state = await asyncio.wait_for(session.send("Hello"), 30)
        explained = await session.handle.query("explain")
        snapshot = await session.handle.query("state")
        slow.released.set()
    assert explained == state.explain()
    assert snapshot == state.to_dict()


async def test_a_call_that_waits_for_a_person_runs_after_the_approval(
    temporal: TemporalServer, store: SqliteStore, caplog: pytest.LogCaptureFixture
) -> None:
    model = ScriptedModel([call("pay", {"amount": 5}), "Paid."])
    async with fleet(temporal, store, [Agent(model, [pay], name="cashier")]) as here:
        session = await here.session("cashier", "approval")
        state = await session.send("Pay 5")
        assert state.status is AgentStatus.PAUSED
        with pytest.raises(ApprovalError):
            await session.approve("unknown")
        await session.approve(state.pending_calls[0].id, by="Ann")
        state = await session.resume()
        with pytest.raises(NotResumableError):
            await session.resume()
    assert state.status is AgentStatus.COMPLETED
    assert "approved by Ann" in state.explain()
    assert "no tool call waits for an answer to question 'unknown'" in caplog.text
    assert "Traceback" not in caplog.text


async def test_more_steps_are_granted_to_a_run_that_a_limit_stopped(
    temporal: TemporalServer, store: SqliteStore
) -> None:
    model = ScriptedModel([call("add", {"a": 1, "b": 2}), call("add", {"a": 2, "b": 2}), "4"])
    async with fleet(temporal, store, [Agent(model, [add], name="adder", max_steps=1)]) as here:
        session = await here.session("adder", "grant")
        state = await session.send("Add")
        assert state.last_continuation_outcome is not None
        assert state.last_continuation_outcome.stop_reason is StopReason.STEPS_LIMIT_REACHED
        state = await session.resume(grant=Budget(steps=5))
    assert state.status is AgentStatus.COMPLETED


class Streaming:
    """A model that writes one word, and then nothing."""

    def __init__(self) -> None:
        self.wrote = asyncio.Event()

    async def respond(self, request: Any) -> AsyncIterator[Any]:
        from whyloop.values.model import TextDelta

        yield TextDelta("Once ")
        self.wrote.set()
        await asyncio.Event().wait()


async def test_a_stop_ends_an_answer_and_keeps_what_had_arrived(
    temporal: TemporalServer, store: SqliteStore
) -> None:
    model = Streaming()
    async with fleet(temporal, store, [Agent(model, name="writer")]) as here:
        session = await here.session("writer", "stop")
        running = asyncio.create_task(session.send("Write"))
        await asyncio.wait_for(model.wrote.wait(), 20)
        await session.request_stop("enough")
        state = await asyncio.wait_for(running, 20)
    assert state.status is AgentStatus.STOPPED
    assert (state.messages[-1].content, state.messages[-1].incomplete) == ("Once ", True)


async def test_a_stop_request_in_the_store_ends_a_run_too(
    temporal: TemporalServer, store: SqliteStore
) -> None:
    model = Streaming()
    async with fleet(temporal, store, [Agent(model, name="writer")]) as here:
        session = await here.session("writer", "stop-by-store")
        running = asyncio.create_task(session.send("Write"))
        await asyncio.wait_for(model.wrote.wait(), 20)
        assert await store.request_stop("stop-by-store", "enough")
        state = await asyncio.wait_for(running, 20)
    assert state.status is AgentStatus.STOPPED


async def test_a_stop_reaches_a_run_although_temporal_did_not_answer_at_first(
    temporal: TemporalServer, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []

    async def unavailable_twice(client: Any, workflow: str, name: str, *given: Any) -> bool:
        sent.append(name)
        if len(sent) <= 2:
            raise StoreUnavailableError("Temporal could not be reached")
        return await signal(client, workflow, name, *given)

    for module in (sessions, activities):
        monkeypatch.setattr(module, "signal", unavailable_twice)
    model = Streaming()
    async with fleet(temporal, store, [Agent(model, name="writer")]) as here:
        session = await here.session("writer", "stop-again")
        with pytest.raises(StoreUnavailableError):
            await session.request_stop("nothing has begun")
        running = asyncio.create_task(session.send("Write"))
        await asyncio.wait_for(model.wrote.wait(), 20)
        sent.clear()
        await session.request_stop("enough")
        state = await asyncio.wait_for(running, 20)
    assert state.status is AgentStatus.STOPPED
    assert sent == ["stop"] * 3


async def test_a_deadline_cuts_off_a_tool_call(temporal: TemporalServer, store: SqliteStore) -> None:
    async def wait() -> str:
        """Wait."""
        await asyncio.Event().wait()
        return ""

    model = ScriptedModel([call("wait")])
    agent = Agent(model, [wait], name="waiter", timeout=1, stop_grace=0)
    async with fleet(temporal, store, [agent]) as here:
        session = await here.session("waiter", "deadline")
        state = await asyncio.wait_for(session.send("Wait"), 30)
    assert state.last_continuation_outcome is not None
    assert state.last_continuation_outcome.stop_reason is StopReason.TIME_LIMIT_REACHED
    assert "Outcome unknown" in state.messages[-1].content


async def test_waiting_for_a_past_execution_returns_its_end(
    temporal: TemporalServer, store: SqliteStore
) -> None:
    async with fleet(temporal, store, [Agent(ScriptedModel(["One", "Two"]), name="writer")]) as here:
        late, other = await here.session("writer", "past"), await here.session("writer", "past")
        accepted = await late.begin("First")
        await other.wait(accepted)
        newest = await other.send("Second")
        state = await asyncio.wait_for(late.wait(accepted), 20)
    assert [message.content for message in state.messages] == ["First", "One"]
    assert state.status is AgentStatus.COMPLETED
    assert newest.messages[-1].content == "Two"


async def _found(here: Fleet, query: str) -> list[str]:
    """Return the workflows that a search finds, as soon as it finds some: its index is a little late."""
    for _ in range(100):
        found = [each.id async for each in here.client.list_workflows(query)]
        if found:
            return found
        await asyncio.sleep(0.1)
    return []
