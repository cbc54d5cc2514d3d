"""Streaming text goes through a second file, which is written only for followers and may be lost."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import stat
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.stores.processes import another_process
from whyloop.stores import Chunk, SqliteStore, Summary, sqlite_file
from whyloop.values.state import AgentStatus

START = datetime(2026, 1, 1, tzinfo=UTC)


def summary(agent_id: str = "a", status: AgentStatus = AgentStatus.COMPLETED) -> Summary:
    return Summary(agent_id, status, START, START, identity=agent_id)


def chunks(*bodies: str, agent_id: str = "a") -> list[Chunk]:
    return [Chunk(agent_id, body) for body in bodies]


async def until(done: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not done():
            await asyncio.sleep(0.005)


def file_of(folder: Path) -> closing[sqlite3.Connection]:
    return closing(sqlite3.connect(folder / "s.db-chunks", isolation_level=None))


def rows(folder: Path, table: str) -> int:
    with file_of(folder) as db:
        (count,) = db.execute(f"SELECT count(*) FROM {table}").fetchone()
        return int(count)


async def followed(folder: Path) -> None:
    """Wait until a follower is written down."""

    def done() -> bool:
        with suppress(sqlite3.OperationalError):  # The file is being made at this moment.
            return (folder / "s.db-chunks").exists() and rows(folder, "followers") > 0
        return False

    await until(done)


class Time:
    """The time of the machine as far as chunks are concerned, moved by hand."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def time(self) -> float:
        return self.now

    monotonic = time


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    moved_by_hand = Time()
    monkeypatch.setattr(sqlite_file, "time", moved_by_hand)
    return moved_by_hand


# Between processes

SEND = """
async def main():
    store = SqliteStore(path)
    say("ready")
    for number in range(1000):
        await store.send_chunks([Chunk("a", f"{number}"), Chunk("b", "not followed")])
        await asyncio.sleep(0.02)

asyncio.run(main())
"""

