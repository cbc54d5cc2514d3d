"""Sessions are created, appended to and read back, all of it or nothing; reading starts at checkpoints."""

from __future__ import annotations

import asyncio
from datetime import timedelta, timezone
from itertools import product
from random import Random
from typing import Any

from msgspec.structs import replace

from whyloop.errors import ConflictError, SessionExistsError, SessionNotFoundError
from whyloop.stores.records import SessionFilter
from whyloop.stores.store import Store
from whyloop.testing.fakes import FakeClock
from whyloop.testing.store_checks import (
    START,
    OpenStore,
    a_summary,
    cancelled_after,
    journal,
    listed,
    only_one,
    refused,
    same,
    seen,
    stage,
)
from whyloop.testing.store_checks.contents import STRANGE
from whyloop.values.continuation import StopReason
from whyloop.values.state import AgentStatus
from whyloop.wire.journal import Checkpoint, Entry

_FULL = a_summary(
    started_at=START + timedelta(microseconds=1),
    updated_at=(START + timedelta(days=1, microseconds=999_999)).astimezone(timezone(timedelta(hours=-7))),
    status=AgentStatus.STOPPED,
    stop_reason=StopReason.STEPS_LIMIT_REACHED,
    parent_agent_id="parent",
    step_count=12,
    title="A title",
    metadata={"user": "ann", "tries": 3, "share": 0.5, "tags": ["x", {"y": None}], "done": True, "": None},
    version=2,
    identity="the identity of a",
    agent="an agent",
    resolved_by="StepsLimit",
    reason="12 of 12 steps",
    pending=3,
    cost="0.0012",
)


async def check_a_new_session_is_read_back_as_it_was(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, _):
        await store.create(_FULL, journal("one", "two"))
        stored = await store.read("a")
        same(stored.summary, _FULL, "the summary")
        same(stored.entries, ("one", "two"), "the entries")
        page = await store.find(SessionFilter(), limit=10, after=None)
        same(page.sessions, (_FULL,), "the sessions that are listed")


async def check_a_session_of_which_little_is_known_is_read_back_as_it_was(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, _):
        await store.create(a_summary(), [])
        same((await store.read("a")).summary, a_summary(), "the summary")
        same((await store.read("a")).entries, (), "the entries of a session that begins without any")


async def check_the_store_itself_knows_the_version_and_the_runner(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, _):
        wrong = a_summary(version=99, runner="a liar")
        await store.create(wrong, journal("one"))
        same((await store.read("a")).summary, a_summary(version=1), "the summary that was created")
        await store.append("a", journal("two"), after=1, summary=wrong)
        same((await store.read("a")).summary, a_summary(version=2), "the summary that was replaced")
        page = await store.find(SessionFilter(), limit=10, after=None)
        same(page.sessions, (a_summary(version=2),), "the sessions that are listed")


async def check_an_id_that_is_taken_is_refused(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, _):
        before = await seen(store)
        attempt = store.create(a_summary(title="another", metadata={"k": 1}), journal("other", "entries"))
        error = await refused(SessionExistsError, attempt, "a second session of one id")
        same(error.agent_id, "a", "the id in the error")
        same(await seen(store), before, "the session that was there first")
        same(await listed(store, metadata={"k": 1}), [], "what the refused metadata finds")


async def check_one_of_many_creates_a_session(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, clock), await open_store(clock) as other:
        winner, _ = await only_one(
            ((store, other)[n % 2].create(a_summary(title=str(n)), journal(str(n))) for n in range(8)),
            SessionExistsError,
        )
        stored = await store.read("a")
        same((stored.summary.title, *stored.entries), (str(winner),) * 2, "what the one stored")


async def check_entries_are_kept_in_order(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, _):
        await store.create(a_summary(), journal("0"))
        expected = ["0"]
        for size in (1, 3, 1, 7, 2, 1, 1, 1, 1, 1, 90, 1):
            added = [str(len(expected) + n) for n in range(size)]
            same(await store.append("a", journal(*added), after=len(expected)), None, "what append returns")
            expected += added
            stored = await store.read("a")
            same(stored.entries, tuple(expected), "the entries")
            same(stored.summary.version, len(expected), "the version")


