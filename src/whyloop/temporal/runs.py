"""Runs inside a workflow: the agent of a worker, with a world whose work activities do."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from types import NoneType
from typing import Any

from msgspec.structs import replace

from whyloop.errors import NotResumableError
from whyloop.loop.agent import Agent
from whyloop.loop.executions import recover_run, resume_run
from whyloop.loop.run import Run
from whyloop.loop.setup import Handlers
from whyloop.temporal.fleet import Fleet
from whyloop.temporal.payloads import Repeatable
from whyloop.temporal.world import Outbox, TemporalWorld, use_store
from whyloop.tools.tool import ToolDefinition
from whyloop.tools.toolset import ToolTable
from whyloop.values.state import AgentState, AgentStatus

Begin = Callable[[Agent[Any, Any], AgentState, Outbox], Run]
"""A function that begins a run of a session."""


async def new_run(begin: Begin, agent: Agent[Any, Any], fleet: Fleet, outbox: Outbox) -> Run:
    """Return a run that begins where the outbox of a workflow is.

    Args:
        begin: How it begins.
        agent: The agent of the worker.
        fleet: The options of the worker.
        outbox: The journal of the run.
    """
    tools = {**agent._setup.tools, **await _repeatable(agent, outbox.state)}
    timeouts = {name: tool.timeout for name, (tool, _) in tools.items() if tool.timeout is not None}
    world = TemporalWorld(outbox, timeouts, fleet.task_queues, fleet.heartbeat)
    here = copy(agent)
    here._setup = replace(
        agent._setup,
        world=world,
        tools=tools,
        handlers=Handlers(),
        toolsets=(),
        runs=set(),
        deps_type=NoneType,
    )
    return begin(here, outbox.state, outbox)


async def _repeatable(agent: Agent[Any, Any], state: AgentState) -> ToolTable:
    """Return the idempotent tools of toolsets among those whose calls may have run."""
    setup, opened = agent._setup, state.open_step
    if not setup.toolsets or opened is None:
        return {}
    asked = zip(opened.tool_calls, opened.calls, strict=True)
    names = dict.fromkeys([call.name for call, at in asked if at.is_running])
    unknown = tuple([name for name in names if name not in setup.tools])
    if not unknown:
        return {}
    given = Repeatable(state.agent_id, agent.name, unknown)
    found, _ = await use_store("whyloop_repeatable", given, list[str])
    schema = {"type": "object"}
    tools = [ToolDefinition(name, "", schema, idempotent=True) for name in found]
    return {tool.name: (tool, setup.toolsets[0]) for tool in tools}


def continue_run(agent: Agent[Any, Any], state: AgentState, journal: Outbox) -> Run:
    """Return the run that an earlier workflow run left between two steps."""
    return Run(agent._setup, state, journal)


def run_again(agent: Agent[Any, Any], state: AgentState, journal: Outbox) -> Run:
    """Return a run for a session whose runner died, or whose questions are all decided."""
    if state.status is AgentStatus.PAUSED and not state.pending_calls:
        return resume_run(agent, state, journal=journal)
    if state.status is not AgentStatus.IN_PROGRESS:
        raise NotResumableError(f"session {state.agent_id!r} is {state.status}: nothing to recover")
    return recover_run(agent, state, journal)


def run_to_stop(reason: str) -> Begin:
    """Return how a run begins that only ends another one whose runner died.

    Args:
        reason: Why it is stopped.
    """

    def begin(agent: Agent[Any, Any], state: AgentState, journal: Outbox) -> Run:
        if state.status is not AgentStatus.IN_PROGRESS:
            raise NotResumableError(f"session {state.agent_id!r} is {state.status}: no run to stop")
        run = recover_run(agent, state, journal)
        run.stop = reason
        return run

    return begin
