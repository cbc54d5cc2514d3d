"""What tests of the suite for engines share: local engines that were changed, and the checks by name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from whyloop import Agent
from whyloop.loop.local_world import LocalWorld
from whyloop.loop.setup import Setup
from whyloop.sessions.session import MakeDeps
from whyloop.stores import MemoryStore, Store
from whyloop.testing.engine_conformance import (
    CHECKS,
    LocalEngine,
    OpenEngine,
)

Metadata = Mapping[str, object] | None
BY_NAME = {check.__name__.removeprefix("check_"): check for check in CHECKS}


def opening(
    kind: type[LocalEngine] = LocalEngine,
    store: Callable[[], Store] = MemoryStore,
    prepare: Callable[[Setup], Setup] = lambda setup: setup,
    at_end: Callable[[Store], Awaitable[None]] | None = None,
) -> OpenEngine:
    """Return a function that starts an engine of this kind, for agents that were changed before."""

    @asynccontextmanager
    async def open_engine(
        agents: Sequence[Agent[Any, Any]], *, deps: MakeDeps | None = None
    ) -> AsyncIterator[LocalEngine]:
        for agent in agents:
            agent._setup = prepare(agent._setup)
        async with store() as opened:
            yield kind(opened, agents, deps=deps)
            if at_end is not None:
                await at_end(opened)

    return open_engine


def local_world(setup: Setup) -> LocalWorld:
    assert isinstance(setup.world, LocalWorld)
    return setup.world
