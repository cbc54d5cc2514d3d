"""`whyloop worker`: sessions continue by themselves, in a process of their own."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.shop import WHYLOOP, environment, loaded, question_of, refused, run
from whyloop import AgentState

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("in_the_shop")]

Capsys = pytest.CaptureFixture[str]

# Asks for two calls and then answers, whichever process it runs in. The second call writes its process id
# into a file and waits for another file.
CREW = """
import asyncio, os, pathlib
from whyloop import Agent, FinishReason, ModelResponse, ToolCall, tool

class Model:
    async def respond(self, request):
        results = sum(message.is_tool for message in request.messages)
        if results < 2:
            call = ToolCall(f"call_{results}", "work", {"number": results})
            yield ModelResponse("", (call,), FinishReason.TOOL_CALLS)
        else:
            yield ModelResponse("All done.")

@tool(idempotent=IDEMPOTENT)
async def work(number: int) -> str:
    if number == 1:
        pathlib.Path("started").write_text(str(os.getpid()))
        while not pathlib.Path("finish").exists():
            await asyncio.sleep(0.01)
    return f"done {number}"

agents = {"crew": Agent(Model(), [work], name="crew")}
alone = agents["crew"]
renamed = {"team": Agent(Model(), [work], name="crew")}
number = 7

def make():
    return agents
"""


@pytest.fixture
def crew(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a module with an agent; its tool is idempotent unless the test says otherwise."""
    monkeypatch.delitem(sys.modules, "crew", raising=False)  # Another test may have one of this name.
    source = CREW.replace("IDEMPOTENT", str(getattr(request, "param", True)))
    (tmp_path / "crew.py").write_text(source, encoding="utf-8")


def crash(tmp_path: Path) -> str:
    """Kill a run in the middle of its second step; return the session's id."""
    command = [*WHYLOOP, "run", "Work", "--agent", "crew:alone", "--store", "whyloop.db"]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=environment()
    ) as running:
        assert running.stderr is not None
        agent_id = running.stderr.readline().removeprefix("session ").strip()
        for line in running.stderr:
            if line.startswith("  continue"):
                break
        _wait_for_file(tmp_path / "started", running)
        running.kill()
    assert running.returncode == -signal.SIGKILL
    (tmp_path / "started").unlink()
    return agent_id


@contextmanager
def worker(path: str = "crew:agents") -> Iterator[subprocess.Popen[str]]:
    command = [*WHYLOOP, "worker", "--store", "whyloop.db", "--agents", path]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment()) as process:
        try:
            assert process.stderr is not None
            assert process.stderr.readline() == "Looking for sessions of crew.\n"
            yield process
        finally:
            process.kill()


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    return process.stderr.readline().rstrip("\n")


def step_results(state: AgentState) -> list[str]:
    return [message.text for message in state.messages if message.is_tool]


