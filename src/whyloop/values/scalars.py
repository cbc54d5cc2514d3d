"""Times, counts and identifiers."""

import os
from datetime import UTC, datetime
from typing import Annotated

from msgspec import Meta

Moment = Annotated[datetime, Meta(tz=True)]
Count = Annotated[int, Meta(ge=0)]
# NaN and infinity are beyond these bounds, which JSON could not hold either.
Seconds = Annotated[float, Meta(ge=0, le=1e15)]

NEVER = datetime(1, 1, 1, tzinfo=UTC)
"""The time of what has not happened yet."""


def utc_now() -> datetime:
    """Return the time for values that are made by hand; the loop uses its own clock."""
    return datetime.now(UTC)


def new_id() -> str:
    """Return a random identifier: 32 hexadecimal digits."""
    return os.urandom(16).hex()
