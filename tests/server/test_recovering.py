"""Sessions that continue by themselves while a server lives, and clients that resume them too."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.broadcasting.support import until
from tests.server.gate import Gate
from tests.server.support import Beside, Lab, agent_with
from whyloop import Agent, Session, Usage
from whyloop.errors import StoreUnavailableError
from whyloop.sessions import recovery
from whyloop.stores import Entry, MemoryStore, SqliteStore, Store, Summary
from whyloop.testing import call


@pytest.fixture
def two(store: Store, tmp_path: Path) -> tuple[Store, Store]:
    """The same sessions as two processes have them; the second one is to die."""
    if isinstance(store, MemoryStore):
        return store, MemoryStore(beside=store)
    return store, SqliteStore(tmp_path / "whyloop.db")


def recovering(store: Store, agent: Any, **options: Any) -> Lab:
    """A server that looks for sessions to continue all the time."""
    lab = Lab(store, agent, recover=True, **options)
    assert lab.server._recovery is not None
    lab.server._recovery._every_seconds = 0.01
    return lab


async def dies(store: Any, agent: Agent, appends: int, agent_id: str = "a") -> None:
    """Run a session in a process that dies after so many appends."""
    append, left = store.append, appends

    async def appends_for_a_while(agent_id: str, entries: Sequence[Entry], **rest: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise StoreUnavailableError("the process died")
        return await append(agent_id, entries, **rest)

    session = await Session.open(store, agent, agent_id, create=True)
    store.append = appends_for_a_while
    with suppress(StoreUnavailableError):
        await session.send("go")
    await store.close()


def steps(count: int) -> Agent:
    return agent_with(*[call("echo")] * count, "done")


async def ended(lab: Lab, path: str = "/sessions/a") -> str:
    """The status of a session when it has ended."""
    async with asyncio.timeout(10):
        while True:
            session = (await lab.get(path)).json["session"]
            if session["status"] in ("completed", "stopped", "failed"):
                status: str = session["status"]
                return status
            await asyncio.sleep(0.005)


async def test_a_session_whose_runner_died_continues_by_itself(two: tuple[Store, Store]) -> None:
    await dies(two[1], steps(3), 3)
    beside = Beside()
    lab = recovering(two[0], steps(3), also=[beside])
    async with lab.server.lifespan():
        assert await ended(lab) == "completed"
    events = (await lab.get("/sessions/a/events")).json["events"]
    assert [each["seq"] for each in events] == list(range(1, len(events) + 1))
    assert beside.numbered == events[-len(beside.numbered) :]
    assert beside.numbered[-1]["data"]["status"] == "completed"


async def test_the_lifespan_of_a_standalone_app_recovers_too(two: tuple[Store, Store]) -> None:
    await dies(two[1], steps(3), 3)
    lab, stop = recovering(two[0], steps(3)), asyncio.Event()
    started = iter([{"type": "lifespan.startup"}])

    async def receive() -> dict[str, Any]:
        for message in started:
            return message
        await stop.wait()
        return {"type": "lifespan.shutdown"}

    async def send(message: Any) -> None: ...

    living = asyncio.create_task(lab.server({"type": "lifespan"}, receive, send))
    assert await ended(lab) == "completed"
    stop.set()
    await living


@pytest.mark.parametrize("recover", [None, False])
async def test_a_server_recovers_nothing_unless_it_is_asked_to(
    two: tuple[Store, Store], recover: bool | None
) -> None:
    await dies(two[1], steps(3), 3)
    lab = Lab(two[0], steps(3), **({} if recover is None else {"recover": recover}))
    async with lab.server.lifespan():
        for _ in range(20):
            await asyncio.sleep(0)
        assert (await lab.get("/sessions/a")).json["session"]["status"] == "in_progress"


async def test_a_pause_whose_questions_are_decided_continues_by_itself(store: Store) -> None:
    lab = recovering(store, agent_with(call("pay", {"amount": 7}), "paid"))
    async with lab.server.lifespan():
        path = await lab.asked()
        [pending] = (await lab.get(path)).json["pending_calls"]
        await lab.post(f"{path}/approve", {"question_id": pending["id"]})
        assert await ended(lab) == "completed"
    assert (await lab.get(path)).json["last_response"] == "paid"


async def test_one_agent_continues_the_sessions_of_its_name_only(
    two: tuple[Store, Store], caplog: pytest.LogCaptureFixture
) -> None:
    await dies(two[1], agent_with(*[call("echo")] * 3, "done", name="other"), 3)
    lab = recovering(two[0], steps(3))
    async with lab.server.lifespan():
        await until(lambda: caplog.records)
    assert "no agent is named 'other'" in caplog.text
    assert (await lab.get("/sessions/a")).json["session"]["status"] == "in_progress"


async def test_a_function_finds_the_agent_that_continues_a_session(two: tuple[Store, Store]) -> None:
    await dies(two[1], agent_with(*[call("echo")] * 3, "done", name="other"), 3)

    async def find(summary: Summary) -> Agent:
        return agent_with("done by another", name=summary.agent)

    lab = recovering(two[0], find)
    async with lab.server.lifespan():
        assert await ended(lab) == "completed"
    assert (await lab.get("/sessions/a")).json["last_response"] == "done by another"


async def test_a_function_that_fails_is_reported_and_asked_again(
    two: tuple[Store, Store], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "SECONDS_AFTER_ERROR", 0)
    await dies(two[1], steps(3), 3)
    asked = 0

    def find(summary: Summary) -> Agent:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise KeyError("who?")
        return steps(3)

    lab = recovering(two[0], find)
    async with lab.server.lifespan():
        assert await ended(lab) == "completed"
    assert "session 'a' could not be continued: 'who?'" in caplog.text


# Clients resume at the same time


async def test_resuming_a_run_that_a_recovery_continues_succeeds(store: Store) -> None:
    gate = Gate()
    lab = Lab(store, agent_with(call("pay", {"amount": 7})))
    path = await lab.asked()
    [pending] = (await lab.get(path)).json["pending_calls"]
    await lab.post(f"{path}/approve", {"question_id": pending["id"]})
    recovered = await Session.open(store, gate.agent, "a")
    running = asyncio.create_task(recovered.recover())
    async with asyncio.timeout(10):
        await gate.asked.wait()
    resumed = await lab.post(f"{path}/resume")
    assert resumed.status == 202
    assert (resumed.json["session"]["status"], resumed.json["session"]["is_running"]) == ("in_progress", True)
    assert resumed.headers["etag"] == (await lab.get(path)).headers["etag"]
    keyed = await lab.post(f"{path}/resume", {}, headers={"idempotency-key": "k"})
    assert keyed.status == 202
    granted = await lab.post(f"{path}/resume", {"grant": {"steps": 1}})
    assert (granted.status, granted.error) == (409, "session_running")
    gate.open.set()
    await running


async def test_resuming_before_the_recovery_has_recorded_anything_succeeds(
    store: Store,
) -> None:
    lab = Lab(store, agent_with(call("pay", {"amount": 7}), "paid"))
    path = await lab.asked()
    [pending] = (await lab.get(path)).json["pending_calls"]
    lease = await store.acquire("a", "a recovery", 30)
    assert (await lab.post(f"{path}/resume")).status == 409  # It waits for a person, and somebody has it.
    await store.release(lease)
    await lab.post(f"{path}/approve", {"question_id": pending["id"]})
    await store.acquire("a", "a recovery", 30)
    assert (await lab.post(f"{path}/resume")).status == 202


async def test_a_session_whose_runner_was_killed_is_listed_with_its_steps(two: tuple[Store, Store]) -> None:
    usage = Usage(70, 30, cost=Decimal("0.02"))
    await dies(two[1], agent_with(*[call("echo", usage=usage)] * 12, "done"), 20)
    lab = Lab(two[0])
    (listed,) = (await lab.get("/sessions")).json["sessions"]
    session = (await lab.get("/sessions/a")).json["session"]
    counts = ("step_count", "tokens", "tokens_known", "cost", "active_seconds", "step_marks")
    assert [listed[name] for name in counts] == [session[name] for name in counts]
    assert (listed["step_count"], listed["tokens"], listed["cost"]) == (9, 1000, "0.20")
    stats = (await lab.get("/stats")).json
    assert (stats["statuses"], stats["total"]) == ({"in_progress": 1}, 1)
