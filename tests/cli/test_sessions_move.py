"""`whyloop fork`, `export`, `import` and `delete`: sessions that branch off, travel and end."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from tests.cli.shop import asked, greeting, in_store, kept, loaded, paying, refused, run, run_by, searching

pytestmark = pytest.mark.usefixtures("in_the_shop")

Capsys = pytest.CaptureFixture[str]


def titles(path: str = "whyloop.db") -> list[str]:
    page = in_store(lambda store: store.sessions(), path)
    return sorted(summary.title for summary in page.sessions)


# fork


def test_a_fork_prints_its_id_and_nothing_else(capsys: Capsys) -> None:
    agent_id = asked(searching())
    code, out, err = run(capsys, "fork", agent_id[:8], "--step", "1")
    assert (code, err) == (0, "")
    assert loaded(out.strip()).step_count == 1
    assert loaded(out.strip()).metadata["forked_from"] == {"agent_id": agent_id, "step": 1}


def test_a_fork_of_everything(capsys: Capsys) -> None:
    agent_id = asked(searching())
    assert loaded(run(capsys, "fork", agent_id)[1].strip()).step_count == 2


def test_there_is_no_fork_at_a_step_that_there_is_not(capsys: Capsys) -> None:
    words = refused(capsys, "fork", asked(searching()), "--step", "9", code=2)
    assert words == "there is no step 9 to fork at: the session has 2 steps"


# export and import


def test_a_store_travels_as_a_file(capsys: Capsys) -> None:
    paused = asked(paying(), "Zahl’, was wir schulden 🙂")
    asked(greeting(), "Hi")
    assert run(capsys, "export", "--output", "all.jsonl") == (0, "", "")
    assert run(capsys, "import", "all.jsonl", "--store", "new.db") == (0, "Imported 2 sessions.\n", "")
    assert titles("new.db") == titles() == ["Hi", "Zahl’, was wir schulden 🙂"]
    assert in_store(lambda store: store.load(paused), "new.db") == loaded(paused)


def test_some_sessions_travel_through_a_pipe(capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    asked(greeting(), "Hi")
    agent_id = asked(greeting(), "Grüße")
    code, out, err = run(capsys, "export", agent_id[:8])
    assert (code, err) == (0, "")
    assert all(isinstance(json.loads(line), dict) for line in out.splitlines())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(out.encode()), encoding="ascii"))
    assert run(capsys, "import", "-", "--store", "new.db") == (0, "Imported 1 session.\n", "")
    assert titles("new.db") == ["Grüße"]


def test_what_is_there_already_is_refused_or_left_out(capsys: Capsys) -> None:
    agent_id = asked(greeting())
    run(capsys, "export", "--output", "all.jsonl")
    words = refused(capsys, "import", "all.jsonl")
    assert words.startswith(f"there is a session '{agent_id}' in this store already.")
    assert "--skip-existing" in words
    assert run(capsys, "import", "all.jsonl", "--skip-existing") == (0, "Imported 0 sessions.\n", "")


def test_a_file_that_is_not_there_makes_no_store(capsys: Capsys, tmp_path: Path) -> None:
    assert refused(capsys, "import", "none.jsonl") == "cannot read none.jsonl: No such file or directory"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "this line is not a JSON object (at line 1)"),
        (b"milk, bread\n", "this line is not a JSON object (at line 1)"),
        (b"{}\n", "not a file of exported sessions: it lacks the first line (at line 1)"),
        (b"\xff\xfe\x00", "cannot read odd.jsonl: not UTF-8 text"),
    ],
)
def test_a_file_that_is_no_export(capsys: Capsys, tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "odd.jsonl").write_bytes(content)
    assert refused(capsys, "import", "odd.jsonl") == words


def test_a_file_that_ends_too_early(capsys: Capsys, tmp_path: Path) -> None:
    asked(greeting())
    run(capsys, "export", "--output", "all.jsonl")
    lines = (tmp_path / "all.jsonl").read_text(encoding="utf-8").splitlines()
    (tmp_path / "cut.jsonl").write_text("\n".join(lines[:-1]), encoding="utf-8")
    assert "the file ends in the middle of session" in refused(
        capsys, "import", "cut.jsonl", "--store", "new.db"
    )


def test_an_stdin_that_is_closed(capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert refused(capsys, "import", "-", code=2) == "there is nothing to read: stdin is closed"


def test_an_export_that_has_nowhere_to_go(capsys: Capsys) -> None:
    asked(greeting())
    words = refused(capsys, "export", "--output", "no/where.jsonl")
    assert words == "cannot write no/where.jsonl: No such file or directory"


def test_a_session_that_is_not_there_leaves_the_file_alone(capsys: Capsys, tmp_path: Path) -> None:
    asked(greeting())
    (tmp_path / "all.jsonl").write_text("precious", encoding="utf-8")
    assert "there is no session 'xyz'" in refused(capsys, "export", "xyz", "--output", "all.jsonl")
    assert (tmp_path / "all.jsonl").read_text(encoding="utf-8") == "precious"


# delete


class Terminal(io.StringIO):
    """Somebody who sits there and answers."""

    def isatty(self) -> bool:
        return True


def test_with_a_yes_they_are_gone(capsys: Capsys) -> None:
    for agent_id in ("one", "two", "three"):
        kept(agent_id, agent_id.upper())
    assert run(capsys, "delete", "--yes", "one", "tw", "one") == (
        0,
        "Deleted one  ONE\nDeleted two  TWO\n",
        "",
    )
    assert titles() == ["THREE"]


def test_without_a_terminal_nobody_is_asked(capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    kept("one")
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    error = refused(capsys, "delete", "one", code=2)
    assert error == "nothing can be asked without a terminal: confirm with --yes"
    assert titles() == ["A question"]


@pytest.mark.parametrize(
    ("answer", "gone"), [("y\n", True), ("YES\n", True), ("n\n", False), ("\n", False), ("", False)]
)
def test_on_a_terminal_somebody_is_asked(
    capsys: Capsys, monkeypatch: pytest.MonkeyPatch, answer: str, gone: bool
) -> None:
    kept("one", "The only one")
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    code, out, err = run(capsys, "delete", "one")
    assert err.startswith("  one  pending, 0 steps  The only one\nDelete 1 session for good? [y/N] ")
    assert (code, bool(out), "Nothing was deleted." in err, titles() == []) == (
        0 if gone else 1,
        gone,
        not gone,
        gone,
    )


def test_where_one_is_not_there_none_is_deleted(capsys: Capsys) -> None:
    kept("one")
    assert "there is no session 'xyz'" in refused(capsys, "delete", "--yes", "one", "xyz")
    assert titles() == ["A question"]


def test_a_session_that_runs_is_not_deleted(capsys: Capsys) -> None:
    with run_by(kept("one"), "worker:1"):
        assert "is being run by worker:1" in refused(capsys, "delete", "--yes", "one")
    assert titles() == ["A question"]
