"""generateContent against recordings of real answers."""

from __future__ import annotations

import json
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
from whyloop.models.gemini import GeminiContent
from whyloop.models.provider import Settings
from whyloop.values.messages import Message
from whyloop.values.model import FinishReason, ModelRequest, Usage

pytestmark = pytest.mark.parametrize("path", recordings("gemini"))

WORDS = {"STOP": FinishReason.STOP, "MAX_TOKENS": FinishReason.LENGTH, "SAFETY": FinishReason.CONTENT_FILTER}


def recorded_parts(recording: Recording) -> list[dict[str, Any]]:
    contents = [one["candidates"][0].get("content", {}) for one in recording.documents if "candidates" in one]
    return [part for content in contents for part in content.get("parts", [])]


def test_text_calls_usage_and_finish_equal_the_json(path: Path) -> None:
    recording = load(path)
    response = answer(GeminiContent(), recording)
    parts = recorded_parts(recording)
    calls = [part["functionCall"] for part in parts if "functionCall" in part]
    assert response.text == "".join(part.get("text", "") for part in parts if not part.get("thought"))
    assert response.reasoning == "".join(part["text"] for part in parts if part.get("thought"))
    assert [(call.name, call.arguments) for call in response.tool_calls] == [
        (call["name"], call.get("args", {})) for call in calls
    ]
    tokens = recording.documents[-1]["usageMetadata"]
    thought = tokens.get("thoughtsTokenCount", 0)
    assert response.usage == Usage(
        input=tokens["promptTokenCount"] + tokens.get("toolUsePromptTokenCount", 0),
        output=tokens.get("candidatesTokenCount", 0) + thought,
        cached=tokens.get("cachedContentTokenCount", 0),
        reasoning=thought,
    )
    assert response.usage.total == tokens["totalTokenCount"]
    word = recording.documents[-1]["candidates"][0]["finishReason"]
    assert response.source is not None
    assert response.source.finish_word == word
    assert response.finish_reason == (FinishReason.TOOL_CALLS if calls else WORDS[word])


def test_a_stream_cut_anywhere_is_the_same_stream(path: Path) -> None:
    recording = load(path)
    body = recording.body
    if not recording.is_stream:
        body = b"data: " + json.dumps(json.loads(body)).encode() + b"\r\n\r\n"
    whole = answer(GeminiContent(), recording)
    for chunks in cuts(body):
        response, shown = streamed(GeminiContent().reader(), chunks)
        assert comparable(response) == comparable(whole)
        assert response.text.startswith(shown)


def test_an_answer_goes_back_part_by_part(path: Path) -> None:
    recording = load(path)
    parts = recorded_parts(recording)
    sent = sent_back(answer(GeminiContent(), recording))
    assert joined(sent) == joined(parts)
    signed = [part for part in parts if "thoughtSignature" in part]
    assert [part for part in sent if "thoughtSignature" in part] == signed


def test_a_conversation_continues_as_it_was_recorded(path: Path) -> None:
    later = load(path).request["contents"]
    for recording in earlier(path):
        before = recording.request["contents"]
        if later[: len(before)] != before or len(later) == len(before):
            continue
        sent = sent_back(answer(GeminiContent(), recording))
        assert joined(sent) == joined(later[len(before)]["parts"])


def sent_back(response: Any) -> list[dict[str, Any]]:
    """The parts of an answer in the next request."""
    request = ModelRequest([Message.user("Go on."), message_of(response)])
    body = json.loads(GeminiContent().encode(request, Settings(model="gemini-2.5-flash")))
    assert [content["role"] for content in body["contents"]] == ["user", "model"]
    parts: list[dict[str, Any]] = body["contents"][1]["parts"]
    return parts


def joined(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Parts that can be compared: texts in one piece, without the ids that a client made up."""
    comparable_parts: list[dict[str, Any]] = []
    for part in parts:
        copy = {key: value for key, value in part.items() if value not in (None, "")}
        if signature := copy.get("thoughtSignature"):
            copy["thoughtSignature"] = signature.replace("-", "+").replace("_", "/")
        if call := copy.get("functionCall"):
            copy["functionCall"] = {"name": call["name"], "args": call.get("args") or {}}
        last = comparable_parts[-1] if comparable_parts else {}
        if "text" in copy and copy.keys() == last.keys() and "thoughtSignature" not in copy:
            last["text"] += copy["text"]
        elif copy:
            comparable_parts.append(copy)
    return comparable_parts
