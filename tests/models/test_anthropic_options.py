"""How images, files, tools and options are sent to Anthropic's messages."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from tests.models.anthropic_traffic import decoded, events, read
from tests.models.recorded import message_of
from whyloop.models.anthropic import DEFAULT_MAX_TOKENS, AnthropicMessages
from whyloop.models.provider import Settings
from whyloop.values.messages import FilePart, ImagePart, Message, MessageRole, TextPart
from whyloop.values.model import ModelRequest, ToolSpec

SEARCH = ToolSpec("search", "Looks things up.", {"type": "object", "properties": {"q": {"type": "string"}}})


def body(*messages: Message, tools: tuple[ToolSpec, ...] = (), **settings: Any) -> dict[str, Any]:
    asked = Settings(**{"model": "claude-opus-5", **settings})
    sent: dict[str, Any] = json.loads(AnthropicMessages().encode(ModelRequest(messages, tools), asked))
    return sent


def turns(*messages: Message) -> list[tuple[str, list[dict[str, Any]]]]:
    return [(turn["role"], turn["content"]) for turn in body(*messages)["messages"]]


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


class TestParts:
    PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n....").decode()
    PDF = base64.b64encode(b"%PDF-1.7 ....").decode()

    @pytest.mark.parametrize(
        ("part", "block"),
        [
            (ImagePart(url="https://x/y.png"), ("image", {"type": "url", "url": "https://x/y.png"})),
            (
                ImagePart(data=PNG, media_type="image/jpeg"),
                ("image", {"type": "base64", "media_type": "image/png", "data": PNG}),
            ),
            (
                ImagePart(url=f"data:image/gif;base64,{PNG[8:]}"),
                ("image", {"type": "base64", "media_type": "image/gif", "data": PNG[8:]}),
            ),
            (
                FilePart(data=PNG, media_type="image/png"),
                ("image", {"type": "base64", "media_type": "image/png", "data": PNG}),
            ),
            (FilePart(url="https://x/y.pdf"), ("document", {"type": "url", "url": "https://x/y.pdf"})),
            (
                FilePart(data=PDF),
                ("document", {"type": "base64", "media_type": "application/pdf", "data": PDF}),
            ),
            (
                FilePart(data=base64.b64encode("é".encode()).decode(), media_type="text/csv"),
                ("document", {"type": "text", "media_type": "text/plain", "data": "é"}),
            ),
            (
                FilePart(data="/////w==", media_type="text/plain"),
                ("document", {"type": "base64", "media_type": "text/plain", "data": "/////w=="}),
            ),
        ],
    )
    def test_images_and_files(self, part: ImagePart | FilePart, block: tuple[str, dict[str, str]]) -> None:
        said = turns(Message.user([TextPart("Look:"), part]))

        assert said == [("user", [text("Look:"), {"type": block[0], "source": block[1]}])]

    def test_a_file_keeps_its_name_and_a_tool_may_show_an_image(self) -> None:
        [(_, [block])] = turns(Message.user([FilePart(data=self.PDF, name="a.pdf")]))
        shown = Message(
            MessageRole.TOOL, (TextPart("Here."), ImagePart(url="https://x/y")), (), "a", "search"
        )
        [(_, [answer])] = turns(shown)

        assert block["title"] == "a.pdf"
        assert answer["content"] == [
            text("Here."),
            {"type": "image", "source": {"type": "url", "url": "https://x/y"}},
        ]


class TestOptions:
    def test_options_that_are_always_sent(self) -> None:
        assert body(Message.user("Hi")) == {
            "model": "claude-opus-5",
            "max_tokens": DEFAULT_MAX_TOKENS,
            "stream": True,
            "messages": [{"role": "user", "content": [text("Hi")]}],
        }

    def test_the_most_tokens(self) -> None:
        budget = {"thinking": {"type": "enabled", "budget_tokens": 10_000}}

        assert body(max_tokens=7)["max_tokens"] == 7
        assert body(model="claude-3-haiku-20240307")["max_tokens"] == 4096
        assert body(extra=budget)["max_tokens"] == DEFAULT_MAX_TOKENS + 10_000
        assert body(extra={**budget, "max_tokens": 11_000})["max_tokens"] == 11_000

    @pytest.mark.parametrize(
        ("settings", "choice"),
        [
            ({}, None),
            ({"parallel_tool_calls": True}, None),
            ({"tool_choice": "auto"}, {"type": "auto"}),
            ({"tool_choice": "none"}, {"type": "none"}),
            ({"tool_choice": "required"}, {"type": "any"}),
            ({"tool_choice": "search"}, {"type": "tool", "name": "search"}),
            ({"parallel_tool_calls": False}, {"type": "auto", "disable_parallel_tool_use": True}),
            (
                {"tool_choice": "required", "parallel_tool_calls": False},
                {"type": "any", "disable_parallel_tool_use": True},
            ),
            ({"tool_choice": "none", "parallel_tool_calls": False}, {"type": "none"}),
        ],
    )
    def test_tools_and_their_choice(self, settings: dict[str, Any], choice: dict[str, Any] | None) -> None:
        sent = body(tools=(SEARCH,), **settings)

        assert sent["tools"] == [
            {"name": "search", "description": "Looks things up.", "input_schema": SEARCH.parameters}
        ]
        assert sent.get("tool_choice") == choice
        assert "tool_choice" not in body(**settings)

    def test_a_schema_for_the_answer(self) -> None:
        schema = {"type": "object", "properties": {}, "additionalProperties": False}
        sent = body(response_format=schema, temperature=0.5, extra={"output_config": {"effort": "low"}})

        assert sent["temperature"] == 0.5
        assert sent["output_config"] == {"format": {"type": "json_schema", "schema": schema}, "effort": "low"}

    def test_extra_has_the_last_word_and_adds_tools(self) -> None:
        web = {"type": "web_search_20250305", "name": "web_search"}
        sent = body(tools=(SEARCH,), stream=False, extra={"tools": [web], "stream": True, "top_k": 3})

        assert [tool["name"] for tool in sent["tools"]] == ["search", "web_search"]
        assert (sent["stream"], sent["top_k"]) == (True, 3)


CODE = ({"type": "code_execution_20250825", "name": "code_execution"},)
FIRST = {"id": "c1", "expires_at": "2999-01-01T00:00:00Z"}
SECOND = {"id": "c2", "expires_at": "2999-01-01T00:00:00Z"}
EXPIRED = {"id": "c3", "expires_at": "2020-01-01T00:00:00Z"}


class TestContainer:
    @staticmethod
    def sent(*containers: dict[str, str] | None, **extra: Any) -> Any:
        messages = [
            message_of(decoded(text("Hi"), **({"container": container} if container else {})))
            for container in containers
        ]
        settings = Settings(model="claude", extra=extra)
        body = AnthropicMessages().encode(ModelRequest([Message.user("go"), *messages]), settings)
        return json.loads(body).get("container")

    def test_the_latest_container_is_used_again(self) -> None:
        assert self.sent(FIRST, SECOND, None, tools=CODE) == "c2"

    def test_one_that_has_expired_is_not(self) -> None:
        assert self.sent(FIRST, EXPIRED, tools=CODE) is None

    def test_one_that_the_caller_names_comes_first(self) -> None:
        assert self.sent(FIRST, tools=CODE, container="mine") == "mine"
        skills = {"skills": [{"type": "anthropic", "skill_id": "pptx"}]}
        assert self.sent(FIRST, tools=CODE, container=skills) == {**skills, "id": "c1"}

    def test_none_is_sent_where_no_code_can_run(self) -> None:
        assert self.sent(FIRST) is None
        assert self.sent(None, tools=CODE) is None

    def test_a_stream_has_its_container_too(self) -> None:
        response, _ = read(events(text("Hi"), container=FIRST))
        assert response.extras["anthropic"]["container"] == FIRST
