"""The types that many values share: times, counts, identifiers, and type variables."""

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

Moment = Annotated[datetime, Meta(tz=True)]
LARGEST_COUNT = 2**63 - 1
Count = Annotated[int, Meta(ge=0, le=LARGEST_COUNT)]
# These bounds exclude NaN and infinity, which JSON cannot hold either.
Seconds = Annotated[float, Meta(ge=0, le=1e15)]

NEVER = datetime(1, 1, 1, tzinfo=UTC)
"""The time of an event that has not happened yet."""


def utc_now() -> datetime:
    """Return the time for values created outside the loop, which uses its own clock."""
    return datetime.now(UTC)


def as_utc(moment: datetime) -> datetime:
    """Return a moment in UTC; one at an end of the calendar keeps its digits."""
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        return moment.replace(tzinfo=UTC)


def new_id() -> str:
    """Return a random identifier: 32 hexadecimal digits."""
    return os.urandom(16).hex()


# The type variables of the generic classes; their defaults are for type checkers alone. `Agent` without
# parameters has no deps and answers with text. `AgentState`, `RunContext` and `Tool` without parameters
# accept any of their kind.

if TYPE_CHECKING:
    # Type checkers include these stubs, so the package is not needed at run time.
    from typing_extensions import ParamSpec, TypeVar

    D_contra = TypeVar("D_contra", contravariant=True, default=None)
    T_co = TypeVar("T_co", covariant=True, default=str)
    AnyD_co = TypeVar("AnyD_co", covariant=True, default=Any)
    AnyT_co = TypeVar("AnyT_co", covariant=True, default=Any)
    P = ParamSpec("P", default=...)
    R_co = TypeVar("R_co", covariant=True, default=Any)
else:
    from typing import ParamSpec, TypeVar

    D_contra = TypeVar("D_contra", contravariant=True)
    T_co = TypeVar("T_co", covariant=True)
    AnyD_co = TypeVar("AnyD_co", covariant=True)
    AnyT_co = TypeVar("AnyT_co", covariant=True)
    P = ParamSpec("P")
    R_co = TypeVar("R_co", covariant=True)

D = TypeVar("D")
T = TypeVar("T")
