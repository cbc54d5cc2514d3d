"""Chat completions: requests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from whyloop.models.openai_chat import OpenAIChat, message_document
from whyloop.models.provider import Settings
from whyloop.values.messages import FilePart, ImagePart, Message, MessageRole, Part, TextPart, ToolCall
from whyloop.values.model import ModelRequest, ToolSpec

WEATHER = ToolSpec("weather", "The weather.", {"type": "object"})


def body_of(
    messages: Sequence[Message] = (Message.user("Hi"),),
    *,
    tools: tuple[ToolSpec, ...] = (),
    instructions: str | None = None,
    **settings: Any,
) -> dict[str, Any]:
    request = ModelRequest(messages, tools, instructions)
    body: dict[str, Any] = json.loads(OpenAIChat().encode(request, Settings(model="gpt-5", **settings)))
    return body


def call(arguments: Any = '{"city": "Paris"}', name: Any = "weather", **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **more}


def test_path_and_headers() -> None:
    wire = OpenAIChat()
    assert wire.path(Settings(model="gpt-5")) == "/chat/completions"
    assert wire.headers("secret") == {"authorization": "Bearer secret"}
    assert wire.headers(None) == {}


def test_messages_of_every_role() -> None:
    messages = [
        Message.system("Be brief."),
        Message.developer("Be kind."),
        Message.user("Hi"),
        Message.assistant("Let me see.", [ToolCall("a", "weather", {"city": "Paris"})]),
        Message.result("mild", tool_call_id="a", tool="weather"),
        Message.assistant(""),
    ]
    assert body_of(messages, instructions="You help.")["messages"] == [
        {"role": "system", "content": "You help."},
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Let me see.", "tool_calls": [call('{"city":"Paris"}', id="a")]},
        {"role": "tool", "tool_call_id": "a", "content": "mild"},
        {"role": "assistant", "content": ""},
    ]


def test_a_call_without_text_has_no_content() -> None:
    document = message_document(Message.assistant("", [ToolCall("a", "weather", '{"city": ')]))
    assert document["content"] is None
    assert document["tool_calls"][0]["function"]["arguments"] == "{}"


@pytest.mark.parametrize(
    ("part", "document"),
    [
        (TextPart("Look:"), {"type": "text", "text": "Look:"}),
        (
            ImagePart(url="https://a.b/c.png"),
            {"type": "image_url", "image_url": {"url": "https://a.b/c.png"}},
        ),
        (
            ImagePart(data="QUJD", media_type="image/png"),
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}},
        ),
        (
            FilePart(data="QUJD", media_type="application/pdf", name="a.pdf"),
            {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,QUJD"}},
        ),
    ],
)
def test_images_and_files(part: Part, document: dict[str, Any]) -> None:
    assert message_document(Message.user([part])) == {"role": "user", "content": [document]}


def test_settings() -> None:
    schema = {"type": "object", "title": "Place"}
    body = body_of(
        tools=(WEATHER,),
        temperature=0.0,
        max_tokens=9,
        parallel_tool_calls=False,
        response_format=schema,
        extra={"seed": 7},
    )
    del body["messages"]
    assert body == {
        "model": "gpt-5",
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.0,
        "max_completion_tokens": 9,
        "parallel_tool_calls": False,
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "weather",
                    "description": "The weather.",
                    "parameters": {"type": "object"},
                },
            }
        ],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "Place", "schema": schema, "strict": True},
        },
        "seed": 7,
    }


def test_quirks() -> None:
    quirks = frozenset({"max_tokens", "no_stream_options", "tool_choice_any"})
    body = body_of(tools=(WEATHER,), max_tokens=9, tool_choice="required", quirks=quirks)
    assert (body["max_tokens"], body["tool_choice"]) == (9, "any")
    assert "stream_options" not in body
    assert "stream_options" not in body_of(stream=False)


@pytest.mark.parametrize(
    ("choice", "document"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ("weather", {"type": "function", "function": {"name": "weather"}}),
    ],
)
def test_tool_choice(choice: str, document: Any) -> None:
    assert body_of(tools=(WEATHER,), tool_choice=choice)["tool_choice"] == document
    assert "tool_choice" not in body_of(tool_choice=choice)


def test_fields_of_another_provider_are_not_sent() -> None:
    message = Message(MessageRole.ASSISTANT, "Hi", extras={"gemini": {"reasoning_details": ["x"]}})
    assert message_document(message) == {"role": "assistant", "content": "Hi"}
