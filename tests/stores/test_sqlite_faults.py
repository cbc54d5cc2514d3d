"""Faults of a file and their errors: nothing is lost, and nothing false is read."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest

from whyloop.errors import SessionNotFoundError, StoreError, StoreUnavailableError
from whyloop.stores import Checkpoint, Entry, SessionFilter, SqliteStore, Summary
from whyloop.stores.sqlite_file import Durability
from whyloop.testing.store_checks import journal
from whyloop.values.state import AgentStatus

START = datetime(2026, 1, 1, tzinfo=UTC)
PAGE = 4096
NOBODY = 65534


def summary(agent_id: str = "a", **metadata: object) -> Summary:
    return Summary(agent_id, AgentStatus.PENDING, START, START, title="a title", metadata=metadata)


def connection_of(store: SqliteStore) -> sqlite3.Connection:
    connection = store._writes._db
    assert connection is not None
    return connection


class Sleeps(list[float]):
    """Waiting that takes no time; at the third time, whatever was in the way goes away."""

    def __init__(self, blocker: sqlite3.Connection | None = None) -> None:
        self.blocker = blocker

    async def __call__(self, seconds: float) -> None:
        self.append(seconds)
        if self.blocker is not None and len(self) == 3:
            self.blocker.execute("ROLLBACK")


@contextmanager
def another_connection(path: Path, statement: str) -> Iterator[sqlite3.Connection]:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute(statement)
    yield other
    other.close()


# Locked


async def test_a_writer_waits_for_another_one(tmp_path: Path) -> None:
    sleeps = Sleeps()
    async with SqliteStore(tmp_path / "s.db", sleep=sleeps) as store:
        await store.create(summary(), [])
        with another_connection(tmp_path / "s.db", "BEGIN IMMEDIATE") as sleeps.blocker:
            await store.append("a", journal("x"), after=0)
        assert (await store.read("a")).entries == ("x",)
    assert len(sleeps) == 3
    assert sleeps == sorted(sleeps), "the waits grow"


async def test_readers_do_not_wait_for_a_writer(tmp_path: Path) -> None:
    sleeps = Sleeps()
    async with SqliteStore(tmp_path / "s.db", sleep=sleeps) as store:
        await store.create(summary(), journal("x"))
        with another_connection(tmp_path / "s.db", "BEGIN IMMEDIATE"):
            assert (await store.read("a")).entries == ("x",)
            assert len((await store.find(SessionFilter(), limit=5, after=None)).sessions) == 1
    assert not sleeps


async def test_a_writer_gives_up_on_a_file_that_stays_locked(tmp_path: Path) -> None:
    sleeps = Sleeps()
    async with SqliteStore(tmp_path / "s.db", sleep=sleeps, busy_seconds=2) as store:
        await store.create(summary(), [])
        with another_connection(tmp_path / "s.db", "BEGIN IMMEDIATE"):
            with pytest.raises(StoreUnavailableError, match=r"s\.db: .* was locked for 2 s.*Another"):
                await store.append("a", journal("x"), after=0)
            assert 2 <= sum(sleeps) < 2.1
            assert max(sleeps) <= 0.05, "so that a lock that ends is noticed soon"
        await store.append("a", journal("y"), after=0)
        assert (await store.read("a")).entries == ("y",)


async def test_other_work_continues_while_a_writer_waits(tmp_path: Path) -> None:
    sleeping, go_on = asyncio.Event(), asyncio.Event()

    async def sleep(seconds: float) -> None:
        sleeping.set()
        await go_on.wait()

    async with SqliteStore(tmp_path / "s.db", sleep=sleep) as store:
        await store.create(summary(), journal("x"))
        with another_connection(tmp_path / "s.db", "BEGIN IMMEDIATE") as blocker:
            waiting = asyncio.create_task(store.append("a", journal("y"), after=1))
            await sleeping.wait()
            assert (await store.read("a")).entries == ("x",)
            blocker.execute("ROLLBACK")
            go_on.set()
            await waiting
        assert (await store.read("a")).entries == ("x", "y")


async def test_a_store_waits_for_a_file_that_another_process_creates(tmp_path: Path) -> None:
    sleeps = Sleeps()
    with another_connection(tmp_path / "s.db", "BEGIN EXCLUSIVE") as sleeps.blocker:
        async with SqliteStore(tmp_path / "s.db", sleep=sleeps) as store:
            await store.create(summary(), journal("x"))
    assert len(sleeps) == 3


# Full, failing, or not to be written to


def mounts_work() -> bool:
    with tempfile.TemporaryDirectory() as folder, suppress(OSError, subprocess.CalledProcessError):
        for command in (["mount", "-t", "tmpfs", "none", folder], ["umount", folder]):
            subprocess.run(command, check=True, capture_output=True)
        return True
    return False


@contextmanager
def a_small_disk(folder: Path) -> Iterator[None]:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "none", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@contextmanager
def a_disk(folder: Path) -> Iterator[None]:
    yield


DISKS = [a_disk, *([a_small_disk] if os.geteuid() == 0 and mounts_work() else [])]


async def fill(store: SqliteStore) -> int:
    """How many entries could be written."""
    for written in range(1000):
        try:
            await store.append("a", journal("x" * 5000), after=written)
        except StoreUnavailableError:
            return written
    raise AssertionError("the disk is never full")


@pytest.mark.parametrize("disk", DISKS)
async def test_a_full_disk_loses_nothing_and_writes_again_with_more_room(
    tmp_path: Path, disk: object
) -> None:
    assert callable(disk)
    with disk(tmp_path):
        async with SqliteStore(tmp_path / "s.db") as store:
            await store.create(summary(), [])
            if disk is a_disk:
                connection_of(store).execute("PRAGMA max_page_count = 100")
            written = await fill(store)
            assert written > 5
            with pytest.raises(StoreUnavailableError, match=r"the disk is full.*free some space"):
                await store.append("a", journal("x" * 5000), after=written)
            with pytest.raises(StoreUnavailableError, match="the disk is full"):
                await store.append("a", journal("x" * 1_000_000) * 3, after=written)
            assert (await store.read("a")).entries == ("x" * 5000,) * written
            if disk is a_disk:
                connection_of(store).execute("PRAGMA max_page_count = 100000")
            else:
                subprocess.run(["mount", "-o", "remount,size=16m", tmp_path], check=True)
            await store.append("a", journal("after all"), after=written)
            assert (await store.read("a", after=written)).entries == ("after all",)


async def test_a_failing_disk_loses_nothing(tmp_path: Path) -> None:
    """No file may grow any more: for SQLite this is an error of the disk."""
    async with SqliteStore(tmp_path / "s.db") as store:
        await store.create(summary(), journal("x"))
        allowed = resource.getrlimit(resource.RLIMIT_FSIZE)
        size = (tmp_path / "s.db-wal").stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, allowed[1]))
        try:
            with pytest.raises(StoreUnavailableError, match="the disk failed to read or write"):
                await store.append("a", journal("y"), after=1)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, allowed)
        assert (await store.read("a")).entries == ("x",)
        await store.append("a", journal("z"), after=1)
    async with SqliteStore(tmp_path / "s.db") as store:
        assert (await store.read("a")).entries == ("x", "z")


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that everybody may enter."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


@contextmanager
def as_anybody() -> Iterator[None]:
    """Somebody whom permissions bind, which they do not do for root."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(before)


