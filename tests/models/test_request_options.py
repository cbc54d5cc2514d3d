"""Options of a request, such as no tool calls or a short answer, in each provider's format."""

from __future__ import annotations

import json
from typing import Any

import pytest

from whyloop import ModelRequest
from whyloop.models import load
from whyloop.models.http import HttpModel
from whyloop.models.presets import PRESETS
from whyloop.models.provider import settings_for
from whyloop.values.messages import Message
from whyloop.values.model import ToolSpec

SEARCH = ToolSpec("search", "Looks things up.", {"type": "object", "properties": {}})
PLAIN = ModelRequest([Message.user("Hi")], (SEARCH,))
WRAP_UP = ModelRequest([Message.user("Hi")], (SEARCH,), tool_choice="none", max_tokens=70)


def model_of(name: str, **options: Any) -> HttpModel:
    return load(name, api_key="k", base_url="https://host.test/v1", **options)


def body_of(name: str, request: ModelRequest = WRAP_UP, **options: Any) -> dict[str, Any]:
    model = model_of(name, **options)
    sent: dict[str, Any] = json.loads(model.api.encode(*settings_for(request, model.settings)))
    return sent


@pytest.mark.parametrize(
    ("name", "choice", "most"),
    [
        ("openai:gpt-5", {"tool_choice": "none"}, {"max_completion_tokens": 70}),
        ("mistral:large", {"tool_choice": "none"}, {"max_tokens": 70}),
        ("openai-responses:gpt-5", {"tool_choice": "none"}, {"max_output_tokens": 70}),
        ("anthropic:claude-opus-5", {"tool_choice": {"type": "none"}}, {"max_tokens": 70}),
        (
            "gemini:gemini-3",
            {"toolConfig": {"functionCallingConfig": {"mode": "NONE"}}},
            {"generationConfig": {"maxOutputTokens": 70}},
        ),
    ],
)
@pytest.mark.parametrize("wanted", [None, "auto", "required", "search"])
def test_the_tools_stay_declared_with_the_choice_none(
    name: str, choice: dict[str, Any], most: dict[str, Any], wanted: str | None
) -> None:
    sent = body_of(name, tool_choice=wanted, max_tokens=500)
    assert sent["tools"] == body_of(name, PLAIN)["tools"]
    assert sent.items() >= (choice | most).items()
    assert body_of(name, max_tokens=50) == body_of(name, max_tokens=50, tool_choice="required") | choice


@pytest.mark.parametrize("preset", [name for name in PRESETS if name != "azure"])
def test_every_host_is_sent_the_choice_or_no_tools(preset: str) -> None:
    sent = body_of(f"{preset}:m")
    chosen = sent.get("tool_choice") or sent.get("toolConfig")
    assert (chosen is None) == (preset == "ollama")
    assert ("tools" in sent) == (preset != "ollama")


def test_a_shorter_answer_that_the_caller_wants_stays_short() -> None:
    assert body_of("openai:gpt-5", max_tokens=7)["max_completion_tokens"] == 7


def test_options_that_were_given_as_they_are_do_not_win() -> None:
    chat = body_of("openai:gpt-5", max_completion_tokens=999, top_p=0.5)
    assert (chat["max_completion_tokens"], chat["top_p"]) == (70, 0.5)
    google = body_of("gemini:gemini-3", generationConfig={"maxOutputTokens": 999, "topK": 4})
    assert google["generationConfig"] == {"maxOutputTokens": 70, "topK": 4}


def test_thinking_leaves_room_for_the_answer() -> None:
    thinking = {"type": "enabled", "budget_tokens": 2000}
    assert body_of("anthropic:claude-opus-5", thinking=thinking)["max_tokens"] == 2070


def test_other_requests_are_sent_as_before() -> None:
    model = model_of("openai:gpt-5", max_tokens=500)
    assert settings_for(PLAIN, model.settings) == (PLAIN, model.settings)


async def test_a_model_sends_what_the_request_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    model, bodies = model_of("openai:gpt-5"), []
    encode = type(model.api).encode

    def look(api: Any, request: Any, settings: Any) -> bytes:
        bodies.append(json.loads(encode(api, request, settings)))
        raise KeyboardInterrupt  # Before anything is sent.

    monkeypatch.setattr(type(model.api), "encode", look)
    with pytest.raises(KeyboardInterrupt):
        await anext(aiter(model.respond(WRAP_UP)))
    assert bodies[0]["tool_choice"] == "none"
