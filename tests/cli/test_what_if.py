"""`whyloop what-if`: one session redrawn under other rules, and all sessions counted."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.cli.shop import in_store, run
from whyloop import Agent, Session, Usage, tool
from whyloop.stores import SqliteStore, Store, Summary
from whyloop.testing import FakeClock, ScriptedModel, call, text

pytestmark = pytest.mark.usefixtures("in_the_shop")

Capsys = pytest.CaptureFixture[str]


def recorded(agent_id: str, looks: int, *, usage: Usage | None = None, **options: Any) -> str:
    """Record a run with so many calls and an answer."""

    @tool
    def look(at: str) -> str:
        return f"saw {at}"

    usage = usage or Usage(input=90, output=10)
    script = [call("look", {"at": "it"}, usage=usage)] * looks
    agent = Agent(ScriptedModel([*script, text("done", usage=usage)]), [look], clock=FakeClock(), **options)

    async def work(store: Store) -> None:
        await (await Session.open(store, agent, agent_id, create=True)).send("Look.")

    in_store(work)
    return agent_id


def test_a_session_is_redrawn_with_the_new_decisions(capsys: Capsys) -> None:
    recorded("long", 4)
    code, out, err = run(capsys, "what-if", "lon", "--max-steps", "2", "--max-tokens", "900")
    assert (code, err) == (0, "")
    assert out.splitlines()[:7] == [
        "Recorded  completed at step 5 (completed), ToolCallPresenceCheck: "
        "The model answered and asked for no tools",
        "What if   stopped at step 2 (steps_limit), StepsLimit: Limit reached: 2 of 2 steps used",
        "Saved     3 steps, 300 tokens, 0 s, cost unknown",
        "",
        "Stopped after 2 steps (steps_limit). StepsLimit decided: Limit reached: 2 of 2 steps used.",
        "",
        "Steps",
    ]
    assert "To continue" not in out


def test_a_wrap_up_is_not_saved_by_an_earlier_limit_and_that_is_marked_as_assumed(capsys: Capsys) -> None:
    recorded("wrapped", 3, max_steps=3, wrap_up=True)
    out = run(capsys, "what-if", "wrapped", "--max-steps", "2")[1]
    assert "Saved     1 step, 100 tokens, 0 s, cost unknown" in out
    assert "Assumed   an earlier wrap-up would have used as much as the recorded one" in out


def test_for_machines_the_outcome_of_every_step_is_there(capsys: Capsys) -> None:
    recorded("long", 4)
    code, out, _ = run(capsys, "what-if", "long", "--max-steps", "2", "--json")
    document = json.loads(out)
    assert code == 0
    assert document["rules"] == ["StepsLimit(2)"]
    (execution,) = document["executions"]
    assert (execution["stopped_at"], execution["stop_reason"]) == (2, "steps_limit")
    assert execution["saved"] == {"steps": 3, "tokens": 300, "seconds": 0.0, "cost": None}
    assert [outcome["should_continue"] for outcome in execution["outcomes"]] == [True, False]


def test_a_run_that_would_have_continued_is_reported_as_such(capsys: Capsys) -> None:
    recorded("short", 3, max_steps=2)
    _, out, _ = run(capsys, "what-if", "short", "--max-steps", "9")
    assert "What if   it would have continued past the recording, so its end is not known" in out


def test_rules_of_your_own_code_are_found(capsys: Capsys, tmp_path: Path) -> None:
    recorded("long", 4)
    (tmp_path / "guards.py").write_text(
        "from whyloop import ErrorPolicy, StepsLimit\n"
        "def third(state): return state.execution.step_count < 3\n"
        "rules = [third, ErrorPolicy.retry_all()]\n"
        "number = 7\n"
    )
    _, out, _ = run(capsys, "what-if", "long", "--criteria", "guards:rules")
    assert "What if   stopped at step 3 (guard), third: third forbade continuation" in out
    code, _, err = run(capsys, "what-if", "long", "--criteria", "guards:number")
    assert (code, "--criteria guards:number: invalid criterion 7" in err) == (2, True)
    code, _, err = run(capsys, "what-if", "long", "--criteria", "guards:missing")
    assert (code, "has no 'missing'" in err) == (2, True)
    code, _, err = run(capsys, "what-if", "long", "--criteria", "bogus")
    assert (code, "--criteria bogus: invalid path: write package.module:name" in err) == (2, True)


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["long"], "name a rule to judge by"),
        (["--max-steps", "3"], "name a session by its id, or give --all"),
        (["long", "--all", "--max-steps", "3"], "not both"),
        (["long", "--status", "paused", "--max-steps", "3"], "the conditions on sessions are for --all"),
        (["--all", "--status", "odd", "--max-steps", "3"], "invalid status 'odd'"),
        (["long", "--max-steps", "0"], "invalid StepsLimit 0: use a number greater than zero"),
        (["long", "--max-cost", "much"], "CostLimit"),
    ],
)
def test_a_command_line_that_makes_no_sense_is_refused(capsys: Capsys, argv: list[str], text: str) -> None:
    recorded("long", 1)
    code, out, err = run(capsys, "what-if", *argv)
    assert (code, out) == (2, "")
    assert text in err


def test_all_sessions_are_counted_by_the_rule_that_would_end_them(capsys: Capsys) -> None:
    for number, looks in enumerate([1, 4, 6]):
        recorded(f"run-{number}", looks)
    recorded("limited", 9, max_steps=3)
    code, out, err = run(capsys, "what-if", "--all", "--max-steps", "4")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "Judged 4 runs of 4 sessions under StepsLimit(4).",
        "3 would end differently.",
        "",
        "ENDED BY    STOP REASON  RUNS  COMPLETED  STEPS SAVED  TOKENS  TIME  COST",
        "StepsLimit  steps_limit  2     2          4            400     0 s   unknown",
        "",
        "1 run would have continued past the recording: the end is not known.",
        "",
        "The saved cost is unknown in 2 runs; the sums leave them out.",
        "",
        "2 completed runs would have been cut:",
        "  run-2  query 1: ended with step 7, would have ended with step 4 (steps_limit)",
        "  run-1  query 1: ended with step 5, would have ended with step 4 (steps_limit)",
    ]
    _, out, _ = run(capsys, "what-if", "--all", "--max-steps", "4", "--status", "stopped", "--json")
    document = json.loads(out)
    assert (document["runs"], document["different"], document["beyond"], document["cut"]) == (1, 1, 1, [])


def test_ends_after_a_nudge_are_marked_as_assumed(capsys: Capsys, tmp_path: Path) -> None:
    recorded("stuck", 8)
    (tmp_path / "circles.py").write_text(
        "from whyloop import RepeatedCallCheck\nstuck = RepeatedCallCheck()\n"
    )
    _, out, err = run(capsys, "what-if", "--all", "--criteria", "circles:stuck")
    assert err == ""
    assert "RepeatedCallCheck  guard        1 " in out
    assert "1 end assumed: the rules would have changed what the model received." in out


def test_a_bad_session_and_a_rule_that_raises_are_reported_and_the_rest_continues(
    capsys: Capsys, tmp_path: Path
) -> None:
    for number in range(3):
        recorded(f"run-{number}", number + 1)
    with closing(sqlite3.connect("whyloop.db")) as database, database:
        database.execute("update entries set body = '{}' where rowid = (select min(rowid) from entries)")
    (tmp_path / "picky.py").write_text("def picky(state): return 1 // (state.execution.step_count - 4) < 5\n")
    code, out, err = run(capsys, "what-if", "--all", "--criteria", "picky:picky")
    assert code == 0
    assert "Judged 1 run of 1 session under picky." in out
    assert "2 sessions could not be judged." in out
    assert sorted(err.splitlines())[0].startswith("not judged: run-0: ")
    assert "not judged: run-2: picky could not be evaluated: ZeroDivisionError" in err
    _, out, _ = run(capsys, "what-if", "run-2", "--criteria", "picky:picky")  # As in a run, it forbids.
    assert "What if   failed at step 4 (error), picky: picky could not be evaluated" in out


def test_a_session_that_is_deleted_meanwhile_is_left_out(
    capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        recorded(f"run-{number}", 1)
    read = SqliteStore.read_listed

    async def read_late(store: SqliteStore, listed: Sequence[Summary]) -> Any:
        await store.delete("run-1")
        return await read(store, listed)

    monkeypatch.setattr(SqliteStore, "read_listed", read_late)
    _, out, err = run(capsys, "what-if", "--all", "--max-steps", "9")
    assert (out.splitlines()[0], err) == ("Judged 2 runs of 2 sessions under StepsLimit(9).", "")
