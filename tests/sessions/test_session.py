"""A conversation that lives in a store."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support import pay, scripted
from whyloop import Agent, AgentState, Budget, Session, tool
from whyloop.errors import (
    ApprovalError,
    ConfigurationError,
    NotResumableError,
    SessionNotFoundError,
    SessionRunningError,
)
from whyloop.stores import MemoryStore, Store, Stored
from whyloop.testing import FakeClock, Reply, ScriptedModel, call, calls


@tool
async def echo(what: str = "ok") -> str:
    return what


def agent_with(*replies: Reply | str, **options: Any) -> Agent:
    return scripted(*replies, tools=[echo, pay], **options)


async def test_a_question_and_its_answer_are_stored(store: Store) -> None:
    session = await Session.open(store, agent_with(call("echo"), "done"))
    state = await session.send("go")
    assert state.status == "completed"
    assert [message.text for message in session.history()] == ["go", "", "ok", "done"]
    assert session.explain() == state.explain()
    assert await store.load(session.agent_id) == state
    assert session.state == state


async def test_a_session_continues_in_another_process(store: Store) -> None:
    first = await Session.open(store, agent_with("My name is Ada"))
    await first.send("who are you?")
    second = await Session.open(store, agent_with("Ada, as I said"), first.agent_id)
    assert second.state == first.state
    state = await second.send("again?")
    assert [message.text for message in state.messages] == [
        "who are you?",
        "My name is Ada",
        "again?",
        "Ada, as I said",
    ]
    assert await first.refresh() == state
    assert await store.load(first.agent_id) == state


async def test_a_process_catches_up_before_it_continues(store: Store) -> None:
    first = await Session.open(store, agent_with("one", "three"))
    await first.send("1")
    second = await Session.open(store, agent_with("two"), first.agent_id)
    await second.send("2")
    state = await first.send("3")
    assert [message.text for message in state.messages] == ["1", "one", "2", "two", "3", "three"]


async def test_a_new_session_is_listed_from_the_start(store: Store) -> None:
    session = await Session.open(store, agent_with("hello"), metadata={"customer": 7})
    page = await store.sessions(metadata={"customer": 7})
    assert [(s.agent_id, s.status, s.title) for s in page.sessions] == [(session.agent_id, "pending", "")]
    await session.send("Hi there")
    (summary,) = (await store.sessions(status="completed", stop_reason="completed")).sessions
    assert (summary.title, summary.step_count, summary.runner) == ("Hi there", 1, None)


async def test_an_id_of_ones_own(store: Store) -> None:
    with pytest.raises(SessionNotFoundError, match="session 'customer-42' not found in this store"):
        await Session.open(store, agent_with(), "customer-42")
    session = await Session.open(store, agent_with("hello"), "customer-42", create=True)
    await session.send("hi")
    again = await Session.open(store, agent_with(), "customer-42", create=True)
    assert again.state == session.state


async def test_a_second_runner_gets_the_name_of_the_first(store: Store) -> None:
    told: list[str] = []
    session = await Session.open(store, agent_with(call("peek"), "done"), owner="the first")

    @tool
    async def peek() -> str:
        other = await Session.open(store, agent_with("never"), session.agent_id)
        with pytest.raises(SessionRunningError, match="is being run by the first: wait until") as error:
            await other.send("me too")
        told.append(error.value.owner)
        (summary,) = (await store.sessions()).sessions
        told.append(summary.runner or "")
        told.append(summary.status)
        return "peeked"

    session.agent = scripted(call("peek"), "done", tools=[peek])
    state = await session.send("go")
    assert told == ["the first", "the first", "in_progress"]
    assert state.status == "completed"


async def test_approval_from_anywhere(store: Store) -> None:
    session = await Session.open(store, agent_with(call("pay", {"amount": 5})))
    state = await session.send("pay")
    assert state.status == "paused"
    (listed,) = (await store.sessions(status="paused")).sessions
    decided = await store.approve(listed.agent_id, state.pending_calls[0].id, by="ada")
    assert decided.status == "paused"
    with pytest.raises(ApprovalError, match="was already approved by ada"):
        await store.deny(listed.agent_id, state.pending_calls[0].id, "no")
    elsewhere = await Session.open(store, agent_with("paid it"), session.agent_id)
    state = await elsewhere.resume()
    assert state.status == "completed"
    assert state.steps[0].tool_calls[0].approvals[0].by == "ada"
    assert await store.load(session.agent_id) == state


async def test_the_session_itself_takes_decisions(store: Store) -> None:
    pays = calls(*[call("pay", {"amount": n}) for n in (1, 2, 3)])
    session = await Session.open(store, agent_with(pays, "done"))
    state = await session.send("pay")
    one, two, three = (pending.id for pending in state.pending_calls)
    await session.approve(one, by="ada")
    await session.deny(two, "too much", by="bob")
    state = await session.edit(three, {"amount": 33}, by="cyd")
    assert state.pending_calls == ()
    state = await session.resume()
    assert [message.model_text for message in state.messages if message.is_tool] == [
        "paid 1",
        "Denied by bob: too much",
        '[cyd changed the arguments to {"amount":33}]\npaid 33',
    ]


async def test_two_decisions_at_once_are_both_kept(store: Store) -> None:
    pays = calls(*[call("pay", {"amount": n}) for n in range(8)])
    session = await Session.open(store, agent_with(pays, "done"))
    state = await session.send("pay")
    await asyncio.gather(*[store.approve(session.agent_id, c.id) for c in state.pending_calls])
    assert (await session.refresh()).pending_calls == ()


async def test_a_stop_from_outside_ends_the_run_at_the_next_safe_point(store: Store) -> None:
    @tool
    async def stop_me() -> str:
        assert await store.request_stop(session.agent_id, "closed for today")
        return "asked"

    agent = scripted(call("stop_me"), call("stop_me"), "never said", tools=[stop_me])
    session = await Session.open(store, agent)
    state = await session.send("go")
    assert (state.status, state.stop_reason, state.step_count) == ("stopped", "user_requested", 1)
    assert "closed for today" in session.explain()
    assert await store.load(session.agent_id) == state
    assert not await store.request_stop(session.agent_id, "again")


async def test_a_paused_session_can_be_stopped_and_resumed(store: Store) -> None:
    session = await Session.open(store, agent_with(call("pay", {"amount": 5}), "done"))
    await session.send("pay")
    assert await session.request_stop("not today")
    state = await session.refresh()
    assert (state.status, state.stop_reason) == ("stopped", "user_requested")
    (listed,) = (await store.sessions(stop_reason="user_requested")).sessions
    assert listed.agent_id == session.agent_id
    assert (await session.resume()).status == "paused"


async def test_a_stop_after_the_approval_does_not_say_that_the_call_still_waits(store: Store) -> None:
    session = await Session.open(store, agent_with(call("pay", {"amount": 5}), "done"))
    state = await session.send("pay")
    await session.approve(state.pending_calls[0].id)
    assert await session.request_stop("not today")
    state = await session.refresh()
    approval = state.outcome.evaluation_for("ApprovalRequired")
    assert approval is not None
    assert (approval.decision, approval.reason) == ("allow", "No tool call waits for a person")
    assert "Also forbidden" not in state.explanation.headline
    assert (await session.resume()).status == "completed"


async def test_more_budget(store: Store) -> None:
    session = await Session.open(store, agent_with(call("echo"), call("echo"), "done", max_steps=1))
    assert (await session.send("go")).stop_reason == "steps_limit"
    state = await session.resume(grant=Budget(steps=5))
    assert state.status == "completed"
    assert (await store.load(session.agent_id)).execution.granted == Budget(steps=5)


async def test_nothing_to_resume_is_an_error_and_leaves_no_lease(store: Store) -> None:
    session = await Session.open(store, agent_with("done", "and again"))
    await session.send("go")
    with pytest.raises(NotResumableError):
        await session.resume()
    assert (await session.send("more")).status == "completed"


async def test_a_cancelled_run_is_recorded_and_leaves_no_lease(store: Store) -> None:
    started = asyncio.Event()

    @tool
    async def hang() -> str:
        started.set()
        await asyncio.Event().wait()
        return "never"

    session = await Session.open(store, scripted(call("hang"), "later", tools=[hang]))
    running = asyncio.ensure_future(session.send("go"))
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    state = await store.load(session.agent_id)
    assert (state.status, state.stop_reason) == ("stopped", "user_requested")
    assert session.state == state
    # It was cut off like by a crash, so nobody knows what it did.
    paused = await session.resume()
    assert paused.pending_calls[0].question.startswith("It is unknown whether hang ran")
    await session.deny(paused.pending_calls[0].id, "nothing happened")
    assert (await session.resume()).status == "completed"


async def test_the_first_version_of_a_run_is_known_while_it_runs(store: Store) -> None:
    seen: list[int] = []

    @tool
    async def look() -> str:
        seen.append(session.first_version)
        return "looked"

    session = await Session.open(store, scripted(call("look"), "done", call("look"), "done", tools=[look]))
    assert session.first_version == 0
    await session.send("go")
    between = session.version
    await session.send("again")
    assert seen == [2, between + 1]
    assert session.first_version == between + 1


async def test_a_fork_continues_on_its_own(store: Store) -> None:
    session = await Session.open(store, agent_with(call("echo"), call("echo", {"what": "b"}), "done"))
    state = await session.send("go")
    fork = await store.fork(session.agent_id, step=1)
    assert fork.step_count == 1
    assert fork.metadata["forked_from"] == {"agent_id": session.agent_id, "step": 1}
    assert fork.execution.id != state.execution.id
    branch = await Session.open(store, agent_with("another end"), fork.agent_id)
    ended = await branch.resume()
    assert [message.text for message in ended.messages] == ["go", "", "ok", "another end"]
    assert await store.load(session.agent_id) == state
    whole = await store.fork(session.agent_id, new_agent_id="copy")
    assert (whole.agent_id, list(whole.messages)) == ("copy", list(state.messages))


async def test_a_fork_is_dated_by_the_clock_of_its_store() -> None:
    clock = FakeClock()
    store = MemoryStore(clock)
    session = await Session.open(store, agent_with("done", clock=clock))
    await session.send("go")
    clock.advance(60)
    fork = await store.fork(session.agent_id)
    assert fork.state_info.started_at == clock.now()


async def test_a_fork_that_waits_says_why(store: Store) -> None:
    session = await Session.open(store, agent_with(call("echo"), call("pay", {"amount": 7}), "paid"))
    await session.send("go")
    fork = await store.fork(session.agent_id)
    assert (fork.status, fork.outcome.pauses) == ("paused", True)
    assert fork.outcome.resolved_by == "ApprovalRequired"
    assert [each.criterion for each in fork.outcome.evaluations] == ["ApprovalRequired"]
    assert fork.outcome.partial
    assert fork.explain().startswith("Paused in step 2. ApprovalRequired decided: pay waits for approval.")
    (listed,) = (await store.sessions(status="paused", resolved_by="ApprovalRequired", limit=1)).sessions
    assert (listed.agent_id, listed.reason) == (fork.agent_id, "pay waits for approval")
    assert await store.load(fork.agent_id) == fork
    branch = await Session.open(store, agent_with("paid"), fork.agent_id)
    await branch.approve(branch.state.pending_calls[0].id)
    assert (await branch.resume()).last_response == "paid"


async def test_a_fork_with_the_criteria_of_its_agent_asks_all_of_them(store: Store) -> None:
    agent = agent_with(call("echo"), call("pay", {"amount": 7}))
    session = await Session.open(store, agent)
    await session.send("go")
    fork = await store.fork(session.agent_id, criteria=agent.criteria)
    assert fork.outcome == agent.criteria.evaluate(fork)
    assert not fork.outcome.partial


async def test_a_fork_of_a_session_that_was_stopped_in_a_pause_can_continue(store: Store) -> None:
    session = await Session.open(store, agent_with(call("pay", {"amount": 7}), "paid"))
    await session.send("go")
    await session.request_stop("not today")
    assert (await store.load(session.agent_id)).stop_reason == "user_requested"
    fork = await store.fork(session.agent_id)
    assert (fork.status, fork.outcome.resolved_by) == ("paused", "ApprovalRequired")
    branch = await Session.open(store, agent_with("paid"), fork.agent_id)
    await branch.approve(branch.state.pending_calls[0].id)
    ended = await branch.resume()
    assert (ended.status, ended.last_response) == ("completed", "paid")


@pytest.mark.parametrize("step", [0, -1, 3, 99])
async def test_a_fork_needs_a_step_of_the_session(store: Store, step: int) -> None:
    session = await Session.open(store, agent_with(call("echo"), "done"))
    await session.send("go")
    with pytest.raises(ConfigurationError, match=r"there is no step|invalid step"):
        await store.fork(session.agent_id, step=step)


async def test_a_state_from_elsewhere_can_be_stored_and_continued(store: Store) -> None:
    agent = agent_with(call("echo"), "done", "more")
    state = await agent.run("go")
    await store.add(state)
    assert await store.load(state.agent_id) == state
    session = await Session.open(store, agent, state.agent_id)
    assert (await session.send("on")).step_count == 3


async def test_exported_sessions_can_be_imported_again(store: Store) -> None:
    first = await Session.open(store, agent_with(call("pay", {"amount": 5})), metadata={"a": "\u2028é\x00"})
    await first.send("pay")
    second = await Session.open(store, agent_with(call("echo"), "done"))
    await second.send("go")
    lines = [line async for line in store.export()]
    expected = {s.agent_id: await store.load(s.agent_id) for s in (first, second)}
    for session in (first, second):
        await store.delete(session.agent_id)
    assert sorted(await store.import_lines(lines)) == sorted(expected)
    assert {agent_id: await store.load(agent_id) for agent_id in expected} == expected
    assert await store.import_lines(lines, skip_existing=True) == []
    only = [line async for line in store.export(second.agent_id)]
    assert len(only) == 2 + (await store.read(second.agent_id)).summary.version


async def test_lease_seconds_are_positive(store: Store) -> None:
    with pytest.raises(ConfigurationError, match="invalid lease_seconds"):
        await Session.open(store, agent_with(), lease_seconds=0)


async def test_an_empty_session_can_be_read(store: Store) -> None:
    session = await Session.open(store, agent_with())
    state = await store.load(session.agent_id)
    assert state == session.state
    assert not state.messages
    assert AgentState.from_dict(state.to_dict()) == state


@pytest.mark.parametrize("agent_id", [5, b"x", "", "a\x00b", "x" * 501, "\ud800", ["a"]])
async def test_an_id_is_text_that_every_store_can_keep(store: Store, agent_id: Any) -> None:
    with pytest.raises(ConfigurationError, match="id"):
        await Session.open(store, agent_with(), agent_id, create=True)
    with pytest.raises(ConfigurationError, match="id"):
        await store.add(replace(AgentState(), agent_id=agent_id))
    assert (await store.sessions()).sessions == ()


@pytest.mark.parametrize("arguments", ['{"amount": 1}', [1], 5, None])
async def test_arguments_that_are_not_a_dict_are_refused_and_nothing_is_stored(
    store: Store, arguments: Any
) -> None:
    session = await Session.open(store, agent_with(call("pay", {"amount": 5})))
    state = await session.send("pay")
    with pytest.raises(ConfigurationError, match="pass a dict of arguments by name"):
        await session.edit(state.pending_calls[0].id, arguments)
    assert await store.load(session.agent_id) == state


async def test_an_edit_that_does_not_fit_the_tool_is_refused_when_it_is_made(store: Store) -> None:
    session = await Session.open(store, agent_with(call("pay", {"amount": 5})))
    state = await session.send("pay")
    with pytest.raises(ConfigurationError, match="invalid arguments for pay: amount: Expected `int`"):
        await session.edit(state.pending_calls[0].id, {"amount": "a lot"})
    assert await store.load(session.agent_id) == state


async def test_an_edit_of_a_tool_that_is_not_known_here_is_checked_when_it_runs(store: Store) -> None:
    session = await Session.open(store, agent_with(call("pay", {"amount": 5})))
    state = await session.send("pay")
    session.agent = Agent(ScriptedModel([]))
    state = await session.edit(state.pending_calls[0].id, {"amount": "a lot"})
    assert state.pending_calls == ()


async def test_natural_mistakes_are_named(store: Store) -> None:
    agent: Any = agent_with("done")
    anything: Any = "whyloop.db"
    with pytest.raises(ConfigurationError, match="invalid store"):
        await Session.open(anything, agent)
    with pytest.raises(ConfigurationError, match="invalid agent"):
        await Session.open(store, anything)
    session = await Session.open(store, agent)
    await session.send("go")
    with pytest.raises(ConfigurationError, match=r"invalid grant .*: use a Budget"):
        await session.resume(grant=anything)
    with pytest.raises(ConfigurationError, match="must be text"):
        await store.request_stop(session.agent_id, 5)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="use 1 or more"):
        await store.fork(session.agent_id, step=anything)


class CountsReads(MemoryStore):
    reads = 0

    async def read(self, agent_id: str, *, after: int = 0, limit: int | None = None) -> Stored:
        self.reads += 1
        return await super().read(agent_id, after=after, limit=limit)


async def test_a_session_is_read_again_only_if_another_runner_continued_it() -> None:
    store = CountsReads()
    session = await Session.open(store, scripted("one", "two", "four"))
    await session.send("first")
    await session.send("second")
    assert store.reads == 0
    other = await Session.open(store, scripted("three"), session.agent_id)
    await other.send("third")
    assert store.reads == 2
    await session.send("fourth")
    assert store.reads > 2
    assert [message.text for message in session.history() if message.is_user] == [
        "first",
        "second",
        "third",
        "fourth",
    ]


async def test_a_state_that_a_program_loads_from_a_store_begins_a_leg_when_it_is_continued(
    store: Store,
) -> None:
    clock = FakeClock()

    @tool
    async def leave() -> str:
        session.leave()
        return "left"

    agent = Agent(ScriptedModel([call("leave"), "done"]), [leave], timeout=60, clock=clock)
    session = await Session.open(store, agent)
    assert (await session.send("go")).status == "in_progress"
    loaded = await store.load(session.agent_id)
    assert loaded.execution_started_at is None
    clock.advance(86_400)
    done = await agent.final_step(loaded)
    assert (done.status, done.stop_reason) == ("completed", "completed")
