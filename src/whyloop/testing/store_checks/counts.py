"""A session is listed with what it has used so far, by the last entry that says so."""

from __future__ import annotations

from typing import Any

from msgspec.structs import asdict, replace

from whyloop.errors import ConflictError, LeaseLostError
from whyloop.stores.records import SessionFilter, Summary
from whyloop.stores.store import Store
from whyloop.testing.store_checks import OpenStore, a_summary, at, journal, refused, same, stage
from whyloop.values.state import AgentStatus
from whyloop.wire.journal import Counts, Entry

_RUNNING = a_summary("a", status=AgentStatus.IN_PROGRESS, search="the first question", step_marks="s")
_COUNTS = Counts(9, 1200, False, "0.000000000000000000012", 45.25, "s........")
_LATER = Counts(10, 2**40, True, None, 1e-9, "s.........e")


def _entry(body: str, counts: Counts | None) -> list[Entry]:
    return [Entry(body, counts=counts)]


async def check_a_session_is_listed_with_the_counts_of_its_last_entry(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, clock), await open_store(clock) as other:
        await store.create(_RUNNING, journal("first"))
        await store.create(a_summary("b", step_count=1), journal("first"))
        lease = await store.acquire("a", "one", 30)
        for version, counts in ((1, _COUNTS), (2, _LATER)):
            await store.append("a", _entry(f"{version}", counts), after=version, lease=lease)
            for process in (store, other):
                expected = replace(_RUNNING, **asdict(counts), version=version + 1, runner="one")
                await _is_listed(process, expected)
        await store.append("a", [*_entry("x", _LATER), *_entry("y", _COUNTS)], after=3, lease=lease)
        await _is_listed(store, replace(_RUNNING, **asdict(_COUNTS), version=5, runner="one"))
        clock.advance(31)
        expected = replace(_RUNNING, **asdict(_COUNTS), version=5)
        await _is_listed(store, expected)
        same(await other.unattended(), (expected,), "the sessions that could continue")
        same((await other.read("b")).summary.step_count, 1, "the steps of another session")


async def check_a_summary_counts_from_its_version_on(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, _):
        await store.create(_RUNNING, journal("first"))
        await store.append("a", _entry("2", _COUNTS), after=1)
        paused = replace(_RUNNING, status=AgentStatus.PAUSED, pending=1, step_count=11, tokens=7)
        await store.append("a", journal("3"), after=2, summary=paused)
        await _is_listed(store, replace(paused, version=3))
        same(await store.waiting({}, limit=9), (replace(paused, version=3),), "the sessions with questions")
        await store.append("a", _entry("4", _COUNTS), after=3)
        await store.append("a", [], after=4, summary=paused)
        await _is_listed(store, replace(paused, version=4))
        await store.append("a", _entry("5", _LATER), after=4, summary=paused)
        await _is_listed(store, replace(paused, **asdict(_LATER), version=5))
        await store.append("a", journal("6"), after=5)
        await _is_listed(store, replace(paused, **asdict(_LATER), version=6))
        await store.create(a_summary("new"), _entry("first", _COUNTS))
        same((await store.read("new")).summary.step_count, 9, "the steps of a session that was created so")


async def check_a_refused_append_leaves_the_counts(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, clock):
        await store.create(_RUNNING, journal("first"))
        lost = await store.acquire("a", "one", 30)
        clock.advance(31)
        lease = await store.acquire("a", "two", 30)
        await store.append("a", _entry("2", _COUNTS), after=1, lease=lease)
        attempt = store.append("a", _entry("x", _LATER), after=2, lease=lost)
        await refused(LeaseLostError, attempt, "counts of the runner before")
        attempt = store.append("a", _entry("x", _LATER), after=1, lease=lease)
        await refused(ConflictError, attempt, "counts at an earlier version")
        await _is_listed(store, replace(_RUNNING, **asdict(_COUNTS), version=2, runner="two"))


async def check_counts_change_neither_order_nor_filters(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, _):
        await store.create(_RUNNING, journal("first"))
        found = [await _found(store, updated_before=at(1)), await _found(store, search="question")]
        await store.append("a", _entry("2", _COUNTS), after=1)
        again = [await _found(store, updated_before=at(1)), await _found(store, search="question")]
        same(again, found, "what the filters find")
        (tally,) = await store.tally(SessionFilter(), since=at(0))
        same((tally.status, tally.day, tally.sessions), (AgentStatus.IN_PROGRESS, 0, 1), "the tally")


async def _found(store: Store, **wanted: Any) -> list[str]:
    page = await store.find(SessionFilter(**wanted), limit=9, after=None)
    return [summary.agent_id for summary in page.sessions]


async def _is_listed(store: Store, expected: Summary) -> None:
    page = await store.find(SessionFilter(), limit=9, after=None)
    (listed,) = [summary for summary in page.sessions if summary.agent_id == expected.agent_id]
    same(listed, expected, "the session in the list")
    same((await store.read(expected.agent_id)).summary, expected, "the summary that is read")
