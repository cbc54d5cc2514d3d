"""Several store objects: sessions of dead runners are free, and streaming text reaches followers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from whyloop.errors import LeaseLostError, SessionRunningError
from whyloop.stores.records import Chunk, Lease
from whyloop.stores.store import Store
from whyloop.testing.fakes import FakeClock
from whyloop.testing.store_checks import OpenStore, a_summary, at, journal, only_one, refused, same, stage
from whyloop.values.state import AgentStatus

_RUNNING = AgentStatus.IN_PROGRESS


async def _dead_lease(open_store: OpenStore, clock: FakeClock, agent_id: str) -> Lease:
    """Return a lease with much time left, of a store object that was closed."""
    async with await open_store(clock) as dead:
        return await dead.acquire(agent_id, "the dead", 3600)


async def check_a_session_of_a_closed_store_is_free_at_once(open_store: OpenStore) -> None:
    names = ("acquired", "appended", "deleted", "asked", "read")
    async with stage(open_store, *names) as (store, clock):
        leases = {name: await _dead_lease(open_store, clock, name) for name in names}
        same((await store.read("read")).summary.runner, None, "the runner")
        same(await store.ask_to_stop("asked", "enough"), False, "what ask_to_stop returns")
        await store.append("appended", journal("x"), after=1)
        await store.delete("deleted")
        lease = await store.acquire("acquired", "the next", 30)
        assert lease.token > leases["acquired"].token, (
            f"{lease.token} should be greater than the token before"
        )
        same((await store.read("acquired")).summary.runner, "the next", "the runner")
        attempt = store.append("acquired", journal("x"), after=1, lease=leases["acquired"])
        await refused(LeaseLostError, attempt, "an append with the lease of the dead runner")


async def check_a_runner_in_another_store_object_is_alive(open_store: OpenStore) -> None:
    async with stage(open_store, "a", "b") as (store, clock), await open_store(clock) as other:
        lease = await store.acquire("a", "one", 3600)
        await _dead_lease(open_store, clock, "b")
        for process in (store, other):
            same((await process.read("a")).summary.runner, "one", "the runner")
            await refused(SessionRunningError, process.acquire("a", "two", 30), "a second lease")
            await refused(SessionRunningError, process.append("a", [], after=1), "an append beside a runner")
            await refused(SessionRunningError, process.delete("a"), "deleting what runs")
        same(await other.ask_to_stop("a", "enough"), True, "what ask_to_stop returns")
        same(await store.renew(lease), "enough", "what renew returns")


async def check_one_of_many_runners_replaces_a_dead_one(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock), await open_store(clock) as other:
        for _ in range(5):
            await _dead_lease(open_store, clock, "a")
            attempts = ((store, other)[n % 2].acquire("a", f"{n}", 30) for n in range(8))
            _, lease = await only_one(attempts, SessionRunningError)
            await store.release(lease)


async def check_a_stop_request_passes_to_the_runner_after_a_dead_one(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock):
        async with await open_store(clock) as dead:
            await dead.acquire("a", "the dead", 3600)
            same(await store.ask_to_stop("a", "enough"), True, "what ask_to_stop returns")
        lease = await store.acquire("a", "the next", 30)
        same(await store.renew(lease), "enough", "what renew returns")


async def check_sessions_that_could_continue_are_found(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, clock), await open_store(clock) as other:
        for number, status in enumerate(AgentStatus):
            await store.create(a_summary(status.value, status=status, updated_at=at(number)), [])
        waiting = a_summary("waiting", status=AgentStatus.PAUSED, pending=1)
        await store.create(waiting, [])
        for name, minute in (("running", 0), ("lapsed", 20), ("dead", 10), ("given back", 30)):
            await store.create(a_summary(name, status=_RUNNING, updated_at=at(minute)), journal("x"))
        await store.acquire("lapsed", "one", 30)
        clock.advance(31)
        await store.acquire("running", "one", 30)
        await store.release(await store.acquire("given back", "one", 30))
        await _dead_lease(open_store, clock, "dead")
        expected = ["in_progress", "paused", "dead", "lapsed", "given back"]
        for process in (store, other):
            same(await _unattended(process), expected, "the sessions that could continue")
            same(await _unattended(process, limit=2), expected[:2], "the first two of them")
        await store.append("waiting", [], after=0, summary=a_summary("waiting", status=AgentStatus.PAUSED))
        same((await _unattended(store))[0], "waiting", "the one whose last question was answered")
        found = await store.unattended()
        same(found[3], (await store.read("dead")).summary, "the summary")
        await store.acquire("in_progress", "one", 30)
        assert "in_progress" not in await _unattended(other), "a session that runs again is still found"


async def check_sessions_of_some_agents_that_could_continue_are_found(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, clock), await open_store(clock) as other:
        for number in range(30):
            name = f"other {number}"
            summary = a_summary(name, status=_RUNNING, updated_at=at(number), agent="other")
            await store.create(summary, journal("x"))
        for number, agent in enumerate(("shop", "", "desk", "Shop")):
            summary = a_summary(f"of {agent!r}", status=_RUNNING, updated_at=at(60 + number), agent=agent)
            await store.create(summary, journal("x"))
        await store.create(a_summary("ended", status=AgentStatus.COMPLETED, agent="shop"), journal("x"))
        for process in (store, other):
            same(await _unattended(process, agents=["shop"], limit=1), ["of 'shop'"], "those of one agent")
            found = await _unattended(process, agents=["desk", "shop", "nobody"], limit=10)
            same(found, ["of 'shop'", "of 'desk'"], "those of two agents, least recently updated first")
            same(await _unattended(process, agents=[""]), ["of ''"], "those of an agent without a name")
            same(await _unattended(process, agents=[]), [], "those of no agent")
        await store.acquire("of 'shop'", "one", 30)
        same(await _unattended(other, agents=["shop"]), [], "those of an agent whose session runs")


async def _unattended(store: Store, **wanted: Any) -> list[str]:
    return [summary.agent_id for summary in await store.unattended(**wanted)]


_PATIENCE_SECONDS, _PAUSE_SECONDS = 5.0, 0.02
_STRANGE = '{"text":"\U0001f600 \\u0000 \' \\" \u2028 日本語 %s $1 {} \\\\"}'


def _some(agent_id: str, *bodies: str) -> list[Chunk]:
    return [Chunk(agent_id, body) for body in bodies]


class _Received(list[Chunk]):
    """The chunks that were delivered, on the event loop of the check."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()

    def deliver(self, chunks: Sequence[Chunk]) -> None:
        assert asyncio.get_running_loop() is self._loop, "chunks are delivered on another event loop"
        self.extend(chunks)

    def bodies(self, agent_id: str = "a") -> list[str]:
        return [chunk.body for chunk in self if chunk.agent_id == agent_id]


