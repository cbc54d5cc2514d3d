"""Old sessions are removed, a few at a time, and never one that may still continue."""

from __future__ import annotations

from datetime import timedelta

from whyloop.errors import ConfigurationError, SessionNotFoundError
from whyloop.stores.records import Checkpoint, Entry, RequestKey
from whyloop.stores.store import Store
from whyloop.testing.store_checks.support import (
    OpenStore,
    a_summary,
    at,
    journal,
    listed,
    refused,
    same,
    stage,
)
from whyloop.values.state import AgentStatus

_ENDED = (AgentStatus.COMPLETED, AgentStatus.STOPPED, AgentStatus.FAILED)


async def _with_sessions(store: Store) -> None:
    """Create one session of each status and age; the older ones started later."""
    for status in AgentStatus:
        for minute in range(4):
            name = f"{status.value} {minute}"
            summary = a_summary(name, status=status, started_at=at(-minute), updated_at=at(minute))
            await store.create(summary, journal("x"))


async def check_old_sessions_are_pruned(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, clock), await open_store(clock) as other:
        await _with_sessions(store)
        removed = await store.prune(statuses=_ENDED[:2], updated_before=at(2), limit=100)
        expected = ["completed 0", "stopped 0", "completed 1", "stopped 1"]
        same(list(removed), expected, "the ids of the pruned sessions, the oldest first")
        for process in (store, other):
            left = await listed(process)
            same(len(left), 4 * len(AgentStatus) - 4, "the number of sessions that are left")
            same(set(left) & set(expected), set(), "the pruned sessions that are left")
            attempt = process.read("completed 0")
            await refused(SessionNotFoundError, attempt, "reading a pruned session")
        again = await store.prune(statuses=_ENDED[:2], updated_before=at(2), limit=100)
        same(again, (), "the sessions that are pruned the second time")
        late = at(2) + timedelta(microseconds=1)
        same(
            await store.prune(statuses=_ENDED[1:2], updated_before=late, limit=9),
            ("stopped 2",),
            "the next one",
        )
        same(await store.prune(statuses=(), updated_before=at(9), limit=9), (), "those of no status")


async def check_few_sessions_are_pruned_at_a_time(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, _):
        await _with_sessions(store)
        removed: list[str] = []
        while True:
            some = await store.prune(statuses=_ENDED, updated_before=at(3), limit=2)
            assert len(some) <= 2, f"{len(some)} sessions were pruned at once, and not 2"
            if not some:
                break
            removed += some
        expected = [f"{status} {minute}" for minute in range(3) for status in sorted(s.value for s in _ENDED)]
        same(removed, expected, "the ids of the pruned sessions, the oldest first")
        for limit in (0, -1):
            attempt = store.prune(statuses=_ENDED, updated_before=at(3), limit=limit)
            await refused(ConfigurationError, attempt, f"pruning {limit} sessions")


async def check_a_dry_run_prunes_nothing(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, _):
        await _with_sessions(store)
        before = await listed(store)
        for limit, expected in ((100, ("failed 0", "failed 1")), (1, ("failed 0",))):
            found = await store.prune(
                statuses=[AgentStatus.FAILED], updated_before=at(2), limit=limit, dry_run=True
            )
            same(found, expected, "the ids that would be pruned")
        same(await listed(store), before, "the sessions after a dry run")


async def check_a_session_that_may_continue_is_never_pruned(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, _):
        await _with_sessions(store)
        before = await listed(store)
        for status in (AgentStatus.PENDING, AgentStatus.IN_PROGRESS, AgentStatus.PAUSED):
            for dry_run in (False, True):
                attempt = store.prune(
                    statuses={status, AgentStatus.FAILED}, updated_before=at(9), limit=9, dry_run=dry_run
                )
                error = await refused(ConfigurationError, attempt, f"pruning what is {status.value}")
                assert status.value in str(error), f"the error should name {status.value}: {error}"
        same(await listed(store), before, "the sessions after refused prunings")


async def check_a_session_that_runs_is_not_pruned(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, clock), await open_store(clock) as other:
        await _with_sessions(store)
        await other.acquire("failed 0", "one", 30)
        first = await store.prune(statuses=[AgentStatus.FAILED], updated_before=at(3), limit=1)
        same(first, ("failed 1",), "what is pruned beside a session that runs")
        clock.advance(31)
        rest = await store.prune(statuses=[AgentStatus.FAILED], updated_before=at(3), limit=9)
        same(rest, ("failed 0", "failed 2"), "what is pruned when the lease has lapsed")
        async with await open_store(clock) as dead:
            await dead.acquire("stopped 0", "the dead", 3600)
        last = await store.prune(statuses=[AgentStatus.STOPPED], updated_before=at(1), limit=9)
        same(last, ("stopped 0",), "what is pruned when the runner is dead")


async def check_all_of_a_pruned_session_is_removed(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, _):
        old = a_summary(status=AgentStatus.FAILED, metadata={"k": "v"}, resolved_by="rule", agent="agent")
        entries = [Entry("x", Checkpoint("e", 0, 0, 0, "{}")), Entry("y")]
        await store.create(old, entries, key=RequestKey("key", "digest"))
        await store.prune(statuses=[AgentStatus.FAILED], updated_before=at(9), limit=9)
        for wanted in ({}, {"metadata": {"k": "v"}}, {"resolved_by": "rule"}, {"agent": "agent"}):
            same(await listed(store, **wanted), [], f"what {wanted} finds")
        await store.create(a_summary(identity="another"), journal("new"))
        same((await store.read("a")).entries, ("new",), "the entries of a session with the same id")
        same(await store.key("a", "key"), None, "the key in a session with the same id")
        same(await store.checkpoint("a"), None, "the checkpoint of a session with the same id")