async def check_many_entries_are_added_at_once(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, _):
        entries = [str(n) for n in range(3000)]
        await store.create(a_summary("created"), journal(*entries))
        same((await store.read("created")).entries, tuple(entries), "the entries of a long journal")
        await store.create(a_summary("appended"), [])
        await store.append("appended", journal(*entries), after=0)
        same((await store.read("appended")).entries, tuple(entries), "the entries of a long append")


async def check_entries_that_are_alike_are_all_kept(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, _):
        await store.create(a_summary(), journal("x", "x", ""))
        await store.append("a", journal("x", ""), after=3)
        same((await store.read("a")).entries, ("x", "x", "", "x", ""), "the entries")


async def check_a_journal_is_read_from_any_version(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, _):
        entries = tuple(str(n) for n in range(12))
        await store.create(a_summary(), journal(*entries))
        for after in range(14):
            stored = await store.read("a", after=after)
            same(stored.entries, entries[after:], f"the entries after {after}")
            same(stored.summary.version, 12, f"the version, read after {after}")


async def check_a_journal_is_read_page_by_page(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, _):
        entries = tuple(str(n) for n in range(12))
        await store.create(a_summary(), journal(*entries))
        for limit in (1, 5, 11, 12, 13, 1000):
            found: list[str] = []
            for after in range(0, 12, limit):
                stored = await store.read("a", after=after, limit=limit)
                same(stored.entries, entries[after : after + limit], f"{limit} entries after {after}")
                same(stored.summary.version, 12, f"the version, read after {after} up to {limit}")
                found += stored.entries
            same(tuple(found), entries, f"the entries on all the pages of {limit}")
        same((await store.read("a", after=12, limit=5)).entries, (), "the entries after the last")
        same((await store.read("a", after=99, limit=5)).entries, (), "the entries far after the last")
        same((await store.read("a", limit=None)).entries, entries, "the entries without a limit")


async def check_listed_sessions_are_read_up_to_the_version_with_which_they_were_listed(
    open_store: OpenStore,
) -> None:
    async with stage(open_store, "a", "deleted", "replaced") as (store, _):
        await store.create(a_summary("odd 'id'", identity="odd \u0000 identity"), journal("x", "y"))
        await store.create(a_summary("empty"), [])
        sessions = (await store.find(SessionFilter(), limit=10, after=None)).sessions
        for agent_id in ("deleted", "replaced"):
            await store.delete(agent_id)
        await store.create(a_summary("replaced", identity="another"), journal("another's"))
        await store.append("a", journal("later"), after=1)
        wanted = {"a": ("first",), "odd 'id'": ("x", "y"), "empty": ()}
        found = await store.read_listed([*sessions, *reversed(sessions)])
        same(
            [None if entries is None else tuple(entries) for entries in found],
            [wanted.get(summary.agent_id) for summary in (*sessions, *reversed(sessions))],
            "the entries of the sessions that were listed",
        )
        same(list(await store.read_listed([])), [], "the entries of no session at all")


async def check_a_session_keeps_its_identity(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, _):
        for identity in ("", "another"):
            changed = a_summary(title="new", identity=identity)
            version = (await store.read("a")).summary.version
            await store.append("a", journal("x"), after=version, summary=changed)
            found = (await store.read("a")).summary
            same(found, a_summary(title="new", version=version + 1), "the summary after an append")


async def check_a_session_keeps_its_id(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, _):
        await store.append("a", journal("x"), after=1, summary=a_summary("b", title="new"))
        found = (await store.read("a")).summary
        same((found.agent_id, found.title), ("a", "new"), "id and title after an append")
        same(await listed(store), ["a"], "the sessions that are listed")
        await refused(SessionNotFoundError, store.read("b"), "reading a session that was never created")


