"""`whyloop sessions`: which sessions it finds, and how it shows them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.shop import NOW, asked, greeting, kept, loaded, paying, refused, run, run_by, search
from whyloop import Agent, StopReason, stores
from whyloop.cli import command, formats, main
from whyloop.errors import ScriptError
from whyloop.testing import ScriptedModel, call

pytestmark = pytest.mark.usefixtures("in_the_shop")

Capsys = pytest.CaptureFixture[str]


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions of different ages, endings and owners."""
    monkeypatch.setattr(formats, "utc_now", lambda: NOW)
    kept("a" * 32, "How warm is it?", days=0.25, agent="support", user="ada", level=2)
    kept("b" * 32, "Go on forever", days=3, stopped=StopReason.STEPS_LIMIT_REACHED, user="ada", level="2")
    kept("named-by-hand", "", days=40, stopped=StopReason.COMPLETED, done=True)


def listed(capsys: Capsys, *argv: str) -> list[str]:
    """The ids that a list has, as it is for machines."""
    code, out, _ = run(capsys, "sessions", "--json", *argv)
    assert code == 0
    return [session["agent_id"][:4] for session in json.loads(out)["sessions"]]


def test_in_a_pipe_it_is_a_table_in_plain_lines(capsys: Capsys, three: None) -> None:
    code, out, err = run(capsys, "sessions")
    assert (code, err) == (0, "")
    head, *rows = out.splitlines()
    assert " ".join(head.split()) == "ID STATUS STOP REASON STEPS COST AGE RUNNER TITLE RULE REASON"
    assert rows == [
        "aaaaaaaa       pending    -            0      -     6 h   -       How warm is it?  -           -",
        "bbbbbbbb       stopped    steps_limit  0      -     3 d   -       Go on forever    StepsLimit  -",
        "named-by-hand  completed  completed    0      -     40 d  -       -                StepsLimit  -",
    ]


def test_the_runner_of_a_session_is_listed(capsys: Capsys, three: None) -> None:
    with run_by("a" * 32, "worker-3:812"):
        assert "6 h   worker-3:812  How warm is it?" in run(capsys, "sessions")[1]


def test_ids_are_long_enough_to_be_distinct(capsys: Capsys) -> None:
    kept("0123456789a" + "0" * 21)
    kept("0123456789b" + "0" * 21)
    assert "\n0123456789a  " in run(capsys, "sessions")[1]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ([], ["aaaa", "bbbb", "name"]),
        (["--status", "stopped"], ["bbbb"]),
        (["--stop-reason", "completed"], ["name"]),
        (["--rule", "StepsLimit"], ["bbbb", "name"]),
        (["--rule", "TokenUsageLimit"], []),
        (["--agent", "support"], ["aaaa"]),
        (["--older-than", "7d"], ["name"]),
        (["--newer-than", "12h"], ["aaaa"]),
        (["--older-than", "1d", "--newer-than", "2w"], ["bbbb"]),
        (["--metadata", "user=ada"], ["aaaa", "bbbb"]),
        (["--metadata", "level=2"], ["aaaa"]),
        (["--metadata", 'level="2"'], ["bbbb"]),
        (["--metadata", "user=ada", "level=2"], ["aaaa"]),
        (["--metadata", "user=ada", "--metadata", 'level="2"'], ["bbbb"]),
        (["--metadata", "done=true"], ["name"]),
        (["--metadata", "user=bob"], []),
        (["--limit", "2"], ["aaaa", "bbbb"]),
        (["--limit", "1", "--all"], ["aaaa", "bbbb", "name"]),
    ],
)
def test_options_choose(capsys: Capsys, three: None, options: list[str], found: list[str]) -> None:
    assert listed(capsys, *options) == found


def test_for_machines_every_field_is_there(capsys: Capsys, three: None) -> None:
    document = json.loads(run(capsys, "sessions", "--json", "--limit", "1")[1])
    assert document["next"]
    assert document["sessions"] == [
        {
            "agent_id": "a" * 32,
            "status": "pending",
            "started_at": "2026-03-10T06:00:00Z",
            "updated_at": "2026-03-10T06:00:00Z",
            "stop_reason": None,
            "parent_agent_id": None,
            "step_count": 0,
            "title": "How warm is it?",
            "metadata": {"user": "ada", "level": 2},
            "version": 1,
            "runner": None,
            "workflow": None,
            "identity": document["sessions"][0]["identity"],
            "agent": "support",
            "resolved_by": None,
            "reason": None,
            "pending": 0,
            "cost": None,
            "tokens": 0,
            "tokens_known": True,
            "active_seconds": 0.0,
            "step_limit": None,
            "last_query": "How warm is it?",
            "step_marks": "",
        }
    ]


def test_page_by_page(capsys: Capsys, three: None) -> None:
    seen: list[str] = []
    options: list[str] = []
    while True:
        document = json.loads(run(capsys, "sessions", "--json", "--limit", "2", *options)[1])
        seen += [session["agent_id"][:4] for session in document["sessions"]]
        if document["next"] is None:
            break
        options = ["--after", document["next"]]
    assert seen == ["aaaa", "bbbb", "name"]


def test_it_says_how_to_see_more(capsys: Capsys, three: None) -> None:
    _, out, err = run(capsys, "sessions", "--limit", "1")
    assert len(out.splitlines()) == 2
    assert err.startswith("There are more: --after ")


def test_a_list_of_nothing(capsys: Capsys, three: None) -> None:
    assert run(capsys, "sessions", "--status", "paused") == (0, "", "No session meets the conditions.\n")


def test_a_store_of_nothing(capsys: Capsys, three: None) -> None:
    for agent_id in ("a" * 32, "b" * 32, "named-by-hand"):
        assert run(capsys, "delete", "--yes", agent_id)[0] == 0
    assert run(capsys, "sessions") == (0, "", "There are no sessions yet.\n")


