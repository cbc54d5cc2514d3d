"""What the wire formats share: images and files as data addresses, arguments as text, ids, hidden calls."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from whyloop.values.messages import FilePart, ImagePart, ToolCall

_FENCE = re.compile(r"^```(?:json|tool_call)?\s*(.*?)\s*```$", re.DOTALL)
_TAGGED = re.compile(r"<(tool_calls?)>\s*(.*?)\s*</\1>", re.DOTALL)
_DECODER = json.JSONDecoder()
_LOOKS_LIKE_A_CALL = ("{", "[", "`", "<tool_call")


def new_call_id() -> str:
    """An id for a tool call that came without one."""
    return f"call_{os.urandom(12).hex()}"


def count(value: object) -> int:
    """A number of tokens; nothing is none."""
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number of tokens")
    return int(value)


def name(value: object) -> str:
    """The name of a tool."""
    if isinstance(value, str) and value:
        return value
    raise TypeError(f"{value!r} is no name of a tool")


def data_address(part: ImagePart | FilePart) -> str:
    """The address of an image or a file; its own bytes as a data: address."""
    if part.url is not None:
        return part.url
    return f"data:{part.media_type or 'application/octet-stream'};base64,{part.data or ''}"


def arguments_text(call: ToolCall) -> str:
    """The arguments of a call as the JSON text that it was, or would have been."""
    if isinstance(call.arguments, str):
        return call.arguments
    return msgspec.json.encode(call.arguments).decode()


def arguments_of(value: Any) -> Any:
    """Arguments from wherever a host puts them: JSON text, an object in one piece, or nothing."""
    if isinstance(value, dict):
        return value
    if value is None:
        return {}
    return ToolCall.parse_arguments(value if isinstance(value, str) else msgspec.json.encode(value))


def may_be_a_call(text: str) -> bool:
    """True for the beginning of a text that could turn out to be a tool call written out as text."""
    start = text.lstrip()
    return start.startswith(_LOOKS_LIKE_A_CALL) or "<tool_call".startswith(start)


def without_calls(text: str, calls: Sequence[ToolCall]) -> str:
    """The text without what only repeats the tool calls: arguments are never shown as language."""
    if not calls or not text:
        return text
    kept = _TAGGED.sub(lambda tagged: "" if _only_repeats(tagged[2], calls) else tagged[0], text)
    if may_be_a_call(kept) and _only_repeats(kept, calls):
        return ""
    return text if kept == text else kept.rstrip()


def _only_repeats(text: str, calls: Sequence[ToolCall]) -> bool:
    """True if there is nothing in the text but JSON documents, each of them one of the calls."""
    inner = text.strip()
    if match := _FENCE.match(inner):
        inner = match[1].strip()
    entries: list[Any] = []
    while inner:
        try:
            said, end = _DECODER.raw_decode(inner)
        except (ValueError, RecursionError):
            return False
        entries += said if isinstance(said, list) else [said]
        inner = inner[end:].strip()
    return bool(entries) and all(_repeats(entry, calls) for entry in entries)


def _repeats(entry: Any, calls: Sequence[ToolCall]) -> bool:
    if not isinstance(entry, dict):
        return False
    function = entry["function"] if isinstance(entry.get("function"), dict) else entry
    named = function.get("name")
    given = function.get("arguments", function.get("parameters", function.get("input")))
    for call in calls:
        if entry == call.arguments:
            return True
        if named == call.name and (given is None or arguments_of(given) == call.arguments):
            return True
    return False
