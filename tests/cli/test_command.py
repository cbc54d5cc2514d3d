"""The command line: what it prints, what it returns, and what it loads."""

from __future__ import annotations

import inspect
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.shop import WHYLOOP
from tests.cli.terminal import on_a_terminal
from whyloop import __version__
from whyloop.cli import COMMANDS, main
from whyloop.cli.command import Command, Opens
from whyloop.cli.demo.scenarios import SCENARIOS, play


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(list(argv))
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_alone_it_prints_help(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys)
    assert code == 0
    assert "usage: whyloop" in out
    assert "demo" in out


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_command_has_a_function_that_runs_it(command: Command) -> None:
    wanted = ["args"] if command.opens is Opens.NONE else ["store", "args"]
    assert list(inspect.signature(command.load()).parameters) == wanted


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("sessions --limit x", "whyloop sessions: argument --limit: invalid number 'x': use a whole number"),
        ("run hi --timeout x", "whyloop run: argument --timeout: invalid number 'x'"),
        ("why", "whyloop why: the following arguments are required: SESSION"),
        ("--frobnicate", "whyloop: unrecognized arguments: --frobnicate"),
    ],
)
def test_a_wrong_option_is_one_line_with_what_to_do(
    line: str, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(line.split())
    assert ended.value.code == 2
    assert capsys.readouterr() == ("", f"{error}; see {error.partition(':')[0]} --help\n")


def test_an_unknown_option_cannot_write_more_lines_or_steer_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["run", "hi", "--frobnicate=a\nb\x1b[2J"])
    assert capsys.readouterr().err == (
        "whyloop: unrecognized arguments: --frobnicate=a b\ufffd[2J; see whyloop --help\n"
    )


def test_it_prints_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"whyloop {__version__}\n"


def test_the_demo_alone_shows_the_natural_end_and_where_the_others_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, _ = run(capsys, "demo")
    assert code == 0
    assert out.startswith("whyloop demo natural-end: ")
    assert play(SCENARIOS["natural-end"]).explain() in out
    assert out.endswith("whyloop demo --list\nWatch them live in a browser: whyloop demo --serve\n")


def test_a_scenario_that_was_asked_for_comes_without_the_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--list" not in run(capsys, "demo", "guard")[1]


def test_the_list_names_every_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "demo", "--list")
    assert code == 0
    for name, scenario in SCENARIOS.items():
        assert f"  {name} " in out
        assert scenario.title in out


def test_a_scenario_that_does_not_exist_is_refused_with_the_names(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "demo", "nope")
    assert code == 2
    assert out == ""
    assert "unknown scenario 'nope'" in err
    assert all(name in err for name in SCENARIOS)


def test_all_prints_every_headline(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "demo", "all")
    assert code == 0
    for name, scenario in SCENARIOS.items():
        assert f"{name}: {scenario.title}\n  {play(scenario).explain().splitlines()[0]}\n" in out


def test_json_is_one_document_with_the_whole_trace(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "demo", "steps-limit", "--json")
    assert code == 0
    document = json.loads(out)
    state = play(SCENARIOS["steps-limit"])
    assert document["scenario"] == "steps-limit"
    assert (document["status"], document["stop_reason"]) == ("stopped", "steps_limit")
    assert document["resolved_by"] == "StepsLimit"
    assert document["last_response"] == "Perhaps Aurora Data took it over."
    assert document["usage"] == {
        "input": 1_493,
        "output": 105,
        "total": 1_598,
        "cost": None,
        "reported": True,
    }
    assert document["times"]["wall_seconds"] == document["times"]["active_seconds"] == 4.21
    assert [step["outcome"] for step in document["steps"]] == [
        step.outcome.to_dict() for step in state.steps if step.outcome
    ]
    call = document["steps"][0]["tool_calls"][0]
    assert (call["arguments"], call["result"]) == ({"query": "baltic", "kind": "partner"}, "[]")


def test_json_of_all_is_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    documents = json.loads(run(capsys, "demo", "all", "--json")[1])
    assert [document["scenario"] for document in documents] == list(SCENARIOS)


