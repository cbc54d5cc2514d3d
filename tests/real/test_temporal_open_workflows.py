"""A session and its large payloads are kept while its workflow on a real Temporal server is open."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowFailureError

from tests.real.temporal import Fleet, TemporalServer, fleet
from tests.real.temporal_scenarios import pay
from whyloop import Agent, AgentStatus
from whyloop.errors import SessionNotFoundError, WorkflowOpenError
from whyloop.stores import SqliteStore, prune
from whyloop.temporal import TemporalRecovery, TemporalSession
from whyloop.temporal.connection import record_open
from whyloop.testing import FakeClock, ScriptedModel, call

pytestmark = [pytest.mark.slow]

LARGE = "Pay 5. " + "x" * 100_000
ENDED = (AgentStatus.COMPLETED, AgentStatus.STOPPED, AgentStatus.FAILED)


@pytest.fixture
def clock() -> FakeClock:
    """A clock that is a day ahead, so that every session is old enough to be pruned."""
    return FakeClock(datetime.now(UTC) + timedelta(days=1))


class Slow(SqliteStore):
    """A store that is slow to say that it has stored the end of a run."""

    def __init__(self, path: Path, clock: FakeClock) -> None:
        super().__init__(path, clock=clock)
        self.ended, self.goes_on = asyncio.Event(), asyncio.Event()
        self.goes_on.set()

    async def append(self, *args: Any, release: bool = False, **options: Any) -> str | None:
        stop = await super().append(*args, release=release, **options)
        if release:
            self.ended.set()
            await self.goes_on.wait()
        return stop


@pytest.fixture
async def store(tmp_path: Path, clock: FakeClock) -> AsyncIterator[Slow]:
    async with Slow(tmp_path / "sessions.db", clock) as store:
        yield store


def cashier(*replies: Any) -> Agent:
    return Agent(ScriptedModel(replies), [pay], name="cashier")


async def pruned(store: SqliteStore) -> list[str]:
    return [name async for ids in prune(store, timedelta(), statuses=ENDED) for name in ids]


def claims(path: Path) -> int:
    """Return how many large payloads are in the file."""
    with sqlite3.connect(path) as db:
        (count,) = db.execute("SELECT count(*) FROM claims").fetchone()
    db.close()
    return int(count)


async def pause(here: Fleet, agent_id: str) -> TemporalSession:
    """Return a session that waits for a person, with a large payload in the store."""
    session = await here.session("cashier", agent_id)
    assert (await asyncio.wait_for(session.send(LARGE), 30)).status is AgentStatus.PAUSED
    return session


async def test_a_session_that_was_stopped_without_workers_is_kept_until_its_workflow_ends(
    temporal: TemporalServer, store: Slow, tmp_path: Path, clock: FakeClock
) -> None:
    async with fleet(temporal, store, [cashier(call("pay", {"amount": 5}))]) as here:
        session = await pause(here, "stopped")
        await here.workers.aclose()
        kept = claims(tmp_path / "sessions.db")
        assert kept
        await store.request_stop("stopped", "enough")
        clock.advance(60)
        assert await pruned(store) == []
        with pytest.raises(WorkflowOpenError, match=f"belongs to the workflow '{here.task_queue}:stopped'"):
            await store.delete("stopped")
        assert claims(tmp_path / "sessions.db") == kept
        recovery = TemporalRecovery(here.client, store, ["cashier"], task_queue=here.task_queue)
        await here.replace_worker()
        assert await recovery.look() == ["stopped"]
        ended = await asyncio.wait_for(session.handle.result(), 30)
        assert (ended.status, ended.reason) == (AgentStatus.STOPPED, "enough")
        await here.replay("stopped")
        clock.advance(60)
        await recovery.look()
        assert await pruned(store) == ["stopped"]
    assert claims(tmp_path / "sessions.db") == 0


async def test_a_session_that_ended_is_kept_until_temporal_knows_it(
    temporal: TemporalServer, store: Slow, clock: FakeClock
) -> None:
    async with fleet(temporal, store, [cashier("Hello.")]) as here:
        session = await here.session("cashier", "ended")
        store.goes_on.clear()
        sending = asyncio.create_task(session.send(LARGE))
        await asyncio.wait_for(store.ended.wait(), 30)
        assert (await store.load("ended")).status is AgentStatus.COMPLETED
        clock.advance(60)
        recovery = TemporalRecovery(here.client, store, ["cashier"], task_queue=here.task_queue)
        await recovery.look()
        assert await pruned(store) == []
        store.goes_on.set()
        await asyncio.wait_for(sending, 30)
        await asyncio.wait_for(session.handle.result(), 30)
        clock.advance(60)
        await TemporalRecovery(here.client, store, ["cashier"]).look()
        assert await pruned(store) == ["ended"]


async def test_an_old_session_is_kept_while_a_new_query_waits_for_a_worker(
    temporal: TemporalServer, store: Slow, clock: FakeClock
) -> None:
    async with fleet(temporal, store, [cashier("Hello.", "Hello again.")]) as here:
        session = await here.session("cashier", "old")
        await asyncio.wait_for(session.send("Hello"), 30)
        await asyncio.wait_for(session.handle.result(), 30)
        first = (await session.handle.describe()).run_id
        clock.advance(60)
        recovery = TemporalRecovery(here.client, store, ["cashier"], task_queue=here.task_queue)
        await recovery.look()
        assert (await store.read("old")).summary.workflow is None
        await here.workers.aclose()
        sending = asyncio.create_task(session.send(LARGE))
        async with asyncio.timeout(30):
            while (await session.handle.describe()).run_id == first:
                await asyncio.sleep(0.05)
        clock.advance(60)
        await recovery.look()
        assert await pruned(store) == []
        await here.replace_worker()
        assert (await asyncio.wait_for(sending, 30)).last_response == "Hello again."


async def test_a_session_can_be_deleted_after_its_workflow_was_terminated(
    temporal: TemporalServer, store: Slow, clock: FakeClock
) -> None:
    async with fleet(temporal, store, [cashier(call("pay", {"amount": 5}))]) as here:
        session = await pause(here, "terminated")
        await session.handle.terminate()
        with pytest.raises(WorkflowOpenError, match="stop the session, and try again in a minute"):
            await store.delete("terminated")
        await store.request_stop("terminated", "enough")
        clock.advance(60)
        await TemporalRecovery(here.client, store, ["cashier"], task_queue=here.task_queue).look()
        assert await pruned(store) == ["terminated"]


async def test_a_session_moves_to_another_task_queue_once_its_workflow_is_closed(
    temporal: TemporalServer, store: Slow
) -> None:
    agent = cashier(call("pay", {"amount": 5}), "Paid.")
    async with fleet(temporal, store, [agent]) as here, fleet(temporal, store, [agent]) as there:
        session = await pause(here, "moved")
        (question,) = session.state.pending_calls
        moved = await there.session("cashier", "moved")
        with pytest.raises(WorkflowOpenError, match=f"'{here.task_queue}:moved'"):
            await moved.approve(question.id)
        await session.handle.terminate()
        await moved.approve(question.id)
        state = await asyncio.wait_for(moved.resume(), 30)
        assert state.status is AgentStatus.COMPLETED
        assert (await store.read("moved")).summary.workflow == f"{there.task_queue}:moved"


async def test_a_workflow_that_is_woken_for_a_deleted_session_fails_with_the_reason(
    temporal: TemporalServer, store: Slow
) -> None:
    async with fleet(temporal, store, [cashier(call("pay", {"amount": 5}))]) as here:
        session = await pause(here, "deleted")
        opened = await store.record_workflow("deleted", "temporal:default", f"{here.task_queue}:deleted")
        await store.forget_workflow("deleted", opened.token)
        await store.delete("deleted")
        await session.handle.signal("wake")
        with pytest.raises(WorkflowFailureError) as failed:
            await asyncio.wait_for(session.handle.result(), 30)
        assert "session 'deleted' not found in this store" in str(failed.value.cause)
        with pytest.raises(SessionNotFoundError):
            await session.send("Pay")


async def test_a_session_that_was_deleted_before_its_workflow_starts_is_missing_and_not_elsewhere(
    temporal: TemporalServer, store: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that stalls for so long that its record of the workflow is forgotten."""

    async def delete_recorded(client: Client, store: Slow, agent_id: str, workflow: str) -> None:
        opened = await record_open(client, store, agent_id, workflow)
        await store.forget_workflow(agent_id, opened.token)
        await store.delete(agent_id)

    async with fleet(temporal, store, [cashier("Hi")]) as here:
        session = await here.session("cashier", "stalled")
        monkeypatch.setattr("whyloop.temporal.session.record_open", delete_recorded)
        with pytest.raises(SessionNotFoundError, match="session 'stalled' not found in this store"):
            await asyncio.wait_for(session.send("Hello"), 30)
        with pytest.raises(WorkflowFailureError):  # It does not wait for a session that never comes.
            await asyncio.wait_for(session.handle.result(), 30)
