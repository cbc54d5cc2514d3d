"""From a request to the body that asks for a response."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from whyloop.models.fragments import Fragments
from whyloop.models.openai_responses.items import Item, items_of
from whyloop.models.parts import data_address
from whyloop.models.wire import Settings
from whyloop.values.messages import ImagePart, Message, Part, TextPart
from whyloop.values.model import ModelRequest, ToolSpec

ENCRYPTED_REASONING = "reasoning.encrypted_content"

_REASONS = re.compile(r"(?:^|[/:])(?:o\d|gpt-[5-9]|codex)")
_NEVER_REASONS = re.compile(r"(?:^|[/:])(?:gpt-[34]|chatgpt|gpt-.*-chat)")
_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_-]+")


def encode(request: ModelRequest, settings: Settings, fragments: Fragments) -> bytes:
    """The body, with the messages' own JSON joined in rather than encoded again."""
    options = msgspec.json.encode(_options(request, settings))
    # An assistant that said nothing leaves nothing to send.
    items = b",".join([fragment for fragment in fragments.of(request.messages) if fragment])
    return options[:-1] + b',"input":[' + items + b"]}"


def takes_reasoning(settings: Settings) -> bool:
    """False for a model that refuses the thoughts of others, and for a host that does."""
    return "no_encrypted_reasoning" not in settings.quirks and not _NEVER_REASONS.search(settings.model)


def encode_message(message: Message) -> bytes:
    """The items of one message as JSON, thoughts included."""
    return _joined(message_items(message))


def encode_message_without_reasoning(message: Message) -> bytes:
    """The items of one message as JSON, for a model that does not reason."""
    return _joined(message_items(message, reasoning=False))


def message_items(message: Message, *, reasoning: bool = True) -> list[Item]:
    """One message in the words of this API: an assistant's may be several items, or none."""
    if message.is_tool:
        output = _content(message.content)
        return [{"type": "function_call_output", "call_id": message.tool_call_id, "output": output}]
    if message.is_assistant:
        return items_of(message, reasoning=reasoning)
    return [{"role": str(message.role), "content": _content(message.content)}]


def tool_document(spec: ToolSpec) -> dict[str, Any]:
    """A tool in the words of this API."""
    return {
        "type": "function",
        "name": spec.name,
        "description": spec.description,
        "parameters": spec.parameters,
        # Left out, this API would make every parameter a required one.
        "strict": False,
    }


def _joined(items: Sequence[Item]) -> bytes:
    return b",".join([msgspec.json.encode(item) for item in items])


def _content(content: str | Sequence[Part]) -> Any:
    return content if isinstance(content, str) else [_part(part) for part in content]


def _part(part: Part) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "input_text", "text": part.text}
    if isinstance(part, ImagePart):
        return {"type": "input_image", "image_url": data_address(part), "detail": "auto"}
    if part.url is not None and not part.url.startswith("data:"):
        return {"type": "input_file", "file_url": part.url}
    return {"type": "input_file", "filename": part.name or "file", "file_data": data_address(part)}


def _options(request: ModelRequest, settings: Settings) -> dict[str, Any]:
    """Everything but the messages."""
    extra = dict(settings.extra)
    options: dict[str, Any] = {"model": settings.model, "stream": settings.stream}
    options |= _memory(settings)
    if request.instructions:
        options["instructions"] = request.instructions
    if settings.temperature is not None:
        options["temperature"] = settings.temperature
    if settings.max_tokens is not None:
        options["max_output_tokens"] = settings.max_tokens
    # Tools that run at the provider stand beside ours, and how to write beside what to write.
    if tools := [*map(tool_document, request.tools), *(extra.pop("tools", None) or ())]:
        options["tools"] = tools
        if settings.tool_choice is not None:
            options["tool_choice"] = _tool_choice(settings.tool_choice)
        if settings.parallel_tool_calls is not None:
            options["parallel_tool_calls"] = settings.parallel_tool_calls
    form = {"format": _response_format(settings.response_format)} if settings.response_format else {}
    if text := form | (extra.pop("text", None) or {}):
        options["text"] = text
    return options | extra


def _memory(settings: Settings) -> dict[str, Any]:
    """We keep the history; the provider hands out its thoughts, sealed, so that we can keep them too."""
    options: dict[str, Any] = {} if "no_store" in settings.quirks else {"store": False}
    # A model that does not reason answers the wish for its thoughts with an error.
    if takes_reasoning(settings) and _REASONS.search(settings.model):
        options["include"] = [ENCRYPTED_REASONING]
    return options


def _tool_choice(choice: str) -> Any:
    return choice if choice in ("auto", "none", "required") else {"type": "function", "name": choice}


def _response_format(schema: Mapping[str, Any]) -> dict[str, Any]:
    name = _NOT_IN_A_NAME.sub("_", str(schema.get("title") or "answer"))[:64]
    return {"type": "json_schema", "name": name, "schema": schema, "strict": True}
