"""Agents that run inside the tools of other agents."""

from __future__ import annotations

from contextvars import ContextVar
from typing import NamedTuple

from whyloop.errors import NestingError

MAX_DEPTH = 8


class Parent(NamedTuple):
    agent_id: str
    depth: int


# Set while a tool runs; a thread that runs a plain tool gets a copy.
current_parent: ContextVar[Parent | None] = ContextVar("whyloop_parent", default=None)


def parent_of_new_session() -> str | None:
    """The agent whose tool is starting a session, if one is; refused where that goes too deep."""
    parent = current_parent.get()
    if parent is None:
        return None
    if parent.depth >= MAX_DEPTH:
        raise NestingError(
            f"{parent.depth} agents are running inside each other's tools, and no more may start: "
            "a tool is probably calling the agent it belongs to"
        )
    return parent.agent_id


def inside_tool_of(agent_id: str) -> Parent:
    outer = current_parent.get()
    return Parent(agent_id, outer.depth + 1 if outer else 1)
