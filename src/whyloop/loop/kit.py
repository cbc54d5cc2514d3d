"""What an agent is made of, as the loop sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from whyloop.loop.emit import Emitter, Listeners
from whyloop.loop.hooks import Hooks
from whyloop.loop.ports import World
from whyloop.loop.tool import Tool
from whyloop.rules.backoff import Backoff
from whyloop.rules.continuation.criteria import ContinuationCriteria
from whyloop.values.model import ToolSpec
from whyloop.values.state import AgentState


class Kit(NamedTuple):
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
    stop_request: Callable[[str], str | None]
    """The words in which somebody asked this execution to stop, if somebody did."""

    def emitter(self, state: AgentState, step_number: int) -> Emitter:
        return Emitter(self.listeners, self.world.now, state, step_number)
