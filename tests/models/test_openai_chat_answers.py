"""Chat completions: complete answers, in the dialects of hosts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.models.recorded import message_of
from whyloop.errors import ModelError, RateLimitError, ResponseValidationError
from whyloop.models.openai_chat import OpenAIChat, message_document
from whyloop.values.messages import ToolCall
from whyloop.values.model import FinishReason, ModelResponse, Usage


def decoded(message: Any, word: Any = "stop", **more: Any) -> ModelResponse:
    document = {"choices": [{"message": message, "finish_reason": word}], **more}
    return OpenAIChat().decode(json.dumps(document).encode())


def call(arguments: Any = '{"city": "Paris"}', name: Any = "weather", **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **more}


@pytest.mark.parametrize("content", ["Hi", [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]])
def test_text(content: Any) -> None:
    response = decoded({"content": content}, id="r-1", model="m-1")
    assert (response.text, response.finish_reason, response.extras) == ("Hi", "stop", {})
    assert response.source is not None
    assert (response.source.model, response.source.response_id) == ("m-1", "r-1")


@pytest.mark.parametrize(
    ("given", "arguments"),
    [
        ('{"city": "Paris"}', {"city": "Paris"}),
        ({"city": "Paris"}, {"city": "Paris"}),
        ("", {}),
        (None, {}),
        ('{"city": ', '{"city": '),
        ("[1]", "[1]"),
    ],
)
def test_arguments(given: Any, arguments: Any) -> None:
    response = decoded({"content": None, "tool_calls": [call(given, id="a")]}, "tool_calls")
    assert response.tool_calls == (ToolCall("a", "weather", arguments),)
    assert (response.text, response.finish_reason) == ("", "tool_calls")


@pytest.mark.parametrize("more", [{}, {"id": None}, {"id": ""}])
def test_a_call_without_an_id_gets_one(more: dict[str, Any]) -> None:
    calls = decoded({"tool_calls": [call(**more), call(**more)]}).tool_calls
    assert all(one.id for one in calls)
    assert calls[0].id != calls[1].id


REPEATED = [
    '{"city": "Paris"}',
    '{"name": "weather", "arguments": {"city": "Paris"}}',
    '{"name": "weather", "arguments": "{\\"city\\": \\"Paris\\"}"}',
    '{"name": "weather", "parameters": {"city": "Paris"}}',
    '[{"type": "function", "function": {"name": "weather", "arguments": {"city": "Paris"}}}]',
    '```json\n{"city": "Paris"}\n```',
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>',
    '<tool_call>```json\n{"name": "weather", "arguments": {"city": "Paris"}}\n```</tool_call>',
]


@pytest.mark.parametrize("text", REPEATED[:7])
def test_content_that_repeats_the_call_is_removed(text: str) -> None:
    assert decoded({"content": text, "tool_calls": [call(id="a")]}).text == ""


@pytest.mark.parametrize("text", ["{}", '{"city": "Rome"}', "{not json", "I call {weather}."])
def test_other_content_beside_a_call_is_kept(text: str) -> None:
    assert decoded({"content": text, "tool_calls": [call(id="a")]}).text == text


def test_json_without_a_call_is_text() -> None:
    assert decoded({"content": '{"city": "Paris"}'}).text == '{"city": "Paris"}'


def test_reasoning_content_goes_back_while_its_tools_are_answered() -> None:
    asked = decoded({"content": "", "reasoning_content": "Hm.", "tool_calls": [call(id="a")]})
    said = decoded({"content": "Yes.", "reasoning_content": "Hm."})
    assert (asked.reasoning, said.reasoning) == ("Hm.", "Hm.")
    assert message_document(message_of(asked))["reasoning_content"] == "Hm."
    assert "reasoning_content" not in message_document(message_of(said))


def test_reasoning_is_shown_and_not_sent() -> None:
    response = decoded({"content": "Yes.", "reasoning": "Hm."})
    assert response.reasoning == "Hm."
    assert message_document(message_of(response)) == {"role": "assistant", "content": "Yes."}


def test_thinking_parts_are_reasoning() -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}
    response = decoded({"content": [thinking, {"type": "text", "text": "Yes."}]})
    assert (response.text, response.reasoning) == ("Yes.", "Hm.")


@pytest.mark.parametrize("key", ["reasoning_details", "extra_content", "thought_signature"])
def test_fields_that_a_host_wants_back_are_sent_back(key: str) -> None:
    value = [{"type": "reasoning.text", "text": "Hm.", "signature": "s"}]
    document = message_document(message_of(decoded({"content": "Yes.", key: value})))
    assert document == {"role": "assistant", "content": "Yes.", key: value}


def test_a_signature_goes_back_on_its_call() -> None:
    signed = {"extra_content": {"google": {"thought_signature": "s"}}}
    response = decoded({"tool_calls": [call(id="a", **signed), call(id="b")]})
    first, second = message_document(message_of(response))["tool_calls"]
    assert first["extra_content"] == signed["extra_content"]
    assert "extra_content" not in second


def test_a_refusal_is_a_model_error() -> None:
    with pytest.raises(ModelError, match="refused: I will not") as caught:
        decoded({"content": None, "refusal": "I will not."})
    assert type(caught.value) is ModelError
    assert not caught.value.retryable


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({}, Usage(reported=False)),
        ({"usage": None}, Usage(reported=False)),
        ({"usage": "many"}, Usage(reported=False)),
        ({"usage": {"prompt_tokens": "many", "completion_tokens": 2}}, Usage(0, 2)),
        ({"usage": {"prompt_tokens": 3, "completion_tokens": 2}}, Usage(3, 2)),
        ({"x_groq": {"usage": {"prompt_tokens": 3, "completion_tokens": 2}}}, Usage(3, 2)),
        ({"usage": {"prompt_tokens": 3, "prompt_cache_hit_tokens": 1}}, Usage(3, 0, 1)),
        (
            {
                "usage": {
                    "prompt_tokens": 3,
                    "completion_tokens": 2,
                    "prompt_tokens_details": {"cached_tokens": 1},
                    "completion_tokens_details": {"reasoning_tokens": 2},
                }
            },
            Usage(3, 2, 1, 2),
        ),
        (
            {"usage": {"prompt_tokens": 3, "prompt_tokens_details": None, "completion_tokens_details": None}},
            Usage(3),
        ),
    ],
)
def test_usage(usage: dict[str, Any], expected: Usage) -> None:
    assert decoded({"content": "Hi"}, **usage).usage == expected


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("stop", FinishReason.STOP),
        ("eos", FinishReason.STOP),
        ("length", FinishReason.LENGTH),
        ("model_length", FinishReason.LENGTH),
        ("tool_calls", FinishReason.TOOL_CALLS),
        ("function_call", FinishReason.TOOL_CALLS),
        ("content_filter", FinishReason.CONTENT_FILTER),
        ("sensitive", FinishReason.CONTENT_FILTER),
        ("error", FinishReason.ERROR),
        ("network_error", FinishReason.ERROR),
        ("something new", FinishReason.OTHER),
        (None, FinishReason.OTHER),
    ],
)
def test_finish_reasons(word: str | None, reason: FinishReason) -> None:
    response = decoded({"content": "Hi"}, word)
    assert response.finish_reason is reason
    assert response.source is not None
    assert response.source.finish_word == word


@pytest.mark.parametrize(
    "document",
    [
        {},
        [],
        "text",
        None,
        {"choices": []},
        {"choices": None},
        {"choices": [None]},
        {"choices": [{}]},
        {"choices": [{"message": None}]},
        {"choices": [{"message": {"content": 7}}]},
        {"choices": [{"message": {"tool_calls": [{}]}}]},
        {"choices": [{"message": {"content": "Hi"}, "finish_reason": ["stop"]}]},
    ],
)
def test_an_unreadable_response_is_refused(document: Any) -> None:
    with pytest.raises(ResponseValidationError):
        OpenAIChat().decode(json.dumps(document).encode())


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"choices": [', b"\xff"])
def test_a_body_that_is_not_json(body: bytes) -> None:
    with pytest.raises(ResponseValidationError, match="not JSON"):
        OpenAIChat().decode(body)


def test_an_error_in_a_body_that_is_called_a_success() -> None:
    with pytest.raises(RateLimitError, match="slow down"):
        OpenAIChat().decode(b'{"error": {"code": 429, "message": "slow down"}}')


@pytest.mark.parametrize(
    "text",
    [
        REPEATED[7],
        '{"city": "Paris"}\n{"city": "Paris"}',
        '<tool_call>{"city": "Paris"}</tool_call>\n<tool_call>{"city": "Paris"}</tool_call>',
    ],
)
def test_calls_that_are_repeated_in_other_ways_are_not_text(text: str) -> None:
    assert decoded({"content": text, "tool_calls": [call(id="a"), call(id="b")]}).text == ""


def test_a_call_that_is_repeated_after_text_is_cut_off() -> None:
    text = 'Let me see.\n<tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call>'
    assert decoded({"content": text, "tool_calls": [call(id="a")]}).text.strip() == "Let me see."


@pytest.mark.parametrize("key", ["num_cached_tokens", "cached_tokens"])
def test_cached_tokens_by_other_names(key: str) -> None:
    assert decoded({"content": "Hi"}, usage={"prompt_tokens": 100, key: 99}).usage == Usage(100, 0, 99)


@pytest.mark.parametrize(
    ("message", "more"),
    [
        ({"tool_calls": [call(name=None)]}, {}),
        ({"tool_calls": [call(name=7)]}, {}),
    ],
)
def test_values_of_the_wrong_kind_are_unreadable(message: Any, more: dict[str, Any]) -> None:
    with pytest.raises(ResponseValidationError):
        decoded(message, **more)


def test_an_error_inside_a_choice() -> None:
    choice = {"message": {"content": ""}, "finish_reason": "error", "error": {"code": 429, "message": "slow"}}
    with pytest.raises(RateLimitError, match="slow"):
        OpenAIChat().decode(json.dumps({"choices": [choice]}).encode())


def test_a_call_in_the_older_form() -> None:
    function = {"name": "weather", "arguments": "{}"}
    assert decoded({"content": None, "function_call": function}, "function_call").tool_calls


def test_a_thought_that_is_plain_text() -> None:
    thinking = {"type": "thinking", "thinking": "Hm."}
    assert decoded({"content": [thinking, {"type": "text", "text": "Yes."}]}).reasoning == "Hm."


def test_custom_calls_pictures_and_audio_are_reported_as_unsupported() -> None:
    custom = {"id": "c1", "type": "custom", "custom": {"name": "run_sql", "input": "select 1"}}
    response = decoded({"content": None, "tool_calls": [custom, call()]}, "tool_calls")
    assert response.unsupported == ("a custom tool call (run_sql)",)
    assert [one.name for one in response.tool_calls] == ["weather"]
    assert decoded({"content": "Look:", "images": [{"type": "image_url"}]}).unsupported == ("an image",)
    assert decoded({"content": None, "audio": {"data": "UklG"}}).unsupported == ("audio",)
