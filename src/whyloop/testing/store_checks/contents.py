"""A store keeps every text as it is, however strange."""

from __future__ import annotations

from whyloop.errors import SessionExistsError, SessionNotFoundError, SessionRunningError
from whyloop.stores.records import SessionFilter
from whyloop.testing.store_checks.support import (
    OpenStore,
    a_summary,
    journal,
    listed,
    pages,
    refused,
    same,
    stage,
)

STRANGE = (
    '{"text":"\\u0000 and \\ud83d\\ude00 escaped"}',
    '{"text":"\U0001f9d1\u200d\U0001f680 \U00020000 日本語"}',
    "\u202eturned around\u2066\u200f\ufeff",
    "'; DROP TABLE sessions; --",
    '"quoted" \\ \\\\ \\n %s %(name)s {} $1 ? :name @name',
    "lines\nand\r\nreturns\tand tabs\u2028\u0085",
    "  spaces at both ends  ",
    "\x01\x1b[31m\x7f",
    "",
    "null",
    "e\u0301 is not \u00e9",
)

# Alike for whoever folds case, trims, normalises, takes patterns for matches, or cuts off.
ALIKE = (
    "session",
    "Session",
    "SESSION",
    " session",
    "session ",
    "session\t",
    "sess_on",
    "sess%",
    "session\u200b",
    "se\u0301ssion",
    "s\u00e9ssion",
    "'session'",
    '"session"',
    "session;--",
    "会話 \U0001f600 \u202e",
    "../session",
    "x" * 499,
    "x" * 500,
    "\U0001f600" * 120,
)


async def check_strange_entries_come_back_as_they_were(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, _):
        await store.create(a_summary(), journal(*STRANGE))
        await store.append("a", journal(*STRANGE[::-1]), after=len(STRANGE))
        found = (await store.read("a")).entries
        same(len(found), 2 * len(STRANGE), "the number of entries")
        for given, entry in zip((*STRANGE, *STRANGE[::-1]), found, strict=True):
            same(entry, given, "an entry")


async def check_long_entries_come_back_as_they_were(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, _):
        entries = ("x" * 1_000_000, "\U0001f600" * 250_000, '"\\' * 500_000)
        await store.create(a_summary(), journal(*entries[:1]))
        await store.append("a", journal(*entries[1:]), after=1)
        found = (await store.read("a")).entries
        for number, entry in enumerate(entries):
            assert found[number] == entry, f"the long entry {number} is not what was stored"


async def check_sessions_whose_ids_are_alike_are_not_the_same(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, _):
        for number, agent_id in enumerate(ALIKE):
            await store.create(a_summary(agent_id, title=str(number)), journal(str(number)))
        for number, agent_id in enumerate(ALIKE):
            await store.append(agent_id, journal(agent_id), after=1)
            await refused(SessionExistsError, store.create(a_summary(agent_id), []), "a second session")
            lease = await store.acquire(agent_id, agent_id, 30)
            error = await refused(SessionRunningError, store.delete(agent_id), "deleting what runs")
            same((error.agent_id, error.owner), (agent_id, agent_id), "what the error names")
            stored = await store.read(agent_id)
            expected = a_summary(agent_id, title=str(number), version=2, runner=agent_id)
            same(stored.summary, expected, "the summary")
            same(stored.entries, (str(number), agent_id), "the entries")
            await store.release(lease)
        same(await pages(store, SessionFilter(), 3), sorted(ALIKE, reverse=True), "the ids on all the pages")
        for number, agent_id in enumerate(ALIKE):
            await store.delete(agent_id)
            await refused(SessionNotFoundError, store.read(agent_id), "reading what was deleted")
            same(len(await listed(store)), len(ALIKE) - number - 1, "the number of sessions that are left")


async def check_a_strange_summary_comes_back_as_it_was(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, _):
        texts = (*STRANGE, "a real \x00", "x" * 100_000)
        for number, text in enumerate(texts):
            metadata = {text: text, "long": [text] * 3, "inner": {text: [None, True, 2**53, -0.5, 1e300]}}
            summary = a_summary(f"{number}", title=text, parent_agent_id=f"<{number}>", metadata=metadata)
            await store.create(summary, [])
            same((await store.read(f"{number}")).summary, summary, "the summary")
        for number, text in enumerate(texts):
            same(await listed(store, metadata={text: text}), [f"{number}"], "what strange metadata finds")


async def check_strange_words_reach_whoever_runs_the_session(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, _):
        for words in (*STRANGE, "x" * 100_000):
            lease = await store.acquire("a", "one", 30)
            same(await store.ask_to_stop("a", words), True, "what ask_to_stop returns")
            same(await store.renew(lease), words, "the words that renew returns")
            same(await store.append("a", [], after=1, lease=lease), words, "the words that append returns")
            await store.release(lease)
