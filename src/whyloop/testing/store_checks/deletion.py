"""A session that was deleted is forgotten altogether, and its id is free."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from whyloop.errors import ConflictError, LeaseLostError, SessionNotFoundError, SessionRunningError
from whyloop.stores.records import Lease
from whyloop.stores.store import Store
from whyloop.testing.store_checks.support import (
    OpenStore,
    a_summary,
    journal,
    listed,
    refused,
    same,
    seen,
    stage,
)


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


async def check_of_a_deletion_and_an_append_at_one_version_one_wins(open_store: OpenStore) -> None:
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


async def check_a_lease_of_a_deleted_session_is_not_one_of_its_successor(open_store: OpenStore) -> None:
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
