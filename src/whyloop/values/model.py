"""Requests to a model, its responses, and their cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from decimal import Decimal
from enum import StrEnum
from typing import Any, Literal

from msgspec import Struct, UnsetType

from whyloop.errors import ConfigurationError
from whyloop.values.messages import Message, ToolCall
from whyloop.values.scalars import Count, Seconds


class Usage(Struct, frozen=True, gc=False, omit_defaults=True):
    """The tokens of model calls, and their cost."""

    input: Count = 0
    """The tokens that the model read."""
    output: Count = 0
    """The tokens that the model wrote."""
    cached: Count = 0
    """The tokens of `input` that came from a cache."""
    reasoning: Count = 0
    """The tokens of `output` that were reasoning."""
    cost: Decimal | None = None
    """The cost in US dollars; None if it is unknown."""
    reported: bool = True
    """False if the provider did not report the usage of a call, so that the numbers are a lower bound."""
    cache_writes: Count = 0
    """The tokens of `input` that were written to a cache."""
    known_cost: Decimal | None = None
    """The known part of an unknown cost, a lower bound; None if no part is known."""

    def __post_init__(self) -> None:
        if self.cost is not None or self.known_cost is not None:
            refuse_impossible_cost(self.cost)
            refuse_impossible_cost(self.known_cost)

    @property
    def total(self) -> int:
        """The tokens read and written together."""
        return self.input + self.output

    @property
    def is_unpriced(self) -> bool:
        """True if there is usage whose cost is unknown."""
        return self.cost is None and (not self.reported or self.total > 0)

    def __add__(self, other: Usage) -> Usage:
        if other is NO_USAGE:
            return self
        cost, known = self.cost, self.known_cost
        if cost is not None or other.cost is not None or other.known_cost is not None:
            cost = _total_cost(self, other)
            known = _known_cost(self, other) if cost is None else None
        return Usage(
            self.input + other.input,
            self.output + other.output,
            self.cached + other.cached,
            self.reasoning + other.reasoning,
            cost,
            self.reported and other.reported,
            self.cache_writes + other.cache_writes,
            known,
        )


NO_USAGE = Usage()
"""The default of every field: the encoder omits exactly this value."""


LARGEST_COST = Decimal(10**15)
"""The largest cost of a session in US dollars; that of one answer is far smaller."""


def refuse_impossible_cost(cost: object) -> None:
    """Raise a `ConfigurationError` for a number that is no amount of money."""
    if isinstance(cost, Decimal) and not (cost.is_finite() and 0 <= cost <= LARGEST_COST):
        raise ConfigurationError(
            f"invalid cost {cost:.6g}: use an amount in US dollars, from zero to {LARGEST_COST:,}"
        )


def _total_cost(one: Usage, other: Usage) -> Decimal | None:
    """Return the cost of both; unknown plus known is unknown."""
    if one.cost is not None and other.cost is not None:
        return min(one.cost + other.cost, LARGEST_COST)
    if one.is_unpriced or other.is_unpriced:
        return None
    return other.cost if one.cost is None else one.cost


def _known_cost(one: Usage, other: Usage) -> Decimal | None:
    """Return the known part of the cost of both."""
    first = one.known_cost if one.cost is None else one.cost
    second = other.known_cost if other.cost is None else other.cost
    return first if second is None else second if first is None else min(first + second, LARGEST_COST)


class FinishReason(StrEnum):
    """Why the model ended its answer, in one vocabulary for all providers.

    With `pause_turn` the provider interrupted a long turn; the next request continues it.
    """

    truncates: bool
    """True if the model did not finish its answer."""

    STOP = "stop"
    """The model was done."""
    LENGTH = "length"
    """The answer reached the limit of its length."""
    TOOL_CALLS = "tool_calls"
    """The model asked for tools."""
    CONTENT_FILTER = "content_filter"
    """The provider removed the rest of the answer."""
    PAUSE_TURN = "pause_turn"
    """The provider interrupted a long turn."""
    ERROR = "error"
    """The provider reports an error."""
    OTHER = "other"
    """A reason that whyloop does not know."""


for _reason in FinishReason:
    _reason.truncates = _reason.value in ("length", "content_filter")


class ToolSpec(Struct, frozen=True, gc=False):
    """The description of a tool for a model."""

    name: str
    """The name of the tool."""
    description: str
    """The description of the tool, for the model."""
    parameters: Mapping[str, Any]
    """The JSON schema of its arguments."""


OUTPUT_TOOL = "final_answer"
"""The name of the tool by which a model gives an answer of the agent's `output_type`."""


