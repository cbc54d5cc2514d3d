"""A runner whose process has died is known as dead at once, by a lock that the system releases."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import gc
import os
import signal
import stat
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.stores.processes import another_process
from whyloop.errors import LeaseLostError, SessionRunningError
from whyloop.stores import Lease, SqliteStore, Summary, sqlite_file
from whyloop.testing import FakeClock
from whyloop.testing.store_checks import journal
from whyloop.values.state import AgentStatus

START = datetime(2026, 1, 1, tzinfo=UTC)

RUN = """
async def main():
    store = SqliteStore(path)
    lease = await store.acquire("a", "the other process", 3600)
    say("running")
    wait()
    if arguments == ["close"]:
        await store.close()
        say("closed")
        wait()

asyncio.run(main())
"""


def summary(agent_id: str = "a") -> Summary:
    return Summary(agent_id, AgentStatus.IN_PROGRESS, START, START, identity=agent_id)


async def created(path: Path) -> SqliteStore:
    store = SqliteStore(path)
    await store.create(summary(), journal("x"))
    return store


def runner_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*-runner-*"))


async def test_a_killed_runner_is_dead_at_once(tmp_path: Path) -> None:
    async with await created(tmp_path / "s.db") as store:
        with another_process(RUN, tmp_path / "s.db") as process:
            assert process.hear() == "running"
            assert (await store.read("a")).summary.runner == "the other process"
            assert await store.unattended() == ()
            (file,) = runner_files(tmp_path)
            with pytest.raises(SessionRunningError, match="the other process"):
                await store.acquire("a", "me", 30)
            process.kill()
            assert file.exists()
        assert (await store.read("a")).summary.runner is None
        assert not file.exists(), "the file of the dead runner is removed"
        assert [found.agent_id for found in await store.unattended()] == ["a"]
        assert await store.ask_to_stop("a", "enough") is False
        lease = await store.acquire("a", "me", 30)
        await store.append("a", journal("y"), after=1, lease=lease)


RUN_FOR_AN_ENGINE = """
async def main():
    store = SqliteStore(path)
    lease = await store.acquire("a", "the workflow", 3600, durable=True)
    await store.renew(lease)
    say(lease.token)
    wait()

asyncio.run(main())
"""


async def test_a_durable_lease_outlives_a_killed_process(tmp_path: Path) -> None:
    async with await created(tmp_path / "s.db") as store:
        with another_process(RUN_FOR_AN_ENGINE, tmp_path / "s.db") as process:
            lease = Lease("a", "the workflow", int(process.hear()), 3600, durable=True)
            process.kill()
        assert (await store.read("a")).summary.runner == "the workflow"
        await store.append("a", journal("y"), after=1, lease=lease)
        await store.renew(lease)
        assert runner_files(tmp_path) == [], "no runner was needed"
        with pytest.raises(SessionRunningError, match="the workflow"):
            await store.acquire("a", "me", 30)
        await store.acquire("a", "the workflow", 3600, durable=True)
        with pytest.raises(LeaseLostError):
            await store.append("a", journal("z"), after=2, lease=lease)


async def test_where_files_cannot_be_locked_a_lease_of_a_runner_is_not_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await created(tmp_path / "s.db") as store:
        monkeypatch.setattr(store._runner, "name", lambda: None)
        await store.acquire("a", "the workflow", 3600)
        with pytest.raises(SessionRunningError, match="the workflow"):
            await store.acquire("a", "the workflow", 3600, durable=True)


@pytest.mark.parametrize("way", ["end", "close"])
async def test_a_runner_that_ends_without_giving_its_lease_back_is_dead(tmp_path: Path, way: str) -> None:
    async with await created(tmp_path / "s.db") as store:
        with another_process(RUN, tmp_path / "s.db", way) as process:
            assert process.hear() == "running"
            process.tell()
            if way == "close":
                assert process.hear() == "closed"
            else:
                assert process.end() == 0
            assert runner_files(tmp_path) == []
            assert (await store.acquire("a", "me", 30)).owner == "me"


TAKE_OVER = """
async def main():
    store = SqliteStore(path)
    say("ready")
    wait()
    try:
        await store.acquire("a", "a new runner", 3600)
        say("got it")
    except SessionRunningError as error:
        say(f"refused: {error.owner}")
    wait()

