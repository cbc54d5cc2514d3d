"""Clients that do not read cost those who do next to nothing."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.server.streams_support import stage
from tests.support import echo, scripted
from whyloop.stores import SqliteStore
from whyloop.testing import call
from whyloop.wire.envelope import BroadcastConfig

STEPS, READERS, OTHERS, ROUNDS = 300, 5, 20, 3
MOST = 2.0

pytestmark = pytest.mark.soak(suite="load")


async def seconds_of(folder: Path, way: str, others: int) -> float:
    """Return the server's own seconds for a run that some read, beside others who do not read."""
    wanted = [call("echo", {"value": f"{number} " + "x" * 10_000}) for number in range(STEPS)]
    agent = scripted(*wanted, "done", tools=[echo], max_steps=STEPS + 1)
    store = SqliteStore(folder / f"{way}-{others}-{time.monotonic_ns()}.db")
    config = BroadcastConfig(include_tool_args=True)
    async with stage(store, agent, config=config) as a, AsyncExitStack() as clients:
        for _ in range(others):
            await clients.enter_async_context(getattr(a.to, way)(a.url))
        readers = [await clients.enter_async_context(getattr(a.to, way)(a.url)) for _ in range(READERS)]
        began = await a.server.do(time.thread_time)
        await a.ask("go")
        for each in readers:
            heard = await each.run()
            assert len([1 for envelope in heard if envelope["event"] == "agent.step.completed"]) == STEPS + 1
        return float(await a.server.do(time.thread_time) - began)


@pytest.mark.parametrize("way", ["events", "socket"])
async def test_twenty_clients_that_do_not_read_cost_only_themselves(way: str, tmp_path: Path) -> None:
    alone, beside = [], []
    for _ in range(ROUNDS):
        alone.append(await seconds_of(tmp_path, way, 0))
        beside.append(await seconds_of(tmp_path, way, OTHERS))
    ratio = min(beside) / min(alone)
    print(f"\n{way}: {min(alone):.2f} s alone, {min(beside):.2f} s beside {OTHERS} others, {ratio:.2f} x")
    assert ratio <= MOST
