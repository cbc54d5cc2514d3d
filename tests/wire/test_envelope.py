"""What is in an envelope, field by field."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from tests.support import START
from whyloop import AgentStatus
from whyloop.broadcasting import BroadcastConfig
from whyloop.errors import ConfigurationError
from whyloop.events import (
    AgentEvent,
    AgentStatusChanged,
    ContinuationEvaluated,
    StreamChunkReceived,
    ToolCallCompleted,
    ToolCallStarted,
)
from whyloop.values import plain
from whyloop.values.continuation import ContinuationDecision, ContinuationEvaluation, ContinuationOutcome
from whyloop.wire.config import SlimSerializationConfig
from whyloop.wire.envelope import envelope, timestamp
from whyloop.wire.redact import Redactor, without_secrets
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
        ({"half": ["\ud800"]}, 'half: ["�"]'),
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


SECRETS = [
    "sk-abcdefghijklmnopqrstuvwxyz0123",
    "AIza" + "b" * 35,
    "AKIAABCDEFGHIJKLMNOP",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
    "Authorization: Bearer abcdefghijklmnop",
    "Bearer abcdefghijklmnop",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEow",
    "https://ada:hunter2@example.com/",
    "password=hunter2",
    "api-key: hunter2",
    '{"X-Api-Key": "hunter2", "max_tokens": 7}',
    "{'secret': 'hunter2'}",
    '"token":nonsense',
    "github_pat_0123456789abcdefghij",
]
HARMLESS = ["", "two of them", "7 tokens", "max_tokens: 7", "a=b", "https://example.com/a", '{"tokens": 7}']
some_text = st.lists(
    st.sampled_from([*SECRETS, *HARMLESS, " ", "\n", "\\", '"', ",", "é", "\ud800"]), max_size=4
).map("".join)
some_data = st.recursive(
    some_text | st.none() | st.integers(-9, 9) | st.booleans(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            some_text | st.sampled_from(["password", "tokens", "token", "jwt_of"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)


@given(some_data)
def test_what_is_searched_is_what_there_is_to_find(data: Any) -> None:
    data = plain.encode(data)
    assert without_secrets(data) == Redactor(SlimSerializationConfig()).data(data)


def told(event: AgentEvent, config: BroadcastConfig) -> dict[str, Any]:
    envelope_of_it = envelope(event, 1, config)
    assert envelope_of_it is not None
    data: dict[str, Any] = envelope_of_it["data"]
    return data


@pytest.mark.parametrize("secret", SECRETS)
def test_secrets_are_removed_wherever_they_are_told(secret: str) -> None:
    stop = ContinuationDecision.FORBID_CONTINUATION
    said = ContinuationEvaluation("Mine", stop, secret, {"why": secret})
    events: list[AgentEvent] = [
        ToolCallStarted(*WHOSE, "t", "c", {"value": secret}),
        ToolCallStarted(*WHOSE, "t", "c", {"value": [secret]}),
        ToolCallStarted(*WHOSE, "t", "c", secret),
        ToolCallCompleted(*WHOSE, "t", "c", False, secret, 1.0, secret),
        AgentStatusChanged(
            *WHOSE, AgentStatus.IN_PROGRESS, AgentStatus.FAILED, error_message=f"It broke:\n{secret}"
        ),
        ContinuationEvaluated(*WHOSE, ContinuationOutcome(stop, "Mine", None, (said,))),
    ]
    summed_up = BroadcastConfig(include_continuation=True, max_argument_length=100)
    in_full = BroadcastConfig.debug()
    open_to_all = BroadcastConfig(include_continuation=True, include_tool_args=True, redact=False)
    for event in events:
        for config in (summed_up, in_full):
            assert "removed]" in str(told(event, config)), event
        assert "removed]" not in str(told(event, open_to_all))


def test_an_argument_with_the_name_of_a_secret_is_not_told() -> None:
    arguments = {"user": "ada", "password": "hunter2", "tokens": ["hunter2"]}
    event = ToolCallStarted(*WHOSE, "login", "c", arguments)
    assert told(event, BroadcastConfig.standard())["args_summary"] == (
        "user: 'ada', password: '[removed]', tokens: [removed]"
    )
    hidden = {"user": "ada", "password": "[removed]", "tokens": "[removed]"}
    assert told(event, BroadcastConfig.debug())["args"] == hidden
    shown = msgspec.structs.replace(BroadcastConfig.standard(), redact=False)
    assert "hunter2" in told(event, shown)["args_summary"]


def test_a_secret_that_is_cut_off_is_known_all_the_same() -> None:
    event = ToolCallCompleted(*WHOSE, "t", "c", True, None, 1.0, "x" * 90 + " sk-abcdefghijklmnopqrst")
    assert told(event, BroadcastConfig())["result_summary"] == "x" * 90 + " [removed]"
    started = ToolCallStarted(*WHOSE, "t", "c", {"value": "x" * 20 + " sk-abcdefghijklmnopqrst"})
    assert told(started, BroadcastConfig())["args_summary"] == f"value: '{'x' * 20} [removed]'"


@given(
    st.dictionaries(st.text(max_size=40), st.integers() | st.booleans() | st.text(max_size=40), max_size=4)
)
def test_what_has_no_secrets_is_summed_up_as_it_is(arguments: dict[str, Any]) -> None:
    event = ToolCallStarted(*WHOSE, "t", "c", {**arguments, "list": [1, {"a": None}]})
    assert told(event, BroadcastConfig())["args_summary"] == args_summary(event.args)


def test_the_answer_itself_is_told_as_it_is() -> None:
    chunk = StreamChunkReceived(*WHOSE, SECRETS[0], 0, False)
    assert told(chunk, BroadcastConfig())["chunk"] == SECRETS[0]
    over = AgentStatusChanged(
        *WHOSE, AgentStatus.IN_PROGRESS, AgentStatus.COMPLETED, last_response=SECRETS[0]
    )
    assert told(over, BroadcastConfig())["last_response"] == SECRETS[0]


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
