"""Spans of time, as people write and read them."""

from __future__ import annotations

import argparse
import re
from datetime import datetime, timedelta

from whyloop.values.times import utc_now

_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_SPAN = re.compile(r"(\d{1,9}(?:\.\d{1,9})?) ?(s|min|m|h|d|w)", re.ASCII)
LONGEST_DAYS = 36_500


def parse_span(text: str) -> timedelta:
    """The span that a command line names: "90s", "30m", "12h", "7d", "2w"."""
    match = _SPAN.fullmatch(text.strip().lower())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no span of time: write 30m, 12h or 7d")
    seconds = float(match[1]) * _UNITS[match[2]]
    if seconds > LONGEST_DAYS * 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} is more than a hundred years")
    return timedelta(seconds=seconds)


def ago(span: timedelta) -> datetime:
    return utc_now() - span


def age(moment: datetime) -> str:
    """How long ago it was: "3 d"."""
    return span(float(int(seconds_since(moment))))


def seconds_since(moment: datetime) -> float:
    return max(0.0, (utc_now() - moment).total_seconds())


def span(seconds: float) -> str:
    """A span in the unit that suits it, never more than a few characters."""
    if 0 < seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 and seconds % 1 else f"{seconds:.0f} s"
    if seconds < 2 * 3_600:
        return f"{seconds // 60:.0f} min"
    if seconds < 2 * 86_400:
        return f"{seconds // 3_600:.0f} h"
    return f"{seconds // 86_400:,.0f} d"