asyncio.run(main())
"""


async def test_of_processes_that_find_a_runner_dead_at_once_one_runs_the_session(tmp_path: Path) -> None:
    async with await created(tmp_path / "s.db") as store, asyncio.timeout(60):
        for _ in range(3):
            with ExitStack() as stack:
                dead = stack.enter_context(another_process(RUN, tmp_path / "s.db"))
                assert dead.hear() == "running"
                others = [
                    stack.enter_context(another_process(TAKE_OVER, tmp_path / "s.db")) for _ in range(4)
                ]
                assert [other.hear() for other in others] == ["ready"] * 4
                dead.kill()
                for other in others:
                    other.tell()
                said = sorted(other.hear() for other in others)
                assert said == ["got it", *["refused: a new runner"] * 3]
                assert (await store.read("a")).summary.runner == "a new runner"
                for other in others:
                    other.kill()


FORK = """
async def main():
    store = SqliteStore(path)
    await store.acquire("a", "the parent", 3600)
    return store

store = asyncio.run(main())
child = os.fork()
if child == 0:
    if arguments == ["acquire"]:
        asyncio.run(store.acquire("b", "the child", 3600))
    say("forked")
    wait()
    os._exit(0)
say(child)
wait()
"""


async def test_a_child_does_not_keep_its_dead_parent_alive(tmp_path: Path) -> None:
    async with await created(tmp_path / "s.db") as store:
        with another_process(FORK, tmp_path / "s.db") as parent:
            child = sorted([parent.hear(), parent.hear()])[0]
            with pytest.raises(SessionRunningError):
                await store.acquire("a", "me", 30)
            parent.kill()
            os.kill(int(child), 0)  # The child is alive.
            assert (await store.acquire("a", "me", 30)).owner == "me"
            os.kill(int(child), signal.SIGKILL)


async def test_a_child_has_its_own_lock(tmp_path: Path) -> None:
    async with await created(tmp_path / "s.db") as store:
        await store.create(summary("b"), [])
        with another_process(FORK, tmp_path / "s.db", "acquire") as parent:
            child = sorted([parent.hear(), parent.hear()])[0]
            parent.kill()
            assert (await store.read("a")).summary.runner is None
            assert (await store.read("b")).summary.runner == "the child"
            os.kill(int(child), signal.SIGKILL)
            while (await store.read("b")).summary.runner is not None:
                await asyncio.sleep(0.01)  # It is no child of this test, so its end cannot be awaited.


SPAWN = """
import subprocess

async def main():
    store = SqliteStore(path)
    await store.acquire("a", "the parent", 3600)
    # It waits for nothing that ends with its parent, such as a pipe.
    program = "import signal; print('started', flush=True); signal.pause()"
    child = subprocess.Popen([sys.executable, "-c", program], close_fds=False, stdout=subprocess.PIPE)
    # A program that has begun has closed the files of its parent; just after the fork it may not have.
    child.stdout.readline()
    say(child.pid)
    wait()

