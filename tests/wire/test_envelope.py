"""The fields of each envelope."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import assume, given, strategies as st
from msgspec.structs import replace

from tests.support import START
from whyloop import AgentStatus, Redaction, StopReason, Usage, Verdict
from whyloop.broadcasting import BroadcastConfig
from whyloop.errors import ConfigurationError
from whyloop.events import (
    AgentEvent,
    AgentExecutionFailed,
    AgentStatusChanged,
    ApprovalDecided,
    ApprovalRequested,
    ContinuationEvaluated,
    StreamChunkReceived,
    TokenUsageReported,
    ToolCallCompleted,
    ToolCallStarted,
)
from whyloop.values import encoding
from whyloop.values.continuation import ContinuationDecision, ContinuationEvaluation, ContinuationOutcome
from whyloop.values.redaction import redacted
from whyloop.values.summaries import args_summary, result_summary
from whyloop.wire.envelope import envelope, timestamp, usage_data

COMMON: dict[str, Any] = {
    "agent_id": "agent",
    "parent_agent_id": None,
    "execution_id": "execution",
    "step_number": 1,
    "time": START,
    "seq": 3,
}
IN_PROGRESS = AgentStatus.IN_PROGRESS


def started(args: Any, **more: Any) -> ToolCallStarted:
    return ToolCallStarted(**COMMON, tool="t", tool_call_id="c", args=args, **more)


def completed(result: str = "", error: str | None = None, **more: Any) -> ToolCallCompleted:
    return ToolCallCompleted(
        **COMMON,
        tool="t",
        tool_call_id="c",
        success=error is None,
        error=error,
        result=result,
        **{"duration_ms": 1.0, **more},
    )


def chunk(text: str) -> StreamChunkReceived:
    return StreamChunkReceived(**COMMON, chunk=text, chunk_index=0, is_complete=False)


def asked(question: str = "t waits for approval", **more: Any) -> ApprovalRequested:
    about = {"tool": "t", "tool_call_id": "c", "args": {}, **more}
    return ApprovalRequested(**COMMON, question_id="q", question=question, **about)


def decided(reason: str | None = None, **more: Any) -> ApprovalDecided:
    about = {"tool": "t", "tool_call_id": "c", "verdict": Verdict.DENIED, "by": "ada", **more}
    return ApprovalDecided(**COMMON, question_id="q", reason=reason, **about)


def data_of(event: AgentEvent, config: BroadcastConfig) -> dict[str, Any]:
    written = envelope(event, config)
    assert written is not None
    data: dict[str, Any] = written["data"]
    return data


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


def test_times_are_sent_in_utc() -> None:
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


def test_a_value_that_json_cannot_hold_is_sent_as_its_repr() -> None:
    deep = nested(100_000)
    assert args_summary({"deep": deep}) == "deep: <list>"
    assert data_of(started({"deep": deep}), BroadcastConfig.debug())["args"] == "<dict>"


def test_one_context_that_cannot_be_written_leaves_the_others_whole() -> None:
    allow = ContinuationDecision.ALLOW_CONTINUATION
    said = (
        ContinuationEvaluation("A", allow, "fine", {"n": 1}),
        ContinuationEvaluation("B", allow, "odd", {"n": nested(100_000)}),
        ContinuationEvaluation("C", allow, "described", {"n": set}),
    )
    event = ContinuationEvaluated(**COMMON, outcome=ContinuationOutcome(allow, "A", None, said))
    contexts = [each["context"] for each in data_of(event, BroadcastConfig.debug())["evaluations"]]
    assert contexts == [{"n": 1}, {"unreadable": "<dict>"}, {"n": "<class 'set'>"}]


def test_only_a_preset_that_says_so_shows_arguments() -> None:
    arguments = {"user": "ada", "password": "x" * 50}
    for event in (started(arguments), asked(args=arguments)):
        for config, shown in ((BroadcastConfig.standard(), False), (BroadcastConfig.debug(), True)):
            data = data_of(event, config)
            assert ("args" in data) is shown
            assert ("args_summary" in data) is not shown


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


@pytest.mark.parametrize("secret", SECRETS)
def test_secrets_are_removed_from_every_envelope(secret: str) -> None:
    stop = ContinuationDecision.FORBID_CONTINUATION
    said = ContinuationEvaluation("Mine", stop, secret, {"why": secret})
    events: list[AgentEvent] = [
        started({"value": secret}),
        started({"value": [secret]}),
        started(secret),
        completed(secret, secret),
        asked(secret, args={"value": secret}),
        decided(secret),
        AgentStatusChanged(
            **COMMON,
            previous_status=IN_PROGRESS,
            status=AgentStatus.FAILED,
            error_message=f"It broke:\n{secret}",
        ),
        AgentStatusChanged(
            **COMMON,
            previous_status=IN_PROGRESS,
            status=AgentStatus.FAILED,
            resolved_by="Mine",
            reason=f"It broke:\n{secret}",
        ),
        ContinuationEvaluated(**COMMON, outcome=ContinuationOutcome(stop, "Mine", None, (said,))),
        AgentExecutionFailed(**COMMON, error=secret, stop_reason=StopReason.ERROR_FORBADE),
    ]
    in_full = BroadcastConfig.debug()
    summed_up = replace(in_full, include_tool_args=False, max_argument_length=100)
    open_to_all = BroadcastConfig.debug(redaction=None)
    for event in events:
        for config in (summed_up, in_full):
            assert "removed]" in str(data_of(event, config)), event
        assert "removed]" not in str(data_of(event, open_to_all))


def test_an_argument_with_the_name_of_a_secret_is_removed() -> None:
    arguments = {"user": "ada", "password": "hunter2", "tokens": ["hunter2"]}
    event = started(arguments)
    assert data_of(event, BroadcastConfig.standard())["args_summary"] == (
        "user: 'ada', password: '[removed]', tokens: [removed]"
    )
    hidden = {"user": "ada", "password": "[removed]", "tokens": "[removed]"}
    assert data_of(event, BroadcastConfig.debug())["args"] == hidden
    shown = BroadcastConfig.standard(redaction=None)
    assert "hunter2" in data_of(event, shown)["args_summary"]


def test_a_secret_that_is_cut_off_is_still_removed() -> None:
    done = completed("x" * 90 + " sk-abcdefghijklmnopqrst")
    assert data_of(done, BroadcastConfig())["result_summary"] == "x" * 90 + " [removed]"
    event = started({"value": "x" * 20 + " sk-abcdefghijklmnopqrst"})
    assert data_of(event, BroadcastConfig())["args_summary"] == f"value: '{'x' * 20} [removed]'"


@given(
    st.dictionaries(st.text(max_size=40), st.integers() | st.booleans() | st.text(max_size=40), max_size=4)
)
def test_arguments_without_secrets_are_summarized_unchanged(arguments: dict[str, Any]) -> None:
    assume(redacted(arguments) == encoding.encode(arguments))
    event = started({**arguments, "list": [1, {"a": None}]})
    assert data_of(event, BroadcastConfig())["args_summary"] == args_summary(event.args)


def test_the_answer_itself_is_sent_unchanged() -> None:
    assert data_of(chunk(SECRETS[0]), BroadcastConfig())["chunk"] == SECRETS[0]
    over = AgentStatusChanged(
        **COMMON,
        previous_status=IN_PROGRESS,
        status=AgentStatus.COMPLETED,
        last_response=SECRETS[0],
    )
    assert data_of(over, BroadcastConfig())["last_response"] == SECRETS[0]


def test_lengths_can_be_chosen() -> None:
    config = BroadcastConfig(max_argument_length=2, max_result_length=3)
    assert data_of(started({"query": "fjord"}), config)["args_summary"] == "qu: 'fj'"
    done = data_of(completed("result", duration_ms=1.23456), config)
    assert (done["result_summary"], done["duration_ms"]) == ("res", 1.235)


def test_hooks_are_named_only_if_they_changed_a_call() -> None:
    for event in (started({}), completed(), asked()):
        assert "changed_by" not in data_of(event, BroadcastConfig())
    for event in (
        started({}, changed_by=("Cap",)),
        completed(changed_by=("Cap",)),
        asked(changed_by=("Cap",)),
    ):
        assert data_of(event, BroadcastConfig())["changed_by"] == ["Cap"]


def test_a_question_about_the_run_itself_names_no_call() -> None:
    about_run = {"tool": "recovery", "tool_call_id": ""}
    for event in (asked("Continue?", **about_run), decided(**about_run)):
        data = data_of(event, BroadcastConfig())
        assert (data["question_id"], data["tool"], data["tool_call_id"]) == ("q", None, None)
    assert data_of(asked(tool_call_id=""), BroadcastConfig())["tool"] == "t"


def test_a_cost_is_decimal_text_and_null_where_it_is_unknown() -> None:
    assert usage_data(Usage(1, 2)) == {"input": 1, "output": 2, "total": 3, "cost": None}
    assert usage_data(Usage(1, 2, cost=Decimal("0.0105")))["cost"] == "0.0105"


def test_every_preset_sends_the_numbered_envelopes_and_only_debug_all_events() -> None:
    outcome = ContinuationOutcome(ContinuationDecision.ALLOW_STOP, "A", StopReason.COMPLETED)
    used = TokenUsageReported(**COMMON, usage=Usage(1), execution_usage=Usage(2))
    traced = ContinuationEvaluated(**COMMON, outcome=outcome)
    sent = {
        name: [envelope(event, config) is not None for event in (started({}), chunk("x"), traced, used)]
        for name, config in (
            ("minimal", BroadcastConfig.minimal()),
            ("standard", BroadcastConfig.standard()),
            ("debug", BroadcastConfig.debug()),
        )
    }
    assert sent == {
        "minimal": [True, False, False, False],
        "standard": [True, True, False, False],
        "debug": [True, True, True, True],
    }


def test_any_other_event_is_its_class_and_its_public_fields() -> None:
    used = TokenUsageReported(**COMMON, usage=Usage(1), execution_usage=Usage(2, cost=Decimal(3)))
    written = envelope(used, BroadcastConfig.debug())
    assert written is not None
    assert (written["event"], written["seq"]) == ("agent.event", 3)
    assert written["data"] == {
        "name": "TokenUsageReported",
        "fields": {
            "parent_agent_id": None,
            "step_number": 1,
            "usage": {"input": 1, "output": 0, "total": 1, "cost": None},
            "execution_usage": {"input": 2, "output": 0, "total": 2, "cost": "3"},
        },
    }


def test_a_length_below_zero_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="zero or more"):
        BroadcastConfig(max_result_length=-1)


@pytest.mark.parametrize("preset", ["minimal", "standard", "debug"])
def test_every_preset_takes_a_redaction(preset: str) -> None:
    own = Redaction(patterns=("hunter",))
    assert getattr(BroadcastConfig, preset)(redaction=own) == replace(
        getattr(BroadcastConfig, preset)(), redaction=own
    )
