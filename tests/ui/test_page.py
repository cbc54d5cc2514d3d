"""The page in the guide works."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.support import broken, echo, scripted
from tests.ui.support import HERE, NODE, PACKAGE, needs_node
from whyloop import ErrorPolicy
from whyloop.broadcasting import AgentEventEnvelopeAdapter
from whyloop.testing import call, calls
from whyloop.wire.ui import canonical_messages

GUIDE = HERE.parent.parent / "docs/chat-ui.md"


class Line:
    """Envelopes on their way to a browser."""

    def __init__(self) -> None:
        self.envelopes: list[Any] = []

    def broadcast(self, event: Any) -> None:
        self.envelopes.append(event)

    def broadcast_batch(self, events: Any) -> None:
        self.envelopes += events


@needs_node
async def test_the_page_shows_a_run_and_then_the_history(tmp_path: Path) -> None:
    line = Line()
    agent = scripted(
        calls(call("echo", {"value": "<i>hi</i>"}), call("broken"), text="I <u>ask</u>."),
        tools=[echo, broken],
        max_steps=1,
        error_policy=ErrorPolicy.retry_tool_errors(),
        event_handler=AgentEventEnvelopeAdapter(line),
    )
    state = await agent.run("Which <b>versions</b>?")
    told = {"histories": [[], canonical_messages(state)], "envelopes": line.envelopes}
    (tmp_path / "told.json").write_text(json.dumps(told), encoding="utf-8")
    parts = [GUIDE, PACKAGE / "index.js", tmp_path / "script.mjs", tmp_path / "told.json"]
    command = [str(NODE), str(HERE / "page.mjs"), *map(str, parts)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["posted"] == [["/sessions/42/messages", "POST", "Which <b>versions</b>?"]]
    assert seen["address"] == "/sessions/42/events"
    assert seen["screens"][0] == []
    question = "p.: Which <b>versions</b>?"
    assert seen["screens"][1] == [question]
    assert seen["screens"][2] == [question, "p.: Thinking…"]
    assert any("p.status: Running echo" in screen for screen in seen["screens"])
    assert "p.: Agent stopped: steps_limit" in seen["screens"][-2]
    last = seen["screens"][-1]
    assert last[:3] == [question, "p.: I <u>ask</u>.", "summary.: echo(value: '<i>hi</i>')"]
    assert "pre.: <i>hi</i>" in last
    assert any(drawn.startswith("pre.error: ") and drawn.endswith("broken") for drawn in last)
    assert last[-1] == "section.status: Agent stopped: steps_limit"
