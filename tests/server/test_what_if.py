"""Recorded runs under other limits: one session for a slider, and many for a list."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.server.responsive import LongModel
from tests.server.support import Json, Lab, agent_with
from tests.server.test_pages import any_session
from tests.support import RespondingModel, echo, scripted, seeds
from whyloop import Agent, ContinuationDecision, ContinuationEvaluation, ErrorPolicy, Session
from whyloop.errors import SnapshotError, ToolExecutionError
from whyloop.replay import Recording, Rules, judge, survey
from whyloop.replay.judge import Rule
from whyloop.rules.limits import CostLimit, ExecutionTimeLimit, StepsLimit, TokenUsageLimit
from whyloop.server import Access
from whyloop.server.what_if import Recordings
from whyloop.stores import MemoryStore, SqliteStore, Store, Summary
from whyloop.testing import call
from whyloop.tools.tool import tool

LETTERS = {"allow": "A", "forbid": "F", "request": "R", "stop": "S"}


async def asked(lab: Lab, **query: object) -> Json:
    answer = await lab.get("/sessions/a/what-if", query=query)
    assert answer.status == 200, answer
    found: Json = answer.json
    return found


# One session


CASES: list[tuple[dict[str, object], list[Rule]]] = [
    ({}, []),
    ({"max_steps": 2}, [StepsLimit(2)]),
    ({"max_steps": 100, "max_tokens": 1}, [StepsLimit(100), TokenUsageLimit(1)]),
    ({"timeout": "0.5"}, [ExecutionTimeLimit(0.5)]),
    ({"error_policy": "stop_on_any_error"}, [ErrorPolicy.stop_on_any_error()]),
    (
        {"error_policy": "ignore_tool_errors", "max_steps": 3},
        [ErrorPolicy.ignore_tool_errors(), StepsLimit(3)],
    ),
    ({"max_cost": "0.000001"}, [CostLimit("0.000001", unknown="allow")]),
]


@seeds(20)
async def test_the_answer_is_that_of_judge_for_every_execution(seed: int) -> None:
    store = MemoryStore()
    await any_session(store, seed)
    lab, recording = Lab(store), await Recording.read(store, "a")
    if not recording.executions:
        assert (await lab.get("/sessions/a/what-if")).error == "nothing_to_judge"
        return
    for query, rules in CASES:
        replay = Rules(*rules).judge(recording)
        for number, execution in enumerate(replay.executions, 1):
            shown = await asked(lab, execution=execution.execution_id, **query)
            expected = execution.to_dict()
            same = (
                "status",
                "stopped_at",
                "stop_reason",
                "resolved_by",
                "beyond",
                "assumed_from",
                "used",
                "saved",
            )
            assert {key: shown[key] for key in same} == {key: expected[key] for key in same}
            assert shown["is_cut"] == execution.is_cut
            assert (shown["reason"] or "") == expected["reason"]
            steps, recorded = execution.state.execution_steps, execution.recorded.execution_steps
            for rule, votes in shown["votes"].items():
                assert len(votes) == max(len(steps), len(recorded))
                for place, step in enumerate(steps):
                    found = step.outcome.evaluation_for(rule) if step.outcome else None
                    assert votes[place] == (LETTERS[found.decision] if found else "-")
                    if rule in shown["reasons"]:
                        assert shown["reasons"][rule][place] == (found.reason if found else "")
                assert set(votes[len(steps) :]) <= {"-"}
            if number == len(replay.executions):
                assert await asked(lab, **query) == shown


async def test_a_lower_limit_ends_the_run_earlier(store: Store) -> None:
    lab = Lab(store, agent_with(*[call("echo")] * 5, "done"))
    await lab.asked()
    shown = await asked(lab, max_steps=2)
    assert (shown["status"], shown["stopped_at"], shown["resolved_by"]) == ("stopped", 2, "StepsLimit")
    assert (shown["is_cut"], shown["was_completed"], shown["beyond"]) == (True, True, False)
    assert (shown["saved"]["steps"], shown["used"]["steps"]) == (4, 2)
    assert shown["votes"]["StepsLimit"] == "AF----"
    assert shown["votes"]["ToolCallPresenceCheck"] == "RR----"
    assert shown["reasons"] == {
        "StepsLimit": ["1 of 2 steps used", "Limit reached: 2 of 2 steps used", "", "", "", ""]
    }
    await lab.server.close()


async def test_no_limit_is_beyond_what_was_recorded(store: Store) -> None:
    lab = Lab(store, agent_with(*[call("echo")] * 5, "done", max_steps=3))
    await lab.asked()
    shown = await asked(lab, max_steps="none")
    assert (shown["beyond"], shown["status"], shown["stopped_at"]) == (True, "in_progress", None)
    assert (shown["is_cut"], shown["votes"]["StepsLimit"]) == (False, "AAA")
    assert shown["reasons"]["StepsLimit"] == ["No limit"] * 3
    assert shown["votes"]["ToolCallPresenceCheck"] == "RRR"
    as_recorded = await asked(lab)
    assert (as_recorded["stopped_at"], as_recorded["votes"]["StepsLimit"]) == (3, "AAF")
    assert as_recorded["reasons"] == {}
    # A time limit that is left out as well changes nothing more.
    assert (await asked(lab, max_steps="none", timeout="none"))["votes"]["ExecutionTimeLimit"] == "AAA"
    await lab.server.close()


@pytest.mark.usefixtures("nothing_is_logged")
async def test_invalid_limits_are_refused(store: Store) -> None:
    lab = Lab(store, agent_with("one"))
    await lab.made("new")
    await lab.asked()
    for name, value in (
        ("max_steps", "0"),
        ("max_steps", "1.5"),
        ("max_steps", "x"),
        ("timeout", "0.0"),
        ("timeout", "-1"),
        ("max_cost", "1e9"),
        ("error_policy", "hope"),
    ):
        answer = await lab.get("/sessions/a/what-if", query={name: value})
        assert (answer.status, answer.error) == (400, "bad_request"), (name, value)
        assert name in answer.message
        assert "regex" not in answer.message
    answer = await lab.get("/sessions/a/what-if", query={"max_steps": "0"})
    assert answer.message == "invalid max_steps '0': use a whole number from 1 on, or none"
    both = {"timeout": "1", "cumulative_timeout": "1"}
    assert (await lab.get("/sessions/a/what-if", query=both)).status == 400
    missing = await lab.get("/sessions/a/what-if", query={"execution": "x"})
    assert (missing.status, missing.error) == (404, "no_such_execution")
    assert (await lab.get("/sessions/new/what-if")).error == "nothing_to_judge"
    assert (await lab.get("/sessions/nobody/what-if")).error == "session_not_found"
    await lab.server.close()


async def test_a_recording_is_read_once_for_each_version(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    original = Recording.read_listed.__func__  # type: ignore[attr-defined]

    async def read_listed(cls: Any, store: Store, summary: Any) -> Recording:
        read.append(summary.version)
        found: Recording = await original(cls, store, summary)
        return found

    monkeypatch.setattr(Recording, "read_listed", classmethod(read_listed))
    lab = Lab(store, agent_with(call("echo"), "one", call("echo"), "two"))
    path = await lab.asked()
    for value in range(1, 9):
        await asked(lab, max_steps=value)
    assert len(read) == 1
    await lab.post(f"{path}/messages", {"text": "more"})
    await lab.rest()
    for value in range(1, 9):
        await asked(lab, max_steps=value)
    assert len(read) == 2
    # A session of the same name is another one.
    await lab.delete(path)
    other = Lab(store, agent_with("three"))
    await other.asked()
    assert (await asked(lab))["stopped_at"] == 1
    assert len(read) == 3
    await lab.server.close()


async def test_few_recordings_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    lab = Lab(store, agent_with(*(call("echo"), "one") * 6))
    for number in range(6):
        await lab.asked(f"s{number}")
    summaries = (await store.sessions()).sessions
    recordings = Recordings(store)

    async def read(summary: Summary) -> Recording:
        async with recordings.reading(summary) as recording:
            return recording

    first = await read(summaries[0])
    assert await read(summaries[0]) is first
    monkeypatch.setattr("whyloop.server.what_if.MOST_KEPT", 2)
    for summary in summaries[1:]:
        await read(summary)
    assert [agent_id for agent_id, _ in recordings._kept] == [each.identity for each in summaries[-2:]]
    assert await read(summaries[0]) is not first
    monkeypatch.setattr("whyloop.server.what_if.MOST_TRANSITIONS", 1)
    await read(summaries[3])
    assert len(recordings._kept) == 0


async def test_reasons_have_no_secrets(store: Store) -> None:
    secret = "sk-proj-0123456789abcdefghijklmnop"

    @tool
    async def fail() -> str:
        raise ToolExecutionError(f"no access with {secret}")

    def guard(state: Any) -> Any:
        return ContinuationEvaluation("guard", ContinuationDecision.ALLOW_CONTINUATION, f"uses {secret}")

    agent = scripted(
        call("fail"), "done", tools=[fail], criteria=[guard], error_policy=ErrorPolicy.retry_all()
    )
    lab = Lab(store, agent)
    await lab.asked()
    for query in ({"error_policy": "stop_on_any_error"}, {"max_steps": 1}, {}):
        answer = await lab.get("/sessions/a/what-if", query=query)
        assert answer.status == 200
        assert secret.encode() not in answer.body
    await lab.server.close()


# Many sessions


async def filled(store: Store) -> Lab:
    """Sessions of one to six steps, the last of them stopped by its limit; one of them is Bob's."""
    replies: list[Any] = []
    for count in range(5):
        replies += [*[call("echo")] * count, "done"]
    lab = Lab(store, agent_with(*replies, *[call("echo")] * 6, max_steps=6))
    for number in range(6):
        await lab.asked(f"s{number + 1}", user="bob" if number == 2 else "ann")
    await lab.made("new", user="ann")
    return lab


