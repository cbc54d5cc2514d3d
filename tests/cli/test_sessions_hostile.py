"""Hostile text from models, tools and files is shown and never controls a terminal."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys

import pytest

from tests.cli.shop import WHYLOOP, asked, in_store, kept, loaded, paying, question_of, run, run_by
from tests.cli.terminal import on_a_terminal
from whyloop import Agent, Session, tool
from whyloop.cli.formats import command_line, exact_arguments
from whyloop.stores import Store
from whyloop.testing import ScriptedModel, call, calls

pytestmark = pytest.mark.usefixtures("in_the_shop")

Capsys = pytest.CaptureFixture[str]

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\x00\x7f\u202e\u2066\x85[bold red]x[/bold red][/] :smile: {0} %s"
DRAWN = re.compile(r"\x1b\[[0-9;]*m")


@tool(needs_approval=True)
def wipe(path: str) -> str:
    """Wipe."""
    return path


@tool
def echo(text: str) -> str:
    """Echo."""
    return text


def hostile_session() -> str:
    """A session in which everything that can be chosen from outside is hostile."""
    asking = calls(call("echo", {"text": EVIL, EVIL: EVIL}), call(EVIL), text=EVIL)
    waiting = call("wipe", {"path": EVIL}, EVIL, id=f"--args={{}}{EVIL}")
    from whyloop import ErrorPolicy

    agent = Agent(
        ScriptedModel([asking, waiting]), [wipe, echo], error_policy=ErrorPolicy.retry_tool_errors()
    )

    async def work(store: Store) -> str:
        session = await Session.open(store, agent, metadata={EVIL: EVIL})
        await session.send(EVIL)
        return session.agent_id

    return in_store(work)


def seen(out: str) -> None:
    """Nothing but characters that can be seen, and line ends."""
    assert [char for char in out if not char.isprintable() and char != "\n"] == []


COMMANDS = [
    ["sessions"],
    ["show", "ID"],
    ["show", "ID", "--full"],
    ["why", "ID"],
    ["why", "ID", "--step", "1"],
    ["why", "ID", "--markdown"],
    ["deny", "ID", f"no {EVIL}".replace("\x00", ""), "--by", EVIL],
    ["stop", "ID", EVIL],
    ["delete", "ID", "--yes"],
    ["show", EVIL],
    ["approve", "ID", EVIL],
    ["why", "ID", "--store", EVIL.replace("\x00", "")],
]


@pytest.mark.parametrize("argv", COMMANDS, ids=lambda argv: " ".join(argv[:3:2])[:20])
def test_in_a_pipe_nothing_steers(capsys: Capsys, argv: list[str]) -> None:
    agent_id = hostile_session()
    _, out, err = run(capsys, *(agent_id if word == "ID" else word for word in argv))
    assert out or err
    seen(out + err)


@pytest.mark.parametrize(
    "argv",
    [
        ["sessions"],
        ["show", "ID"],
        ["show", "ID", "--full"],
        ["why", "ID"],
        ["why", "ID", "--step", "1"],
        ["why", "ID", "--markdown"],
        ["export"],
    ],
    ids=" ".join,
)
def test_on_a_terminal_nothing_steers(argv: list[str]) -> None:
    agent_id = hostile_session()
    shown = on_a_terminal([agent_id if word == "ID" else word for word in argv])
    seen(DRAWN.sub("", shown))
    assert "[bold red]x[/bold red][/]" in shown.replace("\\", "") or argv == ["sessions"]


@pytest.mark.parametrize("argv", [["sessions"], ["show", "ID"], ["why", "ID"]], ids=lambda argv: argv[0])
def test_for_machines_everything_is_ascii(capsys: Capsys, argv: list[str]) -> None:
    agent_id = hostile_session()
    out = run(capsys, *(agent_id if word == "ID" else word for word in argv), "--json")[1]
    assert out.isascii()
    seen(out)
    json.loads(out)


def test_an_id_or_a_runner_steers_nothing_either(capsys: Capsys) -> None:
    evil = EVIL.replace("\x00", "")
    kept(f"ab{evil}", EVIL)
    with run_by(kept(f"a{evil}", EVIL), EVIL):
        for argv in (
            ["sessions"],
            ["show", f"a{evil}"],
            ["why", f"a{evil}"],
            ["why", "a"],
            ["delete", f"a{evil}", "--yes"],
        ):
            _, out, err = run(capsys, *argv)
            assert out + err, argv
            seen(out + err)


# What is to be copied, and what is to be agreed to


def namespace(store: str | None = None) -> object:
    return type("Namespace", (), {"store": store})()


@pytest.mark.parametrize("word", ["order-1", "x; rm -rf ~", "$(reboot)", "it's", "--args={}", "-h", "a b"])
def test_a_command_to_copy_means_what_it_says(word: str) -> None:
    words = shlex.split(command_line(namespace(), "approve", "abc", word))  # type: ignore[arg-type]
    assert words in (["whyloop", "approve", "abc", word], ["whyloop", "approve", "--", "abc", word])


def test_a_session_whose_id_looks_like_an_option_can_be_decided_as_it_is_shown(capsys: Capsys) -> None:
    agent_id = '--args={"path":"~"}'

    async def work(store: Store) -> None:
        agent = Agent(ScriptedModel([call("wipe", {"path": "/"})]), [wipe])
        await (await Session.open(store, agent, agent_id, create=True)).send("Wipe it")

    in_store(work)
    shown = run(capsys, "show", "--", agent_id)[1]
    line = next(line for line in shown.splitlines() if "whyloop approve" in line)
    assert run(capsys, *shlex.split(line)[1:])[0] == 0
    step = loaded(agent_id).open_step
    assert step is not None
    assert step.calls[0].approvals[0].verdict == "approved"


def test_no_password_is_in_a_command_to_copy() -> None:
    line = command_line(namespace("postgresql://ada:secret@db/x"), "show", "abc")  # type: ignore[arg-type]
    assert line == "whyloop show abc --store ADDRESS"


@pytest.mark.parametrize(
    "arguments", [{"path": EVIL}, {EVIL: [EVIL, {"deep": EVIL}]}, {"text": "line\nline"}]
)
def test_arguments_to_approve_are_shown_exactly(arguments: dict[str, object]) -> None:
    lines = exact_arguments(arguments)
    seen("\n".join(lines))
    assert json.loads("\n".join(lines)) == arguments


# Terminals


def test_on_a_terminal_it_draws() -> None:
    agent_id = asked(paying())
    for argv in (["sessions"], ["show", agent_id], ["why", agent_id]):
        shown = on_a_terminal(argv)
        assert DRAWN.search(shown)
    approve = f"    whyloop approve {agent_id} {question_of(agent_id)[:8]}\n"
    assert approve in DRAWN.sub("", on_a_terminal(["show", agent_id]))


@pytest.mark.parametrize("columns", [80, 100, 120])
def test_a_table_is_as_wide_as_the_terminal(columns: int) -> None:
    kept("a" * 32, "A very long question " * 4)
    with run_by("a" * 32, "a-very-long-name-of-a-machine:1234"):
        lines = DRAWN.sub("", on_a_terminal(["sessions"], columns=columns)).splitlines()
    assert len(lines) == 2
    assert lines[1].startswith("aaaaaaaa  pending  ")
    assert max(map(len, lines)) <= columns
    assert lines[1].endswith("…")


def test_a_command_to_copy_is_never_broken_into_lines() -> None:
    agent_id = asked(paying())
    shown = DRAWN.sub("", on_a_terminal(["why", agent_id], columns=40))
    assert f"\n    whyloop deny {agent_id} {question_of(agent_id)[:8]} 'the reason'\n" in shown


def test_on_a_terminal_that_can_only_print_it_is_plain() -> None:
    agent_id = asked(paying())
    for argv in (["sessions"], ["show", agent_id], ["why", agent_id]):
        assert "\x1b" not in on_a_terminal(argv, TERM="dumb")


@pytest.mark.parametrize(
    "argv", [["sessions"], ["show", "abc"], ["why", "abc"], ["export"], ["sessions", "--json"]]
)
def test_a_closed_pipe_causes_no_traceback(argv: list[str]) -> None:
    kept("abc")
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = subprocess.run([*WHYLOOP, *argv], stdout=writing, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(writing)
    assert (ended.returncode, ended.stderr) == (141, b"")


@pytest.mark.parametrize("argv", [["sessions"], ["show", "abc"], ["export"], ["fork", "abc"]])
def test_an_stdout_that_is_closed(argv: list[str]) -> None:
    kept("abc")
    line = f"{shlex.join([*WHYLOOP, *argv])} >&-"
    ended = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
    words = f"whyloop {argv[0]}: the answer cannot be written: stdout is closed\n"
    assert (ended.returncode, ended.stderr) == (74, words)


def test_an_export_is_utf_8_under_any_locale() -> None:
    kept("abc", "Grüße 🙂")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ended = subprocess.run([*WHYLOOP, "export"], capture_output=True, check=True, env=environment)
    assert "Grüße 🙂" in ended.stdout.decode()


@pytest.mark.parametrize(
    "argv", [["--help"], ["sessions", "--help"], ["sessions"], ["show", "abc"], ["why", "abc"]]
)
def test_nothing_heavy_is_loaded_before_it_is_needed(argv: list[str]) -> None:
    kept("abc")
    heavy = (
        "{'rich', 'aiohttp', 'psycopg'}"
        if "--help" not in argv
        else "{'rich', 'asyncio', 'msgspec', 'sqlite3'}"
    )
    program = (
        "import sys, whyloop.cli\n"
        f"try: whyloop.cli.main({argv!r})\n"
        "except SystemExit: pass\n"
        f"sys.exit(repr({heavy} & set(sys.modules)) if {heavy} & set(sys.modules) else 0)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")
