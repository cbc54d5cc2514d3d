"""The slim snapshot: exactly the documented document, in as much detail as is asked for."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support import (
    START,
    empty_session,
    session,
    tool_failure,
)
from tests.wire.support import read, saying, slim
from tests.wire.test_slim_golden import golden
from whyloop import (
    AgentState,
    FilePart,
    ImagePart,
    Message,
    SlimAgentStateSerializer,
    SlimSerializationConfig,
    TextPart,
    ToolCall,
    Usage,
)
from whyloop.errors import ConfigurationError
from whyloop.values.log import Log
from whyloop.values.messages import CallChange
from whyloop.values.transitions import Queried

DOCUMENT = golden("standard")
Config = SlimSerializationConfig


def queried(message: Message, now: datetime = START) -> AgentState:
    return Queried(now, execution_id="e", message=message).apply_to(empty_session())


# Configuration


def test_the_presets_are_these() -> None:
    assert Config.standard() == Config() == Config(50, 1000, True, True, False)
    assert Config.minimal() == Config(10, 500, False, False, False)
    assert Config.full() == Config(None, None, True, True, True)
    assert all(preset.redaction for preset in (Config.minimal(), Config.standard(), Config.full()))


@pytest.mark.parametrize("field", ["max_messages", "max_content_length"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "10"])
def test_an_impossible_limit_is_an_error_that_names_it(field: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"invalid {field} .*: use a whole number greater than zero"):
        Config(**{field: value})


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"redaction": True}, "invalid redaction True: use a Redaction or None"),
        ({"include_all_steps": 1}, "invalid include_all_steps 1: use True or False"),
    ],
)
def test_an_impossible_choice_is_an_error_that_names_it(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigurationError, match=expected):
        Config(**options)


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Config().max_messages = 3  # type: ignore[misc]


# The document


KEYS = {
    "execution": "id step_count started_at updated_at cumulative_seconds",
    "usage": "input output total",
    "current_step": "step_number type has_tool_calls finish_reason errors usage duration_ms tool_calls",
    "last_continuation": "should_continue stop_reason resolved_by",
}
TOP = """
version agent_id parent_agent_id status execution usage messages current_step steps last_continuation
metadata truncated
"""


def test_the_document_has_the_documented_keys_in_their_order() -> None:
    assert list(DOCUMENT)[: len(TOP.split())] == TOP.split()
    for part, keys in KEYS.items():
        assert list(DOCUMENT[part])[: len(keys.split())] == keys.split()
    assert DOCUMENT["truncated"] == {"messages": 0, "contents": 0}


def test_the_empty_session_is_a_document_too() -> None:
    document = slim(empty_session())
    assert document["current_step"] is None
    assert document["last_continuation"] is None
    assert document["messages"] == document["steps"] == []
    assert read(document) == empty_session()


def test_a_message_names_its_calls_and_a_result_its_call() -> None:
    state = session(steps=1, tool_calls=1)
    user, assistant, result = slim(state)["messages"]
    assert user == {"role": "user", "content": "go"}
    assert assistant == {
        "role": "assistant",
        "content": "",
        "metadata": {"tool_calls": [{"id": "call_1_0", "name": "echo", "args": {}}]},
    }
    assert result["metadata"] == {"tool_call_id": "call_1_0", "tool_name": "echo"}


def test_arguments_that_are_left_out_are_read_back_as_none() -> None:
    state = queried(Message.user("go"))
    asked = [Message.assistant("", [ToolCall("1", "echo", {"value": "x"}), ToolCall("2", "echo", "{oops")])]
    state = replace(state, messages=state.messages.extended(asked))
    document = slim(state, include_tool_args=False)
    assert document["messages"][1]["metadata"]["tool_calls"] == [
        {"id": "1", "name": "echo"},
        {"id": "2", "name": "echo"},
    ]
    assert [wanted.arguments for wanted in read(document).messages[1].tool_calls] == [{}, {}]
    assert [wanted.arguments for wanted in read(slim(state)).messages[1].tool_calls] == [
        {"value": "x"},
        "{oops",
    ]


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        (session(steps=1, tool_calls=1), "tool_execution"),
        (session(steps=1, text="done"), "final"),
        (session(steps=1, tool_calls=1, failures=[tool_failure()]), "error"),
    ],
)
def test_the_current_step_has_its_type(state: AgentState, kind: str) -> None:
    step = slim(state)["current_step"]
    assert step["type"] == kind
    assert step["has_tool_calls"] == (kind != "final")
    assert step["errors"] == (kind == "error")


def test_steps_are_included_on_request() -> None:
    state = session(steps=3, tool_calls=1)
    document = slim(state, include_all_steps=True)
    assert [step["step_number"] for step in document["steps"]] == [1, 2, 3]
    assert read(document) == state


def test_metadata_can_be_left_out() -> None:
    state = session().with_metadata(customer="Ann")
    assert slim(state)["metadata"] == {"customer": "Ann"}
    document = slim(state, include_metadata=False)
    assert document["metadata"] == {}
    assert document["truncated"] == {"messages": 0, "contents": 0}


def test_parts_survive() -> None:
    parts: list[TextPart | ImagePart | FilePart] = [
        TextPart("What is this?"),
        ImagePart(data="aGVsbG8=", media_type="image/png"),
        FilePart(url="https://example.com/a.pdf", name="a.pdf"),
    ]
    state = queried(Message.user(parts))
    assert read(slim(state)).messages == state.messages


def test_times_are_in_utc() -> None:
    there = datetime(2026, 1, 16, 12, tzinfo=timezone(timedelta(hours=2)))
    state = queried(Message.user("hi"), there)
    assert slim(state)["execution"]["started_at"] == "2026-01-16T10:00:00Z"
    edge = datetime.min.replace(tzinfo=timezone(timedelta(hours=2)))
    state = queried(Message.user("hi"), edge)
    assert slim(state)["execution"]["started_at"] == "0001-01-01T00:00:00Z"


def test_extras_are_kept_for_the_current_query_only() -> None:
    signed = replace(Message.assistant("thinking"), extras={"anthropic": {"blocks": ["x" * 5000]}})
    state = replace(session(), messages=Log([signed, Message.user("and?"), signed]))
    documents = slim(state)["messages"]
    assert ["metadata" in document for document in documents] == [False, False, True]
    assert ["metadata" in document for document in slim(state, include_metadata=False)["messages"]] == [
        False
    ] * 3
    everything = SlimAgentStateSerializer(Config.full()).serialize(state)
    assert list(read(everything).messages) == list(state.messages)


def test_extras_are_left_out_if_their_message_was_changed() -> None:
    cut = replace(Message.assistant("x" * 2000), extras={"anthropic": {"blocks": []}})
    secret = replace(Message.assistant("ok"), extras={"openai": {"api_key": "abc"}})
    documents = slim(saying(Message.user("go"), cut, secret))["messages"]
    assert [document.get("metadata") for document in documents] == [None, None, None]


def test_the_metadata_of_a_message_is_kept() -> None:
    changed = ToolCall("1", "pay", {"amount": 7}, (CallChange("Cap", {"amount": 90}, "pay_all"),))
    thought = replace(Message.assistant("I pay.", [changed]), reasoning="They ask me to.")
    result = Message.result("paid", tool_call_id="1", tool="pay")
    half = replace(Message.assistant("It is"), incomplete=True)
    feedback = replace(Message.developer("Try again."), source=("Mine",))
    state = saying(Message.user("go"), thought, result, half, feedback)
    assert read(slim(state)).messages == state.messages
    (shown,) = slim(state)["messages"][1]["metadata"]["tool_calls"]
    assert shown["changes"] == [{"by": "Cap", "before": {"amount": 90}, "name": "pay_all"}]
    (without,) = slim(state, include_tool_args=False)["messages"][1]["metadata"]["tool_calls"]
    assert without["changes"] == [{"by": "Cap", "name": "pay_all"}]
    assert "reasoning" not in slim(state, include_metadata=False)["messages"][1]["metadata"]


def test_a_cost_is_decimal_text_and_null_where_it_is_unknown() -> None:
    assert slim(session())["usage"]["cost"] is None
    state = replace(session(steps=1), usage=Usage(1, 2, cost=Decimal("0.0015")))
    assert slim(state)["usage"] == {"input": 1, "output": 2, "total": 3, "cost": "0.0015"}
    assert slim(state)["current_step"]["usage"] == {"total": 0, "cost": None}
    assert read(slim(state)).usage == state.usage
