"""Messages in older forms of the conventions for generative AI, as the current form has them.

Until 2025 messages were events of a span: `gen_ai.user.message` and `gen_ai.choice`, and before that
`gen_ai.content.prompt` and `gen_ai.content.completion`. OpenLLMetry writes one attribute for each field of a
message: `gen_ai.prompt.0.role`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from whyloop.imports.log_format import first_text, joined_text

INPUT, OUTPUT = "gen_ai.input.messages", "gen_ai.output.messages"

_MESSAGE = re.compile(r"gen_ai\.(system|user|assistant|tool)\.message")
_FIELD = re.compile(r"gen_ai\.(prompt|completion)\.(\d+)\.(role|content|finish_reason|tool_call_id)")
_CALL_FIELD = re.compile(r"gen_ai\.(prompt|completion)\.(\d+)\.tool_calls\.(\d+)\.(id|name|arguments)")

Messages = list[Mapping[str, Any]]


def with_messages(attributes: dict[str, Any], events: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the attributes of a span with its messages in the current form.

    Args:
        attributes: The attributes of the span.
        events: The attributes of each of its events, with the name of the event as `event.name`.
    """
    if INPUT in attributes or OUTPUT in attributes:
        return attributes
    given, answers = _in_events(events)
    if not given and not answers:
        given, answers = _in_attributes(attributes, "prompt"), _in_attributes(attributes, "completion")
    if not given and not answers:
        return attributes
    return {**attributes, INPUT: [_entry(each) for each in given], OUTPUT: [_entry(each) for each in answers]}


def operation_of(attributes: Mapping[str, Any]) -> str:
    """Return the operation of a span; OpenLLMetry names it otherwise."""
    named = first_text(attributes, "gen_ai.operation.name")
    return named or ("chat" if first_text(attributes, "llm.request.type") in ("chat", "completion") else "")


def _in_events(events: Iterable[Mapping[str, Any]]) -> tuple[Messages, Messages]:
    """Return the messages that a model read, and those that it wrote."""
    given: Messages = []
    answers: Messages = []
    for event in events:
        name = first_text(event, "event.name")
        content = _decoded(event.get("gen_ai.event.content"))
        body: Mapping[str, Any] = content if isinstance(content, dict) else event
        if name == "gen_ai.content.prompt":
            given += _dicts(_decoded(event.get("gen_ai.prompt")))
        elif name == "gen_ai.content.completion":
            answers += _dicts(_decoded(event.get("gen_ai.completion")))
        elif name == "gen_ai.choice":
            message = _decoded(body.get("message"))
            held = message if isinstance(message, dict) else body
            answers.append({"finish_reason": body.get("finish_reason"), **held, "role": "assistant"})
        elif found := _MESSAGE.fullmatch(name):
            given.append({"role": found[1], **body})
    return given, answers


def _in_attributes(attributes: Mapping[str, Any], kind: str) -> Messages:
    """Return messages that have one attribute for each field."""
    messages: dict[int, dict[str, Any]] = {}
    calls: dict[tuple[int, int], dict[str, Any]] = {}
    for key, value in attributes.items():
        if (field := _FIELD.fullmatch(key)) and field[1] == kind:
            messages.setdefault(int(field[2]), {})[field[3]] = value
        elif (field := _CALL_FIELD.fullmatch(key)) and field[1] == kind:
            messages.setdefault(int(field[2]), {})
            calls.setdefault((int(field[2]), int(field[3])), {})[field[4]] = value
    for (number, _), call in sorted(calls.items()):
        messages[number].setdefault("tool_calls", []).append(call)
    return [messages[number] for number in sorted(messages)]


def _entry(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message in the current form: a role, and parts."""
    role, text = first_text(message, "role") or "assistant", joined_text(_decoded(message.get("content")))
    if role == "tool":
        result = {"type": "tool_call_response", "response": text}
        return {"role": role, "parts": [{**result, "id": first_text(message, "tool_call_id", "id")}]}
    parts: list[dict[str, Any]] = [{"type": "text", "content": text}] if text else []
    for call in _dicts(_decoded(message.get("tool_calls"))):
        function = call.get("function")
        named = function if isinstance(function, dict) else call
        asked = {"id": first_text(call, "id"), "name": named.get("name"), "arguments": named.get("arguments")}
        parts.append({"type": "tool_call", **asked})
    return {"role": role, "parts": parts, "finish_reason": message.get("finish_reason")}


def _dicts(held: object) -> list[Mapping[str, Any]]:
    return [each for each in (held if isinstance(held, list) else [held]) if isinstance(each, dict)]


def _decoded(value: object) -> object:
    """Return a value that may be written as a JSON object or list."""
    if not isinstance(value, str) or not value.lstrip().startswith(("{", "[")):
        return value
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError):
        return value
