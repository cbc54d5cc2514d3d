"""The lines in the readme and in the guide work, whatever order things come in."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from tests.support import echo, scripted
from tests.ui.support import GUIDE, NODE, PACKAGE, needs_node
from whyloop.broadcasting import AgentEventEnvelopeAdapter
from whyloop.testing import call
from whyloop.wire.ui import canonical_messages

README = PACKAGE / "README.md"


class Line:
    """Envelopes on their way to a browser."""

    def __init__(self) -> None:
        self.envelopes: list[Any] = []

    def broadcast(self, event: Any) -> None:
        self.envelopes.append(event)

    def broadcast_batch(self, events: Any) -> None:
        self.envelopes += events


class Run(NamedTuple):
    """What was told of a run, and what is stored after it."""

    told: list[dict[str, Any]]
    stored: list[dict[str, Any]]


async def two_runs() -> tuple[Run, Run]:
    line = Line()
    agent = scripted("first", "second", event_handler=AgentEventEnvelopeAdapter(line))
    one = await agent.run("one?")
    told = len(line.envelopes)
    two = await agent.run("two?", state=one)
    return (
        Run(line.envelopes[:told], canonical_messages(one)),
        Run(line.envelopes[told:], canonical_messages(two)),
    )


def blocks(page: Path, pattern: str) -> list[str]:
    return re.findall(pattern, page.read_text(encoding="utf-8"), re.DOTALL)


def printed(folder: Path, before: str, lines: str, after: str) -> Any:
    """What a script prints that has these lines in it, with the modules where they are."""
    for name, module in (("index", "whyloop-ui"), ("session", "whyloop-ui/session")):
        address = json.dumps((PACKAGE / f"{name}.js").as_uri())
        lines = lines.replace(f'"./whyloop-ui/{name}.js"', address).replace(f'"{module}"', address)
    (folder / "script.mjs").write_text(before + lines + after, encoding="utf-8")
    command = [str(NODE), str(folder / "script.mjs")]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@needs_node
async def test_the_lines_in_the_readme_lose_nothing(tmp_path: Path) -> None:
    one, two = await two_runs()
    lines, *_ = blocks(README, r"```js\n(.*?)```")
    before, during, after = printed(
        tmp_path,
        f"const [one, two] = {json.dumps([one._asdict(), two._asdict()])};"
        "const answers = []; const history = () => new Promise((answer) => answers.push(answer));",
        lines,
        "const tick = () => new Promise(setImmediate); const seen = [];"
        "const see = async () => { await tick(); seen.push(messages.map((message) => message.content)); };"
        "for (const envelope of [...one.told, ...two.told.slice(0, 3)]) heard(envelope);"
        "await see(); answers[0](one.stored); await see();"
        "for (const envelope of two.told.slice(3)) heard(envelope);"
        "answers[1](two.stored); await see(); console.log(JSON.stringify(seen));",
    )
    assert during == before
    assert after == ["one?", "first", "two?", "second"]


@needs_node
async def test_the_lines_in_the_readme_follow_a_session(tmp_path: Path) -> None:
    one, _ = await two_runs()
    lines = blocks(README, r"```js\n(.*?)```")[1]
    seen = printed(
        tmp_path,
        "const asked = []; const sources = []; const seen = [];"
        "const show = (messages) => seen.push(messages.map((message) => message.content));"
        "globalThis.fetch = async (url) => { asked.push(url);"
        ' return { ok: true, json: async () => ({ messages: [], after: "7" }) }; };'
        "globalThis.EventSource = class { constructor(url) { asked.push(url); sources.push(this); } };",
        lines,
        "await new Promise(setImmediate);"
        'view.add({ content: "one?" });'
        f"for (const told of {json.dumps(one.told[:-1])})"
        " sources[0].onmessage({ data: JSON.stringify(told) });"
        "console.log(JSON.stringify({ asked, last: seen.at(-1) }));",
    )
    session = "/agents/sessions/42"
    assert seen == {
        "asked": [f"{session}/messages", f"{session}/events?after=7", f"{session}/messages"],
        "last": ["one?", "first", ""],
    }


ECHO = """
const kept = []; const listeners = {}; const screens = []; let stored = []; let subscribed;
globalThis.fetch = async (url, { headers }) => {
  const { pathname, searchParams } = new URL(url, "http://server");
  const page = pathname.replace("/agents/sessions/42/", "");
  const [execution, number] = (searchParams.get("after") ?? "").split(":");
  const events = kept.filter(({ execution_id, seq }) => execution_id === execution && seq > Number(number));
  const pages = { messages: { messages: stored }, events: { events } };
  return { ok: headers.accept === "application/json", json: async () => pages[page] };
};
globalThis.Echo = { private: (name) => ({
  subscribed: (listener) => { subscribed = listener; },
  listen: (event, listener) => { listeners[event] = listener; },
}) };
const tick = () => new Promise(setImmediate);
const draw = () => {};
"""
HEARD = """
subscribed();
for (const [number, envelope] of told.entries()) {
  if (envelope.event !== "agent.stream.chunk") kept.push(envelope);
  if (number === told.length - 1) stored = history;
  if (number !== lost) listeners[`.${envelope.event}`](envelope);
  await tick();
  screens.push(missing(messages).length ? "held" : messages.map(({ content }) => content));
}
console.log(JSON.stringify(screens));
"""


@needs_node
async def test_over_a_line_that_loses_an_envelope_the_lines_in_the_guide_ask_for_it(tmp_path: Path) -> None:
    line = Line()
    replies = call("echo", {"value": "hi"}, text="Let me see what it says."), "It says hi, as you can see."
    state = await scripted(*replies, tools=[echo], event_handler=AgentEventEnvelopeAdapter(line)).run("one?")
    (lines,) = blocks(GUIDE, r"```html\n<script type=\"module\">\n(.*?)</script>\n```")

    def screens(lost: int) -> list[Any]:
        given = json.dumps([lost, line.envelopes, canonical_messages(state)])
        shown: list[Any] = printed(tmp_path, ECHO, lines, f"const [lost, told, history] = {given};{HEARD}")
        return shown

    whole = screens(-1)
    assert whole[-1] == ["one?", "Let me see what it says.", "hi", "It says hi, as you can see."]
    assert "held" not in whole
    for lost, envelope in enumerate(line.envelopes[:-1]):
        shown = screens(lost)
        assert shown[-1] == whole[-1]
        if envelope["event"] != "agent.stream.chunk":
            assert shown[lost + 1 :] == whole[lost + 1 :], f"{envelope} was lost"
        else:
            assert "held" not in shown, f"{envelope} was lost"
