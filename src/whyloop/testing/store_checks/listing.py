"""Sessions are found by every condition, counted, and listed as they are now."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from itertools import product
from random import Random
from typing import Any

from whyloop.errors import ConfigurationError, SessionRunningError
from whyloop.stores.listing import tallies_of
from whyloop.stores.records import SessionFilter
from whyloop.testing.store_checks import (
    START,
    OpenStore,
    a_summary,
    at,
    journal,
    listed,
    pages,
    refused,
    same,
    stage,
)
from whyloop.values.continuation import StopReason
from whyloop.values.state import AgentState, AgentStatus


async def check_sessions_are_found_by_their_status(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, _):
        for status in AgentStatus:
            await store.create(a_summary(status.value, status=status), [])
        for status in AgentStatus:
            same(await listed(store, status=status), [status.value], f"what the status {status} finds")


async def check_sessions_are_found_by_why_they_stopped(open_store: OpenStore) -> None:
    async with stage(open_store, "running") as (store, _):
        for reason in StopReason:
            stopped = a_summary(reason.value, status=AgentStatus.STOPPED, stop_reason=reason)
            await store.create(stopped, [])
        for reason in StopReason:
            same(await listed(store, stop_reason=reason), [reason.value], f"what the reason {reason} finds")


async def check_sessions_are_found_by_the_rule_that_decided(open_store: OpenStore) -> None:
    async with stage(open_store, "undecided") as (store, _):
        rules = ("StepsLimit", "stepslimit", "", "a rule with spaces", "x" * 300)
        for number, rule in enumerate(rules):
            await store.create(a_summary(f"{number}", resolved_by=rule, reason="why"), [])
        for number, rule in enumerate(rules):
            same(await listed(store, resolved_by=rule), [f"{number}"], f"what the rule {rule!r} finds")
        same(await listed(store, resolved_by="another"), [], "what a rule finds that never decided")
        changed = a_summary("0", resolved_by="another", status=AgentStatus.FAILED)
        await store.append("0", [], after=0, summary=changed)
        same(await listed(store, resolved_by="another"), ["0"], "what the new rule finds")
        same(await listed(store, resolved_by="StepsLimit"), [], "what the old rule finds")


async def check_sessions_are_found_by_their_agent(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, _):
        agents = ("", "helper", "Helper", "helper ", "an agent \U0001f600", "x" * 300, "resolved_by")
        for number, agent in enumerate(agents):
            await store.create(a_summary(f"{number}", agent=agent, metadata={"agent": "helper"}), [])
        for number, agent in enumerate(agents):
            same(await listed(store, agent=agent), [f"{number}"], f"what the agent {agent!r} finds")
        same(await listed(store, agent="another"), [], "what an agent finds that has no session")


async def check_a_session_is_found_by_the_metadata_that_it_was_given_later(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, clock), await open_store(clock) as other:
        state = AgentState(agent_id="a", metadata={"team": "sales", "old": 1})
        await store.add(state)
        updated_at = (await store.read("a")).summary.updated_at
        await store.set_metadata("a", {"team": "support", "old": None, "note": "Straße"}, by="ann")
        expected = {"team": "support", "note": "Straße"}
        for process in (store, other):
            same((await process.load("a")).metadata, expected, "the metadata")
            same((await process.read("a")).summary.metadata, expected, "the listed metadata")
            same(await listed(process, metadata={"team": "support"}), ["a"], "what the new entry finds")
            same(await listed(process, metadata={"team": "sales"}), [], "what the old entry finds")
            same(await listed(process, search="strasse"), ["a"], "what a word of the new entry finds")
        same((await store.read("a")).summary.updated_at, updated_at, "the time of the last change")
        lease = await other.acquire("a", "one", 30)
        attempt = store.set_metadata("a", {"team": "refused"})
        await refused(SessionRunningError, attempt, "a change of the metadata beside a runner")
        await other.release(lease)
        same((await store.load("a")).metadata, expected, "the metadata after a refused change")


async def check_sessions_are_found_by_when_they_were_updated(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, _):
        for minute in range(5):
            await store.create(a_summary(str(minute), updated_at=at(10 - minute)), [])
        zone = timezone(timedelta(hours=14))
        same(await listed(store, updated_before=at(8)), ["4", "3"], "what was updated before")
        late = at(8).astimezone(zone) + timedelta(microseconds=1)
        same(await listed(store, updated_before=late), ["4", "3", "2"], "what was updated until")
        await store.append("4", [], after=0, summary=a_summary("4", updated_at=at(9)))
        same(await listed(store, updated_before=at(8)), ["3"], "what was not updated again")
        same(await listed(store, updated_after=at(8)), ["4", "1", "0"], "what was updated after")
        early = at(8).astimezone(zone) - timedelta(microseconds=1)
        same(await listed(store, updated_after=early), ["4", "2", "1", "0"], "what was updated since")
        between = await listed(store, updated_after=at(8), updated_before=at(10))
        same(between, ["4", "1"], "what was updated between two moments")
        wanted = SessionFilter(updated_after=at(8))
        same(await pages(store, wanted, 2), ["4", "1", "0"], "the pages of what was updated after")


async def check_sessions_are_found_by_whether_they_wait(open_store: OpenStore) -> None:
    async with stage(open_store, "pending") as (store, _):
        for pending in (0, 1, 3):
            paused = a_summary(f"{pending}", status=AgentStatus.PAUSED, pending=pending)
            await store.create(paused, [])
        await store.create(a_summary("stopped", status=AgentStatus.STOPPED, pending=2), [])
        same(await listed(store, waiting=True), ["3", "1"], "what waits for a person")
        same(len(await listed(store, waiting=False)), 5, "the number of all sessions")
        await store.append("3", [], after=0, summary=a_summary("3", status=AgentStatus.PAUSED))
        same(await listed(store, waiting=True), ["1"], "what still waits for a person")
        found = await listed(store, waiting=True, metadata={"user": "ann"})
        same(found, [], "what waits under a condition that none meets")


async def check_sessions_that_wait_are_listed_in_the_order_of_their_updates(open_store: OpenStore) -> None:
    async with stage(open_store, "pending") as (store, clock), await open_store(clock) as other:
        for number, minute in enumerate((3, 1, 2, 1)):
            paused = a_summary(f"{number}", pending=1, updated_at=at(minute), metadata={"odd": number % 2})
            await store.create(paused, [])
        await store.create(a_summary("decided", status=AgentStatus.PAUSED, metadata={"odd": 1}), [])
        await store.create(a_summary("stopped", status=AgentStatus.STOPPED, pending=1), [])

        async def ids(limit: int = 10, **metadata: int) -> list[str]:
            return [session.agent_id for session in await other.waiting(metadata, limit=limit)]

        same(await ids(), ["1", "3", "2", "0"], "the sessions that wait")
        same(await ids(limit=2), ["1", "3"], "the first two of them")
        same(await ids(odd=0), ["2", "0"], "those with an entry of their metadata")
        same(await ids(odd=2), [], "those with an entry that none has")
        await store.append("1", [], after=0, summary=a_summary("1", updated_at=at(9)))
        same(await ids(odd=1), ["3"], "those that still wait")
        await refused(ConfigurationError, store.waiting({}, limit=0), "a limit of 0")


_TEXTS = {
    "order": "order-17 refund the trouble\npaid ann",
    "refund": "refund 100% of_it",
    "cyrillic": "\u0432\u043e\u043f\u0440\u043e\u0441 \u00e9t\u00e9 \U0001f600",
    "none": "",
}


async def check_sessions_are_found_by_words_of_their_text(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, _):
        for name, text in _TEXTS.items():
            await store.create(a_summary(name, search=text, title="unsearched", metadata={"a": 1}), [])
            same((await store.read(name)).summary.search, text, "the text for searches")
        for terms, expected in {
            "refund": ["refund", "order"],
            "REFUND": ["refund", "order"],
            "  paid\n the ": ["order"],
            "fund rou": ["order"],
            "refund order paid nothing": [],
            "unsearched": [],
            "%": ["refund"],
            "f_it": ["refund"],
            "r_f": [],
            "e\u0301t\u00c9": ["cyrillic"],
            "\U0001f600": ["cyrillic"],
            "refund\x00": ["refund", "order"],
            "'\"\\": [],
            "": ["refund", "order", "none", "cyrillic"],
        }.items():
            same(await listed(store, search=terms), expected, f"what {terms!r} finds")
        found = await listed(store, search="refund", metadata={"a": 1}, updated_after=at(-1))
        same(found, ["refund", "order"], "what terms and other conditions find")
        same(await pages(store, SessionFilter(search="refund"), 1), ["refund", "order"], "the pages of them")
        await store.append("order", [], after=0, summary=a_summary("order", search="changed"))
        same(await listed(store, search="refund"), ["refund"], "what has still the term")
        same(await listed(store, search="changed"), ["order"], "what has a new term")


async def check_sessions_are_counted_by_kind_and_day(open_store: OpenStore) -> None:
    random = Random(2)
    async with stage(open_store) as (store, _):
        zone = timezone(timedelta(hours=5, minutes=30))
        summaries = [
            a_summary(
                f"{number}",
                status=random.choice([AgentStatus.STOPPED, AgentStatus.PAUSED]),
                stop_reason=random.choice([None, StopReason.COMPLETED, StopReason.GUARD_FORBADE]),
                resolved_by=random.choice([None, "", "a \0 rule", "another"]),
                started_at=at(number),
                updated_at=(at(number) + timedelta(days=random.randrange(4))).astimezone(zone),
                pending=random.randrange(3),
                search=random.choice(["one text", "another text"]),
                metadata={"user": random.choice(["ann", "bob"]), "one": 1},
            )
            for number in range(60)
        ]
        since = at(30) + timedelta(days=1)
        same(await store.tally(SessionFilter(), since=since), (), "what an empty store counts")
        for summary in summaries:
            await store.create(summary, [])
        for wanted in (
            SessionFilter(),
            SessionFilter(metadata={"user": "ann"}),
            SessionFilter(metadata={"user": "ann", "one": 1}, resolved_by="another"),
            SessionFilter(started_after=at(9), started_before=at(40)),
            SessionFilter(metadata={"user": "bob"}, started_after=at(9), started_before=at(40)),
            SessionFilter(updated_after=at(35), updated_before=at(40) + timedelta(days=2)),
            SessionFilter(search="one"),
            SessionFilter(search="text one", status=AgentStatus.PAUSED, waiting=True),
            SessionFilter(metadata={"user": "eve"}),
            SessionFilter(search="nothing"),
        ):
            found = (await store.find(wanted, limit=100, after=None)).sessions
            counted = sorted(await store.tally(wanted, since=since), key=repr)
            same(counted, sorted(tallies_of(found, since), key=repr), f"what {wanted} counts")


async def check_sessions_are_found_by_when_they_started(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, _):
        for minute in range(5):
            await store.create(a_summary(str(minute), started_at=at(minute)), [])
        moment = timedelta(microseconds=1)
        for zone in (UTC, timezone(timedelta(hours=14)), timezone(timedelta(hours=-12))):
            early, late = at(1).astimezone(zone), at(3).astimezone(zone)
            same(await listed(store, started_after=early), ["4", "3", "2"], "what started after")
            same(
                await listed(store, started_after=early - moment), ["4", "3", "2", "1"], "what started since"
            )
            same(await listed(store, started_before=late), ["2", "1", "0"], "what started before")
            same(
                await listed(store, started_before=late + moment), ["3", "2", "1", "0"], "what started until"
            )
            between = await listed(store, started_after=early, started_before=late)
            same(between, ["2"], "what started between two moments")
            nothing = await listed(store, started_after=late, started_before=early)
            same(nothing, [], "what started after it started")


async def check_moments_differ_by_a_microsecond(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, _):
        moments = [START + timedelta(microseconds=number) for number in (-1, 0, 1, 10, 999_999, 1_000_000)]
        for number, moment in enumerate(moments):
            await store.create(a_summary(str(number), started_at=moment), [])
        same(await listed(store), ["5", "4", "3", "2", "1", "0"], "the order")
        for number, moment in enumerate(moments):
            later = [str(n) for n in range(5, number, -1)]
            same(await listed(store, started_after=moment), later, f"what started after {moment}")
            same((await store.read(str(number))).summary.started_at, moment, "when it started")


async def check_moments_far_from_now_are_in_order_too(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, _):
        zone = timezone(timedelta(hours=1))
        years = (1, 1000, 1969, 1970, 2038, 2262, 9999)
        for year in years:
            moment = datetime(year, 6, 1, tzinfo=zone)
            await store.create(a_summary(str(year), started_at=moment), [])
            same((await store.read(str(year))).summary.started_at, moment, "when it started")
        same(await listed(store), [str(year) for year in reversed(years)], "the order")
        first, last = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
        for name, moment in (("first", first), ("last", last)):
            await store.create(a_summary(name, started_at=moment, agent="far"), [])
        found = await listed(store, status=AgentStatus.PENDING, agent="far")
        same(found, ["last", "first"], "the first and the last moment")


async def check_the_zone_of_a_moment_does_not_matter(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, _):
        # By the clock on the wall these come in another order than in time.
        for hours in range(-12, 13, 4):
            moment = at(hours).astimezone(timezone(timedelta(hours=-hours)))
            await store.create(a_summary(f"{hours:+03}", started_at=moment), [])
        expected = [f"{hours:+03}" for hours in range(12, -13, -4)]
        same(await listed(store), expected, "the order")
        same(await listed(store, started_after=at(0)), ["+12", "+08", "+04"], "what started after")


_VALUES: dict[str, Any] = {
    "one": 1,
    "one as text": "1",
    "one and a half": 1.5,
    "minus one": -1,
    "yes": True,
    "yes as text": "true",
    "no": False,
    "zero": 0,
    "nothing": None,
    "nothing as text": "null",
    "no text": "",
    "text": "text",
    "TEXT": "TEXT",
    "text with a space": "text ",
    "pattern": "t%",
    "quoted": '"text"',
    "large": 2**53 + 1,
    "larger": 2**53 + 2,
}


async def check_metadata_is_compared_with_its_type(open_store: OpenStore) -> None:
    async with stage(open_store, "without") as (store, _):
        for name, value in _VALUES.items():
            await store.create(a_summary(name, metadata={"key": value}), [])
        await store.create(a_summary("another key", metadata={"KEY": 1, "key ": 1, "": 1}), [])
        await store.create(a_summary("a list", metadata={"key": [1, "text", None]}), [])
        await store.create(a_summary("inside", metadata={"inner": {"key": 1}, "inner.key": 1}), [])
        for name, value in _VALUES.items():
            same(await listed(store, metadata={"key": value}), [name], f"what {value!r} finds")
        same(await listed(store, metadata={"key": "another"}), [], "what a value finds that no session has")
        same(await listed(store, metadata={"other": None}), [], "what a key finds that no session has")


async def check_long_metadata_is_compared_to_its_end(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, _):
        lengths = (197, 198, 199, 200, 201, 300, 5000, 1_000_000)
        for length in lengths:
            metadata = {"key": "x" * length, "k" * length: "v", "other": "x" * length + "!"}
            await store.create(a_summary(f"{length}", metadata=metadata), [])
            same((await store.read(f"{length}")).summary.metadata, metadata, "the metadata")
        for length in lengths:
            same(
                await listed(store, metadata={"key": "x" * length}), [f"{length}"], "what a long value finds"
            )
            same(await listed(store, metadata={"k" * length: "v"}), [f"{length}"], "what a long key finds")
            same(await listed(store, metadata={"key": "x" * length + "!"}), [], "what a longer value finds")


async def check_all_that_is_asked_for_has_to_hold(open_store: OpenStore) -> None:
    random = Random(1)
    async with stage(open_store) as (store, _):
        summaries = [
            a_summary(
                f"{number:03}",
                started_at=at(number),
                status=random.choice([AgentStatus.STOPPED, AgentStatus.COMPLETED, AgentStatus.PENDING]),
                stop_reason=random.choice([None, StopReason.COMPLETED, StopReason.GUARD_FORBADE]),
                resolved_by=random.choice([None, "one rule", "another rule"]),
                agent=random.choice(["helper", "writer"]),
                updated_at=at(1000 - number),
                pending=random.randrange(2),
                search=random.choice(["a term", "nothing"]),
                metadata={"user": random.choice(["ann", "bob"]), "tries": random.randrange(3)},
            )
            for number in range(60)
        ]
        for summary in random.sample(summaries, len(summaries)):
            await store.create(summary, [])
        metadata: tuple[Mapping[str, Any], ...] = ({}, {"user": "ann"}, {"user": "bob", "tries": 1})
        combinations = product(
            (None, AgentStatus.STOPPED),
            (None, StopReason.COMPLETED),
            (None, at(10)),
            (None, at(50)),
            metadata,
            (None, "one rule"),
            (None, "writer"),
            ((None, None), (at(970), None), (at(985), at(960)), (None, at(990))),
            ((False, None), (True, None), (False, "term")),
        )
        for status, reason, early, late, entries, rule, agent, updated, text in combinations:
            (before, after), (waiting, terms) = updated, text
            expected = [
                summary.agent_id
                for summary in reversed(summaries)
                if (status is None or summary.status is status)
                and (reason is None or summary.stop_reason is reason)
                and (early is None or summary.started_at > early)
                and (late is None or summary.started_at < late)
                and entries.items() <= summary.metadata.items()
                and (rule is None or summary.resolved_by == rule)
                and (agent is None or summary.agent == agent)
                and (before is None or summary.updated_at < before)
                and (after is None or summary.updated_at > after)
                and (not waiting or summary.waiting)
                and (terms is None or terms in summary.search)
            ]
            wanted = SessionFilter(
                status, reason, early, late, entries, rule, agent, before, after, waiting, terms
            )
            page = await store.find(wanted, limit=100, after=None)
            same([session.agent_id for session in page.sessions], expected, f"what {wanted} finds")
            same(page.next, None, "the page after the last one")


async def check_nothing_is_listed_in_an_empty_store(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, _):
        page = await store.find(SessionFilter(started_before=at(1)), limit=10, after=None)
        same((page.sessions, page.next), ((), None), "the only page of an empty store")


async def check_a_session_is_listed_as_it_is_now(open_store: OpenStore) -> None:
    async with stage(open_store, "a", "b") as (store, clock), await open_store(clock) as other:

        async def runners() -> list[str | None]:
            page = await other.find(SessionFilter(), limit=10, after=None)
            for session in page.sessions:
                same((await other.read(session.agent_id)).summary, session, "the summary that is read")
            return [session.runner for session in page.sessions]

        same(await runners(), [None, None], "the runners before any lease")
        lease = await store.acquire("a", "one", 30)
        same(await runners(), [None, "one"], "the runners with a lease")
        clock.advance(31)
        same(await runners(), [None, None], "the runners when the lease has lapsed")
        await store.renew(lease)
        same(await runners(), [None, "one"], "the runners when it was renewed")
        await store.append(
            "a", journal("x"), after=1, lease=lease, summary=a_summary(title="x", step_count=1)
        )
        same(await runners(), [None, "one"], "the runners when one has written")
        clock.advance(31)
        await store.acquire("a", "two", 30)
        same(await runners(), [None, "two"], "the runners when the session was taken over")
