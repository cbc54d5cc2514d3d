"""A server whose sessions Temporal runs: the same answers as from one that runs them itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.real.temporal import Fleet, TemporalServer, fleet
from tests.server.support import Lab
from whyloop import Agent, tool
from whyloop.errors import SessionRunningError
from whyloop.stores import SqliteStore
from whyloop.stores.records import RequestKey
from whyloop.temporal import Accepted, TemporalEngine, TemporalSession, engine as engines
from whyloop.testing import ScriptedModel, call

pytestmark = [pytest.mark.slow]


@tool(needs_approval=True)
def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


def cashier() -> Agent:
    return Agent(ScriptedModel([call("pay", {"amount": 5}), "Paid."]), [pay], name="cashier")


def lab_of(here: Fleet, agent: Agent | None = None) -> Lab:
    engine = TemporalEngine(here.client, here.store, "cashier", task_queue=here.task_queue)
    return Lab(here.store, agent, engine=engine)


@asynccontextmanager
async def running(temporal: TemporalServer, folder: Path) -> AsyncIterator[Fleet]:
    async with SqliteStore(folder / "sessions.db") as store, fleet(temporal, store, [cashier()]) as here:
        yield here


async def at_rest(lab: Lab, path: str, status: str) -> None:
    """Wait until a session has a status, and does not run."""
    async with asyncio.timeout(20):
        while True:
            session = (await lab.get(path)).json["session"]
            if (session["status"], session["is_running"]) == (status, False):
                return
            await asyncio.sleep(0.02)


async def paused(lab: Lab) -> tuple[str, str]:
    """A session that waits for a person; its path, and the question."""
    path = await lab.made()
    await lab.post(f"{path}/messages", {"text": "Pay 5"})
    await at_rest(lab, path, "paused")
    return path, (await lab.get(path)).json["pending_calls"][0]["id"]


async def test_a_question_is_stored_before_it_is_accepted_and_asked_once(
    temporal: TemporalServer, tmp_path: Path
) -> None:
    async with running(temporal, tmp_path) as here:
        lab = lab_of(here)
        path = await lab.made()
        headers = {"idempotency-key": "one"}
        first = await lab.post(f"{path}/messages", {"text": "Pay 5"}, headers=headers)
        again = await lab.post(f"{path}/messages", {"text": "Pay 5"}, headers=headers)
        await at_rest(lab, path, "paused")
        messages = [message.text for message in (await here.store.load("a")).messages if message.is_user]
        info = (await lab.get("/info")).json
    assert info["can_run"] is True
    assert (first.status, first.json["session"]["is_running"]) == (202, True)
    assert first.json["session"]["agent"] == "cashier"
    assert again.json == first.json
    assert messages == ["Pay 5"]


async def test_a_call_is_decided_and_the_session_resumed_at_the_workers(
    temporal: TemporalServer, tmp_path: Path
) -> None:
    async with running(temporal, tmp_path) as here:
        lab = lab_of(here, cashier())
        path, question = await paused(lab)
        wrong = {"question_id": question, "arguments": {"amount": "x"}}
        assert (await lab.post(f"{path}/approve", wrong)).status == 400
        edited = {"question_id": question, "arguments": {"amount": 4}}
        assert (await lab.post(f"{path}/approve", edited)).status == 200
        assert (await lab.post(f"{path}/resume")).status == 202
        await at_rest(lab, path, "completed")
        assert (await lab.post(f"{path}/resume")).error == "not_resumable"
        state = await here.store.load("a")
    assert [message.text.splitlines()[-1] for message in state.messages if message.is_tool] == ["paid 4"]


async def test_edited_arguments_are_checked_by_a_worker_if_the_server_has_no_agent(
    temporal: TemporalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(temporal, tmp_path) as here:
        lab = lab_of(here)
        path, question = await paused(lab)
        before = (await lab.get(path)).headers["etag"]
        wrong = await lab.post(f"{path}/approve", {"question_id": question, "arguments": {"amount": "lots"}})
        unknown = await lab.post(f"{path}/approve", {"question_id": "no", "arguments": {"amount": 4}})
        right = {"question_id": question, "arguments": {"amount": 4}, "by": "ada"}
        changed = await lab.post(f"{path}/approve", right, headers={"if-match": '"older"'})
        headers = {"idempotency-key": "one", "if-match": before}
        first = await lab.post(f"{path}/approve", right, headers=headers)
        again = await lab.post(f"{path}/approve", right, headers=headers)
        repeated = await lab.post(f"{path}/approve", right)
        events = [each["event"] for each in (await lab.get(f"{path}/events")).json["events"]]
        await lab.post(f"{path}/resume")
        await at_rest(lab, path, "completed")
        state = await here.store.load("a")
        monkeypatch.setattr(engines, "SECONDS_FOR_A_WORKER", 0.5)
        await here.workers.aclose()
        alone = await lab.post(f"{path}/approve", right)
    assert (wrong.status, wrong.error) == (400, "bad_request")
    assert wrong.message.startswith("invalid arguments for pay: ")
    assert (unknown.status, unknown.error) == (409, "not_pending")
    assert [call["id"] for call in unknown.json["error"]["pending_calls"]] == [question]
    assert changed.status == 412
    assert (first.status, first.json["pending_calls"]) == (200, [])
    assert again.json == first.json
    assert repeated.status == 200
    assert events.count("agent.approval.decided") == 1
    assert [message.text.splitlines()[-1] for message in state.messages if message.is_tool] == ["paid 4"]
    assert "The same decision can be repeated" in alone.message


async def test_a_stop_ends_a_pause_and_its_workflow(temporal: TemporalServer, tmp_path: Path) -> None:
    async with running(temporal, tmp_path) as here:
        lab = lab_of(here)
        path, _ = await paused(lab)
        assert (await lab.post(f"{path}/stop", {"reason": "enough"})).json == {"stopped": True}
        session = await here.session("cashier", "a")
        ended = await session.handle.result()
    assert (str(ended.status), ended.reason) == ("stopped", "enough")


async def test_a_server_without_workers_says_so(
    temporal: TemporalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "SECONDS_FOR_A_WORKER", 0.5)
    async with running(temporal, tmp_path) as here:
        lab = lab_of(Fleet(here.client, here.store, "nothing-there", here.plugin))
        path = await lab.made()
        answer = await lab.post(f"{path}/messages", {"text": "Pay 5"})
    assert (answer.status, answer.error) == (503, "no_worker")
    assert answer.message == (
        "no worker of task queue 'nothing-there' began within 0.5 s: start one with `whyloop worker "
        "--temporal`. The request is queued, and runs when a worker starts. Repeated, it may run twice: look "
        "at the session first, or use an Idempotency-Key for each request"
    )


@pytest.mark.parametrize(
    ("headers", "advice", "status"),
    [
        ({"idempotency-key": "one"}, "It can be repeated under the same Idempotency-Key, and runs once", 202),
        ({}, "Repeated, it may run twice", 409),
    ],
)
async def test_a_request_that_is_repeated_before_a_worker_starts(
    temporal: TemporalServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    headers: dict[str, str],
    advice: str,
    status: int,
) -> None:
    async with running(temporal, tmp_path) as here:
        await here.workers.aclose()
        lab = lab_of(here)
        path = await lab.made()
        monkeypatch.setattr(engines, "SECONDS_FOR_A_WORKER", 1.0)
        first = await lab.post(f"{path}/messages", {"text": "Pay 5"}, headers=headers)
        monkeypatch.undo()
        repeating = asyncio.create_task(lab.post(f"{path}/messages", {"text": "Pay 5"}, headers=headers))
        await asyncio.sleep(0.5)  # It is queued by now.
        await here.replace_worker()
        second = await repeating
        await at_rest(lab, path, "paused")
        await asyncio.sleep(1.0)  # The second one would be recorded by now.
        messages = [message.text for message in (await here.store.load("a")).messages if message.is_user]
    assert (first.status, first.error) == (503, "no_worker")
    assert advice in first.message
    assert second.status == status
    assert messages == ["Pay 5"]


class Held(SqliteStore):
    """A store that holds up the record of a request that came with a key."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.free = asyncio.Event()

    async def append(self, *args: Any, key: RequestKey | None = None, **options: Any) -> str | None:
        if key is not None:
            await self.free.wait()
        return await super().append(*args, key=key, **options)


