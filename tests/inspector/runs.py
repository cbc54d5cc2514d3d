"""Recorded runs for the tests of the inspector, by a scripted model on a clock of its own."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import uuid4

from msgspec.structs import replace

from whyloop import Agent
from whyloop.cli.demo.assistant import DemoWorld
from whyloop.rules.error_policy import ErrorPolicy
from whyloop.testing import FakeClock, Reply, ScriptedModel, call, calls, text
from whyloop.tools.tool import Tool
from whyloop.values.approval import Verdict
from whyloop.values.decisions import decide
from whyloop.values.model import Usage
from whyloop.values.state import AgentState

START = datetime(2026, 11, 2, 9, 30, tzinfo=UTC)


async def look(name: str) -> str:
    """Look something up."""
    if name == "missing":
        raise ConnectionError("the registry did not answer")
    return f"{name} is known"


async def move(name: str) -> str:
    """Move something."""
    return f"{name} moved"


def turn(number: int, *names: str, said: str = "") -> Reply:
    """Return a reply that looks names up at the same time; each request reads more than the one before."""
    usage = Usage(1_000 + 250 * number, 40 + 20 * len(names), cost=Decimal("0.002") * number)
    return calls(*[call("look", {"name": name}) for name in names], text=said, usage=usage)


def answer(content: str = "Done.", number: int = 1) -> Reply:
    """Return the last reply of a run."""
    return replace(text(content), usage=Usage(1_000 + 250 * number, 60, cost=Decimal("0.004")))


async def record(
    script: Sequence[Reply | Exception],
    query: str = "Tidy the registry.",
    *,
    agent_id: str | None = None,
    wait_for_person: float | None = None,
    state: AgentState | None = None,
    start: datetime = START,
    **options: Any,
) -> AgentState:
    """Run a script to its end; if calls of `move` need an approval, give it after this many seconds."""
    model, clock = ScriptedModel(script), FakeClock(start)
    world = DemoWorld(model, clock, tool_seconds={"look": 0.6, "move": 0.9}, paced=False)
    world.new_id = lambda: uuid4().hex  # Several runs may be parts of one session.
    if agent_id is not None:
        state = AgentState(agent_id=agent_id)
    agent = Agent(
        model,
        options.pop("tools", [look, Tool(move, needs_approval=wait_for_person is not None)]),
        world=world,
        stop_grace=0,
        **options,
    )
    state = await agent.run(query, state=state)
    while wait_for_person and state.pending_calls:
        clock.advance(wait_for_person)
        for question in state.pending_calls:
            for transition in decide(state, question.id, Verdict.APPROVED, "ada", clock.now()):
                state = transition.apply_to(state)
        state = await agent.resume(state)
    return state


async def long_run(steps: int, *, agent_id: str = "long-run", **options: Any) -> AgentState:
    """Record a run that a limit ends after this many steps; every 97th has a call that fails."""
    names = ["missing" if number % 97 == 0 else f"name-{number}" for number in range(1, steps + 1)]
    script = [turn(number % 40, name) for number, name in enumerate(names, 1)]
    settings = {"max_steps": steps, "timeout": None, "error_policy": ErrorPolicy.retry_tool_errors(2)}
    return await record(script, agent_id=agent_id, **(settings | options))
