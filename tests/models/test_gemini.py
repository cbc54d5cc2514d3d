"""generateContent: requests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from whyloop.models.gemini import GeminiContent, encode_message
from whyloop.models.provider import Settings, new_call_id
from whyloop.values.messages import FilePart, ImagePart, Message, MessageRole, Part, TextPart, ToolCall
from whyloop.values.model import ModelRequest, ToolSpec

WEATHER = ToolSpec("weather", "The weather.", {"type": "object", "$defs": {}, "additionalProperties": False})


def body_of(
    messages: Sequence[Message] = (),
    *,
    tools: tuple[ToolSpec, ...] = (),
    instructions: str | None = None,
    **settings: Any,
) -> dict[str, Any]:
    request = ModelRequest(messages, tools, instructions)
    body = GeminiContent().encode(request, Settings(**{"model": "gemini-2.5-pro", **settings}))
    document: dict[str, Any] = json.loads(body)
    return document


def parts_of(message: Message) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = body_of([message])["contents"][0]["parts"]
    return parts


@pytest.mark.parametrize(
    ("model", "stream", "path"),
    [
        ("gemini-3-pro", True, "/models/gemini-3-pro:streamGenerateContent?alt=sse"),
        ("gemini-3-pro", False, "/models/gemini-3-pro:generateContent"),
        ("tunedModels/mine", False, "/tunedModels/mine:generateContent"),
        ("models/gemini-3-pro", False, "/models/gemini-3-pro:generateContent"),
    ],
)
def test_path(model: str, stream: bool, path: str) -> None:
    assert GeminiContent().path(Settings(model=model, stream=stream)) == path


def test_the_key_goes_into_a_header() -> None:
    assert GeminiContent().headers("secret") == {"x-goog-api-key": "secret"}
    assert GeminiContent().headers(None) == {}


def test_a_question_needs_nothing_but_contents() -> None:
    assert body_of([Message.user("Hi")]) == {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]}


def test_instructions_and_system_messages_are_the_system_instruction() -> None:
    messages = [
        Message.system("Be brief."),
        Message.user("Hi"),
        Message.system("Be kind."),
        Message.user("there"),
    ]
    body = body_of(messages, instructions="You help.")
    assert body["systemInstruction"] == {
        "parts": [{"text": "You help."}, {"text": "Be brief."}, {"text": "Be kind."}]
    }
    assert body["contents"] == [{"role": "user", "parts": [{"text": "Hi"}, {"text": "there"}]}]


def test_instructions_alone_still_make_a_turn() -> None:
    assert body_of(instructions="Tell a joke.")["contents"] == [{"role": "user", "parts": [{"text": ""}]}]


def test_an_empty_answer_is_still_a_turn() -> None:
    body = body_of([Message.user("Hi"), Message.assistant(""), Message.user("Well?")])
    assert body["contents"][1] == {"role": "model", "parts": [{"text": ""}]}


def test_neighbours_of_one_role_are_one_turn() -> None:
    calls = [ToolCall("a", "weather", {"city": "Paris"}), ToolCall("b", "weather", {"city": "Rome"})]
    messages = [
        Message.user("One."),
        Message.user("Two."),
        Message.assistant("Let me see.", calls),
        Message.result("mild", tool_call_id="a", tool="weather"),
        Message.result("hot", tool_call_id="b", tool="weather"),
        Message.user("And now?"),
    ]
    contents = body_of(messages)["contents"]
    assert [content["role"] for content in contents] == ["user", "model", "user"]
    assert contents[0]["parts"] == [{"text": "One."}, {"text": "Two."}]
    assert contents[1]["parts"] == [
        {"text": "Let me see."},
        {"functionCall": {"id": "a", "name": "weather", "args": {"city": "Paris"}}},
        {"functionCall": {"id": "b", "name": "weather", "args": {"city": "Rome"}}},
    ]
    assert [list(part) for part in contents[2]["parts"]] == [
        ["functionResponse"],
        ["functionResponse"],
        ["text"],
    ]


def test_an_id_that_was_made_up_is_not_sent() -> None:
    made_up = new_call_id()
    asked = parts_of(Message.assistant("", [ToolCall(made_up, "weather", {})]))
    answered = parts_of(Message.result("mild", tool_call_id=made_up, tool="weather"))
    assert asked == [{"functionCall": {"name": "weather", "args": {}}}]
    assert answered == [{"functionResponse": {"name": "weather", "response": {"result": "mild"}}}]


@pytest.mark.parametrize(
    ("text", "response"),
    [
        ("mild", {"result": "mild"}),
        ('{"degrees": 21}', {"degrees": 21}),
        ("[1, 2]", {"result": "[1, 2]"}),
        ("{not json", {"result": "{not json"}),
        ("", {"result": ""}),
        ("Error: no such city", {"error": "no such city"}),
    ],
)
def test_a_result_is_always_an_object(text: str, response: dict[str, Any]) -> None:
    (part,) = parts_of(Message.result(text, tool_call_id="a", tool="weather"))
    assert part["functionResponse"] == {"id": "a", "name": "weather", "response": response}


def test_arguments_that_were_no_object_still_make_one() -> None:
    (part,) = parts_of(Message.assistant("", [ToolCall("a", "weather", '{"city": ')]))
    assert part["functionCall"]["args"] == {"arguments": '{"city": '}


@pytest.mark.parametrize(
    ("part", "document"),
    [
        (TextPart("Look:"), {"text": "Look:"}),
        (ImagePart(data="QUJD"), {"inlineData": {"mimeType": "image/jpeg", "data": "QUJD"}}),
        (
            ImagePart(data="iVBORw0KGgo="),
            {"inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgo="}},
        ),
        (
            ImagePart(data="QUJD", media_type="image/png"),
            {"inlineData": {"mimeType": "image/png", "data": "QUJD"}},
        ),
        (
            ImagePart(url="data:image/webp;base64,QUJD"),
            {"inlineData": {"mimeType": "image/webp", "data": "QUJD"}},
        ),
        (
            FilePart(url="data:text/plain;charset=utf-8;base64,QUJD"),
            {"inlineData": {"mimeType": "text/plain", "data": "QUJD"}},
        ),
        (
            FilePart(data="QUJD", name="a.pdf"),
            {"inlineData": {"mimeType": "application/pdf", "data": "QUJD"}},
        ),
        (
            FilePart(data="QUJD"),
            {"inlineData": {"mimeType": "application/octet-stream", "data": "QUJD"}},
        ),
        (ImagePart(url="https://a.b/c.png"), {"fileData": {"fileUri": "https://a.b/c.png"}}),
        (
            FilePart(url="gs://a/b", media_type="video/mp4"),
            {"fileData": {"fileUri": "gs://a/b", "mimeType": "video/mp4"}},
        ),
    ],
)
def test_images_and_files(part: Part, document: dict[str, Any]) -> None:
    assert parts_of(Message.user([part])) == [document]


def test_tools_keep_their_schema_as_it_is() -> None:
    body = body_of([Message.user("Hi")], tools=(WEATHER,))
    assert body["tools"] == [
        {
            "functionDeclarations": [
                {
                    "name": "weather",
                    "description": "The weather.",
                    "parametersJsonSchema": WEATHER.parameters,
                }
            ]
        }
    ]
    assert "toolConfig" not in body


@pytest.mark.parametrize(
    ("choice", "config"),
    [
        ("auto", {"mode": "AUTO"}),
        ("none", {"mode": "NONE"}),
        ("required", {"mode": "ANY"}),
        ("weather", {"mode": "ANY", "allowedFunctionNames": ["weather"]}),
    ],
)
def test_tool_choice(choice: str, config: dict[str, Any]) -> None:
    body = body_of([Message.user("Hi")], tools=(WEATHER,), tool_choice=choice)
    assert body["toolConfig"] == {"functionCallingConfig": config}
    assert "toolConfig" not in body_of([Message.user("Hi")], tool_choice=choice)


def test_generation_settings() -> None:
    schema = {"type": "object"}
    body = body_of([Message.user("Hi")], temperature=0.0, max_tokens=9, response_format=schema)
    assert body["generationConfig"] == {
        "temperature": 0.0,
        "maxOutputTokens": 9,
        "responseMimeType": "application/json",
        "responseJsonSchema": schema,
    }


def test_extra_is_merged_at_every_depth() -> None:
    extra = {
        "safetySettings": [],
        "generationConfig": {"topK": 1, "thinkingConfig": {"includeThoughts": True}},
        "toolConfig": {"functionCallingConfig": {"mode": "VALIDATED"}},
        "tools": [{"googleSearch": {}}],
    }
    body = body_of([Message.user("Hi")], tools=(WEATHER,), tool_choice="auto", temperature=1.0, extra=extra)
    assert body["safetySettings"] == []
    assert body["generationConfig"] == {
        "temperature": 1.0,
        "topK": 1,
        "thinkingConfig": {"includeThoughts": True},
    }
    assert body["toolConfig"] == {"functionCallingConfig": {"mode": "VALIDATED"}}
    assert [list(tool) for tool in body["tools"]] == [["functionDeclarations"], ["googleSearch"]]


def test_an_encoded_message_is_not_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Message] = []

    def encode_and_note(message: Message, signed: object) -> bytes:
        seen.append(message)
        return encode_message(message, signed)

    monkeypatch.setattr("whyloop.models.gemini.encode_message", encode_and_note)
    api, messages = GeminiContent(), [Message.user("One."), Message.assistant("Two.")]
    for _ in range(2):
        api.encode(ModelRequest(messages), Settings(model="m"))
    api.encode(ModelRequest([*messages, Message.user("Three.")]), Settings(model="m"))
    assert [message.text for message in seen] == ["One.", "Two.", "Three."]


def test_calls_of_another_model_are_marked_where_a_signature_is_demanded() -> None:
    calls = [ToolCall("a", "weather", {}), ToolCall("b", "weather", {})]
    signed = {"gemini": {"parts": [{"functionCall": "a", "thoughtSignature": "s"}]}}

    def signatures(model: str, message: Message) -> list[str | None]:
        parts = body_of([message], model=model)["contents"][0]["parts"]
        return [part.get("thoughtSignature") for part in parts]

    foreign, own = Message.assistant("", calls), Message(MessageRole.ASSISTANT, "", (*calls,), extras=signed)
    assert signatures("gemini-3-pro-preview", foreign) == ["skip_thought_signature_validator", None]
    assert signatures("gemini-3-pro-preview", own) == ["s", None]
    assert signatures("gemini-2.5-pro", foreign) == [None, None]


def test_fields_of_another_provider_are_not_sent() -> None:
    message = Message(MessageRole.ASSISTANT, "Hi", extras={"anthropic": {"parts": [{"text": 1}]}})
    assert parts_of(message) == [{"text": "Hi"}]


def test_feedback_in_the_middle_is_part_of_the_users_turn() -> None:
    body = body_of(
        [
            Message.developer("Be brief."),
            Message.user("Hi"),
            Message.assistant("", [ToolCall("a", "weather", {})]),
            Message.result("mild", tool_call_id="a", tool="weather"),
            Message.developer("You repeat yourself."),
        ]
    )
    assert body["systemInstruction"] == {"parts": [{"text": "Be brief."}]}
    assert [turn["role"] for turn in body["contents"]] == ["user", "model", "user"]
    result, feedback = body["contents"][-1]["parts"]
    assert "functionResponse" in result
    assert feedback == {"text": "You repeat yourself."}
