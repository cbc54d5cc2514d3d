"""Spans of OpenTelemetry's conventions for generative AI."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from whyloop import AgentState, ErrorType, FinishReason, StopReason, TokenUsageLimit
from whyloop.imports import read_log
from whyloop.replay import judge

START = 1_768_557_600


def value(data: Any) -> dict[str, Any]:
    match data:
        case bool():
            return {"boolValue": data}
        case int():
            return {"intValue": str(data)}
        case list():
            return {"arrayValue": {"values": [value(each) for each in data]}}
    return {"stringValue": data}


def span(
    span_id: str,
    operation: str,
    start: float,
    end: float,
    parent: str = "",
    error: str = "",
    **attributes: Any,
) -> dict[str, Any]:
    named = {"gen_ai.operation.name": operation, **{k.replace("__", "."): v for k, v in attributes.items()}}
    if error:
        named["error.type"] = error
    return {
        "traceId": "t1",
        "spanId": span_id,
        "parentSpanId": parent,
        "name": operation,
        "startTimeUnixNano": str(int((START + start) * 1e9)),
        "endTimeUnixNano": str(int((START + end) * 1e9)),
        "attributes": [{"key": key, "value": value(each)} for key, each in named.items()],
        "status": {"code": 2, "message": "it broke"} if error else {},
    }


def line(spans: Sequence[dict[str, Any]]) -> str:
    return json.dumps({"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": spans}]}]})


def parts(role: str, *held: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "parts": list(held)}


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "content": content}


QUERY = parts("user", text("Weather in Paris and Rome?"))
CALLS = parts(
    "assistant",
    {"type": "reasoning", "content": "Two calls."},
    {"type": "tool_call", "id": "c1", "name": "weather", "arguments": {"city": "Paris"}},
    {"type": "tool_call", "id": "c2", "name": "weather", "arguments": {"city": "Rome"}},
)
RESULTS = parts("tool", {"type": "tool_call_response", "id": "c1", "response": "rain"})
AGENT = span("a", "invoke_agent", 0, 10, gen_ai__agent__name="Weather", gen_ai__conversation__id="conv-1")
CHAT = span(
    "b",
    "chat",
    0,
    2,
    "a",
    gen_ai__input__messages=json.dumps([QUERY]),
    gen_ai__output__messages=json.dumps([{**CALLS, "finish_reason": "tool_call"}]),
    gen_ai__system_instructions=json.dumps([text("Be brief.")]),
    gen_ai__response__model="gpt-x",
    gen_ai__usage__input_tokens=30,
    gen_ai__usage__output_tokens=8,
)
PARIS = span("c", "execute_tool", 2, 3, "a", gen_ai__tool__name="weather", gen_ai__tool__call__id="c1")
ROME = span(
    "d", "execute_tool", 2, 5, "a", error="timeout", gen_ai__tool__name="weather", gen_ai__tool__call__id="c2"
)
ANSWER = span(
    "e",
    "chat",
    6,
    9,
    "a",
    gen_ai__input__messages=json.dumps([QUERY, CALLS, RESULTS]),
    gen_ai__output__messages=json.dumps([parts("assistant", text("Rain in Paris."))]),
    gen_ai__response__finish_reasons=["stop"],
    gen_ai__usage__input_tokens=50,
    gen_ai__usage__output_tokens=5,
)


def read(*lines: str) -> list[AgentState]:
    return list(read_log(lines, "opentelemetry"))


def test_a_run_whose_spans_are_in_several_lines_is_one_session() -> None:
    (state,) = read(line([CHAT, ROME]), line([ANSWER, PARIS, AGENT]))
    assert [(m.role, m.text) for m in state.messages] == [
        ("user", "Weather in Paris and Rome?"),
        ("assistant", ""),
        ("tool", "rain"),
        ("tool", "timeout: it broke"),
        ("assistant", "Rain in Paris."),
    ]
    assert state.messages[1].reasoning == "Two calls."
    first, last = state.steps
    assert (first.usage.total, last.usage.total, state.usage.reported) == (38, 55, True)
    assert (first.finish_reason, last.finish_reason) == (FinishReason.TOOL_CALLS, FinishReason.STOP)
    assert [failure.type for failure in first.failures] == [ErrorType.TIMEOUT]
    assert [run.duration_ms for run in first.tool_calls] == [1000, 3000]
    assert (first.duration_ms, last.duration_ms, state.execution.untimed) == (5000, 3000, False)
    assert (state.agent, state.status, state.metadata["model"]) == ("Weather", "completed", "gpt-x")
    assert state.agent_id.startswith("conv-1-")


def test_known_usage_can_be_judged() -> None:
    replay = judge(read(line([AGENT, CHAT, PARIS, ROME, ANSWER]))[0], TokenUsageLimit(38))
    assert (replay.stopped_at, replay.stop_reason) == (1, StopReason.TOKEN_LIMIT_REACHED)
    assert replay.saved.tokens == 55


def test_spans_without_messages_keep_what_they_have_and_say_so() -> None:
    chat = span("b", "chat", 0, 2, "a", gen_ai__usage__input_tokens=30, gen_ai__usage__output_tokens=8)
    (state,) = read(line([AGENT, chat, PARIS, span("e", "chat", 6, 9, "a")]))
    first, last = state.steps
    assert [(run.name, run.success) for run in first.tool_calls] == [("weather", True)]
    assert (first.usage.total, last.usage.reported) == (38, False)
    assert [message.text for message in state.messages] == ["", "", "", ""]


def test_a_failed_chat_is_a_failure_of_the_model() -> None:
    (state,) = read(line([AGENT, span("b", "chat", 0, 2, "a", error="429"), {**ANSWER, "spanId": "f"}]))
    assert [failure.type for failure in state.steps[0].failures] == [ErrorType.RATE_LIMIT]
    assert state.steps[0].model_failure is not None
    assert state.status == "completed"


def test_each_agent_of_a_trace_is_a_separate_session() -> None:
    inner = span("x", "invoke_agent", 3, 5, "c", gen_ai__agent__name="Inner")
    chat = span("y", "chat", 3, 4, "x", gen_ai__input__messages=json.dumps([parts("user", text("Look"))]))
    states = read(line([AGENT, CHAT, PARIS, ROME, ANSWER, inner, chat]))
    assert [(state.agent, state.step_count) for state in states] == [("Weather", 2), ("Inner", 1)]
