"""Engines: durable leases, which belong to no store object, and claims, which keep large payloads."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from hashlib import sha256
from typing import Any

from whyloop.errors import ConfigurationError, SessionNotFoundError, SessionRunningError, StoreError
from whyloop.stores import prune
from whyloop.stores.records import Lease
from whyloop.testing.clock import FakeClock
from whyloop.testing.store_checks import OpenStore, a_summary, at, journal, refused, same, stage
from whyloop.testing.store_checks.leases import is_fenced_off, writes
from whyloop.values.state import AgentState, AgentStatus

_HOUR = 3600


async def _durable(open_store: OpenStore, clock: FakeClock, agent_id: str = "a", owner: str = "run") -> Lease:
    """Return a durable lease of a store object that is closed."""
    async with await open_store(clock) as dead:
        return await dead.acquire(agent_id, owner, _HOUR, durable=True)


async def check_a_lease_says_whether_it_is_durable(open_store: OpenStore) -> None:
    async with stage(open_store, "a", "b") as (store, _):
        durable = await store.acquire("a", "run", _HOUR, durable=True)
        same((durable.agent_id, durable.owner, durable.seconds), ("a", "run", _HOUR), "the lease")
        same((durable.identity, durable.version), ("the identity of a", 1), "the session that it names")
        same(durable.durable, True, "whether a durable lease is durable")
        same((await store.acquire("b", "one", 30)).durable, False, "whether another lease is durable")


async def check_a_durable_lease_outlives_its_store_object(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, clock):
        await store.create(a_summary("a", status=AgentStatus.IN_PROGRESS), journal("first"))
        await _durable(open_store, clock)
        same((await store.read("a")).summary.runner, "run", "the runner")
        error = await refused(SessionRunningError, store.acquire("a", "two", 30), "a second lease")
        same((error.agent_id, error.owner), ("a", "run"), "what the error names")
        await refused(SessionRunningError, store.append("a", [], after=1), "an append beside a durable lease")
        await refused(SessionRunningError, store.delete("a"), "deleting a session with a durable lease")
        same(await store.unattended(), (), "the sessions that could continue")


async def check_any_store_object_may_use_a_durable_lease(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock):
        lease = await _durable(open_store, clock)
        same(await writes(store, lease), True, "whether another store object writes with it")
        same(await store.ask_to_stop("a", "enough"), True, "what ask_to_stop returns")
        same(dict(await store.stop_requests([lease])), {lease.token: "enough"}, "the stop requests")
        same(await store.renew(lease), "enough", "what renew returns")
        same(await store.release(lease), "enough", "what release returns")
        same((await store.read("a")).summary.runner, None, "the runner after the release")
        lease = await _durable(open_store, clock)
        await store.append("a", [], after=2, lease=lease, release=True)
        same((await store.read("a")).summary.runner, None, "the runner after the last append")


async def check_renewing_binds_a_durable_lease_to_no_store_object(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock):
        lease = await _durable(open_store, clock)
        clock.advance(_HOUR - 1)
        async with await open_store(clock) as dead:
            await dead.renew(lease)
        clock.advance(_HOUR - 1)
        same((await store.read("a")).summary.runner, "run", "the runner after a renewal")
        await refused(SessionRunningError, store.acquire("a", "two", 30), "a second lease")
        await store.renew(lease)


async def check_a_durable_lease_lapses_when_its_time_has_passed(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, clock):
        await store.create(a_summary("a", status=AgentStatus.IN_PROGRESS), journal("first"))
        lease = await _durable(open_store, clock)
        await store.ask_to_stop("a", "enough")
        clock.advance(_HOUR + 1)
        same((await store.read("a")).summary.runner, None, "the runner after the time")
        same([each.agent_id for each in await store.unattended()], ["a"], "the sessions that could continue")
        same(await writes(store, lease), True, "whether a lapsed lease that no runner took still writes")
        following = await store.acquire("a", "two", 30)
        same(await store.renew(following), "enough", "what renew returns to the next runner")
        await is_fenced_off(store, lease, "two")


async def check_the_owner_acquires_a_durable_lease_again(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock):
        first = await _durable(open_store, clock)
        await store.append("a", journal("second"), after=1, lease=first)
        await store.ask_to_stop("a", "enough")
        clock.advance(60)
        second = await store.acquire("a", "run", _HOUR, durable=True)
        assert second.token > first.token, (
            f"{second.token} is not greater than the token {first.token} before"
        )
        same((second.version, second.durable), (2, True), "the version that it names, and its kind")
        await is_fenced_off(store, first, "run")
        same(await writes(store, second), True, "whether the new lease writes")
        clock.advance(_HOUR - 1)
        same((await store.read("a")).summary.runner, "run", "the runner, whose time began anew,")
        same(await store.renew(second), "enough", "what renew returns, of the lease before,")


async def check_only_the_owner_acquires_a_durable_lease_again(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock):
        lease = await _durable(open_store, clock)
        for owner, durable in (("another", True), ("Run", True), ("another", False), ("run", False)):
            attempt = store.acquire("a", owner, 30, durable=durable)
            error = await refused(SessionRunningError, attempt, f"a lease for {owner!r}, durable={durable},")
            same((error.agent_id, error.owner), ("a", "run"), "what the error names")
        same(await writes(store, lease), True, "whether the durable lease still writes")


async def check_the_lease_of_a_runner_does_not_become_durable(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock), await open_store(clock) as other:
        await store.release(await _durable(open_store, clock))
        lease = await store.acquire("a", "run", 30)
        for process in (store, other):
            attempt = process.acquire("a", "run", _HOUR, durable=True)
            await refused(SessionRunningError, attempt, "a durable lease beside a runner of the same name")
        await store.renew(lease)
        same(await writes(store, lease), True, "whether the runner writes")
    async with await open_store(clock) as store:
        same((await store.read("a")).summary.runner, None, "the runner, whose store object was closed,")
        await store.acquire("a", "run", _HOUR, durable=True)


async def check_the_last_of_many_durable_leases_is_valid(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock), await open_store(clock) as other:
        attempts = [(store, other)[n % 2].acquire("a", "run", _HOUR, durable=True) for n in range(8)]
        leases = sorted(await asyncio.gather(*attempts), key=lambda lease: lease.token)
        same(len({lease.token for lease in leases}), 8, "the number of different tokens")
        for lease in leases[:-1]:
            await is_fenced_off(other, lease, "run")
        same(await writes(other, leases[-1]), True, "whether the last one writes")


async def check_a_lease_needs_an_owner_and_a_time(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, _):
        invalid: list[tuple[Any, Any]] = [("", 30), (None, 30), ("run", 0), ("run", -1), ("run", "30")]
        for owner, seconds in [*invalid, ("run", float("nan")), ("run", float("inf")), ("run", 1e12)]:
            for durable in (True, False):
                attempt = store.acquire("a", owner, seconds, durable=durable)
                await refused(ConfigurationError, attempt, f"a lease of {owner!r} for {seconds!r} s")
        same((await store.read("a")).summary.runner, None, "the runner")


# Claims

_ABSENT = sha256(b"absent").hexdigest()


async def check_a_claim_returns_the_bytes_that_were_kept(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock), await open_store(clock) as other:
        large = bytes(range(256)) * 4 * 1024 * 5
        for data in (b"", b"\x00", b"text", bytes(range(256)), large):
            key = await store.keep_claim("a", data)
            same(key, sha256(data).hexdigest(), "the key")
            for process in (store, other):
                found = await process.claim("a", key)
                same(type(found), bytes, "the type of a claim")
                assert found == data, f"a claim of {len(data)} bytes has changed"


async def check_a_claim_outlives_its_store_object(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock):
        async with await open_store(clock) as dead:
            key = await dead.keep_claim("a", b"data")
        same(await store.claim("a", key), b"data", "the claim")


async def check_the_same_bytes_are_one_claim(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock), await open_store(clock) as other:
        attempts = [(store, other)[n % 2].keep_claim("a", b"data %d" % (n // 4)) for n in range(16)]
        keys = await asyncio.gather(*attempts)
        same(len(set(keys)), 4, "the number of different keys")
        for number, key in enumerate(dict.fromkeys(keys)):
            same(await other.claim("a", key), b"data %d" % number, "the claim")


async def check_claims_change_nothing_else_of_a_session(open_store: OpenStore) -> None:
    async with stage(open_store, "a", "held") as (store, clock), await open_store(clock) as other:
        lease = await store.acquire("held", "one", 30)
        for name in ("a", "held"):
            before = await store.read(name)
            key = await other.keep_claim(name, b"data")
            same(await other.claim(name, key), b"data", "the claim")
            same(await store.read(name), before, f"the session {name!r} after a claim was kept")
        same(await writes(store, lease), True, "whether the runner writes")


async def check_a_claim_needs_a_session(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, _):
        await refused(SessionNotFoundError, store.keep_claim("a", b"data"), "a claim without a session")
        await refused(SessionNotFoundError, store.claim("a", _ABSENT), "reading a claim without a session")
        await store.create(a_summary(), journal("first"))
        attempt = store.claim("a", sha256(b"data").hexdigest())
        await refused(StoreError, attempt, "reading a claim that was refused")


async def check_a_missing_claim_is_named(open_store: OpenStore) -> None:
    async with stage(open_store, "a", "b") as (store, _):
        key = await store.keep_claim("b", b"data")
        for missing in (_ABSENT, key):
            error = await refused(StoreError, store.claim("a", missing), "a claim that is not there")
            assert not isinstance(error, SessionNotFoundError), "the session exists, and the error denies it"
            assert "'a'" in str(error), f"{error} should name the session"
            assert missing in str(error), f"{error} should name the key"
        same(await store.claim("b", key), b"data", "the claim of the other session")


async def check_claims_are_deleted_with_their_session(open_store: OpenStore) -> None:
    async with stage(open_store, "a", "b") as (store, _):
        keys = {name: await store.keep_claim(name, b"data") for name in ("a", "b")}
        await store.delete("a")
        await refused(SessionNotFoundError, store.claim("a", keys["a"]), "a claim of a deleted session")
        same(await store.claim("b", keys["b"]), b"data", "the same claim of another session")
        await store.create(a_summary("a"), journal("first"))
        await refused(StoreError, store.claim("a", keys["a"]), "a claim of an earlier session of this id")


async def check_pruning_keeps_the_claims_of_sessions_that_may_continue(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, clock):
        for status in AgentStatus:
            await store.create(a_summary(status.value, status=status, updated_at=at(0)), journal("first"))
        await store.create(a_summary("leased", status=AgentStatus.COMPLETED), journal("first"))
        names = [*[status.value for status in AgentStatus], "leased"]
        keys = {name: await store.keep_claim(name, b"data") for name in names}
        clock.advance(_HOUR)
        await _durable(open_store, clock, "leased")
        ended = [status for status in AgentStatus if status.has_ended]
        pruned = [name async for ids in prune(store, timedelta(), statuses=ended) for name in ids]
        same(sorted(pruned), sorted(status.value for status in ended), "the sessions that were pruned")
        for name in names:
            if name in pruned:
                await refused(SessionNotFoundError, store.claim(name, keys[name]), "a claim that was pruned")
            else:
                same(await store.claim(name, keys[name]), b"data", f"the claim of the session {name!r}")


async def check_claims_are_not_part_of_exports_and_forks(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, _):
        await store.add(AgentState(agent_id="a"))
        before = [line async for line in store.export("a")]
        key = await store.keep_claim("a", b"data")
        same([line async for line in store.export("a")], before, "the exported lines")
        await store.fork("a", new_agent_id="fork")
        await refused(StoreError, store.claim("fork", key), "the claim of a fork")
        await store.delete("a")
        await store.import_lines(before)
        await refused(StoreError, store.claim("a", key), "the claim of an imported session")


async def check_a_claim_is_bytes_under_a_digest(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, _):
        data: Any
        for data in ("text", None, 1, bytearray(b"data"), [b"data"]):
            await refused(ConfigurationError, store.keep_claim("a", data), f"the claim {data!r}")
        key: Any
        for key in ("", "data", None, b"data", _ABSENT.upper(), f"{_ABSENT}\n", f"{_ABSENT}\x00", "\ud800"):
            await refused(ConfigurationError, store.claim("a", key), f"the key {key!r}")
