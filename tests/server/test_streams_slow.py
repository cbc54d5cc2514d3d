"""Clients that do not read, whom nobody waits for and who miss nothing that is kept; and a thousand."""

from __future__ import annotations

import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from benchmarks.subscribers import SUBSCRIBERS, measure

from tests.broadcasting.support import envelope, seqs
from tests.server.streams_support import Stage, stage
from tests.support import echo, scripted
from whyloop.stores import SqliteStore
from whyloop.testing import call
from whyloop.wire.broadcast_config import BroadcastConfig

# Smaller ones than these make the kernel crawl.
SMALL: dict[str, Any] = {"send_buffer": 65_536, "receive_buffer": 65_536}
WAYS = pytest.mark.parametrize("way", ["events", "socket"])


@WAYS
async def test_who_does_not_read_slows_no_run_and_hears_all_of_it_later(way: str) -> None:
    wanted = [call("echo", {"value": f"{number} " + "x" * 20_000}) for number in range(60)]
    agent = scripted(*wanted, "done", tools=[echo], max_steps=100)
    async with stage(agent=agent, config=BroadcastConfig(include_tool_args=True), **SMALL) as a:
        async with getattr(a.to, way)(a.url) as client:
            await a.ask("go")
            await a.finished()
            await a.server.until(lambda: a.unsent()[0] > 0)
            waiting = a.unsent()[0]
            heard = await client.run()
        kept = await a.to.page(a.url)
    assert 0 < waiting < 1_000_000 < len(str(kept))
    assert a.agents.events.dropped == {}
    assert [each for each in heard if each["event"] != "agent.stream.chunk"] == kept


@WAYS
async def test_what_waits_for_somebody_who_does_not_read_is_not_in_memory(way: str, tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "whyloop.db")
    async with stage(store, **SMALL) as a, getattr(a.to, way)(a.url) as client:
        # As many as are remembered of a session, and whatever else grows only once.
        await tell_large(a, 1, 700)
        tracemalloc.start()
        await tell_large(a, 701, 3700)
        grown, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        await a.tell("end", execution="e2")
        heard = seqs(await client.run())
    # The latest 500 of them are remembered, 5 million characters; 30 million were told.
    assert grown < most < 12_000_000
    assert heard == [*range(1, 3701), 1]


@pytest.mark.slow
async def test_a_thousand_who_follow_one_session_hear_all_of_it_in_order() -> None:
    measured = await measure()
    assert measured.complete == SUBSCRIBERS


async def tell_large(a: Stage, first: int, last: int) -> None:
    """Tell envelopes of ten thousand characters, a few at a time so that the log can keep them."""
    for start in range(first, last + 1, 100):
        told = [envelope("step", seq, "a", words="x" * 10_000) for seq in range(start, start + 100)]
        await a.server.do(partial(a.agents.events.broadcast_batch, told))
        await a.settled()
