"""Where somebody has left off who watches a session."""

from __future__ import annotations

from urllib.parse import quote, unquote

from whyloop.errors import ConfigurationError
from whyloop.stores.records import Told
from whyloop.values.text import clean, shortened

LATEST = "latest"
_GREATEST = 2**63 - 1


def place_of(told: Told) -> str:
    """What a client shows to get what comes after an envelope: its execution, and its number there."""
    return f"{quote(told.execution_id, safe='')}:{told.seq}"


def read_place(text: str) -> tuple[str | None, int]:
    """The execution and the number that a client has shown; a number alone is of the latest execution."""
    execution_id, _, number = text.rpartition(":")
    if not (number.isascii() and number.isdigit()) or int(number[:20]) > _GREATEST or len(number) > 19:
        raise ConfigurationError(
            f"{shortened(text, 60)!r} is no place in what was told of a session: it is the number of an "
            f"envelope, or its execution_id, a colon and its number, or {LATEST!r}"
        )
    return clean(unquote(execution_id)) if execution_id else None, int(number)
