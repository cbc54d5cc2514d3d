"""Pages of a list show each session once, newest first, while sessions come, go and change."""

from __future__ import annotations

from random import Random

from whyloop.errors import ConfigurationError
from whyloop.stores.records import SessionFilter
from whyloop.stores.store import Store
from whyloop.testing.store_checks import OpenStore, a_summary, at, journal, pages, refused, same, stage
from whyloop.values.state import AgentStatus

_ALL = SessionFilter()


async def check_pages_show_each_session_once_and_newest_first(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, _):
        await _with_sessions(store, 24)
        expected = _names(24)
        for limit in (1, 2, 5, 8, 23, 24, 25, 1000):
            same(await pages(store, _ALL, limit), expected, f"the ids on all the pages of {limit}")


async def check_the_last_page_says_that_it_is_the_last(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, _):
        await _with_sessions(store, 6)
        for limit in (6, 7, 100):
            same((await store.find(_ALL, limit=limit, after=None)).next, None, "the page after the only one")
        first = await store.find(_ALL, limit=3, after=None)
        assert first.next is not None, "there is a page after the first three of six sessions"
        second = await store.find(_ALL, limit=3, after=first.next)
        same([session.agent_id for session in second.sessions], _names(6)[3:], "the second page")
        same(second.next, None, "the page after the second one")


async def check_sessions_that_started_at_the_same_moment_have_an_order(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, _):
        # The order of their characters' numbers, and of no language.
        names = [*"aBbAéezZ_ -\uffee\U0001f600", "10", "9", "aa"]
        for name in names:
            await store.create(a_summary(name), [])
        expected = sorted(names, reverse=True)
        for limit in (1, 3, 100):
            same(await pages(store, _ALL, limit), expected, f"the ids on all the pages of {limit}")


async def check_pages_of_a_filter_show_only_what_it_finds(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, _):
        await _with_sessions(store, 24)
        expected = [name for name in _names(24) if int(name) % 3 == 1]
        for wanted in (SessionFilter(metadata={"third": 1}), SessionFilter(metadata={"third": 1, "k": "v"})):
            for limit in (1, 3, 8, 9):
                same(await pages(store, wanted, limit), expected, f"the ids on all the pages of {limit}")


async def check_pages_stay_where_they_were_while_sessions_come_and_go(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, clock), await open_store(clock) as other:
        await _with_sessions(store, 12)
        seen: list[str] = []
        after: str | None = None
        for number in range(4):
            page = await store.find(_ALL, limit=3, after=after)
            seen += [session.agent_id for session in page.sessions]
            after = page.next
            last = page.sessions[-1]
            await other.create(a_summary(f"younger {number}", started_at=at(1000 + number)), [])
            changed = a_summary(last.agent_id, started_at=last.started_at, status=AgentStatus.FAILED)
            await other.append(last.agent_id, journal("x"), after=last.version, summary=changed)
        same(seen, _names(12), "the ids on all the pages")
        same(after, None, "the page after the last one")


async def check_pages_continue_after_a_session_that_is_gone(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, clock), await open_store(clock) as other:
        await _with_sessions(store, 9)
        first = await store.find(_ALL, limit=3, after=None)
        for session in first.sessions:
            await other.delete(session.agent_id)
        second = await store.find(_ALL, limit=3, after=first.next)
        same([session.agent_id for session in second.sessions], _names(9)[3:6], "the second page")
        for name in _names(9)[6:]:
            await other.delete(name)
        third = await store.find(_ALL, limit=3, after=second.next)
        same((third.sessions, third.next), ((), None), "a page whose sessions are all gone")


async def check_pages_of_a_filter_continue_while_sessions_change(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, _):
        await _with_sessions(store, 10)
        pending = SessionFilter(status=AgentStatus.PENDING)
        seen: list[str] = []
        after: str | None = None
        while True:
            page = await store.find(pending, limit=2, after=after)
            seen += [session.agent_id for session in page.sessions]
            for shown in page.sessions:
                done = a_summary(shown.agent_id, started_at=shown.started_at, status=AgentStatus.COMPLETED)
                await store.append(shown.agent_id, journal("x"), after=shown.version, summary=done)
            if page.next is None:
                break
            after = page.next
        same(seen, _names(10), "the ids on all the pages")
        same(await pages(store, pending, 2), [], "what is still waiting")


async def check_a_page_shows_one_session_or_more(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, _):
        for limit in (0, -1, -1000):
            attempt = store.find(_ALL, limit=limit, after=None)
            await refused(ConfigurationError, attempt, f"a page of {limit}")


async def check_a_broken_cursor_is_refused(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, _):
        await _with_sessions(store, 3)
        page = await store.find(_ALL, limit=1, after=None)
        assert page.next is not None, "there is a page after the first of three sessions"
        for cursor in ("", "x", "no cursor", "'; --", "\U0001f600", page.next[: len(page.next) // 2]):
            attempt = store.find(_ALL, limit=1, after=cursor)
            await refused(ConfigurationError, attempt, f"the cursor {cursor!r}")


async def _with_sessions(store: Store, number: int) -> None:
    """Create sessions named by age, in random order, two at each moment."""
    for age in Random(2).sample(range(number), number):
        metadata = {"third": age % 3, "k": "v"}
        await store.create(a_summary(f"{age:03}", started_at=at(age // 2), metadata=metadata), [])


def _names(number: int) -> list[str]:
    return [f"{age:03}" for age in reversed(range(number))]
