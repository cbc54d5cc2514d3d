"""The store in a file: its contents on disk, and concurrent use."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from whyloop.errors import ConfigurationError, ConflictError, StoreError
from whyloop.stores import (
    Checkpoint,
    Entry,
    MemoryStore,
    RequestKey,
    SessionFilter,
    SqliteStore,
    Store,
    Summary,
)
from whyloop.stores.sqlite_file import APPLICATION_ID, MIGRATIONS
from whyloop.testing import FakeClock
from whyloop.testing.store_checks import journal
from whyloop.values.continuation import StopReason
from whyloop.values.state import AgentStatus

START = datetime(2026, 1, 1, tzinfo=UTC)


def summary(agent_id: str = "a", *, minutes: float = 0, **fields: Any) -> Summary:
    started_at = START + timedelta(minutes=minutes)
    return Summary(agent_id, fields.pop("status", AgentStatus.PENDING), started_at, started_at, **fields)


def connection_of(store: SqliteStore) -> sqlite3.Connection:
    connection = store._writes._db
    assert connection is not None
    return connection


def pragma(store: SqliteStore, name: str) -> object:
    (value,) = connection_of(store).execute(f"PRAGMA {name}").fetchone()
    return value


def run_python(code: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


async def ids(store: SqliteStore, **wanted: Any) -> list[str]:
    page = await store.find(SessionFilter(**wanted), limit=1000, after=None)
    return [session.agent_id for session in page.sessions]


# The file


async def test_a_session_outlives_its_store(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "s.db") as store:
        await store.create(summary(title="hello", metadata={"k": [1, None]}), journal("one", "two"))
    async with SqliteStore(str(tmp_path / "s.db")) as store:
        stored = await store.read("a")
    assert stored.entries == ("one", "two")
    assert stored.summary == summary(title="hello", metadata={"k": [1, None]}, version=2)


async def test_only_its_owner_may_read_the_file_and_its_log(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        async with SqliteStore(tmp_path / "s.db") as store:
            await store.create(summary(), [])
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert modes == {"s.db": 0o600, "s.db-wal": 0o600, "s.db-shm": 0o600}


@pytest.mark.parametrize(("mode", "warned"), [(0o600, 0), (0o640, 1), (0o604, 1), (0o644, 1)])
async def test_a_file_that_others_can_read_is_warned_of_once(
    tmp_path: Path, mode: int, warned: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "s.db"
    async with SqliteStore(path) as store:
        await store.create(summary(), [])
    path.chmod(mode)
    for _ in range(2):
        async with SqliteStore(path) as store:
            await store.read("a")
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [f"other users of this machine can read the sessions in {path}: chmod 600 it"] * warned


def test_a_file_that_is_not_a_store_is_not_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("milk and bread, and more than a header of SQLite " * 10)
    path.chmod(0o644)
    with pytest.raises(StoreError, match="not a SQLite database"):
        SqliteStore(path)
    assert caplog.records == []


@pytest.mark.skipif(os.name != "posix", reason="there is no such device")
def test_a_device_is_not_a_store(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(StoreError, match="/dev/null is not a regular file: name another"):
        SqliteStore("/dev/null")
    assert caplog.records == []


async def test_closing_leaves_one_file(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "s.db") as store:
        await store.create(summary(), [])
    assert [path.name for path in tmp_path.iterdir()] == ["s.db"]


async def test_the_home_folder_has_a_short_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    await SqliteStore("~/s.db").close()
    assert (tmp_path / "s.db").is_file()


async def test_a_store_keeps_its_file_when_the_program_changes_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    async with SqliteStore("s.db") as store:
        monkeypatch.chdir(tmp_path / "elsewhere")
        store._writes.disconnect()
        await store.create(summary(), [])
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("path", [":memory:", "file::memory:?cache=shared"])
def test_an_address_that_is_not_a_file_is_refused_with_a_hint(path: str) -> None:
    with pytest.raises(ConfigurationError, match="MemoryStore"):
        SqliteStore(path)


def test_an_unknown_durability_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="'process' or 'power'"):
        SqliteStore(tmp_path / "s.db", durability="paranoid")  # type: ignore[arg-type]


async def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=f"no folder {tmp_path / 'missing'}"):
        SqliteStore(tmp_path / "missing" / "s.db")
    assert not list(tmp_path.iterdir())


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is a folder: name a file in it"):
        SqliteStore(tmp_path)


@pytest.mark.parametrize(("durability", "synchronous"), [("process", 1), ("power", 2)])
async def test_the_durability_and_the_log_are_really_set(
    tmp_path: Path, durability: Any, synchronous: int
) -> None:
    async with SqliteStore(tmp_path / "s.db", durability=durability) as store:
        await store.create(summary("a"), [])
        assert pragma(store, "synchronous") == synchronous
        assert pragma(store, "journal_mode") == "wal"
        store._writes.disconnect()
        await store.create(summary("b"), [])
        assert pragma(store, "synchronous") == synchronous, "after it was opened again"


# What a write costs


async def test_an_append_reads_one_row_and_writes_one(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "s.db") as store:
        await store.create(summary(), journal("x") * 100)
        lease = await store.acquire("a", "me", 30)
        db, said = connection_of(store), list[str]()
        before = db.total_changes
        db.set_trace_callback(said.append)
        await store.append("a", journal("y"), after=100, lease=lease)
        db.set_trace_callback(None)
        assert [statement.split()[0] for statement in said] == ["INSERT"]
        assert db.total_changes - before == 1
        plan = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {said[0]}")]
    assert len(plan) == 4
    assert not any("SCAN" in step and "CONSTANT ROW" not in step for step in plan), plan


async def test_a_status_that_changes_moves_only_what_depends_on_it(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "s.db") as store:
        metadata = {"a": 1, "b": 2, "c": 3}
        await store.create(summary(metadata=metadata), [])
        db = connection_of(store)
        before = db.total_changes
        await store.append("a", [], after=0, summary=summary(metadata=metadata, title="other"))
        assert db.total_changes - before == 2, "the rows of the session"
        before = db.total_changes
        await store.append("a", [], after=0, summary=summary(metadata=metadata, status=AgentStatus.FAILED))
        assert db.total_changes - before == 2 + 2, "the rows of the session, and the label of the status"


# What is found


async def test_any_combination_of_labels_finds_what_has_them_all(tmp_path: Path) -> None:
    values = list(product([True, False], repeat=3))
    async with SqliteStore(tmp_path / "s.db") as store:
        for number, (a, b, c) in enumerate(values):
            own = {"a": a, "b": b, "c": c}
            await store.create(summary(f"{a}{b}{c}", minutes=number, metadata=own), [])
        for wanted in product([True, False, None], repeat=3):
            asked = {key: value for key, value in zip("abc", wanted, strict=True) if value is not None}
            expected = [
                f"{a}{b}{c}"
                for a, b, c in reversed(values)
                if all(value in (None, own) for value, own in zip(wanted, (a, b, c), strict=True))
            ]
            assert await ids(store, metadata=asked) == expected, asked
            assert await ids(store, metadata=asked, status=AgentStatus.PENDING) == expected
            assert await ids(store, metadata=asked, status=AgentStatus.FAILED) == []


async def test_pages_of_two_labels_are_complete(tmp_path: Path) -> None:
    """Wherever the sessions of one label begin and end beside those of the other, and of the page."""
    async with SqliteStore(tmp_path / "s.db") as store:
        for number in range(20):
            own = {"a": number > 3, "b": number < 15}
            await store.create(summary(f"{number:02}", minutes=number // 4, metadata=own), [])
        for limit in (1, 3, 4, 50):
            found, after = [], None
            while True:
                page = await store.find(
                    SessionFilter(metadata={"a": True, "b": True}), limit=limit, after=after
                )
                found += [session.agent_id for session in page.sessions]
                after = page.next
                if after is None:
                    break
            assert found == [f"{number:02}" for number in reversed(range(4, 15))]


@pytest.mark.parametrize("seed", range(3))
async def test_random_filters_find_what_a_store_in_memory_finds(tmp_path: Path, seed: int) -> None:
    random, memory = Random(seed), MemoryStore()

    def some(*values: Any) -> Any:
        return random.choice([None, *values])

    def moment() -> datetime:
        return START + timedelta(minutes=random.randrange(8))

    def entries(most: int) -> dict[str, int]:
        return {key: random.randrange(2) for key in random.sample("abc", random.randrange(most))}

    async def pages(store: Store, wanted: SessionFilter, limit: int) -> list[list[str]]:
        found, after = [], None
        while True:
            page = await store.find(wanted, limit=limit, after=after)
            found.append([session.agent_id for session in page.sessions])
            after = page.next
            if after is None:
                return found

    async with SqliteStore(tmp_path / "s.db") as store:
        for number in range(40):
            status, reason = random.choice(list(AgentStatus)), some(StopReason.COMPLETED)
            made = Summary(f"{number:02}", status, moment(), moment(), reason, metadata=entries(4), agent="x")
            made = replace(made, pending=random.randrange(2))
            for each in (store, memory):
                await each.create(made, [])
        for _ in range(100):
            wanted = SessionFilter(
                status=some(*AgentStatus),
                stop_reason=some(StopReason.COMPLETED),
                started_after=some(moment()),
                started_before=some(moment()),
                metadata=entries(3),
                agent=some("x"),
                updated_before=some(moment()),
                updated_after=some(moment()),
                waiting=random.random() < 0.2,
            )
            limit = random.choice([1, 2, 5, 100])
            assert await pages(store, wanted, limit) == await pages(memory, wanted, limit), wanted


async def test_metadata_is_not_mistaken_for_a_status(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "s.db") as store:
        await store.create(summary("a", metadata={"status": "failed", "crowded": ""}), [])
        await store.create(summary("b", status=AgentStatus.FAILED, stop_reason=StopReason.ERROR_FORBADE), [])
        assert await ids(store, status=AgentStatus.FAILED) == ["b"]
        assert await ids(store, metadata={"status": "failed"}) == ["a"]
        assert await ids(store, metadata={"status": "failed", "crowded": ""}) == ["a"]


async def test_no_filter_makes_the_file_be_read_from_end_to_end(tmp_path: Path) -> None:
    filters: list[dict[str, Any]] = [
        {},
        {"status": AgentStatus.PENDING},
        {"status": AgentStatus.PENDING, "metadata": {"a": 1}},
        {"stop_reason": StopReason.COMPLETED, "metadata": {"a": 1, "b": 2}, "started_after": START},
        {"agent": "helper", "resolved_by": "rule", "updated_before": START},
        {"agent": "helper", "metadata": {"a": 1}},
        {"agent": "helper", "updated_after": START, "waiting": True},
    ]
    async with SqliteStore(tmp_path / "s.db") as store:
        await store.create(summary(metadata={"a": 1, "b": 2}), journal("x"))
        db, said = connection_of(store), list[str]()
        for wanted in filters:
            db.set_trace_callback(said.append)
            await store.find(SessionFilter(**wanted), limit=50, after=None)
            db.set_trace_callback(None)
        selects = [statement for statement in said if "SELECT" in statement]
        assert len(selects) >= len(filters)
        for statement in selects:
            plan = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {statement}")]
            assert not any(
                step.startswith("SCAN") and not set(step.lower().split()) & {"constant", "(subquery-1)"}
                for step in plan
            ), plan


async def test_sessions_that_started_later_are_not_read_to_find_old_ones(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "s.db") as store:
        for number in range(2000):
            await store.create(summary(f"{number:04}", minutes=number), [])
        db, instructions = connection_of(store), 0

        def count() -> None:
            nonlocal instructions
            instructions += 100

        db.set_progress_handler(count, 100)
        page = await store.sessions(updated_before=START + timedelta(minutes=3))
        assert [each.agent_id for each in page.sessions] == ["0002", "0001", "0000"]
        assert instructions < 2000


async def test_recently_updated_sessions_are_found_without_reading_the_rest(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "s.db") as store:
        for number in range(3000):
            await store.create(summary(f"{number:04}", minutes=number), [])
        db, instructions = connection_of(store), 0

        def count() -> None:
            nonlocal instructions
            instructions += 100

        changed = replace(summary("0007", minutes=7), updated_at=START + timedelta(days=9))
        await store.append("0007", [], after=0, summary=changed)
        db.set_progress_handler(count, 100)
        page = await store.sessions(updated_after=START + timedelta(days=8))
        assert [each.agent_id for each in page.sessions] == ["0007"]
        assert instructions < 500
        db.set_progress_handler(None, 0)
        many = await store.sessions(updated_after=START + timedelta(minutes=9), limit=3)
        assert [each.agent_id for each in many.sessions] == ["2999", "2998", "2997"]


# Several at once


async def test_threads_share_a_store(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "s.db")
    await store.create(summary(), [])

    async def write(name: str) -> None:
        written = 0
        while written < 20:
            version = (await store.read("a")).summary.version
            try:
                await store.append("a", journal(f"{name}{written}"), after=version)
            except ConflictError:
                continue
            written += 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda name: asyncio.run(write(name)), "wxyz"))
    entries = (await store.read("a")).entries
    assert sorted(entries) == sorted(f"{name}{number}" for name in "wxyz" for number in range(20))
    for name in "wxyz":
        assert [entry for entry in entries if entry[0] == name] == [f"{name}{number}" for number in range(20)]
    await store.close()


async def test_a_reader_does_not_keep_a_writer_waiting(tmp_path: Path) -> None:
    async def never(seconds: float) -> None:
        raise AssertionError("the writer waited")

    async with SqliteStore(tmp_path / "s.db", sleep=never) as store:
        await store.create(summary(), journal("one"))
        reader = sqlite3.connect(tmp_path / "s.db", isolation_level=None)
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM entries").fetchone() == (1,)
        await store.append("a", journal("two"), after=1)
        assert reader.execute("SELECT count(*) FROM entries").fetchone() == (1,), "what it saw when it began"
        reader.close()
        assert (await store.read("a")).entries == ("one", "two")


OPEN_AND_CREATE = """
import asyncio, sys
from whyloop.stores import Entry, SqliteStore, Summary
from whyloop.values.state import AgentStatus
from datetime import datetime, UTC