OUTPUT_FIELD = "value"
"""The field that holds an output that is not an object, since every provider requires an object."""


class OutputMode(StrEnum):
    """The way in which a model is asked for a typed answer."""

    NATIVE = "native"
    """The provider makes the answer fit a JSON schema."""
    TOOL = "tool"
    """The model answers with a call of an output tool."""
    PROMPT = "prompt"
    """The instructions ask for JSON."""
    TEXT = "text"
    """The answer is text as it is."""


class OutputFormat(Struct, frozen=True, gc=False):
    """The form of an answer, for a model whose provider supports it."""

    name: str
    """A name for the schema: letters, digits, _ and -."""
    schema: Mapping[str, Any]
    """The JSON schema of an object."""


class DecodedOutput(Struct, frozen=True):
    """The output of a run as a value of its type, beside the JSON that is stored."""

    value: Any
    """The value."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Omit the value from a pickled state, which has its JSON."""
        return UnsetType, ()

    def __deepcopy__(self, memo: dict[int, Any]) -> DecodedOutput:
        return DecodedOutput(deepcopy(self.value, memo))


class ModelRequest(Struct, frozen=True, gc=False):
    """A request to a model: the history, the tools and the instructions."""

    messages: Sequence[Message]
    """The history of the session."""
    tools: tuple[ToolSpec, ...] = ()
    """The tools that the model may call."""
    instructions: str | None = None
    """The instructions of the agent."""
    output: OutputFormat | None = None
    """The form of the answer; None for text, and for a model whose `output_mode` is not native."""
    tool_choice: Literal["none"] | None = None
    """`none` if the model must not call the declared tools; None leaves it to the model."""
    max_tokens: int | None = None
    """The maximum length of the answer in tokens; None for the model's own setting."""


class TextDelta(Struct, frozen=True, gc=False):
    """A piece of the answer's text, as it streams in."""

    text: str
    """The piece."""


class ReasoningDelta(Struct, frozen=True, gc=False):
    """A piece of the model's reasoning, as it streams in."""

    text: str
    """The piece; it is not part of the answer's text."""


class OutputDelta(Struct, frozen=True, gc=False):
    """A piece of the JSON of a typed answer, which a model gives as a call of `OUTPUT_TOOL`."""

    text: str
    """The piece."""


Delta = TextDelta | ReasoningDelta | OutputDelta
"""A piece of an answer that is still streaming in."""


class ModelAttempt(Struct, frozen=True, gc=False, omit_defaults=True):
    """A request that failed before the first piece of its answer, and was repeated."""

    failure: str
    """Why it failed: "429", or "connection lost"."""
    seconds: Seconds = 0.0
    """How long it took to fail."""
    waited: Seconds = 0.0
    """The wait after it, which is in no active clock."""


class ModelSource(Struct, frozen=True, gc=False, omit_defaults=True):
    """The origin of an answer: the model, its response, and notes on the way there."""

    model: str | None = None
    """The name of the model, as the provider reports it."""
    response_id: str | None = None
    """The provider's id of the response."""
    finish_word: str | None = None
    """The provider's own term for the finish reason."""
    notes: tuple[str, ...] = ()
    """Events on the way to the answer, such as a fallback to another model."""
    output: OutputMode | None = None
    """How the answer was asked for by an agent with an output type."""
    attempts: tuple[ModelAttempt, ...] = ()
    """The requests that failed before the one that the model answered, or that failed last."""

    @property
    def waited(self) -> float:
        """The seconds of all waits between the attempts."""
        return sum([attempt.waited for attempt in self.attempts])


class ModelResponse(Struct, frozen=True, gc=False):
    """A model's complete answer."""

    text: str = ""
    """The text of the answer."""
    tool_calls: tuple[ToolCall, ...] = ()
    """The calls that the model asks for."""
    finish_reason: FinishReason = FinishReason.STOP
    """Why the model ended its answer."""
    usage: Usage = NO_USAGE
    """The tokens of the call."""
    reasoning: str = ""
    """The text of the model's reasoning."""
    extras: Mapping[str, Any] = {}
    """The data that the provider needs back with the message."""
    source: ModelSource | None = None
    """The origin of the answer."""
    unsupported: tuple[str, ...] = ()
    """The parts that cannot be handled, such as an image: the response is then a failure."""
    billing: Mapping[str, int | str] = {}
    """Counts and conditions besides `usage` that a price depends on, such as `service_tier`."""
