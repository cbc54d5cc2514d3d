"""The words of statuses, and which text is language."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

THINKING = "Thinking…"
WAITING = "Waiting for a person"
# What stands for text that was not heard.
GAP = "…"

# Both implementations mean the same characters by white space.
_SPACE = r"[\s\x1c-\x1f\x85\ufeff]"
_BLANK = re.compile(rf"{_SPACE}*")
# A JSON object or a list of them, whole or cut off, also in a fence or after a tag of a tool call.
_JSON = re.compile(
    rf"{_SPACE}*(?:```[A-Za-z]*{_SPACE}*|<[A-Za-z_|]+>{_SPACE}*)?"
    rf"(?:\[{_SPACE}*)*(?:\{{{_SPACE}*(?:[\"'}}]|[A-Za-z0-9_]+{_SPACE}*:|\Z)|\[{_SPACE}*[\]\"])"
)
_MOST = 2**53 - 1


def status_text(status: Mapping[str, Any]) -> str:
    """What to show for the data of an `agent.status`, or for a message's `continuation`."""
    name, reason, error = status.get("status"), status.get("stop_reason"), status.get("error_message")
    if name == "in_progress" or status.get("should_continue") is True:
        return THINKING
    if isinstance(error, str) and error:
        return error
    if isinstance(reason, str) and reason and reason != "completed":
        return f"Agent stopped: {reason}"
    if name == "paused" or (status.get("should_continue") is False and reason is None):
        return WAITING
    return ""


def retry_words(retry: object) -> str:
    """ "Retrying (2/3)" for a step that is tried again, else nothing."""
    attempt, most = (
        (whole(retry.get(name)) for name in ("attempt", "max")) if isinstance(retry, dict) else (0, 0)
    )
    return f"Retrying ({attempt}/{most})" if attempt and most is not None else ""


def is_blank(text: object) -> bool:
    return not isinstance(text, str) or _BLANK.fullmatch(text) is not None


def is_json(text: str) -> bool:
    """True if the text is, or begins like, JSON that no person is meant to read."""
    return _JSON.match(text) is not None


def text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def whole(number: object) -> int | None:
    """The number if it is a whole one from zero on that every JSON reader understands."""
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number <= _MOST:
        return None
    return int(number) if number == int(number) else None
