"""Where a page of sessions ended, as a text that the next one begins with."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from datetime import UTC, datetime

import msgspec

from whyloop.errors import ConfigurationError
from whyloop.stores.records import Summary
from whyloop.values.text import shortened


def cursor_of(summary: Summary) -> str:
    """The cursor of a page that ends with this session."""
    written = msgspec.json.encode((summary.started_at.astimezone(UTC).isoformat(), summary.agent_id))
    return urlsafe_b64encode(written).decode().rstrip("=")


def position(cursor: str) -> tuple[datetime, str]:
    """When the last session of the page before was started, in UTC, and its id."""
    try:
        padded = cursor.encode() + b"=" * (-len(cursor) % 4)
        written, agent_id = msgspec.json.decode(urlsafe_b64decode(padded), type=tuple[str, str])
        started_at = datetime.fromisoformat(written)
        if started_at.tzinfo is None:
            raise ValueError("a time without a zone")
        return started_at.astimezone(UTC), agent_id
    except (ValueError, TypeError, AttributeError, OverflowError, msgspec.MsgspecError):
        raise ConfigurationError(
            f"{shortened(repr(cursor), 80)} does not say where a page of sessions ended: "
            "give the `next` of the page before as it was, or nothing for the first page"
        ) from None
