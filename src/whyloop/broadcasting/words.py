"""What went wrong, in words that may be written to a log."""

from __future__ import annotations

from whyloop.values.secrets import PATTERNS, REMOVED
from whyloop.values.text import shortened

_MOST = 10_000  # Nobody reads more of it, and some quote whole documents.


def words_of(error: BaseException) -> str:
    """What an exception says, even one that cannot say it."""
    try:
        return str(error)
    except Exception:
        return "it has no words for what happened"


def fit_to_log(text: str, limit: int) -> str:
    """The text on one line without what looks like a secret; that goes first, while it is still whole."""
    text = text[:_MOST]
    for pattern in PATTERNS:
        text = pattern.sub(REMOVED, text)
    return shortened(text, limit)
