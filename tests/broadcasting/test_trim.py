"""Envelopes that are made to fit, and say what they lack."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.broadcasting.support import envelope
from tests.wire.test_envelope_schema import problems
from whyloop.broadcasting.adapter import Envelope
from whyloop.broadcasting.trim import trimmed


def fits(limit: int) -> Any:
    def check(told: Envelope) -> bool:
        return len(json.dumps(told)) <= limit

    return check


def status(**texts: str) -> dict[str, Any]:
    told = envelope("status", status="completed", previous_status="in_progress", stop_reason="completed")
    told["data"] |= {"resolved_by": "ToolCallPresenceCheck", "reason": "No tool calls", "step_count": 2}
    told["data"] |= {"error_message": None, "last_response": None, **texts}
    return told


def test_what_fits_is_left_alone() -> None:
    told = status(last_response="short")
    assert trimmed(told, fits(1000)) is told


def test_the_longest_text_is_cut_first() -> None:
    told = trimmed(status(last_response="x" * 5000, error_message="why " * 20), fits(2000))
    assert told is not None
    data = told["data"]
    assert data["trimmed"] is True
    assert data["trimmed_fields"] == ["last_response"]
    assert data["error_message"] == "why " * 20
    assert data["last_response"].endswith("x…")
    assert 500 < len(data["last_response"]) < 2000
    assert problems(dict(told)) == []


def test_the_envelope_that_was_given_is_not_changed() -> None:
    before = status(last_response="x" * 5000)
    trimmed(before, fits(1000))
    assert before == status(last_response="x" * 5000)


def test_texts_inside_arguments_are_cut_too() -> None:
    args = {"query": "q" * 3000, "deep": [{"text": "t" * 9000}], "limit": 3}
    told = trimmed(
        envelope("agent.tool.started", tool="search", tool_call_id="call_1", args=args), fits(1500)
    )
    assert told is not None
    assert told["data"]["trimmed_fields"] == ["args"]
    assert told["data"]["args"]["limit"] == 3
    assert told["data"]["tool_call_id"] == "call_1"
    assert problems(dict(told)) == []


def test_a_question_keeps_its_id() -> None:
    asked = envelope("agent.approval.requested", question_id="q" * 32, tool="pay", tool_call_id="call_1")
    asked["data"] |= {"question": "May it? " * 500, "args_summary": ""}
    told = trimmed(asked, fits(700))
    assert told is not None
    assert told["data"]["question_id"] == "q" * 32
    assert told["data"]["trimmed_fields"] == ["question"]
    assert problems(dict(told)) == []


def test_very_many_small_parts_are_left_out() -> None:
    tools = [f"tool_{number}" for number in range(5000)]
    told = trimmed(envelope("step", step_number=1, message_count=2, available_tools=tools), fits(1000))
    assert told is not None
    assert told["data"]["available_tools"] == []
    assert told["data"]["trimmed_fields"] == ["available_tools"]
    assert problems(dict(told)) == []


def test_a_very_long_name_of_an_argument_is_left_out() -> None:
    arguments = envelope("agent.tool.started", tool="t", tool_call_id="c", args={"k" * 10_000: 1})
    told = trimmed(arguments, fits(1000))
    assert told is not None
    assert told["data"]["args"] == {}


@pytest.mark.parametrize("field", ["session_id", "agent_id"])
def test_what_is_too_large_outside_of_its_data_cannot_be_made_to_fit(field: str) -> None:
    assert trimmed({**status(), field: "x" * 5000}, fits(1000)) is None