async def _until(done: Callable[[], bool], what: str) -> None:
    """Wait until something holds, as long as a chunk may take."""
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while not done():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"{what} did not arrive within {_PATIENCE_SECONDS:g} s") from None


async def _connected(sender: Store, *received: _Received, agent_id: str = "a") -> None:
    """Send until every receiver has a chunk, then one that marks a beginning."""
    for number in count():
        if all(each.bodies(agent_id) for each in received):
            break
        waited = number * _PAUSE_SECONDS
        assert waited < _PATIENCE_SECONDS, f"no chunk of {agent_id!r} arrived within {waited:g} s"
        await sender.send_chunks(_some(agent_id, f"hello {number}"))
        await asyncio.sleep(_PAUSE_SECONDS)
    await sender.send_chunks(_some(agent_id, "begin"))
    for each in received:
        await _until(lambda each=each: "begin" in each.bodies(agent_id), "the beginning")  # type: ignore[misc]
        each.clear()


async def check_chunks_reach_a_follower_in_order(open_store: OpenStore) -> None:
    async with stage(open_store, "a", "b", "c") as (store, clock), await open_store(clock) as other:
        got = _Received()
        async with other.receive_chunks(got.deliver) as receiver:
            receiver.follow("a")
            receiver.follow("c")
            await _connected(store, got)
            expected: list[str] = []
            for number in range(5):
                bodies = [f"{number}.{part}" for part in range(3)]
                expected += bodies
                await store.send_chunks([*_some("a", *bodies), *_some("b", "not followed"), *_some("c", "x")])
                await store.send_chunks([])
            await _until(lambda: len(got.bodies()) >= 15 and len(got.bodies("c")) >= 5, "the last chunk")
            same(got.bodies(), expected, "the chunks")
            same(got.bodies("c"), ["x"] * 5, "the chunks of another session that is followed")
            same(got.bodies("b"), [], "the chunks of a session that is not followed")


