"""The log of an SQLite file: emptied before it is long, extended ahead of writes that wait for the disk."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.stores.processes import another_process
from whyloop.stores import SqliteStore, Summary, sqlite, sqlite_file
from whyloop.stores.sqlite_file import LOG_RESERVE, Durability
from whyloop.testing.store_checks import journal
from whyloop.values.state import AgentStatus

START = datetime(2026, 1, 1, tzinfo=UTC)


def summary(agent_id: str = "a") -> Summary:
    return Summary(agent_id, AgentStatus.PENDING, START, START, identity=agent_id)


async def append_many(store: SqliteStore, count: int, *, after: int = 1) -> None:
    """Append entries, each once the thread has cared for the log."""
    lease = await store.acquire("a", "me", 30)
    for version in range(after, after + count):
        await store.append("a", journal("x" * 1000), after=version, lease=lease)
        if store._caring is not None:
            await store._caring
    await store.release(lease)


@pytest.mark.parametrize("durability", ["process", "power"])
async def test_the_thread_empties_a_long_log(
    tmp_path: Path, durability: Durability, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "LONGEST_LOG", 100_000)
    monkeypatch.setattr(sqlite_file, "LOG_RESERVE", 20_000)
    emptied: list[str] = []
    async with SqliteStore(tmp_path / "s.db", durability=durability) as store:
        empty_log = store._slow.empty_log

        def noted() -> None:
            emptied.append(threading.current_thread().name)
            empty_log()

        monkeypatch.setattr(store._slow, "empty_log", noted)
        await store.create(summary(), journal("first"))
        await append_many(store, 299)
        assert 0 < store._slow.log_size() < 500_000
        assert len((await store.read("a")).entries) == 300
    assert len(emptied) >= 2
    assert set(emptied) == {"whyloop-sqlite"}


async def test_a_log_that_another_program_reads_is_emptied_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "_LOG_MILLISECONDS", 1)
    async with SqliteStore(tmp_path / "s.db") as store:
        other = sqlite3.connect(tmp_path / "s.db", isolation_level=None)
        other.execute("BEGIN")
        other.execute("SELECT * FROM sessions").fetchall()
        await store.create(summary(), journal("first"))
        store._slow.empty_log()
        assert store._slow.log_size() > 0
        other.close()
        await store.append("a", journal("second"), after=1)
        store._slow.empty_log()
        assert store._slow.log_size() == 0
        assert (await store.read("a")).entries == ("first", "second")
    store._slow.empty_log()  # A store that was closed meanwhile has emptied it.


async def test_a_store_that_waits_for_the_disk_extends_its_log_ahead(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "s.db", durability="power") as store:
        await store.create(summary(), journal("first"))
        await append_many(store, sqlite.WRITES_PER_LOOK)
        reserved = store._slow.log_size()
        assert reserved > LOG_RESERVE
        await append_many(store, 2 * sqlite.WRITES_PER_LOOK, after=1 + sqlite.WRITES_PER_LOOK)
        assert store._slow.log_size() == reserved, "the writes are within what was reserved"
        assert len((await store.read("a")).entries) == 1 + 3 * sqlite.WRITES_PER_LOOK


async def test_a_log_gets_more_when_its_reserve_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "WRITES_PER_LOOK", 1)
    monkeypatch.setattr(sqlite_file, "LOG_RESERVE", 60_000)
    monkeypatch.setattr(sqlite_file, "_LEAST_RESERVE", 20_000)
    sizes = set()
    async with SqliteStore(tmp_path / "s.db", durability="power") as store:
        await store.create(summary(), journal("first"))
        for number in range(5):
            await append_many(store, 10, after=1 + 10 * number)
            sizes.add(store._slow.log_size())
        assert len(sizes) >= 3
        assert len((await store.read("a")).entries) == 51


async def test_other_stores_keep_their_log_short(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "s.db") as store:
        await store.create(summary(), journal("first"))
        await append_many(store, 2 * sqlite.WRITES_PER_LOOK)
        assert 0 < store._slow.log_size() < LOG_RESERVE


async def test_a_log_that_cannot_be_extended_does_not_matter(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "s.db", durability="power") as store:
        await store.create(summary(), journal("first"))
        assert store._slow._place is not None
        store._slow._place.log = str(tmp_path / "none")
        store._slow.reserve_log()
        assert (await store.read("a")).entries == ("first",)
    store._slow.reserve_log()  # A store that was closed meanwhile.


WRITE = """
import time
from whyloop.stores import sqlite, sqlite_file
from whyloop.testing.store_checks import journal

name, often = arguments
if often == "often":
    sqlite.WRITES_PER_LOOK, sqlite_file.LOG_RESERVE, sqlite_file._LEAST_RESERVE = 1, 40_000, 30_000
    write_zeros = os.pwrite

    def write_late(*arguments):
        time.sleep(0.002)  # So that another process that may write does so.
        return write_zeros(*arguments)

    os.pwrite = write_late

async def main():
    store = SqliteStore(path, durability="power")
    lease = await store.acquire(name, "a process", 3600)
    say("ready")
    wait()
    for version in range(1, 201):
        await store.append(name, journal(f"{name} {version} " + "x" * 500), after=version, lease=lease)
    say("done")
    wait()

asyncio.run(main())
"""


async def test_entries_after_a_reserve_survive_the_death_of_their_process(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    async with SqliteStore(path) as store:
        await store.create(summary(), journal("first"))
    with another_process(WRITE, path, "a", "seldom") as process:
        assert process.hear() == "ready"
        process.tell()
        assert process.hear() == "done"
        process.kill()
    assert (tmp_path / "s.db-wal").stat().st_size > LOG_RESERVE
    async with SqliteStore(path) as store:
        entries = (await store.read("a")).entries
        assert [entry.split()[:2] for entry in entries[1:]] == [["a", str(n)] for n in range(1, 201)]


async def test_processes_that_extend_one_log_overwrite_nothing(tmp_path: Path) -> None:
    path, names = tmp_path / "s.db", ("a", "b", "c")
    async with SqliteStore(path) as store:
        for name in names:
            await store.create(summary(name), journal("first"))
        with ExitStack() as stack:
            others = [stack.enter_context(another_process(WRITE, path, name, "often")) for name in names]
            assert [other.hear() for other in others] == ["ready"] * 3
            for other in others:
                other.tell()
            assert [other.hear() for other in others] == ["done"] * 3
            for other in others:
                other.kill()
        for name in names:
            entries = (await store.read(name)).entries
            assert [entry.split()[:2] for entry in entries[1:]] == [[name, str(n)] for n in range(1, 201)]
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
