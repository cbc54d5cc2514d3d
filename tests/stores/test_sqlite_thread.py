"""Slow work of the store runs in a thread: the event loop continues, and no work is interrupted."""

from __future__ import annotations

import asyncio
import gc
import os
import sqlite3
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from whyloop.errors import ConflictError, StoreUnavailableError
from whyloop.stores import SqliteStore, Summary
from whyloop.stores.sqlite import MANY
from whyloop.stores.sqlite_file import Durability, SqliteFile
from whyloop.testing.store_checks import journal
from whyloop.values.state import AgentStatus

START = datetime(2026, 1, 1, tzinfo=UTC)


def summary(agent_id: str = "a", **fields: Any) -> Summary:
    return Summary(agent_id, AgentStatus.PENDING, START, START, identity=agent_id, **fields)


async def created(path: Path) -> SqliteStore:
    store = SqliteStore(path, durability="power")
    await store.create(summary(), journal("first"))
    return store


class SlowDisk:
    """Holds every write in the thread until it is let go."""

    def __init__(self, file: SqliteFile) -> None:
        self.reached, self.let_go = threading.Event(), threading.Event()
        file.transaction = self._held(file.transaction)  # type: ignore[method-assign]
        file._insert_or = self._held(file._insert_or)  # type: ignore[method-assign]

    def _held(self, write: Callable[..., Any]) -> Callable[..., Any]:
        def held(*arguments: Any) -> Any:
            self.reached.set()
            assert self.let_go.wait(10)
            return write(*arguments)

        return held

    async def is_reached(self) -> None:
        while not self.reached.is_set():
            await asyncio.sleep(0.001)


def writer_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "whyloop-sqlite"]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    for thread in writer_threads():
        thread.join(5)
    assert not writer_threads()


async def test_only_a_store_that_writes_in_its_thread_is_not_inline(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "s.db") as store:
        assert store.inline
    async with SqliteStore(tmp_path / "s.db", durability="power") as store:
        assert not store.inline


async def test_the_event_loop_reads_while_the_disk_writes(tmp_path: Path) -> None:
    async with await created(tmp_path / "s.db") as store:
        lease = await store.acquire("a", "me", 30)
        disk = SlowDisk(store._writes)
        writing = asyncio.create_task(store.append("a", journal("second"), after=1, lease=lease))
        await disk.is_reached()
        assert (await store.read("a")).entries == ("first",)
        assert await store.versions(["a"]) == {"a": ("a", 1)}
        assert not writing.done()
        disk.let_go.set()
        await writing
        assert (await store.read("a")).entries == ("first", "second")


@pytest.mark.parametrize("durability", ["process", "power"])
async def test_the_event_loop_reads_during_a_long_write(tmp_path: Path, durability: Durability) -> None:
    async with SqliteStore(tmp_path / "s.db", durability=durability) as store:
        await store.create(summary(), journal("first"))
        writes = [
            store.create(summary("long"), journal(*map(str, range(MANY + 1)))),
            store.append("a", journal(*map(str, range(MANY + 1))), after=1),
            store.keep_claim("a", b"data"),
            store.delete("a"),
        ]
        for write in writes:
            disk = SlowDisk(store._slow)
            writing = asyncio.create_task(write)
            await disk.is_reached()
            await store.versions(["a"])
            assert not writing.done()
            disk.let_go.set()
            await writing
        assert list(await store.versions(["a", "long"])) == ["long"]


async def test_the_event_loop_reads_while_a_claim_is_read(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "s.db") as store:
        await store.create(summary(), journal("first"))
        key = await store.keep_claim("a", b"data")
        disk = SlowDisk(store._scans)
        reading = asyncio.create_task(store.claim("a", key))
        await disk.is_reached()
        assert (await store.read("a")).entries == ("first",)
        assert not reading.done()
        disk.let_go.set()
        assert await reading == b"data"


