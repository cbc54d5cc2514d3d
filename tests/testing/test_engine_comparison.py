"""What the suite for engines compares, and how it shows a difference."""

from __future__ import annotations

from typing import Any

import pytest

from whyloop.testing.engine_checks.stage import comparable, first_difference


def event(seq: int, name: str, call_id: str = "") -> dict[str, Any]:
    return {"event": name, "seq": seq, "data": {"tool_call_id": call_id}}


def test_identifiers_are_compared_by_the_order_of_their_first_appearance() -> None:
    one, two, three = "1" * 32, "2" * 32, "3" * 32
    record = [{"execution_id": one, "text": f"see {two}"}, {"question_id": two}, {"question": {"id": one}}]
    other = [{"execution_id": two, "text": f"see {three}"}, {"question_id": three}, {"question": {"id": two}}]
    swapped = [
        {"execution_id": two, "text": f"see {three}"},
        {"question_id": three},
        {"question": {"id": three}},
    ]
    assert first_difference(comparable(record), comparable(other)) is None
    assert first_difference(comparable(record), comparable(swapped)) == (
        "[2].question.id should be 'id 1', and it is 'id 2'"
    )


def test_an_identifier_may_begin_like_another_one() -> None:
    record = {"identity": "run-1", "execution_id": "run-10", "text": "run-10"}
    assert comparable(record) == {"identity": "id 1", "execution_id": "id 2", "text": "id 2"}


def test_times_must_be_there_and_durations_need_not() -> None:
    assert comparable({"started_at": "2026", "seconds": 3.5}) == {"started_at": "a time"}
    assert comparable({"started_at": None}) == {"started_at": None}
    assert comparable({"wait_seconds": 0.3}) == comparable({"wait_seconds": 0.1}) == {"wait_seconds": True}
    assert comparable({"wait_seconds": 0}) == {"wait_seconds": False}


def test_the_seconds_of_a_grant_are_compared() -> None:
    assert comparable({"granted": {"seconds": 60}}) == {"granted": {"seconds": 60}}


def test_seconds_in_texts_are_not_compared_and_other_numbers_are() -> None:
    texts = ["1.1 of 1 s used", "read ok  [20 tokens, 1,204 ms]", "2 of 3 steps used", "3 sheep"]
    expected = ["… s of … s used", "read ok  [20 tokens, … s]", "2 of 3 steps used", "3 sheep"]
    assert comparable(texts) == expected


def test_the_numbers_of_a_time_limit_are_not_compared_and_the_limit_is() -> None:
    context = {"used": 1, "remaining": 2, "limit": 3}
    evaluation = {"criterion": "ExecutionTimeLimit", "context": context}
    assert comparable(evaluation)["context"] == {"limit": 3}
    assert comparable({**evaluation, "criterion": "StepsLimit"})["context"] == context


def test_calls_that_run_at_once_may_finish_in_any_order() -> None:
    done = "agent.tool.completed"
    record = [event(3, done, "a"), event(4, done, "b"), event(5, "agent.status")]
    other = [event(3, done, "b"), event(4, done, "a"), event(5, "agent.status")]
    assert comparable(record) == comparable(other) == record
    apart = [event(3, done, "b"), event(4, "agent.status"), event(5, done, "a")]
    assert comparable(apart) == apart


def test_the_numbers_of_events_are_compared() -> None:
    record = comparable([event(1, "agent.status"), event(2, "agent.tool.completed", "a")])
    other = comparable([event(1, "agent.status"), event(3, "agent.tool.completed", "a")])
    assert first_difference(record, other) == "[1].seq should be 2, and it is 3"


@pytest.mark.parametrize(
    ("expected", "found", "difference"),
    [
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}, "a[1].b should be 2, and it is 3"),
        ({"a": 1}, {}, "a should be 1, and it is missing"),
        ([1], [1, 2], "[1] should be missing, and it is 2"),
        ({"a": 1}, {"a": True}, "a should be 1, and it is True"),
        ({"a": None}, {"a": []}, "a should be None, and it is []"),
        ({"a": 1}, {"a": 1}, None),
    ],
)
def test_the_first_difference_names_its_path(expected: Any, found: Any, difference: str | None) -> None:
    assert first_difference(expected, found) == difference


def test_a_difference_of_long_texts_shows_the_place() -> None:
    difference = first_difference({"a": "x" * 5000 + "left"}, {"a": "x" * 5000 + "right"})
    assert difference is not None
    assert "left" in difference
    assert "right" in difference
    assert len(difference) < 300
