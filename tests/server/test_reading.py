"""Readings from checkpoints on agree with the whole; followers of a store are kept up to date."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Collection, Mapping
from contextlib import aclosing
from typing import Any

import pytest

from tests.server.recorded import Recorder, new_session
from tests.server.support import agent_with
from tests.server.test_pages import any_session
from whyloop import Session
from whyloop.errors import SessionNotFoundError, SnapshotError
from whyloop.stores import Entry, MemoryStore, Store
from whyloop.stores.live import live
from whyloop.stores.reading import entries_after, read_end, read_session, read_version, start_reading
from whyloop.testing import call
from whyloop.wire.journal import state_of


@pytest.mark.parametrize("seed", range(10))
async def test_every_version_can_be_read_from_a_checkpoint_on(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whyloop.wire.journal.STEPS_PER_CHECKPOINT", 3)
    store = MemoryStore()
    await any_session(store, seed)
    texts = (await store.read("a")).entries
    for version in range(1, len(texts) + 1):
        reading, whole = await read_version(store, "a", version), state_of("a", texts[:version])
        assert (reading.version, reading.summary.version) == (version, version)
        held = reading.state
        for name in ("status", "open_step", "usage", "state_info", "metadata", "agent", "identity"):
            assert getattr(held, name) == getattr(whole, name), name
        assert held.last_continuation_outcome == whole.last_continuation_outcome
        assert (held.execution.id, held.execution.last_seq) == (whole.execution.id, whole.execution.last_seq)
        assert held.messages[held.messages.start :] == whole.messages[held.messages.start :]
        assert held.steps[held.steps.start :] == whole.steps[held.steps.start :]
        assert len(held.steps) == len(whole.steps)


async def test_an_old_version_is_found_without_reading_everything() -> None:
    store = MemoryStore()
    agent = agent_with(*[call("echo")] * 400, "done", max_steps=1000)
    await (await Session.open(store, agent, "a", create=True)).send("go")
    read, found = store.read, 0

    async def reads(agent_id: str, *, after: int = 0, limit: int | None = None) -> Any:
        nonlocal found
        stored = await read(agent_id, after=after, limit=limit)
        found += len(stored.entries)
        return stored

    store.read = reads  # type: ignore[method-assign]
    assert (await read_version(store, "a", 300)).version == 300
    assert found < 250


async def test_an_invalid_entry_is_named_by_its_index_in_the_journal() -> None:
    store = MemoryStore()
    agent = agent_with(*[call("echo")] * 50, "done", max_steps=1000)
    await (await Session.open(store, agent, "a", create=True)).send("go")
    version = (await store.read("a", limit=0)).summary.version
    await store.append("a", [Entry('{"v": 1, "seq": "x", "transitions": []}')], after=version)
    with pytest.raises(SnapshotError) as raised:
        await read_session(store, "a")
    assert raised.value.path == f"$[{version}].seq"


async def test_a_session_that_was_replaced_under_its_id_is_not_found(store: Store) -> None:
    await new_session(store, identity="first")
    earlier = await read_session(store, "a")
    await store.delete("a")
    await new_session(store, identity="second")
    await Recorder(store).record("begin")
    with pytest.raises(SessionNotFoundError):
        await read_session(store, "a", earlier)
    assert (await read_session(store, "a")).state.identity == "second"
    async with aclosing(entries_after(store, earlier)) as entries:
        with pytest.raises(SessionNotFoundError):
            await anext(entries)


async def test_the_end_of_a_session_that_is_not_there_is_an_error(store: Store) -> None:
    for reading in (read_end(store, "a"), read_version(store, "a", 1), start_reading(store, "a")):
        with pytest.raises(SessionNotFoundError):
            await reading


# Followers of a store


async def test_a_store_that_nothing_uses_any_more_is_garbage() -> None:
    store = MemoryStore()
    await (await Session.open(store, agent_with("hi"), "a", create=True)).send("go")
    await live(store).close()
    gone = weakref.ref(store)
    del store
    gc.collect()
    assert gone() is None


async def test_a_follower_that_comes_while_the_task_ends_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whyloop.stores.live.TICK_SECONDS", 0.001)
    store = MemoryStore()
    await new_session(store)
    here, ending, go_on = live(store), asyncio.Event(), asyncio.Event()
    stop_receiving = here._stop_receiving

    async def slowly() -> None:
        ending.set()
        await go_on.wait()
        await stop_receiving()

    monkeypatch.setattr(here, "_stop_receiving", slowly)
    identity = (await store.read("a", limit=0)).summary.identity
    with here.watching("a", identity, 1):
        pass
    await ending.wait()
    with here.watching("a", identity, 1) as watcher:
        go_on.set()
        other = MemoryStore(beside=store)
        await Recorder(other).record("begin")
        async with asyncio.timeout(10):
            await watcher.changed.wait()
    await here.close()


async def test_a_follower_that_arrives_during_a_poll_keeps_its_session() -> None:
    class Slow(MemoryStore):
        asked = asyncio.Event()
        go_on = asyncio.Event()

        async def versions(self, agent_ids: Collection[str]) -> Mapping[str, tuple[str, int]]:
            self.asked.set()
            await self.go_on.wait()
            return await super().versions(agent_ids)

    store = Slow()
    await new_session(store, "a", "x")
    await new_session(store, "b", "y")
    here = live(store)
    with here.watching("a", "x", 1):
        await store.asked.wait()
        with here.watching("b", "y", 1) as late:
            store.go_on.set()
            looking = asyncio.create_task(here._compare_versions(store))
            await looking
            assert not late.is_gone
    await here.close()
