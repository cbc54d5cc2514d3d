"""The arguments of a tool call, to the letter and in short."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from whyloop.values.text import counted, shortened

MOST_CHARACTERS = 4_000
ARGUMENTS_SHOWN = 3
ARGUMENT_LENGTH = 30


def exact(arguments: Mapping[str, Any] | str, *, full: bool = False) -> list[str]:
    """The arguments of a call as lines of JSON; what cannot be seen is escaped, not left out."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, indent=2)
    if not isinstance(arguments, str) and len(text) <= 80:
        text = json.dumps(arguments, ensure_ascii=False)
    hidden = 0 if full else max(0, len(text) - MOST_CHARACTERS)
    lines = [visible(line) for line in text[: len(text) - hidden].split("\n")]
    return (
        [*lines, f"… and {counted(hidden, 'character')} more: whyloop show --full has them"]
        if hidden
        else lines
    )


def visible(text: str) -> str:
    """The text with everything escaped that a terminal would not show or would obey."""
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)


def summary(arguments: Mapping[str, Any] | str) -> str:
    """The first arguments of a tool call: "query: 'fjord', kind: 'lead'"."""
    if isinstance(arguments, str):
        return shortened(arguments, ARGUMENT_LENGTH)
    shown = [f"{shortened(key, ARGUMENT_LENGTH)}: {_value(value)}" for key, value in arguments.items()]
    more = ["…"] if len(shown) > ARGUMENTS_SHOWN else []
    return ", ".join(shown[:ARGUMENTS_SHOWN] + more)


def _value(value: object) -> str:
    if isinstance(value, str):
        return f"'{shortened(value, ARGUMENT_LENGTH)}'"
    return shortened(json.dumps(value, ensure_ascii=False, default=repr), ARGUMENT_LENGTH)
