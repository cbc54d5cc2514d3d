"""What goes to a model and what comes back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from msgspec import Struct

from whyloop.values.messages import Message, ToolCall
from whyloop.values.usage import Usage


class FinishReason(StrEnum):
    """Why the model fell silent, in one vocabulary for all providers."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CONTENT_FILTER = "content_filter"
    ERROR = "error"
    OTHER = "other"


class ToolSpec(Struct, frozen=True, gc=False):
    """What a model is told about a tool."""

    name: str
    description: str
    parameters: Mapping[str, Any]


class ModelRequest(Struct, frozen=True, gc=False):
    """One question to a model: the history so far and the tools it may ask for."""

    messages: Sequence[Message]
    tools: tuple[ToolSpec, ...] = ()
    instructions: str | None = None


class TextDelta(Struct, frozen=True, gc=False):
    """A piece of the answer's text, as it streams in."""

    text: str


class ModelResponse(Struct, frozen=True, gc=False):
    """A model's complete answer."""

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: FinishReason = FinishReason.STOP
    usage: Usage = Usage()
