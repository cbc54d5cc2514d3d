"""Responses: requests."""

from __future__ import annotations

import pytest

from tests.models.recorded import message_of
from tests.models.responses import body
from whyloop.models.openai_responses import OpenAIResponses
from whyloop.models.provider import Settings
from whyloop.values.messages import FilePart, ImagePart, Message, Part, TextPart, ToolCall
from whyloop.values.model import ModelRequest, ModelResponse, ToolSpec

WEATHER = ToolSpec("weather", "The weather in a city.", {"type": "object", "properties": {}})


class TestAddress:
    def test_path_and_key(self) -> None:
        wire = OpenAIResponses()
        assert wire.name == "openai-responses"
        assert wire.path(Settings(model="gpt-5")) == "/responses"
        assert wire.headers("k") == {"authorization": "Bearer k"}
        assert wire.headers(None) == {}


class TestRequest:
    def test_a_request_has_no_options_by_default(self) -> None:
        assert body(Message.user("Hi"), model="gpt-4o", stream=False) == {
            "model": "gpt-4o",
            "stream": False,
            "store": False,
            "input": [{"role": "user", "content": "Hi"}],
        }

    def test_settings_in_the_fields_of_this_api(self) -> None:
        sent = body(
            instructions="Be brief.",
            tools=(WEATHER,),
            temperature=0.5,
            max_tokens=9,
            parallel_tool_calls=False,
            response_format={"title": "A city!", "type": "object"},
        )
        assert sent["instructions"] == "Be brief."
        assert (sent["temperature"], sent["max_output_tokens"]) == (0.5, 9)
        assert sent["parallel_tool_calls"] is False
        assert sent["tools"] == [
            {
                "type": "function",
                "name": "weather",
                "description": "The weather in a city.",
                "parameters": {"type": "object", "properties": {}},
                "strict": False,
            }
        ]
        schema = {"title": "A city!", "type": "object"}
        form = {"type": "json_schema", "name": "A_city_", "schema": schema, "strict": True}
        assert sent["text"] == {"format": form}

    @pytest.mark.parametrize("word", ["auto", "none", "required"])
    def test_tool_choice_by_word(self, word: str) -> None:
        assert body(tools=(WEATHER,), tool_choice=word)["tool_choice"] == word

    def test_tool_choice_by_name(self) -> None:
        sent = body(tools=(WEATHER,), tool_choice="weather")
        assert sent["tool_choice"] == {"type": "function", "name": "weather"}

    def test_without_tools_there_are_no_options_for_tools(self) -> None:
        sent = body(tool_choice="required", parallel_tool_calls=True)
        assert not sent.keys() & {"tools", "tool_choice", "parallel_tool_calls"}

    def test_extra_adds_tools_and_writing_and_overrides_the_rest(self) -> None:
        sent = body(
            tools=(WEATHER,),
            response_format={"type": "object"},
            extra={"tools": [{"type": "web_search"}], "text": {"verbosity": "low"}, "store": True},
        )
        assert [tool["type"] for tool in sent["tools"]] == ["function", "web_search"]
        assert sent["text"].keys() == {"format", "verbosity"}
        assert sent["text"]["format"]["name"] == "answer"
        assert sent["store"] is True

    @pytest.mark.parametrize(
        "model", ["gpt-5", "o3-mini", "openai/gpt-5.1", "codex-mini-latest", "ft:o4-mini:x"]
    )
    def test_models_that_reason_are_asked_for_their_sealed_thoughts(self, model: str) -> None:
        assert body(model=model)["include"] == ["reasoning.encrypted_content"]

    @pytest.mark.parametrize(
        "model", ["gpt-4o", "chatgpt-4o-latest", "gpt-5-chat-latest", "smollm2", "gpt-oss"]
    )
    def test_other_models_would_refuse_that(self, model: str) -> None:
        assert "include" not in body(model=model)

    def test_a_host_can_do_without_both(self) -> None:
        sent = body(quirks=frozenset({"no_store", "no_encrypted_reasoning"}))
        assert sent.keys() == {"model", "stream", "input"}

    def test_images_and_files(self) -> None:
        parts: list[Part] = [
            TextPart("Look"),
            ImagePart(url="https://x/a.png"),
            ImagePart(data="QQ==", media_type="image/png"),
            FilePart(url="https://x/a.pdf"),
            FilePart(data="QQ==", media_type="application/pdf", name="a.pdf"),
        ]
        assert body(Message.user(parts))["input"][0]["content"] == [
            {"type": "input_text", "text": "Look"},
            {"type": "input_image", "image_url": "https://x/a.png", "detail": "auto"},
            {"type": "input_image", "image_url": "data:image/png;base64,QQ==", "detail": "auto"},
            {"type": "input_file", "file_url": "https://x/a.pdf"},
            {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,QQ=="},
        ]

    def test_a_history_from_anywhere(self) -> None:
        call = ToolCall("toolu_1", "weather", {"city": "Rome"})
        answer = message_of(ModelResponse("Let me see.", (call,), extras={"anthropic": {"blocks": [1]}}))
        assert body(
            Message.system("S"),
            Message.developer("D"),
            answer,
            Message.result("Sunny", tool_call_id="toolu_1", tool="weather"),
            Message.assistant(""),
            Message.user("Thanks"),
        )["input"] == [
            {"role": "system", "content": "S"},
            {"role": "developer", "content": "D"},
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "Let me see.", "annotations": []}],
            },
            {
                "type": "function_call",
                "call_id": "toolu_1",
                "name": "weather",
                "arguments": '{"city":"Rome"}',
            },
            {"type": "function_call_output", "call_id": "toolu_1", "output": "Sunny"},
            {"role": "user", "content": "Thanks"},
        ]

    def test_an_encoded_message_is_not_encoded_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        wire, message, settings = OpenAIResponses(), Message.user("Hi"), Settings(model="gpt-5")
        first = wire.encode(ModelRequest([message]), settings)
        monkeypatch.setattr("whyloop.models.openai_responses.message_items", None)
        assert wire.encode(ModelRequest([message]), settings) == first
