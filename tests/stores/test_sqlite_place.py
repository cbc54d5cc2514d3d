"""A file that is deleted, moved or replaced under a store: the next use of it says so."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support import scripted
from whyloop import Session, tool
from whyloop.errors import StoreError
from whyloop.stores import SessionFilter, SqliteStore, Summary
from whyloop.stores.sqlite import MANY
from whyloop.stores.sqlite_file import Durability
from whyloop.testing import call
from whyloop.testing.store_checks import journal
from whyloop.values.state import AgentStatus

START = datetime(2026, 1, 1, tzinfo=UTC)
EVERYWHERE = pytest.mark.parametrize("durability", ["process", "power"])


def summary(agent_id: str = "a") -> Summary:
    return Summary(agent_id, AgentStatus.PENDING, START, START, title="a title")


def delete(path: Path) -> None:
    path.unlink()


def delete_all(path: Path) -> None:
    for each in path.parent.glob(f"{path.name}*"):
        each.unlink()


def delete_folder(path: Path) -> None:
    shutil.rmtree(path.parent)


def move(path: Path) -> None:
    path.rename(path.with_name("moved.db"))


def replace(path: Path) -> None:
    """Replace the file as a restore from a backup does."""
    restored = path.with_name("restored.db")
    shutil.copy(path, restored)
    os.replace(restored, path)


CHANGES: dict[Callable[[Path], None], str] = {
    delete: r"s\.db was deleted or moved while this store had it open.*restore a backup",
    delete_all: r"s\.db was deleted or moved",
    delete_folder: r"s\.db was deleted or moved",
    move: r"If it was moved, move it back; its latest changes are in s\.db-wal",
    replace: r"s\.db was replaced by another file.*delete s\.db-wal and s\.db-shm",
}
CHANGED = pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    return folder / "s.db"


@CHANGED
@EVERYWHERE
async def test_each_use_of_a_file_that_is_gone_says_so(
    path: Path, durability: Durability, change: Callable[[Path], None]
) -> None:
    async with SqliteStore(path, durability=durability) as store:
        await store.create(summary(), journal("first"))
        lease = await store.acquire("a", "me", 30)
        await store.append("a", journal("second"), after=1, lease=lease)
        change(path)
        left = {each.name for each in path.parent.iterdir()} if path.parent.exists() else None
        for use in (
            store.append("a", journal("third"), after=2, lease=lease),
            store.append("a", journal("third"), after=2, lease=lease, summary=summary()),
            store.append("a", journal(*map(str, range(MANY + 1))), after=2, lease=lease),
            store.create(summary("b"), journal("first")),
            store.renew(lease),
            store.keep_claim("a", b"data"),
            store.read("a"),
            store.find(SessionFilter(), limit=5, after=None),
            store.tally(SessionFilter(), since=START),
        ):
            with pytest.raises(StoreError, match=CHANGES[change]):
                await use
        if left is not None:
            assert {each.name for each in path.parent.iterdir()} == left, "no new file took its place"


@CHANGED
async def test_a_run_ends_at_its_next_step_when_its_file_is_gone(
    path: Path, change: Callable[[Path], None]
) -> None:
    steps = []

    @tool
    async def work() -> str:
        steps.append("a step")
        if len(steps) == 2:
            change(path)
        return "worked"

    async with SqliteStore(path) as store:
        session = await Session.open(store, scripted(*[call("work")] * 9, tools=[work]))
        with pytest.raises(StoreError, match=CHANGES[change]):
            await session.send("go")
        assert len(steps) == 2
        assert session.state.step_count == 1, "the second step is not recorded"


@pytest.mark.parametrize("suffix", ["-wal", "-shm"])
@EVERYWHERE
async def test_a_log_that_is_deleted_is_an_error_and_its_changes_are_saved(
    path: Path, durability: Durability, suffix: str
) -> None:
    async with SqliteStore(path, durability=durability) as store:
        await store.create(summary(), journal("first"))
        lease = await store.acquire("a", "me", 30)
        await store.append("a", journal("second"), after=1, lease=lease)
        os.unlink(f"{path}{suffix}")
        for use in (
            store.renew(lease),  # As a heartbeat does.
            store.append("a", journal("third"), after=2, lease=lease),
            store.append("a", journal("third"), after=2, lease=lease, summary=summary()),
            store.read("a"),
        ):
            with pytest.raises(StoreError, match=rf"s\.db{suffix} was deleted.*the last one to end saves"):
                await use
    async with SqliteStore(path) as again:
        assert (await again.read("a")).entries == ("first", "second")


async def test_a_file_that_is_moved_back_continues(path: Path) -> None:
    async with SqliteStore(path) as store:
        await store.create(summary(), journal("first"))
        move(path)
        with pytest.raises(StoreError, match="move it back"):
            await store.append("a", journal("second"), after=1)
        path.with_name("moved.db").rename(path)
        await store.append("a", journal("second"), after=1)
    async with SqliteStore(path) as again:
        assert (await again.read("a")).entries == ("first", "second")


async def test_a_link_that_leads_elsewhere_is_a_replaced_file(path: Path) -> None:
    for name in ("one", "two"):
        async with SqliteStore(path.with_name(name)):
            pass
    path.symlink_to("one")
    async with SqliteStore(path) as store:
        await store.create(summary(), journal("first"))
        path.unlink()
        path.symlink_to("two")
        with pytest.raises(StoreError, match="was replaced by another file"):
            await store.append("a", journal("second"), after=1)


async def test_the_log_behind_a_link_is_the_one_that_is_looked_at(path: Path) -> None:
    elsewhere = path.parent / "elsewhere"
    elsewhere.mkdir()
    path.symlink_to(elsewhere / "real.db")
    async with SqliteStore(path) as store:
        await store.create(summary(), journal("first"))
        assert store._slow.log_size() > 0
        os.unlink(elsewhere / "real.db-wal")
        with pytest.raises(StoreError, match=r"real\.db-wal was deleted"):
            await store.append("a", journal("second"), after=1)


async def test_a_connection_that_is_opened_later_does_not_create_the_file_again(path: Path) -> None:
    store = SqliteStore(path)
    await store.create(summary(), journal("first"))
    store._reads.disconnect()  # As before a fork.
    delete_all(path)
    with pytest.raises(StoreError, match="was deleted or moved"):
        await store.read("a")
    await store.close()
    assert not path.exists()


async def test_a_file_that_may_not_be_looked_at_any_more_is_still_used(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat = os.stat

    def refused(each: Any, **options: Any) -> os.stat_result:
        if str(each).startswith(str(path)):
            raise PermissionError(each)
        return stat(each, **options)

    async with SqliteStore(path) as store:
        await store.create(summary(), journal("first"))
        monkeypatch.setattr(os, "stat", refused)
        await store.append("a", journal("second"), after=1)
        assert (await store.read("a")).entries == ("first", "second")
