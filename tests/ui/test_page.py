"""The page in the guide works."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

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


class Page:
    """The page of the guide, and what happens to it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def shows(self, *script: list[Any]) -> dict[str, Any]:
        """The screen after everything that happens, and what the page asked for."""
        told = self._folder / "told.json"
        told.write_text(json.dumps({"script": script}), encoding="utf-8")
        parts = [HERE / "page.mjs", GUIDE, PACKAGE / "index.js", self._folder / "script.mjs", told]
        command = [str(NODE), *map(str, parts)]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=30, check=False)
        assert done.returncode == 0, done.stderr
        seen: dict[str, Any] = json.loads(done.stdout)
        return seen


@pytest.fixture
def page(tmp_path: Path) -> Page:
    return Page(tmp_path)


class Run(NamedTuple):
    """What was told of a run, and what is stored after it."""

    heard: list[list[Any]]
    history: list[dict[str, Any]]


async def two_runs() -> tuple[Run, Run]:
    line = Line()
    agent = scripted("first", "second", event_handler=AgentEventEnvelopeAdapter(line))
    one = await agent.run("one?")
    told = len(line.envelopes)
    two = await agent.run("two?", state=one)
    return (
        Run([["hear", envelope] for envelope in line.envelopes[:told]], canonical_messages(one)),
        Run([["hear", envelope] for envelope in line.envelopes[told:]], canonical_messages(two)),
    )


ANSWERED_ONCE = ["p.: one?", "p.: first"]
ANSWERED_TWICE = ["p.: one?", "p.: first", "p.: two?", "p.: second"]


def words(screen: list[str]) -> list[str]:
    """A screen without the empty line for a run that was completed."""
    return [line for line in screen if line != "section.status: "]


@needs_node
async def test_the_page_shows_a_run_and_then_the_history(page: Page) -> None:
    line = Line()
    agent = scripted(
        calls(call("echo", {"value": "<i>hi</i>"}), call("broken"), text="I <u>ask</u>."),
        tools=[echo, broken],
        max_steps=1,
        error_policy=ErrorPolicy.retry_tool_errors(),
        event_handler=AgentEventEnvelopeAdapter(line),
    )
    state = await agent.run("Which <b>versions</b>?")
    heard = [["hear", envelope] for envelope in line.envelopes]
    begins: list[list[Any]] = [["open"], ["history", 0, []], ["ask", "Which <b>versions</b>?"]]
    seen = page.shows(*begins, *heard, ["history", 1, canonical_messages(state)])
    assert seen["requests"] == [
        ["/sessions/42/messages", "GET", None],
        ["/sessions/42/messages", "POST", "Which <b>versions</b>?"],
        ["/sessions/42/messages", "GET", None],
    ]
    assert seen["address"] == "/sessions/42/events"
    screens = seen["screens"][1:]
    assert screens[0] == []
    question = "p.: Which <b>versions</b>?"
    assert screens[1] == [question]
    assert screens[2] == [question, "p.: Thinking…"]
    assert any("p.status: Running echo" in screen for screen in screens)
    assert "p.: Agent stopped: steps_limit" in screens[-2]
    last = screens[-1]
    assert last[:3] == [question, "p.: I <u>ask</u>.", "summary.: echo(value: '<i>hi</i>')"]
    assert "pre.: <i>hi</i>" in last
    assert any(drawn.startswith("pre.error: ") and drawn.endswith("broken") for drawn in last)
    assert last[-1] == "section.status: Agent stopped: steps_limit"


@needs_node
async def test_of_two_histories_the_one_that_was_asked_for_last_counts(page: Page) -> None:
    one, two = await two_runs()
    runs = [["ask", "one?"], *one.heard, ["ask", "two?"], *two.heard]
    seen = page.shows(*runs, ["history", 1, two.history], ["history", 0, one.history])
    assert words(seen["screens"][-2]) == ANSWERED_TWICE
    assert words(seen["screens"][-1]) == ANSWERED_TWICE


@needs_node
async def test_a_history_that_comes_during_the_next_run_takes_nothing_away(page: Page) -> None:
    one, two = await two_runs()
    runs = [["ask", "one?"], *one.heard, ["ask", "two?"], *two.heard[:3]]
    seen = page.shows(*runs, ["history", 0, one.history], *two.heard[3:], ["history", 1, two.history])
    after = len(runs)
    assert words(seen["screens"][after]) == words(seen["screens"][after - 1])
    assert "p.: two?" in seen["screens"][after]
    assert words(seen["screens"][-1]) == ANSWERED_TWICE


