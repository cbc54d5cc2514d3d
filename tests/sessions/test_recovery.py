"""Sessions that continue by themselves: after a crash, and when all their questions are decided."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support import RespondingModel, assert_readable, pay, scripted, two_stores
from tests.wire.support import slim
from whyloop import (
    Agent,
    AgentState,
    Budget,
    ContinuationOutcome,
    Session,
    SlimAgentStateSerializer,
    StepsLimit,
    tool,
)
from whyloop.broadcasting import EventFeed
from whyloop.errors import ConfigurationError, StoreUnavailableError
from whyloop.loop.executions import recover_run
from whyloop.replay import Recording, judge
from whyloop.sessions.recovery import SECONDS_AFTER_ERROR, Recovery, recover
from whyloop.stores import Entry, MemoryStore, SqliteStore, Store, Summary
from whyloop.testing import FakeClock, call, calls
from whyloop.values.model import ModelRequest, ModelResponse


@tool
async def echo(what: str = "ok") -> str:
    return what


class Mortal:
    """A way to let a run die after so many appends: its store stops writing, and is then abandoned."""

    def __init__(self, store: Any, appends: int) -> None:
        self._append = store.append
        self._left = appends
        store.append = self.append

    async def append(self, agent_id: str, entries: Sequence[Entry], **rest: Any) -> str | None:
        self._left -= 1
        if self._left < 0:
            raise StoreUnavailableError("the process died")
        stop: str | None = await self._append(agent_id, entries, **rest)
        return stop


@pytest.fixture(params=["memory", "sqlite"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Any]:
    """Two store objects on the same sessions: that of the process that dies, and that of the next one."""
    return two_stores(request.param, tmp_path)


def shop(*replies: Any, **options: Any) -> Agent:
    return scripted(*replies, tools=[echo, pay], name="shop", **options)


async def died(store: Store, agent: Agent, appends: int) -> str:
    """Run a session until its process dies; return its id."""
    session = await Session.open(store, agent)
    Mortal(store, appends)
    with pytest.raises(StoreUnavailableError):
        await session.send("go")
    await store.close()
    return session.agent_id


async def test_a_session_whose_runner_died_continues_by_itself(stores: tuple[Any, Any]) -> None:
    first, second = stores
    agent_id = await died(first, shop(call("echo"), call("echo"), "done"), 3)
    assert await recover(second, {"shop": shop(call("echo"), "done")}) == [agent_id]
    state = await second.load(agent_id)
    assert (state.status, state.step_count, state.execution.resumes) == ("completed", 3, 0)
    assert await recover(second, {"shop": shop()}) == []


async def test_the_clock_of_the_leg_continues_through_a_recovery(stores: tuple[Any, Any]) -> None:
    first, second = stores
    clock = FakeClock()
    agent_id = await died(first, shop(call("echo"), "done", clock=clock, timeout=60), 3)
    clock.advance(61)
    await recover(second, {"shop": shop("never said", clock=clock, timeout=60)})
    state = await second.load(agent_id)
    assert (state.status, state.stop_reason) == ("stopped", "time_limit")


async def test_a_paused_session_continues_once_its_questions_are_decided(stores: tuple[Any, Any]) -> None:
    store, second = stores
    session = await Session.open(store, shop(call("pay", {"amount": 5})))
    state = await session.send("pay")
    assert await recover(second, {"shop": shop("done")}) == []
    await session.approve(state.pending_calls[0].id)
    assert await recover(second, {"shop": shop("done")}) == [session.agent_id]
    assert (await second.load(session.agent_id)).status == "completed"


async def test_a_call_that_may_have_run_asks_a_person(stores: tuple[Any, Any]) -> None:
    first, second = stores
    agent_id = await died(first, shop(call("echo"), "done"), 2)
    await recover(second, {"shop": shop()})
    state = await second.load(agent_id)
    assert (state.status, len(state.pending_calls)) == ("paused", 1)
    assert "unknown whether echo ran" in state.pending_calls[0].question


async def recovered_in_vain(stores: tuple[Any, Any], path: Path) -> AgentState:
    """A session that asks a person, since every runner that recovered it died."""
    first, second = stores
    agent_id = await died(first, shop("done"), 1)

    async def crash() -> None:
        store = MemoryStore(beside=second) if isinstance(second, MemoryStore) else SqliteStore(path)
        Mortal(store, 1)
        with pytest.raises(StoreUnavailableError):
            await (await Session.open(store, shop("done"), agent_id)).recover()
        await store.close()

    for _ in range(3):
        await crash()
    await recover(second, {"shop": shop("never said")})
    state: AgentState = await second.load(agent_id)
    return state


async def test_after_three_recoveries_without_a_step_a_person_is_asked(
    stores: tuple[Any, Any], tmp_path: Path
) -> None:
    _, second = stores
    state = await recovered_in_vain(stores, tmp_path / "whyloop.db")
    assert (state.status, state.stop_reason) == ("paused", None)
    assert state.pending_calls[0].question == (
        "The run was recovered 3 times without finishing a step. Continue?"
    )
    await second.approve(state.agent_id, state.pending_calls[0].id, by="ann")
    await recover(second, {"shop": shop("done")})
    assert (await second.load(state.agent_id)).status == "completed"


async def test_a_fork_asks_the_question_about_the_run_again(stores: tuple[Any, Any], tmp_path: Path) -> None:
    _, second = stores
    state = await recovered_in_vain(stores, tmp_path / "whyloop.db")
    fork = await second.fork(state.agent_id, new_agent_id="fork")
    [original], [asked] = state.pending_calls, fork.pending_calls
    assert (fork.status, asked.question, asked.id != original.id) == ("paused", original.question, True)
    assert await recover(second, {"shop": shop("never said")}) == []
    page = await EventFeed(second).page("fork")
    last = [msgspec.json.decode(item.body) for item in page.items][-2:]
    assert [(each["seq"], each["event"]) for each in last] == [
        (1, "agent.approval.requested"),
        (2, "agent.status"),
    ]
    assert last[0]["data"]["question_id"] == asked.id
    await second.approve("fork", asked.id, by="ann")
    assert await recover(second, {"shop": shop("done")}) == ["fork"]
    assert (await second.load("fork")).status == "completed"


async def test_a_stop_beats_an_error_before_the_resume_of_a_run_whose_runner_died(
    stores: tuple[Any, Any],
) -> None:
    first, second = stores
    session = await Session.open(first, shop(RuntimeError("down"), call("echo")))
    assert (await session.send("go")).status == "failed"
    Mortal(first, 2)
    with pytest.raises(StoreUnavailableError):
        await session.resume()
    await first.close()
    assert await second.request_stop(session.agent_id, "enough")
    state = await second.load(session.agent_id)
    assert (state.status, state.stop_reason) == ("stopped", "user_requested")
    assert "enough" in state.explanation.headline


@pytest.mark.parametrize("wrap_up", [False, True])
async def test_a_stop_beats_a_limit_before_the_grant_of_a_run_whose_runner_died(
    stores: tuple[Any, Any], wrap_up: bool
) -> None:
    first, second = stores
    session = await Session.open(first, shop(call("echo"), "So far", "lost", max_steps=1, wrap_up=wrap_up))
    assert (await session.send("go")).stop_reason == "steps_limit"
    Mortal(first, 1)
    with pytest.raises(StoreUnavailableError):
        await session.resume(grant=Budget(steps=3))
    await first.close()
    assert await second.request_stop(session.agent_id, "enough")
    state = await second.load(session.agent_id)
    assert (state.status, state.stop_reason) == ("stopped", "user_requested")
    assert "StepsLimit" not in state.explanation.headline


async def died_with_three_open_calls(store: Store) -> str:
    """A session whose runner died while none of the three calls of its second step had a result."""
    three = calls(call("echo"), call("echo"), call("echo"))
    return await died(store, shop(call("echo"), three, "done"), 4)


async def test_a_stop_without_the_agent_has_only_what_is_true_of_the_session(stores: tuple[Any, Any]) -> None:
    first, second = stores
    agent_id = await died_with_three_open_calls(first)
    assert await second.request_stop(agent_id, "enough")
    state = await second.load(agent_id)
    assert [(each.criterion, each.reason) for each in state.outcome.evaluations] == [
        ("StopRequestedCheck", "enough")
    ]
    assert (state.status, state.stop_reason, state.outcome.partial) == ("stopped", "user_requested", True)
    assert "await the model" not in state.explain()
    assert "recorded without the agent" in state.explain()
    assert "recorded without the agent" in state.outcome.explain()
    assert_readable(state)
    assert ContinuationOutcome.from_dict(state.outcome.to_dict()) == state.outcome
    assert SlimAgentStateSerializer().deserialize(slim(state)).outcome.partial


async def test_a_stop_with_the_agent_asks_every_rule_again(stores: tuple[Any, Any]) -> None:
    first, second = stores
    agent_id, agent = await died_with_three_open_calls(first), shop("done")
    session = await Session.open(second, agent, agent_id)
    assert await session.request_stop("enough")
    state = await session.refresh()
    assert state.outcome == agent.criteria.evaluate(state)
    said = state.outcome.evaluation_for("ToolCallPresenceCheck")
    assert said is not None
    assert said.reason == "3 tool calls have no result yet"
    assert (state.outcome.resolved_by, state.outcome.partial) == ("StopRequestedCheck", False)


async def test_two_partial_stops_in_a_row_are_both_partial(stores: tuple[Any, Any]) -> None:
    first, second = stores
    agent_id = await died(first, shop(call("echo"), call("echo")), 3)
    assert await second.request_stop(agent_id, "enough")
    branch = await second.fork(agent_id)
    assert branch.outcome.partial
    session = await Session.open(second, shop(call("pay", {"amount": 5})), agent_id)
    assert (await session.resume()).status == "paused"
    assert await second.request_stop(agent_id, "again")
    state = await second.load(agent_id)
    assert (state.outcome.reason, state.outcome.partial) == ("again", True)


async def test_a_partial_stop_is_judged_as_it_was_recorded(stores: tuple[Any, Any]) -> None:
    first, second = stores
    agent_id, agent = await died(first, shop(call("echo"), call("echo"), "done"), 3), shop()
    assert await second.request_stop(agent_id, "enough")
    recording, state = await Recording.read(second, agent_id), await second.load(agent_id)
    assert state.open_step is None
    for run in (recording, state):
        for replay in (judge(run, agent.criteria), judge(run, agent.criteria, replace_all=True)):
            assert (replay.stop_reason, replay.resolved_by) == ("user_requested", "StopRequestedCheck")
            assert not replay.beyond
            assert not replay.latest.differs
        assert judge(run, StepsLimit(1)).stop_reason == "steps_limit"


async def test_a_denied_recovery_stops_the_session(stores: tuple[Any, Any]) -> None:
    first, second = stores
    agent_id = await died(first, shop("done"), 1)
    state = await second.load(agent_id)
    for _ in range(4):
        state = recover_run(shop(), state, None).state  # type: ignore[arg-type]
    denied = state.deny(state.pending_calls[0].id, "leave it", by="ann")
    assert denied.execution.stop_request == "leave it"
    assert denied.pending_calls == ()


async def test_a_session_of_an_unknown_agent_is_left_alone(
    stores: tuple[Any, Any], caplog: pytest.LogCaptureFixture
) -> None:
    first, second = stores
    agent_id = await died(first, shop(call("echo"), "done"), 3)
    with caplog.at_level(logging.WARNING, "whyloop"):
        assert await recover(second, {"another": shop()}) == []
    assert "no agent is named 'shop'" in caplog.text
    assert (await second.load(agent_id)).status == "in_progress"


async def paused_and_decided(store: Store, count: int, name: str) -> list[str]:
    """Store sessions of an agent that could continue at once; return their ids."""
    ids = [f"{name}-{number:03}" for number in range(count)]
    for agent_id in ids:
        agent = scripted(call("pay", {"amount": 5}), tools=[pay], name=name)
        session = await Session.open(store, agent, agent_id, create=True)
        await session.approve((await session.send("pay")).pending_calls[0].id)
    return ids


async def test_sessions_of_other_agents_do_not_hide_those_of_this_one(stores: tuple[Any, Any]) -> None:
    store, second = stores
    await paused_and_decided(store, 30, "other")
    ids = await paused_and_decided(store, 5, "shop")
    async with Recovery(second, {"shop": shop(*["done"] * 5)}, at_once=5) as recovery:
        await recovery.look()
        assert sorted(await recovery.finish()) == ids


async def test_recover_continues_every_session_a_few_at_once(stores: tuple[Any, Any]) -> None:
    store, second = stores
    await paused_and_decided(store, 30, "other")
    ids = await paused_and_decided(store, 7, "shop")
    running = most = 0

    async def respond(request: ModelRequest) -> AsyncIterator[ModelResponse]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        yield ModelResponse("done")

    agent = Agent(RespondingModel(respond), [echo, pay], name="shop")
    assert sorted(await recover(second, {"shop": agent}, at_once=2)) == ids
    assert most == 2


async def test_recover_tries_a_session_that_fails_once(
    stores: tuple[Any, Any], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whyloop.sessions.recovery.SECONDS_AFTER_ERROR", -1)
    first, second = stores
    await died(first, shop(call("echo"), "done"), 3)
    await recover(second, {"shop": shop()})  # Its script has no reply.
    assert caplog.text.count("could not be continued") == 1


async def test_a_function_that_leaves_sessions_alone_is_asked_about_all_others(
    stores: tuple[Any, Any],
) -> None:
    store, second = stores
    await paused_and_decided(store, 30, "other")
    ids = await paused_and_decided(store, 5, "shop")
    agent = shop(*["done"] * 5)

    def find(summary: Summary) -> Agent | None:
        return agent if summary.agent == "shop" else None

    assert sorted(await recover(second, find, at_once=5)) == ids


async def test_a_bare_agent_continues_the_sessions_of_its_name(stores: tuple[Any, Any]) -> None:
    store, second = stores
    (other,) = await paused_and_decided(store, 1, "other")
    (ours,) = await paused_and_decided(store, 1, "shop")
    assert await recover(second, shop("done")) == [ours]
    assert (await second.load(other)).status == "paused"


@pytest.mark.parametrize("agents", ["shop", None, 5, [shop()]])
def test_agents_that_cannot_be_looked_up_are_refused(agents: Any) -> None:
    with pytest.raises(ConfigurationError, match="an agent, a mapping from names to agents, or a function"):
        Recovery(MemoryStore(), agents)


@pytest.mark.parametrize("failure", [KeyError("who?"), StoreUnavailableError("no agents at the moment")])
async def test_a_function_that_finds_no_agent_for_one_session_does_not_hold_up_the_others(
    stores: tuple[Any, Any], caplog: pytest.LogCaptureFixture, failure: Exception
) -> None:
    first, second = stores
    session = await Session.open(first, shop(call("pay", {"amount": 5})), "broken", create=True)
    paused = await session.send("pay")
    await session.approve(paused.pending_calls[0].id)
    agent_id = await died(first, shop(call("echo"), "done"), 3)

    def find(summary: Summary) -> Agent:
        if summary.agent_id == "broken":
            raise failure
        return shop("done")

    async with Recovery(second, find, every_seconds=0) as recovery:
        while agent_id not in recovery._continued:
            await asyncio.sleep(0)
        await recovery.finish()
        assert recovery._looking is not None
        assert not recovery._looking.done()
    assert (await second.load(agent_id)).status == "completed"
    assert (await second.load("broken")).status == "paused"
    assert caplog.text.count("session 'broken' could not be continued") == 1


async def test_an_error_while_looking_is_reported_and_it_looks_again(
    stores: tuple[Any, Any], caplog: pytest.LogCaptureFixture
) -> None:
    store, looked = stores[0], 0
    unattended = store.unattended

    async def fail_once(**options: Any) -> Any:
        nonlocal looked
        looked += 1
        if looked == 1:
            raise RuntimeError("a bug of the store")
        return await unattended(**options)

    store.unattended = fail_once
    async with Recovery(store, {}, every_seconds=0):
        while looked < 3:
            await asyncio.sleep(0)
    assert caplog.text.count("cannot be looked for: a bug of the store") == 1


async def test_one_that_runs_is_left_to_its_runner(stores: tuple[Any, Any]) -> None:
    first, second = stores
    seen: list[list[str]] = []

    @tool
    async def look() -> str:
        seen.append(await recover(second, {"agent": scripted("mine")}))
        return "looked"

    session = await Session.open(first, scripted(call("look"), "done", tools=[look]))
    assert (await session.send("go")).status == "completed"
    assert seen == [[]]


async def test_a_process_that_ends_leaves_its_runs_after_their_step(stores: tuple[Any, Any]) -> None:
    first, second = stores
    started, finish = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> str:
        started.set()
        await finish.wait()
        return "waited"

    agent_id = await died(first, shop(call("echo"), "done"), 3)
    recovery = Recovery(second, {"shop": scripted(call("wait"), "never said", tools=[wait], name="shop")})
    await recovery.__aenter__()
    await started.wait()
    leaving = asyncio.create_task(recovery.__aexit__())
    while not recovery._leaving:
        await asyncio.sleep(0)
    finish.set()
    await leaving
    state = await second.load(agent_id)
    assert (state.status, state.step_count, state.open_step) == ("in_progress", 2, None)
    assert await recover(second, {"shop": shop("done")}) == [agent_id]
    assert (await second.load(agent_id)).status == "completed"


async def test_a_run_that_takes_too_long_to_end_is_cancelled(stores: tuple[Any, Any]) -> None:
    first, second = stores
    started = asyncio.Event()

    @tool
    async def wait() -> str:
        started.set()
        await asyncio.Event().wait()
        return "never"

    agent_id = await died(first, shop(call("echo"), "done"), 3)
    recovery = Recovery(second, {"shop": scripted(call("wait"), tools=[wait], name="shop")})
    await recovery.look()
    await started.wait()
    await recovery.close(0)
    state = await second.load(agent_id)
    assert (state.status, state.stop_reason) == ("stopped", "user_requested")
    assert state.open_step is not None
    assert state.open_step.calls[0].is_running  # It may have run, and a person is asked.


async def test_a_stop_request_that_comes_while_a_session_is_left_is_kept(stores: tuple[Any, Any]) -> None:
    store, second = stores

    @tool
    async def leave() -> str:
        session.leave()
        return "left"

    session = await Session.open(store, scripted(call("leave"), "never said", tools=[leave]))
    release = store.release

    async def release_late(lease: Any) -> str | None:
        assert await second.request_stop(session.agent_id, "enough")
        reason: str | None = await release(lease)
        return reason

    store.release = release_late
    await session.send("go")
    state = await second.load(session.agent_id)
    assert (state.status, state.stop_reason) == ("stopped", "user_requested")


async def test_a_session_that_cannot_continue_is_reported_once_and_rests(
    stores: tuple[Any, Any], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = stores
    agent_id = await died(first, shop(call("echo"), "done"), 3)
    recovery = Recovery(second, {"shop": shop()})  # Its script has no reply.
    loop = asyncio.get_running_loop()
    for _ in range(2):
        await recovery.look()
        await recovery.finish()
    assert [record.message for record in caplog.records].count(caplog.records[-1].message) == 1
    assert f"session {agent_id!r} could not be continued: the script has no reply" in caplog.text
    now = loop.time()
    monkeypatch.setattr(loop, "time", lambda: now + SECONDS_AFTER_ERROR)
    await recovery.look()
    await recovery.finish()
    assert caplog.text.count("could not be continued") == 2


async def test_no_run_goes_on_when_a_recovery_is_cancelled(stores: tuple[Any, Any]) -> None:
    first, second = stores
    begun = asyncio.Event()

    @tool(idempotent=True)
    async def wait() -> str:
        begun.set()
        await asyncio.Event().wait()
        return "never"

    Mortal(first, 1)
    session = await Session.open(first, scripted(call("wait"), tools=[wait], name="waiter"), "a", create=True)
    with pytest.raises(StoreUnavailableError):
        await session.send("go")
    await first.close()
    others = asyncio.all_tasks()
    agent = scripted(call("wait"), tools=[wait], name="waiter")
    recovering = asyncio.create_task(Recovery(second, {"waiter": agent}, at_once=2).run_once())
    await begun.wait()
    recovering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await recovering
    left = {task.get_name() for task in asyncio.all_tasks() - others}
    assert left <= {"whyloop live"}
    assert (await second.load("a")).stop_reason == "user_requested"


@pytest.mark.parametrize("agents", [None, "agent", [scripted("done")], {"agent": "agent"}])
async def test_what_is_no_agent_is_refused(agents: Any) -> None:
    with pytest.raises(ConfigurationError, match="invalid agents"):
        await recover(MemoryStore(), agents)
