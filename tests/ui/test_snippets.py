"""The code in the readme and in the guide works, in any order of arrival."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from tests.support import echo, scripted
from tests.ui.runs import Transport
from tests.ui.support import GUIDE, NODE, PACKAGE, README, needs_node
from whyloop.broadcasting import AgentEventEnvelopeAdapter
from whyloop.testing import call
from whyloop.wire.envelope import NUMBERED
from whyloop.wire.ui import canonical_messages


class Run(NamedTuple):
    """The envelopes of a run, and the history after it."""

    sent: list[dict[str, Any]]
    stored: list[dict[str, Any]]


async def runs_of(*queries: str, replies: Any, **options: Any) -> list[Run]:
    """Return the runs of a session with these queries."""
    transport = Transport([])
    agent = scripted(*replies, event_handler=AgentEventEnvelopeAdapter(transport), **options)
    runs: list[Run] = []
    state = agent.new_session()
    for query in queries:
        state = await agent.run(query, state=state)
        runs.append(Run(list(transport.sent), canonical_messages(state)))
        transport.sent.clear()
    return runs


def blocks(page: Path, pattern: str) -> list[str]:
    return re.findall(pattern, page.read_text(encoding="utf-8"), re.DOTALL)


def printed(folder: Path, before: str, lines: str, after: str) -> Any:
    """Return what a script prints that has these lines in it, with the modules where they are."""
    for name, module in (("index", "whyloop-ui"), ("session", "whyloop-ui/session")):
        address = json.dumps((PACKAGE / f"{name}.js").as_uri())
        lines = lines.replace(f'"./whyloop-ui/{name}.js"', address).replace(f'"{module}"', address)
    (folder / "script.mjs").write_text(before + lines + after, encoding="utf-8")
    command = [str(NODE), str(folder / "script.mjs")]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@needs_node
async def test_the_code_in_the_readme_loses_nothing(tmp_path: Path) -> None:
    one, two = await runs_of("one?", "two?", replies=("first", "second"))
    _, lines = blocks(README, r"```js\n(.*?)```")
    before, during, after = printed(
        tmp_path,
        f"const [one, two] = {json.dumps([one._asdict(), two._asdict()])};"
        "const answers = []; const history = () => new Promise((answer) => answers.push(answer));",
        lines,
        "const tick = () => new Promise(setImmediate); const seen = [];"
        "const see = async () => { await tick(); seen.push(view.messages.map(({ content }) => content)); };"
        "for (const envelope of [...one.sent, ...two.sent.slice(0, 3)]) receive(envelope);"
        "await see(); answers[0](one.stored); await see();"
        "for (const envelope of two.sent.slice(3)) receive(envelope);"
        "answers[1](two.stored); await see(); console.log(JSON.stringify(seen));",
    )
    assert during == before
    assert after == ["one?", "first", "two?", "second"]


@needs_node
async def test_the_code_in_the_readme_follows_a_session(tmp_path: Path) -> None:
    (one,) = await runs_of("one?", replies=["first"])
    lines, _ = blocks(README, r"```js\n(.*?)```")
    seen = printed(
        tmp_path,
        "const asked = []; const sources = []; const seen = [];"
        "const show = (messages) => seen.push(messages.map((message) => message.content));"
        "globalThis.fetch = async (url) => { asked.push(url);"
        ' return { ok: true, json: async () => ({ messages: [], after: "7" }) }; };'
        "globalThis.EventSource = class { constructor(url) { asked.push(url); sources.push(this); } };",
        lines,
        "await new Promise(setImmediate);"
        'session.add({ content: "one?" });'
        f"for (const sent of {json.dumps(one.sent[:-1])})"
        " sources[0].onmessage({ data: JSON.stringify(sent) });"
        "console.log(JSON.stringify({ asked, last: seen.at(-1) }));",
    )
    session = "/agents/sessions/42"
    assert seen == {
        "asked": [f"{session}/messages", f"{session}/events?after=7", f"{session}/messages"],
        "last": ["one?", "first"],
    }


ECHO = """
const recorded = []; const listeners = {}; const screens = []; let stored = []; let subscribed;
globalThis.fetch = async (url, { headers }) => {
  const { pathname, searchParams } = new URL(url, "http://server");
  const page = pathname.replace("/agents/sessions/42/", "");
  const [execution, number] = (searchParams.get("after") ?? "").split(":");
  const events = recorded.filter(
    ({ execution_id, seq }) => encodeURIComponent(execution_id) === execution && seq > Number(number),
  );
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
RECEIVED = """
subscribed();
for (const [number, envelope] of sent.entries()) {
  if (numbered.includes(envelope.event)) recorded.push(envelope);
  if (number === sent.length - 1) stored = history;
  if (number !== lost) listeners[`.${envelope.event}`](envelope);
  await tick();
  const isHeld = view.runs.some(({ gap }) => gap);
  screens.push(isHeld ? "held" : view.messages.map(({ content }) => content));
}
console.log(JSON.stringify(screens));
"""


@needs_node
async def test_the_code_in_the_guide_requests_an_envelope_that_was_lost(tmp_path: Path) -> None:
    replies = call("echo", {"value": "hi"}, text="Let me see what it says."), "It says hi, as you can see."
    (run,) = await runs_of("one?", replies=replies, tools=[echo])
    (lines,) = blocks(GUIDE, r"```html\n<script type=\"module\">\n(.*?)</script>\n```")

    def screens(lost: int) -> list[Any]:
        given = json.dumps([lost, run.sent, run.stored, sorted(NUMBERED)])
        names = "lost, sent, history, numbered"
        shown: list[Any] = printed(tmp_path, ECHO, lines, f"const [{names}] = {given};{RECEIVED}")
        return shown

    whole = screens(-1)
    assert whole[-1] == ["one?", "Let me see what it says.", "hi", "It says hi, as you can see."]
    assert "held" not in whole
    for lost, envelope in enumerate(run.sent[:-1]):
        shown = screens(lost)
        assert shown[-1] == whole[-1]
        assert "held" not in shown, f"{envelope} was lost and not requested"
        following = run.sent[lost + 1]["event"]
        if envelope["event"] in NUMBERED and following in NUMBERED:
            assert shown[lost + 1] == whole[lost + 1], f"{envelope} was lost"
