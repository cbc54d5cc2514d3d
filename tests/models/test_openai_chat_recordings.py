"""Chat completions against recordings of real answers of OpenAI and compatible hosts."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.models.recorded import (
    Recording,
    answer,
    comparable,
    cuts,
    earlier,
    load,
    message_of,
    recordings,
    streamed,
)
from whyloop.errors import ModelError, RateLimitError, ResponseValidationError
from whyloop.models.openai_chat import OpenAIChat, message_document
from whyloop.models.provider import Settings
from whyloop.models.response import http_error
from whyloop.values.messages import Message, ToolCall
from whyloop.values.model import FinishReason, ModelRequest, Usage

pytestmark = pytest.mark.parametrize("path", recordings("openai_chat"))


def recorded_message(recording: Recording) -> dict[str, Any]:
    """The message in a body; that of a stream put together from its pieces."""
    if not recording.is_stream:
        message: dict[str, Any] = recording.documents[0]["choices"][0]["message"]
        return message
    deltas = [choice["delta"] for one in recording.documents for choice in one["choices"]]
    pieces = [piece for delta in deltas for piece in delta.get("tool_calls") or []]
    calls: dict[int, dict[str, Any]] = {}
    for piece in pieces:
        call = calls.setdefault(piece["index"], {"id": piece.get("id"), "function": {"arguments": ""}})
        call["function"].setdefault("name", piece["function"].get("name"))
        call["function"]["arguments"] += piece["function"].get("arguments") or ""
    return {
        "content": "".join(delta.get("content") or "" for delta in deltas),
        "reasoning": "".join(
            delta.get("reasoning") or delta.get("reasoning_content") or "" for delta in deltas
        ),
        "tool_calls": list(calls.values()),
    }


def is_answer(recording: Recording) -> bool:
    return recording.status == 200 and "choices" in recording.documents[0]


def test_text_calls_usage_and_finish_equal_the_json(path: Path) -> None:
    recording = load(path)
    if not is_answer(recording):
        return
    response, message = answer(OpenAIChat(), recording), recorded_message(recording)
    assert response.text == plain(message.get("content"))
    assert response.reasoning == (message.get("reasoning") or message.get("reasoning_content") or "")
    assert [(call.name, call.arguments) for call in response.tool_calls] == [
        (call["function"]["name"], json.loads(call["function"].get("arguments") or "{}"))
        for call in message.get("tool_calls") or []
    ]
    for call, said in zip(response.tool_calls, message.get("tool_calls") or [], strict=True):
        assert call.id == said["id"] or (not said["id"] and call.id)
    counted = [one["usage"] for one in recording.documents if one.get("usage")][-1]
    details = counted.get("prompt_tokens_details")
    # Where a host hides its reasoning, only the total knows of it.
    hidden = counted["total_tokens"] - counted["prompt_tokens"] - counted["completion_tokens"]
    assert response.usage == Usage(
        input=counted["prompt_tokens"],
        output=counted["completion_tokens"] + hidden,
        # Hosts have other names for it too; those have a test of their own.
        cached=(details.get("cached_tokens") or 0) if details else response.usage.cached,
        reasoning=(counted.get("completion_tokens_details") or {}).get("reasoning_tokens") or hidden,
        cost=Decimal(str(counted["cost"])) if "cost" in counted else None,
        cache_writes=(details or {}).get("cache_write_tokens") or 0,
    )
    assert response.usage.total == counted["total_tokens"]
    (word,) = {
        choice["finish_reason"]
        for one in recording.documents
        for choice in one["choices"]
        if choice.get("finish_reason")
    }
    assert response.finish_reason == FinishReason(word)
    assert response.source is not None
    assert response.source.finish_word == word


def test_a_failed_exchange_is_a_classified_error(path: Path) -> None:
    recording = load(path)
    if is_answer(recording):
        return
    if recording.status == 200:
        with pytest.raises(ResponseValidationError):
            answer(OpenAIChat(), recording)
        return
    error = http_error(recording.status, recording.headers, recording.body)
    assert type(error) is (RateLimitError if recording.status == 429 else ModelError)
    assert error.status == recording.status
    assert recording.documents[0]["error"]["message"] in str(error)


def test_a_stream_cut_anywhere_is_the_same_stream(path: Path) -> None:
    recording = load(path)
    if not (recording.is_stream and is_answer(recording)):
        return
    whole = answer(OpenAIChat(), recording)
    for chunks in cuts(recording.body):
        response, shown = streamed(OpenAIChat().reader(), chunks)
        assert comparable(response) == comparable(whole)
        assert response.text.startswith(shown)


def test_a_conversation_continues_as_it_was_recorded(path: Path) -> None:
    later = load(path).request["messages"]
    for recording in earlier(path):
        before = recording.request["messages"]
        if not is_answer(recording) or later[: len(before)] != before or len(later) == len(before):
            continue
        recorded, sent = later[len(before)], message_document(message_of(answer(OpenAIChat(), recording)))
        assert sent["role"] == recorded["role"] == "assistant"
        assert spoken(sent.get("content")) == spoken(recorded.get("content"))
        assert called(sent) == called(recorded)
        for key in ("reasoning_content", "reasoning_details"):
            assert sent.get(key) == recorded.get(key)


def test_recorded_messages_are_sent_as_they_were(path: Path) -> None:
    """Our own values for a recorded conversation, encoded, say what was recorded."""
    recorded = load(path).request["messages"]
    messages = [value_of(message) for message in recorded]
    body = json.loads(OpenAIChat().encode(ModelRequest(messages), Settings(model="m")))
    for sent, message in zip(body["messages"], recorded, strict=True):
        assert sent["role"] == message["role"]
        assert sent.get("tool_call_id") == message.get("tool_call_id")
        assert plain(sent.get("content")) == plain(message.get("content"))
        assert called(sent) == called(message)


def value_of(message: dict[str, Any]) -> Message:
    calls = [
        ToolCall(one["id"], one["function"]["name"], ToolCall.parse_arguments(one["function"]["arguments"]))
        for one in message.get("tool_calls") or []
    ]
    text = plain(message.get("content"))
    match message["role"]:
        case "tool":
            return Message.result(text, tool_call_id=message["tool_call_id"], tool="a_tool")
        case "assistant":
            return Message.assistant(text, calls)
        case "system":
            return Message.system(text)
        case "developer":
            return Message.developer(text)
        case _:
            return Message.user(text)


def plain(content: Any) -> str:
    """The language in a content, whichever form it has."""
    if isinstance(content, list):
        return "".join(part["text"] for part in content if part.get("type") == "text")
    return content or ""


def spoken(content: Any) -> str:
    """The language without the thoughts that a host wrote into it: what recorded this took them out."""
    return re.sub(r"<think>.*?</think>", "", plain(content), flags=re.DOTALL)


def called(message: dict[str, Any]) -> list[tuple[str, str, Any]]:
    return [
        (one["id"], one["function"]["name"], json.loads(one["function"]["arguments"] or "{}"))
        for one in message.get("tool_calls") or []
    ]
