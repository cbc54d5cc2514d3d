"""A store keeps every text as it is, writes a repeated request once, forks, and deletes altogether."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from whyloop.errors import (
    ConfigurationError,
    ConflictError,
    KeyUsedError,
    LeaseLostError,
    SessionExistsError,
    SessionNotFoundError,
    SessionRunningError,
)
from whyloop.stores.records import Lease, RequestKey, SessionFilter
from whyloop.stores.store import Store
from whyloop.testing.store_checks import (
    OpenStore,
    a_summary,
    journal,
    listed,
    only_one,
    pages,
    refused,
    same,
    seen,
    stage,
)
from whyloop.values.state import AgentState

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

# Alike for a store that folds case, trims, normalizes, takes patterns for matches, or cuts off.
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


async def check_a_strange_reason_reaches_the_runner(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, _):
        for reason in (*STRANGE, "x" * 100_000):
            lease = await store.acquire("a", "one", 30)
            same(await store.ask_to_stop("a", reason), True, "what ask_to_stop returns")
            same(await store.renew(lease), reason, "the reason that renew returns")
            same(await store.append("a", [], after=1, lease=lease), reason, "the reason that append returns")
            await store.release(lease)


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
        lost = Lease("a", "another", 0, 30)
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
        lost = Lease("a", "another", 0, 30)
        await refused(LeaseLostError, store.append("a", [], after=1, lease=lost, key=_KEY), "a lost lease")
        lease = await store.acquire("a", "one", 30)
        await refused(
            SessionRunningError, store.append("a", [], after=1, key=_KEY), "an append beside a runner"
        )
        same(await store.key("a", "key"), None, "the key of refused appends")
        await store.append("a", journal("x"), after=1, lease=lease, release=True, key=_KEY)
        same(await store.key("a", "key"), ("digest", 2), "the key")


async def check_one_of_many_requests_under_a_key_is_written(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock), await open_store(clock) as other:
        attempts = (
            (store, other)[n % 2].append("a", journal(f"{n}"), after=1, key=RequestKey("key", f"{n}"))
            for n in range(8)
        )
        winner, _ = await only_one(attempts, KeyUsedError)
        same((await store.read("a")).entries, ("first", str(winner)), "the entries")
        same(await store.key("a", "key"), (str(winner), 2), "the key")


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


async def check_a_session_is_forked_at_the_expected_version_only(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, _):
        await store.add(AgentState(agent_id="a"))
        for expected in (-1, 0, 2, 2**63):
            attempt = store.fork("a", new_agent_id="b", expected_version=expected)
            error = await refused(ConflictError, attempt, f"a fork at version {expected} of 1")
            same((error.agent_id, error.expected, error.found), ("a", expected, 1), "what the error names")
            same(await listed(store), ["a"], "the sessions after a refused fork")
        attempt = store.fork("missing", new_agent_id="b", expected_version=1)
        await refused(SessionNotFoundError, attempt, "a fork of a session that is not there")
        fork = await store.fork("a", new_agent_id="b", expected_version=1)
        same((fork.agent_id, fork == await store.load("b")), ("b", True), "the fork, and that it is stored")


async def check_a_fork_is_stored_under_its_key(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, _):
        await store.add(AgentState(agent_id="a"), key=RequestKey("added", "digest 1"))
        await store.fork("a", new_agent_id="b", key=RequestKey("forked", "digest 2"))
        same(await store.key("a", "added"), ("digest 1", 1), "the key under which a session was added")
        same(await store.key("b", "forked"), ("digest 2", 2), "the key under which it was forked")
        for agent_id, key in (("a", "forked"), ("b", "added")):
            same(await store.key(agent_id, key), None, f"the key {key!r} of {agent_id}")


async def check_a_deleted_session_is_gone(open_store: OpenStore) -> None:
    async with stage(open_store, "a", "b") as (store, clock), await open_store(clock) as other:
        await store.append("a", [], after=1, summary=a_summary(metadata={"k": "v"}))
        await store.delete("a")
        for process in (store, other):
            await refused(SessionNotFoundError, process.read("a"), "reading a deleted session")
            await refused(SessionNotFoundError, process.delete("a"), "deleting a deleted session")
            attempt = process.acquire("a", "one", 30)
            await refused(SessionNotFoundError, attempt, "a lease of a deleted session")
        same(await listed(other), ["b"], "the sessions that are listed")
        same(await listed(other, metadata={"k": "v"}), [], "what its metadata finds")
        same((await store.read("b")).entries, ("first",), "the entries of the other session")


async def check_a_session_that_runs_is_not_deleted(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock), await open_store(clock) as other:
        lease = await store.acquire("a", "one", 30)
        clock.advance(10)
        before = await seen(store)
        error = await refused(SessionRunningError, other.delete("a"), "deleting what runs")
        same((error.agent_id, error.owner), ("a", "one"), "what the error names")
        assert abs(error.seconds - 20) < 0.01, f"20 seconds are left, and not {error.seconds}"
        same(await seen(store), before, "the session after a refused deletion")
        await store.release(lease)
        await other.delete("a")
        same(await listed(store), [], "the sessions that are listed")


async def check_a_session_is_deleted_at_the_expected_version_only(open_store: OpenStore) -> None:
    async with stage(open_store, "a", "b") as (store, _):
        await store.append("a", journal("second"), after=1, summary=a_summary(metadata={"k": "v"}))
        before = await seen(store)
        for expected in (-1, 0, 1, 3, 2**31, 2**63, 2**64):
            attempt = store.delete("a", expected_version=expected)
            error = await refused(ConflictError, attempt, f"deleting at version {expected} of 2")
            same((error.agent_id, error.expected, error.found), ("a", expected, 2), "what the error names")
            same(await seen(store), before, "the session after a refused deletion")
        attempt = store.delete("missing", expected_version=1)
        await refused(SessionNotFoundError, attempt, "deleting a session that is not there")
        lease = await store.acquire("a", "one", 30)
        attempt = store.delete("a", expected_version=1)
        await refused(SessionRunningError, attempt, "deleting what runs, at another version")
        await store.release(lease)
        await store.delete("a", expected_version=2)
        same(await listed(store), ["b"], "the sessions that are listed")


async def check_a_deletion_or_an_append_at_one_version_wins(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, clock), await open_store(clock) as other:
        for number in range(6):
            await store.create(a_summary(), journal("first"))
            attempts = [store.delete("a", expected_version=1), other.append("a", journal("second"), after=1)]
            done = await asyncio.gather(*attempts[:: 1 if number % 2 else -1], return_exceptions=True)
            deleted, appended = done if number % 2 else reversed(done)
            found = [type(deleted), type(appended)]
            expected = [[type(None), SessionNotFoundError], [ConflictError, type(None)]]
            assert found in expected, f"a deletion and an append at one version both came to pass: {done!r}"
            if appended is None:
                await store.delete("a")


async def check_a_session_whose_runner_is_dead_can_be_deleted(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock):
        lease = await store.acquire("a", "one", 30)
        clock.advance(31)
        await store.delete("a")
        attempt = store.append("a", journal("x"), after=1, lease=lease)
        await refused(SessionNotFoundError, attempt, "writing to a deleted session")
        await refused(SessionNotFoundError, store.renew(lease), "renewing the lease of a deleted session")
        same(await listed(store), [], "the sessions that are listed")


async def check_the_id_of_a_deleted_session_is_free(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, _):
        await store.create(a_summary(title="old", metadata={"age": "old"}), journal("1", "2", "3"))
        await store.delete("a")
        new = a_summary(title="new", metadata={"age": "new"}, identity="another")
        await store.create(new, journal("one"))
        stored = await store.read("a")
        same(stored.entries, ("one",), "the entries")
        same(stored.summary, replace(new, version=1), "the summary")
        same(await listed(store, metadata={"age": "old"}), [], "what the old metadata finds")
        same(await listed(store, metadata={"age": "new"}), ["a"], "what the new metadata finds")


async def check_a_lease_of_a_deleted_session_is_void_in_the_next_one(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock):
        zombie = await store.acquire("a", "one", 30)
        await store.ask_to_stop("a", "enough")
        clock.advance(31)
        await store.delete("a")
        await store.create(a_summary(), journal("first"))
        same((await store.read("a")).summary.runner, None, "the runner of a new session")
        await _is_worth_nothing(store, zombie)
        lease = await store.acquire("a", "one", 30)
        await _is_worth_nothing(store, zombie)
        same(await store.renew(lease), None, "what renew returns to the runner of the new session")


async def _is_worth_nothing(store: Store, zombie: Lease) -> None:
    before = await seen(store)
    attempt = store.append("a", journal("zombie"), after=1, lease=zombie, release=True)
    await refused(LeaseLostError, attempt, "writing with a lease of the session before")
    await refused(LeaseLostError, store.renew(zombie), "renewing a lease of the session before")
    await store.release(zombie)
    same(await seen(store), before, "the session after an old lease was used")


async def check_callers_cannot_change_what_is_stored(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, _):
        given = {"k": "v", "inner": {"list": [1]}}
        entries = journal("one")
        await store.create(a_summary(metadata=given), entries)
        expected = a_summary(metadata={"k": "v", "inner": {"list": [1]}}, version=1)
        given["inner"]["list"].append(2)  # type: ignore[index]
        given["k"] = "changed"
        entries += journal("two")
        found = (await store.read("a")).summary
        same(found, expected, "the summary after its giver changed what was given")
        found.metadata["inner"]["list"].append(3)
        page = await store.find(SessionFilter(), limit=10, after=None)
        page.sessions[0].metadata["inner"]["list"].append(4)
        stored = await store.read("a")
        same(stored.summary, expected, "the summary after a reader changed what was read")
        same(stored.entries, ("one",), "the entries")


async def check_a_session_that_is_not_there_is_an_error(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, _):
        attempts: dict[str, Callable[[], Awaitable[object]]] = {
            "read": lambda: store.read("b"),
            "key": lambda: store.key("b", "k"),
            "checkpoint": lambda: store.checkpoint("b"),
            "append": lambda: store.append("b", journal("x"), after=0, summary=a_summary("b")),
            "append with a lease": lambda: store.append(
                "b", journal("x"), after=0, lease=Lease("b", "one", 1, 30)
            ),
            "acquire": lambda: store.acquire("b", "one", 30),
            "renew": lambda: store.renew(Lease("b", "one", 1, 30)),
            "ask_to_stop": lambda: store.ask_to_stop("b", "enough"),
            "delete": lambda: store.delete("b"),
        }
        for name, attempt in attempts.items():
            error = await refused(SessionNotFoundError, attempt(), f"{name} of a session that is not there")
            same(error.agent_id, "b", f"the id in the error of {name}")
        same(await listed(store), ["a"], "the sessions that are listed")
