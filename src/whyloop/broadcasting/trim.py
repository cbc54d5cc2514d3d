"""Make envelopes fit a size, the longest texts first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from whyloop.broadcasting.adapter import Envelope

_FIRST_CUT = 8_000  # No text that is cut keeps more than this: halving a megabyte takes a while.
_SHORTEST = 16
_ELLIPSIS = "…"
# Fields that stay as they are: results go by the id of their call, and decisions by that of their question.
# An envelope with an id so long that it leaves no room cannot be made to fit.
_KEPT = ("trimmed", "trimmed_fields", "tool_call_id", "question_id")


def trimmed(envelope: Envelope, fits: Callable[[Envelope], bool]) -> Envelope | None:
    """Return the envelope if it fits, else one with texts of its data cut; None if nothing helps.

    In the data of one that was cut `trimmed` is true, and `trimmed_fields` has the names of the fields.
    """
    if fits(envelope):
        return envelope
    data = dict(envelope["data"])
    fields: list[str] = []
    for field in _smaller(data):
        if field not in fields:
            fields.append(field)
        cut = {**envelope, "data": {**data, "trimmed": True, "trimmed_fields": fields}}
        if fits(cut):
            return cut
    return None


def _smaller(data: dict[str, Any]) -> Iterator[str]:
    """Make the data smaller step by step, and yield the name of the field that was cut each time."""
    while (longest := _longest(data)) is not None:
        field, length = longest
        data[field] = _cut(data[field], min(length // 2, _FIRST_CUT))
        yield field
    # The rest consists of very many small parts.
    for field in sorted(data, key=lambda name: len(str(data[name])), reverse=True):
        if isinstance(data[field], dict | list) and data[field]:
            data[field] = type(data[field])()
            yield field


def _longest(data: Mapping[str, Any]) -> tuple[str, int] | None:
    """Return the field with the longest text that can still be cut, and the length of that text."""
    found = [(name, max(_lengths(value), default=0)) for name, value in data.items() if name not in _KEPT]
    name, length = max(found, key=lambda pair: pair[1], default=("", 0))
    return (name, length) if length > _SHORTEST else None


def _lengths(value: Any) -> Iterator[int]:
    match value:
        case str():
            yield len(value)
        case dict():
            for each in value.values():
                yield from _lengths(each)
        case list():
            for each in value:
                yield from _lengths(each)


def _cut(value: Any, longest: int) -> Any:
    """Return the value with every text in it no longer than this."""
    match value:
        case str() if len(value) > longest:
            return value[: longest - 1] + _ELLIPSIS
        case dict():
            return {name: _cut(each, longest) for name, each in value.items()}
        case list():
            return [_cut(each, longest) for each in value]
    return value
