"""How each provider is asked for an answer of a type, and when a tool or a prompt takes its place."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest

from whyloop import Agent, Message, ModelRequest, ModelResponse, OutputDelta, OutputFormat, ToolSpec
from whyloop.errors import ConfigurationError, ModelError
from whyloop.loop.output import output_mode_of
from whyloop.models import load
from whyloop.models.anthropic import AnthropicMessages
from whyloop.models.fallback import FallbackModel
from whyloop.models.gemini import GeminiContent
from whyloop.models.openai_chat import OpenAIChat
from whyloop.models.openai_responses import OpenAIResponses
from whyloop.models.provider import ProviderApi, Settings
from whyloop.models.recording import RecordingModel, ReplayModel
from whyloop.models.response import ResponseBody
from whyloop.models.structured_output import google_schema, is_recursive, strict_schema
from whyloop.testing import FakeClock, ScriptedModel, call
from whyloop.tools.types import schema_of

SCHEMA = {
    "type": "object",
    "title": "Visit",
    "properties": {
        "city": {"type": "string", "description": "Where."},
        "day": {"type": "string", "format": "date"},
        "stars": {"type": "integer", "minimum": 1, "default": 3},
    },
    "required": ["city", "day"],
}
STRICT = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "Where."},
        "day": {"type": "string", "format": "date"},
        "stars": {"type": "integer", "description": '("minimum":1)'},
    },
    "required": ["city", "day", "stars"],
    "additionalProperties": False,
}
FREE = {"type": "object", "additionalProperties": {"type": "integer"}}
SEARCH = ToolSpec("search", "Looks things up.", {"type": "object", "properties": {}})


def body(api: ProviderApi, model: str, schema: dict[str, Any] = SCHEMA) -> dict[str, Any]:
    request = ModelRequest([Message.user("Hi")], (SEARCH,), None, OutputFormat("Visit", schema))
    sent: dict[str, Any] = json.loads(api.encode(request, Settings(model=model)))
    return sent


def test_chat_completions_get_a_strict_schema() -> None:
    sent = body(OpenAIChat(), "gpt-5")
    form = {"name": "Visit", "schema": STRICT, "strict": True}
    assert sent["response_format"] == {"type": "json_schema", "json_schema": form}
    assert sent["tools"][0]["function"]["name"] == "search"


def test_responses_get_a_strict_schema() -> None:
    sent = body(OpenAIResponses(), "gpt-5")
    assert sent["text"] == {
        "format": {"type": "json_schema", "name": "Visit", "schema": STRICT, "strict": True}
    }


@pytest.mark.parametrize("api", [OpenAIChat(), OpenAIResponses()])
def test_openai_gets_a_schema_that_cannot_be_strict_as_it_is(api: ProviderApi) -> None:
    sent = body(api, "gpt-5", FREE)
    form = sent["text"]["format"] if "text" in sent else sent["response_format"]["json_schema"]
    assert (form["schema"], form["strict"]) == (FREE, False)


def test_anthropic_gets_a_strict_schema() -> None:
    sent = body(AnthropicMessages(), "claude-sonnet-4-5")
    assert sent["output_config"] == {"format": {"type": "json_schema", "schema": STRICT}}


def test_gemini_gets_the_keywords_that_it_knows() -> None:
    sent = body(GeminiContent(), "gemini-3-pro")["generationConfig"]
    assert sent["responseMimeType"] == "application/json"
    stars = {"type": "integer", "minimum": 1}
    assert sent["responseJsonSchema"] == {**SCHEMA, "properties": {**SCHEMA["properties"], "stars": stars}}  # type: ignore[dict-item]
    assert google_schema(schema_of(Kit)["$defs"]["Part"])["properties"]["size"] == {
        "type": "integer",
        "description": '("exclusiveMinimum":0)',
    }
    assert google_schema(schema_of(Kit))["properties"]["kind"] == {"enum": ["b", "a"], "type": "string"}


@pytest.mark.parametrize("api", [OpenAIChat(), OpenAIResponses(), AnthropicMessages(), GeminiContent()])
def test_a_request_without_an_output_is_as_before(api: ProviderApi) -> None:
    sent = json.loads(api.encode(ModelRequest([Message.user("Hi")]), Settings(model="m")))
    assert not sent.keys() & {"response_format", "text", "output_config", "generationConfig"}


MODES = [
    ("openai:gpt-5", SCHEMA, "native", "native"),
    ("openai:gpt-4o", SCHEMA, "native", "native"),
    ("openai:gpt-4-turbo", SCHEMA, "tool", "tool"),
    ("openai:gpt-3.5-turbo", SCHEMA, "tool", "tool"),
    ("openai-responses:gpt-5-mini", FREE, "native", "native"),
    ("anthropic:claude-opus-4-5", SCHEMA, "native", "native"),
    ("anthropic:claude-opus-4-1-20250805", SCHEMA, "native", "native"),
    ("anthropic:claude-sonnet-4-20250514", SCHEMA, "tool", "tool"),
    ("anthropic:claude-3-7-sonnet-latest", SCHEMA, "tool", "tool"),
    ("anthropic:claude-opus-4-5", FREE, "tool", "tool"),
    ("gemini:gemini-3-pro-preview", SCHEMA, "native", "native"),
    ("gemini:gemini-2.5-flash", SCHEMA, "native", "tool"),
    ("mistral:mistral-large-latest", SCHEMA, "native", "tool"),
    ("deepseek:deepseek-chat", SCHEMA, "tool", "tool"),
    ("groq:llama-3.3-70b", SCHEMA, "tool", "tool"),
    ("llama.cpp:qwen", SCHEMA, "native", "tool"),
    ("ollama:qwen3", SCHEMA, "native", "tool"),
]


@pytest.mark.parametrize(("name", "schema", "alone", "with_tools"), MODES)
def test_the_mode_follows_from_model_tools_and_schema(
    name: str, schema: dict[str, Any], alone: str, with_tools: str
) -> None:
    model = load(name, api_key="k")
    assert model.output_mode(with_tools=False, schema=schema) == alone
    assert model.output_mode(with_tools=True, schema=schema) == with_tools


def test_tools_that_run_at_the_provider_count_as_tools() -> None:
    model = load("gemini:gemini-2.5-flash", api_key="k", tools=[{"googleSearch": {}}])
    assert model.output_mode(with_tools=False, schema=SCHEMA) == "tool"


@pytest.mark.parametrize("options", [{"quirks": ["no_schema", "no_tools"]}, {"tool_choice": "none"}])
def test_a_host_without_schemas_and_tools_is_prompted(options: dict[str, Any]) -> None:
    model = load("vllm:m", **options)
    assert model.output_mode(with_tools=True, schema=SCHEMA) == "prompt"


def test_a_response_format_and_an_output_type_contradict_each_other() -> None:
    with pytest.raises(ConfigurationError, match="pass the output_type alone"):
        Agent(load("vllm:m", response_format=SCHEMA), output_type=int)


# Strict schemas


@dataclass
class Part:
    name: str
    size: Annotated[int, msgspec.Meta(gt=0)]


@dataclass
class Kit:
    kind: Literal["b", "a"]
    main: Annotated[Part, msgspec.Meta(description="The main part.")]
    parts: list[Part] = field(default_factory=list)
    best_before: date | None = None


@dataclass
class Tree:
    children: list[Tree]


def test_a_strict_schema_lists_all_fields_and_describes_what_is_not_enforced() -> None:
    assert strict_schema(schema_of(Kit)) == {
        "type": "object",
        "properties": {
            "kind": {"enum": ["b", "a"], "type": "string"},
            "main": {"anyOf": [{"$ref": "#/$defs/Part"}], "description": "The main part."},
            "parts": {"type": "array", "items": {"$ref": "#/$defs/Part"}},
            "best_before": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
        },
        "required": ["kind", "main", "parts", "best_before"],
        "additionalProperties": False,
        "$defs": {
            "Part": {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "size": {"type": "integer", "description": '("exclusiveMinimum":0)'},
                },
                "required": ["name", "size"],
                "additionalProperties": False,
            }
        },
    }


@pytest.mark.parametrize("kind", [dict[str, int], list[Any], list[dict[str, Any]]])
def test_a_schema_that_allows_any_keys_or_values_cannot_be_strict(kind: Any) -> None:
    assert strict_schema(schema_of(kind)) is None


def test_recursion_is_found() -> None:
    assert is_recursive(schema_of(Tree))
    assert not is_recursive(schema_of(Kit))


# Pieces of an output tool's arguments


STREAMS: list[tuple[ProviderApi, list[tuple[str, dict[str, Any]]]]] = [
    (
        GeminiContent(),
        [
            (
                "",
                {
                    "candidates": [
                        {
                            "content": {
                                "parts": [{"functionCall": {"name": "final_answer", "args": {"a": 1}}}]
                            },
                            "finishReason": "STOP",
                        }
                    ],
                    "usageMetadata": {},
                },
            )
        ],
    ),
    (
        OpenAIChat(),
        [
            ("", {"choices": [{"delta": {"tool_calls": [{"index": 0, "id": "c", "function": f}]}}]})
            for f in ({"name": "final_answer", "arguments": ""}, {"arguments": '{"a"'}, {"arguments": ": 1}"})
        ]
        + [("", {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]})],
    ),
    (
        AnthropicMessages(),
        [
            ("message_start", {"type": "message_start", "message": {"id": "m", "usage": {}}}),
            (
                "content_block_start",
                {
                    "type": "content_block_start",
                    "index": 0,
                    "content_block": {"type": "tool_use", "id": "c", "name": "final_answer", "input": {}},
                },
            ),
            *[
                (
                    "content_block_delta",
                    {
                        "type": "content_block_delta",
                        "index": 0,
                        "delta": {"type": "input_json_delta", "partial_json": piece},
                    },
                )
                for piece in ('{"a"', ": 1}")
            ],
            ("message_delta", {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {}}),
            ("message_stop", {"type": "message_stop"}),
        ],
    ),
    (
        OpenAIResponses(),
        [
            (
                "response.output_item.added",
                {
                    "type": "response.output_item.added",
                    "output_index": 0,
                    "item": {"type": "function_call", "id": "f", "call_id": "c", "name": "final_answer"},
                },
            ),
            *[
                (
                    "response.function_call_arguments.delta",
                    {
                        "type": "response.function_call_arguments.delta",
                        "output_index": 0,
                        "item_id": "f",
                        "delta": piece,
                    },
                )
                for piece in ('{"a"', ": 1}")
            ],
            (
                "response.completed",
                {"type": "response.completed", "response": {"id": "r", "status": "completed", "output": []}},
            ),
        ],
    ),
]


@pytest.mark.parametrize(("api", "events"), STREAMS, ids=[api.name for api, _ in STREAMS])
def test_the_arguments_of_the_output_tool_arrive_in_pieces(
    api: ProviderApi, events: list[tuple[str, dict[str, Any]]]
) -> None:
    answer = ResponseBody(api, "text/event-stream")
    pieces = []
    for name, data in events:
        pieces += answer.feed(f"event: {name}\ndata: {json.dumps(data)}\n\n".encode())
    *rest, response = answer.finish()
    texts = [piece.text for piece in [*pieces, *rest] if isinstance(piece, OutputDelta)]
    assert json.loads("".join(texts)) == {"a": 1}
    assert isinstance(response, ModelResponse)
    assert response.tool_calls[0].arguments == {"a": 1}


# Models that wrap others


@pytest.mark.parametrize(
    ("modes", "expected"),
    [(["native", "native"], "native"), (["native", "tool"], "tool"), (["prompt", "native"], "prompt")],
)
def test_a_fallback_asks_in_the_form_that_all_its_models_know(modes: list[str], expected: str) -> None:
    model = FallbackModel(*[ScriptedModel([], output_mode=mode) for mode in modes])
    assert output_mode_of(model, with_tools=True, schema={}) == expected


async def test_the_model_that_a_fallback_falls_back_on_gives_the_output() -> None:
    down, up = ScriptedModel([ModelError("down")]), ScriptedModel([call("final_answer", {"value": 3})])
    model = FallbackModel(down, up)
    state = await Agent(model, output_type=int, clock=FakeClock()).run("go")
    assert state.output == 3
    assert state.steps[0].source is not None
    assert state.steps[0].source.notes


@pytest.mark.parametrize("mode", ["native", "tool", "prompt"])
async def test_a_recorded_run_with_an_output_can_be_replayed(mode: str, tmp_path: Path) -> None:
    reply = call("final_answer", {"value": 3}) if mode == "tool" else '{"value": 3}'
    path = tmp_path / "recording.jsonl"
    for model in (RecordingModel(ScriptedModel([reply], output_mode=mode), path), None):
        agent = Agent(model or ReplayModel(path), output_type=int, clock=FakeClock())
        state = await agent.run("go")
        assert state.output == 3
        assert state.steps[0].source is not None
        assert state.steps[0].source.output == mode
