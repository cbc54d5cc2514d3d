"""Checkpoints say where reading can start."""

from __future__ import annotations

from itertools import product
from random import Random
from typing import Any

from whyloop.stores.records import Checkpoint, Entry
from whyloop.testing.store_checks.contents import STRANGE
from whyloop.testing.store_checks.support import OpenStore, a_summary, journal, same, stage


def _point(number: int, *, execution_id: str = "x", **fields: Any) -> Checkpoint:
    counts = {"seq": number * 10, "step_count": number, "message_count": number * 3, **fields}
    return Checkpoint(execution_id, state=f'{{"state":{number}}}', **counts)


async def check_a_checkpoint_comes_with_the_version_before_its_entry(open_store: OpenStore) -> None:
    async with stage(open_store, "a", "b") as (store, clock), await open_store(clock) as other:
        same(await store.checkpoint("a"), None, "the checkpoint of a journal without any")
        await store.append("a", [Entry("second"), Entry("third", _point(1)), Entry("fourth")], after=1)
        same(await other.checkpoint("a"), (2, _point(1)), "the only checkpoint")
        same((await other.read("a", after=2)).entries, ("third", "fourth"), "the entries from there on")
        lease = await store.acquire("a", "one", 30)
        await store.append("a", [Entry("fifth", _point(2))], after=4, lease=lease)
        same(await other.checkpoint("a"), (4, _point(2)), "the newest checkpoint")
        await store.append("a", journal("sixth"), after=5, lease=lease)
        same(await other.checkpoint("a"), (4, _point(2)), "the newest checkpoint after another entry")
        same(await other.checkpoint("b"), None, "the checkpoint of another session")


async def check_a_session_is_created_with_checkpoints(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, _):
        entries = [Entry("one", _point(0)), Entry("two"), Entry("three", _point(1)), Entry("four")]
        await store.create(a_summary(), entries)
        same(await store.checkpoint("a"), (2, _point(1)), "the newest checkpoint")
        same(await store.checkpoint("a", step_count=0), (0, _point(0)), "the first checkpoint")
        same((await store.read("a")).entries, ("one", "two", "three", "four"), "the entries")


async def check_the_newest_checkpoint_that_fits_is_found(open_store: OpenStore) -> None:
    """Compare with a few lines of Python: counts that go up and down, executions that come again."""
    random = Random(5)
    async with stage(open_store) as (store, _):
        points = [
            None
            if number % 3 == 1
            else Checkpoint(
                random.choice(["x", "y"]),
                random.randrange(6),
                random.randrange(6),
                random.randrange(6),
                f"{number}",
            )
            for number in range(30)
        ]
        await store.create(a_summary(), [Entry(f"{n}", point) for n, point in enumerate(points[:10])])
        for number in range(10, 30):
            await store.append("a", [Entry(f"{number}", points[number])], after=number)
        for execution_id, seq, step_count, message_count in product(
            (None, "x", "z"), (None, 0, 3), (None, 2, 9), (None, -1, 4)
        ):
            expected = None
            for version, point in enumerate(points):
                if (
                    point is not None
                    and (execution_id is None or point.execution_id == execution_id)
                    and (seq is None or point.seq <= seq)
                    and (step_count is None or point.step_count <= step_count)
                    and (message_count is None or point.message_count <= message_count)
                ):
                    expected = version, point
            found = await store.checkpoint(
                "a",
                execution_id=execution_id,
                seq=seq,
                step_count=step_count,
                message_count=message_count,
            )
            wanted = (execution_id, seq, step_count, message_count)
            same(found, expected, f"the checkpoint for {wanted}")


async def check_a_strange_checkpoint_comes_back_as_it_was(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, _):
        for number, text in enumerate((*STRANGE, "x" * 1_000_000)):
            point = Checkpoint(text[:300], 2**53 + number, 2**31 + number, 2**40, text)
            await store.append("a", [Entry("x", point)], after=number + 1)
            same(await store.checkpoint("a"), (number + 1, point), "the checkpoint")
            same(
                await store.checkpoint("a", execution_id=text[:300]),
                (number + 1, point),
                "the one of its own",
            )


async def check_the_checkpoints_of_a_deleted_session_are_gone(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, _):
        await store.create(a_summary(), [Entry("one", _point(0)), Entry("two", _point(1))])
        await store.delete("a")
        await store.create(a_summary(identity="another"), journal("one", "two"))
        same(await store.checkpoint("a"), None, "the checkpoint of a session with the same id")
