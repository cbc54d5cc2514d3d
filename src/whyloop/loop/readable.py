"""What a model answered, made sure that it can be worked with, stored and read back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from math import isfinite

from msgspec.structs import replace

from whyloop.errors import ResponseValidationError
from whyloop.rules.repeated import without_calls
from whyloop.values.messages import ToolCall
from whyloop.values.model import FinishReason, ModelResponse, ModelSource
from whyloop.values.text import clean
from whyloop.values.usage import Usage


def readable(response: ModelResponse) -> ModelResponse:
    """The response itself where it is as it should be, else one that is; a careless model is data, too."""
    try:
        usage = response.usage
        if (
            response.text.isascii()
            and type(response.finish_reason) is FinishReason
            and type(response.tool_calls) is tuple
            and type(response.extras) is dict
            and type(response.reasoning) is str
            and response.source is None
            and not response.unsupported
            and (usage.input | usage.output | usage.cached | usage.reasoning) >= 0
        ):
            if response.text and response.tool_calls:
                return _repaired(response)
            for call in response.tool_calls:
                if not (call.name.isascii() and call.id.isascii()) or type(call.arguments) is not dict:
                    break
            else:
                if len(response.tool_calls) < 2 or _are_apart(response.tool_calls):
                    return response
        return _repaired(response)
    except (AttributeError, TypeError):
        return _repaired(response)  # Something in it is not what it should be; there it is named.


def _repaired(response: ModelResponse) -> ModelResponse:
    if not isinstance(response.text, str):
        raise ResponseValidationError(f"the model's text is {_type(response.text)} instead of str")
    if not isinstance(response.reasoning, str | None):
        raise ResponseValidationError(f"the model's reasoning is {_type(response.reasoning)} instead of str")
    if not isinstance(response.usage, Usage):
        raise ResponseValidationError(f"the model's usage is {_type(response.usage)} instead of Usage")
    word = response.finish_reason
    known = word in list(FinishReason)
    unsupported = tuple(clean(str(item)) for item in response.unsupported)
    # Nothing of a response runs that cannot be answered as a whole.
    calls = () if unsupported else _told_apart([_call(call) for call in response.tool_calls])
    return replace(
        response,
        # Whatever the model is: arguments are no language, and are not kept as text.
        text=without_calls(clean(response.text), calls),
        reasoning=response.reasoning or "",
        usage=_usage(response.usage),
        tool_calls=calls,
        finish_reason=FinishReason(word) if known else FinishReason.OTHER,
        extras=response.extras if isinstance(response.extras, dict) else {},
        source=_source(response.source),
        unsupported=unsupported,
    )


def _usage(usage: Usage) -> Usage:
    cost = usage.cost if isinstance(usage.cost, Decimal) and usage.cost.is_finite() else None
    return Usage(
        _count(usage.input),
        _count(usage.output),
        _count(usage.cached),
        _count(usage.reasoning),
        cost,
        usage.reported is not False,
    )


def _count(number: object) -> int:
    """A number of tokens, whatever a provider made of it."""
    if isinstance(number, bool) or not isinstance(number, int | float) or not isfinite(number):
        return 0
    return max(0, int(number))


def _call(call: object) -> ToolCall:
    if not isinstance(call, ToolCall) or not isinstance(call.name, str) or not isinstance(call.id, str):
        raise ResponseValidationError(f"the model asked for {_type(call)}, which is not a valid ToolCall")
    arguments = call.arguments
    if not isinstance(arguments, Mapping | str):
        raise ResponseValidationError(f"the arguments for {call.name} are {_type(arguments)} instead of dict")
    if not isinstance(arguments, str):
        arguments = dict(arguments)
    return ToolCall(clean(call.id), clean(call.name), arguments)


def _type(value: object) -> str:
    """Return the name of a type: the value may hold arguments, and a failure is shown to people."""
    return type(value).__name__


def _are_apart(calls: Sequence[ToolCall]) -> bool:
    return len({call.id for call in calls}) == len(calls)


def _told_apart(calls: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
    """The calls with an id each, since results and decisions go by it."""
    if _are_apart(calls):
        return tuple(calls)
    taken: set[str] = set()
    apart = []
    for call in calls:
        own, number = call.id, 1
        while own in taken:
            number += 1
            own = f"{call.id}-{number}"
        taken.add(own)
        apart.append(call if own == call.id else replace(call, id=own))
    return tuple(apart)


def _source(source: object) -> ModelSource | None:
    """Where the answer came from, as far as it is said in words."""
    if not isinstance(source, ModelSource):
        return None
    model, answer, word = (
        text if isinstance(text, str) else None
        for text in (source.model, source.response_id, source.finish_word)
    )
    notes = source.notes if isinstance(source.notes, tuple) else ()
    words = tuple(note for note in notes if isinstance(note, str))
    same = (model, answer, word, words) == (
        source.model,
        source.response_id,
        source.finish_word,
        source.notes,
    )
    return source if same else ModelSource(model, answer, word, words)
