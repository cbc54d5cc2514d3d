"""Agents that run inside the tools of other agents."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support import RespondingModel, assert_readable, scripted
from whyloop import Agent, AgentState, AgentStatus, ModelRequest, ModelResponse, TextDelta, ToolCall, tool
from whyloop.events import AgentEvent
from whyloop.testing import assert_stopped, call, capture_events


async def test_a_session_that_a_tool_starts_knows_its_parent() -> None:
    inner = scripted("inner answer")
    events = capture_events(inner)
    children: list[AgentState] = []

    @tool
    async def delegate(task: str) -> str:
        children.append(await inner.run(task))
        return children[-1].last_response

    state = await scripted(call("delegate", {"task": "x"}), "done", tools=[delegate]).run("go")
    (child,) = children
    assert child.parent_agent_id == state.agent_id
    assert child.agent_id != state.agent_id
    assert state.parent_agent_id is None
    assert {event.parent_agent_id for event in events} == {state.agent_id}
    assert state.messages[2].text == "inner answer"
    assert_readable(child)


async def test_a_plain_function_may_run_an_agent_too() -> None:
    inner = scripted("inner answer")
    children: list[AgentState] = []

    @tool
    def delegate() -> str:
        children.append(inner.run_sync("sub"))
        return children[-1].last_response

    state = await scripted(call("delegate"), "done", tools=[delegate]).run("go")
    assert children[0].parent_agent_id == state.agent_id
    assert state.messages[2].text == "inner answer"


async def test_a_session_that_is_started_elsewhere_has_no_parent() -> None:
    agent = scripted(call("noop"), "one", "two", tools=[tool(name="noop")(lambda: "ok")])
    seen: list[AgentEvent] = []
    agent.subscribe(seen.append)
    async for _ in agent.iterate(agent.start("go")):
        assert agent.start("another").parent_agent_id is None
    assert (await agent.run("next")).parent_agent_id is None


async def test_the_next_query_of_a_nested_session_keeps_its_parent() -> None:
    inner = scripted("one", "two")
    children: list[AgentState] = []

    @tool
    async def delegate() -> str:
        children.append(await inner.run("x"))
        return "ok"

    state = await scripted(call("delegate"), "done", tools=[delegate]).run("go")
    later = await inner.run("y", state=children[0])
    assert later.parent_agent_id == state.agent_id


def endless(plain: bool, seen: list[AgentState]) -> Agent:
    """An agent whose only tool runs the agent itself; the states that come back are seen."""

    async def respond(request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        if request.messages[-1].is_tool:
            yield ModelResponse("back again")
        else:
            yield ModelResponse("", (ToolCall("c", "again", {}),))

    @tool(name="again")
    async def asynchronously() -> str:
        seen.append(await agent.run("again"))
        return seen[-1].explain()

    @tool(name="again")
    def plainly() -> str:
        seen.append(agent.run_sync("again"))
        return seen[-1].explain()

    agent = Agent(RespondingModel(respond), [plainly if plain else asynchronously])
    return agent


@pytest.mark.parametrize("plain", [False, True], ids=["async", "threads"])
async def test_an_agent_that_calls_itself_without_end_ends_in_a_trace(plain: bool) -> None:
    seen: list[AgentState] = []
    outermost = await endless(plain, seen).run("go")
    assert outermost.status is AgentStatus.FAILED
    assert_stopped(outermost, reason="error", by="ErrorPolicyCriterion")
    assert "inside each other" in assert_readable(outermost)
    assert seen == []  # None of the runs inside went on to try again in its turn.
    assert outermost.step_count == 1


async def test_two_agents_side_by_side_are_not_nested() -> None:
    inner = scripted(*(f"answer {n}" for n in range(20)))

    @tool
    async def delegate() -> str:
        return str([(await inner.run(f"{n}")).status for n in range(20)])

    state = await scripted(call("delegate"), "done", tools=[delegate]).run("go")
    assert state.status is AgentStatus.COMPLETED
    assert state.messages[2].text.count("COMPLETED") == 20
