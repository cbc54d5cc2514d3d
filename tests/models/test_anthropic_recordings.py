"""Anthropic's messages against recordings of real answers."""

from __future__ import annotations

import base64
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.models.recorded import (
    Recording,
    answer,
    cuts,
    earlier,
    load,
    message_of,
    recordings,
    streamed,
)
from whyloop.errors import ModelError, RateLimitError, RequestTimeoutError, ResponseValidationError
from whyloop.models.anthropic import AnthropicMessages
from whyloop.models.provider import Settings
from whyloop.models.response import http_error
from whyloop.values.messages import FilePart, ImagePart, Message, Part, TextPart
from whyloop.values.model import ModelRequest

FINISH = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls"}
OPTIONS = ("tools", "thinking", "output_config", "mcp_servers", "metadata", "system", "cache_control")


def those(wanted: Callable[[Recording], object]) -> list[Any]:
    """The recordings of a kind."""
    return [param for param in recordings("anthropic_messages") if wanted(load(param.values[0]))]


def is_answer(recording: Recording) -> bool:
    return recording.status == 200 and (recording.is_stream or "content" in recording.documents[0])


answers = pytest.mark.parametrize("path", those(is_answer))
streams = pytest.mark.parametrize("path", those(lambda found: is_answer(found) and found.is_stream))


def message_in(recording: Recording) -> dict[str, Any]:
    """The complete message of a recording, put together by means of our own."""
    message: dict[str, Any] = {}
    for event in recording.documents:
        if event["type"] == "message":
            return event
        if event["type"] == "message_start":
            message = event["message"]
        elif event["type"] == "content_block_start":
            message["content"].append({**event["content_block"], "json": ""})
        elif event["type"] == "content_block_delta":
            add(message["content"][event["index"]], event["delta"])
        elif event["type"] == "message_delta":
            message |= event["delta"]
            message["usage"] |= event["usage"]
    for block in message["content"]:
        if written := block.pop("json"):
            block["input"] = json.loads(written)
    return message


def add(block: dict[str, Any], delta: dict[str, Any]) -> None:
    for key, value in delta.items():
        if key == "partial_json":
            block["json"] += value
        elif key == "citation":
            block["citations"].append(value)
        elif key != "type":
            block[key] = block.get(key, "") + value


def sent(messages: list[Message]) -> list[dict[str, Any]]:
    body = AnthropicMessages().encode(ModelRequest(messages), Settings(model="claude"))
    turns: list[dict[str, Any]] = json.loads(body)["messages"]
    return turns


def bare(value: Any, *less: str) -> Any:
    """The value without nulls and without what does not matter when it is sent back."""
    if isinstance(value, list):
        return [bare(item, *less) for item in value]
    if not isinstance(value, dict):
        return value
    return {key: bare(item, *less) for key, item in value.items() if item is not None and key not in less}


