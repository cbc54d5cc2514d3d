"""`whyloop run`: its output, the tools that it finds, and its exit codes."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.shop import WHYLOOP
from tests.models.faulty_server import (
    DONE,
    KEY,
    FaultyServer,
    call_piece,
    chat_answer,
    chat_call,
    chat_events,
    chunked,
    cut,
    event,
    hang,
    in_a_thread,
    say,
    trickle,
    whole,
)
from whyloop import StopReason
from whyloop.cli import main
from whyloop.cli.command import MODEL_VARIABLE, STORE_VARIABLE
from whyloop.cli.terminal import CANNOT_WRITE, EXIT_CODES

MODEL = "openai:gpt-test"

TOOLS = '''
import asyncio, pathlib
from whyloop import tool

@tool
async def weather(city: str) -> str:
    """The weather in a city."""
    return f"14 °C in {city}"

@tool
async def broken() -> str:
    """Never works."""
    raise OSError("the disk is full")

async def forever() -> None:
    """Never ends."""
    pathlib.Path("started").touch()
    await asyncio.Event().wait()

def plain(a: int, b: int = 2) -> int:
    """Adds."""
    return a + b

both = [weather, plain]
alias = weather
number = 7

class Box:
    add = staticmethod(plain)
'''


@pytest.fixture(autouse=True)
def in_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A directory with a module of tools, and nobody's key or model."""
    (tmp_path / "my_tools.py").write_text(TOOLS, encoding="utf-8")
    (tmp_path / "no_tools.py").write_text("x = 1\n", encoding="utf-8")
    (tmp_path / "bad_tools.py").write_text("1 / 0\n", encoding="utf-8")
    (tmp_path / "needy_tools.py").write_text("import surely_not_installed\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.delenv(MODEL_VARIABLE, raising=False)
    monkeypatch.delenv(STORE_VARIABLE, raising=False)
    yield
    for name in ("my_tools", "no_tools"):
        sys.modules.pop(name, None)


def run(capsys: pytest.CaptureFixture[str], server: FaultyServer, *argv: str) -> tuple[int, str, str]:
    """The exit code, the answer, and everything else."""
    with in_a_thread(server):
        code = main(["run", "Hi", "--model", MODEL, "--base-url", server.base_url, *argv])
    printed = capsys.readouterr()
    assert KEY not in printed.out + printed.err
    return code, printed.out, printed.err


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one line that says why it could not start."""
    assert main(["run", *argv]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("whyloop run: ")
    assert printed.err.count("\n") == 1
    return printed.err.removeprefix("whyloop run: ").strip()


# What goes where


def test_the_answer_is_alone_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, FaultyServer(say(chunked(chat_events("Grüße", " 🙂") + DONE))))
    assert (code, out) == (0, "Grüße 🙂\n")
    assert "  stop (completed), ToolCallPresenceCheck: The model answered and asked for no tools (" in err
    assert "\nCompleted after 1 step. ToolCallPresenceCheck decided" in err


def test_a_busy_provider_is_asked_again_without_any_option(capsys: pytest.CaptureFixture[str]) -> None:
    busy = say(whole({"error": {"message": "slow down"}}, 429, retry_after=0))
    code, out, err = run(capsys, FaultyServer(busy, busy, say(chat_answer("Hello."))))
    assert (code, out.strip()) == (0, "Hello."), err


def test_tools_and_decisions_are_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    server = FaultyServer(say(chat_call("weather", '{"city": "Oslo"}')), say(chat_answer("It is 14 °C.")))
    code, out, err = run(capsys, server, "--tools", "my_tools:weather")
    assert (code, out) == (0, "It is 14 °C.\n")
    lines = err.splitlines()
    assert lines[0] == (
        "openai:gpt-test with weather; the model may correct its mistakes (--error-policy retry_tool_errors)"
    )
    assert lines[1].startswith("  weather(city: 'Oslo') ok (")
    assert lines[2].startswith(
        "  continue, ToolCallPresenceCheck: The results of 1 tool call await the model"
    )


def test_text_between_tools_is_on_separate_lines(capsys: pytest.CaptureFixture[str]) -> None:
    stream = chat_events("Let me see.", calls=[{"index": 0, "id": "a", "function": {"name": "weather"}}])
    server = FaultyServer(say(chunked(stream + DONE)), say(chat_answer("No city.")))
    code, out, err = run(capsys, server, "--tools", "my_tools")
    assert (code, out) == (0, "Let me see.\nNo city.\n")
    assert "  retry, ErrorPolicyCriterion: Validation error, retrying (1/3)" in err


def test_an_answer_that_broke_off_and_came_again_is_there_once(capsys: pytest.CaptureFixture[str]) -> None:
    server = FaultyServer(cut(chunked(chat_events("Hel", finish=None))[:-5]), say(chat_answer()))
    code, out, err = run(capsys, server)
    assert (code, out) == (0, "Hello.\n")
    assert "the model call failed: openai:gpt-test: the response was cut off" in err
    assert "before the next attempt" in err


def test_a_terminal_sees_each_attempt_as_it_comes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    server = FaultyServer(cut(chunked(chat_events("Hel", finish=None))[:-5]), say(chat_answer()))
    assert run(capsys, server)[:2] == (0, "Hel\nHello.\n")


def test_an_answer_that_broke_off_for_good_ends_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    server = FaultyServer(cut(chunked(chat_events("Hel", finish=None))[:-5]))
    assert run(capsys, server, "--error-policy", "stop_on_any_error")[:2] == (14, "Hel\n")


def test_the_last_attempt_is_written_even_if_it_broke_off(capsys: pytest.CaptureFixture[str]) -> None:
    server = FaultyServer(hang(chunked(chat_events("Hel", finish=None))[:-5]))
    assert run(capsys, server, "--timeout", "0.3")[:2] == (12, "Hel\n")


def test_quiet_prints_only_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, FaultyServer(say(chat_answer())), "--quiet") == (0, "Hello.\n", "")


def test_quiet_still_says_what_went_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(
        capsys, FaultyServer(say(whole({"error": {"message": f"no {KEY}"}}, 401))), "--quiet"
    )
    assert (code, out) == (14, "")
    assert err.startswith("Failed after 1 step (error). ErrorPolicyCriterion decided: Model error")
    assert err.count("\n") == 1


def test_json_is_the_trace(capsys: pytest.CaptureFixture[str]) -> None:
    server = FaultyServer(say(chat_call("plain", '{"a": 1}')), say(chat_answer("3", prompt_tokens=5)))
    code, out, err = run(capsys, server, "--tools", "my_tools:plain", "--json", "--quiet")
    document = json.loads(out)
    assert (code, err) == (0, "")
    assert (document["status"], document["stop_reason"], document["last_response"]) == (
        "completed",
        "completed",
        "3",
    )
    used = {"input": 5, "output": 0, "total": 5, "cost": None, "reported": False}
    assert document["usage"] == used
    call = document["steps"][0]["tool_calls"][0]
    assert (call["name"], call["arguments"], call["result"]) == ("plain", {"a": 1}, "3")
    assert document["steps"][1]["outcome"]["resolved_by"] == "ToolCallPresenceCheck"


def test_the_question_may_come_from_stdin(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import io

    monkeypatch.setattr(sys, "stdin", io.StringIO("What?\n"))
    with in_a_thread(FaultyServer(say(chat_answer()))) as server:
        assert main(["run", "-", "--model", MODEL, "--base-url", server.base_url]) == 0
    assert capsys.readouterr().out == "Hello.\n"
    assert server.requests[0].json["messages"][-1]["content"] == "What?"


@pytest.mark.parametrize(
    "argv",
    [
        ["--tools", "my_tools", "How warm?"],
        ["--tools", "my_tools", "How warm?", "--quiet"],
        ["--tools", "my_tools", "--", "How warm?"],
        ["--tools", "my_tools", "--quiet", "How warm?"],
        ["How warm?", "--tools", "my_tools"],
        ["--quiet", "How warm?", "--tools", "my_tools"],
    ],
)
def test_the_question_may_stand_anywhere(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with in_a_thread(FaultyServer(say(chat_answer()))) as server:
        assert main(["run", "--model", MODEL, "--base-url", server.base_url, *argv]) == 0
    assert capsys.readouterr().out == "Hello.\n"
    sent = server.requests[0].json
    assert sent["messages"][-1]["content"] == "How warm?"
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["weather", "broken"]


# Options


def test_options_reach_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    server = FaultyServer(say(chat_answer()))
    run(capsys, server, "--instructions", "Be brief.", "--tools", "my_tools:both")
    sent = server.requests[0].json
    assert [message["content"] for message in sent["messages"]] == ["Be brief.", "Hi"]
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["weather", "plain"]


def test_the_model_may_be_in_a_variable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MODEL_VARIABLE, "ollama:tiny")
    with in_a_thread(FaultyServer(say(chat_answer()))) as server:
        assert main(["run", "Hi", "--base-url", server.base_url]) == 0
    assert server.requests[0].json["model"] == "tiny"
    assert capsys.readouterr().out == "Hello.\n"


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["my_tools:weather"], ["weather"]),
        (["my_tools:plain"], ["plain"]),
        (["my_tools:both"], ["weather", "plain"]),
        (["my_tools:Box.add"], ["plain"]),
        (["my_tools"], ["weather", "broken"]),
        (["my_tools:*"], ["weather", "broken"]),
        (["my_tools:weather", "my_tools:plain"], ["weather", "plain"]),
    ],
)
def test_tools_are_found(paths: list[str], names: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    server = FaultyServer(say(chat_answer()))
    run(capsys, server, "--tools", *paths)
    assert [tool["function"]["name"] for tool in server.requests[0].json["tools"]] == names


# Exit codes


def test_every_stop_reason_and_a_pause_have_their_own_codes_and_help_shows_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert set(EXIT_CODES) == {"paused", *(reason.value for reason in StopReason)}
    assert len(set(EXIT_CODES.values())) == len(StopReason) + 1
    assert not {1, 2, CANNOT_WRITE, 130, 141} & set(EXIT_CODES.values())
    with pytest.raises(SystemExit) as ended:
        main(["run", "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    for reason, code in EXIT_CODES.items():
        assert f" {code}  {reason} " in shown
    assert f" {CANNOT_WRITE}  " in shown


def test_the_guide_has_every_exit_code() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")
    for reason, code in EXIT_CODES.items():
        assert f"| {code} | `{reason}` |" in guide
    assert f"| {CANNOT_WRITE} | |" in guide


def _call_with_usage(tokens: int) -> bytes:
    """Return a tool call that used some tokens."""
    called = chat_events(calls=[call_piece("weather", '{"city": "Oslo"}')], finish="tool_calls")
    return chunked(called + event({"id": "c1", "choices": [], "usage": {"prompt_tokens": tokens}}) + DONE)


ENDINGS: dict[str, tuple[FaultyServer, list[str]]] = {
    "steps_limit": (FaultyServer(say(chat_call("weather", '{"city": "Oslo"}'))), ["--max-steps", "2"]),
    "token_limit": (FaultyServer(say(_call_with_usage(50))), ["--max-tokens", "10"]),
    "time_limit": (FaultyServer(hang()), ["--timeout", "0.1"]),
    "retry_limit": (FaultyServer(say(whole(b"overloaded", 503, retry_after_ms="1"))), []),
    "error": (FaultyServer(say(chat_call("broken"))), ["--error-policy", "stop_on_any_error"]),
    "finish_reason": (FaultyServer(say(chunked(chat_events("Hel", finish="length") + DONE))), []),
}


@pytest.mark.parametrize(("reason", "ending"), ENDINGS.items(), ids=ENDINGS.keys())
def test_a_stop_reason_is_an_exit_code(
    reason: str, ending: tuple[FaultyServer, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    server, options = ending
    code, _, err = run(capsys, server, "--tools", "my_tools", *options)
    assert (code, f"({reason})" in err) == (EXIT_CODES[reason], True), err


# What is refused


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (
            [],
            "missing model: use --model openai:gpt-5, --agent package.module:name for an agent in your "
            f"code, or set {MODEL_VARIABLE}",
        ),
        (["--model", "gpt-5"], "no provider in 'gpt-5': did you mean 'openai:gpt-5'?"),
        (["--model", "groq:llama"], "missing key for groq: set the environment variable GROQ_API_KEY"),
        (["--model", MODEL, "--base-url", "nowhere"], "invalid address 'nowhere'"),
        (["--model", MODEL, "--max-steps", "0"], "StepsLimit"),
        (["--model", MODEL, "--tools", "nowhere:x"], "--tools: module 'nowhere' not found"),
        (["--model", MODEL, "--tools", "my_tools.sub:x"], "--tools: module 'my_tools.sub' not found"),
        (["--model", MODEL, "--tools", "my_tools:x"], "my_tools has no 'x'; its tools are weather"),
        (["--model", MODEL, "--tools", "my_tools:number"], "7 is not a tool: use a function"),
        (
            ["--model", MODEL, "--tools", "no_tools"],
            "no_tools has no tools: decorate its functions with @tool",
        ),
        (
            ["--model", MODEL, "--tools", "bad_tools"],
            "cannot be imported: ZeroDivisionError: division by zero",
        ),
        (["--model", MODEL, "--tools", "needy_tools"], "No module named 'surely_not_installed'"),
        (
            ["--model", MODEL, "--tools", ":x"],
            "--tools :x: invalid module '': write package.module:name",
        ),
        (
            ["--model", MODEL, "--tools", "..x:y"],
            "--tools ..x:y: invalid module '..x': write package.module:name",
        ),
        (["--model", MODEL, "--base-url", ""], "invalid address ''"),
        (["--model", MODEL, "--tools", "my_tools:weather", "my_tools:alias"], "weather"),
    ],
)
def test_a_run_that_cannot_start_prints_one_clear_line(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GROQ_API_KEY", raising=False)
    assert words in refused(capsys, "Hi", *argv)


def test_an_empty_question(capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, " ", "--model", MODEL) == "the question is empty: write some text"


@pytest.mark.parametrize(
    "argv", [[], ["--tools", "my_tools"], ["--tools", "my_tools", "Hi"], ["--tools", "a b", "c d"]]
)
def test_a_question_that_is_not_found(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    expected = "the question is missing: write it before the options, or last and after --"
    assert refused(capsys, "--model", MODEL, *argv) == expected


# Signals and pipes


def started(server: FaultyServer, *argv: str) -> subprocess.Popen[str]:
    command = [*WHYLOOP, "run", "Hi", "--model", MODEL, "--base-url", server.base_url, *argv]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ}
    )


def wait_for(condition: Any) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_ctrl_c_ends_the_answer_at_once() -> None:
    with in_a_thread(FaultyServer(hang())) as server:
        running = started(server, "--tools", "my_tools")
        wait_for(lambda: server.at_once)
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=20)
    assert running.returncode == 17, err
    assert "stopping; running tool calls may finish, Ctrl-C again ends them at once" in err
    assert "Stopped after 1 step (user_requested). StopRequestedCheck decided: Ctrl-C was pressed" in err
    assert len(server.requests) == 1


def test_a_second_ctrl_c_cancels_the_tools_that_run(tmp_path: Path) -> None:
    with in_a_thread(FaultyServer(say(chat_call("forever")))) as server:
        running = started(server, "--tools", "my_tools:forever")
        assert running.stderr is not None
        wait_for((tmp_path / "started").exists)
        running.send_signal(signal.SIGINT)
        assert "forever" in running.stderr.readline()
        assert "Ctrl-C again" in running.stderr.readline()
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=20)
    assert (running.returncode, out) == (130, "")
    assert "Traceback" not in err


def test_a_reader_that_goes_away_ends_the_run() -> None:
    words = chunked(b"".join(chat_events(f"{number} ", finish=None) for number in range(2000)))
    with in_a_thread(FaultyServer(trickle(words, 0.002, size=100))) as server:
        running = started(server, "--quiet", "--error-policy", "stop_on_any_error")
        assert running.stdout is not None
        assert running.stdout.read(1) == "0"
        running.stdout.close()
        assert running.stderr is not None
        assert running.stderr.read() == ""
        running.stderr.close()
        assert running.wait(timeout=20) == 141


def in_a_shell(rest: str, server: FaultyServer) -> tuple[int, str]:
    """The exit code and stderr of a command line that ends like this."""
    with in_a_thread(server):
        command = shlex.join([*WHYLOOP, "run", "Hi", "--model", MODEL, "--base-url", server.base_url])
        done = subprocess.run(
            ["sh", "-c", f"{command} {rest}"], capture_output=True, text=True, timeout=60, check=False
        )
    return done.returncode, done.stderr


needs_dev_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")


@needs_dev_full
@pytest.mark.parametrize("options", ["", "--json", "--error-policy stop_on_any_error", "--quiet"])
def test_a_disk_that_is_full(options: str) -> None:
    code, err = in_a_shell(f"{options} >/dev/full", FaultyServer(say(chat_answer())))
    assert code == CANNOT_WRITE, err
    assert err.endswith("whyloop run: the answer cannot be written: No space left on device\n")
    assert "Traceback" not in err
    assert "Exception ignored" not in err


@needs_dev_full
def test_a_disk_that_is_full_stops_the_run() -> None:
    endless = hang(chunked(chat_events("Hel", finish=None))[:-5])
    code, err = in_a_shell("--quiet --error-policy stop_on_any_error >/dev/full", FaultyServer(endless))
    assert (code, err.count("\n")) == (CANNOT_WRITE, 1), err


@pytest.mark.parametrize("options", ["", "--json"])
def test_a_closed_stdout_is_reported_before_the_model_is_asked(options: str) -> None:
    server = FaultyServer(say(chat_answer()))
    code, err = in_a_shell(f"{options} >&-", server)
    assert (code, err) == (CANNOT_WRITE, "whyloop run: the answer cannot be written: stdout is closed\n")
    assert server.requests == []


def test_a_closed_stderr_does_not_stop_the_run() -> None:
    assert in_a_shell("2>&-", FaultyServer(say(chat_answer()))) == (0, "")
