"""A session whose runner is dead is free at once; sessions that no runner has are found."""

from __future__ import annotations

import asyncio

from whyloop.errors import LeaseLostError, SessionRunningError
from whyloop.stores.records import Lease
from whyloop.stores.store import Store
from whyloop.testing.clock import FakeClock
from whyloop.testing.store_checks.support import (
    OpenStore,
    a_summary,
    at,
    journal,
    refused,
    same,
    stage,
)
from whyloop.values.state import AgentStatus

_RUNNING = AgentStatus.IN_PROGRESS


async def _dead_lease(open_store: OpenStore, clock: FakeClock, agent_id: str) -> Lease:
    """Return a lease with much time left, of a store object that was closed."""
    async with await open_store(clock) as dead:
        return await dead.acquire(agent_id, "the dead", 3600)


async def check_a_session_of_a_closed_store_is_free_at_once(open_store: OpenStore) -> None:
    names = ("acquired", "appended", "deleted", "asked", "read")
    async with stage(open_store, *names) as (store, clock):
        leases = {name: await _dead_lease(open_store, clock, name) for name in names}
        same((await store.read("read")).summary.runner, None, "the runner")
        same(await store.ask_to_stop("asked", "enough"), False, "what ask_to_stop returns")
        await store.append("appended", journal("x"), after=1)
        await store.delete("deleted")
        lease = await store.acquire("acquired", "the next", 30)
        assert lease.token > leases["acquired"].token, (
            f"{lease.token} should be greater than the token before"
        )
        same((await store.read("acquired")).summary.runner, "the next", "the runner")
        attempt = store.append("acquired", journal("x"), after=1, lease=leases["acquired"])
        await refused(LeaseLostError, attempt, "an append with the lease of the dead runner")


async def check_a_runner_in_another_store_object_is_alive(open_store: OpenStore) -> None:
    async with stage(open_store, "a", "b") as (store, clock), await open_store(clock) as other:
        lease = await store.acquire("a", "one", 3600)
        await _dead_lease(open_store, clock, "b")
        for process in (store, other):
            same((await process.read("a")).summary.runner, "one", "the runner")
            await refused(SessionRunningError, process.acquire("a", "two", 30), "a second lease")
            await refused(SessionRunningError, process.append("a", [], after=1), "an append beside a runner")
            await refused(SessionRunningError, process.delete("a"), "deleting what runs")
        same(await other.ask_to_stop("a", "enough"), True, "what ask_to_stop returns")
        same(await store.renew(lease), "enough", "what renew returns")


async def check_of_many_who_find_a_runner_dead_one_runs_the_session(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock), await open_store(clock) as other:
        for _ in range(5):
            await _dead_lease(open_store, clock, "a")
            results = await asyncio.gather(
                *((store, other)[n % 2].acquire("a", f"{n}", 30) for n in range(8)), return_exceptions=True
            )
            leases = [result for result in results if isinstance(result, Lease)]
            assert len(leases) == 1, f"one of eight should get the lease, and {len(leases)} did"
            for result in results:
                assert isinstance(result, Lease | SessionRunningError), f"a loser got {result!r}"
            await store.release(leases[0])


async def check_a_stop_request_passes_to_the_runner_after_a_dead_one(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock):
        async with await open_store(clock) as dead:
            await dead.acquire("a", "the dead", 3600)
            same(await store.ask_to_stop("a", "enough"), True, "what ask_to_stop returns")
        lease = await store.acquire("a", "the next", 30)
        same(await store.renew(lease), "enough", "what renew returns")


async def check_sessions_that_could_continue_are_found(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, clock), await open_store(clock) as other:
        for number, status in enumerate(AgentStatus):
            await store.create(a_summary(status.value, status=status, updated_at=at(number)), [])
        waiting = a_summary("waiting", status=AgentStatus.PAUSED, pending=1)
        await store.create(waiting, [])
        for name, minute in (("running", 0), ("lapsed", 20), ("dead", 10), ("given back", 30)):
            await store.create(a_summary(name, status=_RUNNING, updated_at=at(minute)), journal("x"))
        await store.acquire("lapsed", "one", 30)
        clock.advance(31)
        await store.acquire("running", "one", 30)
        await store.release(await store.acquire("given back", "one", 30))
        await _dead_lease(open_store, clock, "dead")
        expected = ["in_progress", "paused", "dead", "lapsed", "given back"]
        for process in (store, other):
            same(await _unattended(process), expected, "the sessions that could continue")
            same(await _unattended(process, limit=2), expected[:2], "the first two of them")
        await store.append("waiting", [], after=0, summary=a_summary("waiting", status=AgentStatus.PAUSED))
        same((await _unattended(store))[0], "waiting", "the one whose last question was answered")
        found = await store.unattended()
        same(found[3], (await store.read("dead")).summary, "the summary")
        await store.acquire("in_progress", "one", 30)
        assert "in_progress" not in await _unattended(other), "a session that runs again is still found"


async def _unattended(store: Store, **limit: int) -> list[str]:
    return [summary.agent_id for summary in await store.unattended(**limit)]
