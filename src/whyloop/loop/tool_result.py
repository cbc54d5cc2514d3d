"""What a tool returned, as the text that a model reads."""

from __future__ import annotations

from typing import Any

import msgspec

from whyloop.errors import ToolExecutionError
from whyloop.rules.classification import error_text
from whyloop.values.text import clean


def encoded(value: object, most: int | None) -> str:
    """Text as it is, anything else as JSON; cut, and marked as cut, where it is longer than it may be."""
    text = clean(value) if isinstance(value, str) else _json(value)
    if most is not None and len(text) > most:
        return f"{text[:most]}\n[cut here: {len(text):,} characters in all, the first {most:,} are shown]"
    return text


def _json(value: object) -> str:
    try:
        return msgspec.json.encode(value, enc_hook=_plain).decode()
    except Exception as error:
        kind = type(value).__name__
        raise ToolExecutionError(
            f"it returned a {kind} that cannot be encoded: {error_text(error)}"
        ) from error


def _plain(value: Any) -> Any:
    """Pydantic models, known by their method; nothing else has a form that a model could read."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} has no JSON form")
