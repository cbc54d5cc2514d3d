"""A request that comes twice under one key is written once."""

from __future__ import annotations

import asyncio

from whyloop.errors import (
    ConfigurationError,
    ConflictError,
    KeyUsedError,
    LeaseLostError,
    SessionExistsError,
    SessionNotFoundError,
    SessionRunningError,
)
from whyloop.stores.records import Lease, RequestKey
from whyloop.testing.store_checks.support import OpenStore, a_summary, journal, refused, same, seen, stage

_KEY = RequestKey("key", "digest")


async def check_a_key_is_stored_with_what_was_appended_under_it(open_store: OpenStore) -> None:
    async with stage(open_store, "a", "b") as (store, clock), await open_store(clock) as other:
        same(await store.key("a", "key"), None, "a key before it was used")
        await store.append("a", journal("x", "y"), after=1, key=_KEY)
        await store.append("a", journal("z"), after=3)
        same(await other.key("a", "key"), ("digest", 3), "the key")
        same(await other.key("a", "another"), None, "a key that was never used")
        same(await other.key("b", "key"), None, "the key in another session")
        await store.append("a", [], after=4, key=RequestKey("empty", ""))
        same(await other.key("a", "empty"), ("", 4), "a key without an entry")


async def check_a_key_is_stored_with_a_new_session(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, _):
        await store.create(a_summary(), journal("x", "y"), key=_KEY)
        same(await store.key("a", "key"), ("digest", 2), "the key")
        attempt = store.append("a", journal("z"), after=2, key=_KEY)
        await refused(KeyUsedError, attempt, "an append under the key of the creation")
        second = RequestKey("second", "digest")
        await refused(SessionExistsError, store.create(a_summary(), [], key=second), "a second session")
        same(await store.key("a", "second"), None, "the key of a refused creation")


async def check_a_key_that_was_used_is_refused_and_nothing_is_written(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock), await open_store(clock) as other:
        await store.append("a", journal("x"), after=1, key=_KEY)
        before = await seen(store)
        for process in (store, other):
            for digest in ("digest", "another"):
                attempt = process.append(
                    "a",
                    journal("y"),
                    after=2,
                    summary=a_summary(title="changed"),
                    key=RequestKey("key", digest),
                )
                error = await refused(KeyUsedError, attempt, "an append under a key that was used")
                found = (error.agent_id, error.key, error.digest, error.version)
                same(found, ("a", "key", "digest", 2), "what the error names")
                same(await seen(store), before, "the session after a refused append")
        same(await store.key("a", "key"), ("digest", 2), "the key after a refused append")


async def check_a_key_is_checked_before_lease_and_version(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, _):
        await store.append("a", journal("x"), after=1, key=_KEY)
        attempt = store.append("a", journal("y"), after=1, key=_KEY)
        await refused(KeyUsedError, attempt, "a repeated append at an old version")
        lost = Lease("a", "nobody", 0, 30)
        attempt = store.append("a", journal("y"), after=2, lease=lost, key=_KEY)
        await refused(KeyUsedError, attempt, "a repeated append with a lost lease")
        lease = await store.acquire("a", "one", 30)
        attempt = store.append("a", journal("y"), after=2, key=_KEY)
        await refused(KeyUsedError, attempt, "a repeated append beside a runner")
        attempt = store.append("a", journal("y"), after=2, lease=lease, release=True, key=_KEY)
        await refused(KeyUsedError, attempt, "a repeated append of the runner")
        same((await store.read("a")).summary.runner, "one", "the runner after a refused append")
        attempt = store.append("missing", journal("y"), after=0, key=_KEY)
        await refused(SessionNotFoundError, attempt, "an append to a session that is not there")


async def check_a_refused_append_leaves_its_key_free(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, _):
        await refused(ConflictError, store.append("a", [], after=7, key=_KEY), "a wrong version")
        lost = Lease("a", "nobody", 0, 30)
        await refused(LeaseLostError, store.append("a", [], after=1, lease=lost, key=_KEY), "a lost lease")
        lease = await store.acquire("a", "one", 30)
        await refused(
            SessionRunningError, store.append("a", [], after=1, key=_KEY), "an append beside a runner"
        )
        same(await store.key("a", "key"), None, "the key of refused appends")
        await store.append("a", journal("x"), after=1, lease=lease, release=True, key=_KEY)
        same(await store.key("a", "key"), ("digest", 2), "the key")


async def check_of_many_requests_under_one_key_one_is_written(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock), await open_store(clock) as other:
        results = await asyncio.gather(
            *(
                (store, other)[n % 2].append("a", journal(f"{n}"), after=1, key=RequestKey("key", f"{n}"))
                for n in range(8)
            ),
            return_exceptions=True,
        )
        winners = [n for n, result in enumerate(results) if result is None]
        assert len(winners) == 1, f"one of eight requests should be written, and {len(winners)} were"
        for result in results:
            assert result is None or isinstance(result, KeyUsedError), f"a repeated request got {result!r}"
        same((await store.read("a")).entries, ("first", str(winners[0])), "the entries")
        same(await store.key("a", "key"), (str(winners[0]), 2), "the key")


async def check_keys_that_are_alike_are_not_the_same(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, _):
        short = (
            "key",
            "Key",
            "KEY",
            " key",
            "key ",
            "k%",
            "k_y",
            "'key'",
            "k\u00e9",
            "ke\u0301",
            "\U0001f600",
        )
        keys = (*short, "x" * 254, "x" * 255, "\U0001f600" * 255)
        for number, key in enumerate(keys):
            await store.append("a", journal("x"), after=number + 1, key=RequestKey(key, f"{number}"))
        for number, key in enumerate(keys):
            same(await store.key("a", key), (f"{number}", number + 2), f"the key {key!r}")


async def check_the_keys_of_a_deleted_session_are_gone(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, _):
        await store.append("a", journal("x"), after=1, key=_KEY)
        await store.delete("a")
        await refused(SessionNotFoundError, store.key("a", "key"), "a key of a deleted session")
        await store.create(a_summary(identity="another"), journal("first"))
        same(await store.key("a", "key"), None, "the key in a session with the same id")
        await store.append("a", journal("y"), after=1, key=_KEY)


async def check_an_invalid_key_is_refused(open_store: OpenStore) -> None:
    for key in ("", "x" * 256, "a\x00b", "\ud800"):
        try:
            RequestKey(key, "digest")
        except ConfigurationError:
            continue
        raise AssertionError(f"the key {key!r} should be refused")
