"""A scenario of the demo, and how it is played."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from whyloop.cli.demo.partners import INSTRUCTIONS, PartnerDesk
from whyloop.cli.demo.world import DemoWorld
from whyloop.events import AgentEvent
from whyloop.loop.agent import Agent
from whyloop.rules.error_policy import ErrorPolicy
from whyloop.testing import FakeClock, Reply, ScriptedModel
from whyloop.values.approval import Verdict
from whyloop.values.continuation import StopReason
from whyloop.values.decisions import decide
from whyloop.values.state import AgentState, AgentStatus
from whyloop.wire.view import events_of

START = datetime(2026, 1, 16, 10, 5, tzinfo=UTC)

Handler = Callable[[AgentEvent], object]


class Query(NamedTuple):
    """A user's query, and how many seconds after the last answer it comes."""

    text: str
    after: float = 0.0


class Approval(NamedTuple):
    """The person who approves every question, and how many seconds after it was asked."""

    by: str
    after: float


class Ending(NamedTuple):
    """How a scenario ends, and the rule that decides it."""

    status: AgentStatus
    stop_reason: StopReason
    resolved_by: str


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One run of the assistant: its settings, the queries, the model's replies, and how it ends."""

    name: str
    title: str
    shows: str
    queries: tuple[Query, ...]
    script: tuple[Reply | Exception, ...]
    ending: Ending
    options: Mapping[str, Any] = field(default_factory=dict)
    outages: int = 0
    """How many searches fail."""
    tool_seconds: Mapping[str, float] = field(default_factory=dict)
    needs_approval: tuple[str, ...] = ()
    """The tools that ask a person before they run."""
    approval: Approval | None = None
    react: Callable[[Agent, AgentEvent], None] | None = None
    """What a person does when an event arrives."""

    @property
    def settings(self) -> str:
        """The options of the agent beyond its model and tools, as code."""
        return ", ".join(f"{key}={_code(value)}" for key, value in self.options.items())


def play(scenario: Scenario, handler: Handler | None = None, *, paced: bool = False) -> AgentState:
    """Run a scenario to its end; the handler receives every event."""
    return asyncio.run(_play(scenario, handler, paced))


async def _play(scenario: Scenario, handler: Handler | None, paced: bool) -> AgentState:
    desk, clock, model = PartnerDesk(scenario.outages), FakeClock(START), ScriptedModel(scenario.script)
    agent = Agent(
        model,
        desk.tools(scenario.needs_approval),
        instructions=INSTRUCTIONS,
        world=DemoWorld(model, clock, tool_seconds=scenario.tool_seconds, paced=paced),
        event_handler=handler,
        **scenario.options,
    )
    react = scenario.react
    if react is not None:
        agent.subscribe(lambda event: react(agent, event))
    state: AgentState | None = None
    for query in scenario.queries:
        clock.advance(query.after)
        if state is not None:
            state = AgentState.from_dict(state.to_dict())  # As if another process continued it.
        state = await agent.run(query.text, state=state)
        if scenario.approval is not None and state.pending_calls:
            clock.advance(scenario.approval.after)
            state = await agent.resume(_approve(state, scenario.approval.by, clock.now(), handler))
    model.assert_finished()
    assert state is not None
    return state


def _approve(state: AgentState, by: str, now: datetime, handler: Handler | None) -> AgentState:
    """Approve every question, and show the events as a client that follows the session sees them."""
    for call in state.pending_calls:
        for transition in decide(state, call.id, Verdict.APPROVED, by, now):
            if handler is not None:
                for event in events_of(state, transition):
                    handler(event)
            state = transition.apply_to(state)
    return state


def _code(value: object) -> str:
    """Return a value as code; a policy by the name of its preset."""
    if isinstance(value, ErrorPolicy):
        for preset in (ErrorPolicy.retry_tool_errors, ErrorPolicy.retry_all):
            if preset(value.max_retries) == value:
                return f"{preset.__qualname__}({value.max_retries})"
    return repr(value)
