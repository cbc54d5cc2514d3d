"""Words that ask a runner to stop reach the one who runs the session, and nobody after."""

from __future__ import annotations

from whyloop.errors import ConflictError
from whyloop.testing.store_checks.support import OpenStore, journal, refused, same, seen, stage


async def check_words_reach_the_runner(open_store: OpenStore) -> None:
    async with stage(open_store, "a", "b") as (store, clock), await open_store(clock) as other:
        lease = await store.acquire("a", "one", 30)
        beside = await store.acquire("b", "two", 30)
        before = await seen(store)
        same(await other.ask_to_stop("a", "that is enough"), True, "what ask_to_stop returns")
        same(await seen(store), before, "the session after somebody asked to stop")
        same(
            await store.append("a", journal("x"), after=1, lease=lease),
            "that is enough",
            "what append returns",
        )
        same(await store.renew(lease), "that is enough", "what renew returns")
        same(await store.renew(beside), None, "what renew returns to the runner of another session")


async def check_words_are_said_until_the_lease_ends(open_store: OpenStore) -> None:
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


async def check_words_without_any_letter_are_words(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, _):
        lease = await store.acquire("a", "one", 30)
        same(await store.ask_to_stop("a", ""), True, "what ask_to_stop returns")
        same(await store.renew(lease), "", "what renew returns")
        same(await store.append("a", [], after=1, lease=lease), "", "what append returns")


async def check_asking_twice_is_asking(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, _):
        lease = await store.acquire("a", "one", 30)
        same(await store.ask_to_stop("a", "one"), True, "what ask_to_stop returns")
        same(await store.ask_to_stop("a", "two"), True, "what ask_to_stop returns the second time")
        words = await store.renew(lease)
        assert words in ("one", "two"), f"the words of one of two requests should arrive, and not {words!r}"


async def check_words_are_forgotten_with_the_lease_that_is_given_back(open_store: OpenStore) -> None:
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


async def check_words_that_nobody_heard_are_for_the_next(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock):
        dead = await store.acquire("a", "one", 30)
        await store.ask_to_stop("a", "enough")
        clock.advance(31)
        lease = await store.acquire("a", "two", 30)
        same(await store.release(dead), None, "what release returns to the one who had it before")
        same(await store.renew(lease), "enough", "what renew returns after a lease lapsed with its words")
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


async def check_asking_when_nobody_runs_the_session_says_so(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock):
        same(await store.ask_to_stop("a", "enough"), False, "what ask_to_stop returns before any lease")
        lease = await store.acquire("a", "one", 30)
        same(await store.renew(lease), None, "what renew returns, since nobody asked this lease to stop,")
        await store.release(lease)
        same(await store.ask_to_stop("a", "enough"), False, "what ask_to_stop returns after the lease")
        lease = await store.acquire("a", "two", 30)
        clock.advance(31)
        same(await store.ask_to_stop("a", "enough"), False, "what ask_to_stop returns for a lapsed lease")
        same(await store.renew(lease), None, "what renew returns, since nobody asked in time,")
        same(await store.ask_to_stop("a", "enough"), True, "what ask_to_stop returns for a renewed lease")
        same(await store.renew(lease), "enough", "what renew returns")
