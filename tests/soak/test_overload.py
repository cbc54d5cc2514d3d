"""A server at its default limits is hardly later than at half of them, and refuses one more at once."""

from __future__ import annotations

import asyncio
import gc
import random
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from statistics import median

import pytest

from tests.server.responsive import Heartbeat, Lag
from tests.server.streams_clients import events_url
from tests.server.streams_support import Stage, stage
from tests.support import RespondingModel
from whyloop import Agent, FinishReason, ModelRequest, ModelResponse, TextDelta, ToolCall, tool
from whyloop.cli.services import freeze_startup
from whyloop.stores import MemoryStore

STREAMS, RUNS = 1000, 200  # The defaults.
SECONDS, ROUNDS = 5.0, 5
PAUSE = 0.5
MOST = 3.0

pytestmark = pytest.mark.soak(suite="load")


@tool
async def look() -> str:
    """Look."""
    return "There."


class Steady:
    """A model that takes its time, and asks for a tool until it may end.

    If the runs step together, all answers come at once; otherwise at random times.
    """

    def __init__(self, *, together: bool) -> None:
        self.may_end = False
        self._together = together
        self._chance = random.Random(7)

    async def respond(self, request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        await asyncio.sleep(self._pause())
        yield TextDelta("Let me look.")
        calls = () if self.may_end else (ToolCall(f"c{time.monotonic_ns()}", "look", {}),)
        yield ModelResponse("Let me look.", calls, FinishReason.TOOL_CALLS if calls else FinishReason.STOP)

    def _pause(self) -> float:
        if self._together:
            return PAUSE - asyncio.get_running_loop().time() % PAUSE
        return self._chance.uniform(0, 2 * PAUSE)


async def lag_at(share: float, *, together: bool) -> Lag:
    """Return how late the event loop of a server is with this share of the streams and runs that it takes."""
    model, streams, runs = Steady(together=together), int(STREAMS * share), int(RUNS * share)
    agent = Agent(RespondingModel(model.respond), [look], max_steps=10**6, timeout=None)
    async with stage(MemoryStore(), agent, close_first=True) as a:
        for number in range(runs):
            await posted(a, "/sessions", {"agent_id": f"s{number}"})
        async with readers(a.server.port, streams, runs):
            for number in range(runs):
                await posted(a, f"/sessions/s{number}/messages", {"text": "go"})
            if share == 1:
                await refused_at_once(a)
            lag: Lag = await a.server.do(beat)
            model.may_end = True
            await a.finished()
    return lag


@asynccontextmanager
async def readers(port: int, *counts: int) -> AsyncIterator[None]:
    """Follow sessions from another process, so that the clients take no time from the server."""
    command = [sys.executable, "-m", "tests.soak.readers", str(port), *map(str, counts)]
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert await process.stdout.readline() == b"ready\n"
        yield
    finally:
        process.stdin.close()
        await process.wait()


async def posted(a: Stage, path: str, body: object) -> None:
    async with a.to.http.post(a.url + path, json=body) as response:
        assert response.status in (201, 202), await response.text()


async def refused_at_once(a: Stage) -> None:
    """One more of each is told when to come back, and no longer waits than for any other answer."""
    await posted(a, "/sessions", {"agent_id": "more"})
    headers = {"accept": "text/event-stream"}
    async with asyncio.timeout(5):
        async with a.to.http.get(events_url(a.url, "more"), headers=headers) as response:
            assert (response.status, response.headers["retry-after"]) == (503, "5")
        async with a.to.http.post(f"{a.url}/sessions/more/messages", json={"text": "go"}) as response:
            assert (response.status, response.headers["retry-after"]) == (503, "5")


async def beat() -> Lag:
    """Return how late the event loop is, without what other processes and threads take."""
    async with Heartbeat(only_own=True) as heart:
        await asyncio.sleep(SECONDS)
    return heart.lag


@pytest.mark.parametrize("together", [True, False], ids=["together", "at random"])
async def test_a_server_at_its_limits_is_at_most_three_times_as_late_as_at_half_of_them(
    together: bool,
) -> None:
    half, full = [], []
    freeze_startup()  # As in a process that serves sessions.
    for _ in range(ROUNDS):
        half.append(await lag_at(0.5, together=together))
        full.append(await lag_at(1, together=together))
    gc.unfreeze()
    ratio = median(lag.p99 for lag in full) / median(lag.p99 for lag in half)
    print(f"\nhalf: {', '.join(map(str, half))}\nfull: {', '.join(map(str, full))}\np99: {ratio:.2f} x")
    assert ratio <= MOST
