"""Spans whose messages are in older forms of the conventions become the same session as newer ones."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.imports.test_opentelemetry import line, parts, span, text, value
from whyloop import AgentState, FinishReason
from whyloop.imports import LogProblem, read_log

CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
SYSTEM = {"role": "system", "content": "Be brief."}
QUERY = {"role": "user", "content": "Weather in Rome?"}
ASKED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "rain"}
ANSWER = {"role": "assistant", "content": "It rains."}
CHATS: list[tuple[list[Any], dict[str, Any], str]] = [
    ([SYSTEM, QUERY], ASKED, "tool_calls"),
    ([SYSTEM, QUERY, ASKED, RESULT], ANSWER, "stop"),
]


def event(name: str, **attributes: Any) -> dict[str, Any]:
    named = {key.replace("__", "."): each for key, each in attributes.items()}
    return {"name": name, "attributes": [{"key": key, "value": value(each)} for key, each in named.items()]}


def current(given: list[Any], answer: dict[str, Any], reason: str) -> dict[str, Any]:
    def entry(message: dict[str, Any]) -> dict[str, Any]:
        if message["role"] == "tool":
            return parts("tool", {"type": "tool_call_response", "id": "c1", "response": "rain"})
        asked = {"type": "tool_call", "id": "c1", "name": "weather", "arguments": {"city": "Rome"}}
        held = [text(message["content"])] if message["content"] else [asked]
        return parts(message["role"], *held)

    return {
        "gen_ai__input__messages": json.dumps([entry(each) for each in given]),
        "gen_ai__output__messages": json.dumps([{**entry(answer), "finish_reason": reason}]),
    }


def flat(given: list[Any], answer: dict[str, Any], reason: str) -> dict[str, Any]:
    found: dict[str, Any] = {"llm.request.type": "chat", "gen_ai.completion.0.finish_reason": reason}
    messages = [(f"gen_ai.prompt.{n}", each) for n, each in enumerate(given)]
    for prefix, message in [*messages, ("gen_ai.completion.0", answer)]:
        found |= {f"{prefix}.{k}": message[k] for k in ("role", "content", "tool_call_id") if message.get(k)}
        for call in message.get("tool_calls", []):
            found[f"{prefix}.tool_calls.0.id"] = call["id"]
            found |= {f"{prefix}.tool_calls.0.{k}": v for k, v in call["function"].items()}
    return found


def as_events(given: list[Any], answer: dict[str, Any], reason: str) -> list[dict[str, Any]]:
    told = [event(f"gen_ai.{m['role']}.message", gen_ai__event__content=json.dumps(m)) for m in given]
    choice = {"index": 0, "finish_reason": reason, "message": answer}
    return [*told, event("gen_ai.choice", gen_ai__event__content=json.dumps(choice))]


def as_content(given: list[Any], answer: dict[str, Any], reason: str) -> list[dict[str, Any]]:
    return [
        event("gen_ai.content.prompt", gen_ai__prompt=json.dumps(given)),
        event(
            "gen_ai.content.completion", gen_ai__completion=json.dumps([{**answer, "finish_reason": reason}])
        ),
    ]


def spans(form: str) -> list[dict[str, Any]]:
    made = []
    for number, chat in enumerate(CHATS):
        makers = {"current": current, "flat": flat}
        attributes = makers[form](*chat) if form in makers else {}
        each = span(f"s{number}", "" if form == "flat" else "chat", number * 2, number * 2 + 1, **attributes)
        if form == "flat":
            each["attributes"] = [
                held for held in each["attributes"] if held["key"] != "gen_ai.operation.name"
            ]
        tellers = {"events": as_events, "content": as_content}
        each["events"] = tellers[form](*chat) if form in tellers else []
        made.append(each)
    return made


def read(form: str) -> AgentState:
    (state,) = read_log([line(spans(form))], "opentelemetry")
    return state


@pytest.mark.parametrize("form", ["events", "content", "flat"])
def test_older_forms_are_read_as_the_current_one(form: str) -> None:
    state, wanted = read(form), read("current")
    assert [(m.role, m.text, m.tool_calls) for m in state.messages] == [
        (m.role, m.text, m.tool_calls) for m in wanted.messages
    ]
    assert [m.text for m in state.messages] == ["Weather in Rome?", "", "rain", "It rains."]
    assert state.messages[1].tool_calls[0].arguments == {"city": "Rome"}
    assert [step.finish_reason for step in state.steps] == [FinishReason.TOOL_CALLS, FinishReason.STOP]
    assert (state.status, state.execution.wall_seconds) == ("completed", wanted.execution.wall_seconds)


def test_events_that_are_not_messages_and_broken_json_are_left_out() -> None:
    chat = span("s", "chat", 0, 1)
    chat["events"] = [
        event("exception", message="x"),
        event("gen_ai.content.prompt", gen_ai__prompt="[broken"),
    ]
    (state,) = read_log([line([chat])], "opentelemetry")
    assert [m.text for m in state.messages] == ["", ""]


def test_a_span_that_cannot_be_read_is_a_problem_and_the_others_are_read() -> None:
    broken, problems = span("broken", "chat", 0, 1), list[LogProblem]()
    broken["attributes"].append({"key": f"gen_ai.prompt.{'9' * 5000}.role", "value": value("user")})
    states = list(read_log([line([broken, *spans("flat")])], "opentelemetry", on_problem=problems.append))
    assert [state.last_response for state in states] == ["It rains."]
    (problem,) = problems
    assert problem.reason.startswith("a span does not follow OpenTelemetry")
