"""Things that happen at the same moment, on a store whose calls take time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support import pay, scripted
from whyloop import Agent, Session, tool
from whyloop.errors import LeaseLostError, SessionNotFoundError
from whyloop.stores import Entry, Lease, MemoryStore, Stored
from whyloop.testing import FakeClock, Reply, call, calls
from whyloop.values.step_transitions import CallFinished
from whyloop.wire.journal import decode_entries


class Slow(MemoryStore):
    """A store that lets others run before and after each of its calls, as one behind a network does."""

    inline = False

    async def append(self, agent_id: str, entries: Sequence[Entry], **rest: Any) -> str | None:
        await asyncio.sleep(0)
        words = await super().append(agent_id, entries, **rest)
        await asyncio.sleep(0)
        return words

    async def read(self, agent_id: str, *, after: int = 0, limit: int | None = None) -> Stored:
        stored = await super().read(agent_id, after=after, limit=limit)
        await asyncio.sleep(0)
        return stored

    async def acquire(self, agent_id: str, owner: str, seconds: float, **rest: Any) -> Lease:
        await asyncio.sleep(0)
        lease = await super().acquire(agent_id, owner, seconds, **rest)
        await asyncio.sleep(0)
        return lease


@tool
async def echo(what: str = "ok") -> str:
    return what


def agent_with(*replies: Reply | str, **options: Any) -> Agent:
    return scripted(*replies, tools=[echo, pay], **options)


async def test_two_looks_at_once_see_each_entry_once() -> None:
    store = Slow()
    session = await Session.open(store, agent_with("one"))
    other = await Session.open(store, agent_with("two"), session.agent_id)
    await other.send("q")
    await asyncio.gather(session.refresh(), session.refresh(), session.refresh())
    assert [message.text for message in session.history()] == ["q", "two"]


async def test_a_look_in_the_middle_of_a_run_does_no_harm() -> None:
    store = Slow()
    session = await Session.open(store, agent_with(*[call("echo")] * 5, "done"))
    running = asyncio.ensure_future(session.send("go"))
    while not running.done():
        await session.refresh()
    state = await running
    assert session.state == state == await store.load(session.agent_id)


async def test_a_look_that_comes_back_late_takes_nothing_back() -> None:
    came_back = asyncio.Event()

    class Late(MemoryStore):
        hold = False

        async def read(self, agent_id: str, *, after: int = 0, limit: int | None = None) -> Stored:
            held, self.hold = self.hold, False
            stored = await super().read(agent_id, after=after, limit=limit)
            if held:
                await came_back.wait()
            return stored

    store = Late()
    session = await Session.open(store, agent_with("done"))
    store.hold = True
    looking = asyncio.ensure_future(session.refresh())
    await asyncio.sleep(0)
    state = await session.send("go")
    came_back.set()
    assert await looking == session.state == state


async def test_decisions_at_once_through_one_session_are_all_seen() -> None:
    store = Slow()
    session = await Session.open(
        store, agent_with(calls(*[call("pay", {"amount": n}) for n in range(5)]), "ok")
    )
    state = await session.send("pay")
    await asyncio.gather(*[session.approve(pending.id) for pending in state.pending_calls])
    assert session.state.pending_calls == ()
    assert (await session.resume()).status == "completed"


async def test_of_two_that_look_at_once_the_newer_reading_is_kept() -> None:
    class Held(MemoryStore):
        def __init__(self) -> None:
            super().__init__()
            self.free = asyncio.Event()
            self.free.set()

        async def read(self, agent_id: str, *, after: int = 0, limit: int | None = None) -> Stored:
            stored = await super().read(agent_id, after=after, limit=limit)
            await self.free.wait()
            return stored

    store = Held()
    session = await Session.open(store, agent_with("one", "two", "three"), "a", create=True)
    elsewhere = await Session.open(store, agent_with("one", "two", "three"), "a")
    await elsewhere.send("1")
    store.free.clear()
    early = asyncio.create_task(session.refresh())
    await asyncio.sleep(0)
    await elsewhere.send("2")
    late = asyncio.create_task(session.refresh())
    await asyncio.sleep(0)
    store.free.set()
    await asyncio.gather(early, late)
    assert session.state == elsewhere.state


async def test_a_deleted_session_is_not_taken_for_a_later_one_of_its_id() -> None:
    store = MemoryStore()
    session = await Session.open(store, agent_with("one"), "a", create=True)
    await session.send("old 1")
    await store.delete("a")
    later = await scripted(call("echo"), "two", tools=[echo], clock=FakeClock(10**9)).run("new")
    await store.add(replace(later, agent_id="a"))
    again = await Session.open(store, agent_with("three"), "a")
    await again.send("newer")
    for use in (session.refresh, lambda: session.send("old 2")):
        with pytest.raises(SessionNotFoundError):
            await use()
    assert [message.text for message in again.history() if message.is_user] == ["new", "newer"]
    assert (await again.refresh()) == await store.load("a")


async def test_two_that_create_one_session_at_once_both_have_it() -> None:
    store = Slow()
    opened = await asyncio.gather(*[Session.open(store, agent_with(), "a", create=True) for _ in range(4)])
    assert len({session.state.state_info.started_at for session in opened}) == 1


async def test_a_stop_that_comes_with_the_pause_is_heard() -> None:
    class Asked(MemoryStore):
        async def append(self, agent_id: str, entries: Sequence[Entry], **rest: Any) -> str | None:
            summary = rest.get("summary")
            if summary is not None and summary.status == "paused":
                assert await self.ask_to_stop(agent_id, "enough")
            return await super().append(agent_id, entries, **rest)

    store = Asked()
    session = await Session.open(store, agent_with(call("pay", {"amount": 5})))
    state = await session.send("pay")
    assert (state.status, state.stop_reason) == ("stopped", "user_requested")
    assert await store.load(session.agent_id) == state
    (listed,) = (await store.sessions()).sessions
    assert (listed.status, listed.runner) == ("stopped", None)


async def test_a_stop_that_comes_right_after_the_pause_is_heard() -> None:
    class Asked(MemoryStore):
        async def release(self, lease: Lease) -> str | None:
            assert await self.request_stop(lease.agent_id, "enough")
            return await super().release(lease)

    store = Asked()
    session = await Session.open(store, agent_with(call("pay", {"amount": 5})))
    await session.send("pay")
    assert (session.state.status, session.state.stop_reason) == ("stopped", "user_requested")


async def test_a_stop_while_the_model_thinks_keeps_its_tools_from_running() -> None:
    ran: list[str] = []

    @tool
    async def work() -> str:
        ran.append("work")
        return "done"

    class Asked(MemoryStore):
        async def append(self, agent_id: str, entries: Sequence[Entry], **rest: Any) -> str | None:
            if "answered" in entries[0].body:
                await self.ask_to_stop(agent_id, "enough")
            return await super().append(agent_id, entries, **rest)

    session = await Session.open(Asked(), scripted(call("work"), tools=[work]))
    state = await session.send("go")
    assert (state.stop_reason, ran) == ("user_requested", [])
    assert state.messages[2].text == "Not run: a stop was requested"


async def test_words_for_a_runner_that_died_stop_the_next() -> None:
    store = MemoryStore()
    session = await Session.open(store, agent_with(call("echo"), "done"))
    dead = await store.acquire(session.agent_id, "a dead process", 0.000001)
    store._shared.sessions[session.agent_id].held.stop_request = "enough"  # type: ignore[union-attr]
    state = await session.send("go")
    assert (state.stop_reason, dead.owner) == ("user_requested", "a dead process")


async def test_results_that_come_while_another_is_written_are_recorded_once_each() -> None:
    class Busy(MemoryStore):
        async def append(self, agent_id: str, entries: Sequence[Entry], **rest: Any) -> str | None:
            for _ in range(3):
                await asyncio.sleep(0)
            return await super().append(agent_id, entries, **rest)

    @tool
    async def after(turns: int) -> str:
        for _ in range(turns):
            await asyncio.sleep(0)
        return f"after {turns}"

    several = calls(*[call("after", {"turns": n}) for n in range(8)])
    store = Busy()
    session = await Session.open(store, scripted(several, "done", tools=[after]))
    state = await session.send("go")
    assert await store.load(session.agent_id) == state
    texts = (await store.read(session.agent_id)).entries
    finished = [t.index for e in decode_entries(texts) for t in e.transitions if isinstance(t, CallFinished)]
    assert sorted(finished) == list(range(8))


async def test_a_heartbeat_at_the_very_end_of_a_run_does_not_break_it() -> None:
    class Ending(Slow):
        async def append(self, agent_id: str, entries: Sequence[Entry], **rest: Any) -> str | None:
            words = await super().append(agent_id, entries, **rest)
            if rest.get("release"):
                await beaten.wait()  # The answer is on its way when the heart beats.
            return words

        async def renew(self, lease: Lease) -> str | None:
            try:
                return await super().renew(lease)
            except LeaseLostError:
                beaten.set()
                raise

    beaten = asyncio.Event()
    store = Ending()
    session = await Session.open(store, agent_with("done"), lease_seconds=0.003)
    assert (await session.send("go")).status == "completed"


async def test_a_lease_that_is_lost_leaves_the_task_as_it_was() -> None:
    store = Slow()

    @tool
    async def hang() -> str:
        held = store._shared.sessions[session.agent_id]
        held.held = None
        await store.acquire(session.agent_id, "another", 30)
        await asyncio.Event().wait()
        return "never"

    session = await Session.open(store, scripted(call("hang"), tools=[hang]), lease_seconds=0.003)
    with pytest.raises(LeaseLostError):
        await session.send("go")
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_a_question_that_is_taken_back_before_it_began_leaves_no_lease() -> None:
    store = Slow()
    session = await Session.open(store, agent_with("done"))
    for turns in range(4):
        asking = asyncio.ensure_future(session.send("go"))
        for _ in range(turns):
            await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert (await store.read(session.agent_id)).summary.runner is None


async def test_a_fork_does_not_take_a_decision_with_it() -> None:
    store = MemoryStore()
    session = await Session.open(store, agent_with(call("pay", {"amount": 5})))
    state = await session.send("pay")
    await session.edit(state.pending_calls[0].id, {"amount": 50})
    fork = await store.fork(session.agent_id)
    assert [pending.arguments for pending in fork.pending_calls] == [{"amount": 5}]
    branch = await Session.open(store, agent_with(), fork.agent_id)
    assert (await branch.resume()).status == "paused"
