"""Recovery: sessions continue automatically after a crash, or once their questions are decided."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import aclosing
from typing import Any

from whyloop.errors import (
    ConfigurationError,
    ConflictError,
    LeaseLostError,
    NotResumableError,
    SessionNotFoundError,
    SessionRunningError,
    WhyloopError,
)
from whyloop.logger import Logger
from whyloop.loop.agent import Agent
from whyloop.loop.executions import refuse_missing_deps
from whyloop.loop.setup import Handler
from whyloop.sessions.session import MakeDeps, Session, deps_for, refuse_make_deps
from whyloop.stores.records import Summary
from whyloop.stores.store import Store
from whyloop.values.text import shortened

AT_ONCE = 20
EVERY_SECONDS = 1.0
SECONDS_AFTER_ERROR = 30.0
# Each query for more sessions reads this many times as many as the one before.
GROWTH = 4

AnyAgent = Agent[Any, Any]
FindAgent = Callable[[Summary], AnyAgent | Awaitable[AnyAgent | None] | None]
Agents = AnyAgent | Mapping[str, AnyAgent] | FindAgent
"""An agent, for sessions of its name and of none; the agents by name; or a function that returns a session's
agent, or None to leave the session alone.
"""

_log = Logger()

# Another runner was faster, or nothing is left to do: in both cases, the session is done.
_NOT_OURS = (ConflictError, LeaseLostError, NotResumableError, SessionNotFoundError, SessionRunningError)


async def recover(
    store: Store,
    agents: Agents,
    *,
    deps: MakeDeps | None = None,
    handlers: Iterable[Handler] = (),
    at_once: int = AT_ONCE,
) -> list[str]:
    """Continue every session that has no runner and could continue.

    Return their ids once their runs have ended.

    These are sessions whose runner died, and paused ones whose questions are all decided. Each has one
    runner: if another process continues a session first, it is left alone. A person decides about calls that
    may have run, unless they are idempotent. `deps` is a function that returns the deps for a session's run,
    by its summary.

    Args:
        agents: An agent, a mapping from names to agents, or a function from a session's summary to its agent.
        deps: A function from a session's summary to the deps for its run. Default: none.
        at_once: The maximum number of sessions that run at once.
    """
    recovery = Recovery(store, agents, deps=deps, handlers=handlers, at_once=at_once)
    return await recovery.run_once()


class Recovery:
    """A task that continues sessions, looking for them every second; use it with `async with`, or call
    `look`.

    Args:
        store: The store.
        agents: An agent, a mapping from names to agents, or a function from a session's summary to its agent.
        deps: A function from a session's summary to the deps for its run. Default: none.
        handlers: Functions that receive the events of the runs. Default: none.
        at_once: The maximum number of sessions that run at once.
        every_seconds: The seconds between two looks at the store.
    """

    def __init__(
        self,
        store: Store,
        agents: Agents,
        *,
        deps: MakeDeps | None = None,
        handlers: Iterable[Handler] = (),
        at_once: int = AT_ONCE,
        every_seconds: float = EVERY_SECONDS,
    ) -> None:
        refuse_make_deps(deps)
        self._store = store
        self._agents = _by_name(agents)
        self._make_deps = deps
        self._handlers = tuple(handlers)
        self._at_once = at_once
        self._every_seconds = every_seconds
        self._runs: dict[str, asyncio.Task[None]] = {}
        self._continued: list[str] = []
        self._unknown: set[str] = set()  # Names of agents.
        self._failed: dict[str, float] = {}
        self._sessions: dict[str, Session[Any, Any]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._leaving = False

    async def look(self) -> None:
        """Start runs of the sessions that can continue now, up to the limit."""
        now = asyncio.get_running_loop().time()
        self._failed = {agent_id: until for agent_id, until in self._failed.items() if until > now}
        await self._start(self._failed)

    async def run_once(self) -> list[str]:
        """Continue each session that can continue now once; return their ids after all runs."""
        tried: set[str] = set()
        try:
            await self._start(tried)
            while self._runs:
                tried |= self._runs.keys()
                await asyncio.wait(list(self._runs.values()), return_when=asyncio.FIRST_COMPLETED)
                await self._start(tried | self._failed.keys())
        finally:
            if self._runs:  # It was cancelled, or the store failed: no run goes on without a caller.
                await self.close(0)
        return self._continued

    async def _start(self, others: Collection[str]) -> None:
        """Start runs of the sessions that can continue now, but for these, up to the limit."""
        if len(self._runs) >= self._at_once:
            return
        async with aclosing(self._unattended(len(others))) as found:
            async for summary in found:
                if summary.agent_id in self._runs or summary.agent_id in others:
                    continue
                try:
                    agent = await self._agent_of(summary)
                except Exception as error:
                    self._fail(summary.agent_id, error)
                    continue
                if agent is not None:
                    run = asyncio.create_task(self._continue(summary, agent))
                    self._runs[summary.agent_id] = run
                    if len(self._runs) >= self._at_once:
                        return

    async def _unattended(self, others: int) -> AsyncGenerator[Summary, None]:
        """Yield the sessions that could continue, as far as they are asked for.

        The store looks for the sessions of agents that are known by name, since there may be any number of
        others. A function is asked about every session.
        """
        names = self._agents.keys() if isinstance(self._agents, Mapping) else None
        limit, seen = self._at_once + others, set[str]()
        while True:
            found = await self._store.unattended(limit=limit, agents=names)
            for summary in found:
                if summary.agent_id not in seen:
                    seen.add(summary.agent_id)
                    yield summary
            if len(found) < limit:
                break
            limit *= GROWTH
        if names is not None:
            for summary in await self._store.unattended():
                await self._agent_of(summary)  # Which names the agents that are missing here.

    async def finish(self) -> list[str]:
        """Wait for all started runs; return the ids of their sessions."""
        while self._runs:
            await asyncio.wait(list(self._runs.values()))
        return self._continued

    async def __aenter__(self) -> Recovery:
        self._looking = asyncio.create_task(self._look_again(), name="whyloop recovery")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self, seconds: float | None = None) -> None:
        """Start no more runs, and end each run after its step for another process.

        A run that takes longer than these seconds is cancelled.

        Args:
            seconds: The seconds. Default: no limit.
        """
        self._leaving = True
        for session in self._sessions.values():
            session.leave()
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        runs = list(self._runs.values())
        try:
            if runs:
                await asyncio.wait(runs, timeout=seconds)
        finally:
            for run in runs:
                run.cancel()
            await asyncio.gather(*runs, return_exceptions=True)

    async def _look_again(self) -> None:
        while True:
            try:
                await self.look()
            except Exception as error:
                trace = None if isinstance(error, WhyloopError) else error
                _log.warning("sessions that could continue cannot be looked for: %s", error, exc_info=trace)
            await asyncio.sleep(self._every_seconds)

    async def _continue(self, summary: Summary, agent: AnyAgent) -> None:
        agent_id = summary.agent_id
        try:
            deps = await deps_for(summary, self._make_deps)
            refuse_missing_deps(agent, deps)
            session = await Session.open(self._store, agent, agent_id, handlers=self._handlers)
            if self._leaving:
                return
            self._continued.append(agent_id)
            self._sessions[agent_id] = session
            await session.recover(deps=deps)
        except _NOT_OURS:
            if agent_id in self._continued:
                self._continued.remove(agent_id)
        except Exception as error:
            self._fail(agent_id, error)
        finally:
            self._runs.pop(agent_id, None)
            self._sessions.pop(agent_id, None)

    def _fail(self, agent_id: str, error: Exception) -> None:
        """Log why a session could not be continued, and leave it alone for a while."""
        self._failed[agent_id] = asyncio.get_running_loop().time() + SECONDS_AFTER_ERROR
        trace = None if isinstance(error, WhyloopError) else error
        _log.warning("session %r could not be continued: %s", agent_id, error, exc_info=trace)

    async def _agent_of(self, summary: Summary) -> AnyAgent | None:
        agents, agent = self._agents, None
        if isinstance(agents, Mapping):
            agent = agents.get(summary.agent)
        else:
            found = agents(summary)
            agent = await found if inspect.isawaitable(found) else found
        if agent is None and summary.agent not in self._unknown:
            self._unknown.add(summary.agent)
            _log.warning(
                "session %r cannot continue here: no agent is named %r", summary.agent_id, summary.agent
            )
        return agent


def _by_name(agents: object) -> Mapping[str, AnyAgent] | FindAgent:
    """Return agents by name, or the function that finds them; refuse anything else."""
    if isinstance(agents, Agent):
        return {"": agents, agents.name: agents}
    if callable(agents) or (
        isinstance(agents, Mapping) and all(isinstance(agent, Agent) for agent in agents.values())
    ):
        return agents
    raise ConfigurationError(
        f"invalid agents {shortened(repr(agents), 80)}: use an agent, a mapping from names to agents, or a "
        "function from a session's summary to its agent"
    )
