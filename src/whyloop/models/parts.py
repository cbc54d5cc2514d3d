"""What the wire formats share: images and files as data addresses, arguments as text, ids, hidden calls."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from whyloop.values.messages import FilePart, ImagePart, ToolCall


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
