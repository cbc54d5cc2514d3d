"""What every driver's response is held to, whoever sent it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from whyloop.errors import ModelError, ResponseValidationError
from whyloop.models.parts import new_call_id
from whyloop.rules.tool_schema import problem_with
from whyloop.values.messages import ToolCall
from whyloop.values.model import FinishReason, ModelResponse, ModelSource
from whyloop.values.text import shortened


def tidied(response: ModelResponse) -> ModelResponse:
    """The response with ids that are all different and a source that is all words; a failed one raised."""
    source = response.source or ModelSource()
    if response.finish_reason is FinishReason.ERROR:
        raise ModelError(f"the model ended its answer with an error: {source.finish_word}")
    return replace(
        response,
        tool_calls=_distinct(response.tool_calls),
        source=ModelSource(
            _words(source.model), _words(source.response_id), _words(source.finish_word), source.notes
        ),
    )


def refuse_misfit(response: ModelResponse, schema: Mapping[str, Any]) -> None:
    """An answer that was to fit a schema and does not is no answer; one that was cut off is told as that."""
    if response.tool_calls or response.finish_reason is not FinishReason.STOP:
        return
    try:
        problem = problem_with(msgspec.json.decode(response.text), schema)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        problem = f"it is no JSON: {shortened(response.text, 80)!r}"
    if problem is not None:
        raise ResponseValidationError(f"the answer does not fit the schema that was asked for: {problem}")


def _distinct(calls: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
    """Calls that results can be told apart by, also from a host that gives one id twice."""
    seen: set[str] = set()
    distinct = []
    for call in calls:
        unique = call.id if call.id not in seen else new_call_id()
        seen.add(unique)
        distinct.append(call if unique == call.id else replace(call, id=unique))
    return tuple(distinct)


def _words(value: object) -> str | None:
    return value if isinstance(value, str) else None
