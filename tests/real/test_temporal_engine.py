"""The conformance suite of engines, on a real Temporal server."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from temporalio import workflow

from tests.real.temporal import Fleet, TemporalServer, fleet
from tests.real.temporal_purity import watched_workflows
from whyloop import Agent
from whyloop.stores import SqliteStore
from whyloop.temporal import TemporalSession, TemporalWorld
from whyloop.testing import ScriptedModel
from whyloop.testing.engine_conformance import CHECKS, Check, MakeDeps
from whyloop.values.scalars import new_id

pytestmark = [pytest.mark.slow]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_temporal_runs_a_session_like_the_local_loop(
    check: Check, temporal: TemporalServer, tmp_path: Path
) -> None:
    """Also: its workflows read nothing that a replay would read differently, and replay like they ran."""
    with watched_workflows() as found:
        await check(engine_of(temporal, tmp_path))
    assert not found, "\n\n".join(found)


@pytest.mark.parametrize(
    ("reads", "found_in"),
    [
        (new_id, "os.urandom"),
        (lambda: str(datetime.now(UTC)), "datetime.now"),
        (lambda: str(time.monotonic()), "time.monotonic"),
        (lambda: str(random.random()), "random.random"),
        (lambda: os.environ.get("HOME", ""), "os.environ"),
        (lambda: threading.Thread(target=print).name, "threading.Thread"),
    ],
    ids=["id", "date", "clock", "random", "environment", "thread"],
)
async def test_the_watch_finds_what_a_workflow_must_not_read(
    temporal: TemporalServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reads: Callable[[], str],
    found_in: str,
) -> None:
    monkeypatch.setattr(TemporalWorld, "new_id", lambda self: f"{reads()} {workflow.uuid4()}")
    agent = Agent(ScriptedModel(["Hi"]), name="greeter")
    async with SqliteStore(tmp_path / "sessions.db") as store, fleet(temporal, store, [agent]) as here:
        with watched_workflows() as found:
            await (await here.session("greeter", "greeting")).send("Hello")
    assert found
    assert all(found_in in place for place in found)


class TemporalEngine:
    def __init__(self, here: Fleet) -> None:
        self.store = here.store
        self._here = here
        self.opened: dict[str, None] = {}

    async def open(
        self, agent: str, agent_id: str, metadata: Mapping[str, object] | None = None
    ) -> TemporalSession:
        self.opened[agent_id] = None
        return await self._here.session(agent, agent_id, metadata)


def engine_of(server: TemporalServer, folder: Path) -> Any:
    """Return the engine of a server; the workflows of its sessions are replayed at its end."""

    @asynccontextmanager
    async def open_engine(agents, *, deps: MakeDeps | None = None):  # type: ignore[no-untyped-def]
        async with (
            SqliteStore(folder / "sessions.db") as store,
            fleet(server, store, agents, deps=deps) as here,
        ):
            engine = TemporalEngine(here)
            yield engine
            await here.replay(*engine.opened)

    return open_engine
