"""The values of a tool call's arguments, found again in the text of an exception."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

# Shorter values, such as "open" or 17, say little and occur by chance.
SHORTEST = 8
# An exception may quote the beginning of a long value: `int` stops after 200 characters.
_QUOTED = 32
# Beyond these, the search would hold up the event loop. At these it takes 30 to 60 ms.
_MOST_VALUES, _MOST_TEXT = 200, 50_000
_GROUP = "Exception Group Traceback"


def without_arguments(text: str, arguments: Mapping[str, Any] | str) -> str | None:
    """Return a text with each value of arguments replaced by the argument's name.

    None if they cannot be found for certain: the text is too long, the values are too many, or a value of
    several lines may be quoted in an exception group, whose lines are indented.

    Args:
        text: The text, such as a traceback.
        arguments: The arguments of the call; a text is what a model sent instead of an object.
    """
    if isinstance(arguments, str):
        arguments = {"arguments": arguments}
    forms = set(islice(_forms(arguments), _MOST_VALUES + 1))
    if not forms:
        return text
    if len(forms) > _MOST_VALUES or len(text) > _MOST_TEXT:
        return None
    if _GROUP in text and any(len(form.splitlines()) > 1 for form, _ in forms):
        return None
    for form, name in sorted(forms, key=lambda each: len(each[0]), reverse=True):
        text = _replaced(text, form, f"[{name}]")
    return text


def _replaced(text: str, form: str, name: str) -> str:
    """Return a text with a value replaced, or a beginning of it."""
    pieces, start, sought = [], 0, form[:_QUOTED]
    while (found := text.find(sought, start)) >= 0:
        end = found + _shared(text[found : found + len(form)], form)
        pieces += [text[start:found], name]
        start = end
    return "".join([*pieces, text[start:]]) if pieces else text


def _shared(some: str, other: str) -> int:
    """Return how many characters both texts begin with."""
    if some == other:
        return len(some)
    pairs = enumerate(zip(some, other, strict=False))
    return next((index for index, (one, two) in pairs if one != two), min(len(some), len(other)))


def _forms(arguments: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the texts by which an exception may quote a value, with the argument's name."""
    for name, argument in arguments.items():
        for value in _leaves(argument):
            plain = value if isinstance(value, str) else str(value)
            if len(plain) < SHORTEST:
                continue
            yield plain, name
            if isinstance(value, str):
                # A syntax error quotes one line of what it parsed.
                shorter = {value.strip(), *map(str.strip, value.splitlines())}
                for other in {repr(value)[1:-1], json.dumps(value)[1:-1], *shorter} - {plain}:
                    if len(other) >= SHORTEST:
                        yield other, name


def _leaves(value: Any) -> Iterator[Any]:
    """Yield the texts and the numbers in a value; keys are values too."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple | set | frozenset):
            waiting += value
        elif isinstance(value, str | int | float):
            yield value