@pytest.mark.parametrize("path", ["crew:agents", "crew:alone", "crew:make"])
def test_a_run_whose_process_was_killed_is_continued(crew: None, tmp_path: Path, path: str) -> None:
    agent_id = crash(tmp_path)
    assert loaded(agent_id).status == "in_progress"
    (tmp_path / "finish").touch()
    with worker(path) as process:
        assert read_line(process) == f"{agent_id[:8]}  continues"
        assert read_line(process) == (
            f"{agent_id[:8]}  completed by ToolCallPresenceCheck: The model answered and asked for no tools"
        )
        process.send_signal(signal.SIGTERM)
        assert read_line(process) == "Stopping: each run ends after its step."
        assert process.wait(timeout=20) == 0
    state = loaded(agent_id)
    assert (state.status, state.step_count, state.execution.resumes) == ("completed", 3, 0)
    assert step_results(state) == ["done 0", "done 1"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_a_run_end_after_its_step_for_the_next_worker(
    crew: None, tmp_path: Path, number: signal.Signals
) -> None:
    agent_id = crash(tmp_path)
    with worker() as process:
        assert read_line(process) == f"{agent_id[:8]}  continues"
        _wait_for_file(tmp_path / "started", process)
        process.send_signal(number)
        assert read_line(process) == "Stopping: each run ends after its step."
        (tmp_path / "finish").touch()
        assert read_line(process) == f"{agent_id[:8]}  left after step 2: another worker continues it"
        assert process.wait(timeout=20) == 0
    state = loaded(agent_id)
    assert (state.status, state.step_count, state.open_step) == ("in_progress", 2, None)
    with worker() as process:
        assert read_line(process) == f"{agent_id[:8]}  continues"
        assert read_line(process).startswith(f"{agent_id[:8]}  completed by ")
    assert step_results(loaded(agent_id)) == ["done 0", "done 1"]


def test_a_second_signal_ends_it_at_once_and_the_next_worker_continues(crew: None, tmp_path: Path) -> None:
    agent_id = crash(tmp_path)
    with worker() as process:
        assert read_line(process) == f"{agent_id[:8]}  continues"
        _wait_for_file(tmp_path / "started", process)
        process.send_signal(signal.SIGTERM)
        assert read_line(process) == "Stopping: each run ends after its step."
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == -signal.SIGTERM
    assert loaded(agent_id).status == "in_progress"
    (tmp_path / "finish").touch()
    with worker() as process:
        assert read_line(process) == f"{agent_id[:8]}  continues"
        assert read_line(process).startswith(f"{agent_id[:8]}  completed by ")


@pytest.mark.parametrize("crew", [False], indirect=True)
def test_a_call_that_may_have_run_waits_for_a_person_and_then_continues(
    capsys: Capsys, crew: None, tmp_path: Path
) -> None:
    agent_id = crash(tmp_path)
    (tmp_path / "finish").touch()
    with worker() as process:
        assert read_line(process) == f"{agent_id[:8]}  continues"
        assert read_line(process).startswith(
            f"{agent_id[:8]}  paused by ApprovalRequired: It is unknown whether work ran"
        )
        assert run(capsys, "approve", agent_id, question_of(agent_id)[:8])[0] == 0
        assert read_line(process) == f"{agent_id[:8]}  continues"
        assert read_line(process).startswith(f"{agent_id[:8]}  completed by ")
    assert step_results(loaded(agent_id)) == ["done 0", "done 1"]


def test_a_server_continues_the_sessions_of_its_agent(crew: None, tmp_path: Path) -> None:
    agent_id = crash(tmp_path)
    (tmp_path / "finish").touch()
    command = [*WHYLOOP, "serve", "--store", "whyloop.db", "--agent", "crew:alone", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment()) as process:
        try:
            assert read_line(process).startswith("http://")
            while loaded(agent_id).status != "completed":
                assert process.poll() is None
                time.sleep(0.01)
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=20)
        finally:
            process.kill()
    assert step_results(loaded(agent_id)) == ["done 0", "done 1"]


@pytest.mark.parametrize(
    ("path", "error"),
    [
        (
            "crew:number",
            "--agents crew:number: 7 is not an agent: use an Agent, a dict of agents by name, or a function",
        ),
        ("crew:renamed", "the agent under 'team' is named 'crew': create it with Agent(…, name='team')"),
        ("crew:nothing", "crew has no 'nothing'; its agents are alone"),
        ("crew", "--agents crew: invalid path: write package.module:name"),
    ],
)
def test_agents_that_cannot_be_found(capsys: Capsys, crew: None, path: str, error: str) -> None:
    assert error in refused(capsys, "worker", "--agents", path, code=2)


def test_it_runs_at_least_one_session_at_once(capsys: Capsys, crew: None) -> None:
    argv = ["worker", "--agents", "crew:agents", "--at-once", "0"]
    assert "invalid --at-once 0: use 1 or more" in refused(capsys, *argv, code=2)


@pytest.mark.parametrize(
    "given",
    [
        ("--namespace", "x"),
        ("--task-queue", "x"),
        ("--drain", "0"),
        ("--tool-queue", "work=x"),
        ("--deployment", "crew:1"),
        ("--tools-only",),
    ],
)
def test_the_options_of_temporal_need_its_address(capsys: Capsys, crew: None, given: tuple[str, ...]) -> None:
    error = refused(capsys, "worker", "--agents", "crew:agents", *given, code=2)
    assert f"{given[0]} needs --temporal ADDRESS" in error


def _wait_for_file(path: Path, process: subprocess.Popen[str]) -> None:
    while not (path.exists() and path.read_text(encoding="utf-8")):
        assert process.poll() is None
        time.sleep(0.01)