FOLLOW = """
async def main():
    store = SqliteStore(path)
    def deliver(chunks):
        say("\\n".join(f"{chunk.agent_id} {chunk.body}" for chunk in chunks))
    async with store.receive_chunks(deliver) as receiver:
        receiver.follow("a")
        say("ready")
        await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_text_of_another_process_arrives(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "s.db") as store:
        got: list[Chunk] = []
        async with store.receive_chunks(got.extend) as receiver:
            receiver.follow("a")
            with another_process(SEND, tmp_path / "s.db"):
                await until(lambda: len(got) >= 10)
        numbers = [int(chunk.body) for chunk in got]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), "each of them, in order"
        assert {chunk.agent_id for chunk in got} == {"a"}


async def test_text_arrives_in_another_process(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "s.db") as store:
        with another_process(FOLLOW, tmp_path / "s.db") as process:
            assert process.hear() == "ready"
            await followed(tmp_path)
            await store.send_chunks([*chunks("1", "2"), *chunks("x", agent_id="b")])
            assert [process.hear(), process.hear()] == ["a 1", "a 2"]
            assert rows(tmp_path, "chunks") == 2, "of a session that is not followed, nothing is written"


def test_a_forked_child_reaches_its_parent(tmp_path: Path) -> None:
    """A server that opens its store and then forks has workers that reach each other."""
    store = SqliteStore(tmp_path / "s.db")
    (from_parent, to_child) = os.pipe()
    child = os.fork()

    async def send() -> None:
        for number in range(200):
            await store.send_chunks(chunks(f"{number}"))
            await asyncio.sleep(0.02)

    async def receive() -> list[Chunk]:
        got: list[Chunk] = []
        async with store.receive_chunks(got.extend) as receiver:
            receiver.follow("a")
            os.write(to_child, b".")
            await until(lambda: got)
        return got

    if child == 0:
        try:
            os.read(from_parent, 1)
            asyncio.run(send())
        finally:
            os._exit(0)
    try:
        assert asyncio.run(receive())
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        asyncio.run(store.close())


# What is written


async def test_without_followers_there_is_no_file(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "s.db") as store:
        await store.create(summary(), [])
        await store.send_chunks(chunks("x"))
        async with store.receive_chunks(lambda _: None):
            await asyncio.sleep(0)
        await store.delete("a")
        assert not list(tmp_path.glob("*-chunks*"))


async def test_own_followers_are_not_written_for(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "s.db") as store:
        async with store.receive_chunks(lambda _: None) as receiver:
            receiver.follow("a")
            await followed(tmp_path)
            await store.send_chunks(chunks("x"))
            assert rows(tmp_path, "chunks") == 0
        assert rows(tmp_path, "followers") == 0, "who leaves is not written down any more"


async def connected(store: SqliteStore, got: Sequence[Chunk]) -> None:
    async with asyncio.timeout(10):
        while not got:
            await store.send_chunks(chunks("hello"))
            await asyncio.sleep(0.01)


async def test_only_its_owner_may_read_the_file(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        async with SqliteStore(tmp_path / "s.db") as store, SqliteStore(tmp_path / "s.db") as other:
            got: list[Chunk] = []
            async with other.receive_chunks(got.extend) as receiver:
                receiver.follow("a")
                await connected(store, got)
                modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.glob("*-chunks*")}
                assert modes == {0o600}
    finally:
        os.umask(before)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s.db", "s.db-chunks"]


async def test_each_call_is_one_transaction_and_nothing_is_synced(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "s.db") as store, SqliteStore(tmp_path / "s.db") as other:
        got: list[Chunk] = []
        async with other.receive_chunks(got.extend) as receiver:
            receiver.follow("a")
            await connected(store, got)
            db, said = store._chunks._file._db, list[str]()
            assert db is not None
            assert db.execute("PRAGMA synchronous").fetchone() == (0,)
            db.set_trace_callback(said.append)
            await store.send_chunks([*chunks("1", "2", "3"), *chunks("x", agent_id="b")])
            db.set_trace_callback(None)
            writes = [statement.split()[0] for statement in said[said.index("BEGIN IMMEDIATE") :]]
            assert [kind for kind in writes if kind != "DELETE"] == ["BEGIN", *["INSERT"] * 3, "COMMIT"]


async def test_old_text_and_dead_followers_are_removed(tmp_path: Path, time: Time) -> None:
    async with SqliteStore(tmp_path / "s.db") as store, SqliteStore(tmp_path / "s.db") as other:
        got: list[Chunk] = []
        async with other.receive_chunks(got.extend) as receiver:
            receiver.follow("a")
            await followed(tmp_path)
            await store.send_chunks(chunks("old"))
            await until(lambda: got)
            with file_of(tmp_path) as db:
                db.execute("INSERT INTO followers VALUES ('dead', 'b', 'dead', ?)", (time.now + 10,))
            await until(lambda: rows(tmp_path, "followers") == 2)
            time.now += 2
            await store.send_chunks(chunks("new"))
            assert rows(tmp_path, "chunks") == 2
            time.now += 9
            await until(lambda: rows(tmp_path, "followers") == 1)
            await store.send_chunks(chunks("newer"))
            assert rows(tmp_path, "chunks") == 2, "the old chunk is gone"


async def test_a_dead_follower_is_not_written_for(tmp_path: Path, time: Time) -> None:
    with another_process(FOLLOW, tmp_path / "s.db") as process:
        assert process.hear() == "ready"
        await followed(tmp_path)
        process.kill()
    with file_of(tmp_path) as db:
        db.execute("UPDATE followers SET until = ?", (time.now + 10,))
    async with SqliteStore(tmp_path / "s.db") as store:
        await store.send_chunks(chunks("1"))
        assert rows(tmp_path, "chunks") == 1, "it may be alive"
        time.now += 11
        await store.send_chunks(chunks("2"))
        assert rows(tmp_path, "chunks") == 1


async def test_a_follower_stays_written_down(tmp_path: Path, time: Time) -> None:
    async with SqliteStore(tmp_path / "s.db") as store, SqliteStore(tmp_path / "s.db") as other:
        got: list[Chunk] = []
        async with other.receive_chunks(got.extend) as receiver:
            receiver.follow("a")
            await connected(store, got)
            for number in range(5):
                time.now += 6
                await until(lambda: until_of(tmp_path) > time.now + 9)
                await store.send_chunks(chunks(f"{number}"))
                await until(lambda number=number: got[-1].body == f"{number}")  # type: ignore[misc]


def until_of(folder: Path) -> float:
    with file_of(folder) as db:
        (until,) = db.execute("SELECT until FROM followers").fetchone()
        return float(until)


async def test_the_text_of_a_deleted_session_is_removed(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "s.db") as store, SqliteStore(tmp_path / "s.db") as other:
        for agent_id in ("a", "b"):
            await store.create(summary(agent_id), [])
        got: list[Chunk] = []
        async with other.receive_chunks(got.extend) as receiver:
            receiver.follow("a")
            receiver.follow("b")
            await connected(store, got)
            await store.send_chunks([*chunks("x"), *chunks("y", agent_id="b")])
            await store.delete("a")
            with file_of(tmp_path) as db:
                assert db.execute("SELECT agent_id, body FROM chunks").fetchall() == [("b", "y")]


# What goes wrong


async def test_a_file_that_was_removed_is_made_again(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "s.db") as store, SqliteStore(tmp_path / "s.db") as other:
        got: list[Chunk] = []
        async with other.receive_chunks(got.extend) as receiver:
            receiver.follow("a")
            await connected(store, got)
            for _ in range(3):
                for path in tmp_path.glob("*-chunks*"):
                    path.unlink()
                got.clear()
                await connected(store, got)


async def test_a_damaged_file_is_replaced_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "s.db-chunks").write_bytes(b"not a database at all\n" * 500)
    async with SqliteStore(tmp_path / "s.db") as store, SqliteStore(tmp_path / "s.db") as other:
        got: list[Chunk] = []
        await store.send_chunks(chunks("lost"))
        await store.send_chunks(chunks("lost"))
        async with other.receive_chunks(got.extend) as receiver:
            receiver.follow("a")
            await connected(store, got)
    warned = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warned) == 1
    assert "s.db-chunks: file is not a database" in warned[0].getMessage()


async def test_a_file_that_cannot_be_used_disturbs_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "s.db-chunks").mkdir()
    async with SqliteStore(tmp_path / "s.db") as store:
        await store.create(summary(), [])
        async with store.receive_chunks(lambda _: None) as receiver:
            receiver.follow("a")
            await until(lambda: caplog.records)
            for _ in range(3):
                await store.send_chunks(chunks("x"))
            await store.delete("a")
    assert len(caplog.records) == 1
    assert "streaming text may not reach other processes" in caplog.records[0].getMessage()


async def test_text_that_cannot_be_written_is_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with SqliteStore(tmp_path / "s.db") as store, SqliteStore(tmp_path / "s.db") as other:
        got: list[Chunk] = []
        async with other.receive_chunks(got.extend) as receiver:
            receiver.follow("a")
            receiver.follow("half \ud800")
            await until(lambda: caplog.records)
            receiver.unfollow("half \ud800")
            await connected(store, got)
            got.clear()
            await store.send_chunks(chunks("half \ud800"))
            await connected(store, got)
            assert {chunk.body for chunk in got} == {"hello"}


async def test_a_busy_file_is_waited_for(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "s.db") as store, SqliteStore(tmp_path / "s.db") as other:
        got: list[Chunk] = []
        async with other.receive_chunks(got.extend) as receiver:
            receiver.follow("a")
            await connected(store, got)
            got.clear()
            with file_of(tmp_path) as db:
                db.execute("BEGIN IMMEDIATE")
                sending = asyncio.create_task(store.send_chunks(chunks("x")))
                await asyncio.sleep(0.005)
                assert not sending.done()
                db.execute("ROLLBACK")
            await sending
            await until(lambda: got)
            assert got == chunks("x")


async def test_a_receiver_of_a_closed_store_rests(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = SqliteStore(tmp_path / "s.db")
    async with store.receive_chunks(lambda _: None) as receiver:
        receiver.follow("a")
        await followed(tmp_path)
        await store.close()
        await store.send_chunks(chunks("x"))
    assert not caplog.records