async def test_a_request_that_is_repeated_at_another_server_before_it_is_recorded(
    temporal: TemporalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, refused, begun = TemporalSession.begin, asyncio.Event(), asyncio.Event()

    async def noted(self: TemporalSession, *args: Any, **options: Any) -> Accepted:
        try:
            accepted = await begin(self, *args, **options)
        except SessionRunningError:
            refused.set()
            raise
        begun.set()
        return accepted

    monkeypatch.setattr(TemporalSession, "begin", noted)
    monkeypatch.setattr("whyloop.server.requests.MOMENTS", 1)
    async with Held(tmp_path / "held.db") as store, fleet(temporal, store, [cashier()]) as here:
        path, headers = await lab_of(here).made(), {"idempotency-key": "one"}

        def post() -> asyncio.Task[Any]:
            body = {"text": "Pay 5"}
            return asyncio.create_task(lab_of(here).post(f"{path}/messages", body, headers=headers))

        first = post()
        await asyncio.wait_for(begun.wait(), 20)
        second = post()
        await asyncio.wait_for(refused.wait(), 20)
        store.free.set()
        answers = await asyncio.wait_for(asyncio.gather(first, second), 20)
    assert [answer.status for answer in answers] == [202, 202]
    assert answers[0].json == answers[1].json
