"""Runs whose task is cancelled while the store writes: whatever was announced is recorded."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support import scripted
from whyloop import Agent, Session, tool
from whyloop.broadcasting import BroadcastConfig, EventFeed
from whyloop.errors import LeaseLostError, StoreUnavailableError
from whyloop.events import AgentEvent
from whyloop.stores import Entry, Lease, MemoryStore, SqliteStore, Store
from whyloop.stores.live import finish
from whyloop.stores.sqlite_file import Durability
from whyloop.testing import Reply, call, calls
from whyloop.wire.envelope import NUMBERED, envelope
from whyloop.wire.journal import state_of

WRITES = 6
"""The appends of the run below, the one that records its cancellation included."""


@tool(idempotent=True)
async def sure() -> str:
    return "sure"


def an_agent() -> Agent:
    replies: list[Reply | str] = [call("sure"), calls(call("sure"), call("sure")), "done"]
    return scripted(*replies, *replies, *replies, tools=[sure])


class Told:
    """The numbered envelopes that the handlers of a session received."""

    def __init__(self) -> None:
        self.envelopes: list[dict[str, Any]] = []

    def __call__(self, event: AgentEvent) -> None:
        told = envelope(event, BroadcastConfig.standard())
        if told is not None and told["event"] in NUMBERED:
            self.envelopes.append(told)


async def assert_true(session: Session, store: Store, told: Told) -> None:
    """Fail unless the store has what the session shows and what its handlers received."""
    stored = await store.read(session.agent_id)
    assert session.state == state_of(session.agent_id, stored.entries[: session.version])
    recorded = {(item.execution_id, item.seq) for item in await numbered_items(store, session.agent_id)}
    announced = [(each["execution_id"], each["seq"]) for each in told.envelopes]
    assert set(announced) <= recorded, "what was announced is not recorded"
    assert len(set(announced)) == len(announced), "it was announced twice"
    assert await session.refresh() == await store.load(session.agent_id)


async def numbered_items(store: Store, agent_id: str) -> list[Any]:
    async with EventFeed(store) as feed:
        page = await feed.page(agent_id, limit=10**6)
    return [item for item in page.items if item.is_numbered]


async def assert_usable(session: Session, store: Store, told: Told) -> None:
    """Fail unless the same session object brings its session to the end."""
    state = session.state
    if not state.messages:
        state = await session.send("go")
    elif not state.status.has_ended:
        state = await session.recover()
    elif state.status != "completed":
        state = await session.resume()
    assert state.status == "completed"
    await assert_true(session, store, told)


class Blocker:
    """Another program that holds the file from the so many-th append on; the run is cancelled meanwhile."""

    def __init__(self, path: Path, durability: Durability, number: int, waits: int) -> None:
        self._path = path
        self._number, self._waits = number, waits
        self._appends = 0
        self._other: sqlite3.Connection | None = None
        self.cancel: Callable[[], object] = lambda: None
        self.store = SqliteStore(path, durability=durability, busy_seconds=0.05, sleep=self._sleep)
        self._append = self.store.append
        self.store.append = self._counted  # type: ignore[method-assign]

    async def _counted(self, agent_id: str, entries: Sequence[Entry], **rest: Any) -> str | None:
        self._appends += 1
        if self._appends == self._number:
            self._other = sqlite3.connect(self._path, isolation_level=None)
            self._other.execute("BEGIN IMMEDIATE")
        return await self._append(agent_id, entries, **rest)

    async def _sleep(self, seconds: float) -> None:
        """Cancel the run at the first wait; let go of the file after some more."""
        self.cancel()
        self.cancel = lambda: None
        self._waits -= 1
        if not self._waits:
            self.let_go()
        await asyncio.sleep(0)

    def let_go(self) -> None:
        if self._other is not None:
            self._other.close()


@pytest.mark.parametrize("number", range(1, WRITES))
@pytest.mark.parametrize("waits", [2, 10**6])
@pytest.mark.parametrize("durability", ["process", "power"])
async def test_a_busy_file_and_a_deploy_leave_nothing_untrue(
    tmp_path: Path, durability: Durability, waits: int, number: int
) -> None:
    blocker, told = Blocker(tmp_path / "s.db", durability, number, waits), Told()
    async with blocker.store as store:
        session = await Session.open(store, an_agent(), handlers=[told])
        running = asyncio.create_task(session.send("go"))
        blocker.cancel = running.cancel
        is_made = waits == 2
        with pytest.raises(asyncio.CancelledError if is_made else StoreUnavailableError):
            await running
        blocker.let_go()
        assert (session.version > number) is is_made
        await assert_true(session, store, told)
        if number % 2:  # The lease may not have been released: see that of the next one to run it here.
            session = await Session.open(store, an_agent(), session.agent_id, handlers=[told])
        await assert_usable(session, store, told)


class Gated(MemoryStore):
    """A store behind a gate: an append waits before or after it is made, and a cancellation cuts it off."""

    def __init__(self, number: int, when: str) -> None:
        super().__init__()
        self._number, self._when = number, when
        self.reached = asyncio.Event()

    async def append(self, agent_id: str, entries: Sequence[Entry], **rest: Any) -> str | None:
        self._number -= 1
        if self._number or self._when != "before":
            stop = await super().append(agent_id, entries, **rest)
        if not self._number:
            self.reached.set()
            await asyncio.Event().wait()
        return stop


@pytest.mark.parametrize("number", range(1, WRITES))
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_store_that_lets_its_appends_be_cut_off_is_asked_what_it_has(number: int, when: str) -> None:
    store, told = Gated(number, when), Told()
    session = await Session.open(store, an_agent(), handlers=[told])
    running = asyncio.create_task(session.send("go"))
    await store.reached.wait()
    running.cancel()
    with pytest.raises(StoreUnavailableError if when == "before" else asyncio.CancelledError):
        await running
    assert (session.version > number) is (when == "after")
    await assert_true(session, store, told)
    await assert_usable(session, store, told)


class Overtaken(MemoryStore):
    """A store like one behind a network: another runner takes the session while an append is on its way."""

    inline = False

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number
        self.lost = asyncio.Event()

    async def append(self, agent_id: str, entries: Sequence[Entry], **rest: Any) -> str | None:
        self._number -= 1
        if self._number:
            return await super().append(agent_id, entries, **rest)
        self._shared.sessions[agent_id].held = None
        other = await MemoryStore(beside=self).acquire(agent_id, "another", 30)
        self.taken = other
        self.lost.set()
        return await finish(self._late(agent_id, entries, **rest))

    async def _late(self, agent_id: str, entries: Sequence[Entry], **rest: Any) -> str | None:
        for _ in range(10):
            await asyncio.sleep(0)
        return await super().append(agent_id, entries, **rest)


@pytest.mark.parametrize("number", range(1, WRITES))
async def test_a_lease_that_is_lost_while_an_entry_is_on_its_way_announces_nothing(number: int) -> None:
    store, told = Overtaken(number), Told()
    session = await Session.open(store, an_agent(), handlers=[told])
    running = asyncio.create_task(session.send("go"))
    await store.lost.wait()
    running.cancel()  # As a heartbeat does that finds the lease gone.
    with pytest.raises(LeaseLostError):
        await running
    assert session.version == number
    await assert_true(session, store, told)
    await MemoryStore(beside=store).release(store.taken)
    await assert_usable(session, store, told)


class Pressed(MemoryStore):
    """A store in whose append Ctrl-C is pressed, before or after it is made."""

    def __init__(self, number: int, when: str) -> None:
        super().__init__()
        self._number, self._when = number, when

    async def append(self, agent_id: str, entries: Sequence[Entry], **rest: Any) -> str | None:
        self._number -= 1
        if not self._number and self._when == "before":
            raise KeyboardInterrupt
        stop = await super().append(agent_id, entries, **rest)
        if not self._number:
            raise KeyboardInterrupt
        return stop


@pytest.mark.parametrize("number", range(1, WRITES - 1))
@pytest.mark.parametrize("when", ["before", "after"])
def test_ctrl_c_in_the_middle_of_a_write_leaves_a_journal_that_can_be_read(number: int, when: str) -> None:
    store, told = Pressed(number, when), Told()

    async def interrupted() -> Session:
        session = await Session.open(store, an_agent(), handlers=[told])
        work = session.send("go")
        try:
            while True:
                work.send(None)  # Without a task, which would pass Ctrl-C on to the event loop.
        except BaseException:
            return session

    session = asyncio.run(interrupted())
    asyncio.run(assert_true(session, store, told))
    asyncio.run(assert_usable(session, store, told))


@tool(needs_approval=True)
async def pay() -> str:
    return "paid"


async def test_a_heartbeat_that_fails_as_the_run_ends_cancels_nobody() -> None:
    class Late(MemoryStore):
        renewing = asyncio.Event()

        async def renew(self, lease: Lease) -> str | None:
            self.renewing.set()
            try:
                return await asyncio.Event().wait() and None
            except asyncio.CancelledError:
                raise LeaseLostError(lease.agent_id, "another") from None

    store = Late()

    @tool
    async def wait() -> str:
        await store.renewing.wait()
        return "waited"

    agent = scripted(call("wait"), call("pay"), tools=[wait, pay])
    session = await Session.open(store, agent, lease_seconds=0.003)
    assert (await session.send("go")).status == "paused"
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_a_stop_request_outlives_the_cancellation_of_a_run_that_paused() -> None:
    class Slow(MemoryStore):
        inline = False
        released = asyncio.Event()

        async def append(self, agent_id: str, entries: Sequence[Entry], **rest: Any) -> str | None:
            stop = await super().append(agent_id, entries, **rest)
            held, listed = self._shared.sessions[agent_id].held, rest.get("summary")
            if held is not None and listed is not None and listed.status == "paused":
                held.stop_request = "enough"  # It comes a moment too late for the run.
            return stop

        async def release(self, lease: Lease) -> str | None:
            reason = await super().release(lease)
            self.released.set()
            await asyncio.sleep(0)
            return reason

    store = Slow()
    session = await Session.open(store, scripted(call("pay"), tools=[pay]))
    running = asyncio.create_task(session.send("go"))
    await store.released.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    state = await store.load(session.agent_id)
    assert (state.status, state.stop_reason) == ("stopped", "user_requested")
    assert session.state == state


async def test_a_lease_that_could_not_be_released_is_released_before_the_next_use() -> None:
    class Stuck(MemoryStore):
        left = 2

        async def release(self, lease: Lease) -> str | None:
            self.left -= 1
            if self.left >= 0:
                raise StoreUnavailableError("the file is held")
            return await super().release(lease)

    store = Stuck()
    session = await Session.open(store, scripted(call("pay"), "done", call("pay"), "done", tools=[pay]))
    state = await session.send("go")
    with pytest.raises(StoreUnavailableError, match="the file is held"):
        await session.approve(state.pending_calls[0].id)
    assert (await session.approve(state.pending_calls[0].id)).pending_calls == ()
    assert (await session.resume()).status == "completed"

    store.left = 2
    assert (await session.send("again")).status == "paused"
    other = await Session.open(store, session.agent, session.agent_id)
    with pytest.raises(StoreUnavailableError, match="the file is held"):  # Not: this process runs it.
        await other.send("instead")
    assert (await other.send("instead")).status == "completed"


async def test_a_run_after_a_failure_waits_for_the_lease_that_is_still_being_released() -> None:
    class Away(MemoryStore):
        releasing, back = asyncio.Event(), asyncio.Event()

        async def append(self, agent_id: str, entries: Sequence[Entry], **rest: Any) -> str | None:
            if not self.back.is_set():
                raise StoreUnavailableError("the file is held")
            return await super().append(agent_id, entries, **rest)

        async def release(self, lease: Lease) -> str | None:
            self.releasing.set()
            await self.back.wait()
            return await super().release(lease)

    store = Away()
    session = await Session.open(store, scripted("done"))
    with pytest.raises(StoreUnavailableError):
        await session.send("go")
    assert store.releasing.is_set()
    again = asyncio.create_task(session.send("go"))
    await asyncio.sleep(0)
    store.back.set()
    assert (await again).status == "completed"
