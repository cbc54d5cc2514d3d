"""An agent: a model, its tools, and the rules by which it goes on and stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from copy import copy
from typing import Any

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from whyloop.errors import ConfigurationError, NotResumableError
from whyloop.loop.abandon import abandoned
from whyloop.loop.assemble import (
    assemble_criteria,
    assemble_handlers,
    assemble_tools,
    refuse_clock,
    refuse_handler,
    refuse_model,
)
from whyloop.loop.emit import Handler, Listeners
from whyloop.loop.hooks import Hook, Hooks
from whyloop.loop.kit import Kit
from whyloop.loop.nesting import parent_of_new_session, running_inside
from whyloop.loop.ports import Clock, Journal, Model, World
from whyloop.loop.prepare import STEPS_A_TURN, end_now, must_end, taken_up, waited
from whyloop.loop.stop_requests import StopRequests
from whyloop.loop.take_step import take_step
from whyloop.loop.tool import Tool
from whyloop.loop.world import LocalWorld, SystemClock
from whyloop.rules.backoff import Backoff
from whyloop.rules.continuation.criterion import CriterionLike
from whyloop.rules.error_policy import ErrorPolicy
from whyloop.values.budget import Budget
from whyloop.values.execution import Execution, StateInfo
from whyloop.values.messages import Message, Part
from whyloop.values.state import AgentState, AgentStatus
from whyloop.values.text import clean, shortened

Query = str | Message | Sequence[Part]

_PENDING, _IN_PROGRESS = AgentStatus.PENDING, AgentStatus.IN_PROGRESS


class Agent:
    """Runs a model with tools, step by step, and can say of every step why it was followed by another.

    One agent serves any number of sessions at once; everything about a session is in its state.
    """

    def __init__(
        self,
        model: Model,
        tools: Tool | Callable[..., Any] | Iterable[Tool | Callable[..., Any]] | None = (),
        *,
        instructions: str | None = None,
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
        world: World | None = None,
    ) -> None:
        refuse_model(model)
        refuse_clock(clock)
        if clock is not None and world is not None:
            raise ConfigurationError("a world brings its own clock: pass clock or world, not both")
        named = assemble_tools(tools)
        self._listeners = Listeners(assemble_handlers(event_handler))
        self._kit = Kit(
            world=world or LocalWorld(model, clock or SystemClock()),
            tools=named,
            tool_specs=tuple(tool.spec for tool in named.values()),
            tool_names=tuple(named),
            instructions=instructions,
            criteria=assemble_criteria(
                max_steps=max_steps,
                max_tokens=max_tokens,
                timeout=timeout,
                cumulative_timeout=cumulative_timeout,
                finish_reasons=finish_reasons,
                error_policy=error_policy,
                criteria=criteria,
            ),
            hooks=Hooks(hooks),
            backoff=backoff or Backoff(),
            listeners=self._listeners,
            stops=StopRequests(),
            asks_people=any(tool.needs_approval for tool in named.values()),
        )
        self.model = model
        self.criteria = self._kit.criteria
        self.tools = tuple(named.values())

    # A whole execution

    async def run(self, query: Query, state: AgentState | None = None) -> AgentState:
        """Work on a query until the criteria say stop; with a state, as the next query of that session."""
        return await self.final_step(self.start(query, state=state))

    async def resume(self, state: AgentState, *, grant: Budget | None = None) -> AgentState:
        """Go on with an execution that was paused, stopped, failed or interrupted.

        A limit that is used up forbids it still, unless more is granted.
        """
        return await self.final_step(self.restart(state, grant=grant))

    def run_sync(self, query: Query, state: AgentState | None = None) -> AgentState:
        return _run_sync("run", lambda: self.run(query, state=state))

    def resume_sync(self, state: AgentState, *, grant: Budget | None = None) -> AgentState:
        return _run_sync("resume", lambda: self.resume(state, grant=grant))

    # Step by step

    def start(self, query: Query, *, state: AgentState | None = None) -> AgentState:
        """The state from which a new execution begins; `iterate` takes it from there."""
        world = self._kit.world
        if state is not None and not isinstance(state, AgentState):
            raise ConfigurationError(
                f"state is an AgentState, not {type(state).__name__}: use from_dict first"
            )
        message, now = _as_message(query), world.now()
        execution_id = world.new_id()
        if state is not None and state.open_step is not None:
            state = abandoned(self._kit, state, now)
        if state is None:
            state = self.new_session()
        return state.with_query(message, execution_id=execution_id, now=now)

    def new_session(
        self, agent_id: str | None = None, metadata: Mapping[str, object] | None = None
    ) -> AgentState:
        """A session in which nothing has been asked yet."""
        now = self._kit.world.now()
        state = AgentState(
            agent_id=self._kit.world.new_id() if agent_id is None else agent_id,
            parent_agent_id=parent_of_new_session(),
            state_info=StateInfo(started_at=now, updated_at=now),
            execution=Execution(id="", started_at=now),
        )
        return state.with_metadata(metadata) if metadata else state

    def restart(self, state: AgentState, *, grant: Budget | None = None) -> AgentState:
        """The state from which an execution goes on; refused where there is nothing left to do."""
        if grant is not None and not isinstance(grant, Budget):
            raise ConfigurationError(f"a grant is a Budget, such as Budget(steps=10), and not {grant!r}")
        if state.status is AgentStatus.COMPLETED:
            raise NotResumableError(
                "this execution is completed, so there is nothing to resume: ask the next question, "
                "with run(text, state=state) or, of a session, send(text)"
            )
        if not state.messages:
            raise NotResumableError(
                "this session has no query yet: ask one, with run(text, state=state) or, of a session, "
                "send(text)"
            )
        return state.resumed(self._kit.world.now(), grant)

    def has_next_step(self, state: AgentState) -> bool:
        return state.status is _IN_PROGRESS or state.status is _PENDING

    async def next_step(self, state: AgentState) -> AgentState:
        """The state after one more step, recorded and evaluated."""
        kit, execution = self._kit, state.execution
        alone = execution.id not in kit.stops.listening
        if alone:
            kit.stops.listen(state)
        outer = running_inside.get()
        inside = None if state.agent_id in outer else running_inside.set((*outer, state.agent_id))
        try:
            if state.status is not _IN_PROGRESS or state.execution_started_at is None:
                state = await taken_up(kit, state)
            if execution.failures.consecutive or execution.step_count % STEPS_A_TURN == STEPS_A_TURN - 1:
                state = await waited(kit, state)
            execution = state.execution
            may_end = kit.stops.words or execution.resumes or execution.backoff_seconds
            if may_end and must_end(kit, state):
                state = await end_now(kit, state)
            else:
                state = await take_step(kit, state)
        finally:
            if inside is not None:
                running_inside.reset(inside)
            if alone:
                kit.stops.forget(state)
        return state

    async def iterate(self, state: AgentState) -> AsyncIterator[AgentState]:
        """Every state from here to the end of the execution, as each step is recorded."""
        self._kit.stops.listen(state)
        try:
            while self.has_next_step(state):
                state = await self.next_step(state)
                yield state
        finally:
            self._kit.stops.forget(state)

    async def final_step(self, state: AgentState) -> AgentState:
        """The last of the states that `iterate` yields."""
        inside = running_inside.set((*running_inside.get(), state.agent_id))
        try:
            async for latest in self.iterate(state):
                state = latest
        finally:
            running_inside.reset(inside)
        return state

    def journaled(self, journal: Journal, *listeners: Handler) -> Agent:
        """This agent, recording what it does in a journal; for one session, which some more listen to."""
        agent = copy(self)
        beside = Listeners(listeners, self._listeners) if listeners else self._listeners
        agent._kit = replace(self._kit, journal=journal, listeners=beside)
        return agent

    # From outside

    def request_stop(self, reason: str, *, agent_id: str | None = None) -> int:
        """End what runs at its next safe point, for this reason; returns how many executions were told.

        Every execution that this agent has under way is told, or only that of one session.
        """
        return self._kit.stops.ask(reason, agent_id)

    def subscribe(self, handler: Handler) -> Callable[[], None]:
        """Hear every event from now on; call what is returned to hear no more."""
        refuse_handler(handler)
        return self._listeners.add(handler)


def _as_message(query: Query) -> Message:
    if isinstance(query, str):
        return Message.user(clean(query))
    message = query
    if not isinstance(message, Message):
        if not isinstance(query, list | tuple) or not all(isinstance(part, Part) for part in query):
            raise ConfigurationError(
                f"a query is text, a Message or a list of parts, not {shortened(repr(query), 80)}"
            )
        message = Message.user(query)
    return replace(message, content=clean(message.content)) if isinstance(message.content, str) else message


def _run_sync(method: str, start: Callable[[], Coroutine[Any, Any, AgentState]]) -> AgentState:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(start())
    raise RuntimeError(
        f"{method}_sync was called inside a running event loop: use `await agent.{method}(…)` there"
    )