async def main():
    now = datetime.now(UTC)
    sys.stdin.readline()
    async with SqliteStore(sys.argv[1]) as store:
        await store.create(Summary(sys.argv[2], AgentStatus.PENDING, now, now), [Entry("x")])

asyncio.run(main())
"""


async def test_processes_that_open_a_new_file_at_once_all_get_it(tmp_path: Path) -> None:
    names = ["a", "b", "c", "d"]
    processes = [run_python(OPEN_AND_CREATE, tmp_path / "s.db", name) for name in names]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        process.communicate(timeout=60)
        assert process.returncode == 0
    async with SqliteStore(tmp_path / "s.db") as store:
        assert sorted(await ids(store)) == names


APPEND_AND_DIE = """
import asyncio, os, signal, sys
from whyloop.stores import Entry, SqliteStore

async def main():
    store = SqliteStore(sys.argv[1], durability=sys.argv[2])
    lease = await store.acquire("a", "me", 30)
    for version in range(50):
        await store.append("a", [Entry(str(version))], after=version, lease=lease)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.mark.parametrize("durability", ["process", "power"])
async def test_recorded_work_survives_a_killed_process(tmp_path: Path, durability: str) -> None:
    async with SqliteStore(tmp_path / "s.db") as store:
        await store.create(summary(), [])
    process = run_python(APPEND_AND_DIE, tmp_path / "s.db", durability)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    async with SqliteStore(tmp_path / "s.db") as store:
        assert (await store.read("a")).entries == tuple(map(str, range(50)))