@needs_node
async def test_a_line_that_is_there_again_brings_what_was_missed(page: Page) -> None:
    one, _ = await two_runs()
    seen = page.shows(
        ["open"], ["history", 0, []], ["ask", "one?"], *one.heard[:2], ["open"], ["history", 1, one.history]
    )
    assert seen["screens"][-2] == ["p.: one?", "p.: Thinking…"]
    assert words(seen["screens"][-1]) == ANSWERED_ONCE


@needs_node
def test_what_cannot_be_sent_or_loaded_is_shown_and_stays(page: Page) -> None:
    seen = page.shows(
        ["open"],
        ["lose", "GET", 0],
        ["ask", "one?"],
        ["refuse", "POST", 0, 503],
        ["open"],
        ["history", 1, []],
    )
    lost = "p.: The history could not be loaded: fetch failed"
    refused = "p.: The question could not be sent: the server answered 503"
    assert seen["screens"][1] == [lost]
    assert seen["screens"][3] == [lost, "p.: one?", refused]
    assert sorted(seen["screens"][-1]) == sorted([lost, "p.: one?", refused])


@needs_node
async def test_the_lines_in_the_readme_lose_nothing_either(tmp_path: Path) -> None:
    one, two = await two_runs()
    lines, *_ = re.findall(r"```js\n(.*?)```", (PACKAGE / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    told = {"one": one._asdict(), "two": two._asdict()}
    code = lines.replace('"whyloop-ui"', json.dumps((PACKAGE / "index.js").as_uri())) + (
        f"const {{ one, two }} = {json.dumps(told)};"
        "const answers = []; const history = () => new Promise((answer) => answers.push(answer));"
        "const tick = () => new Promise(setImmediate); const seen = [];"
        "const see = async () => { await tick(); seen.push(messages.map((message) => message.content)); };"
        "for (const [, envelope] of [...one.heard, ...two.heard.slice(0, 3)]) heard(envelope);"
        "await see(); answers[0](one.history); await see();"
        "for (const [, envelope] of two.heard.slice(3)) heard(envelope);"
        "answers[1](two.history); await see(); console.log(JSON.stringify(seen));"
    )
    (tmp_path / "readme.mjs").write_text(code, encoding="utf-8")
    command = [str(NODE), str(tmp_path / "readme.mjs")]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    before, during, after = json.loads(done.stdout)
    assert during == before
    assert after == ["one?", "first", "two?", "second"]


@needs_node
@pytest.mark.parametrize(
    ("page", "lines"),
    [(PACKAGE / "README.md", r"```js\n(.*?)```"), (GUIDE, r'<script type="module">\n(.*?)</script>')],
    ids=["the readme", "the guide"],
)
async def test_the_lines_that_follow_a_session_follow_it(page: Path, lines: str, tmp_path: Path) -> None:
    one, _ = await two_runs()
    code = re.findall(lines, page.read_text(encoding="utf-8"), re.DOTALL)[1]
    address = json.dumps((PACKAGE / "session.js").as_uri())
    code = re.sub(r'"(whyloop-ui/session|\./whyloop-ui/session\.js)"', lambda _: address, code)
    told = json.dumps([envelope for _, envelope in one.heard[:-1]])
    script = (
        "const asked = []; const sources = []; const seen = [];"
        "const show = (messages) => seen.push(messages.map((message) => message.content));"
        'Object.defineProperty(globalThis, "fetch", { value: async (url) => { asked.push(url);'
        ' return { ok: true, json: async () => ({ messages: [], after: "7" }) }; } });'
        "globalThis.EventSource = class { constructor(url) { asked.push(url); sources.push(this); } };"
        f"{code}"
        "await new Promise(setImmediate);"
        'view.add({ content: "one?" });'
        f"for (const told of {told}) sources[0].onmessage({{ data: JSON.stringify(told) }});"
        "console.log(JSON.stringify({ asked, last: seen.at(-1) }));"
    )
    (tmp_path / "follow.mjs").write_text(script, encoding="utf-8")
    command = [str(NODE), str(tmp_path / "follow.mjs")]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    session = "/agents/sessions/42"
    assert json.loads(done.stdout) == {
        "asked": [f"{session}/messages", f"{session}/events?after=7"],
        "last": ["one?", "first", ""],
    }
