"""What was told of a session is kept in order, whoever runs it, and can be waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from msgspec.structs import replace

from whyloop.errors import SessionNotFoundError
from whyloop.stores.records import Told
from whyloop.testing.store_checks.support import OpenStore, a_summary, refused, same, seen, stage

# Longer than anybody looks the other way.
_PATIENCE = 20.0


def _told(execution_id: str, *numbers: int) -> list[Told]:
    return [Told(execution_id, seq, f'{{"seq":{seq}}}') for seq in numbers]


def _numbers(events: Sequence[Told]) -> list[tuple[int, str, int]]:
    return [(each.position, each.execution_id, each.seq) for each in events]


async def check_what_was_told_is_read_back_in_order(open_store: OpenStore) -> None:
    async with stage(open_store, "a", "b") as (store, clock), await open_store(clock) as other:
        same(await store.events("a"), (), "what was told of a session that nobody told of")
        same(await store.add_events("a", _told("x", 1, 2)), 2, "the position of the last one")
        await store.add_events("b", _told("y", 7))
        same(await other.add_events("a", _told("x", 5)), 3, "the position of the last one")
        same(await store.add_events("a", _told("w", 3, 3, 1)), 6, "the position of the last one")
        same(await store.add_events("a", []), 6, "the position of the last one after nothing was told")
        told = [*_told("x", 1, 2, 5), *_told("w", 3, 3, 1)]
        expected = tuple(replace(each, position=place) for place, each in enumerate(told, 1))
        for process in (store, other):
            same(await process.events("a"), expected, "what was told of the session")
            same(_numbers(await process.events("b")), [(1, "y", 7)], "what was told of the other session")


async def check_what_was_told_is_read_page_by_page(open_store: OpenStore) -> None:
    async with stage(open_store, "a", "b") as (store, _):
        await store.add_events("a", _told("x", *range(250, 0, -1)))
        await store.add_events("b", _told("y", 1))
        places = [each.position for each in await store.events("a")]
        same(places, list(range(1, 101)), "the positions on a page of the usual size")
        same(
            [each.position for each in await store.events("a", after=7, limit=3)],
            [8, 9, 10],
            "a page of three",
        )
        same([each.position for each in await store.events("a", after=249, limit=9)], [250], "the last page")
        same(await store.events("a", after=250), (), "what was told after the last one")
        same(await store.events("a", after=10**9), (), "what was told after a position that nothing has")
        same([each.position for each in await store.events("a", after=-5, limit=1)], [1], "the first one")


async def check_the_last_that_was_told_is_found(open_store: OpenStore) -> None:
    async with stage(open_store, "a", "b") as (store, _):
        same(await store.last_event("a"), None, "the last that was told of a session that nobody told of")
        await store.add_events("b", _told("x", 3))
        await store.add_events("a", [*_told("x", 1, 2, 6), *_told("y", 1, 4)])
        await store.add_events("b", _told("x", 4, 9))

        async def found(**wanted: str | int) -> tuple[int, str, int] | None:
            last = await store.last_event("a", **wanted)  # type: ignore[arg-type]
            return None if last is None else _numbers([last])[0]

        same(await found(), (5, "y", 4), "the last one")
        same(await found(execution_id="x"), (3, "x", 6), "the last one of an execution")
        same(await found(execution_id="x", up_to=6), (3, "x", 6), "the last one up to its own number")
        same(
            await found(execution_id="x", up_to=5),
            (2, "x", 2),
            "the last one up to a number that nothing has",
        )
        same(await found(execution_id="x", up_to=0), None, "the last one before the first")
        await store.add_events("a", _told("x", 4))  # What somebody told before, and keeps late.
        same(await found(), (6, "x", 4), "the last one")
        same(await found(execution_id="x"), (3, "x", 6), "the greatest number of an execution")
        same(await found(execution_id="x", up_to=5), (6, "x", 4), "the greatest number up to one")
        await store.add_events("a", _told("x", 6))
        same(await found(execution_id="x"), (7, "x", 6), "the last one of two that have the same number")
        same(await found(execution_id="z"), None, "the last one of an execution that nobody told of")
        same(await found(execution_id=""), None, "the last one of an execution without a name")
        same(await found(execution_id="X"), None, "the last one of an execution that is written otherwise")


async def check_nothing_is_told_of_a_session_that_is_not_there(open_store: OpenStore) -> None:
    async with stage(open_store, "b") as (store, _):
        attempts: dict[str, Callable[[], Awaitable[object]]] = {
            "keeping what was told": lambda: store.add_events("a", _told("x", 1)),
            "reading what was told": lambda: store.events("a"),
            "looking for what was told last": lambda: store.last_event("a"),
            "waiting for what is told": lambda: store.wait_for_events("a", after=0),
        }
        for what, attempt in attempts.items():
            await refused(SessionNotFoundError, attempt(), f"{what} of a session that is not there")


async def check_what_is_told_leaves_the_session_as_it_is(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock), await open_store(clock) as other:
        lease = await store.acquire("a", "one", 30)
        before = await seen(store)
        await other.add_events("a", _told("x", 1))
        same(await seen(store), before, "the session after something was told of it")
        await store.append("a", ["second"], after=1, lease=lease)
        same(await store.renew(lease), None, "what the runner hears")


async def check_what_was_told_is_kept_to_the_letter(open_store: OpenStore) -> None:
    odd = ["", "null", "line\nbreak \\u0000 \\ ' \" % %s {}", "\u202e 🐍 \u2028", "x" * 2_000_000]
    async with stage(open_store, "a") as (store, _):
        await store.add_events("a", [Told(f"x\n{body[:3]}", 2**40, body) for body in odd])
        kept = await store.events("a")
        same([each.body for each in kept], odd, "what was told")
        same([each.execution_id for each in kept], [f"x\n{body[:3]}" for body in odd], "the executions")
        same({each.seq for each in kept}, {2**40}, "a great number")


async def check_a_deleted_session_takes_with_it_what_was_told(open_store: OpenStore) -> None:
    async with stage(open_store, "a", "b") as (store, _):
        await store.add_events("a", _told("x", 1, 2))
        await store.add_events("b", _told("y", 1))
        await store.delete("a")
        await refused(SessionNotFoundError, store.events("a"), "reading what was told of a deleted session")
        await store.create(a_summary("a"), ["first"])
        same(await store.events("a"), (), "what was told of a session that has the id of a deleted one")
        same(await store.add_events("a", _told("z", 1)), 1, "the position of the first one")
        same(_numbers(await store.events("b")), [(1, "y", 1)], "what was told of the other session")


async def check_those_who_tell_at_once_do_not_mix(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock), await open_store(clock) as other:
        batches = [(process, f"x{n}") for n in range(10) for process in (store, other)]
        last = await asyncio.gather(
            *(process.add_events("a", _told(name, 1, 2, 3)) for process, name in batches)
        )
        same(sorted(last), list(range(3, 3 * len(batches) + 1, 3)), "the positions of the last ones")
        kept = await store.events("a", limit=1000)
        same([each.position for each in kept], list(range(1, len(kept) + 1)), "the positions")
        for first in range(0, len(kept), 3):
            together = kept[first : first + 3]
            same([each.seq for each in together], [1, 2, 3], "what was told together")
            same(len({each.execution_id for each in together}), 1, "the executions in what was told together")


async def check_what_another_process_tells_can_be_waited_for(open_store: OpenStore) -> None:
    async with stage(open_store, "a", "b") as (store, clock), await open_store(clock) as other:
        await other.add_events("a", _told("x", 1))
        await _ended(store.wait_for_events("a", after=0), "waiting for what was told already")
        waiting = [asyncio.create_task(store.wait_for_events("a", after=1)) for _ in range(3)]
        await other.add_events("b", _told("y", 1, 2))
        for _ in range(20):  # Whoever would not wait had the time to say so.
            await store.events("a")
            await asyncio.sleep(0)
        same([each.done() for each in waiting], [False] * 3, "waiting for what nobody has told, at its end")
        waiting.pop().cancel()
        await other.add_events("a", _told("x", 2))
        for each in waiting:
            await _ended(each, "waiting for what was then told")
        same(_numbers(await store.events("a", after=1)), [(2, "x", 2)], "what was waited for")


async def check_nobody_waits_for_a_session_that_is_deleted(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock), await open_store(clock) as other:
        await other.add_events("a", _told("x", 1, 2))
        waiting = asyncio.create_task(store.wait_for_events("a", after=2))
        await store.events("a")
        await other.delete("a")
        what = "waiting for what is told of a deleted session"
        await refused(SessionNotFoundError, _ended(waiting, what), what)
        await other.create(a_summary("a"), ["first"])
        await other.add_events("a", _told("z", 1))
        what = "waiting for what is told after a position that a deleted session had"
        await refused(SessionNotFoundError, _ended(store.wait_for_events("a", after=2), what), what)


async def _ended(waiting: Awaitable[None], what: str) -> None:
    """Wait for somebody who waits, though not for ever."""
    try:
        await asyncio.wait_for(waiting, _PATIENCE)
    except TimeoutError:
        raise AssertionError(f"{what} should have an end, and it has none") from None