def test_after_a_fork_each_process_has_its_own_connection(tmp_path: Path) -> None:
    """And neither loses anything, even when the other closes its store in between."""
    store = SqliteStore(tmp_path / "s.db")
    asyncio.run(store.create(summary(), journal("before")))
    (from_child, to_parent), (from_parent, to_child) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(store.append("a", journal("child"), after=1))
            os.write(to_parent, b".")
            os.read(from_parent, 1)
            asyncio.run(store.append("a", journal("child again"), after=4))
        finally:
            os._exit(0)
    os.read(from_child, 1)
    asyncio.run(store.append("a", journal("parent"), after=2))
    asyncio.run(store.close())
    other = SqliteStore(tmp_path / "s.db")
    asyncio.run(other.append("a", journal("another store"), after=3))
    os.write(to_child, b".")
    os.waitpid(child, 0)
    entries = asyncio.run(other.read("a")).entries
    asyncio.run(other.close())
    assert entries == ("before", "child", "parent", "another store", "child again")


async def test_a_deleted_session_leaves_nothing_in_the_file(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "s.db") as store:
        await store.create(summary("a", metadata={"k": "v"}), journal("one", "two"))
        point = Checkpoint("x", 0, 0, 0, "{}")
        await store.append("a", [Entry("three", point)], after=2, key=RequestKey("k", "d"))
        await store.keep_claim("a", b"data")
        await store.delete("a")
        for table in ("sessions", "summaries", "entries", "checkpoints", "keys", "claims", "labels"):
            assert connection_of(store).execute(f"SELECT count(*) FROM {table}").fetchone() == (0,), table


