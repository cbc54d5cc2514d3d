"""Old sessions are deleted, the oldest first, and never one that may still continue."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from whyloop import stores
from whyloop.errors import ConfigurationError
from whyloop.stores import MemoryStore, SqliteStore, Store, prune
from whyloop.testing import FakeClock
from whyloop.testing.store_checks import START, a_summary, at, journal, listed
from whyloop.values.state import AgentStatus

ENDED = (AgentStatus.COMPLETED, AgentStatus.STOPPED, AgentStatus.FAILED)
EVERY = [f"{status} {minute}" for status in AgentStatus for minute in range(4)]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START + timedelta(minutes=10))


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: Any, clock: FakeClock, tmp_path: Path) -> AsyncIterator[Store]:
    """A store with one session of each status and age; the older ones started later."""
    kinds: dict[str, Any] = {
        "memory": MemoryStore,
        "sqlite": lambda clock: SqliteStore(tmp_path / "s.db", clock=clock),
    }
    async with kinds[request.param](clock) as store:
        for name in EVERY:
            status, minute = name.split()
            moments = {"started_at": at(-int(minute)), "updated_at": at(int(minute))}
            await store.create(a_summary(name, status=AgentStatus(status), **moments), journal("x"))
        yield store


async def pruned(store: Store, minutes: float, *statuses: AgentStatus, dry_run: bool = False) -> list[str]:
    """Prune what was last changed so many minutes after the start, at the latest."""
    older_than = timedelta(minutes=10 - minutes) - timedelta(microseconds=1)
    batches = prune(store, older_than, statuses=statuses, dry_run=dry_run)
    return [agent_id async for batch in batches for agent_id in batch]


async def test_old_sessions_are_pruned_the_oldest_first(store: Store) -> None:
    expected = ["completed 0", "stopped 0", "completed 1", "stopped 1"]
    assert await pruned(store, 1, AgentStatus.STOPPED, AgentStatus.COMPLETED) == expected
    assert sorted(await listed(store)) == sorted(set(EVERY) - set(expected))
    assert await pruned(store, 1, AgentStatus.STOPPED, AgentStatus.COMPLETED) == []
    assert await pruned(store, 1.99, AgentStatus.STOPPED) == []
    assert await pruned(store, 2, AgentStatus.STOPPED) == ["stopped 2"]
    assert await pruned(store, 9) == []


async def test_sessions_are_pruned_in_batches(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "BATCH", 5)
    monkeypatch.setattr(stores, "LISTED", 2)
    batches = [batch async for batch in prune(store, timedelta(), statuses=ENDED)]
    assert [len(batch) for batch in batches] == [5, 5, 2]
    assert sorted(await listed(store)) == sorted(name for name in EVERY if name.split()[0] not in ENDED)


async def test_a_dry_run_prunes_nothing(store: Store) -> None:
    assert await pruned(store, 1, AgentStatus.FAILED, dry_run=True) == ["failed 0", "failed 1"]
    assert sorted(await listed(store)) == sorted(EVERY)


@pytest.mark.parametrize("status", [AgentStatus.PENDING, AgentStatus.IN_PROGRESS, AgentStatus.PAUSED])
async def test_a_session_that_may_continue_is_never_pruned(store: Store, status: AgentStatus) -> None:
    with pytest.raises(ConfigurationError, match=f"sessions that are {status} are never pruned"):
        await pruned(store, 9, AgentStatus.FAILED, status)
    assert sorted(await listed(store)) == sorted(EVERY)


async def test_a_session_that_runs_is_not_pruned(store: Store, clock: FakeClock) -> None:
    await store.acquire("failed 0", "one", 30)
    assert await pruned(store, 1, AgentStatus.FAILED) == ["failed 1"]
    clock.advance(31)
    assert await pruned(store, 1, AgentStatus.FAILED) == ["failed 0"]


async def test_a_session_that_is_used_again_meanwhile_is_not_pruned(store: Store) -> None:
    async for batch in one_by_one(store):
        if batch == ("failed 0",):
            await store.append("failed 1", journal("y"), after=1)
            await store.acquire("failed 2", "one", 30)
            await store.delete("failed 3")
    assert [name for name in await listed(store) if "failed" in name] == ["failed 1", "failed 2"]


async def one_by_one(store: Store) -> AsyncIterator[tuple[str, ...]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stores, "BATCH", 1)
        async for batch in prune(store, timedelta(), statuses=[AgentStatus.FAILED]):
            yield batch


async def test_an_age_in_the_future_is_refused(store: Store) -> None:
    with pytest.raises(ConfigurationError, match="invalid age"):
        await anext(prune(store, timedelta(seconds=-1)))