async def test_a_survey_counts_what_each_value_would_have_cut(store: Store) -> None:
    lab = await filled(store)
    shown = (await lab.get("/what-if", query={"limit": "max_steps"})).json
    assert (shown["limit"], shown["runs"], shown["completed"], shown["problems"]) == ("max_steps", 6, 5, 0)
    assert [(row["value"], row["cut"], row["completed"]) for row in shown["rows"]] == [
        (1, 5, 4),
        (2, 4, 3),
        (3, 3, 2),
        (4, 2, 1),
        (5, 1, 0),
        (6, 0, 0),
    ]
    assert (shown["recommended"], shown["interval"]) == (None, None)  # From five runs.
    assert shown["cut_below"] == {"s2": 2, "s3": 3, "s4": 4, "s5": 5, "s6": 6}
    found = await survey(store, [StepsLimit(3)])
    assert shown["rows"][2]["saved"] == found.rows[0].saved.to_dict()
    assert shown["used"] == found.used.to_dict()
    for name in ("max_tokens", "timeout", "cumulative_timeout", "max_cost"):
        assert (await lab.get("/what-if", query={"limit": name})).status == 200
    await lab.server.close()


@seeds(10)
async def test_every_value_below_cuts_the_session_and_no_other_does(seed: int) -> None:
    store = MemoryStore()
    await any_session(store, seed)
    lab, recording = Lab(store), await Recording.read(store, "a")
    for name, kind in (("max_steps", StepsLimit), ("timeout", ExecutionTimeLimit)):
        shown = (await lab.get("/what-if", query={"limit": name})).json
        assert len(shown["rows"]) <= 50
        below = shown["cut_below"].get("a", 0)
        for row in shown["rows"] if recording.executions else []:
            value = int(row["value"]) if kind is StepsLimit else row["value"]
            is_cut = any(each.is_cut for each in judge(recording, kind(value)).executions)
            assert is_cut == (row["value"] < below), (name, row, below)


