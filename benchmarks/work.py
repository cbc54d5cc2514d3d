"""The same work for everyone: a model that asks for one tool a step, and a tool that answers at once."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

from benchmarks.bare import BareModel, bare_run
from whyloop import Agent, AgentState, tool
from whyloop.events import AgentEvent
from whyloop.testing import ScriptedModel, call, text
from whyloop.testing.fakes import Reply
from whyloop.values.model import Usage

NO_LIMIT = 10**9


async def lookup_value(key: str, limit: int = 3) -> str:
    """Look a value up.

    Args:
        key: what to look for
        limit: how many results to return
    """
    return f"the value of {key}, at most {limit}"


lookup = tool(name="lookup")(lookup_value)


def script(steps: int) -> Iterator[Reply]:
    """The replies of a run with this many steps."""
    usage = Usage(input=90, output=10)
    calls = itertools.repeat(call("lookup", {"key": "alpha", "limit": 3}, usage=usage), steps - 1)
    return itertools.chain(calls, [text("done", usage=usage)])


def hear(event: AgentEvent | dict[str, object]) -> None:
    """A listener that takes every event and does nothing with it."""


def make_agent(steps: int) -> Agent:
    """An agent with eight criteria and a listener, whose script has this many steps."""
    return Agent(
        ScriptedModel(script(steps)),
        [lookup],
        max_steps=NO_LIMIT,
        max_tokens=NO_LIMIT,
        timeout=300,
        event_handler=hear,
    )


async def run_whyloop(agent: Agent, steps: int) -> AgentState:
    """One session, with its full trace; makes sure that the work was really done."""
    state = await agent.run("go")
    if state.step_count != steps or state.stop_reason != "completed":
        raise RuntimeError(state.explain())
    if not all(step.outcome and len(step.outcome.evaluations) == 8 for step in state.steps):
        raise RuntimeError("the trace is not complete")
    return state


async def whyloop_step(steps: int) -> float:
    """Return the microseconds a step of one session."""
    return await _timed(make_agent(steps), steps)


async def plain_step(steps: int) -> float:
    """Return the microseconds a step of one session without a listener and without limits that matter."""
    return await _timed(Agent(ScriptedModel(script(steps)), [lookup], max_steps=NO_LIMIT), steps)


async def _timed(agent: Agent, steps: int) -> float:
    started = time.perf_counter()
    state = await agent.run("go")
    seconds = time.perf_counter() - started
    if state.step_count != steps:
        raise RuntimeError(state.explain())
    return seconds / steps * 1e6


async def run_bare(model: BareModel, steps: int) -> list[dict[str, object]]:
    """The same session by the hand-written loop."""
    messages = await bare_run(
        model,
        {"lookup": lookup_value},
        {"lookup": {"key": (str, True), "limit": (int, False)}},
        "go",
        max_steps=NO_LIMIT,
        max_tokens=NO_LIMIT,
        timeout=300,
        listener=hear,
    )
    if len(messages) != 2 * steps:
        raise RuntimeError(f"{len(messages)} messages after {steps} steps")
    return messages