async def test_the_same_claim_is_one_row_for_each_session(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "s.db") as store:
        for agent_id in ("a", "b"):
            await store.create(summary(agent_id), [])
            for _ in range(3):
                await store.keep_claim(agent_id, b"data")
        rows = connection_of(store).execute("SELECT session, data FROM claims ORDER BY session").fetchall()
        assert rows == [(1, b"data"), (2, b"data")]


# Older and newer files


async def test_a_file_says_which_migrations_it_has(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "s.db") as store:
        applied = connection_of(store).execute("SELECT name FROM migrations ORDER BY name").fetchall()
    assert applied == [(name,) for name in MIGRATIONS]


async def test_a_migration_that_fails_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with SqliteStore(tmp_path / "s.db") as store:
        await store.create(summary(), journal("one"))
    with monkeypatch.context() as later:
        later.setitem(MIGRATIONS, "9999", "CREATE TABLE half (x);\nINSERT INTO nowhere VALUES (1);\n")
        with pytest.raises(StoreError, match="nowhere"):
            SqliteStore(tmp_path / "s.db")
    async with SqliteStore(tmp_path / "s.db") as store:
        assert (await store.read("a")).entries == ("one",)
        assert not connection_of(store).execute("SELECT 1 FROM sqlite_master WHERE name = 'half'").fetchall()