def test_a_picture_is_written_where_it_was_asked_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "run.svg"
    code, out, _ = run(capsys, "demo", "guard", "--svg", str(path))
    assert (code, out) == (0, f"Wrote {path}\n")
    assert path.read_text(encoding="utf-8").startswith("<svg")


def test_a_picture_of_all_or_nowhere_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(capsys, "demo", "all", "--svg", str(tmp_path / "run.svg"))[0] == 2
    code, _, err = run(capsys, "demo", "guard", "--svg", str(tmp_path / "none" / "run.svg"))
    assert code == 1
    assert "cannot write" in err


def test_ctrl_c_ends_quietly(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("whyloop.cli.demo.play", interrupted)
    assert run(capsys, "demo") == (130, "", "")


def test_ctrl_c_before_the_command_runs_prints_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("whyloop.cli._parser", interrupt)
    assert main(["sessions"]) == 130


@pytest.mark.parametrize("arguments", [["demo"], ["demo", "all", "--json"], ["demo", "--list"], []])
def test_a_closed_pipe_causes_no_traceback(arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = subprocess.run([*WHYLOOP, *arguments], stdout=writing, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(writing)
    assert (ended.returncode, ended.stderr) == (141, b"")


@pytest.mark.parametrize("arguments", [["demo", "--list"], ["demo"], ["demo", "--json"], ["demo", "all"]])
def test_rich_is_loaded_only_to_draw(arguments: list[str]) -> None:
    program = f"import sys, whyloop.cli; whyloop.cli.main({arguments!r}); sys.exit('rich' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", program], stdout=subprocess.DEVNULL, check=False)
    assert ended.returncode == 0


def test_an_encoding_that_lacks_a_character_does_not_end_the_run() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ended = subprocess.run([*WHYLOOP, "demo"], capture_output=True, check=True, env=environment)
    assert b"Completed after 3 steps" in ended.stdout


@pytest.mark.parametrize(
    ("scenario", "words"),
    [("guard", "Stopped after 2 steps (guard)"), ("all", "A session continues after three days")],
)
def test_on_a_terminal_it_draws(scenario: str, words: str) -> None:
    shown = on_a_terminal(["demo", scenario, "--fast"], TERM="xterm-256color")
    assert words in shown
    assert "\x1b[" in shown


def test_on_a_terminal_that_can_only_print_it_is_plain() -> None:
    shown = on_a_terminal(["demo", "guard"], TERM="dumb")
    assert "Stopped after 2 steps (guard)." in shown
    assert "\x1b" not in shown


# Commands that it suggests


def suggested(path: str, cwd: Path, *called: str) -> str:
    """Return the command that the demo suggests, with this search path for programs."""
    script = cwd / "bin" / "whyloop"
    script.parent.mkdir(exist_ok=True)
    script.write_text(f"#!{sys.executable}\nfrom whyloop.cli import main\nmain()\n", encoding="utf-8")
    script.chmod(0o755)
    ended = subprocess.run(
        called, capture_output=True, check=True, text=True, cwd=cwd, env={**os.environ, "PATH": path}
    )
    found = re.search(r"See the others: (.*)", ended.stdout)
    assert found is not None
    return found[1]


def test_a_suggested_command_is_found_by_the_shell(tmp_path: Path) -> None:
    here, elsewhere = str(tmp_path / "bin"), "/nowhere"
    assert suggested(here, tmp_path, f"{here}/whyloop", "demo") == "whyloop demo --list"
    command = suggested(elsewhere, tmp_path, "bin/whyloop", "demo")
    assert command == "bin/whyloop demo --list"
    listed = subprocess.run(shlex.split(command), capture_output=True, check=True, cwd=tmp_path, text=True)
    assert "steps-limit" in listed.stdout
    assert "Watch one of them: bin/whyloop demo natural-end" in listed.stdout


def test_a_suggested_command_starts_a_module_that_is_not_on_the_path(tmp_path: Path) -> None:
    command = suggested("/nowhere", tmp_path, sys.executable, "-m", "whyloop", "demo")
    assert command == f"{sys.executable} -m whyloop demo --list"