async def test_a_file_that_may_only_be_read_is_read(shared: Path) -> None:
    async with SqliteStore(shared / "s.db") as store:
        await store.create(summary(), journal("x"))
        for path in shared.iterdir():
            path.chmod(0o444)
        shared.chmod(0o555)
        with as_anybody():
            reader = SqliteStore(shared / "s.db")
            assert (await reader.read("a")).entries == ("x",)
            with pytest.raises(StoreUnavailableError, match=r"cannot be written to: check their owner"):
                await reader.append("a", journal("y"), after=1)
            assert (await reader.read("a")).entries == ("x",)
            await reader.close()
        assert (await store.read("a")).entries == ("x",)


async def test_a_folder_without_write_permission_is_an_error(shared: Path) -> None:
    shared.chmod(0o555)
    with as_anybody(), pytest.raises(StoreUnavailableError, match=r"cannot be opened: check .* permissions"):
        SqliteStore(shared / "s.db")
    assert not list(shared.iterdir())


async def test_a_file_without_read_permission_is_an_error(shared: Path) -> None:
    await SqliteStore(shared / "s.db").close()
    (shared / "s.db").chmod(0o000)
    with as_anybody(), pytest.raises(StoreUnavailableError, match=r"cannot be opened: check .* permissions"):
        SqliteStore(shared / "s.db")


