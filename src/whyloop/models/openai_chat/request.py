"""From a request to the body of a chat completion."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

import msgspec

from whyloop.errors import ConfigurationError
from whyloop.models.fragments import Fragments
from whyloop.models.parts import arguments_text, data_address, own_bytes
from whyloop.models.wire import Settings
from whyloop.values.messages import ImagePart, Message, Part, TextPart
from whyloop.values.model import ModelRequest, ToolSpec
from whyloop.values.text import shortened

NAME = "openai-chat"

_ALWAYS_BACK = ("reasoning_details", "extra_content", "thought_signature")


def encode(request: ModelRequest, settings: Settings, fragments: Fragments) -> bytes:
    """The body, with the messages' own JSON joined in rather than encoded again."""
    options = msgspec.json.encode(_options(request, settings))
    messages = fragments.of(request.messages)
    if "no_developer" in settings.quirks:
        for index, message in enumerate(takewhile(lambda message: message.is_system, request.messages)):
            messages[index] = msgspec.json.encode({"role": "system", "content": _content(message.content)})
    if request.instructions:
        messages.insert(0, msgspec.json.encode({"role": "system", "content": request.instructions}))
    return options[:-1] + b',"messages":[' + b",".join(messages) + b"]}"


def encode_message(message: Message, quirks: frozenset[str] = frozenset()) -> bytes:
    """One message as JSON."""
    return msgspec.json.encode(message_document(message, quirks))


def message_document(message: Message, quirks: frozenset[str] = frozenset()) -> dict[str, Any]:
    """One message in the words of this API, as this host understands them."""
    if message.is_tool:
        call_id = _id(message.tool_call_id or "", quirks)
        return {"role": "tool", "tool_call_id": call_id, "content": message.text}
    if message.is_assistant:
        return _assistant(message, quirks)
    # After the beginning, what the application tells such a host is part of the user's turn.
    role = "user" if message.is_developer and "no_developer" in quirks else str(message.role)
    return {"role": role, "content": _content(message.content)}


def _id(call_id: str, quirks: frozenset[str]) -> str:
    """A call's id as the host wants it, the same for the call and for its result."""
    if "short_ids" not in quirks or re.fullmatch(r"[A-Za-z0-9]{9}", call_id):
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[:9]


def _assistant(message: Message, quirks: frozenset[str]) -> dict[str, Any]:
    extras = {} if "no_extras" in quirks else message.extras.get(NAME, {})
    document: dict[str, Any] = {"role": "assistant", "content": message.text or None}
    document |= {key: extras[key] for key in _ALWAYS_BACK if key in extras}
    # Hosts that think aloud want the thought back with the tools that it led to. Some want it with every
    # message as soon as there are tools, also from models that had none; others refuse it elsewhere.
    if "reasoning_back" in quirks:
        document["reasoning_content"] = extras.get("reasoning_content", "")
    elif message.tool_calls and "reasoning_content" in extras:
        document["reasoning_content"] = extras["reasoning_content"]
    if not message.tool_calls:
        document["content"] = message.text
        return document
    signed = extras.get("tool_calls", {})
    document["tool_calls"] = [
        {
            "id": _id(call.id, quirks),
            "type": "function",
            "function": {"name": call.name, "arguments": arguments_text(call)},
            **signed.get(call.id, {}),
        }
        for call in message.tool_calls
    ]
    return document


def _content(content: str | Sequence[Part]) -> Any:
    return content if isinstance(content, str) else [_part(part) for part in content]


def _part(part: Part) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    if isinstance(part, ImagePart):
        return {"type": "image_url", "image_url": {"url": data_address(part)}}
    if own_bytes(part)[1] is None:
        address = shortened(part.url or "", 100)
        raise ConfigurationError(f"chat completions take no file by its address: {address}; pass its data")
    return {"type": "file", "file": {"filename": part.name or "file", "file_data": data_address(part)}}


def _options(request: ModelRequest, settings: Settings) -> dict[str, Any]:
    """Everything but the messages."""
    quirks = settings.quirks
    options: dict[str, Any] = {"model": settings.model, "stream": settings.stream}
    if settings.stream and "no_stream_options" not in quirks:
        options["stream_options"] = {"include_usage": True}
    if settings.temperature is not None:
        options["temperature"] = settings.temperature
    if settings.max_tokens is not None:
        name = "max_tokens" if "max_tokens" in quirks else "max_completion_tokens"
        options[name] = settings.max_tokens
    extra = dict(settings.extra)
    if tools := [*map(tool_document, request.tools), *(extra.pop("tools", None) or ())]:
        options["tools"] = tools
        if settings.tool_choice is not None:
            options["tool_choice"] = _tool_choice(settings.tool_choice, quirks)
        if settings.parallel_tool_calls is not None:
            options["parallel_tool_calls"] = settings.parallel_tool_calls
    if settings.response_format is not None:
        options["response_format"] = _response_format(settings.response_format)
    return options | extra


def tool_document(spec: ToolSpec) -> dict[str, Any]:
    """A tool in the words of this API."""
    function = {"name": spec.name, "description": spec.description, "parameters": spec.parameters}
    return {"type": "function", "function": function}


def _tool_choice(choice: str, quirks: frozenset[str]) -> Any:
    if choice == "required":
        return "any" if "tool_choice_any" in quirks else "required"
    if choice in ("auto", "none"):
        return choice
    return {"type": "function", "function": {"name": choice}}


def _response_format(schema: Mapping[str, Any]) -> Any:
    name = re.sub(r"[^A-Za-z0-9_-]", "_", str(schema.get("title", "answer")))[:64]
    return {"type": "json_schema", "json_schema": {"name": name, "schema": schema, "strict": True}}
