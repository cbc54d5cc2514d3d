"""Agents that work within a tool of another agent."""

from __future__ import annotations

import pytest

from tests.support import scripted
from tests.ui.runs import Transport
from tests.ui.support import JavaScript, as_json
from whyloop import tool
from whyloop.broadcasting import AgentEventEnvelopeAdapter
from whyloop.errors import ModelError
from whyloop.testing import call
from whyloop.wire.ui import canonical_messages


@pytest.mark.parametrize("nested", [False, True])
async def test_the_history_replaces_what_nested_agents_sent(nested: bool, js: JavaScript) -> None:
    transport = Transport([])
    adapter = AgentEventEnvelopeAdapter(transport, session_id="17", nested=nested)

    @tool
    async def ask(question: str) -> str:
        inner = await scripted(ModelError("fell over"), event_handler=adapter).run(question)
        return f"it {inner.status}"

    outer = scripted(call("ask", {"question": "why?"}), "so", tools=[ask], event_handler=adapter)
    state = await outer.run("go")
    stored = canonical_messages(state)
    shown = js.call("client", [], transport.sent, stored)
    streamed = shown["streamed"]
    assert not any(run["status"] == "in_progress" for run in streamed["runs"])
    assert any("fell over" in message["content"] for message in streamed["messages"]) is nested
    assert shown["reconciled"]["messages"] == as_json(stored)
