"""Adding an entry at once is optional; what a store adds like that, it adds as `append` would."""

from __future__ import annotations

from whyloop.stores.records import Lease
from whyloop.testing.store_checks.support import OpenStore, same, seen, stage


async def check_what_is_added_at_once_is_there(open_store: OpenStore) -> None:
    async with stage(open_store, "a", "b") as (store, clock), await open_store(clock) as other:
        lease = await store.acquire("a", "one", 30)
        expected = ["first"]
        for number in range(5):
            if store.add_at_once(lease, f"at once {number}", len(expected)):
                expected.append(f"at once {number}")
            await store.append("a", [f"after it {number}"], after=len(expected), lease=lease)
            expected.append(f"after it {number}")
            same(list((await other.read("a")).entries), expected, "the entries of the journal")
        same(list((await other.read("b")).entries), ["first"], "the journal of another session")


async def check_nothing_is_added_at_once_at_another_version(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, _):
        lease = await store.acquire("a", "one", 30)
        before = await seen(store)
        for after in (-1, 0, 2, 17, 2**31, 2**32, 2**32 + 1):
            same(store.add_at_once(lease, "x", after), False, f"an entry after {after} of 1")
        same(await seen(store), before, "the store")


async def check_nothing_is_added_at_once_without_the_lease(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock), await open_store(clock) as other:
        lease = await store.acquire("a", "one", 30)
        clock.advance(31)
        taken = await other.acquire("a", "two", 30)
        same(store.add_at_once(lease, "x", 1), False, "an entry under a lease that was taken over")
        await other.release(taken)
        same(store.add_at_once(lease, "x", 1), False, "an entry under a lease from before that one")
        given_back = await store.acquire("a", "one", 30)
        await store.release(given_back)
        same(store.add_at_once(given_back, "x", 1), False, "an entry under a lease that was given back")
        same(store.add_at_once(Lease("a", "me", 0, 30), "x", 1), False, "an entry under a made-up lease")
        same(list((await store.read("a")).entries), ["first"], "the journal")


async def check_nothing_is_added_at_once_once_words_wait(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock), await open_store(clock) as other:
        lease = await store.acquire("a", "one", 30)
        await other.ask_to_stop("a", "enough")
        same(store.add_at_once(lease, "x", 1), False, "an entry while somebody's words wait to be heard")
        same(await store.append("a", ["x"], after=1, lease=lease), "enough", "what append returns")


async def check_nothing_is_added_at_once_over_what_others_wrote(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock), await open_store(clock) as other:
        lease = await store.acquire("a", "one", 30)
        clock.advance(31)
        await other.append("a", ["by somebody else"], after=1)
        same(store.add_at_once(lease, "x", 1), False, "an entry where there is one")
        same(list((await store.read("a")).entries), ["first", "by somebody else"], "the journal")


async def check_nothing_is_added_at_once_to_a_deleted_session(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock), await open_store(clock) as other:
        lease = await store.acquire("a", "one", 30)
        clock.advance(31)
        await other.delete("a")
        same(store.add_at_once(lease, "x", 1), False, "an entry of a session that is not there")