# Damaged


@pytest.mark.parametrize("content", [b"no database at all\n" * 500, b"\x00" * 5000, b"short"])
def test_a_file_that_is_not_a_database_is_refused_and_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "s.db").write_bytes(content)
    with pytest.raises(StoreError, match="not a SQLite database: choose another file"):
        SqliteStore(tmp_path / "s.db")
    assert (tmp_path / "s.db").read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == ["s.db"]


JOURNALS = {
    f"session {number}": tuple(f"entry {number}.{seq} " + "x" * (100 * seq) for seq in range(12))
    for number in range(8)
}


async def stored_journals(path: Path) -> bytes:
    async with SqliteStore(path) as store:
        for agent_id, entries in JOURNALS.items():
            await store.create(summary(agent_id, k=agent_id), [])
            for version, entry in enumerate(entries):
                await store.append(agent_id, journal(entry), after=version)
    return path.read_bytes()


async def readable_in(path: Path) -> int:
    """How many sessions can be read: what is read is what was stored, and all else is an error in words."""
    readable = 0
    try:
        store = SqliteStore(path)
    except StoreError:
        return 0
    for agent_id, entries in JOURNALS.items():
        # A row that SQLite does not find in a damaged file is not there, as far as anybody can tell.
        with suppress(StoreError):
            stored = await store.read(agent_id)
            assert stored.entries == entries[: stored.summary.version]
            assert stored.summary == Summary(
                agent_id,
                AgentStatus.PENDING,
                START,
                START,
                title="a title",
                metadata={"k": agent_id},
                version=stored.summary.version,
            )
            readable += stored.entries == entries
    with suppress(StoreError):
        for found in (await store.find(SessionFilter(), limit=100, after=None)).sessions:
            assert found.agent_id in JOURNALS
            assert found.metadata == {"k": found.agent_id}
    await store.close()
    return readable


