"""`whyloop chat`: questions, answers, decisions and commands, on a terminal and in a pipe."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest

from tests.cli.shop import HERE, asked, in_store, loaded, paying, refused, run, talking
from tests.cli.terminal import CTRL_C, CTRL_D, Terminal, terminal
from tests.cli.test_live import SILENT
from tests.models.faulty_server import FaultyServer, chat_answer, chat_call, in_a_thread, say
from whyloop import AgentState
from whyloop.cli.chat import COMMANDS
from whyloop.stores import Page

pytestmark = pytest.mark.usefixtures("in_the_shop")

Capsys = pytest.CaptureFixture[str]
EDIT = "edits: "
HOSTILE = "\x1b]0;owned\x07\x1b[2J"

HOSTILE_AGENT = f"""
from whyloop import Agent, tool
from whyloop.testing import ScriptedModel, call

@tool(needs_approval=True)
def pay(to: str) -> str:
    \"\"\"Pay somebody.\"\"\"
    return to

agent = Agent(ScriptedModel([call("pay", {{"to": {HOSTILE!r}}}), {HOSTILE!r}]), [pay])
"""


def piped(
    capsys: Capsys,
    monkeypatch: pytest.MonkeyPatch,
    lines: str,
    *argv: str,
    agent: str = "talking",
    ends_with: int = 0,
) -> tuple[str, str]:
    """Return stdout and stderr of a chat whose input is a pipe."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    code, out, err = run(capsys, "chat", "--agent", f"{HERE}:{agent}", *argv)
    assert code == ends_with
    return out, err


def sessions() -> Page:
    return in_store(lambda store: store.sessions())


def only_session() -> AgentState:
    (summary,) = sessions().sessions
    return loaded(summary.agent_id)


def questions_of(state: AgentState) -> list[str]:
    return [message.text for message in state.messages if message.is_user]


# In a pipe


