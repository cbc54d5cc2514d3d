"""Removal of keys and tokens from text before it is kept or shown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from whyloop.values.credentials import REMOVED, SHORTEST_KNOWN, without_known
from whyloop.values.redaction import DEFAULT_REDACTION

_SECRET_HEADER = re.compile(r"authorization|api-?key|token|secret|cookie", re.IGNORECASE)
_SHORTEST_START = 4  # The beginning of a secret, as long as this, is more than chance.


def without_secrets(text: str, known: Iterable[str] = ()) -> str:
    """Return the text without secrets, known or by their form; JSON stays JSON."""
    return DEFAULT_REDACTION.text(without_known(text, known))


def without_cut_secrets(text: str, known: Iterable[str]) -> str:
    """Return the text without the beginnings of secrets that an ellipsis cut off."""
    for secret in known:
        for size in range(len(secret) - 1, _SHORTEST_START - 1, -1):
            for dots in ("…", "..."):
                if secret[:size] + dots in text:
                    start = "" if len(secret) >= SHORTEST_KNOWN else r"(?<!\w)"
                    pattern = f"{start}{re.escape(secret[:size] + dots)}"
                    text = re.sub(pattern, REMOVED + dots, text)
    return text


def cleaned(value: Any, known: Iterable[str] = ()) -> Any:
    """Return a JSON document without secrets, found by their form or their name."""
    return DEFAULT_REDACTION.data(_data_without_known(value, tuple(known)))


def header_secrets(headers: Mapping[str, str]) -> list[str]:
    """Return the values of headers whose names mark them as secret."""
    values = [value for name, value in headers.items() if _SECRET_HEADER.search(name)]
    return [secret for value in values if len(secret := value.removeprefix("Bearer ")) >= SHORTEST_KNOWN]


def _data_without_known(value: Any, known: tuple[str, ...]) -> Any:
    match value:
        case str():
            return without_known(value, known)
        case list():
            return [_data_without_known(item, known) for item in value]
        case dict():
            return {
                without_known(key, known): _data_without_known(item, known) for key, item in value.items()
            }
    return value
