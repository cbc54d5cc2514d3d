"""Words for people: what comes from models and tools made safe to show, and short."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from whyloop.values.text import counted, shortened

ARGUMENTS_SHOWN = 3
ARGUMENT_LENGTH = 30

_LONG_UNITS = ((86_400, "day"), (3_600, "hour"), (60, "minute"))


def safe(text: str) -> str:
    """The text without anything that could steer a terminal; line ends stay."""
    return "".join(char if char.isprintable() or char == "\n" else " " for char in text)


def brief(text: str, limit: int = 100) -> str:
    """The text safe, on one line, and not too long."""
    return shortened(safe(text), limit)


def summary(arguments: Mapping[str, Any] | str) -> str:
    """The first arguments of a tool call: "query: 'fjord', kind: 'lead'"."""
    if isinstance(arguments, str):
        return brief(arguments, ARGUMENT_LENGTH)
    shown = [f"{brief(key, ARGUMENT_LENGTH)}: {_value(value)}" for key, value in arguments.items()]
    more = ["…"] if len(shown) > ARGUMENTS_SHOWN else []
    return ", ".join(shown[:ARGUMENTS_SHOWN] + more)


def _value(value: object) -> str:
    if isinstance(value, str):
        return f"'{brief(value, ARGUMENT_LENGTH)}'"
    return brief(json.dumps(value, ensure_ascii=False, default=repr), ARGUMENT_LENGTH)


def duration(seconds: float) -> str:
    """A span of time in the unit that suits it."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    size, noun = next(unit for unit in _LONG_UNITS if seconds >= unit[0])
    return counted(int(seconds // size), noun)