@answers
def test_the_response_equals_the_recording(path: Path) -> None:
    recording = load(path)
    response, message = answer(AnthropicMessages(), recording), message_in(recording)
    blocks, usage = message["content"], message["usage"]
    read = usage.get("cache_read_input_tokens") or 0
    written = usage.get("cache_creation_input_tokens") or 0

    assert response.text == "".join(block["text"] for block in blocks if block["type"] == "text")
    assert response.reasoning == "".join(b["thinking"] for b in blocks if b["type"] == "thinking")
    assert [(call.id, call.name, call.arguments) for call in response.tool_calls] == [
        (block["id"], block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"
    ]
    assert response.usage.input == usage["input_tokens"] + read + written
    assert response.usage.output == usage["output_tokens"]
    assert response.usage.cached == read
    assert response.finish_reason == FINISH.get(message["stop_reason"], "other")
    assert response.source is not None
    assert response.source.finish_word == message["stop_reason"]
    assert (response.source.model, response.source.response_id) == (message["model"], message["id"])


@answers
def test_an_answer_sent_back_is_the_row_of_blocks_that_it_was(path: Path) -> None:
    recording = load(path)
    expected = [block for block in message_in(recording)["content"] if block.get("text", "x").strip()]
    stored = msgspec.json.encode(message_of(answer(AnthropicMessages(), recording)))

    [turn] = sent([msgspec.json.decode(stored, type=Message)])

    assert turn["role"] == "assistant"
    assert bare(turn["content"], "caller") == bare(expected, "caller")


@streams
def test_a_stream_may_come_in_any_pieces(path: Path) -> None:
    body = load(path).body
    response, shown = streamed(AnthropicMessages().reader(), [body])

    assert shown == response.text
    for pieces in cuts(body):
        assert streamed(AnthropicMessages().reader(), pieces) == (response, shown)


@streams
def test_a_stream_that_ends_early_is_refused(path: Path) -> None:
    body = load(path).body.rstrip()
    boundaries = [match.end() for match in re.finditer(rb"\n\n", body)]
    anywhere = random.Random(7).sample(range(body.rindex(b"data:")), 50)

    for cut in [0, *boundaries, *anywhere]:
        with pytest.raises(ResponseValidationError):
            streamed(AnthropicMessages().reader(), [body[:cut]])


@pytest.mark.parametrize("path", those(lambda recording: recording.status != 200))
def test_an_error_has_the_message_of_the_provider(path: Path) -> None:
    recording = load(path)
    error = http_error(recording.status, recording.headers, recording.body)
    kinds = {429: RateLimitError, 503: RateLimitError, 529: RateLimitError, 408: RequestTimeoutError}

    assert type(error) is kinds.get(recording.status, ModelError)
    assert error.status == recording.status
    assert recording.documents[0]["error"]["message"][:200] in str(error)


@answers
def test_the_next_request_agrees_with_the_recorded_one(path: Path) -> None:
    recorded = [turn for turn in load(path).request["messages"] if turn["role"] == "assistant"]
    # Citations, that the recorded client did not care to send back, are ours to keep.
    less = ("cache_control", "citations")
    for before in filter(is_answer, earlier(path)):
        [turn] = sent([message_of(answer(AnthropicMessages(), before))])
        goes_on = load(path).request["messages"][: len(before.request["messages"])]
        if recorded and bare(goes_on, *less) == bare(before.request["messages"], *less):
            assert bare(turn, *less) in [bare(other, *less) for other in recorded]


@answers
def test_a_recorded_request_can_be_made(path: Path) -> None:
    request = load(path).request
    choice: dict[str, str] = request.get("tool_choice") or {}
    kind = choice.get("type", "")
    names = {"": None, "any": "required", "tool": choice.get("name")}
    settings = Settings(
        model=request["model"],
        stream=request["stream"],
        max_tokens=request["max_tokens"],
        tool_choice=names.get(kind, kind),
        response_format=(request.get("output_config") or {}).get("format", {}).get("schema"),
        extra={key: request[key] for key in OPTIONS if key in request},
    )
    body = json.loads(AnthropicMessages().encode(ModelRequest(()), settings))

    assert bare({**body, "messages": []}) == bare({**request, "messages": []})


@answers
def test_a_recorded_history_is_sent_as_it_was(path: Path) -> None:
    turns = load(path).request["messages"]
    if not any(word in json.dumps(turns) for word in ("tool_reference", "tool_addition")):
        history = [message for turn in turns for message in messages_of(turn)]

        assert bare(sent(history), "is_error") == bare(plain(turns), "cache_control", "is_error")


def messages_of(turn: dict[str, Any]) -> list[Message]:
    """A recorded turn as the messages of a session."""
    if turn["role"] == "assistant":
        return [message_of(AnthropicMessages().decode(json.dumps(turn).encode()))]
    blocks = (
        [{"type": "text", "text": turn["content"]}] if isinstance(turn["content"], str) else turn["content"]
    )
    results = [block for block in blocks if block["type"] == "tool_result"]
    parts = [part_of(block) for block in blocks if block["type"] != "tool_result"]
    said = [Message.user(parts)] if parts else []
    return [
        Message.result(plain(block["content"]), tool_call_id=block["tool_use_id"], tool="")
        for block in results
    ] + said


def part_of(block: dict[str, Any]) -> Part:
    if block["type"] == "text":
        return TextPart(block["text"])
    source = block["source"]
    data = (
        base64.b64encode(source["data"].encode()).decode() if source["type"] == "text" else source.get("data")
    )
    kind = ImagePart if block["type"] == "image" else FilePart
    return kind(url=source.get("url"), data=data, media_type=source.get("media_type"))


def plain(value: Any) -> Any:
    """The value with a result that is one text block as the text itself."""
    if isinstance(value, list):
        is_text = len(value) == 1 and value[0].keys() == {"type", "text"}
        return value[0]["text"] if is_text else [plain(item) for item in value]
    if isinstance(value, dict) and value.get("type") == "tool_result":
        return {**value, "content": plain(value["content"])}
    if isinstance(value, dict) and isinstance(value.get("content"), list) and "role" in value:
        return {**value, "content": [plain(block) for block in value["content"]]}
    return value
