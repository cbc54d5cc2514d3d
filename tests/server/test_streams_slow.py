"""Clients that do not read: no run waits for them, and they miss nothing that is kept."""

from __future__ import annotations

import asyncio
import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import websockets
from benchmarks.subscribers import measure

from tests.server.streams_clients import LIVE, events_url
from tests.server.streams_support import Stage, stage
from tests.support import echo, scripted
from whyloop.stores import SqliteStore
from whyloop.testing import call
from whyloop.wire.envelope import BroadcastConfig

# Smaller ones than these make the kernel crawl.
SMALL: dict[str, Any] = {"send_buffer": 65_536, "receive_buffer": 65_536}
A_RUN = ("begin", "step", "end")
WAYS = pytest.mark.parametrize("way", ["events", "socket"])


@WAYS
async def test_a_client_that_does_not_read_slows_no_run_and_receives_everything_later(way: str) -> None:
    wanted = [call("echo", {"value": f"{number} " + "x" * 20_000}) for number in range(60)]
    agent = scripted(*wanted, "done", tools=[echo], max_steps=100)
    async with stage(agent=agent, config=BroadcastConfig(include_tool_args=True), **SMALL) as a:
        async with getattr(a.to, way)(a.url) as client:
            await a.ask("go")
            await a.finished()
            sizes: list[int] = []  # The connection sends in portions, and is empty between two of them.
            await a.server.until(lambda: sizes.append(a.unsent()[0]) or sizes[-1] > 0)  # type: ignore[func-returns-value]
            heard = await client.run()
        kept = await a.to.page(a.url)
    assert 0 < sizes[-1] < 1_000_000 < len(str(kept))
    assert [each for each in heard if each["event"] not in LIVE] == kept


@WAYS
async def test_envelopes_for_a_client_that_does_not_read_are_not_kept_in_memory(
    way: str, tmp_path: Path
) -> None:
    store = SqliteStore(tmp_path / "whyloop.db")
    async with stage(store, **SMALL) as a:
        a.agents.events._recent = 10
        async with getattr(a.to, way)(a.url) as client:
            # As many as are remembered of a session, and whatever else grows only once.
            await record_large(a, 0, 20)
            tracemalloc.start()
            await record_large(a, 20, 120)
            grown, most = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            heard = [await client.run() for _ in range(120)]
    # The latest 10 envelopes are remembered, 240,000 characters; 6 million were recorded. On a busy machine
    # more of them are on their way at once.
    assert grown < most < 4_500_000
    assert [[each["execution_id"] for each in run] for run in heard] == [
        [f"x{number}"] * len(A_RUN) for number in range(120)
    ]


async def test_a_client_that_closes_without_reading_occupies_no_stream_from_then_on() -> None:
    async with stage(**SMALL) as a:
        socket = await websockets.connect(
            events_url(a.url).replace("http", "ws"), max_size=None, compression=None, close_timeout=100
        )
        for number in range(120):
            await a.server.do(partial(a.recorder.record, *A_RUN, execution=f"x{number}", text="x" * 60_000))
        assert a.unsent()[0] > 0
        # It waits for the end of what it does not read, and the server does not.
        closing = asyncio.create_task(socket.close())
        await a.server.until(lambda: not a.agents._admission.count("streams"))
        assert not closing.done()
        socket.transport.abort()
        await closing


@pytest.mark.slow
async def test_a_thousand_followers_receive_everything_in_order() -> None:
    measured = await measure()
    assert measured.is_whole


async def record_large(a: Stage, first: int, last: int) -> None:
    """Record runs whose last envelope has 60,000 characters."""
    for number in range(first, last):
        await a.server.do(partial(a.recorder.record, *A_RUN, execution=f"x{number}", text="x" * 60_000))
