"""Taking keys and tokens out of text before it is kept."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from whyloop.values.redaction import REMOVED, Redaction

_TELLING_HEADER = re.compile(r"authorization|api-?key|token|secret|cookie", re.IGNORECASE)
_REDACTION = Redaction()
_SHORTEST = 8  # Less than this is found in ordinary text, and gives nothing away.
_TELLING = 4  # The beginning of a secret, as long as this, is more than chance.


def without_secrets(text: str, known: Iterable[str] = ()) -> str:
    """The text with known secrets, and whatever looks like one, taken out; JSON stays JSON."""
    return _REDACTION.text(_without_known(text, known))


def without_cut_secrets(text: str, known: Iterable[str]) -> str:
    """The text with what is left of a known secret taken out, where the text was shortened amid it."""
    for secret in known:
        for size in range(len(secret) - 1, _TELLING - 1, -1):
            for dots in ("…", "..."):
                text = text.replace(secret[:size] + dots, REMOVED + dots)
    return text


def cleaned(value: Any, known: Iterable[str] = ()) -> Any:
    """Return a JSON document without secrets, by their form and by their name."""
    return _REDACTION.data(_data_without_known(value, tuple(known)))


def header_secrets(headers: Mapping[str, str]) -> list[str]:
    """What of these headers is nobody's business."""
    values = [value for name, value in headers.items() if _TELLING_HEADER.search(name)]
    return [secret for value in values if len(secret := value.removeprefix("Bearer ")) >= _SHORTEST]


def _without_known(text: str, known: Iterable[str]) -> str:
    for secret in sorted(known, key=len, reverse=True):
        for form in {secret, msgspec.json.encode(secret).decode()[1:-1]}:
            if form:
                text = text.replace(form, REMOVED)
    return text


def _data_without_known(value: Any, known: tuple[str, ...]) -> Any:
    match value:
        case str():
            return _without_known(value, known)
        case list():
            return [_data_without_known(item, known) for item in value]
        case dict():
            return {
                _without_known(key, known): _data_without_known(item, known) for key, item in value.items()
            }
    return value
