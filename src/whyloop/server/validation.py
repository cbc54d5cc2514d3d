"""Queries and bodies that do not fit their types: the problem in plain sentences, for clients."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Any, Literal, get_args, get_origin

import msgspec

from whyloop.values.text import shortened

_WHOLE, _AMOUNT = "a whole number from 1 on, or none", "a number above 0 with at most 6 decimals, or none"
# What fits the pattern of a field.
_FORMS = {
    "max_steps": _WHOLE,
    "max_tokens": _WHOLE,
    "timeout": _AMOUNT,
    "cumulative_timeout": _AMOUNT,
    "max_cost": _AMOUNT,
    "usd": "a number of US dollars, such as 0.05",
}


def described(text: str, kind: type | None = None, data: Any = None) -> str:
    """Return a validation error for a client: the path, then the problem."""
    problem, _, path = text.partition(" - at `$.")
    name = path.rstrip("`")
    problem = problem.replace("`", "").replace("Object missing required field", "this is missing:")
    form = _FORMS.get(name.rpartition(".")[2])
    if form is not None and "matching regex" in problem:
        given = data.get(name) if isinstance(data, dict) else None
        return f"invalid {name}{'' if given is None else f' {shortened(str(given), 40)!r}'}: use {form}"
    if kind is not None and problem.startswith("Invalid enum value"):
        known = _choices(kind, name)
        problem = f"{problem}: choose from {', '.join(known)}" if known else problem
    elif kind is not None and not name and problem.startswith("Object contains unknown field"):
        known = [field.encode_name for field in msgspec.structs.fields(kind)]
        field = problem.removeprefix("Object contains unknown field ")
        return f"unknown field {field!r}: use {', '.join(known) or 'none'}"
    return f"{name}: {problem[:1].lower()}{problem[1:]}" if name else problem


def _choices(kind: type, name: str) -> list[str]:
    types = [field.type for field in msgspec.structs.fields(kind) if field.name == name]
    return [str(member) for each in types for member in _members(each)]


def _members(kind: Any) -> Iterator[object]:
    """Yield the members of the enumerations in a type, and the values of its literals."""
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        yield from kind
    elif get_origin(kind) is Literal:
        yield from get_args(kind)
    else:
        for part in get_args(kind):
            yield from _members(part)
