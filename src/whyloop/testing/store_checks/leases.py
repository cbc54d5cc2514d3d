"""One runner at a time: leases are acquired, renewed, given back, lost, and carry stop requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from whyloop.errors import ConflictError, KeyUsedError, LeaseLostError, SessionRunningError
from whyloop.stores.records import Lease, RequestKey
from whyloop.stores.store import Store
from whyloop.testing.store_checks import (
    OpenStore,
    a_summary,
    cancelled_after,
    journal,
    only_one,
    refused,
    same,
    seen,
    stage,
)

_A_DAY = 86_400


async def check_a_lease_names_its_owner_its_seconds_and_the_session(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, _):
        lease = await store.acquire("a", "one", 12.5)
        same((lease.agent_id, lease.owner, lease.seconds), ("a", "one", 12.5), "the lease")
        same((lease.identity, lease.version), ("the identity of a", 1), "the session that it names")
        await store.append("a", journal("x", "y"), after=1, lease=lease, release=True)
        lease = await store.acquire("a", "two", 30)
        same((lease.identity, lease.version), ("the identity of a", 3), "the session that the next one names")


async def check_the_holder_of_a_lease_writes(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, _):
        lease = await store.acquire("a", "one", 30)
        written = await store.append("a", journal("x"), after=1, lease=lease, summary=a_summary(title="new"))
        same(written, None, "what append returns without a stop request")
        stored = await store.read("a")
        same(stored.entries, ("first", "x"), "the entries")
        same(stored.summary, a_summary(title="new", version=2, runner="one"), "the summary")


async def check_a_second_runner_gets_the_name_of_the_first(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock), await open_store(clock) as other:
        lease = await store.acquire("a", "one", 30)
        clock.advance(10)
        error = await refused(SessionRunningError, other.acquire("a", "two", 30), "a second lease")
        same((error.agent_id, error.owner), ("a", "one"), "what the error names")
        assert abs(error.seconds - 20) < 0.01, f"20 seconds are left, and not {error.seconds}"
        same(await writes(store, lease), True, "whether the first runner still writes")


async def check_a_runner_cannot_have_two_leases_of_one_session(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, _):
        lease = await store.acquire("a", "one", 30)
        await refused(SessionRunningError, store.acquire("a", "one", 30), "a second lease of the same owner")
        await store.release(lease)
        again = await store.acquire("a", "one", 30)
        assert again.token > lease.token, f"{again.token} is not greater than the token {lease.token} before"
        await is_fenced_off(store, lease, "one")


async def check_one_of_many_runners_gets_the_lease(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock), await open_store(clock) as other:
        for _ in range(3):
            attempts = ((store, other)[n % 2].acquire("a", f"{n}", 30) for n in range(8))
            _, lease = await only_one(attempts, SessionRunningError)
            same((await store.read("a")).summary.runner, lease.owner, "the runner")
            clock.advance(30)


async def check_a_lease_whose_caller_was_cancelled_is_released(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, _):
        for rounds in range(1, 6):
            acquiring = asyncio.create_task(store.acquire("a", f"{rounds}", 60))
            if not await cancelled_after(rounds, acquiring):
                await store.release(acquiring.result())
            same((await store.read("a")).summary.runner, None, "the runner after its caller was cancelled")


async def check_sessions_are_leased_each_for_itself(open_store: OpenStore) -> None:
    async with stage(open_store, "a", "b") as (store, _):
        first = await store.acquire("a", "one", 30)
        second = await store.acquire("b", "two", 30)
        attempt = store.append("b", journal("x"), after=1, lease=first)
        await refused(LeaseLostError, attempt, "an append with the lease of another session")
        await store.release(first)
        same((await store.read("b")).summary.runner, "two", "the runner of the other session")
        same(await writes(store, second), True, "whether the other session's runner writes")


async def check_a_lease_lapses_when_its_time_has_passed(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock):
        await store.acquire("a", "one", 30)
        clock.advance(29.9)
        await refused(SessionRunningError, store.acquire("a", "two", 30), "a lease shortly before the time")
        same((await store.read("a")).summary.runner, "one", "the runner shortly before the time")
        clock.advance(0.2)
        same((await store.read("a")).summary.runner, None, "the runner after the time")
        lease = await store.acquire("a", "two", 30)
        same(lease.owner, "two", "the owner of the next lease")


async def check_a_lease_of_less_than_a_second_lapses_too(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock):
        await store.acquire("a", "one", 0.5)
        clock.advance(0.4)
        await refused(SessionRunningError, store.acquire("a", "two", 1), "a lease shortly before the time")
        clock.advance(0.2)
        await store.acquire("a", "two", 1)


async def check_renewing_keeps_a_lease(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock), await open_store(clock) as other:
        lease = await store.acquire("a", "one", 30)
        for _ in range(5):
            clock.advance(20)
            same(await store.renew(lease), None, "what renew returns without a stop request")
        clock.advance(29)
        error = await refused(SessionRunningError, other.acquire("a", "two", 30), "a second lease")
        assert abs(error.seconds - 1) < 0.01, f"one second is left, and not {error.seconds}"
        clock.advance(2)
        await other.acquire("a", "two", 30)


async def check_writing_does_not_renew_a_lease(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock):
        lease = await store.acquire("a", "one", 30)
        clock.advance(20)
        await store.append("a", journal("x"), after=1, lease=lease)
        clock.advance(11)
        await store.acquire("a", "two", 30)


async def check_a_lease_that_was_taken_over_is_worth_nothing(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock), await open_store(clock) as other:
        zombie = await store.acquire("a", "one", 30)
        clock.advance(31)
        lease = await other.acquire("a", "two", 30)
        assert lease.token > zombie.token, f"the token {lease.token} should be greater than {zombie.token}"
        await is_fenced_off(store, zombie, "two")
        same(await writes(other, lease), True, "whether the new runner writes")
        # By now its version is old too, and the error names the new runner all the same.
        await is_fenced_off(store, zombie, "two", after=1)
        clock.advance(31)
        await is_fenced_off(store, zombie, "two")
        await other.release(lease)
        await refused(LeaseLostError, store.renew(zombie), "renewing after two others")
        attempt = store.append("a", journal("x"), after=2, lease=zombie)
        await refused(LeaseLostError, attempt, "writing after the new runner has left")


async def check_giving_back_a_lost_lease_has_no_effect(open_store: OpenStore) -> None:
    async with stage(open_store, "a", "b") as (store, clock):
        zombie = await store.acquire("a", "one", 30)
        clock.advance(31)
        lease = await store.acquire("a", "two", 30)
        before = await seen(store)
        await store.release(zombie)
        same(await seen(store), before, "the session after a lost lease was given back")
        same(await writes(store, lease), True, "whether the new runner writes")
        gone = await store.acquire("b", "one", 30)
        clock.advance(31)
        await store.delete("b")
        await store.release(gone)


async def check_a_lapsed_lease_that_no_runner_took_still_writes(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock):
        lease = await store.acquire("a", "one", 30)
        clock.advance(_A_DAY)
        await store.append("a", journal("late"), after=1, lease=lease)
        same((await store.read("a")).entries, ("first", "late"), "the entries")
        same((await store.read("a")).summary.runner, None, "the runner, whose lease has lapsed,")


async def check_a_lapsed_lease_that_no_runner_took_can_be_renewed(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock):
        lease = await store.acquire("a", "one", 30)
        clock.advance(_A_DAY)
        same(await store.renew(lease), None, "what renew returns")
        same((await store.read("a")).summary.runner, "one", "the runner")
        clock.advance(29)
        await refused(SessionRunningError, store.acquire("a", "two", 30), "a second lease")


async def check_a_writer_without_a_lease_needs_a_free_session(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock), await open_store(clock) as other:
        lease = await store.acquire("a", "one", 30)
        clock.advance(10)
        before = await seen(store)
        attempt = other.append("a", journal("x"), after=1, summary=a_summary(title="x"), release=True)
        error = await refused(SessionRunningError, attempt, "an append beside a runner")
        same((error.agent_id, error.owner), ("a", "one"), "what the error names")
        assert abs(error.seconds - 20) < 0.01, f"20 seconds are left, and not {error.seconds}"
        same(await seen(store), before, "the session after a refused append")
        clock.advance(21)
        await other.append("a", journal("second"), after=1)
        attempt = store.append("a", journal("late"), after=1, lease=lease)
        await refused(ConflictError, attempt, "an append of a lapsed runner after another one")
        same((await store.read("a")).entries, ("first", "second"), "the entries")


async def check_a_lease_is_given_back(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock), await open_store(clock) as other:
        lease = await store.acquire("a", "one", 30)
        await store.release(lease)
        same((await other.read("a")).summary.runner, None, "the runner")
        await other.append("a", journal("second"), after=1)
        following = await other.acquire("a", "two", 30)
        assert following.token > lease.token, f"{following.token} should be greater than {lease.token}"
        await is_fenced_off(store, lease, "two")


async def check_a_lease_that_was_given_back_stays_given_back(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, _):
        lease = await store.acquire("a", "one", 30)
        await store.release(lease)
        await store.release(lease)
        await refused(LeaseLostError, store.renew(lease), "renewing a lease that was given back")
        attempt = store.append("a", journal("x"), after=1, lease=lease)
        await refused(LeaseLostError, attempt, "writing with a lease that was given back")
        same((await store.read("a")).entries, ("first",), "the entries")
        same((await store.read("a")).summary.runner, None, "the runner")


async def check_a_lease_is_given_back_with_the_last_entries(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, _):
        lease = await store.acquire("a", "one", 30)
        await store.append(
            "a", journal("last"), after=1, lease=lease, summary=a_summary(title="done"), release=True
        )
        stored = await store.read("a")
        same(stored.entries, ("first", "last"), "the entries")
        same(stored.summary, a_summary(title="done", version=2), "the summary")
        await refused(LeaseLostError, store.renew(lease), "renewing a lease that was given back")
        await store.acquire("a", "two", 30)


async def check_a_clock_that_is_put_back_by_a_day_frees_a_session(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock):
        zombie = await store.acquire("a", "one", 30)
        clock.advance(-_A_DAY)
        same((await store.read("a")).summary.runner, None, "the runner after the clock was put back")
        same(await store.ask_to_stop("a", "enough"), False, "what ask_to_stop returns")
        await store.append("a", journal("second"), after=1)
        lease = await store.acquire("a", "two", 30)
        assert lease.token > zombie.token, f"the token {lease.token} should be greater than {zombie.token}"
        await is_fenced_off(store, zombie, "two")
        same(await store.renew(lease), None, "what renew returns to the new runner")
        clock.advance(29)
        await refused(SessionRunningError, store.acquire("a", "three", 30), "a third lease")


async def check_a_clock_that_is_put_back_by_a_day_does_not_stop_a_runner(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock):
        lease = await store.acquire("a", "one", 30)
        clock.advance(-_A_DAY)
        await store.append("a", journal("second"), after=1, lease=lease)
        same(await store.renew(lease), None, "what renew returns")
        same((await store.read("a")).summary.runner, "one", "the runner")
        clock.advance(29)
        await refused(SessionRunningError, store.acquire("a", "two", 30), "a second lease")


async def check_a_clock_that_is_put_back_a_little_costs_no_lease(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock):
        lease = await store.acquire("a", "one", 30)
        clock.advance(-1)
        same((await store.read("a")).summary.runner, "one", "the runner")
        await refused(SessionRunningError, store.acquire("a", "two", 30), "a second lease")
        await refused(
            SessionRunningError, store.append("a", journal("x"), after=1), "an append beside a runner"
        )
        await refused(SessionRunningError, store.delete("a"), "deleting what runs")
        same(await writes(store, lease), True, "whether the runner writes")
        same(await store.ask_to_stop("a", "enough"), True, "what ask_to_stop returns")
        same(await store.renew(lease), "enough", "what renew returns")


async def check_a_clock_that_jumps_ahead_fences_off_the_first_runner(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock), await open_store(clock) as other:
        zombie = await store.acquire("a", "one", 30)
        clock.advance(365 * _A_DAY)
        lease = await other.acquire("a", "two", 30)
        await is_fenced_off(store, zombie, "two")
        clock.advance(-365 * _A_DAY)
        await is_fenced_off(store, zombie, "two")
        same(await writes(other, lease), True, "whether the new runner writes")


async def writes(store: Store, lease: Lease) -> bool:
    """Return whether an entry that is written with this lease is stored."""
    version = (await store.read(lease.agent_id)).summary.version
    await store.append(lease.agent_id, journal("written"), after=version, lease=lease)
    return (await store.read(lease.agent_id, after=version)).entries == ("written",)


async def is_fenced_off(store: Store, zombie: Lease, owner: str, *, after: int | None = None) -> None:
    """Fail unless each use of a lease is refused and changes nothing."""
    before = await seen(store, zombie.agent_id)
    version = before[0].summary.version if after is None else after
    attempts: dict[str, Callable[[], Awaitable[object]]] = {
        "an append": lambda: store.append(zombie.agent_id, journal("zombie"), after=version, lease=zombie),
        "an append with all that goes with it": lambda: store.append(
            zombie.agent_id,
            journal("zombie"),
            after=version,
            lease=zombie,
            summary=a_summary(zombie.agent_id, title="zombie", metadata={"zombie": True}),
            release=True,
        ),
        "renewing": lambda: store.renew(zombie),
    }
    for name, attempt in attempts.items():
        error = await refused(LeaseLostError, attempt(), f"{name} with a lost lease")
        same((error.agent_id, error.owner), (zombie.agent_id, owner), f"what the error of {name} names")
    await store.release(zombie)
    same(await seen(store, zombie.agent_id), before, "the session after a lost lease was used")


async def check_a_stop_request_reaches_the_runner(open_store: OpenStore) -> None:
    async with stage(open_store, "a", "b") as (store, clock), await open_store(clock) as other:
        lease = await store.acquire("a", "one", 30)
        beside = await store.acquire("b", "two", 30)
        before = await seen(store)
        same(await other.ask_to_stop("a", "that is enough"), True, "what ask_to_stop returns")
        same(await seen(store), before, "the session after a stop request")
        same(
            await store.append("a", journal("x"), after=1, lease=lease),
            "that is enough",
            "what append returns",
        )
        same(await store.renew(lease), "that is enough", "what renew returns")
        same(await store.renew(beside), None, "what renew returns to the runner of another session")


async def check_a_stop_request_is_repeated_until_the_lease_ends(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock):
        lease = await store.acquire("a", "one", 30)
        await store.ask_to_stop("a", "enough")
        for version in range(1, 4):
            same(await store.renew(lease), "enough", "what renew returns")
            same(
                await store.append("a", journal("x"), after=version, lease=lease),
                "enough",
                "what append returns",
            )
            clock.advance(20)
        attempt = store.append("a", journal("x"), after=1, lease=lease)
        await refused(ConflictError, attempt, "an append at a wrong version")
        last = await store.append("a", journal("x"), after=4, lease=lease, release=True)
        same(last, "enough", "what the append returns that gives the lease back")


async def check_an_empty_reason_is_a_stop_request_too(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, _):
        lease = await store.acquire("a", "one", 30)
        same(await store.ask_to_stop("a", ""), True, "what ask_to_stop returns")
        same(await store.renew(lease), "", "what renew returns")
        same(await store.append("a", [], after=1, lease=lease), "", "what append returns")


async def check_two_stop_requests_are_one(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, _):
        lease = await store.acquire("a", "one", 30)
        same(await store.ask_to_stop("a", "one"), True, "what ask_to_stop returns")
        same(await store.ask_to_stop("a", "two"), True, "what ask_to_stop returns the second time")
        reason = await store.renew(lease)
        assert reason in ("one", "two"), f"the reason of one of two requests should arrive, not {reason!r}"


async def check_a_key_is_stored_with_a_stop_request(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, _):
        key, other = RequestKey("key", "digest"), RequestKey("key", "another digest")
        same(await store.ask_to_stop("a", "one", key=key), False, "what ask_to_stop returns without a runner")
        same(await store.key("a", "key"), None, "the key of a request that reached no runner")
        lease = await store.acquire("a", "one", 30)
        same(await store.ask_to_stop("a", "one", key=key), True, "what ask_to_stop returns")
        same(await store.key("a", "key"), ("digest", 1), "the key")
        same(await store.release(lease), "one", "what release returns")
        lease = await store.acquire("a", "two", 30)
        for used in (key, other):
            error = await refused(
                KeyUsedError, store.ask_to_stop("a", "two", key=used), "a key that was used"
            )
            same((error.digest, error.version), ("digest", 1), "what the error names")
        same(await store.renew(lease), None, "what renew returns after a request under a used key")
        await store.release(lease)
        await refused(KeyUsedError, store.ask_to_stop("a", "two", key=key), "a used key without a runner")


async def check_a_stop_request_is_forgotten_with_the_lease_that_is_given_back(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, _):
        lease = await store.acquire("a", "one", 30)
        await store.ask_to_stop("a", "enough")
        same(await store.release(lease), "enough", "what release returns")
        same(await store.release(lease), None, "what release returns the second time")
        lease = await store.acquire("a", "two", 30)
        same(await store.renew(lease), None, "what renew returns after the first lease was given back")
        await store.ask_to_stop("a", "enough")
        await store.append("a", [], after=1, lease=lease, release=True)
        lease = await store.acquire("a", "four", 30)
        same(await store.append("a", journal("x"), after=1, lease=lease), None, "what append returns")


async def check_a_stop_request_passes_to_the_runner_after_a_lapsed_lease(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock):
        dead = await store.acquire("a", "one", 30)
        await store.ask_to_stop("a", "enough")
        clock.advance(31)
        lease = await store.acquire("a", "two", 30)
        same(await store.release(dead), None, "what release returns to the runner before")
        same(
            await store.renew(lease), "enough", "what renew returns after a lease lapsed with a stop request"
        )
        same(await store.append("a", journal("x"), after=1, lease=lease), "enough", "what append returns")


async def check_stop_requests_are_found_by_their_leases(open_store: OpenStore) -> None:
    async with stage(open_store, "a", "b", "c") as (store, clock), await open_store(clock) as other:
        leases = [await store.acquire(name, "one", 30) for name in ("a", "b", "c")]
        same(dict(await store.stop_requests(leases)), {}, "the stop requests before any")
        same(dict(await store.stop_requests([])), {}, "the stop requests of no lease")
        await other.ask_to_stop("a", "enough")
        await other.ask_to_stop("c", "")
        expected = {leases[0].token: "enough", leases[2].token: ""}
        for _ in range(2):
            same(dict(await store.stop_requests(leases)), expected, "the stop requests of all leases")
        same(dict(await store.stop_requests(leases[:2])), {leases[0].token: "enough"}, "those of two leases")
        same(dict(await store.stop_requests([leases[1]])), {}, "those of a lease that has none")
        same(await store.renew(leases[0]), "enough", "what renew returns after it was asked for")
        await store.release(leases[0])
        same(dict(await store.stop_requests(leases)), {leases[2].token: ""}, "those after a release")
        clock.advance(31)
        taken = await other.acquire("c", "two", 30)
        same(dict(await store.stop_requests(leases)), {}, "those of a lease that was taken over")
        same(dict(await other.stop_requests([taken])), {taken.token: ""}, "those of the next lease")
        await other.release(taken)
        await other.delete("c")
        same(dict(await store.stop_requests([*leases, taken])), {}, "those of a deleted session")


async def check_a_stop_request_for_a_free_session_is_refused(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock):
        same(await store.ask_to_stop("a", "enough"), False, "what ask_to_stop returns before any lease")
        lease = await store.acquire("a", "one", 30)
        same(await store.renew(lease), None, "what renew returns, since no request reached this lease,")
        await store.release(lease)
        same(await store.ask_to_stop("a", "enough"), False, "what ask_to_stop returns after the lease")
        lease = await store.acquire("a", "two", 30)
        clock.advance(31)
        same(await store.ask_to_stop("a", "enough"), False, "what ask_to_stop returns for a lapsed lease")
        same(await store.renew(lease), None, "what renew returns, since no request came in time,")
        same(await store.ask_to_stop("a", "enough"), True, "what ask_to_stop returns for a renewed lease")
        same(await store.renew(lease), "enough", "what renew returns")
