"""Every provider API on a faulty server: complete answers only, and classified failures."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.models.faulty_server import (
    DONE,
    KEY,
    FaultyServer,
    assert_model_failed,
    chat_events,
    chunked,
    cut,
    event,
    hang,
    head,
    say,
    until_close,
    whole,
)
from tests.support import QUICK
from whyloop import Agent, AgentState, ErrorPolicy
from whyloop.models import load
from whyloop.testing import FakeClock


def named(*documents: dict[str, Any]) -> list[bytes]:
    return [event(document, name=document["type"]) for document in documents]


MESSAGE = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": []}
ANTHROPIC = named(
    {"type": "message_start", "message": {**MESSAGE, "usage": {"input_tokens": 3, "output_tokens": 1}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "ping"},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Grüße"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 4}},
    {"type": "message_stop"},
)
PART = {"type": "output_text", "text": "Grüße", "annotations": []}
ITEM = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [PART]}
RESPONSE = {"id": "resp_1", "object": "response", "model": "m", "status": "completed", "output": [ITEM]}
WHERE = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
RESPONSES = named(
    {"type": "response.created", "response": {**RESPONSE, "status": "in_progress", "output": []}},
    {"type": "response.output_item.added", "output_index": 0, "item": {**ITEM, "content": []}},
    {"type": "response.output_text.delta", **WHERE, "delta": "Grüße"},
    {"type": "response.output_text.done", **WHERE, "text": "Grüße"},
    {"type": "response.output_item.done", "output_index": 0, "item": ITEM},
    {"type": "response.completed", "response": RESPONSE},
)
GEMINI = [
    event({"candidates": [{"content": {"role": "model", "parts": [{"text": "Grü"}]}, "index": 0}]}),
    event(
        {
            "candidates": [{"content": {"role": "model", "parts": [{"text": "ße"}]}, "finishReason": "STOP"}],
            "usageMetadata": {"promptTokenCount": 3, "candidatesTokenCount": 2},
        }
    ),
]
CHAT = [chat_events("Grü", "ße"), DONE]

STREAMS = {"openai": CHAT, "openai-responses": RESPONSES, "anthropic": ANTHROPIC, "gemini": GEMINI}

ERRORS: dict[str, Callable[[str, str, int], bytes]] = {
    "openai": lambda words, kind, code: event({"error": {"message": words, "type": kind, "code": code}}),
    "openai-responses": lambda words, kind, code: event(
        {"type": "error", "code": kind, "message": words, "param": None}, name="error"
    ),
    "anthropic": lambda words, kind, code: event(
        {"type": "error", "error": {"type": kind, "message": words}}, name="error"
    ),
    "gemini": lambda words, kind, code: event({"error": {"code": code, "message": words, "status": kind}}),
}

every_provider = pytest.mark.parametrize("provider", STREAMS)


async def run_at(
    server: FaultyServer,
    provider: str,
    *,
    timeout: float = 5.0,
    **options: Any,
) -> AgentState:
    model = load(f"{provider}:m", base_url=server.base_url, api_key=KEY, timeout=timeout, retries=0)
    state = await Agent(model, **options).run("Hi")
    assert KEY not in json.dumps(state.to_dict()) + state.explain()
    return state


@every_provider
async def test_a_whole_stream_is_an_answer(provider: str) -> None:
    async with FaultyServer(say(chunked(b"".join(STREAMS[provider]), 7))) as server:
        state = await run_at(server, provider)
    assert (state.status, state.last_response) == ("completed", "Grüße"), state.explain()
    assert KEY in str(server.requests[0].headers)
    assert KEY not in server.requests[0].path


@every_provider
@pytest.mark.parametrize("framed", [until_close, chunked], ids=["until-close", "chunked"])
async def test_a_stream_that_is_cut_is_all_or_nothing(provider: str, framed: Any) -> None:
    response = framed(b"".join(STREAMS[provider]))
    body_starts = response.index(b"\r\n\r\n") + 4
    async with FaultyServer(cut()) as server:
        for size in range(body_starts, len(response), 30 if QUICK else 3):
            server.behaviours = [cut(response[:size])]
            state = await run_at(server, provider)
            if state.status == "completed":
                assert state.last_response == "Grüße", f"cut at {size}"
            else:
                assert_model_failed(state, "validation")


@every_provider
async def test_a_stream_without_its_end_is_refused(provider: str) -> None:
    """Closed in good order, but too early."""
    events = STREAMS[provider][:1] if provider != "openai" else [chat_events("Grü", finish=None)]
    async with FaultyServer(say(chunked(b"".join(events)))) as server:
        assert_model_failed(await run_at(server, provider), "validation")


@every_provider
async def test_a_connection_that_stays_open_after_the_last_event(provider: str) -> None:
    async with FaultyServer(hang(chunked(b"".join(STREAMS[provider]))[:-5])) as server:
        state = await run_at(server, provider)
    assert (state.status, state.last_response) == ("completed", "Grüße"), state.explain()


@every_provider
async def test_a_stream_that_hangs(provider: str) -> None:
    async with FaultyServer(hang(head(connection="close") + STREAMS[provider][0])) as server:
        if provider == "openai":
            server.behaviours = [hang(head(connection="close") + chat_events("Grü", finish=None))]
        state = await run_at(server, provider, timeout=0.25)
        assert_model_failed(state, "timeout", f"{provider}:m gave no complete answer")


@every_provider
async def test_an_error_inside_a_stream(provider: str) -> None:
    stream = STREAMS[provider][0] if provider != "openai" else chat_events("Grü", finish=None)
    stream += ERRORS[provider](f"it broke, {KEY}", "api_error", 500)
    async with FaultyServer(say(chunked(stream))) as server:
        assert_model_failed(await run_at(server, provider), "model", "it broke, [removed]")


@every_provider
async def test_an_overload_inside_a_stream(provider: str) -> None:
    kind = "server_overloaded" if provider == "openai-responses" else "overloaded_error"
    async with FaultyServer(say(chunked(ERRORS[provider]("Overloaded", kind, 529)))) as server:
        assert_model_failed(await run_at(server, provider), "rate_limit", "Overloaded")


@every_provider
async def test_an_overload_inside_a_stream_has_what_the_headers_tell(provider: str) -> None:
    kind = "server_overloaded" if provider == "openai-responses" else "overloaded_error"
    busy = chunked(ERRORS[provider]("Overloaded", kind, 529), x_request_id="req_7", retry_after="7")
    clock = FakeClock()
    async with FaultyServer(say(busy), say(chunked(b"".join(STREAMS[provider])))) as server:
        state = await run_at(server, provider, error_policy=ErrorPolicy.retry_tool_errors(), clock=clock)
    assert (state.status, clock.sleeps) == ("completed", [7.0]), state.explain()
    assert state.steps[0].failures[0].details["request_id"] == "req_7"


@every_provider
async def test_no_half_of_a_key_is_left_of_a_long_error(provider: str) -> None:
    async with FaultyServer(cut()) as server:
        for gap in range(230, 310, 3):
            error = ERRORS[provider]("a " * gap + KEY, "api_error", 500)
            server.behaviours = [say(chunked(error))]
            state = await run_at(server, provider)
            assert KEY[:6] not in state.steps[0].failures[0].message, f"after {gap}"


@every_provider
@pytest.mark.parametrize("status", [429, 503, 529])
async def test_patience_that_is_asked_for_is_given(provider: str, status: int) -> None:
    busy = whole({"type": "error", "error": {"message": "busy", "type": "x"}}, status, retry_after="7")
    clock = FakeClock()
    async with FaultyServer(say(busy), say(chunked(b"".join(STREAMS[provider])))) as server:
        state = await run_at(server, provider, error_policy=ErrorPolicy.retry_tool_errors(), clock=clock)
    assert (state.status, clock.sleeps) == ("completed", [7.0]), state.explain()
    assert state.steps[0].failures[0].message == f"HTTP {status}: busy"


@every_provider
@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"", "application/json"),
        (b"{}", "application/json"),
        (b"[]", "application/json"),
        (b"7", "application/json"),
        (b'{"a": "\xff"}', "application/json"),
        (b"data: {rubbish}\n\n", "text/event-stream"),
        (b"data: 7\n\n", "text/event-stream"),
        (b"data: []\n\n", "text/event-stream"),
        (b'data: {"a": "\xff"}\n\n', "text/event-stream"),
    ],
)
async def test_a_body_without_an_answer(provider: str, body: bytes, content_type: str) -> None:
    async with FaultyServer(say(whole(body, content_type=content_type))) as server:
        assert_model_failed(await run_at(server, provider), "validation")


@every_provider
@pytest.mark.parametrize("content_type", ["text/html", "text/event-stream", "application/json"])
async def test_a_web_page_names_the_address_and_is_not_retried(provider: str, content_type: str) -> None:
    page = b"<!doctype html><title>Hello</title>"
    async with FaultyServer(say(whole(page, content_type=content_type))) as server:
        policy = ErrorPolicy.retry_all()
        state = await run_at(server, provider, error_policy=policy, clock=FakeClock())
        assert_model_failed(state, "model", f"{server.base_url}/", "answered with a web page")
        assert len(server.requests) == 1
    assert not state.steps[0].failures[0].retryable


@every_provider
async def test_a_status_with_a_web_page(provider: str) -> None:
    async with FaultyServer(say(whole(b"<html>Bad gateway</html>", 502, "text/html"))) as server:
        assert_model_failed(await run_at(server, provider), "model", "HTTP 502")
