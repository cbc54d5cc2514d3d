"""A scenario, and how it is played."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from whyloop.cli.demo_parts.partners import INSTRUCTIONS, PartnerDesk
from whyloop.cli.demo_parts.world import DemoWorld
from whyloop.events import AgentEvent
from whyloop.loop.agent import Agent
from whyloop.rules.error_policy import ErrorPolicy
from whyloop.testing import FakeClock, Reply, ScriptedModel
from whyloop.values.continuation import StopReason
from whyloop.values.state import AgentState, AgentStatus

START = datetime(2026, 1, 16, 10, 5, tzinfo=UTC)


class Query(NamedTuple):
    """What a user asks, and how many seconds after the last answer."""

    text: str
    after: float = 0.0


class Ending(NamedTuple):
    """How a scenario ends, and which rule decides that."""

    status: AgentStatus
    stop_reason: StopReason
    resolved_by: str


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One run of the assistant: how it is set up, what is asked, what the model says, how it ends."""

    name: str
    title: str
    shows: str
    queries: tuple[Query, ...]
    script: tuple[Reply | Exception, ...]
    ending: Ending
    options: Mapping[str, Any] = field(default_factory=dict)
    outages: int = 0
    tool_seconds: Mapping[str, float] = field(default_factory=dict)
    meanwhile: Callable[[Agent, PartnerDesk], Coroutine[Any, Any, None]] | None = None

    @property
    def settings(self) -> str:
        """What the agent is told beyond its model and tools, as one would write it."""
        return ", ".join(f"{key}={_written(value)}" for key, value in self.options.items())


def play(
    scenario: Scenario, handler: Callable[[AgentEvent], object] | None = None, *, paced: bool = False
) -> AgentState:
    """Run a scenario to its end, telling the handler everything that happens."""
    return asyncio.run(_play(scenario, handler, paced))


async def _play(
    scenario: Scenario, handler: Callable[[AgentEvent], object] | None, paced: bool
) -> AgentState:
    desk, clock, model = PartnerDesk(scenario.outages), FakeClock(START), ScriptedModel(scenario.script)
    world = DemoWorld(model, clock, tool_seconds=scenario.tool_seconds, paced=paced)
    agent = Agent(
        model,
        desk.tools,
        instructions=INSTRUCTIONS,
        world=world,
        event_handler=handler,
        **scenario.options,
    )
    meanwhile = asyncio.create_task(scenario.meanwhile(agent, desk)) if scenario.meanwhile else None
    try:
        first, *later = scenario.queries
        state = await agent.run(first.text)
        for query in later:
            clock.advance(query.after)
            stored = AgentState.from_dict(state.to_dict())  # As if another process took over.
            state = await agent.run(query.text, state=stored)
    finally:
        if meanwhile is not None:
            meanwhile.cancel()
    model.assert_finished()
    return state


def _written(value: object) -> str:
    """The value as code; a policy by the name of its preset."""
    if isinstance(value, ErrorPolicy):
        for preset in (ErrorPolicy.retry_tool_errors, ErrorPolicy.retry_all):
            if preset(value.max_retries) == value:
                return f"{preset.__qualname__}({value.max_retries})"
    return repr(value)
