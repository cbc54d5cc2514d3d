"""Many sessions at once on one store, and what they leave behind."""

from __future__ import annotations

import asyncio
import gc
import json
import sqlite3
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from whyloop import (
    Agent,
    FinishReason,
    ModelRequest,
    ModelResponse,
    Session,
    TextDelta,
    ToolCall,
    Usage,
    tool,
)
from whyloop.broadcasting import EventFeed
from whyloop.cli.services import freeze_startup
from whyloop.stores import Store
from whyloop.stores.reading import release
from whyloop.values.text import counted

BEAT_SECONDS = 0.005
# Times the lag with hand-written sessions: of 99 beats in 100, and of the latest one.
MOST_TYPICAL, MOST_WORST = 2.0, 3.0


@tool
async def lookup(key: str) -> str:
    """Look a value up."""
    await asyncio.sleep(0)
    return f"the value of {key}"


class BusyModel:
    """Asks for a tool again and again, as long as there is time; each answer takes a moment."""

    def __init__(self, until: float, least: int) -> None:
        self._until = until
        self._least = least
        self._calls = 0

    async def respond(self, request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        await asyncio.sleep(0.01)
        usage = Usage(input=900, output=100)
        if time.monotonic() >= self._until and self._calls >= self._least:
            yield TextDelta("done")
            yield ModelResponse("done", usage=usage)
            return
        self._calls += 1
        call = ToolCall(f"call_{self._calls}", "lookup", {"key": f"alpha {self._calls}"})
        yield ModelResponse("", (call,), FinishReason.TOOL_CALLS, usage)


class Load(NamedTuple):
    """What was measured: steps in all, seconds, and how late the event loop was, in seconds."""

    steps: int
    seconds: float
    worst_lag: float
    typical_lag: float
    problems: list[str]

    @property
    def steps_per_second(self) -> float:
        return self.steps / self.seconds


async def run_load(store: Store, sessions: int, seconds: float) -> Load:
    """Run so many sessions of one agent for so many seconds, then read back what was recorded of each."""
    started = time.monotonic()
    model = BusyModel(started + seconds, least=4 * sessions)  # However busy the machine is.
    agent = Agent(model, [lookup], max_steps=10**6, timeout=None)
    lags: list[float] = []
    freeze_startup()  # As in a process that serves sessions.
    beating = asyncio.create_task(beat(lags))
    states = await asyncio.gather(*[_run(store, agent) for _ in range(sessions)])
    took = time.monotonic() - started
    beating.cancel()
    gc.unfreeze()
    problems: list[str] = []
    feed = EventFeed(store)
    for agent_id, steps, last_seq in states:
        page = await feed.page(agent_id, limit=10**6)
        numbers = [item.seq for item in page.items if item.is_numbered]
        if numbers != list(range(1, last_seq + 1)):
            problems.append(f"{agent_id}: {counted(len(numbers), 'envelope')} instead of {last_seq}")
        if page.items[-1].body.find('"status":"completed"') < 0:
            problems.append(f"{agent_id}: it did not complete after {counted(steps, 'step')}")
    lags.sort()
    typical = lags[int(len(lags) * 0.99)] if lags else 0.0
    return Load(sum(steps for _, steps, _ in states), took, max(lags, default=0.0), typical, problems)


async def run_bare(folder: Path, sessions: int, seconds: float) -> list[float]:
    """Return how late the event loop is, sorted, with hand-written sessions that insert a row a step."""
    connection = sqlite3.connect(folder / "bare.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = wal")
    connection.execute("PRAGMA synchronous = normal")
    connection.execute("CREATE TABLE IF NOT EXISTS rows (body TEXT)")
    until, lags = time.monotonic() + seconds, list[float]()

    async def session() -> None:
        while time.monotonic() < until:
            await asyncio.sleep(0.01)
            body = json.dumps({"role": "assistant", "content": "", "at": str(datetime.now(UTC))})
            connection.execute("INSERT INTO rows VALUES (?)", (body,))

    beating = asyncio.create_task(beat(lags))
    await asyncio.gather(*[session() for _ in range(sessions)])
    beating.cancel()
    connection.close()
    return sorted(lags)


async def lag_ratios(folder: Path, store: Store) -> tuple[Load, float, float]:
    """Run 500 sessions for two minutes; return how late they are beside hand-written ones."""
    before = await run_bare(folder, 500, 20.0)
    load = await run_load(store, 500, 120.0)
    after = await run_bare(folder, 500, 20.0)
    typical = (before[int(len(before) * 0.99)] + after[int(len(after) * 0.99)]) / 2
    ratios = load.typical_lag / typical, load.worst_lag / max(before[-1], after[-1])
    print(f"\n{load.steps_per_second:.0f} steps/s, lag {load.typical_lag * 1000:.0f} ms (p99) and at most")
    print(f"{load.worst_lag * 1000:.0f} ms: {ratios[0]:.2f} and {ratios[1]:.2f} times that of bare sessions")
    return load, *ratios


async def _run(store: Store, agent: Agent) -> tuple[str, int, int]:
    session = await Session.open(store, agent)
    state = await session.send("go")
    release(state)  # As a server does: all histories end within a second here.
    return session.agent_id, state.step_count, state.execution.last_seq


async def beat(lags: list[float]) -> None:
    """Note how late the event loop is, many times a second."""
    while True:
        due = time.perf_counter() + BEAT_SECONDS
        await asyncio.sleep(BEAT_SECONDS)
        lags.append(max(0.0, time.perf_counter() - due))