@pytest.mark.parametrize("leased", [True, False])
async def test_a_cancelled_append_completes_first(tmp_path: Path, leased: bool) -> None:
    async with await created(tmp_path / "s.db") as store:
        lease = await store.acquire("a", "me", 30) if leased else None
        disk = SlowDisk(store._writes)
        writing = asyncio.create_task(store.append("a", journal("second"), after=1, lease=lease))
        await disk.is_reached()
        for _ in range(3):
            writing.cancel()
            await asyncio.sleep(0.001)
            assert not writing.done(), "it is cut off"
        disk.let_go.set()
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert (await store.read("a")).entries == ("first", "second")
        await store.append("a", journal("third"), after=2, lease=lease)


async def test_a_timeout_lets_an_append_complete(tmp_path: Path) -> None:
    async with await created(tmp_path / "s.db") as store:
        disk = SlowDisk(store._writes)

        async def let_go() -> None:
            await asyncio.sleep(0.05)
            disk.let_go.set()

        letting_go = asyncio.create_task(let_go())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await store.append("a", journal("second"), after=1)
        await letting_go
        assert (await store.read("a")).entries == ("first", "second")


async def test_a_cancelled_append_that_fails_raises_its_error(tmp_path: Path) -> None:
    async with await created(tmp_path / "s.db") as store:
        disk = SlowDisk(store._writes)
        writing = asyncio.create_task(store.append("a", journal("second"), after=7))
        await disk.is_reached()
        writing.cancel()
        disk.let_go.set()
        with pytest.raises(ConflictError):
            await writing
        assert (await store.read("a")).entries == ("first",)


