"""Sessions are deleted and pruned altogether, and never while they run."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from msgspec.structs import replace

from whyloop.errors import (
    ConfigurationError,
    ConflictError,
    LeaseLostError,
    SessionNotFoundError,
    SessionRunningError,
)
from whyloop.stores.records import Checkpoint, Entry, Lease, RequestKey
from whyloop.stores.store import Store
from whyloop.testing.store_checks import (
    OpenStore,
    a_summary,
    at,
    journal,
    listed,
    refused,
    same,
    seen,
    stage,
)
from whyloop.values.state import AgentStatus


async def check_a_deleted_session_is_gone(open_store: OpenStore) -> None:
    async with stage(open_store, "a", "b") as (store, clock), await open_store(clock) as other:
        await store.append("a", [], after=1, summary=a_summary(metadata={"k": "v"}))
        await store.delete("a")
        for process in (store, other):
            await refused(SessionNotFoundError, process.read("a"), "reading a deleted session")
            await refused(SessionNotFoundError, process.delete("a"), "deleting a deleted session")
            attempt = process.acquire("a", "one", 30)
            await refused(SessionNotFoundError, attempt, "a lease of a deleted session")
        same(await listed(other), ["b"], "the sessions that are listed")
        same(await listed(other, metadata={"k": "v"}), [], "what its metadata finds")
        same((await store.read("b")).entries, ("first",), "the entries of the other session")


async def check_a_session_that_runs_is_not_deleted(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock), await open_store(clock) as other:
        lease = await store.acquire("a", "one", 30)
        clock.advance(10)
        before = await seen(store)
        error = await refused(SessionRunningError, other.delete("a"), "deleting what runs")
        same((error.agent_id, error.owner), ("a", "one"), "what the error names")
        assert abs(error.seconds - 20) < 0.01, f"20 seconds are left, and not {error.seconds}"
        same(await seen(store), before, "the session after a refused deletion")
        await store.release(lease)
        await other.delete("a")
        same(await listed(store), [], "the sessions that are listed")


async def check_a_session_is_deleted_at_the_expected_version_only(open_store: OpenStore) -> None:
    async with stage(open_store, "a", "b") as (store, _):
        await store.append("a", journal("second"), after=1, summary=a_summary(metadata={"k": "v"}))
        before = await seen(store)
        for expected in (-1, 0, 1, 3, 2**31, 2**63, 2**64):
            attempt = store.delete("a", expected_version=expected)
            error = await refused(ConflictError, attempt, f"deleting at version {expected} of 2")
            same((error.agent_id, error.expected, error.found), ("a", expected, 2), "what the error names")
            same(await seen(store), before, "the session after a refused deletion")
        attempt = store.delete("missing", expected_version=1)
        await refused(SessionNotFoundError, attempt, "deleting a session that is not there")
        lease = await store.acquire("a", "one", 30)
        attempt = store.delete("a", expected_version=1)
        await refused(SessionRunningError, attempt, "deleting what runs, at another version")
        await store.release(lease)
        await store.delete("a", expected_version=2)
        same(await listed(store), ["b"], "the sessions that are listed")


async def check_a_deletion_or_an_append_at_one_version_wins(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, clock), await open_store(clock) as other:
        for number in range(6):
            await store.create(a_summary(), journal("first"))
            attempts = [
                store.delete("a", expected_version=1),
                other.append("a", journal("second"), after=1),
            ]
            done = await asyncio.gather(*attempts[:: 1 if number % 2 else -1], return_exceptions=True)
            deleted, appended = done if number % 2 else reversed(done)
            found = [type(deleted), type(appended)]
            expected = [[type(None), SessionNotFoundError], [ConflictError, type(None)]]
            assert found in expected, f"a deletion and an append at one version both came to pass: {done!r}"
            if appended is None:
                await store.delete("a")


async def check_a_session_whose_runner_is_dead_can_be_deleted(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock):
        lease = await store.acquire("a", "one", 30)
        clock.advance(31)
        await store.delete("a")
        attempt = store.append("a", journal("x"), after=1, lease=lease)
        await refused(SessionNotFoundError, attempt, "writing to a deleted session")
        await refused(SessionNotFoundError, store.renew(lease), "renewing the lease of a deleted session")
        same(await listed(store), [], "the sessions that are listed")


async def check_the_id_of_a_deleted_session_is_free(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, _):
        await store.create(a_summary(title="old", metadata={"age": "old"}), journal("1", "2", "3"))
        await store.delete("a")
        new = a_summary(title="new", metadata={"age": "new"}, identity="another")
        await store.create(new, journal("one"))
        stored = await store.read("a")
        same(stored.entries, ("one",), "the entries")
        same(stored.summary, replace(new, version=1), "the summary")
        same(await listed(store, metadata={"age": "old"}), [], "what the old metadata finds")
        same(await listed(store, metadata={"age": "new"}), ["a"], "what the new metadata finds")


async def check_a_lease_of_a_deleted_session_is_void_in_the_next_one(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock):
        zombie = await store.acquire("a", "one", 30)
        await store.ask_to_stop("a", "enough")
        clock.advance(31)
        await store.delete("a")
        await store.create(a_summary(), journal("first"))
        same((await store.read("a")).summary.runner, None, "the runner of a new session")
        await _is_worth_nothing(store, zombie)
        lease = await store.acquire("a", "one", 30)
        await _is_worth_nothing(store, zombie)
        same(await store.renew(lease), None, "what renew returns to the runner of the new session")


async def _is_worth_nothing(store: Store, zombie: Lease) -> None:
    before = await seen(store)
    attempt = store.append("a", journal("zombie"), after=1, lease=zombie, release=True)
    await refused(LeaseLostError, attempt, "writing with a lease of the session before")
    await refused(LeaseLostError, store.renew(zombie), "renewing a lease of the session before")
    await store.release(zombie)
    same(await seen(store), before, "the session after an old lease was used")


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
