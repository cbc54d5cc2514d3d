"""What an agent is made of, as the loop sees it."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from whyloop.loop.emit import Listeners
from whyloop.loop.hooks import Hooks
from whyloop.loop.ports import Journal, World
from whyloop.loop.stop_requests import StopRequests
from whyloop.loop.tool import Tool
from whyloop.rules.backoff import Backoff
from whyloop.rules.continuation.criteria import ContinuationCriteria
from whyloop.values.model import ToolSpec


class Kit(Struct, frozen=True):
    """The parts of an agent that a step needs; none of them changes while it runs."""

    world: World
    tools: Mapping[str, Tool]
    tool_specs: tuple[ToolSpec, ...]
    tool_names: tuple[str, ...]
    instructions: str | None
    criteria: ContinuationCriteria
    hooks: Hooks
    backoff: Backoff
    listeners: Listeners
    stops: StopRequests
    asks_people: bool = False
    journal: Journal | None = None