async def test_a_survey_is_of_the_newest_sessions_that_match_and_may_be_seen(store: Store) -> None:
    lab = await filled(store)

    async def surveyed(where: Lab = lab, **query: object) -> set[str]:
        found = (await where.get("/what-if", query={"limit": "max_steps", **query})).json
        return {"s1"} | set(found["cut_below"]) if found["runs"] else set()

    assert await surveyed(metadata=json.dumps({"user": "bob"})) == {"s1", "s3"}
    assert await surveyed(status="stopped") == {"s1", "s6"}
    assert await surveyed(search="s4") == {"s1", "s4"}
    newest = [each.agent_id for each in (await store.sessions(limit=3)).sessions]
    assert await surveyed(sessions=3) == {"s1"} | {each for each in newest if each != "new"}
    bob = Lab(store, access=lambda _: Access("bob", {"user": "bob"}, {"inspect"}))
    assert await surveyed(bob) == {"s1", "s3"}
    assert await surveyed(bob, metadata=json.dumps({"user": "ann"})) == set()
    assert (await lab.get("/what-if", query={"limit": "hope"})).status == 400
    assert (await lab.get("/what-if", query={"sessions": 0})).status == 400
    await lab.server.close()


async def test_a_survey_has_at_most_fifty_values_with_the_ends_of_the_curve(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "whyloop.db") as store:
        model = RespondingModel(LongModel(300).respond)
        agent = Agent(model, [echo], max_steps=301, timeout=None)
        await (await Session.open(store, agent, "long", create=True)).send("go")
        shown = (await Lab(store).get("/what-if", query={"limit": "max_steps"})).json
        values = [row["value"] for row in shown["rows"]]
        assert len(values) == 50
        assert values == sorted(values)
        assert (values[0], values[-1]) == (1, 300)


async def test_a_session_that_cannot_be_read_is_a_problem_and_not_the_end(store: Store) -> None:
    lab = await filled(store)
    original = Recording.of_entries

    def broken(agent_id: str, entries: Sequence[str]) -> Recording:
        if agent_id == "s4":
            raise SnapshotError("the journal is broken")
        return original(agent_id, entries)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Recording, "of_entries", broken)
        shown = (await lab.get("/what-if")).json
    assert (shown["problems"], shown["runs"]) == (1, 5)
    await lab.server.close()
