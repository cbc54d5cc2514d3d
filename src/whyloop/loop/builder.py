"""A builder of agents, if you prefer methods to keywords."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from whyloop.errors import ConfigurationError
from whyloop.loop.agent import Agent
from whyloop.loop.hooks import Hook
from whyloop.loop.setup import Handler, Instructions, WrapUp
from whyloop.loop.validators import Validator
from whyloop.loop.world import Clock, Model
from whyloop.rules.criterion import CriterionLike
from whyloop.rules.error_policy import Backoff, ErrorPolicy
from whyloop.tools.tool import ToolDefinition
from whyloop.tools.toolset import ToolLike


class AgentBuilder:
    """A builder of an agent, if you prefer methods to keywords.

    Every method returns a new builder, so that builders can branch off.

    Args:
        options: Keywords of `Agent` to start with. Default: none.
    """

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        self._options = dict(options or {})

    @classmethod
    def base(cls) -> AgentBuilder:
        """Return a builder with the defaults: 20 steps, 300 seconds, stop on any error."""
        return cls()

    def with_model(self, model: Model) -> AgentBuilder:
        """Set the model.

        Args:
            model: The language model, such as `whyloop.models.load("openai:gpt-5")`.
        """
        return self._with(model=model)

    def with_name(self, name: str) -> AgentBuilder:
        """Name the agent: sessions record the name, and a recovery finds the agent by it.

        Args:
            name: The name by which a server and a recovery find the agent.
        """
        return self._with(name=name)

    def with_tools(self, *tools: ToolLike | Iterable[ToolLike]) -> AgentBuilder:
        """Add tools and toolsets.

        Args:
            *tools: Functions, `@tool` functions and toolsets, one by one or in lists.
        """
        return self._adding("tools", _flat(tools, ToolDefinition))

    def with_instructions(self, instructions: Instructions) -> AgentBuilder:
        """Set the instructions to the model: a string, or a function that returns one.

        Args:
            instructions: The string, or a function of the `RunContext` that returns one.
        """
        return self._with(instructions=instructions)

    def with_deps_type(self, deps_type: object) -> AgentBuilder:
        """Set the type of the deps that each run needs.

        Args:
            deps_type: The type.
        """
        return self._with(deps_type=deps_type)

    def with_max_steps(self, steps: int) -> AgentBuilder:
        """Limit the steps of an execution.

        Args:
            steps: The maximum number of steps.
        """
        return self._with(max_steps=steps)

    def with_max_tokens(self, tokens: int) -> AgentBuilder:
        """Limit the tokens of an execution.

        Args:
            tokens: The maximum number of tokens, input and output together.
        """
        return self._with(max_tokens=tokens)

    def with_timeout(self, seconds: float) -> AgentBuilder:
        """Limit the seconds of an execution by the wall clock.

        Args:
            seconds: The number of seconds at most.
        """
        return self._with(timeout=seconds)

    def with_stop_grace(self, seconds: float) -> AgentBuilder:
        """Set the seconds that running calls have after a stop request or a deadline.

        Args:
            seconds: The number of seconds.
        """
        return self._with(stop_grace=seconds)

    def with_wrap_up(self, wrap_up: bool | WrapUp = True) -> AgentBuilder:
        """Ask the model for a last answer when a limit ends a run with work left.

        Args:
            wrap_up: True, or the allowance of this last model call.
        """
        return self._with(wrap_up=wrap_up)

    def with_show_limits(self) -> AgentBuilder:
        """Tell the model once half, a quarter and a tenth of a limit is left."""
        return self._with(show_limits=True)

    def with_cumulative_timeout(self, seconds: float) -> AgentBuilder:
        """Limit the seconds of work instead of the wall clock.

        Args:
            seconds: The maximum number of seconds; pauses and backoff do not count.
        """
        return self._with(cumulative_timeout=seconds)

    def with_finish_reasons(self, *reasons: str | Iterable[str]) -> AgentBuilder:
        """Set the finish reasons that end a run.

        Args:
            *reasons: Values of `FinishReason`, one by one or in lists.
        """
        return self._with(finish_reasons=_flat(reasons, str))

    def with_error_policy(self, policy: ErrorPolicy) -> AgentBuilder:
        """Set the error policy.

        Args:
            policy: The policy, such as `ErrorPolicy.retry_tool_errors()`.
        """
        return self._with(error_policy=policy)

    def with_backoff(self, backoff: Backoff) -> AgentBuilder:
        """Set the waits between retries of model calls.

        Args:
            backoff: The waits.
        """
        return self._with(backoff=backoff)

    def add_criteria(self, *criteria: CriterionLike | Iterable[CriterionLike]) -> AgentBuilder:
        """Add criteria.

        Args:
            *criteria: Criteria and functions of the state, one by one or in lists; one of the same kind as a
                default replaces the default.
        """
        return self._adding("criteria", _flat(criteria))

    def with_output_type(
        self, output_type: object, *, validators: Validator | Iterable[Validator] = (), retries: int = 1
    ) -> AgentBuilder:
        """Set the type of the answer, its validators and the number of corrections.

        Args:
            output_type: A dataclass, `TypedDict`, struct, pydantic model, union, list, literal or scalar.
            validators: A function, or several, that takes the output and returns it, or raises a
                `ValueError`.
            retries: How often the model may correct an answer that does not fit.
        """
        return self._with(output_type=output_type, output_validators=validators, output_retries=retries)

    def with_hooks(self, *hooks: Hook) -> AgentBuilder:
        """Add hooks around model and tool calls.

        Args:
            *hooks: The hooks, the first one outermost.
        """
        return self._adding("hooks", hooks)

    def with_clock(self, clock: Clock) -> AgentBuilder:
        """Set the clock."""
        return self._with(clock=clock)

    def with_event_handler(self, *handlers: Handler) -> AgentBuilder:
        """Add event handlers.

        Args:
            *handlers: Functions that receive every event.
        """
        return self._adding("event_handler", handlers)

    def build(self) -> Agent[Any, Any]:
        """Return the agent."""
        if "model" not in self._options:
            raise ConfigurationError("an agent needs a model: call with_model(…) before build()")
        return Agent(**self._options)

    def _with(self, **options: Any) -> AgentBuilder:
        return AgentBuilder({**self._options, **options})

    def _adding(self, option: str, more: tuple[Any, ...]) -> AgentBuilder:
        return self._with(**{option: (*self._options.get(option, ()), *more)})


def _flat(given: Iterable[Any], *single: type) -> tuple[Any, ...]:
    """Return the items in order, whether they were passed one by one or in lists."""
    flat: list[Any] = []
    for item in given:
        flat += [item] if isinstance(item, single) or not isinstance(item, Iterable) else item
    return tuple(flat)
