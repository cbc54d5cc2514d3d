"""The types that a checker infers: mypy reads this file in strict mode, and each ignored error must exist."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, assert_type

import pytest

from whyloop import Agent, AgentState, PendingCall, RunContext, RunStream, Session, Tool, ToolContext, tool
from whyloop.errors import ConfigurationError, UnfinishedRunError
from whyloop.stores import MemoryStore
from whyloop.testing import ScriptedModel, call, text
from whyloop.values.continuation import ContinuationOutcome


@dataclass
class Db:
    name: str = "main"


@tool
def search(query: str, limit: int = 5) -> list[str]:
    """Find partners."""
    return [query] * limit


@tool(timeout=3, needs_approval=True, name="pay_back")
async def refund(amount: int) -> str:
    """Pay money back."""
    return f"{amount}"


@tool
def lookup(key: str, context: ToolContext[Db]) -> str:
    """Look a key up."""
    assert_type(context.deps, Db)
    return f"{context.deps.name}:{key}"


@tool(needs_approval=lambda arguments: arguments["amount"] > 100)
def give(amount: int) -> None:
    """Give money."""


@tool(needs_approval=lambda arguments, context: arguments["amount"] > 100 and context.deps.name == "main")
def lend(amount: int, context: ToolContext[Db]) -> None:
    """Lend money."""


def instruct(context: RunContext[Db]) -> str:
    return f"Use {context.deps.name}."


def agent() -> Agent:
    return Agent(ScriptedModel([text("done")]))


def test_a_tool_is_called_and_checked_like_its_function() -> None:
    assert_type(search("a", limit=2), list[str])
    assert search("a", limit=2) == ["a", "a"]
    work: Coroutine[Any, Any, str] = refund(amount=3)
    work.close()
    with pytest.raises(TypeError):
        search(limit=2)  # type: ignore[call-arg]
    search(7)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        tool(timeuot=3)(search.function)  # type: ignore[call-overload]
    tools: list[Tool] = [search, refund, lookup]
    assert [each.name for each in tools] == ["search", "pay_back", "lookup"]


def test_an_agent_without_parameters_has_no_deps_and_answers_with_text() -> None:
    plain = Agent(ScriptedModel([text("done")]), [search])
    assert_type(plain, Agent[None, str])
    assert_type(plain.run_sync("go"), AgentState[str])
    assert_type(plain.stream("go"), RunStream[str])


def test_deps_are_checked_against_their_type() -> None:
    typed = Agent(ScriptedModel([text("done"), text("done")]), [lookup], deps_type=Db)
    assert_type(typed, Agent[Db, str])
    typed.run_sync("go", deps=Db())
    typed.run_sync("go", deps="main")  # type: ignore[arg-type]
    assert_type(Agent(ScriptedModel([]), [lend], deps_type=Db, instructions=instruct), Agent[Db, str])
    Agent(ScriptedModel([]), deps_type=int, instructions=instruct)  # type: ignore[arg-type]


def test_the_output_has_its_type() -> None:
    numbers = Agent(ScriptedModel([]), output_type=list[int])
    assert_type(numbers, Agent[None, list[int]])
    both = Agent(ScriptedModel([call("final_answer", {"value": 7})]), output_type=int | str)
    assert_type(both, Agent[None, int | str])
    state = both.run_sync("go")
    assert_type(state.output, int | str)
    assert state.output == 7


async def test_a_session_has_the_types_of_its_agent() -> None:
    typed = Agent(ScriptedModel([text("done")]), [lookup], deps_type=Db)
    session = await Session.open(MemoryStore(), typed)
    assert_type(session, Session[Db, str])
    assert_type(await session.send("go", deps=Db()), AgentState[str])


def test_names_without_parameters_fit_any_of_their_kind() -> None:
    def headline(state: AgentState, context: RunContext | None = None) -> str:
        return state.explanation.headline

    assert headline(agent().run_sync("go")).startswith("Completed after 1 step")


def test_generic_names_can_be_written_at_run_time() -> None:
    assert Agent[Db].__origin__ is Agent  # type: ignore[attr-defined]
    assert Agent[Db, int].__args__ == (Db, int)  # type: ignore[attr-defined]
    assert Session[Db].__origin__ is Session  # type: ignore[attr-defined]
    assert isinstance(AgentState[int](), AgentState)

    class Support(Agent[Db, str]):
        pass

    assert isinstance(Support(ScriptedModel([text("done")]), deps_type=Db), Agent)


def test_the_outcome_of_an_ended_run_is_never_none() -> None:
    state = agent().run_sync("go")
    assert_type(state.outcome, ContinuationOutcome)
    assert state.outcome is state.last_continuation_outcome


def test_the_outcome_of_a_paused_run_is_its_pause() -> None:
    state = Agent(ScriptedModel([call("pay_back", {"amount": 3})]), [refund]).run_sync("go")
    assert state.outcome.pauses
    (pending,) = state.pending_calls
    assert_type(pending, PendingCall)
    assert_type(pending.arguments, dict[str, Any])
    assert pending.arguments["amount"] == 3


async def test_a_run_that_has_not_ended_has_no_outcome() -> None:
    with pytest.raises(UnfinishedRunError, match="has no outcome yet, it is pending"):
        AgentState().outcome
    several = Agent(ScriptedModel([call("search", {"query": "a"}), text("done")]), [search])
    states = [state async for state in several.iterate(several.start("go"))]
    with pytest.raises(UnfinishedRunError, match="has no outcome yet, it is in_progress"):
        states[0].outcome
    assert not states[-1].outcome.should_continue


def test_missing_deps_are_an_error_before_the_first_step() -> None:
    model = ScriptedModel([text("done")])
    with pytest.raises(
        ConfigurationError, match=r"agent 'agent' has no deps and needs Db: pass deps=… to run"
    ):
        Agent(model, [lookup], deps_type=Db).run_sync("go")
    assert not model.requests