def test_the_list_shows_the_work_of_agents(capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    asked(greeting(), "Say hello")
    updated_at = loaded(asked(paying())).state_info.updated_at
    monkeypatch.setattr(formats, "utc_now", lambda: updated_at)
    lines = run(capsys, "sessions")[1].splitlines()
    assert lines[1].endswith(
        "  paused     -            0      -     0 s  -       Pay what we owe  "
        "ApprovalRequired       pay waits for approval"
    )
    assert "  completed  completed    1 " in lines[2]
    assert lines[2].endswith("  ToolCallPresenceCheck  The model answered and asked for no tools")


def test_a_session_whose_process_died_is_listed_with_its_steps(capsys: Capsys) -> None:
    replies = [call("search", {"query": f"invoice {number}"}, usage=100) for number in range(9)]
    with pytest.raises(ScriptError):
        asked(Agent(ScriptedModel([*replies, ScriptError("here the process dies")]), [search]))
    (listed,) = json.loads(run(capsys, "sessions", "--json")[1])["sessions"]
    assert (listed["status"], listed["step_count"], listed["tokens"]) == ("in_progress", 9, 900)
    assert "  in_progress  -            9 " in run(capsys, "sessions")[1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--status", "asleep"], "invalid status 'asleep': choose from pending, in_progress"),
        (["--stop-reason", "tired"], "invalid stop_reason 'tired': choose from completed"),
        (["--limit", "0"], "invalid limit 0"),
        (["--metadata", "user"], "invalid --metadata 'user': use key=value"),
        (["--metadata", "=ada"], "invalid --metadata '=ada': use key=value"),
        (["--metadata", "user={}"], "invalid --metadata 'user={}': use text, a number, true, false or null"),
        (["--after", "nonsense"], "nonsense"),
    ],
)
def test_invalid_filters_are_refused(capsys: Capsys, three: None, options: list[str], words: str) -> None:
    assert words in refused(capsys, "sessions", *options, code=2)


@pytest.mark.parametrize("span", ["soon", "7", "-7d", "7y", "", "999999999d", "1e9d"])
def test_an_invalid_span_of_time_is_refused(capsys: Capsys, span: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["sessions", f"--older-than={span}"])
    assert ended.value.code == 2
    assert "argument --older-than: " in capsys.readouterr().err


def test_a_decided_question_no_longer_waits_in_the_list(capsys: Capsys) -> None:
    agent_id = asked(paying())
    assert "waits for approval" in run(capsys, "sessions")[1]
    run(capsys, "approve", agent_id)
    listed = run(capsys, "sessions")[1]
    assert "waits for approval" not in listed
    assert "every question is decided: resume the session" in listed


def test_one_page_or_all(capsys: Capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["sessions", "--all", "--after", "x"])
    assert ended.value.code == 2


# Where the store is


@pytest.mark.parametrize(
    "argv",
    [
        ["sessions"],
        ["show", "x"],
        ["why", "x"],
        ["approve", "x"],
        ["deny", "x"],
        ["stop", "x"],
        ["fork", "x"],
        ["export"],
        ["delete", "--yes", "x"],
        ["resume", "x", "--agent", "tests.cli.shop:greeting"],
        ["run", "Hi", "--session", "x", "--agent", "tests.cli.shop:greeting"],
    ],
    ids=lambda argv: argv[0],
)
def test_a_missing_store_is_not_created(capsys: Capsys, tmp_path: Path, argv: list[str]) -> None:
    words = refused(capsys, *argv)
    assert words.startswith("store 'whyloop.db' not found: record a run in one with whyloop run")
    assert list(tmp_path.iterdir()) == []


def test_the_store_may_be_in_a_variable(
    capsys: Capsys, three: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv("WHYLOOP_STORE", str(tmp_path / "whyloop.db"))
    assert listed(capsys) == ["aaaa", "bbbb", "name"]
    assert "store 'other.db' not found" in refused(capsys, "sessions", "--store", "other.db")


def test_the_usual_store_is_the_library_s() -> None:
    named = command.STORE_VARIABLE, command.DEFAULT_STORE
    assert named == (stores.VARIABLE, stores.DEFAULT_PATH)


@pytest.mark.parametrize(
    ("address", "code"),
    [("mysql://ada:secret@db/x", 2), ("host=db password=secret", 1), ("ada:secret@db", 1)],
)
def test_no_password_is_printed(capsys: Capsys, tmp_path: Path, address: str, code: int) -> None:
    assert "secret" not in refused(capsys, "sessions", "--store", address, code=code)
    assert list(tmp_path.iterdir()) == []


def test_a_path_may_begin_at_home(capsys: Capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept("abcd")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert listed(capsys, "--store", "~/whyloop.db") == ["abcd"]


def test_a_file_that_is_not_a_store_is_refused(capsys: Capsys, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("milk, bread\n" * 100, encoding="utf-8")
    assert "notes.txt" in refused(capsys, "sessions", "--store", "notes.txt")


def test_sessions_are_found_by_text_by_waiting_and_by_their_last_change(capsys: Capsys, three: None) -> None:
    def found(*options: str) -> list[str]:
        document = json.loads(run(capsys, "sessions", "--json", *options)[1])
        return [session["agent_id"][0] for session in document["sessions"]]

    everything = found()
    assert found("--search", "WARM it?") == [each for each in everything if each == "a"]
    assert found("--search", "nothing like it") == []
    assert found("--waiting") == []
    assert found("--updated-since", "9000d") == everything
    assert run(capsys, "sessions", "--search", "nothing like it")[2] == "No session meets the conditions.\n"
