"""Sessions inside each other: which of them are taking a step around this code."""

from __future__ import annotations

from contextlib import suppress
from contextvars import ContextVar, Token

from whyloop.errors import NestingError

MAX_DEPTH = 8

# The sessions that are taking a step around this code, outermost first. A thread that runs a plain
# tool gets a copy.
running_inside: ContextVar[tuple[str, ...]] = ContextVar("whyloop_running_inside", default=())


def left_session(inside: Token[tuple[str, ...]]) -> None:
    """Record that the innermost session has finished its step."""
    with suppress(ValueError):  # A run that is garbage-collected is closed in another context.
        running_inside.reset(inside)


def parent_of_new_session() -> str | None:
    """Return the session whose tool is starting another one, if there is one."""
    outer = running_inside.get()
    if len(outer) >= MAX_DEPTH:
        raise NestingError(
            f"{len(outer)} agents are running inside each other's tools, and no more may start: "
            "a tool is probably calling the agent it belongs to"
        )
    return outer[-1] if outer else None
