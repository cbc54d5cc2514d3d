"""The event loop stays responsive while long sessions are opened, listed, paged, followed and copied."""

from __future__ import annotations

import gc
from pathlib import Path

from tests.server.responsive import fill, measure
from tests.server.support import Lab, agent_with
from whyloop.cli.services import freeze_startup
from whyloop.stores import MemoryStore, SqliteStore, Store
from whyloop.stores.reading import CHARACTERS_PER_READ, read_session
from whyloop.testing import call


async def test_a_long_session_does_not_hold_up_anything_else(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "whyloop.db") as store:
        await fill(store, 2000)
        freeze_startup()  # Otherwise every full garbage collection visits all that other tests have left.
        lags = await measure(store, 2000, only_own=True)
        gc.unfreeze()
    assert {name: str(lag) for name, lag in lags.items() if lag.worst > 0.1} == {}


async def test_long_entries_are_read_a_few_at_a_time() -> None:
    largest = 0

    class Watching(MemoryStore):
        async def read(self, agent_id: str, *, after: int = 0, limit: int | None = None) -> object:  # type: ignore[override]
            nonlocal largest
            found = await super().read(agent_id, after=after, limit=limit)
            if limit is not None:
                largest = max(largest, sum(map(len, found.entries)))
            return found

    store: Store = Watching()
    text = "x" * 50_000
    lab = Lab(store, agent_with(*[call("echo", {"value": text})] * 100, "done", max_steps=200))
    await lab.asked()
    reading = await read_session(store, "a")
    assert len(reading.state.steps) == 101
    assert sum(map(len, (await store.read("a")).entries)) > 40 * CHARACTERS_PER_READ
    assert largest < 10 * CHARACTERS_PER_READ
