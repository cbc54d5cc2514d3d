"""An agent: a model, its tools, and the rules that let it continue or stop it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from types import GenericAlias, NoneType, TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self

from msgspec import UNSET, UnsetType

from whyloop.errors import ConfigurationError
from whyloop.loop.executions import Query, creation, resume_run, start_run
from whyloop.loop.hooks import Hook, Hooks
from whyloop.loop.local_world import LocalWorld, SystemClock, is_inside_event_loop
from whyloop.loop.options import (
    assemble_criteria,
    assemble_handlers,
    assemble_tools,
    assemble_wrap_up,
    refuse_clock,
    refuse_deps_type,
    refuse_handler,
    refuse_instructions,
    refuse_model,
    refuse_options,
)
from whyloop.loop.output import assemble_output, decode_output
from whyloop.loop.run import Run
from whyloop.loop.setup import Handler, Handlers, Setup, WrapUp
from whyloop.loop.stream import RunStream, StartedRun
from whyloop.loop.validators import Validator
from whyloop.loop.world import Clock, Model
from whyloop.rules.criterion import CriterionLike
from whyloop.rules.error_policy import Backoff, ErrorPolicy
from whyloop.tools.tool import RunContext
from whyloop.tools.toolset import ToolLike, keep_open
from whyloop.values.continuation import Budget
from whyloop.values.scalars import D_contra, T, T_co
from whyloop.values.state import AgentState, AgentStatus
from whyloop.values.text import clean

if TYPE_CHECKING:
    from typing_extensions import TypeForm

_PENDING, _IN_PROGRESS = AgentStatus.PENDING, AgentStatus.IN_PROGRESS


class Agent(Generic[D_contra, T_co]):
    """A model with tools that runs step by step, and explains why each run ended.

    One agent serves any number of sessions at once; everything about a session is in its state.
    `Agent[D, T]` has deps of type D and answers of type T; a type checker infers both.

    Args:
        model: The language model, such as `whyloop.models.load("openai:gpt-5")`.
        tools: Functions, `@tool` functions and toolsets that the model may call. Default: none.
        instructions: The instructions to the model: a string, or a function of the `RunContext` that returns
            one, sync or async, which is called for each request. Default: none.
        deps_type: The type of the deps that each run needs. Default: None, for a run without deps.
        output_type: The type of the answer: a dataclass, `TypedDict`, struct, pydantic model, union, list,
            literal or scalar; `state.output` is a value of it. Default: str, the text of the model.
        output_validators: A function, or several, that takes the output and returns it, changed or not, or
            raises a `ValueError` with a message for the model. Default: none.
        output_retries: How often the model may correct an answer that does not fit, before the error policy
            is asked. Default: 1.
        max_steps: The maximum number of steps of one execution; None for no limit. Default: 20.
        max_tokens: The maximum number of tokens of one execution. Default: no limit.
        timeout: The maximum seconds of one execution by the wall clock; None for no limit. Default: 300.
        cumulative_timeout: The maximum seconds of work, instead of the wall clock. Default: no limit.
        finish_reasons: The model's finish reasons that end a run. Default: "length" and "content_filter".
        error_policy: Which errors stop the run, are retried or ignored. Default: any error stops it.
        backoff: The waits between retries of model calls. Default: `Backoff()`.
        criteria: More criteria; one of the same kind as a default replaces the default. Default: none.
        hooks: Your code around model and tool calls, the first one outermost. Default: none.
        clock: The clock, such as `whyloop.testing.FakeClock()`. Default: the clock of this machine.
        event_handler: A function, or several, that receives every event. Default: none.
        world: The model, the tools, time, ids and randomness of its runs, for tests and demos. Default: those
            of this process.
        name: The name by which a server and a recovery find the agent. Default: "agent".
        stop_grace: The seconds that running calls have after a stop request or a deadline. Default: 5.
        wrap_up: True to ask the model for a last answer when a limit on steps, tokens, time or
            cost ends a run with work left to do, or a `WrapUp` with its own allowance. Default: False.
        show_limits: True to tell the model how much of the limits is left, once half, a quarter and a tenth
            of one is left. Default: False.
    """

    if not TYPE_CHECKING:  # At run time the type variables have no defaults, so that `Agent[D]` is valid too.
        __class_getitem__ = classmethod(GenericAlias)

    def __init__(
        self,
        model: Model,
        tools: ToolLike | Iterable[ToolLike] | None = (),
        *,
        instructions: str | Callable[[RunContext[D_contra]], str | Awaitable[str]] | None = None,
        deps_type: TypeForm[D_contra] = NoneType,  # type: ignore[assignment]
        output_type: TypeForm[T_co] = str,  # type: ignore[assignment]
        output_validators: Validator | Iterable[Validator] = (),
        output_retries: int = 1,
        max_steps: int | UnsetType | None = UNSET,
        max_tokens: int | None = None,
        timeout: float | UnsetType | None = UNSET,
        cumulative_timeout: float | None = None,
        finish_reasons: Iterable[str] | UnsetType | None = UNSET,
        error_policy: ErrorPolicy | None = None,
        backoff: Backoff | None = None,
        criteria: CriterionLike | Iterable[CriterionLike] = (),
        hooks: Hook | Iterable[Hook] = (),
        clock: Clock | None = None,
        event_handler: Handler | Iterable[Handler] | None = None,
        world: LocalWorld | None = None,
        name: str = "agent",
        stop_grace: float = 5.0,
        wrap_up: bool | WrapUp = False,
        show_limits: bool = False,
    ) -> None:
        refuse_model(model)
        refuse_instructions(instructions)
        refuse_deps_type(deps_type)
        refuse_clock(clock, world)
        refuse_options(name, stop_grace, show_limits)
        functions, toolsets = assemble_tools(tools)
        local = world or LocalWorld(model, clock or SystemClock())
        self._setup = Setup(
            name=name,
            world=local,
            local=local,
            instructions=instructions,
            criteria=assemble_criteria(
                max_steps, max_tokens, timeout, cumulative_timeout, finish_reasons, error_policy, criteria
            ),
            hooks=Hooks(hooks),
            backoff=backoff or Backoff(),
            handlers=Handlers(assemble_handlers(event_handler)),
            stop_grace=stop_grace,
            toolsets=toolsets,
            runs=set(),
            deps_type=deps_type,
            output=assemble_output(output_type, output_validators, output_retries, model),
            wrap_up=assemble_wrap_up(wrap_up),
            show_limits=show_limits,
        ).with_tools(functions.table)
        self.name = name
        self.model = model
        self.criteria = self._setup.criteria
        self.tools = functions.tools
        self._entered: list[AbstractAsyncContextManager[None]] = []

    def __repr__(self) -> str:
        """Return one short line: the name, the kind of model, and the tools."""
        named = [tool.name for tool in self.tools] + [type(each).__name__ for each in self._setup.toolsets]
        tools = ", ".join(named[:5]) + (", …" if len(named) > 5 else "")
        return f"Agent({self.name!r}, {type(self.model).__name__}, tools=[{tools}])"

    async def __aenter__(self) -> Self:
        """Open the toolsets of the agent, and keep them open between its runs."""
        toolsets = keep_open(self._setup.toolsets)
        await toolsets.__aenter__()
        self._entered.append(toolsets)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the toolsets, unless a run still uses them."""
        await self._entered.pop().__aexit__(None, None, None)

    # A whole execution

    async def run(
        self,
        query: Query,
        state: AgentState | None = None,
        *,
        deps: D_contra | None = None,
        on_event: Handler | None = None,
    ) -> AgentState[T_co]:
        """Work on a query until the criteria say stop.

        With a state, continue that session with its next query. `deps` reach tools, hooks and instructions,
        and are never stored. `on_event` receives the events of this run only.
        """
        return await start_run(self, query, state, deps=deps, handlers=_handlers(on_event)).finish()

    def stream(
        self, query: Query, state: AgentState | None = None, *, deps: D_contra | None = None
    ) -> RunStream[T_co]:
        """Work on a query and yield the events of the run as they happen.

        Use it as `async with agent.stream(query) as run`, then `async for event in run`; `run.state` is the
        state at the end. Leaving the block early stops the run.
        """

        def start(handler: Handler) -> StartedRun:
            run = start_run(self, query, state, deps=deps, handlers=[handler])
            return run.finish(), run.request_stop

        return RunStream(start)

    async def resume(
        self,
        state: AgentState,
        *,
        grant: Budget | None = None,
        deps: D_contra | None = None,
        on_event: Handler | None = None,
    ) -> AgentState[T_co]:
        """Continue an execution that was paused, stopped, failed or interrupted.

        An exhausted limit still forbids it, unless more is granted. Deps are not stored: pass them again.
        """
        handlers = _handlers(on_event)
        return await resume_run(self, state, grant=grant, deps=deps, handlers=handlers).finish()

    def run_sync(
        self, query: Query, state: AgentState | None = None, *, deps: D_contra | None = None
    ) -> AgentState[T_co]:
        """Do the same as `run`, in a program without an event loop."""
        return _run_sync("run", lambda: self.run(query, state=state, deps=deps))

    def resume_sync(
        self, state: AgentState, *, grant: Budget | None = None, deps: D_contra | None = None
    ) -> AgentState[T_co]:
        """Do the same as `resume`, in a program without an event loop."""
        return _run_sync("resume", lambda: self.resume(state, grant=grant, deps=deps))

    # Step by step

    def start(self, query: Query, *, state: AgentState | None = None) -> AgentState[T_co]:
        """Return the state from which a new execution begins, for `iterate`."""
        return start_run(self, query, state).state

    def restart(self, state: AgentState, *, grant: Budget | None = None) -> AgentState[T_co]:
        """Return the state from which an execution continues, for `iterate`."""
        return resume_run(self, state, grant=grant).state

    def has_next_step(self, state: AgentState) -> bool:
        """Return whether the execution has not ended."""
        return state.status is _IN_PROGRESS or state.status is _PENDING

    async def next_step(self, state: AgentState, *, deps: D_contra | None = None) -> AgentState[T_co]:
        """Return the state after one more step, recorded and evaluated."""
        run = Run(self._setup.for_run(deps), state)
        try:
            await run.begin()
            if run.state.status is _IN_PROGRESS:
                await run.next_step()
        finally:
            await run.end()
        return run.state

    def iterate(self, state: AgentState, *, deps: D_contra | None = None) -> AsyncIterator[AgentState[T_co]]:
        """Yield the state after every step, up to the end of the execution."""
        return Run(self._setup.for_run(deps), state).iterate()

    async def final_step(self, state: AgentState, *, deps: D_contra | None = None) -> AgentState[T_co]:
        """Return the last of the states that `iterate` yields."""
        async for latest in self.iterate(state, deps=deps):
            state = latest
        return state

    # Sessions and outputs

    def new_session(
        self, agent_id: str | None = None, metadata: Mapping[str, object] | None = None
    ) -> AgentState[T_co]:
        """Return a session without a query."""
        name = self._setup.world.new_id() if agent_id is None else agent_id
        return creation(self, metadata).apply_to(AgentState.before_creation(name))

    def output(self, state: AgentState) -> T_co:
        """Return the output of a completed run, even from a state that was loaded.

        The output is a value of the agent's `output_type`. An `OutputError` says why there is none.
        """
        value: T_co = decode_output(self._setup.output, state)
        return value

    # From outside

    def request_stop(self, reason: str, *, agent_id: str | None = None) -> int:
        """End runs of this agent in this process; return the number of runs.

        With an `agent_id`, only the run of that session is asked to stop. A streaming answer ends at once.
        """
        if not isinstance(reason, str):
            raise ConfigurationError(f"invalid reason {reason!r}: the reason to stop must be text")
        asked = [run for run in list(self._setup.runs) if agent_id in (None, run.state.agent_id)]
        for run in asked:
            run.request_stop(clean(reason))
        return len(asked)

    def subscribe(self, handler: Handler) -> Callable[[], None]:
        """Send every event to a handler, until the returned function is called."""
        refuse_handler(handler)
        return self._setup.handlers.add(handler)


def _handlers(on_event: Handler | None) -> tuple[Handler, ...]:
    if on_event is None:
        return ()
    refuse_handler(on_event)
    return (on_event,)


def _run_sync(method: str, start: Callable[[], Coroutine[Any, Any, AgentState[T]]]) -> AgentState[T]:
    if is_inside_event_loop():
        raise RuntimeError(
            f"{method}_sync was called inside a running event loop: use `await agent.{method}(…)` there"
        )
    return asyncio.run(start())