asyncio.run(main())
"""


async def test_a_program_that_a_runner_started_does_not_keep_it_alive(tmp_path: Path) -> None:
    async with await created(tmp_path / "s.db") as store:
        with another_process(SPAWN, tmp_path / "s.db") as parent:
            program = int(parent.hear())
            try:
                parent.kill()
                assert (await store.acquire("a", "me", 30)).owner == "me"
            finally:
                os.kill(program, signal.SIGKILL)  # An error if it has ended by itself.


def test_a_forked_child_leaves_the_parent_alive(tmp_path: Path) -> None:
    store = asyncio.run(created(tmp_path / "s.db"))
    asyncio.run(store.acquire("a", "the parent", 3600))
    child = os.fork()
    if child == 0:
        refused = 1
        try:
            asyncio.run(store.acquire("a", "the child", 30))
        except SessionRunningError:
            asyncio.run(store.close())
            refused = 0
        finally:
            os._exit(refused)
    assert os.waitpid(child, 0)[1] == 0
    other = SqliteStore(tmp_path / "s.db")
    with pytest.raises(SessionRunningError, match="the parent"):
        asyncio.run(other.acquire("a", "me", 30))
    asyncio.run(store.close())
    assert asyncio.run(other.acquire("a", "me", 30)).owner == "me"
    asyncio.run(other.close())


# The file of a runner


async def test_only_a_store_that_runs_sessions_has_a_file(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        async with await created(tmp_path / "s.db") as store:
            assert runner_files(tmp_path) == []
            lease = await store.acquire("a", "me", 30)
            await store.renew(lease)
            (file,) = runner_files(tmp_path)
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            await store.release(lease)
            await store.acquire("a", "me", 30)
            assert runner_files(tmp_path) == [file], "one for all leases"
    finally:
        os.umask(before)
    assert [path.name for path in tmp_path.iterdir()] == ["s.db"]


async def test_a_store_that_is_garbage_is_dead(tmp_path: Path) -> None:
    async with await created(tmp_path / "s.db") as store:
        other = SqliteStore(tmp_path / "s.db")
        await other.acquire("a", "the other", 3600)
        assert (await store.read("a")).summary.runner == "the other"
        del other
        gc.collect()
        assert (await store.read("a")).summary.runner is None
        assert runner_files(tmp_path) == []


async def test_files_of_dead_runners_are_removed_by_the_next_one(tmp_path: Path) -> None:
    stale = tmp_path / f"s.db-runner-{'0' * 16}"
    stale.touch(mode=0o600)
    others = [tmp_path / "s.db-runner-notes.txt", tmp_path / f"other.db-runner-{'0' * 16}"]
    for other in others:
        other.touch()
    async with await created(tmp_path / "s.db") as store, SqliteStore(tmp_path / "s.db") as second:
        await store.acquire("a", "me", 30)
        (alive,) = set(runner_files(tmp_path)) - set(others)
        assert alive != stale
        await second.create(summary("b"), [])
        await second.acquire("b", "me", 30)
        assert alive in runner_files(tmp_path)
        assert set(others) <= set(runner_files(tmp_path))


async def test_two_that_look_at_a_dead_runner_do_not_take_each_other_for_it(tmp_path: Path) -> None:
    async with await created(tmp_path / "s.db") as store:
        with another_process(RUN, tmp_path / "s.db") as process:
            assert process.hear() == "running"
            process.kill()
        (file,) = runner_files(tmp_path)
        with file.open() as looking:
            fcntl.flock(looking, fcntl.LOCK_SH)
            assert (await store.read("a")).summary.runner is None


@pytest.mark.parametrize("way", ["removed", "locked"])
async def test_a_new_file_that_is_taken_for_a_stale_one_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Another process may remove stale files between the creation of a file and its lock."""
    flock, removed = fcntl.flock, list[Path]()
    with ExitStack() as stack:

        def interrupted(descriptor: int, operation: int) -> None:
            if operation & fcntl.LOCK_EX and not removed:
                removed.extend(runner_files(tmp_path))
                if way == "locked":
                    flock(stack.enter_context(removed[0].open()), fcntl.LOCK_SH)
                removed[0].unlink()
            flock(descriptor, operation)

        async with await created(tmp_path / "s.db") as store, SqliteStore(tmp_path / "s.db") as other:
            monkeypatch.setattr(fcntl, "flock", interrupted)
            await store.acquire("a", "me", 3600)
            (file,) = runner_files(tmp_path)
            assert [file] != removed
            assert (await other.read("a")).summary.runner == "me"
            with file.open() as probe, pytest.raises(BlockingIOError):
                flock(probe, fcntl.LOCK_SH | fcntl.LOCK_NB)


