"""Short summaries of arguments, results and attempts, for people who watch a run."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

from whyloop.values import encoding
from whyloop.values.model import ModelSource
from whyloop.values.redaction import LONGEST, Redaction
from whyloop.values.text import clean, ordinal, revealed, shortened

SHOWN = 3


def args_summary(
    arguments: Mapping[str, Any] | str, longest: int = 30, redaction: Redaction | None = None
) -> str:
    """Return the first three arguments, each value cut short.

    For example `query: 'dbplus', types: ["program"]`. A person decides about a call by what it shows, so
    characters that reverse or hide text become escapes.
    """
    if isinstance(arguments, str):
        return revealed(result_summary(arguments, longest, redaction))
    shown = dict(islice(arguments.items(), SHOWN))
    if redaction is not None:
        return revealed(_redacted_summary(shown, longest, redaction))
    parts = [f"{clean(str(key)[:longest])}: {_value(value, longest)}" for key, value in shown.items()]
    return revealed(", ".join(parts))


def result_summary(result: str, longest: int = 100, redaction: Redaction | None = None) -> str:
    """Return the beginning of a result."""
    return clean(redaction.beginning(result, longest)[:longest] if redaction else result[:longest])


def _redacted_summary(arguments: dict[str, Any], longest: int, redaction: Redaction) -> str:
    seen = longest + LONGEST
    shown = redaction.data({str(key)[:seen]: _beginning(value, seen) for key, value in arguments.items()})
    quotes = ["'" if isinstance(value, str) else "" for value in arguments.values()]
    return ", ".join(
        f"{clean(key[:longest])}: {quote}{_unquoted(value, longest)}{quote}"
        for quote, (key, value) in zip(quotes, shown.items(), strict=False)
    )


def _beginning(value: object, longest: int) -> object:
    """Return the part of a value that is searched for secrets: a number or a text."""
    if value is None or isinstance(value, int | float):
        return value
    return value[:longest] if isinstance(value, str) else _value(value, longest)


def _unquoted(value: object, longest: int) -> str:
    return clean(value[:longest]) if isinstance(value, str) else _value(value, longest)


def _value(value: object, longest: int) -> str:
    if isinstance(value, str):
        return f"'{clean(value[:longest])}'"
    try:
        return encoding.json_text(value)[:longest]
    except (TypeError, ValueError, RecursionError):
        return encoding.describe(value, longest)


def attempts_summary(source: ModelSource | None) -> str:
    """Return how often a request was repeated: "at the 3rd attempt after 429, 429; waited 2.1 s"."""
    if source is None or not source.attempts:
        return ""
    return f"at the {ordinal(len(source.attempts) + 1)} attempt after {failed_attempts(source)}"


def failed_attempts(source: ModelSource) -> str:
    """Return why the attempts of a request failed: "429, 429; waited 2.1 s"."""
    failures = ", ".join([shortened(attempt.failure) for attempt in source.attempts])
    return failures + (f"; waited {source.waited:,.1f} s" if source.waited else "")
