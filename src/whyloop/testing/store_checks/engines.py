"""Engines: durable leases of no store object, claims for large payloads, and workflows that may be open."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from hashlib import sha256
from typing import Any

from whyloop.errors import (
    ConfigurationError,
    ConflictError,
    SessionNotFoundError,
    SessionRunningError,
    StoreError,
    WorkflowOpenError,
)
from whyloop.stores import prune
from whyloop.stores.records import Lease, OpenWorkflow
from whyloop.stores.store import Store
from whyloop.testing.fakes import FakeClock
from whyloop.testing.store_checks import OpenStore, a_summary, at, journal, refused, same, stage
from whyloop.testing.store_checks.leases import is_fenced_off, writes
from whyloop.values.state import AgentState, AgentStatus

_HOUR = 3600


async def _durable(open_store: OpenStore, clock: FakeClock, agent_id: str = "a") -> Lease:
    """Return a durable lease of a store object that is closed."""
    async with await open_store(clock) as dead:
        return await dead.acquire(agent_id, "run", _HOUR, durable=True)


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
        same((await store.read("a")).summary.runner, "run", "the runner, whose time began again,")
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


# Workflows


async def _names(store: Store, engine: str = "engine", limit: int = 100) -> list[str]:
    """Return the sessions of the workflows that are listed."""
    return [opened.agent_id for opened in await store.open_workflows(engine, limit=limit)]


async def _is_kept(store: Store, opened: OpenWorkflow) -> None:
    """Check that a session is not deleted, and that the error names the workflow."""
    error = await refused(WorkflowOpenError, store.delete(opened.agent_id), "deleting an open workflow's")
    found = OpenWorkflow(error.agent_id, error.engine, error.workflow, error.token)
    same(found, opened, "the workflow that the error names")


async def check_a_session_is_kept_while_its_workflow_may_be_open(open_store: OpenStore) -> None:
    async with stage(open_store, "a", "b") as (store, clock):
        key = await store.keep_claim("a", b"data")
        async with await open_store(clock) as dead:
            opened = await dead.record_workflow("a", "engine", "workflow")
        same((opened.agent_id, opened.engine, opened.workflow), ("a", "engine", "workflow"), "the record")
        clock.advance(1000 * 24 * _HOUR)
        await _is_kept(store, opened)
        same(await store.claim("a", key), b"data", "the claim")
        await store.delete("b")
        await store.forget_workflow("a", opened.token)
        await store.delete("a")


async def check_pruning_keeps_sessions_whose_workflows_may_be_open(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, clock):
        ended = [status for status in AgentStatus if status.has_ended]
        for status in ended:
            for name in (f"{status} open", f"{status} closed"):
                await store.create(a_summary(name, status=status, updated_at=at(0)), journal("first"))
                opened = await store.record_workflow(name, "engine", f"of {name}")
            await store.forget_workflow(name, opened.token)
        clock.advance(_HOUR)
        for dry_run in (True, False):
            batches = prune(store, timedelta(), statuses=ended, dry_run=dry_run)
            pruned = [name async for ids in batches for name in ids]
            expected = sorted(f"{status} closed" for status in ended)
            same(sorted(pruned), expected, f"the sessions that were pruned, with dry_run={dry_run},")
        same(sorted(await _names(store)), sorted(f"{status} open" for status in ended), "the open ones")


async def check_a_workflow_is_recorded_again(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock), await open_store(clock) as other:
        first = await store.record_workflow("a", "engine", "workflow")
        second = await other.record_workflow("a", "engine", "workflow")
        assert second.token > first.token, f"{second.token} is not greater than the token before"
        await store.forget_workflow("a", first.token)
        await _is_kept(store, second)
        await store.forget_workflow("a", second.token)
        await store.forget_workflow("a", second.token)
        third = await store.record_workflow("a", "engine", "workflow")
        assert third.token > second.token, f"{third.token} is not greater than the token before"
        await store.forget_workflow("a", second.token)
        await _is_kept(store, third)
        await store.forget_workflow("missing", third.token)
        await _is_kept(store, third)


async def check_a_session_has_one_workflow_at_a_time(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, _):
        first = await store.record_workflow("a", "engine", "workflow")
        for engine, workflow in (("another", "workflow"), ("engine", "another"), ("engine", "Workflow")):
            attempt = store.record_workflow("a", engine, workflow)
            error = await refused(WorkflowOpenError, attempt, f"a second workflow {workflow!r} of {engine!r}")
            same((error.workflow, error.token), ("workflow", first.token), "what the error names")
        await store.forget_workflow("a", first.token)
        await store.record_workflow("a", "another", "another")


async def check_workflows_of_sessions_that_ended_are_listed(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, clock):
        for status in reversed(AgentStatus):
            await store.create(a_summary(status.value, status=status), journal("first"))
            await store.record_workflow(status.value, "engine", f"of {status}")
            clock.advance(1)
        await store.create(a_summary("elsewhere", status=AgentStatus.COMPLETED), journal("first"))
        await store.record_workflow("elsewhere", "another engine", "of elsewhere")
        idle = [each for each in AgentStatus if each not in (AgentStatus.IN_PROGRESS, AgentStatus.PAUSED)]
        expected = [status.value for status in reversed(idle)]
        same(await _names(store), expected, "the sessions, oldest record first,")
        same(await _names(store, limit=2), expected[:2], "the first two")
        same(await _names(store, "another engine"), ["elsewhere"], "those of the other engine")
        found = {each.agent_id: each for each in await store.open_workflows("engine", limit=100)}
        newest, position = found[expected[-1]], list(reversed(AgentStatus)).index(idle[0])
        same(newest.seconds, len(AgentStatus) - position, "the seconds since the record")
        same((newest.engine, newest.workflow), ("engine", f"of {idle[0]}"), "the workflow")
        await store.forget_workflow(newest.agent_id, newest.token)
        same(await _names(store), expected[:-1], "the others")
        clock.advance(1)
        await store.record_workflow(expected[0], "engine", f"of {expected[0]}")
        same(
            await _names(store), [*expected[1:-1], expected[0]], "those, after the first was recorded again,"
        )
        await refused(ConfigurationError, store.open_workflows("engine", limit=0), "the limit 0")


async def check_a_workflow_is_listed_once_its_session_has_ended(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, _):
        await store.create(a_summary("a", status=AgentStatus.PAUSED), journal("first"))
        await store.record_workflow("a", "engine", "workflow")
        same(await _names(store), [], "the workflows while the session waits")
        stopped = a_summary("a", status=AgentStatus.STOPPED)
        await store.append("a", journal("second"), after=1, summary=stopped)
        same(await _names(store), ["a"], "the workflows once it was stopped")


async def check_a_recorded_workflow_changes_nothing_else_of_a_session(open_store: OpenStore) -> None:
    async with stage(open_store, "a", "held") as (store, clock), await open_store(clock) as other:
        lease = await store.acquire("held", "one", 30)
        for name in ("a", "held"):
            before = await store.read(name)
            same(before.summary.workflow, None, "the workflow of a session that has none")
            opened = await other.record_workflow(name, "engine", "workflow")
            same((await store.read(name)).summary.workflow, "workflow", "the workflow")
            await other.forget_workflow(name, opened.token)
            same(await store.read(name), before, f"the session {name!r} after its workflow was forgotten")
            await other.record_workflow(name, "engine", "workflow")
        same(await writes(store, lease), True, "whether the runner writes")
        await refused(SessionRunningError, store.delete("held"), "deleting what runs, before its workflow")
        lease = await other.acquire("a", "two", 30)
        await other.append("a", journal("second"), after=1, lease=lease, summary=a_summary("a"), release=True)
        same((await store.read("a")).summary.workflow, "workflow", "the workflow after an append")
        attempt = store.delete("a", expected_version=1)
        error = await refused(StoreError, attempt, "deleting another version")
        assert not isinstance(error, ConflictError), "an open workflow is checked before the version"


async def check_a_recorded_workflow_does_not_travel(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, _):
        await store.add(AgentState(agent_id="a"))
        before = [line async for line in store.export("a")]
        opened = await store.record_workflow("a", "engine", "workflow")
        same([line async for line in store.export("a")], before, "the exported lines")
        await store.fork("a", new_agent_id="fork")
        await store.delete("fork")
        await store.forget_workflow("a", opened.token)
        await store.delete("a")
        await store.import_lines(before)
        same((await store.read("a")).summary.workflow, None, "the workflow of an imported session")
        await store.forget_workflow("a", opened.token)
        await store.delete("a")


async def check_a_workflow_needs_a_session_and_names(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, _):
        attempt = store.record_workflow("missing", "engine", "workflow")
        await refused(SessionNotFoundError, attempt, "a workflow without a session")
        invalid: Any
        for invalid in ("", None, 1, b"engine", "a\x00", "\ud800"):
            attempt = store.record_workflow("a", invalid, "workflow")
            await refused(ConfigurationError, attempt, f"the engine {invalid!r}")
            attempt = store.record_workflow("a", "engine", invalid)
            await refused(ConfigurationError, attempt, f"the workflow {invalid!r}")
        await store.delete("a")
