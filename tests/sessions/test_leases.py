"""One runner at a time: leases that lapse, beat and get lost, and stores that fail meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support import scripted
from whyloop import Session, tool
from whyloop.errors import LeaseLostError, SessionNotFoundError, SessionRunningError, StoreUnavailableError
from whyloop.stores import Entry, Lease, MemoryStore, SqliteStore, Store
from whyloop.stores.live import Heartbeat, SessionJournal, live
from whyloop.testing import FakeClock, Reply, call, calls


class Now:
    """A clock that tests put forward and back."""

    def __init__(self) -> None:
        self._clock = FakeClock()
        self.shift = timedelta()

    def now(self) -> Any:
        return self._clock.now() + self.shift


@pytest.fixture(params=["memory", "sqlite"])
def timed(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Store, Now]:
    now: Any = Now()
    if request.param == "memory":
        return MemoryStore(clock=now), now
    return SqliteStore(tmp_path / "whyloop.db", clock=now), now


async def test_a_runner_that_takes_over_during_a_step_has_the_session(timed: tuple[Store, Now]) -> None:
    store, now = timed
    seen: list[str] = []

    @tool
    async def slow() -> str:
        now.shift += timedelta(seconds=31)
        other = await Session.open(store, scripted("never mind", tools=[slow]), session.agent_id)
        state = await other.resume()
        seen.append(state.pending_calls[0].question)
        await other.deny(state.pending_calls[0].id, "it hangs", by="ada")
        seen.append((await other.resume()).status)
        return "too late"

    session = await Session.open(store, scripted(call("slow"), "never said", tools=[slow]), owner="zombie")
    with pytest.raises(LeaseLostError, match="was not recorded"):
        await session.send("go")
    assert seen[0].startswith("It is unknown whether slow ran")
    assert seen[1] == "completed"
    state = await store.load(session.agent_id)
    assert [message.text for message in state.messages] == [
        "go",
        "",
        "Outcome unknown: it was interrupted before its result was recorded, "
        "and ada did not let it run again: it hangs",
        "never mind",
    ]
    assert await session.refresh() == state


async def test_an_idempotent_call_is_repeated_by_the_next_runner(timed: tuple[Store, Now]) -> None:
    store, now = timed
    runs: list[str] = []

    @tool(idempotent=True)
    async def sure(context: Any = None) -> str:
        runs.append("run")
        if len(runs) == 1:
            now.shift += timedelta(seconds=31)
            other = await Session.open(store, scripted("done", tools=[sure]), session.agent_id)
            runs.append((await other.resume()).status)
        return "sure"

    session = await Session.open(store, scripted(call("sure"), tools=[sure]))
    with pytest.raises(LeaseLostError):
        await session.send("go")
    assert runs == ["run", "run", "completed"]


async def test_a_clock_that_jumps_back_a_day_locks_no_runner_out(timed: tuple[Store, Now]) -> None:
    store, now = timed
    agent = scripted("one", "two")
    session = await Session.open(store, agent)
    await store.acquire(session.agent_id, "a dead process", 30)
    with pytest.raises(SessionRunningError, match="a dead process"):
        await session.send("go")
    now.shift -= timedelta(days=1)
    assert (await session.send("go")).status == "completed"


async def test_a_clock_that_jumps_back_in_the_middle_of_a_run_does_no_harm(timed: tuple[Store, Now]) -> None:
    store, now = timed

    @tool
    async def jump() -> str:
        now.shift -= timedelta(days=400)
        return "back in time"

    agent = scripted(call("jump"), call("jump"), "done", tools=[jump])
    session = await Session.open(store, agent)
    state = await session.send("go")
    assert state.status == "completed"
    assert await store.load(session.agent_id) == state


class Beats(MemoryStore):
    """A store that says when a lease is renewed, and how that goes."""

    def __init__(self) -> None:
        super().__init__()
        self.renewed = asyncio.Event()
        self.answers: list[BaseException | str | None] = []

    async def renew(self, lease: Lease) -> str | None:
        answer = self.answers.pop(0) if self.answers else None
        if not self.answers:
            self.renewed.set()
        if isinstance(answer, BaseException):
            raise answer
        return answer or await super().renew(lease)


def waiting_for(event: asyncio.Event) -> Any:
    @tool
    async def wait() -> str:
        async with asyncio.timeout(5):
            await event.wait()
        return "waited"

    return wait


async def test_a_lease_is_renewed_while_the_session_runs() -> None:
    store = Beats()
    agent = scripted(call("wait"), "done", tools=[waiting_for(store.renewed)])
    session = await Session.open(store, agent, lease_seconds=0.03)
    assert (await session.send("go")).status == "completed"


async def test_a_request_to_stop_is_heard_with_the_heart() -> None:
    store = Beats()
    store.answers = ["enough"]
    agent = scripted(call("wait"), call("wait"), tools=[waiting_for(store.renewed)])
    session = await Session.open(store, agent, lease_seconds=0.03)
    state = await session.send("go")
    assert (state.stop_reason, state.step_count) == ("user_requested", 1)
    assert "enough" in state.explain()


@pytest.mark.parametrize("lost", [LeaseLostError("x", "another"), SessionNotFoundError("x")])
async def test_a_lost_lease_ends_what_is_under_way(lost: BaseException) -> None:
    store = Beats()
    store.answers = [lost]
    agent = scripted(call("wait"), tools=[waiting_for(asyncio.Event())])
    session = await Session.open(store, agent, lease_seconds=0.03)
    with pytest.raises(type(lost)):
        await session.send("go")
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_a_store_that_cannot_be_reached_for_a_moment_costs_no_lease(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Beats()
    store.answers = [StoreUnavailableError("down"), None]
    agent = scripted(call("wait"), "done", tools=[waiting_for(store.renewed)])
    session = await Session.open(store, agent, lease_seconds=0.03)
    with caplog.at_level(logging.WARNING, "whyloop"):
        assert (await session.send("go")).status == "completed"
    assert "could not be renewed: down" in caplog.text


async def test_the_id_of_a_session_cannot_forge_a_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    store = Beats()
    store.answers = [StoreUnavailableError("down\nERROR root: hacked"), None]
    agent = scripted(call("wait"), "done", tools=[waiting_for(store.renewed)])
    session = await Session.open(store, agent, "a\nERROR root: forged", create=True, lease_seconds=0.03)
    with caplog.at_level(logging.WARNING, "whyloop"):
        await session.send("go")
    lines = [record.getMessage() for record in caplog.records]
    assert any("could not be renewed" in line for line in lines)
    assert not any("\n" in line for line in lines)


async def test_a_heart_that_was_stopped_beats_no_more() -> None:
    store = Beats()
    session = await Session.open(store, scripted())
    lease = await store.acquire(session.agent_id, "me", 0.003)
    journal = SessionJournal(store, lease, session._reading, live(store))
    heart = Heartbeat(store, lease, print, journal)
    async with heart, asyncio.timeout(5):
        await store.renewed.wait()
    assert heart.is_still


class Failing(MemoryStore):
    """A store whose disk is full from some write on, until it is not."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.left = after

    async def append(self, agent_id: str, entries: Sequence[Entry], **rest: Any) -> str | None:
        self.left -= 1
        if self.left < 0:
            raise StoreUnavailableError("the disk is full")
        return await super().append(agent_id, entries, **rest)


@tool(idempotent=True)
async def sure() -> str:
    return "sure"


@pytest.mark.parametrize("after", range(12))
async def test_a_store_that_fails_ends_the_run_and_loses_nothing(after: int) -> None:
    store = Failing(after)
    replies: list[Reply | str] = [call("sure"), calls(call("sure"), call("sure")), call("sure"), "done"]
    session = await Session.open(store, scripted(*replies, tools=[sure]))
    try:
        state = await session.send("go")
        assert store.left >= 0
    except StoreUnavailableError:
        assert store.left < 0
        store.left = 100
        state = await store.load(session.agent_id)
        assert await session.refresh() == state
        assert not state.status.has_ended
        taken = sum(1 for message in state.messages if message.is_assistant) + bool(state.open_step)
        again = await Session.open(store, scripted(*replies[taken:], tools=[sure]), session.agent_id)
        state = await (again.resume() if state.messages else again.send("go"))
    assert (state.status, state.step_count) == ("completed", 4)
    assert [step.number for step in state.steps] == [1, 2, 3, 4]