async def check_versions_are_those_of_the_sessions_that_exist(open_store: OpenStore) -> None:
    async with stage(open_store, "a", "b") as (store, clock), await open_store(clock) as other:
        await store.create(a_summary("empty"), [])
        lease = await store.acquire("b", "one", 30)
        await store.append("b", journal("x", "y"), after=1, lease=lease)
        expected = {
            "a": ("the identity of a", 1),
            "b": ("the identity of b", 3),
            "empty": ("the identity of empty", 0),
        }
        wanted = ["missing", "b", "empty", "a", "'; --", "b"]
        same(dict(await other.versions(wanted)), expected, "the versions")
        same(dict(await other.versions(["b"])), {"b": expected["b"]}, "the version of one session")
        same(dict(await other.versions([])), {}, "the versions of no session")
        await store.delete("a")
        await store.create(a_summary("a", identity="another"), journal("1", "2"))
        same(dict(await other.versions(["a"])), {"a": ("another", 2)}, "the version of a successor")
        many = [f"{n}" for n in range(2000)]
        same(dict(await other.versions([*many, "empty"])), {"empty": expected["empty"]}, "one of many")


async def check_a_summary_is_replaced_together_with_its_metadata(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, _):
        await store.create(a_summary(metadata={"old": 1, "both": 1}), journal("one"))
        await store.append("a", journal("two"), after=1, summary=_FULL)
        same((await store.read("a")).summary, _FULL, "the summary")
        same(await listed(store, metadata={"user": "ann"}), ["a"], "what the new metadata finds")
        same(await listed(store, metadata={"old": 1}), [], "what the old metadata finds")
        same(await listed(store, status=AgentStatus.PENDING), [], "what the old status finds")
        same(await listed(store, status=AgentStatus.STOPPED), ["a"], "what the new status finds")


async def check_entries_alone_leave_the_summary(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, _):
        await store.create(_FULL, journal("one"))
        await store.append("a", journal("two"), after=1)
        same((await store.read("a")).summary, _FULL, "the summary")
        same(await listed(store, metadata={"user": "ann"}), ["a"], "what the metadata finds")


async def check_a_summary_is_replaced_without_any_entry(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, _):
        await store.append("a", [], after=1, summary=a_summary(title="new"))
        stored = await store.read("a")
        same(stored.summary, a_summary(title="new", version=1), "the summary")
        same(stored.entries, ("first",), "the entries")


async def check_a_wrong_version_is_refused_and_nothing_is_written(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, _):
        await store.append("a", journal("second"), after=1)
        before = await seen(store)
        for after in (0, 1, 3, 1000):
            for entries in (journal("x"), journal("x", "y"), []):
                changed = a_summary(title="changed", metadata={"k": 1})
                attempt = store.append("a", entries, after=after, summary=changed)
                error = await refused(ConflictError, attempt, f"an append at version {after} of 2")
                same((error.agent_id, error.expected, error.found), ("a", after, 2), "what the error names")
                same(await seen(store), before, "the session after a refused append")
        same(await listed(store, metadata={"k": 1}), [], "what the refused metadata finds")


async def check_a_wrong_version_is_refused_under_a_lease_too(open_store: OpenStore) -> None:
    async with stage(open_store, "a", "b", "c") as (store, _):
        for name in ("a", "b", "c"):
            lease = await store.acquire(name, "one", 30)
            for after in (-(2**32), -1, 0, 2, 17, 2**31, 2**32, 2**32 + 1, 2**33 + 1, 2**63):
                attempt = store.append(name, journal("x"), after=after, lease=lease)
                error = await refused(ConflictError, attempt, f"an append at version {after} of 1")
                same((error.agent_id, error.expected, error.found), (name, after, 1), "what the error names")
        for name in ("a", "b", "c"):
            same((await store.read(name)).entries, ("first",), f"the entries of {name}")


async def check_a_conflict_leaves_the_lease_as_it_was(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, _):
        lease = await store.acquire("a", "one", 30)
        before = await seen(store)
        attempt = store.append(
            "a", journal("x"), after=0, lease=lease, summary=a_summary(title="x"), release=True
        )
        await refused(ConflictError, attempt, "an append at a wrong version")
        same(await seen(store), before, "the session and its runner after a refused append")
        await store.append("a", journal("second"), after=1, lease=lease)
        same((await store.read("a")).entries, ("first", "second"), "the entries")


