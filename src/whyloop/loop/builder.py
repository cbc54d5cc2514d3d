"""An agent, said one sentence at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from whyloop.errors import ConfigurationError
from whyloop.loop.agent import Agent
from whyloop.loop.hooks import Hook
from whyloop.loop.ports import Clock, Model
from whyloop.loop.setup import Handler
from whyloop.loop.tool import Tool
from whyloop.rules.backoff import Backoff
from whyloop.rules.continuation.criterion import CriterionLike
from whyloop.rules.error_policy import ErrorPolicy


class AgentBuilder:
    """Collects what `Agent` takes as keywords; every method returns a new builder, so one can branch off."""

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        self._options = dict(options or {})

    @classmethod
    def base(cls) -> AgentBuilder:
        """Nothing but the defaults: 20 steps, 300 seconds, stop on any error."""
        return cls()

    def with_model(self, model: Model) -> AgentBuilder:
        return self._with(model=model)

    def with_name(self, name: str) -> AgentBuilder:
        """Name the agent: the name is recorded with its sessions, and a recovery finds it by that."""
        return self._with(name=name)

    def with_tools(self, *tools: Tool | Callable[..., Any] | Iterable[Tool]) -> AgentBuilder:
        return self._adding("tools", _flat(tools, Tool))

    def with_instructions(self, instructions: str) -> AgentBuilder:
        return self._with(instructions=instructions)

    def with_max_steps(self, steps: int) -> AgentBuilder:
        return self._with(max_steps=steps)

    def with_max_tokens(self, tokens: int) -> AgentBuilder:
        return self._with(max_tokens=tokens)

    def with_timeout(self, seconds: float) -> AgentBuilder:
        return self._with(timeout=seconds)

    def with_stop_grace(self, seconds: float) -> AgentBuilder:
        """Give running tool calls so many seconds to finish after a stop request or a deadline."""
        return self._with(stop_grace=seconds)

    def with_cumulative_timeout(self, seconds: float) -> AgentBuilder:
        """Count the seconds of work instead of the wall clock."""
        return self._with(cumulative_timeout=seconds)

    def with_finish_reasons(self, *reasons: str | Iterable[str]) -> AgentBuilder:
        return self._with(finish_reasons=_flat(reasons, str))

    def with_error_policy(self, policy: ErrorPolicy) -> AgentBuilder:
        return self._with(error_policy=policy)

    def with_backoff(self, backoff: Backoff) -> AgentBuilder:
        return self._with(backoff=backoff)

    def add_criteria(self, *criteria: CriterionLike | Iterable[CriterionLike]) -> AgentBuilder:
        return self._adding("criteria", _flat(criteria))

    def with_hooks(self, *hooks: Hook) -> AgentBuilder:
        return self._adding("hooks", hooks)

    def with_clock(self, clock: Clock) -> AgentBuilder:
        return self._with(clock=clock)

    def with_event_handler(self, *handlers: Handler) -> AgentBuilder:
        return self._adding("event_handler", handlers)

    def build(self) -> Agent:
        if "model" not in self._options:
            raise ConfigurationError("an agent needs a model: call with_model(…) before build()")
        return Agent(**self._options)

    def _with(self, **options: Any) -> AgentBuilder:
        return AgentBuilder({**self._options, **options})

    def _adding(self, option: str, more: tuple[Any, ...]) -> AgentBuilder:
        return self._with(**{option: (*self._options.get(option, ()), *more)})


def _flat(given: Iterable[Any], *single: type) -> tuple[Any, ...]:
    """What was given one by one or in lists, in order."""
    flat: list[Any] = []
    for item in given:
        flat += [item] if isinstance(item, single) or not isinstance(item, Iterable) else item
    return tuple(flat)
