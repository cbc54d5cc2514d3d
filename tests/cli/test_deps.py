"""`--deps`: a function of your code makes the deps of each run from the summary of its session."""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path

import pytest

from tests.cli.shop import in_store, loaded, refused, run
from whyloop.cli import COMMANDS

pytestmark = pytest.mark.usefixtures("in_the_shop")

Capsys = pytest.CaptureFixture[str]

BANK = """
from dataclasses import dataclass
from whyloop import Agent, ToolContext, tool
from whyloop.testing import ScriptedModel, call

@dataclass
class Bank:
    owner: str

@tool(needs_approval=lambda arguments, context: context.deps.owner != "ann")
async def pay(context: ToolContext[Bank]) -> str:
    return f"paid by {context.deps.owner}"

def agent():
    return Agent(ScriptedModel([call("pay"), "done"]), [pay], deps_type=Bank)

def after():
    return Agent(ScriptedModel(["done"]), [pay], deps_type=Bank)

async def bank(summary):
    return Bank(f"the runner of {summary.agent_id}")

def anns(summary):
    return Bank("ann")

def customers(summary):
    return Bank(summary.metadata["customer"])

def broken(summary):
    raise OSError("no such bank")

number = 7
"""


@pytest.fixture(autouse=True)
def bank(tmp_path: Path) -> None:
    (tmp_path / "bank.py").write_text(BANK, encoding="utf-8")


@pytest.mark.parametrize("options", [[], ["--deps", "bank:broken"]])
def test_a_run_that_is_refused_prints_no_id_of_a_session(capsys: Capsys, options: list[str]) -> None:
    code, _, err = run(capsys, "run", "go", "--agent", "bank:agent", "--store", "whyloop.db", *options)
    assert code == 2
    assert "session " not in err.split("whyloop run:", maxsplit=1)[0]
    assert not in_store(lambda store: store.sessions()).sessions


def test_a_run_that_is_not_recorded_has_deps(capsys: Capsys) -> None:
    code, out, _ = run(capsys, "run", "go", "--agent", "bank:agent", "--deps", "bank:anns")
    assert (code, out) == (0, "done\n")


def test_a_session_gets_its_deps_when_it_is_asked_and_when_it_is_resumed(capsys: Capsys) -> None:
    options = ["--deps", "bank:bank", "--store", "whyloop.db"]
    _, _, err = run(capsys, "run", "go", "--agent", "bank:agent", *options)
    session = re.findall(r"^session (\w+)", err)[0]
    assert "--agent bank:agent --deps bank:bank" in err
    run(capsys, "approve", session)
    assert run(capsys, "resume", session, "--agent", "bank:after", *options)[:2] == (0, "done\n")
    assert loaded(session).messages[2].text == f"paid by the runner of {session}"


@pytest.mark.parametrize(
    ("deps", "reason"),
    [
        (
            "bank:number",
            "--deps bank:number: 7 is not a function: use one that takes the summary of a session",
        ),
        ("bank:nothing", "--deps bank:nothing: bank has no 'nothing'; its functions are agent, after"),
        ("bank", "--deps bank: invalid path: write package.module:name"),
        ("bank:broken", "--deps: the function failed: OSError: no such bank"),
    ],
)
def test_deps_that_cannot_be_made_are_one_clear_line(deps: str, reason: str, capsys: Capsys) -> None:
    assert reason in refused(capsys, "run", "go", "--agent", "bank:agent", "--deps", deps, code=2)


def test_missing_deps_name_what_to_pass(capsys: Capsys) -> None:
    message = refused(capsys, "run", "go", "--agent", "bank:agent", code=2)
    assert message.startswith("agent 'agent' has no deps and needs Bank")


@pytest.mark.parametrize("deps", [(), ("--deps", "bank:broken")], ids=["missing", "broken"])
@pytest.mark.parametrize("command", ["run", "chat"])
def test_a_run_that_cannot_begin_leaves_no_session(
    command: str, deps: tuple[str, ...], capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", StringIO("go\n"))
    question = ["go"] if command == "run" else []
    run(capsys, command, *question, "--agent", "bank:agent", *deps, "--store", "whyloop.db")
    assert run(capsys, "sessions", "--store", "whyloop.db")[1] == ""


def test_every_command_that_runs_sessions_takes_deps() -> None:
    takers = {command.name for command in COMMANDS if "name='--deps'" in repr(command)}
    assert {"run", "resume", "serve", "worker"} <= takers


CUSTOMER = ("--deps", "bank:customers", "--metadata", "customer=ann")


@pytest.mark.parametrize("store", [(), ("--store", "whyloop.db")], ids=["unrecorded", "recorded"])
def test_deps_can_read_the_metadata_of_a_run(capsys: Capsys, store: tuple[str, ...]) -> None:
    assert run(capsys, "run", "go", "--agent", "bank:agent", *CUSTOMER, *store)[:2] == (0, "done\n")


def test_deps_can_read_the_metadata_of_a_chat(capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", StringIO("go\n"))
    options = ("--metadata", "floor=3", "--store", "whyloop.db")
    code, out, _ = run(capsys, "chat", "--agent", "bank:agent", *CUSTOMER, *options)
    assert (code, out) == (0, "done\n")
    (summary,) = in_store(lambda store: store.sessions()).sessions
    assert summary.metadata == {"customer": "ann", "floor": 3}


@pytest.mark.parametrize("command", [("run", "go"), ("chat",)], ids=["run", "chat"])
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--metadata", "customer"), "invalid --metadata 'customer': use key=value"),
        (("--metadata", "a=1", "--session", "x"), "--metadata is for a new session"),
    ],
)
def test_bad_metadata_is_refused(
    capsys: Capsys, command: tuple[str, ...], options: tuple[str, ...], reason: str
) -> None:
    assert reason in refused(capsys, *command, "--agent", "bank:agent", *options, code=2)