async def check_strange_chunks_come_as_they_were(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock), await open_store(clock) as other:
        got = _Received()
        async with other.receive_chunks(got.deliver) as receiver:
            receiver.follow("a")
            await _connected(store, got)
            bodies = [_STRANGE, "", "x" * 5000, "\U0001f600" * 1000]
            await store.send_chunks(_some("a", *bodies))
            await _until(lambda: len(got) >= len(bodies), "the last chunk")
            same(got.bodies(), bodies, "the chunks")


async def check_chunks_do_not_come_back_to_their_sender(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock), await open_store(clock) as other:
        here, there = _Received(), _Received()
        async with store.receive_chunks(here.deliver) as first, other.receive_chunks(there.deliver) as second:
            first.follow("a")
            second.follow("a")
            await _connected(store, there)
            await _connected(other, here)
            same(there.bodies(), [], "the chunks that the sender received from itself")
            await store.send_chunks(_some("a", "from the store"))
            await _until(lambda: bool(there), "a chunk")
            await other.send_chunks(_some("a", "from the other"))
            await _until(lambda: bool(here), "a chunk")
            same(here.bodies(), ["from the other"], "the chunks at the store")
            same(there.bodies(), ["from the store"], "the chunks at the other")


async def check_every_follower_receives_a_chunk(open_store: OpenStore) -> None:
    async with (
        stage(open_store, "a") as (store, clock),
        await open_store(clock) as second,
        await open_store(clock) as third,
    ):
        got = [_Received() for _ in range(3)]
        async with (
            second.receive_chunks(got[0].deliver) as one,
            second.receive_chunks(got[1].deliver) as two,
            third.receive_chunks(got[2].deliver) as three,
        ):
            for receiver in (one, two, three):
                receiver.follow("a")
                receiver.follow("a")
            await _connected(store, *got)
            await store.send_chunks(_some("a", "x", "y"))
            for each in got:
                await _until(lambda each=each: len(each) >= 2, "the last chunk")  # type: ignore[misc]
                same(each.bodies(), ["x", "y"], "the chunks")


async def check_a_session_is_not_followed_any_more(open_store: OpenStore) -> None:
    async with stage(open_store, "a", "b") as (store, clock), await open_store(clock) as other:
        got = _Received()
        async with other.receive_chunks(got.deliver) as receiver:
            receiver.follow("a")
            receiver.follow("b")
            await _connected(store, got)
            await _connected(store, got, agent_id="b")
            receiver.unfollow("a")
            receiver.unfollow("never followed")
            await store.send_chunks([*_some("a", "x"), *_some("b", "y")])
            await _until(lambda: bool(got.bodies("b")), "a chunk of the other session")
            same(got.bodies(), [], "the chunks of the session that is not followed any more")
            receiver.follow("a")
            await _connected(store, got)


async def check_a_receiver_that_was_left_receives_nothing(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock), await open_store(clock) as other:
        left, got = _Received(), _Received()
        async with other.receive_chunks(got.deliver) as receiver:
            receiver.follow("a")
            async with other.receive_chunks(left.deliver) as leaving:
                leaving.follow("a")
                await _connected(store, left, got)
            await store.send_chunks(_some("a", "x"))
            await _until(lambda: bool(got), "a chunk")
            same(left.bodies(), [], "the chunks of the receiver that was left")


async def check_a_receiver_that_fails_receives_what_follows(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock), await open_store(clock) as other:
        got = _Received()

        def deliver(chunks: Sequence[Chunk]) -> None:
            got.deliver(chunks)
            raise RuntimeError("the receiver failed")

        async with other.receive_chunks(deliver) as receiver:
            receiver.follow("a")
            await _connected(store, got)
            await store.send_chunks(_some("a", "x"))
            await _until(lambda: bool(got), "a chunk")


async def check_chunks_without_a_follower_are_not_an_error(open_store: OpenStore) -> None:
    async with stage(open_store, "a") as (store, clock), await open_store(clock) as other:
        await store.send_chunks([])
        await store.send_chunks(_some("a", "x"))
        await store.send_chunks(_some("missing", "x"))
        async with other.receive_chunks(_Received().deliver) as receiver:
            await store.send_chunks(_some("a", "x"))
            receiver.follow("missing")
        await store.send_chunks(_some("missing", "x"))