def test_each_line_is_a_question_and_only_answers_are_on_stdout(
    capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, err = piped(capsys, monkeypatch, "Who?\n\nWhat?\n")
    assert out == "One.\nTwo.\n"
    assert err.startswith(f"{HERE}:talking\nRecorded in whyloop.db. /help lists the commands")
    assert "1 step · 10 tokens (10 read, 0 written)" in err
    assert questions_of(only_session()) == ["Who?", "What?"]


def test_a_line_that_ends_with_a_backslash_continues(capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    piped(capsys, monkeypatch, "Who\\\nare you?\n")
    assert questions_of(only_session()) == ["Who\nare you?"]


def test_a_chat_without_questions_leaves_no_session(capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    assert piped(capsys, monkeypatch, "/help\n")[0] == ""
    assert sessions().sessions == ()


def test_a_session_is_continued_by_the_command_that_the_chat_ends_with(
    capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    err = piped(capsys, monkeypatch, "Who?\n")[1]
    command = re.search(r"^To continue: whyloop chat (--session (\w+) .*)$", err, re.MULTILINE)
    assert command is not None
    out, err = piped(capsys, monkeypatch, "And then?\n", "--session", command[2])
    assert out == "One.\n"
    assert "1 question so far. The last one:\n  ❯ Who?\n  One.\n" in err
    assert questions_of(only_session()) == ["Who?", "And then?"]
    assert command[1].split()[2:] == ["--agent", f"{HERE}:talking"]


def test_a_session_that_does_not_exist_is_an_error(capsys: Capsys) -> None:
    asked(talking())
    assert "session 'zz' not found" in refused(
        capsys, "chat", "--agent", f"{HERE}:talking", "--session", "zz"
    )


@pytest.mark.parametrize(
    ("answer", "verdict", "result"),
    [
        ("y", "approved", "paid 500 to Bob"),
        ("YES", "approved", "paid 500 to Bob"),
        ("n", "denied", "Denied by ada"),
        ("n too much", "denied", "Denied by ada: too much"),
        ('e {"amount": 5, "to": "Eve"}', "edited", "paid 5 to Eve"),
    ],
)
def test_a_call_that_waits_is_decided_in_place(
    answer: str, verdict: str, result: str, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, err = piped(capsys, monkeypatch, f"Pay\n{answer}\n", agent="paying")
    assert out == "Let me see.\nDone.\n"
    assert ' ?  pay waits for approval\n    {"amount": 500, "to": "Bob"}\n' in err
    state = only_session()
    assert [approval.verdict for approval in state.steps[0].tool_calls[1].approvals] == [verdict]
    assert [message.text for message in state.messages if message.tool == "pay"] == [result]


def test_an_answer_that_is_not_understood_decides_nothing(
    capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "Pay\nyesterday\ne nonsense\ne [1]\ne {}\n"
    err = piped(capsys, monkeypatch, lines, agent="paying", ends_with=18)[1]
    assert "Answer y, n or e; /why explains, /quit leaves." in err
    assert "the edit is not JSON" in err
    assert "the edit is not a JSON object" in err
    assert "invalid arguments for pay: amount is missing; to is missing" in err
    assert "To continue, and to decide 1 question: whyloop chat --session" in err
    assert len(only_session().pending_calls) == 1


def test_commands_that_change_nothing_work_while_a_question_waits(
    capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "Pay\n/why\n/why 9\n/nope\n/undo\n/quit\ny\n"
    out, err = piped(capsys, monkeypatch, lines, agent="paying", ends_with=18)
    assert "Paused" in out
    assert "Answer y, n or e" not in err
    assert "unknown command /nope" in err
    assert "/undo must wait: decide the question, or leave with /quit" in err
    assert len(only_session().pending_calls) == 1


def test_open_questions_are_asked_when_a_session_is_continued(
    capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent_id = asked(paying())
    out, _ = piped(capsys, monkeypatch, "y\n", "--session", agent_id[:8], agent="after_paying")
    assert out == "Done.\n"
    assert loaded(agent_id).status == "completed"


def test_every_call_of_a_step_is_decided_before_it_continues(
    capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    piped(capsys, monkeypatch, "Pay both\ny\nn no\n", agent="paying_twice")
    runs = only_session().steps[0].tool_calls
    assert [run.approvals[0].verdict for run in runs] == ["approved", "denied"]


def test_an_unknown_tool_goes_back_to_the_model_by_default(
    capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hi\n/model openai:other\n/model\nBye\n"))
    server = FaultyServer(say(chat_call("nope")), say(chat_answer("Sorry.")), say(chat_answer("Bye.")))
    with in_a_thread(server):
        code, out, err = run(
            capsys, "chat", "--model", "openai:gpt-test", "--base-url", server.base_url, "--tools", HERE
        )
    assert (code, out) == (0, "Sorry.\nBye.\n")
    assert err.startswith(
        "openai:gpt-test with pay, search; the model may correct its mistakes "
        "(--error-policy retry_tool_errors)\n"
    )
    assert [request.json["model"] for request in server.requests] == ["gpt-test", "gpt-test", "other"]
    assert "  openai:other\n  openai:other\n" in err
    assert "--model openai:other" in err.splitlines()[-1]


# Commands


def test_help_lists_every_command(capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    err = piped(capsys, monkeypatch, "/help\n")[1]
    assert all(f"  {command.usage} " in err for command in COMMANDS)
    guide = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")
    assert all(f"`{command.usage}`" in guide for command in COMMANDS)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/nope", "unknown command /nope: /help lists the commands"),
        ("/why", "the session is empty: ask a question first"),
        ("/undo", "the session is empty: ask a question first"),
        ("/fork", "the session is empty: ask a question first"),
        ("/usage", "the session is empty: ask a question first"),
        ("/resume", "the session is empty: ask a question first"),
        ("/model openai:gpt-5", "the model is part of --agent"),
        ("Who?\n/why x", "invalid step 'x': use a number"),
        ("Who?\n/why 7", "step 7"),
        ("Who?\n/resume", "there is nothing to resume: the run is completed"),
    ],
)
def test_a_command_that_cannot_be_done_is_a_line_and_the_chat_continues(
    line: str, words: str, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, err = piped(capsys, monkeypatch, f"{line}\nStill there?\n")
    assert words in err
    assert out.endswith(("One.\n", "Two.\n"))


def test_a_path_is_a_question(capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    assert piped(capsys, monkeypatch, "/etc/hosts is what?\n")[0] == "One.\n"


def test_why_explains_the_last_run_or_a_step(capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    out, _ = piped(capsys, monkeypatch, "Who?\nWhat?\n/why\n/why 1\n")
    assert out.count("Completed after 1 step. ToolCallPresenceCheck decided") == 1
    assert "What each rule decided after step 1" in out


def test_usage_shows_the_last_question_and_the_session(
    capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    err = piped(capsys, monkeypatch, "Who?\nWhat?\n/usage\n")[1]
    assert "  last question  1 step · 20 tokens (20 read, 0 written)" in err
    assert "  session        2 steps · 30 tokens (30 read, 0 written) · cost unknown\n" in err


def test_usage_names_the_price_list_if_it_is_missing(capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whyloop.models.prices._import_list", lambda: None)
    err = piped(capsys, monkeypatch, "Who?\n/usage\n")[1]
    assert (
        ' · cost unknown; for a price list: run pip install ".[prices]" in the checkout of whyloop\n' in err
    )


def test_undo_goes_back_before_the_last_question_and_keeps_it_elsewhere(
    capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, err = piped(capsys, monkeypatch, "Who?\nWhat?\n/undo\nWhere?\n")
    assert out == "One.\nTwo.\nThree.\n"
    assert "Went back to before 'What?'." in err
    kept = sorted(questions_of(loaded(summary.agent_id)) for summary in sessions().sessions)
    assert kept == [["Who?", "What?"], ["Who?", "Where?"]]


def test_undo_of_every_question_leads_to_a_new_session(
    capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, err = piped(capsys, monkeypatch, "Who?\nWhat?\n/undo\n/undo\n/undo\nWhere?\n")
    assert err.count("Went back") == 2
    assert "the session is empty: ask a question first" in err
    kept = sorted(questions_of(loaded(summary.agent_id)) for summary in sessions().sessions)
    assert kept == [["Where?"], ["Who?"], ["Who?", "What?"]]


def test_fork_continues_in_a_copy(capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    piped(capsys, monkeypatch, "Who?\n/fork\nWhat?\n")
    kept = sorted(questions_of(loaded(summary.agent_id)) for summary in sessions().sessions)
    assert kept == [["Who?"], ["Who?", "What?"]]


def test_resume_grants_more_of_what_ran_out(capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    err = piped(capsys, monkeypatch, "Search\n/resume\n", agent="searching")[1]
    assert "stop (steps_limit), StepsLimit: Limit reached: 2 of 2 steps used" in err
    assert "/why explains, /resume continues." in err
    assert only_session().step_count > 2


def test_resume_counts_failures_anew(capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    err = piped(capsys, monkeypatch, "Speak\n/resume\n", agent="unlucky")[1]
    assert err.count("Model error after 2 consecutive failures (max: 1)") == 2, err
    assert only_session().step_count == 4


# On a terminal


def test_ctrl_c_stops_the_run_and_not_the_program_and_ctrl_d_leaves(tmp_path: Path) -> None:
    (tmp_path / "silent.py").write_text(SILENT, encoding="utf-8")
    with terminal("chat", "--agent", "silent:agent") as shown:
        shown.read_until("❯ ")
        shown.type("Speak\r")
        shown.read_until("⠋  the model answers")
        shown.type(CTRL_C)
        assert "stop (user_requested)  StopRequestedCheck: Ctrl-C was pressed" in shown.read_until("❯ ")
        shown.type("half a ques")
        shown.read_until("half a ques")
        shown.interrupt("Ctrl-D or /quit leaves.")
        shown.read_until("❯ ")
        Path("seen").touch()
        shown.type("/resume\r")
        assert " ◆  At last." in shown.read_until("❯ ")
        shown.type(CTRL_D)
        assert "To continue: whyloop chat --session" in shown.read_to_the_end()
    assert shown.running.returncode == 0
    assert questions_of(only_session()) == ["Speak"]


def test_a_second_ctrl_c_ends_a_tool_at_once_and_the_chat_continues(tmp_path: Path) -> None:
    (tmp_path / "stuck.py").write_text(
        "import asyncio\nfrom whyloop import Agent, tool\nfrom whyloop.testing import ScriptedModel, call\n"
        "@tool\nasync def wait() -> None:\n    'Wait.'\n    await asyncio.Event().wait()\n"
        "agent = Agent(ScriptedModel([call('wait', {}), 'Here.']), [wait], stop_grace=600)\n",
        encoding="utf-8",
    )
    with terminal("chat", "--agent", "stuck:agent") as shown:
        shown.read_until("❯ ")
        shown.type("Go\r")
        shown.read_until("wait runs")
        shown.type(CTRL_C)
        shown.read_until("Ctrl-C again ends them at once")
        shown.type(CTRL_C)
        shown.read_until("Ended at once. /resume continues.")
        shown.read_until("❯ ")
        shown.type("Are you there?\r")
        assert "◆  Here." in shown.read_until("❯ ")


def test_arguments_are_edited_where_they_are_shown() -> None:
    with terminal("chat", "--agent", f"{HERE}:paying") as shown:
        shown.read_until("❯ ")
        shown.type("Pay\r")
        assert 'amount": 500' in shown.read_until(EDIT)
        shown.type("e\r")
        shown.read_until('arguments: {"amount": 500, "to": "Bob"}')
        shown.type('\x7f\x7f\x7f\x7f\x7fEve"}\r')
        assert "✓  pay  amount: 500, to: 'Eve'" in shown.read_until("❯ ")


def test_keys_that_were_pressed_before_a_question_do_not_answer_it(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(TYPED_AHEAD, encoding="utf-8")
    with terminal("chat", "--agent", "slow:agent") as shown:
        shown.read_until("❯ ")
        shown.type("Pay\r")
        shown.read_until("the model answers")
        shown.type("y\r")
        Path("typed").touch()
        shown.read_until(EDIT)
        shown.type("n no\r")
        shown.read_until("❯ ")
    (run,) = only_session().steps[0].tool_calls
    assert [approval.verdict for approval in run.approvals] == ["denied"]


TYPED_AHEAD = """
import asyncio, pathlib
from whyloop import Agent
from whyloop.testing import ScriptedModel, call
from tests.cli.shop import pay

class Waiting(ScriptedModel):
    async def respond(self, request):
        while not pathlib.Path("typed").exists():
            await asyncio.sleep(0.02)
        async for item in super().respond(request):
            yield item

agent = Agent(Waiting([call("pay", {"amount": 500, "to": "Bob"}), "Done."]), [pay])
"""


def test_ctrl_c_leaves_a_question_open_and_resume_asks_it_again() -> None:
    with terminal("chat", "--agent", f"{HERE}:paying") as shown:
        shown.read_until("❯ ")
        shown.type("Pay\r")
        shown.read_until(EDIT)
        shown.type("hm")
        shown.read_until("hm")
        shown.interrupt("Not decided. /resume asks again.")
        shown.read_until("❯ ")
        shown.type("/resume\r")
        shown.read_until(EDIT)
        shown.type("y\r")
        assert "✓  pay" in shown.read_until("❯ ")


def test_undo_offers_the_question_to_be_edited() -> None:
    with terminal("chat", "--agent", f"{HERE}:talking") as shown:
        shown.read_until("❯ ")
        shown.type("Who?\r")
        shown.read_until("❯ ")
        shown.type("/undo\r")
        shown.read_until("❯ Who?")
        shown.type(" Really?\r")
        shown.read_until("Two.")
    kept = sorted(questions_of(loaded(summary.agent_id)) for summary in sessions().sessions)
    assert kept == [["Who?"], ["Who? Really?"]]


def test_hostile_text_steers_no_terminal(tmp_path: Path) -> None:
    (tmp_path / "hostile.py").write_text(HOSTILE_AGENT, encoding="utf-8")
    with terminal("chat", "--agent", "hostile:agent") as shown:
        shown.read_until("❯ ")
        shown.type("Pay\r")
        shown.read_until(EDIT)
        shown.type("e\r")
        shown.read_until("arguments: ")
        shown.type("\r")
        shown.read_until("❯ ")
        shown.type("/why\r")
        shown.read_until("❯ ")
        _leave(shown)
    assert "\x1b]0;" not in shown.shown
    assert "\x1b[2J" not in shown.shown
    assert "\x07" not in shown.shown


def _leave(shown: Terminal) -> None:
    shown.type("/quit\r")
    shown.read_to_the_end()
    assert shown.running.returncode == 0
