"""The assistant on a real model, a small one on this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from whyloop.cli.demo.partners import PartnerDesk
from whyloop.cli.demo.scenario import Ending, Query, Scenario
from whyloop.events import AgentEvent
from whyloop.loop.agent import Agent
from whyloop.models.local import LocalServer
from whyloop.rules.error_policy import ErrorPolicy
from whyloop.values.continuation import StopReason
from whyloop.values.log import Log
from whyloop.values.messages import Message, ToolCall
from whyloop.values.state import AgentState, AgentStatus

# Enough for an answer; a longer one is truncated, and the explanation says so.
ANSWER_TOKENS = 60

# Without a script it usually ends like this, but a small model may do something else.
LOCAL = Scenario(
    name="--model local",
    title="A real model, on this machine",
    shows="SmolLM2 with 135 million parameters. Nothing is scripted, so it may fail, and you will see why.",
    queries=(Query("Who is Aurora Data?"),),
    script=(),
    ending=Ending(AgentStatus.COMPLETED, StopReason.COMPLETED, "ToolCallPresenceCheck"),
    options={"max_steps": 4, "timeout": 60, "error_policy": ErrorPolicy.retry_tool_errors(2)},
)

# Such a small model needs an example.
_EXAMPLE = (
    Message.user("Who is Polar Retail?"),
    Message.assistant("", [ToolCall("call_0", "search_entities", {"query": "Polar Retail"})]),
    Message.tool(
        '[{"id":"par-3","kind":"partner","name":"Polar Retail"}]',
        tool_call_id="call_0",
        tool_name="search_entities",
    ),
    Message.assistant("Polar Retail is a partner, its id is par-3."),
)


def play_local(server: LocalServer, handler: Callable[[AgentEvent], object] | None = None) -> AgentState:
    """Ask the model on that server; the handler receives every event."""
    model = server.model(temperature=0.0, max_tokens=ANSWER_TOKENS)
    agent = Agent(model, PartnerDesk().tools(), event_handler=handler, **LOCAL.options)
    earlier = AgentState(messages=Log(_EXAMPLE))
    return asyncio.run(agent.run(LOCAL.queries[0].text, state=earlier))