class Held:
    """A store whose file another program holds, and a write that waits for it and is cancelled."""

    def __init__(self, path: Path, durability: Durability) -> None:
        self._sleeping = asyncio.Event()
        self._path = path
        self.store = SqliteStore(path, durability=durability, busy_seconds=0.2, sleep=self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self._sleeping.set()
        await asyncio.sleep(0)

    async def cancel(self, write: Coroutine[Any, Any, object], *, let_go: bool) -> None:
        """Cancel the write while it waits; raise what it raises."""
        other = sqlite3.connect(self._path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        writing = asyncio.create_task(write)
        await self._sleeping.wait()
        writing.cancel()
        if let_go:
            other.close()
        try:
            await writing
        finally:
            other.close()


@pytest.mark.parametrize("leased", [True, False])
@pytest.mark.parametrize("durability", ["process", "power"])
async def test_a_cancelled_append_waits_for_another_process(
    tmp_path: Path, durability: Durability, leased: bool
) -> None:
    held = Held(tmp_path / "s.db", durability)
    async with held.store as store:
        await store.create(summary(), journal("first"))
        lease = await store.acquire("a", "me", 30) if leased else None
        with pytest.raises(asyncio.CancelledError):
            await held.cancel(store.append("a", journal("second"), after=1, lease=lease), let_go=True)
        assert (await store.read("a")).entries == ("first", "second")


@pytest.mark.parametrize("leased", [True, False])
@pytest.mark.parametrize("durability", ["process", "power"])
async def test_a_cancelled_append_that_waits_in_vain_says_so(
    tmp_path: Path, durability: Durability, leased: bool
) -> None:
    held = Held(tmp_path / "s.db", durability)
    async with held.store as store:
        await store.create(summary(), journal("first"))
        lease = await store.acquire("a", "me", 30) if leased else None
        with pytest.raises(StoreUnavailableError, match="was locked for"):
            await held.cancel(store.append("a", journal("second"), after=1, lease=lease), let_go=False)
        assert (await store.read("a")).entries == ("first",)


@pytest.mark.parametrize("let_go", [True, False])
@pytest.mark.parametrize("durability", ["process", "power"])
async def test_a_cancelled_caller_has_no_lease(tmp_path: Path, durability: Durability, let_go: bool) -> None:
    held = Held(tmp_path / "s.db", durability)
    async with held.store as store:
        await store.create(summary(), journal("first"))
        with pytest.raises(asyncio.CancelledError):
            await held.cancel(store.acquire("a", "me", 30), let_go=let_go)
        assert (await store.acquire("a", "another", 30)).token


async def test_a_reader_that_waits_is_cancelled_at_once(tmp_path: Path) -> None:
    waiting = asyncio.Event()

    async def sleep(seconds: float) -> None:
        waiting.set()
        await asyncio.Event().wait()

    async with SqliteStore(tmp_path / "s.db", sleep=sleep) as store:
        await store.create(summary(), journal("first"))

        def busy(begin: str, work: object) -> None:
            raise busy_error(tmp_path / "other.db")

        store._reads.transaction = busy  # type: ignore[method-assign, assignment]
        reading = asyncio.create_task(store.read("a"))
        await waiting.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading


def busy_error(path: Path) -> sqlite3.Error:
    """Return the error of SQLite for a file that another connection has locked."""
    holder, other = (sqlite3.connect(path, timeout=0, isolation_level=None) for _ in range(2))
    holder.execute("BEGIN EXCLUSIVE")
    try:
        other.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        return error
    finally:
        holder.close()
        other.close()
    raise AssertionError("it was not locked")


async def test_errors_of_the_thread_reach_the_caller(tmp_path: Path) -> None:
    async with await created(tmp_path / "s.db") as store:
        with pytest.raises(ConflictError):
            await store.append("a", journal("x"), after=7)
        connection = store._writes._db
        assert connection is not None
        connection.execute("PRAGMA max_page_count = 1")
        with pytest.raises(StoreUnavailableError, match="the disk is full"):
            await store.append("a", journal("x" * 1_000_000), after=1)
        assert (await store.read("a")).entries == ("first",)


async def test_all_writes_share_one_thread(tmp_path: Path) -> None:
    async with await created(tmp_path / "s.db") as store:
        names = [f"{number}" for number in range(20)]

        async def run(name: str) -> None:
            await store.create(summary(name), journal("0"))
            lease = await store.acquire(name, "me", 30)
            for version in range(1, 6):
                await store.append(name, journal(f"{version}"), after=version, lease=lease)

        await asyncio.gather(*map(run, names))
        assert len(writer_threads()) == 1
        for name in names:
            assert (await store.read(name)).entries == ("0", "1", "2", "3", "4", "5")


def test_several_event_loops_share_a_store(tmp_path: Path) -> None:
    store = asyncio.run(created(tmp_path / "s.db"))

    async def write(name: str) -> None:
        for number in range(10):
            while True:
                version = (await store.read("a")).summary.version
                with suppress(ConflictError):
                    await store.append("a", journal(f"{name}{number}"), after=version)
                    break

    threads = [threading.Thread(target=lambda name=name: asyncio.run(write(name))) for name in "xyz"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    entries = asyncio.run(store.read("a")).entries
    asyncio.run(store.close())
    written = [f"{name}{number}" for name in "xyz" for number in range(10)]
    assert sorted(entries) == ["first", *written]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_writes_in_its_own_thread(tmp_path: Path) -> None:
    store = asyncio.run(created(tmp_path / "s.db"))
    child = os.fork()
    if child == 0:
        failed = 1
        try:
            asyncio.run(store.append("a", journal("child"), after=1))
            asyncio.run(store.close())
            failed = 0
        finally:
            os._exit(failed)
    assert os.waitpid(child, 0)[1] == 0
    asyncio.run(store.append("a", journal("parent"), after=2))
    entries = asyncio.run(store.read("a")).entries
    asyncio.run(store.close())
    assert entries == ("first", "child", "parent")


async def test_the_thread_ends_with_a_store_that_is_garbage(tmp_path: Path) -> None:
    store = await created(tmp_path / "s.db")
    assert len(writer_threads()) == 1
    del store
    gc.collect()
    for thread in writer_threads():
        thread.join(5)
    assert not writer_threads()