@pytest.mark.parametrize("seed", range(3))
async def test_no_page_can_be_damaged_so_that_something_else_is_read(tmp_path: Path, seed: int) -> None:
    path, random = tmp_path / "s.db", Random(seed)
    whole = await stored_journals(path)
    assert await readable_in(path) == len(JOURNALS)
    readable = []
    for page in range(len(whole) // PAGE):
        damaged = bytearray(whole)
        at, length = page * PAGE + random.randrange(PAGE - 200), random.randrange(1, 200)
        damaged[at : at + length] = random.choice([random.randbytes(length), b"\x00" * length, b"a" * length])
        path.write_bytes(damaged)
        readable.append(await readable_in(path))
    assert min(readable) < len(JOURNALS), "some damage was noticed"
    assert len([count for count in readable if 0 < count < len(JOURNALS)]) > 5, "and others stayed readable"


async def test_a_damaged_entry_is_named(tmp_path: Path) -> None:
    whole = await stored_journals(tmp_path / "s.db")
    assert whole.count(b"entry 3.7") == 1
    (tmp_path / "s.db").write_bytes(whole.replace(b"entry 3.7", b"entry 3.8"))
    async with SqliteStore(tmp_path / "s.db") as store:
        with pytest.raises(
            StoreError, match=r"s\.db is damaged: in session 'session 3', entry 8 is not.*backup"
        ):
            await store.read("session 3")
        assert len((await store.read("session 3", after=8)).entries) == 4
        assert (await store.read("session 4")).entries == JOURNALS["session 4"]


@pytest.mark.parametrize("change", ["state = '{}'", "state = x'00'", "seq = 7", "execution_id = 'y'"])
async def test_a_damaged_checkpoint_is_named_and_the_session_stays_readable(
    tmp_path: Path, change: str
) -> None:
    damaged = r"s\.db is damaged: in session 'a', the checkpoint of entry 2 is not what was stored.*backup"
    async with SqliteStore(tmp_path / "s.db") as store:
        for agent_id in ("a", "b"):
            entries = [Entry(f"{n}", Checkpoint("x", n, n, n, f'{{"n":{n}}}')) for n in range(3)]
            await store.create(summary(agent_id), entries)
        damage = f"UPDATE checkpoints SET {change} WHERE place = (1 << 32) + 2"
        with another_connection(tmp_path / "s.db", damage):
            pass
        with pytest.raises(StoreError, match=damaged):
            await store.checkpoint("a", step_count=1)
        assert (await store.checkpoint("a")) == (2, entries[2].checkpoint)
        assert (await store.checkpoint("b", step_count=1)) == (1, entries[1].checkpoint)
        assert (await store.read("a")).entries == ("0", "1", "2")
        await store.append("a", journal("y"), after=3)
        await store.delete("a")


@pytest.mark.parametrize("change", ["x'00'", "'text'", "x''", "1"])
async def test_a_damaged_claim_is_named(tmp_path: Path, change: str) -> None:
    async with SqliteStore(tmp_path / "s.db") as store:
        await store.create(summary("a"), journal("x"))
        key, other = await store.keep_claim("a", b"data"), await store.keep_claim("a", b"other")
        connection_of(store).execute(f"UPDATE claims SET data = {change} WHERE key = ?", (key,))
        with pytest.raises(StoreError, match=f"claim {key} of session 'a' is not what was stored: restore"):
            await store.claim("a", key)
        assert await store.claim("a", other) == b"other"


async def test_a_damaged_summary_is_named(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "s.db") as store:
        await store.create(summary("a"), journal("x"))
        await store.create(summary("b"), journal("x"))
        connection_of(store).execute(
            "UPDATE summaries SET summary = replace(summary, 'a title', 'another') WHERE session = 1"
        )
        with pytest.raises(
            StoreError, match="is damaged: in session 'a', its summary is not what was stored"
        ):
            await store.read("a")
        assert (await store.read("b")).entries == ("x",)


async def test_a_session_whose_listing_is_damaged_is_not_changed(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "s.db") as store:
        await store.create(summary("a"), journal("x"))
        connection_of(store).execute("UPDATE summaries SET labels = '['")
        with pytest.raises(StoreError, match="is damaged"):
            await store.append("a", journal("y"), after=1, summary=summary("a"))
        assert connection_of(store).execute("SELECT count(*) FROM entries").fetchone() == (1,)


async def test_a_truncated_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    whole = await stored_journals(path)
    for kept in (50, PAGE, PAGE + 100, len(whole) // 2, len(whole) - PAGE):
        path.write_bytes(whole[:kept])
        assert await readable_in(path) < len(JOURNALS), kept


async def read_all(path: Path) -> None:
    async with SqliteStore(path) as store:
        for agent_id in JOURNALS:
            await store.read(agent_id)


async def test_the_error_for_damage_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    whole = await stored_journals(path)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(StoreError, match=r"is damaged: .*malformed.*backup"):
        await read_all(path)


# After a failure


async def test_a_failure_in_the_middle_leaves_nothing_behind(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "s.db") as store:
        await store.create(summary(), journal("x"))
        lease = await store.acquire("a", "me", 30)
        for broken in ("\ud800", "y\udfff"):
            with pytest.raises(StoreError, match="not Unicode"):
                await store.append("a", journal(broken), after=1, lease=lease)
        await store.release(lease)
        for broken in ("\ud800", "y\udfff"):
            with pytest.raises(StoreError, match="not Unicode"):
                await store.append("a", journal("fine", broken), after=1)
            with pytest.raises(StoreError, match="not Unicode"):
                await store.create(summary(broken), [])
        assert not connection_of(store).in_transaction
        assert (await store.read("a")).entries == ("x",)
        with pytest.raises(SessionNotFoundError):
            await store.read("b")


async def test_a_connection_that_cannot_go_back_is_replaced(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "s.db") as store:
        await store.create(summary(), journal("x"))
        with another_connection(tmp_path / "s.db", "SELECT name FROM migrations"):  # It keeps the log.
            connection_of(store).close()
            with pytest.raises(StoreError, match="closed database"):
                await store.append("a", journal("y"), after=1)
            await store.append("a", journal("z"), after=1)
        assert (await store.read("a")).entries == ("x", "z")


@pytest.mark.parametrize("durability", ["process", "power"])
async def test_a_closed_store_raises(tmp_path: Path, durability: Durability) -> None:
    store = SqliteStore(tmp_path / "s.db", durability=durability)
    await store.create(summary(), [])
    await store.close()
    await store.close()
    for attempt in (store.read("a"), store.append("a", journal("x"), after=0), store.delete("a")):
        with pytest.raises(StoreError, match=r"has been closed: open a new one"):
            await attempt
