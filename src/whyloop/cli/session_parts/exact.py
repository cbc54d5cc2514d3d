"""What a person is asked to agree to, to the letter."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from whyloop.values.text import counted

MOST_CHARACTERS = 4_000


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