async def check_one_of_many_writers_at_a_version_wins(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock), await open_store(clock) as other:
        for version in (1, 3, 5):
            attempts = (
                (store, other)[n % 2].append(
                    "a", journal(f"{n}", f"{n}"), after=version, summary=a_summary(title=f"{n}")
                )
                for n in range(8)
            )
            winner, _ = await only_one(attempts, ConflictError)
            stored = await other.read("a", after=version)
            found = (stored.summary.title, *stored.entries)
            same(found, (str(winner),) * 3, "what the winner wrote, and nothing else,")


async def check_an_append_whose_caller_was_cancelled_was_made(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, _):
        lease = await store.acquire("a", "one", 60)
        for rounds in range(1, 6):
            stored = (await store.read("a")).entries
            writing = asyncio.create_task(
                store.append("a", journal(f"{rounds}"), after=len(stored), lease=lease)
            )
            await cancelled_after(rounds, writing)
            expected = (*stored, f"{rounds}")
            same((await store.read("a")).entries, expected, "the journal after an append that was cancelled")


async def check_an_append_that_is_refused_says_so_though_its_caller_was_cancelled(
    open_store: OpenStore,
) -> None:
    async with stage(open_store, "a") as (store, _):
        for rounds in range(1, 6):
            writing = asyncio.create_task(store.append("a", journal("x"), after=7))
            try:
                await cancelled_after(rounds, writing)
            except ConflictError:
                continue
            raise AssertionError("an append at another version was cancelled, and the conflict is unknown")


async def check_sessions_that_are_written_at_the_same_time_do_not_mix(open_store: OpenStore) -> None:
    async def write(store: Store, agent_id: str) -> None:
        for version in range(10):
            await store.append(agent_id, journal(f"{agent_id}-{version}"), after=version)

    async with stage(open_store) as (store, clock), await open_store(clock) as other:
        names = [f"session-{n}" for n in range(12)]
        await asyncio.gather(*(store.create(a_summary(name), []) for name in names))
        await asyncio.gather(*(write((store, other)[n % 2], name) for n, name in enumerate(names)))
        for name in names:
            expected = tuple(f"{name}-{version}" for version in range(10))
            same((await store.read(name)).entries, expected, f"the entries of {name}")


async def check_one_process_reads_what_another_writes(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock), await open_store(clock) as other:
        for version in range(1, 6):
            writer, reader = (store, other) if version % 2 else (other, store)
            await writer.append(
                "a", journal(str(version)), after=version, summary=a_summary(title=str(version))
            )
            stored = await reader.read("a", after=version)
            same(stored.entries, (str(version),), "the entries that the other process wrote")
            same(stored.summary.title, str(version), "the title that the other process wrote")


async def check_a_store_that_is_opened_again_has_all_sessions(open_store: OpenStore) -> None:
    clock = FakeClock(START)
    async with await open_store(clock) as store:
        await store.create(_FULL, journal("one", "two"))
        lease = await store.acquire("a", "one", 30)
        await store.append("a", journal("three"), after=2, lease=lease)
        before = await seen(store)
        same(before[0].entries, ("one", "two", "three"), "the entries")
    async with await open_store(clock) as store:
        stored = await store.read("a")
        same(stored.entries, before[0].entries, "the entries in a store that was opened again")
        same(replace(stored.summary, runner="one"), before[0].summary, "the summary in it")
        same(await store.renew(lease), None, "what renew returns")


def _point(number: int, **fields: Any) -> Checkpoint:
    counts = {"seq": number * 10, "step_count": number, "message_count": number * 3, **fields}
    return Checkpoint("x", state=f'{{"state":{number}}}', **counts)


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
    """Compare with a simple search in Python, on irregular counts."""
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
        counts = ("seq", "step_count", "message_count")
        for execution_id, *most in product((None, "x", "z"), (None, 0, 3), (None, 2, 9), (None, -1, 4)):
            limits: dict[str, Any] = {
                name: limit for name, limit in zip(counts, most, strict=True) if limit is not None
            }
            fitting = [
                (version, point)
                for version, point in enumerate(points)
                if point is not None
                and execution_id in (None, point.execution_id)
                and all(getattr(point, name) <= limit for name, limit in limits.items())
            ]
            found = await store.checkpoint("a", execution_id=execution_id, **limits)
            expected = fitting[-1] if fitting else None
            same(found, expected, f"the checkpoint for {execution_id!r} and {limits}")


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
