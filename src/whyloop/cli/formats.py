"""Times and tool arguments as people read and write them."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from whyloop.values.text import counted, shortened
from whyloop.values.times import utc_now

LONGEST_DAYS = 36_500
MOST_CHARACTERS = 4_000
ARGUMENTS_SHOWN = 3
ARGUMENT_LENGTH = 30
_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_SPAN = re.compile(r"(\d{1,9}(?:\.\d{1,9})?) ?(s|min|m|h|d|w)", re.ASCII)

Arguments = Mapping[str, Any] | str


# Times


def parse_span(text: str) -> timedelta:
    """Return the span of time that a command line names: "90s", "30m", "12h", "7d", "2w"."""
    match = _SPAN.fullmatch(text.strip().lower())
    if match is None:
        raise argparse.ArgumentTypeError(f"invalid span of time {text!r}: use 30m, 12h or 7d")
    seconds = float(match[1]) * _UNITS[match[2]]
    if seconds > LONGEST_DAYS * 86_400:
        raise argparse.ArgumentTypeError(f"invalid span of time {text!r}: use at most a hundred years")
    return timedelta(seconds=seconds)


def before_now(span: timedelta) -> datetime:
    """Return the moment that was this long ago."""
    return utc_now() - span


def age(moment: datetime) -> str:
    """Return how long ago a moment was: "3 d"."""
    return span_text(float(int(seconds_since(moment))))


def seconds_since(moment: datetime) -> float:
    """Return how many seconds ago a moment was, at least zero."""
    return max(0.0, (utc_now() - moment).total_seconds())


def span_text(seconds: float) -> str:
    """Return a span of time in a few characters: "420 ms", "12 s", "5 min", "3 h", "40 d"."""
    if 0 < seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 and seconds % 1 else f"{seconds:.0f} s"
    if seconds < 2 * 3_600:
        return f"{seconds // 60:.0f} min"
    if seconds < 2 * 86_400:
        return f"{seconds // 3_600:.0f} h"
    return f"{seconds // 86_400:,.0f} d"


# Tool arguments


def exact_arguments(arguments: Arguments, *, full: bool = False) -> list[str]:
    """Return the arguments of a call as lines of JSON, with unprintable characters escaped."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, indent=2)
    if not isinstance(arguments, str) and len(text) <= 80:
        text = json.dumps(arguments, ensure_ascii=False)
    hidden = 0 if full else max(0, len(text) - MOST_CHARACTERS)
    lines = [escaped(line) for line in text[: len(text) - hidden].split("\n")]
    return (
        [*lines, f"… and {counted(hidden, 'character')} more: whyloop show --full has them"]
        if hidden
        else lines
    )


def escaped(text: str) -> str:
    """Return the text with everything escaped that a terminal would not show, or would obey."""
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)


def arguments_summary(arguments: Arguments) -> str:
    """Return the first arguments of a tool call: "query: 'fjord', kind: 'lead'"."""
    if isinstance(arguments, str):
        return shortened(arguments, ARGUMENT_LENGTH)
    shown = [f"{shortened(key, ARGUMENT_LENGTH)}: {_value(value)}" for key, value in arguments.items()]
    more = ["…"] if len(shown) > ARGUMENTS_SHOWN else []
    return ", ".join(shown[:ARGUMENTS_SHOWN] + more)


def _value(value: object) -> str:
    if isinstance(value, str):
        return f"'{shortened(value, ARGUMENT_LENGTH)}'"
    return shortened(json.dumps(value, ensure_ascii=False, default=repr), ARGUMENT_LENGTH)
