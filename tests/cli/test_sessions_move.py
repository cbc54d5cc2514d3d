"""`whyloop fork`, `export`, `import`, `delete` and `prune`: copies of sessions, and their removal."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

import pytest

from tests.cli.shop import (
    NOW,
    asked,
    greeting,
    in_store,
    kept,
    loaded,
    paying,
    refused,
    run,
    run_by,
    searching,
)
from whyloop import StopReason
from whyloop.cli import main

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


def test_a_fork_at_an_unknown_step_is_refused(capsys: Capsys) -> None:
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


@pytest.mark.skipif(os.name != "posix", reason="modes and links are those of POSIX")
def test_an_export_can_be_read_by_its_owner_only(capsys: Capsys) -> None:
    asked(greeting(), "Hi")
    for mode in (None, 0o666):
        path = Path(f"{mode}.jsonl")
        if mode is not None:
            path.write_text("what was there before " * 10_000)
            path.chmod(mode)
        assert run(capsys, "export", "--output", str(path)) == (0, "", "")
        assert path.stat().st_mode & 0o777 == 0o600
        assert "before" not in path.read_text()


@pytest.mark.skipif(os.name != "posix", reason="modes and links are those of POSIX")
def test_an_export_follows_no_link(capsys: Capsys) -> None:
    asked(greeting(), "Hi")
    Path("precious").write_text("precious")
    for target in ("precious", "missing"):
        Path(f"link-to-{target}").symlink_to(target)
        words = refused(capsys, "export", "--output", f"link-to-{target}")
        assert words == f"cannot write link-to-{target}: it is a symbolic link, which is not followed"
    assert Path("precious").read_text() == "precious"
    assert not Path("missing").exists()


def test_some_sessions_travel_through_a_pipe(capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    asked(greeting(), "Hi")
    agent_id = asked(greeting(), "Grüße")
    code, out, err = run(capsys, "export", agent_id[:8])
    assert (code, err) == (0, "")
    assert all(isinstance(json.loads(line), dict) for line in out.splitlines())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(out.encode()), encoding="ascii"))
    assert run(capsys, "import", "-", "--store", "new.db") == (0, "Imported 1 session.\n", "")
    assert titles("new.db") == ["Grüße"]


def test_a_session_that_is_named_twice_is_exported_once(capsys: Capsys) -> None:
    agent_id = asked(greeting(), "Hi")
    assert run(capsys, "export", agent_id[:8], agent_id, "--output", "one.jsonl") == (0, "", "")
    assert run(capsys, "import", "one.jsonl", "--store", "new.db") == (0, "Imported 1 session.\n", "")


def test_an_existing_session_is_refused_or_skipped(capsys: Capsys) -> None:
    agent_id = asked(greeting())
    run(capsys, "export", "--output", "all.jsonl")
    words = refused(capsys, "import", "all.jsonl")
    assert words.startswith(f"session '{agent_id}' already exists in this store.")
    assert "--skip-existing" in words
    assert run(capsys, "import", "all.jsonl", "--skip-existing") == (0, "Imported 0 sessions.\n", "")


def test_a_file_that_is_not_there_makes_no_store(capsys: Capsys, tmp_path: Path) -> None:
    assert refused(capsys, "import", "none.jsonl") == "cannot read none.jsonl: No such file or directory"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the file is empty: use one that whyloop export wrote (at line 1)"),
        (
            b"milk, bread\n",
            "this line is not a JSON object but begins with 'milk, bread': use a file that whyloop export "
            "wrote, and all of it (at line 1)",
        ),
        (b"{}\n", "not a file of exported sessions: it lacks the first line (at line 1)"),
        (b"\xff\xfe\x00", "cannot read odd.jsonl: not UTF-8 text"),
    ],
)
def test_a_file_that_is_not_an_export_is_refused(
    capsys: Capsys, tmp_path: Path, content: bytes, words: str
) -> None:
    (tmp_path / "odd.jsonl").write_bytes(content)
    assert refused(capsys, "import", "odd.jsonl") == words
    assert list(tmp_path.iterdir()) == [tmp_path / "odd.jsonl"]


def test_a_file_that_ends_too_early(capsys: Capsys, tmp_path: Path) -> None:
    agent_id = asked(greeting())
    run(capsys, "export", "--output", "all.jsonl")
    lines = (tmp_path / "all.jsonl").read_text(encoding="utf-8").splitlines()
    (tmp_path / "cut.jsonl").write_text("\n".join(lines[:-1]), encoding="utf-8")
    words = refused(capsys, "import", "cut.jsonl", "--store", "new.db")
    assert f"the file ends in the middle of session '{agent_id}', at entry" in words
    assert words.endswith(f": export it again (at line {len(lines) - 1})")
    (tmp_path / "cut.jsonl").write_text("\n".join(lines)[:-9], encoding="utf-8")
    words = refused(capsys, "import", "cut.jsonl", "--store", "new.db")
    assert f"this line is cut off, or is not an entry of a session, in session '{agent_id}', at" in words
    assert words.endswith(f": export it again (at line {len(lines)})")
    assert not (tmp_path / "new.db").exists()


def test_an_stdin_that_is_closed(capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert refused(capsys, "import", "-", code=2) == "cannot read stdin, which is closed: name a file"


def test_an_export_that_has_nowhere_to_go(capsys: Capsys) -> None:
    asked(greeting())
    words = refused(capsys, "export", "--output", "no/where.jsonl")
    assert words == "cannot write no/where.jsonl: No such file or directory"


def test_a_session_that_is_not_there_leaves_the_file_alone(capsys: Capsys, tmp_path: Path) -> None:
    asked(greeting())
    (tmp_path / "all.jsonl").write_text("precious", encoding="utf-8")
    assert "session 'xyz' not found" in refused(capsys, "export", "xyz", "--output", "all.jsonl")
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


def test_without_a_terminal_deletion_needs_yes(capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    kept("one")
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    error = refused(capsys, "delete", "one", code=2)
    assert error == "cannot ask without a terminal: confirm with --yes"
    assert titles() == ["A question"]


@pytest.mark.parametrize(
    ("answer", "gone"), [("y\n", True), ("YES\n", True), ("n\n", False), ("\n", False), ("", False)]
)
def test_on_a_terminal_deletion_asks_first(
    capsys: Capsys, monkeypatch: pytest.MonkeyPatch, answer: str, gone: bool
) -> None:
    kept("one", "The only one")
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    code, out, err = run(capsys, "delete", "one")
    assert err.startswith("  one  pending, 0 steps  The only one\nDelete 1 session permanently? [y/N] ")
    assert (code, bool(out), "Nothing was deleted." in err, titles() == []) == (
        0 if gone else 1,
        gone,
        not gone,
        gone,
    )


def test_if_one_session_does_not_exist_none_is_deleted(capsys: Capsys) -> None:
    kept("one")
    assert "session 'xyz' not found" in refused(capsys, "delete", "--yes", "one", "xyz")
    assert titles() == ["A question"]


def test_a_session_that_runs_is_not_deleted(capsys: Capsys) -> None:
    with run_by(kept("one"), "worker:1"):
        assert "is being run by worker:1" in refused(capsys, "delete", "--yes", "one")
    assert titles() == ["A question"]


def test_a_session_whose_workflow_may_be_open_is_deleted_only_on_request(capsys: Capsys) -> None:
    agent_id = kept("one")
    in_store(lambda store: store.record_workflow(agent_id, "temporal:default", "whyloop:one"))
    problem = refused(capsys, "delete", "--yes", "one")
    assert "belongs to the workflow 'whyloop:one' of temporal:default, which may be open: stop" in problem
    assert problem.endswith("If no worker runs any more, pass --workflow-closed")
    assert titles() == ["A question"]
    assert run(capsys, "delete", "--yes", "--workflow-closed", "one")[0] == 0
    assert titles() == []


# prune


@pytest.fixture
def old_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Store sessions of many ages and statuses, and let it be noon on March 10."""
    monkeypatch.setattr("whyloop.stores.sqlite.utc_now", lambda: NOW)
    kept("old-completed", days=100, stopped=StopReason.COMPLETED)
    kept("old-stopped", days=100, stopped=StopReason.STEPS_LIMIT_REACHED)
    kept("old-failed", days=100, stopped=StopReason.ERROR_FORBADE)
    kept("old-pending", days=100)
    kept("recent", days=89, stopped=StopReason.COMPLETED)


