"""`whyloop watch`: the events of a session, line by line."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.shop import HERE, WHYLOOP, asked, environment, greeting, in_store, paying, refused, run
from whyloop import Session
from whyloop.stores import Store
from whyloop.wire.envelope import NUMBERED

pytestmark = pytest.mark.usefixtures("in_the_shop")

Capsys = pytest.CaptureFixture[str]

# Streams until the test has seen a piece of the answer.
TALKER = """
import asyncio, pathlib
from whyloop import Agent, ModelResponse, TextDelta

class Talker:
    async def respond(self, request):
        text = ""
        while not pathlib.Path("seen").exists():
            text += "so "
            yield TextDelta("so ")
            await asyncio.sleep(0.02)
        yield ModelResponse(text)

agent = Agent(Talker())
"""


def new_session(agent_id: str = "q") -> None:
    async def make(store: Store) -> None:
        await Session.open(store, greeting(), agent_id, create=True)

    in_store(make)


def test_recorded_events_are_printed_line_by_line(capsys: Capsys) -> None:
    new_session()
    run(capsys, "run", "Hi", "--agent", f"{HERE}:greeting", "--session", "q")
    code, out, err = run(capsys, "watch", "q", "--so-far")
    assert (code, err) == (0, "")
    assert [line.split()[2:4] for line in out.splitlines()] == [
        ["1", "status"],
        ["2", "step.completed"],
        ["3", "status"],
    ]
    assert (
        "in_progress → completed (completed) by ToolCallPresenceCheck: "
        "The model answered and asked for no tools"
    ) in out.splitlines()[2]


@pytest.mark.parametrize(
    ("after", "seqs"), [("0", [1, 2, 3]), ("2", [3]), ("latest", []), ("EXECUTION:1", [2, 3])]
)
def test_events_after_a_cursor_are_printed_as_json(capsys: Capsys, after: str, seqs: list[int]) -> None:
    agent_id = asked(greeting())
    execution = in_store(lambda store: store.load(agent_id)).execution.id
    argv = ["watch", agent_id, "--so-far", "--json", "--after", after.replace("EXECUTION", execution)]
    out = run(capsys, *argv)[1]
    assert [json.loads(line)["seq"] for line in out.splitlines()] == seqs


def test_a_question_is_shown_with_its_id(capsys: Capsys) -> None:
    agent_id = asked(paying())
    question = in_store(lambda store: store.load(agent_id)).pending_calls[0].id[:8]
    out = run(capsys, "watch", agent_id, "--so-far")[1]
    assert f"pay waits for approval (question {question}): pay(amount: 500, to: 'Bob')" in out


def test_a_denied_call_is_not_printed_as_a_failure(capsys: Capsys) -> None:
    agent_id = asked(paying())
    run(capsys, "deny", agent_id, "we are broke", "--by", "grace")
    out = run(capsys, "watch", agent_id, "--so-far")[1]
    assert out.splitlines()[-1].endswith(" tool.completed     pay: denied by grace: we are broke")
    assert "FAILED" not in out


def test_a_session_without_events(capsys: Capsys) -> None:
    new_session()
    assert run(capsys, "watch", "q", "--so-far") == (0, "", "")


def test_an_unknown_session_or_cursor_is_an_error(capsys: Capsys) -> None:
    new_session()
    assert "session 'z' not found" in refused(capsys, "watch", "z", "--so-far")
    assert "invalid cursor 'x'" in refused(capsys, "watch", "q", "--so-far", "--after", "x", code=2)


def test_another_process_is_seen_as_it_runs_with_its_streaming_text(tmp_path: Path) -> None:
    (tmp_path / "talker.py").write_text(TALKER, encoding="utf-8")
    new_session()
    watching = subprocess.Popen(
        [*WHYLOOP, "watch", "q", "--json"], stdout=subprocess.PIPE, text=True, env=environment()
    )
    running = subprocess.Popen(
        [*WHYLOOP, "run", "Hi", "--agent", "talker:agent", "--session", "q"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    with watching, running:
        try:
            assert watching.stdout is not None
            envelopes = _read_until(watching, "agent.stream.chunk")
            assert envelopes[0]["data"]["status"] == "in_progress"
            assert envelopes[-1]["data"]["chunk"] == "so "
            (tmp_path / "seen").touch()
            envelopes += _read_until(watching, "agent.status")
            numbered = [each["seq"] for each in envelopes if each["event"] in NUMBERED]
            assert numbered == [1, 2, 3]
            assert envelopes[-1]["data"]["status"] == "completed"
            watching.send_signal(signal.SIGINT)
            assert watching.wait(timeout=20) in (130, -signal.SIGINT)
            assert running.wait(timeout=20) == 0
        finally:
            watching.kill()
            running.kill()


def _read_until(watching: subprocess.Popen[str], event: str) -> list[dict[str, Any]]:
    """Return the envelopes up to the first one of an event."""
    assert watching.stdout is not None
    envelopes = []
    for line in watching.stdout:
        envelopes.append(json.loads(line))
        if envelopes[-1]["event"] == event:
            return envelopes
    raise AssertionError(f"there was no {event}: {envelopes}")
