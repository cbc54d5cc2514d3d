"""What every driver's response is held to, whoever sent it."""

from __future__ import annotations

from msgspec.structs import replace

from whyloop.errors import ModelError
from whyloop.models.parts import new_call_id
from whyloop.values.messages import ToolCall
from whyloop.values.model import FinishReason, ModelResponse, ModelSource


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