def ids() -> list[str]:
    page = in_store(lambda store: store.sessions())
    return sorted(summary.agent_id for summary in page.sessions)


EVERYTHING = ["old-completed", "old-failed", "old-pending", "old-stopped", "recent"]


@pytest.mark.parametrize(
    ("options", "gone"),
    [
        (["--older-than", "90d"], ["old-completed"]),
        (["--older-than", "2160h"], ["old-completed"]),
        (["--older-than", "88d"], ["old-completed", "recent"]),
        (["--older-than", "101d"], []),
        (["--older-than", "90d", "--status", "stopped"], ["old-stopped"]),
        (
            ["--older-than", "90d", "--status", "failed", "--status", "completed"],
            ["old-completed", "old-failed"],
        ),
    ],
)
def test_old_sessions_are_pruned(
    capsys: Capsys, old_sessions: None, options: list[str], gone: list[str]
) -> None:
    code, out, err = run(capsys, "prune", *options, "--yes")
    assert (code, err) == (0, "")
    assert out.startswith(f"Deleted {len(gone)} ")
    assert ids() == [agent_id for agent_id in EVERYTHING if agent_id not in gone]


def test_the_summary_names_the_conditions(capsys: Capsys, old_sessions: None) -> None:
    out = run(capsys, "prune", "--older-than", "36h", "--status", "failed", "--status", "stopped", "--yes")[1]
    assert out == "Deleted 2 failed or stopped sessions that last changed over 1.5 days ago.\n"
    out = run(capsys, "prune", "--older-than", "0s", "--yes")[1]
    assert out == "Deleted 2 completed sessions.\n"


