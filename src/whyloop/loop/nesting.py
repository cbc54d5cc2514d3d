"""Agents that run inside the tools of other agents."""

from __future__ import annotations

from contextvars import ContextVar

from whyloop.errors import NestingError

MAX_DEPTH = 8

# The sessions that are taking a step around this code, outermost first. A thread that runs a plain
# tool gets a copy.
running_inside: ContextVar[tuple[str, ...]] = ContextVar("whyloop_running_inside", default=())


def parent_of_new_session() -> str | None:
    """The session whose tool is starting another one, if one is; refused where that goes too deep."""
    outer = running_inside.get()
    if len(outer) >= MAX_DEPTH:
        raise NestingError(
            f"{len(outer)} agents are running inside each other's tools, and no more may start: "
            "a tool is probably calling the agent it belongs to"
        )
    return outer[-1] if outer else None
