"""The pure half of the Pusher protocol, against the examples that its documentation works through."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tests.broadcasting.support import envelope
from tests.wire.test_envelope_schema import problems
from whyloop.broadcasting.pusher import (
    MAX_EVENTS,
    App,
    Channels,
    body_of,
    channel_data,
    is_socket_id,
    item,
    refusal,
    requests,
)
from whyloop.errors import ConfigurationError

APP = App("3", "278d425bdf160c739803", "7ad3773142a6692b25b8")
CHANNELS = Channels("private-agent.{session_id}")


def test_a_request_is_signed_as_in_the_documentation() -> None:
    body = rb'{"name":"foo","channels":["project-3"],"data":"{\"some\":\"data\"}"}'
    assert APP.query("POST", "/apps/3/events", body, 1353088179) == {
        "auth_key": "278d425bdf160c739803",
        "auth_timestamp": "1353088179",
        "auth_version": "1.0",
        "body_md5": "ec365a775a4cd0599faeb73354201b6f",
        "auth_signature": "da454824c97ba181a32ccc17a72625ba02771f50b50e1e7430e47a1f3f457e6c",
    }


def test_an_empty_body_has_no_hash() -> None:
    assert "body_md5" not in APP.query("GET", "/apps/3/channels", b"", 1353088179)


def test_a_subscriber_is_let_in_as_in_the_documentation() -> None:
    signature = "58df8b0c36d6982b82c3ecf6b4662e34fe8c25bba48f5369f135bf843651c3a4"
    assert APP.authorization("1234.1234", "private-foobar") == {"auth": f"278d425bdf160c739803:{signature}"}


def test_presence_is_signed_as_in_the_documentation() -> None:
    about = channel_data({"user_id": 10, "user_info": {"name": "Mr. Channels"}})
    signature = "31935e7d86dba64c2a90aed31fdc61869f9b22ba9d8863bba239c03ca481bc80"
    assert APP.authorization("1234.1234", "presence-foobar", about) == {
        "auth": f"278d425bdf160c739803:{signature}",
        "channel_data": '{"user_id":10,"user_info":{"name":"Mr. Channels"}}',
    }


def test_a_user_without_an_id_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="user_id"):
        channel_data({"name": "Ada"})


def test_the_secret_is_not_shown() -> None:
    assert APP.secret not in repr(APP)
    assert APP.secret not in repr(APP.__rich_repr__())


@pytest.mark.parametrize("text", ["1.2", "1234.1234", "9" * 20 + ".1"])
def test_a_socket_id_is_two_numbers(text: str) -> None:
    assert is_socket_id(text)


@pytest.mark.parametrize(
    "text", ["", "1", "1.", ".1", "1.2.3", "a.b", "1.2:private-x", "1.2\n", " 1.2", "١.٢"]
)
def test_anything_else_is_not_a_socket_id(text: str) -> None:
    assert not is_socket_id(text)


def test_a_channel_and_its_session_belong_together() -> None:
    assert CHANNELS.of("1a2b") == "private-agent.1a2b"
    assert CHANNELS.session_of("private-agent.1a2b") == "1a2b"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "private-agent.",
        "private-agent",
        "agent.1a",
        "presence-agent.1a",
        "private-agentx1a",
        "xprivate-agent.1",
        "private-agent.1a\n",
        "private-agent.1a b",
        "private-agent.1a:2",
        "private-agent.é",
        "private-agent." + "x" * 200,
    ],
)
def test_a_foreign_channel_has_no_session(name: str) -> None:
    assert CHANNELS.session_of(name) is None


@given(st.text())
def test_a_session_id_that_cannot_be_a_name_has_no_channel(session_id: str) -> None:
    channel = CHANNELS.of(session_id)
    assert channel is None or CHANNELS.session_of(channel) == session_id


@pytest.mark.parametrize(
    "pattern", ["", "private-agent", "{session_id}", "private-a b{session_id}", "private-é{session_id}"]
)
def test_a_pattern_that_makes_no_channels_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigurationError, match="invalid channel pattern"):
        Channels(pattern)


def test_a_public_pattern_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="private-"):
        Channels("agent.{session_id}")


def test_the_data_of_an_event_is_text() -> None:
    told = envelope("chunk", chunk="Hello", chunk_index=0, is_complete=False)
    (event,) = json.loads(body_of([item(told, CHANNELS, 9000)]))["batch"]
    assert event["channel"] == "private-agent.s1"
    assert event["name"] == "agent.stream.chunk"
    assert json.loads(event["data"]) == told


@given(st.lists(st.integers(0, 4000), max_size=40), st.integers(1000, 9000))
def test_every_request_is_small_enough_and_nothing_is_left_out(sizes: list[int], limit: int) -> None:
    texts = [
        envelope("chunk", seq, chunk='"' * size, chunk_index=0, is_complete=False)
        for seq, size in enumerate(sizes)
    ]
    items = [item(each, CHANNELS, limit) for each in texts]
    parts = list(requests(items, limit))
    assert [each for part in parts for each in part] == items
    for part in parts:
        assert 1 <= len(part) <= MAX_EVENTS
        assert len(body_of(part)) <= limit
        assert len(json.loads(body_of(part))["batch"]) == len(part)


# Envelopes that are too large


def fitted(told: dict[str, Any], limit: int) -> dict[str, Any]:
    """Return the envelope as it arrives in a request of at most this many bytes."""
    body = body_of([item(told, CHANNELS, limit)])
    assert len(body) <= limit
    (event,) = json.loads(body)["batch"]
    received: dict[str, Any] = json.loads(event["data"])
    return received


def status(**texts: str) -> dict[str, Any]:
    told = envelope("status", status="completed", previous_status="in_progress", stop_reason="completed")
    told["data"] |= {"resolved_by": "ToolCallPresenceCheck", "reason": "No tool calls", "step_count": 2}
    told["data"] |= {"error_message": None, "last_response": None, **texts}
    return told


def test_only_long_texts_are_cut() -> None:
    before = status(last_response="x" * 5000, error_message="why " * 20)
    received = fitted(before, 2000)
    data = received["data"]
    assert data["trimmed"] is True
    assert data["trimmed_fields"] == ["last_response"]
    assert data["error_message"] == "why " * 20
    assert data["last_response"].endswith("x…")
    assert 500 < len(data["last_response"]) < 2000
    assert problems(received) == []
    assert before == status(last_response="x" * 5000, error_message="why " * 20)


def test_texts_inside_arguments_are_cut_too() -> None:
    args = {"query": "q" * 3000, "deep": [{"text": "t" * 9000}], "limit": 3}
    started = envelope("agent.tool.started", tool="search", tool_call_id="call_1", args=args)
    received = fitted(started, 1500)
    assert received["data"]["trimmed_fields"] == ["args"]
    assert received["data"]["args"]["limit"] == 3
    assert received["data"]["tool_call_id"] == "call_1"
    assert problems(received) == []


def test_a_question_keeps_its_id() -> None:
    asked = envelope("agent.approval.requested", question_id="q" * 32, tool="pay", tool_call_id="call_1")
    asked["data"] |= {"question": "May it? " * 500, "args_summary": ""}
    received = fitted(asked, 700)
    assert received["data"]["question_id"] == "q" * 32
    assert received["data"]["trimmed_fields"] == ["question"]
    assert problems(received) == []


def test_very_many_small_parts_are_left_out() -> None:
    tools = [f"tool_{number}" for number in range(5000)]
    received = fitted(envelope("step", step_number=1, message_count=2, available_tools=tools), 1000)
    assert received["data"]["available_tools"] == []
    assert received["data"]["trimmed_fields"] == ["available_tools"]
    assert problems(received) == []


def test_a_very_long_name_of_an_argument_is_left_out() -> None:
    started = envelope("agent.tool.started", tool="t", tool_call_id="c", args={"k" * 10_000: 1})
    assert fitted(started, 1000)["data"]["args"] == {}


def test_an_envelope_that_is_too_large_outside_of_its_data_is_dropped() -> None:
    assert "too large" in item({**status(), "agent_id": "x" * 5000}, CHANNELS, 1000).problem


# What the two servers say; both were asked.


@pytest.mark.parametrize(
    "body", [b"{}", b'{"batch": {}}', b'{"batch":[{}]}', b'{"ok": true}', b'{"ok":true,"error":null}']
)
def test_this_is_how_a_server_says_yes(body: bytes) -> None:
    assert refusal(APP, 200, body) is None


@pytest.mark.parametrize(
    ("status", "body", "code", "retry", "words"),
    [
        (401, b"Authentication signature invalid.", 401, False, "key or the secret"),
        (200, b'{"error": "The secret authentication failed", "code": 401}', 401, False, "key or the secret"),
        (404, b"No matching application for ID [x].", 404, False, "app does not exist"),
        (413, b"Payload too large.", 413, False, "too large"),
        (
            200,
            b'{"error": "The event data should be less than 100 KB.", "code": 413}',
            413,
            False,
            "too large",
        ),
        (422, b'{"message": "The data field must be a string."}', 422, False, "must be a string"),
        (200, b'{"error": "odd"}', 500, True, "odd"),
        (200, b'{"code": 500}', 500, True, "HTTP 500"),
        (200, b"<html>Please sign in</html>", 200, True, "not a response of a Pusher server"),
        (200, b"", 200, True, "no explanation"),
        (200, b"[]", 200, True, "not a response of a Pusher server"),
        (301, b"", 301, False, "HTTP 301"),
        (429, b"", 429, True, "HTTP 429"),
        (500, b"\xff\xfe", 500, True, "HTTP 500"),
        (503, b"{}", 503, True, "HTTP 503"),
    ],
)
def test_this_is_how_a_server_says_no(status: int, body: bytes, code: int, retry: bool, words: str) -> None:
    refused = refusal(APP, status, body)
    assert refused is not None
    assert (refused.status, refused.retry) == (code, retry)
    assert words in str(refused)


def test_a_secret_in_the_answer_of_a_server_is_not_quoted() -> None:
    refused = refusal(APP, 401, f"wrong secret {APP.secret}".encode())
    assert APP.secret not in str(refused)
    assert "[removed]" in str(refused)
