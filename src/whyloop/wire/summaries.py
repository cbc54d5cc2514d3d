"""Arguments and results in a few words, for those who watch a run."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

import msgspec

from whyloop.values.plain import describe
from whyloop.values.text import clean

SHOWN = 3


def args_summary(arguments: Mapping[str, Any] | str, longest: int = 30) -> str:
    """The first three arguments, such as `query: 'dbplus', types: ["program"]`, each value cut short."""
    if isinstance(arguments, str):
        return clean(arguments[:longest])
    shown = islice(arguments.items(), SHOWN)
    return ", ".join([f"{clean(str(key)[:longest])}: {_value(value, longest)}" for key, value in shown])


def result_summary(result: str, longest: int = 100) -> str:
    """The beginning of a result."""
    return clean(result[:longest])


def words_for(value: object, longest: int) -> str:
    """The beginning of what Python calls a value that JSON has no words for."""
    try:
        return clean(repr(value)[:longest])
    except Exception:
        return f"<{type(value).__name__}>"[:longest]


def _value(value: object, longest: int) -> str:
    if isinstance(value, str):
        return f"'{clean(value[:longest])}'"
    try:
        return msgspec.json.encode(value, enc_hook=describe).decode()[:longest]
    except (TypeError, ValueError, RecursionError):
        return words_for(value, longest)
