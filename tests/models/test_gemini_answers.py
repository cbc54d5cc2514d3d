"""generateContent: answers, complete or streamed, and how they are sent back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.models.recorded import deltas_of, message_of, streamed
from whyloop.errors import ModelError, RateLimitError, ResponseValidationError
from whyloop.models.gemini import GeminiContent, message_parts
from whyloop.values.messages import Message, MessageRole, ToolCall
from whyloop.values.model import FinishReason, ModelResponse, ReasoningDelta, TextDelta, Usage


def candidate(*parts: dict[str, Any], word: str | None = "STOP", **more: Any) -> dict[str, Any]:
    finish = {"finishReason": word} if word else {}
    return {"candidates": [{"content": {"parts": list(parts), "role": "model"}, **finish, **more}]}


def decoded(document: Any) -> ModelResponse:
    return GeminiContent().decode(json.dumps(document).encode())


def read(*documents: Any) -> tuple[ModelResponse, str]:
    events = [b"data: " + json.dumps(document).encode() + b"\r\n\r\n" for document in documents]
    return streamed(GeminiContent().reader(), events)


def call_part(name: str = "weather", **more: Any) -> dict[str, Any]:
    return {"functionCall": {"name": name, "args": {"city": "Paris"}}, **more}


def test_text() -> None:
    response = decoded(
        {**candidate({"text": "Hello "}, {"text": "there."}), "modelVersion": "m-1", "responseId": "r-1"}
    )
    assert (response.text, response.finish_reason, response.extras) == ("Hello there.", "stop", {})
    assert response.source is not None
    assert (response.source.model, response.source.response_id) == ("m-1", "r-1")


def test_calls_get_an_id_where_none_came() -> None:
    response = decoded(
        candidate(
            call_part(), {"functionCall": {"name": "now", "id": "x"}}, {"functionCall": {"name": "now"}}
        )
    )
    assert [(call.name, call.arguments) for call in response.tool_calls] == [
        ("weather", {"city": "Paris"}),
        ("now", {}),
        ("now", {}),
    ]
    assert response.tool_calls[1].id == "x"
    assert len({call.id for call in response.tool_calls}) == 3
    assert (response.text, response.finish_reason, response.extras) == ("", "tool_calls", {})
    assert [part["functionCall"].get("id") for part in message_parts(message_of(response))] == [
        None,
        "x",
        None,
    ]


def test_text_that_repeats_the_call_is_removed() -> None:
    parts = [{"text": '{"city": "Paris"}'}, call_part(thoughtSignature="s")]
    assert decoded(candidate(*parts)).text == ""
    response, shown = read(
        candidate({"text": '{"city": '}, word=None), candidate({"text": '"Paris"}'}, parts[1])
    )
    assert (response.text, shown) == ("", "")
    assert message_parts(message_of(response)) == [parts[1]]


def test_json_without_a_call_is_text() -> None:
    assert decoded(candidate({"text": '{"city": "Paris"}'})).text == '{"city": "Paris"}'


def test_thoughts_are_reasoning() -> None:
    response = decoded(candidate({"text": "Hm.", "thought": True}, {"text": "Yes."}))
    assert (response.text, response.reasoning) == ("Yes.", "Hm.")


@pytest.mark.parametrize(
    "parts",
    [
        [{"text": "Yes.", "thoughtSignature": "s"}],
        [{"text": "A", "thoughtSignature": "s"}, {"text": "B"}, {"text": "C", "thoughtSignature": "t"}],
        [{"text": "Hm.", "thought": True, "thoughtSignature": "s"}, {"text": "Yes."}],
        [{"text": "Yes."}, {"text": "", "thoughtSignature": "s"}],
        [{"thoughtSignature": "s"}, {"text": "Yes."}],
        [call_part(thoughtSignature="s"), call_part()],
        [call_part(), {"text": "Yes."}, call_part("now", thoughtSignature="s"), {"text": "No."}],
        [
            {"text": "I compute."},
            {"executableCode": {"language": "PYTHON", "code": "1+1"}},
            {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "2"}},
            {"text": "Two."},
        ],
        [
            {"toolCall": {"id": "t", "toolType": "FILE_SEARCH"}, "thoughtSignature": "s"},
            {"toolResponse": {"id": "t", "toolType": "FILE_SEARCH"}, "thoughtSignature": "t"},
            {"text": "Found."},
        ],
        [{"inlineData": {"mimeType": "image/png", "data": "QUJD"}, "thoughtSignature": "s"}],
    ],
)
def test_parts_go_back_as_they_came(parts: list[dict[str, Any]]) -> None:
    response = decoded(candidate(*parts))
    assert list(response.extras) == ["gemini"]
    assert message_parts(message_of(response)) == parts
    again, _ = read(*[candidate(part, word=None) for part in parts], candidate({"text": ""}))
    assert message_parts(message_of(again)) == parts


def test_a_changed_answer_keeps_what_still_fits() -> None:
    kept = decoded(candidate({"text": "Yes."}, call_part(thoughtSignature="s"), call_part("now"))).extras
    known = kept["gemini"]["parts"][1]["functionCall"]
    calls = (ToolCall("new", "now", {}), ToolCall(known, "weather", {"city": "Rome"}))
    message = Message(MessageRole.ASSISTANT, "Yes, and more.", calls, extras=kept)
    assert message_parts(message) == [
        {"text": "Yes,"},
        {"functionCall": {"name": "weather", "args": {"city": "Rome"}}, "thoughtSignature": "s"},
        {"text": " and more."},
        {"functionCall": {"id": "new", "name": "now", "args": {}}},
    ]


def test_usage() -> None:
    tokens = {
        "promptTokenCount": 10,
        "toolUsePromptTokenCount": 5,
        "candidatesTokenCount": 3,
        "thoughtsTokenCount": 4,
        "cachedContentTokenCount": 2,
    }
    response = decoded({**candidate({"text": "Hi"}), "usageMetadata": tokens})
    assert response.usage == Usage(input=15, output=7, cached=2, reasoning=4)
    assert decoded(candidate({"text": "Hi"})).usage == Usage(reported=False)


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("STOP", FinishReason.STOP),
        ("MAX_TOKENS", FinishReason.LENGTH),
        ("SAFETY", FinishReason.CONTENT_FILTER),
        ("RECITATION", FinishReason.CONTENT_FILTER),
        ("BLOCKLIST", FinishReason.CONTENT_FILTER),
        ("PROHIBITED_CONTENT", FinishReason.CONTENT_FILTER),
        ("SPII", FinishReason.CONTENT_FILTER),
        ("IMAGE_SAFETY", FinishReason.CONTENT_FILTER),
        ("TOO_MANY_TOOL_CALLS", FinishReason.ERROR),
        ("LANGUAGE", FinishReason.OTHER),
        ("SOMETHING_NEW", FinishReason.OTHER),
    ],
)
def test_finish_reasons(word: str, reason: FinishReason) -> None:
    response = decoded({"candidates": [{"finishReason": word}]})
    assert response.finish_reason is reason
    assert response.source is not None
    assert response.source.finish_word == word


@pytest.mark.parametrize("word", ["MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL"])
def test_a_call_that_google_could_not_read_is_an_unreadable_response(word: str) -> None:
    document = {"candidates": [{"finishReason": word, "finishMessage": "print(weather("}]}
    with pytest.raises(ResponseValidationError, match=rf"{word}: print\(weather\("):
        decoded(document)
    with pytest.raises(ResponseValidationError, match=word):
        read(document)


@pytest.mark.parametrize("take", [decoded, read])
def test_a_blocked_prompt_names_the_reason(take: Any) -> None:
    with pytest.raises(ModelError, match="blocked: PROHIBITED_CONTENT") as caught:
        take({"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "usageMetadata": {}})
    assert type(caught.value) is ModelError
    assert not caught.value.retryable


@pytest.mark.parametrize("take", [decoded, read])
@pytest.mark.parametrize(
    "document",
    [
        {},
        [],
        "text",
        {"candidates": []},
        {"candidates": None},
        {"candidates": "text"},
        {"candidates": [7]},
        {"candidates": [{"content": "text"}]},
        {"candidates": [{"content": {"parts": ["text"]}, "finishReason": "STOP"}]},
        {"candidates": [{"content": {"parts": [{"functionCall": {"args": {}}}]}, "finishReason": "STOP"}]},
        candidate({"functionCall": {"name": None}}),
        candidate({"functionCall": {"name": 7}}),
        candidate({"functionCall": "text"}),
        {"candidates": [{"finishReason": ["STOP"]}]},
        {"promptFeedback": 7},
    ],
)
def test_an_unreadable_response_is_refused(document: Any, take: Any) -> None:
    with pytest.raises(ResponseValidationError):
        take(document)


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"candidates": [', b"\xff"])
def test_a_body_that_is_not_json(body: bytes) -> None:
    with pytest.raises(ResponseValidationError, match="not JSON"):
        GeminiContent().decode(body)
    with pytest.raises(ResponseValidationError, match="not JSON"):
        list(GeminiContent().reader().read("", body))


def test_an_error_in_a_body_that_began_well() -> None:
    error = {"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}}
    with pytest.raises(RateLimitError, match="overloaded"):
        decoded(error)
    with pytest.raises(RateLimitError, match="overloaded"):
        read(candidate({"text": "Hi"}, word=None), error)
    with pytest.raises(RateLimitError, match="overloaded"):
        decoded([candidate({"text": "Hi"}, word=None), error])


def test_only_the_first_of_several_answers_is_read() -> None:
    document = {
        "candidates": [{"index": 1, "finishReason": "STOP"}, *candidate({"text": "Hi"})["candidates"]]
    }
    assert decoded(document).text == "Hi"


# Streams.


def test_a_stream() -> None:
    response, shown = read(
        candidate({"text": "Hm.", "thought": True}, word=None),
        candidate({"text": "Hello "}, word=None),
        candidate({"text": "there."}, word=None),
        candidate(call_part(), word=None),
        {"candidates": [{"finishReason": "STOP"}], "usageMetadata": {"promptTokenCount": 3}},
        {"usageMetadata": {"promptTokenCount": 4}},
    )
    assert (response.text, shown, response.reasoning) == ("Hello there.", "Hello there.", "Hm.")
    assert [call.name for call in response.tool_calls] == ["weather"]
    assert (response.finish_reason, response.usage.input) == (FinishReason.TOOL_CALLS, 4)


def test_a_list_of_pieces_is_a_stream_too() -> None:
    pieces = [candidate({"text": "Hello "}, word=None), candidate({"text": "there."})]
    assert decoded(pieces).text == "Hello there."


def test_a_stream_that_stops_short() -> None:
    with pytest.raises(ResponseValidationError, match="ended before"):
        read(candidate({"text": "Hello "}, word=None))
    with pytest.raises(ResponseValidationError):
        read()


IMAGE = {"inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgo="}}


@pytest.mark.parametrize("take", [decoded, lambda document: read(document)[0]])
def test_pictures_and_other_files_are_reported_as_unsupported(take: Any) -> None:
    assert take(candidate({"text": "Look:"}, IMAGE)).unsupported == ("an image (image/png)",)
    audio = {"inlineData": {"mimeType": "audio/wav", "data": "UklGRg=="}}
    assert take(candidate(audio)).unsupported == ("audio (audio/wav)",)
    # A plot that Google's code interpreter drew is part of its work.
    code = {"executableCode": {"language": "PYTHON", "code": "plot()"}}
    assert take(candidate(code, IMAGE, {"text": "As plotted."})).unsupported == ()


def test_reasoning_streams_as_it_comes() -> None:
    documents = [
        candidate({"text": "Hm, ", "thought": True}, word=None),
        candidate({"text": "so.", "thought": True}, {"text": "Hi"}),
    ]
    body = b"".join(b"data: " + json.dumps(document).encode() + b"\n\n" for document in documents)
    assert deltas_of(GeminiContent().reader(), body) == [
        ReasoningDelta("Hm, "),
        ReasoningDelta("so."),
        TextDelta("Hi"),
    ]


def test_a_total_above_its_parts_counts() -> None:
    counted = {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 40}
    assert decoded({**candidate({"text": "Hi"}), "usageMetadata": counted}).usage == Usage(10, 30, 0, 25)