async def test_a_store_behind_a_link_is_known_too(tmp_path: Path) -> None:
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "link.db").symlink_to(tmp_path / "s.db")
    async with (
        await created(tmp_path / "s.db") as store,
        SqliteStore(tmp_path / "links" / "link.db") as other,
    ):
        await other.acquire("a", "the other", 3600)
        assert (await store.read("a")).summary.runner == "the other"
        assert len(runner_files(tmp_path)) == 1


async def test_a_lease_that_another_store_object_renews_is_its_own(tmp_path: Path) -> None:
    async with await created(tmp_path / "s.db") as store:
        async with SqliteStore(tmp_path / "s.db") as first:
            lease = await first.acquire("a", "one", 3600)
            await store.renew(lease)
        assert (await store.read("a")).summary.runner == "one"


# Where files cannot be locked


async def taken_when(clock: FakeClock, path: Path) -> float:
    """Return after how many seconds a session of a store that was closed can be taken over."""
    async with SqliteStore(path, clock=clock) as store:
        await store.create(summary(), [])
        await store.acquire("a", "one", 30)
    async with SqliteStore(path, clock=clock) as store:
        waited = 0
        while True:
            try:
                await store.acquire("a", "two", 30)
            except SessionRunningError:
                waited += 1
                clock.advance(1)
            else:
                return waited


async def test_the_lease_decides_where_there_are_no_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await taken_when(FakeClock(), tmp_path / "locked.db") == 0
    monkeypatch.setattr(sqlite_file, "fcntl", None)
    assert await taken_when(FakeClock(), tmp_path / "s.db") == 30
    assert runner_files(tmp_path) == []


async def test_the_lease_decides_on_a_file_system_without_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    assert await taken_when(FakeClock(), tmp_path / "s.db") == 30
    assert runner_files(tmp_path) == []


async def test_a_runner_whose_file_may_not_be_opened_counts_as_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await created(tmp_path / "s.db") as store:
        with another_process(RUN, tmp_path / "s.db") as process:
            assert process.hear() == "running"
            process.kill()
        opened = os.open

        def refusing(path: str, flags: int, mode: int = 0o777) -> int:
            if "-runner-" in str(path):
                raise PermissionError(errno.EACCES, "permission denied", path)
            return opened(path, flags, mode)

        with monkeypatch.context() as patched:
            patched.setattr(os, "open", refusing)
            assert (await store.read("a")).summary.runner == "the other process"
        assert (await store.read("a")).summary.runner is None


async def test_a_process_never_opens_the_files_that_it_has_locked_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where locks are those of a process, closing such a file again would release its lock."""
    async with await created(tmp_path / "s.db") as store, SqliteStore(tmp_path / "s.db") as other:
        await store.acquire("a", "me", 3600)
        await store.create(summary("b"), [])
        opened, paths = os.open, list[str]()

        def noted(path: str, flags: int, mode: int = 0o777) -> int:
            paths.append(str(path))
            return opened(path, flags, mode)

        monkeypatch.setattr(os, "open", noted)
        assert (await other.read("a")).summary.runner == "me"
        await other.acquire("b", "the other", 3600)
        assert len(paths) == 1, "only that of the new runner was opened, to create it"


@pytest.mark.parametrize("name", ["", "../../etc/passwd", "0" * 15, "0" * 17, "A" * 16])
async def test_a_name_that_no_runner_has_is_not_looked_for(tmp_path: Path, name: str) -> None:
    async with await created(tmp_path / "s.db") as store, SqliteStore(tmp_path / "s.db") as other:
        await other.acquire("a", "the other", 3600)
        await store._write(lambda db: db.execute("UPDATE sessions SET lease_runner = ?", (name,)))
        assert (await store.read("a")).summary.runner == "the other"