def test_the_migrations_are_in_order() -> None:
    assert list(MIGRATIONS) == sorted(MIGRATIONS)


async def test_a_newer_file_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    await SqliteStore(tmp_path / "s.db").close()
    db = sqlite3.connect(tmp_path / "s.db", isolation_level=None)
    db.execute("INSERT INTO migrations VALUES ('9999', '2036-01-01')")
    db.close()
    before = (tmp_path / "s.db").read_bytes()
    with pytest.raises(StoreError, match=r"newer whyloop.*9999.*upgrade"):
        SqliteStore(tmp_path / "s.db")
    assert (tmp_path / "s.db").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["s.db"]


@pytest.mark.parametrize("journal", ["delete", "wal"])
@pytest.mark.parametrize(
    "statement", ["CREATE TABLE sessions (x)", f"PRAGMA application_id = {APPLICATION_ID + 1}"]
)
def test_a_database_of_another_program_is_left_as_it_is(tmp_path: Path, journal: str, statement: str) -> None:
    db = sqlite3.connect(tmp_path / "s.db", isolation_level=None)
    db.execute(f"PRAGMA journal_mode = {journal}")
    db.execute(statement)
    db.close()
    before = (tmp_path / "s.db").read_bytes()
    with pytest.raises(StoreError, match="another program"):
        SqliteStore(tmp_path / "s.db")
    assert (tmp_path / "s.db").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["s.db"]


async def test_a_file_says_whose_it_is(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "s.db") as store:
        assert pragma(store, "application_id") == APPLICATION_ID


async def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    (tmp_path / "s.db").touch()
    async with SqliteStore(tmp_path / "s.db") as store:
        await store.create(summary(), journal("x"))
    async with SqliteStore(tmp_path / "s.db") as store:
        assert (await store.read("a")).entries == ("x",)


async def test_an_open_store_stays_locked_when_another_one_is_opened_beside_it(tmp_path: Path) -> None:
    """Of two stores of one process, neither takes the other's locks away."""
    async with SqliteStore(tmp_path / "s.db") as store:
        connection_of(store).execute("BEGIN IMMEDIATE")
        await SqliteStore(tmp_path / "s.db").close()
        probe = run_python(
            "import sqlite3, sys\n"
            "db = sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None)\n"
            "try: db.execute('BEGIN IMMEDIATE')\n"
            "except sqlite3.OperationalError as error: print(error)\n",
            tmp_path / "s.db",
        )
        said, _ = probe.communicate(timeout=60)
        connection_of(store).execute("ROLLBACK")
    assert said == "database is locked\n"


async def test_leases_use_the_clock_of_the_machine_by_default(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "s.db") as store:
        await store.create(summary(), [])
        await store.acquire("a", "me", 30)
        (until,) = connection_of(store).execute("SELECT lease_until FROM sessions").fetchone()
        assert 0 < until / 1_000_000 - time.time() <= 30
    async with SqliteStore(tmp_path / "s.db", clock=FakeClock(START)) as store:
        assert (await store.read("a")).summary.runner is None
