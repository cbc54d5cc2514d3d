"""What is in an envelope, field by field."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from tests.support import START
from whyloop.broadcasting import BroadcastConfig
from whyloop.errors import ConfigurationError
from whyloop.events import ContinuationEvaluated, ToolCallCompleted, ToolCallStarted
from whyloop.values.continuation import ContinuationDecision, ContinuationEvaluation, ContinuationOutcome
from whyloop.wire.envelope import envelope, timestamp
from whyloop.wire.summaries import args_summary, result_summary

WHOSE = ("agent", None, "execution", 1, START)


@pytest.mark.parametrize(
    ("microseconds", "written"),
    [
        (0, ".000Z"),
        (999, ".000Z"),
        (1000, ".001Z"),
        (123_456, ".123Z"),
        (120_000, ".120Z"),
        (999_999, ".999Z"),
    ],
)
def test_a_time_has_milliseconds_and_never_more(microseconds: int, written: str) -> None:
    assert timestamp(datetime(2026, 1, 16, 10, 5, 1, microseconds, UTC)) == f"2026-01-16T10:05:01{written}"


def test_a_time_is_told_in_utc() -> None:
    elsewhere = datetime(2026, 1, 16, 12, 5, 1, 5000, timezone(timedelta(hours=2)))
    assert timestamp(elsewhere) == "2026-01-16T10:05:01.005Z"


@pytest.mark.parametrize(
    ("arguments", "summary"),
    [
        ({"query": "dbplus", "types": ["program"]}, "query: 'dbplus', types: [\"program\"]"),
        ({}, ""),
        ({"a": 1, "b": 2, "c": 3, "d": 4}, "a: 1, b: 2, c: 3"),
        ({"a": "x" * 31, "b": ["y" * 40]}, f"a: '{'x' * 30}', b: [\"{'y' * 28}"),
        ({"a" * 40: None}, f"{'a' * 30}: null"),
        ({"huge": 10**30}, f"huge: {10**30}"[:36]),
        ({"half": "\ud800"}, "half: '�'"),
        ({"half": ["\ud800"]}, "half: ['\\ud800']"),
        ("{not json", "{not json"),
        ("x" * 40, "x" * 30),
    ],
)
def test_arguments_are_summed_up(arguments: dict[str, Any] | str, summary: str) -> None:
    assert args_summary(arguments) == summary


def test_a_result_is_cut() -> None:
    assert result_summary("x" * 101) == "x" * 100
    assert result_summary("half \ud800") == "half �"


def nested(depth: int) -> list[Any]:
    inner: list[Any] = []
    for _ in range(depth):
        inner = [inner]
    return inner


def test_what_cannot_be_written_as_json_is_told_in_words() -> None:
    deep = nested(100_000)
    assert args_summary({"deep": deep}) == "deep: <list>"
    told = envelope(ToolCallStarted(*WHOSE, "t", "c", {"deep": deep}), 1, BroadcastConfig.debug())
    assert told is not None
    assert told["data"]["args"] == "<dict>"


def test_one_context_that_cannot_be_written_leaves_the_others_whole() -> None:
    allow = ContinuationDecision.ALLOW_CONTINUATION
    said = (
        ContinuationEvaluation("A", allow, "fine", {"n": 1}),
        ContinuationEvaluation("B", allow, "odd", {"n": nested(100_000)}),
        ContinuationEvaluation("C", allow, "described", {"n": set}),
    )
    event = ContinuationEvaluated(*WHOSE, ContinuationOutcome(allow, "A", None, said))
    told = envelope(event, 1, BroadcastConfig.debug())
    assert told is not None
    contexts = [each["context"] for each in told["data"]["evaluations"]]
    assert contexts == [{"n": 1}, {"unreadable": "<dict>"}, {"n": "<class 'set'>"}]


def test_only_a_preset_that_says_so_shows_arguments() -> None:
    event = ToolCallStarted(*WHOSE, "login", "c", {"user": "ada", "password": "x" * 50})
    for config, shown in ((BroadcastConfig.standard(), False), (BroadcastConfig.debug(), True)):
        told = envelope(event, 1, config)
        assert told is not None
        assert ("args" in told["data"]) is shown
        assert ("args_summary" in told["data"]) is not shown


def test_lengths_can_be_chosen() -> None:
    config = BroadcastConfig(max_argument_length=2, max_result_length=3)
    started = envelope(ToolCallStarted(*WHOSE, "t", "c", {"query": "fjord"}), 1, config)
    completed = envelope(ToolCallCompleted(*WHOSE, "t", "c", True, None, 1.23456, "result"), 2, config)
    assert started is not None
    assert completed is not None
    assert started["data"]["args_summary"] == "qu: 'fj'"
    assert completed["data"]["result_summary"] == "res"
    assert completed["data"]["duration_ms"] == 1.235


def test_a_length_below_zero_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="zero or more"):
        BroadcastConfig(max_result_length=-1)