def test_a_dry_run_prints_the_ids_and_deletes_nothing(capsys: Capsys, old_sessions: None) -> None:
    argv = ["prune", "--older-than", "90d", "--status", "completed", "--status", "stopped", "--dry-run"]
    assert run(capsys, *argv) == (
        0,
        "old-completed\nold-stopped\n",
        "Would delete 2 completed or stopped sessions that last changed over 90 days ago.\n",
    )
    assert ids() == EVERYTHING


@pytest.mark.parametrize("status", ["paused", "in_progress", "pending"])
def test_sessions_that_may_continue_are_never_pruned(capsys: Capsys, old_sessions: None, status: str) -> None:
    argv = ["prune", "--older-than", "1d", "--status", "completed", "--status", status, "--yes"]
    assert refused(capsys, *argv, code=2) == (
        f"sessions that are {status} are never pruned: choose from completed, stopped, failed"
    )
    assert ids() == EVERYTHING


def test_a_session_that_runs_is_not_pruned(capsys: Capsys, old_sessions: None) -> None:
    with run_by("old-completed"):
        out = run(capsys, "prune", "--older-than", "90d", "--yes")[1]
    assert out == "Deleted 0 completed sessions that last changed over 90 days ago.\n"
    assert "old-completed" in ids()


def test_without_a_terminal_pruning_needs_a_yes(
    capsys: Capsys, old_sessions: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    error = refused(capsys, "prune", "--older-than", "90d", code=2)
    assert error == "cannot ask without a terminal: confirm with --yes"
    assert ids() == EVERYTHING
    assert run(capsys, "prune", "--older-than", "500d")[0] == 0  # There is nothing to ask about.


@pytest.mark.parametrize(("answer", "count"), [("y\n", 4), ("n\n", 5), ("", 5)])
def test_on_a_terminal_pruning_asks(
    capsys: Capsys, old_sessions: None, monkeypatch: pytest.MonkeyPatch, answer: str, count: int
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    code, _, err = run(capsys, "prune", "--older-than", "90d")
    assert err.startswith(
        "Found 1 completed session that last changed over 90 days ago.\nDelete 1 session permanently? [y/N] "
    )
    assert (code, len(ids())) == (0 if count == 4 else 1, count)


def test_a_long_pruning_shows_its_progress_on_a_terminal(
    capsys: Capsys, old_sessions: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whyloop.stores.BATCH", 1)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    argv = ["prune", "--older-than", "90d", "--status", "completed", "--status", "failed", "--yes"]
    assert run(capsys, *argv)[2] == "\r1 of 2\r2 of 2\n"


@pytest.mark.parametrize("span", ["soon", "90", "-1d"])
def test_an_invalid_age(capsys: Capsys, span: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["prune", f"--older-than={span}"])
    assert ended.value.code == 2
    assert f"invalid span of time '{span}': use 30m, 12h or 7d" in capsys.readouterr().err
