"""What a model is asked, what it answers, and what that cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from enum import StrEnum
from typing import Any

from msgspec import Struct

from whyloop.values.messages import Message, ToolCall
from whyloop.values.scalars import Count


class Usage(Struct, frozen=True, gc=False, omit_defaults=True):
    """Tokens read and written; `cached` is part of `input`, `reasoning` is part of `output`.

    `cost` is in US dollars, None if it is unknown. `reported` is False if the provider did not report the
    usage of some call: the numbers are then a lower bound.
    """

    input: Count = 0
    output: Count = 0
    cached: Count = 0
    reasoning: Count = 0
    cost: Decimal | None = None
    reported: bool = True

    @property
    def total(self) -> int:
        return self.input + self.output

    def __add__(self, other: Usage) -> Usage:
        if other is NO_USAGE:
            return self
        return Usage(
            self.input + other.input,
            self.output + other.output,
            self.cached + other.cached,
            self.reasoning + other.reasoning,
            None if self.cost is None and other.cost is None else _total_cost(self, other),
            self.reported and other.reported,
        )


NO_USAGE = Usage()
"""The default of every field: an encoder leaves exactly this value out."""


def _total_cost(one: Usage, other: Usage) -> Decimal | None:
    """Return the cost of both; unknown plus known is unknown, but nothing used costs nothing."""
    if one.cost is not None and other.cost is not None:
        return one.cost + other.cost
    if not one.total:
        return other.cost
    return None if other.total else one.cost


class FinishReason(StrEnum):
    """Why the model ended its answer, in one vocabulary for all providers.

    With `pause_turn` the provider interrupted a long turn, and continues it when it is asked again.
    """

    truncates: bool
    """True if the model did not get to the end of its answer."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CONTENT_FILTER = "content_filter"
    PAUSE_TURN = "pause_turn"
    ERROR = "error"
    OTHER = "other"


for _reason in FinishReason:
    _reason.truncates = _reason.value in ("length", "content_filter")


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


class ReasoningDelta(Struct, frozen=True, gc=False):
    """A piece of the model's reasoning, as it streams in; it is not part of the answer's text."""

    text: str


Delta = TextDelta | ReasoningDelta
"""A piece of an answer that is still streaming in."""


class ModelSource(Struct, frozen=True, gc=False, omit_defaults=True):
    """Where an answer came from: which model, with which word it finished, what happened on the way."""

    model: str | None = None
    response_id: str | None = None
    finish_word: str | None = None
    notes: tuple[str, ...] = ()


class ModelResponse(Struct, frozen=True, gc=False):
    """A model's complete answer.

    `reasoning` is what the model said to itself; `extras` goes back to the provider with the message.
    `unsupported` names what arrived and cannot be handled, such as an image: the response is then a failure.
    """

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: FinishReason = FinishReason.STOP
    usage: Usage = NO_USAGE
    reasoning: str = ""
    extras: Mapping[str, Any] = {}
    source: ModelSource | None = None
    unsupported: tuple[str, ...] = ()
