"""What it costs to be watched, and what it takes to tell a thousand: `make bench-broadcast`.

Every target is a ratio to a counterpart that is measured within one run of this program, in turns, since
machines are noisy. What only computes is measured in time of the processor.
A dead target is judged on a model that takes five milliseconds to answer, which is faster than any
real one; on the benchmark's own, which answers at once, the comparison is told and not judged.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from benchmarks.loop import figure, report
from benchmarks.subscribers import ENVELOPES, SUBSCRIBERS, measure
from benchmarks.work import lookup, make_agent, script
from whyloop import Agent, ModelRequest, ModelResponse, Session
from whyloop.broadcasting import AgentEventEnvelopeAdapter, BroadcastConfig, Delivery, EventFeed
from whyloop.broadcasting.transports import Envelope
from whyloop.events import AgentEvent
from whyloop.stores import MemoryStore, SqliteStore, Store
from whyloop.testing import ScriptedModel
from whyloop.values.model import Delta
from whyloop.wire.envelope import envelope

ROUNDS = 21
STEPS = 200
MODEL_SECONDS = 0.005
SLOW_STEPS = 40
STANDARD = BroadcastConfig.standard()
MOST_ENCODED = {"standard": 20.0, "debug": 25.0}
MOST_DELIVERED = {"standard": 1.5, "debug": 4.0}
MOST_FOLLOWED = {"memory": 3.0, "SQLite": 3.0}
MOST_TOLD = 3.0


async def take(batch: Sequence[Envelope]) -> None:
    """A target that takes everything at once."""


async def hang(batch: Sequence[Envelope]) -> None:
    """A target that never answers."""
    await asyncio.Event().wait()


class SlowModel:
    """A scripted model that takes its time."""

    def __init__(self, steps: int) -> None:
        self._inner = ScriptedModel(script(steps))

    async def respond(self, request: ModelRequest) -> AsyncIterator[Delta | ModelResponse]:
        await asyncio.sleep(MODEL_SECONDS)
        async for piece in self._inner.respond(request):
            yield piece


def slow_agent() -> Agent:
    return Agent(SlowModel(SLOW_STEPS), [lookup], max_steps=SLOW_STEPS + 1)


async def timed(agent: Agent, transport: Delivery | None) -> float:
    """Seconds of a run with whoever watches it."""
    session = agent.new_session()
    if transport is not None:
        agent.subscribe(AgentEventEnvelopeAdapter(transport, STANDARD))
    started = time.perf_counter()
    await agent.run("go", state=session)
    seconds = time.perf_counter() - started
    if transport is not None:
        await transport.close(timeout=0)
    return seconds


async def events_of_a_run() -> list[AgentEvent]:
    events: list[AgentEvent] = []
    agent = make_agent(STEPS)
    agent.subscribe(events.append)
    await agent.run("go")
    return events


def encoding(events: list[AgentEvent], config: BroadcastConfig) -> tuple[float, float, int]:
    """Microseconds for an envelope as JSON, times those of the bare JSON, and how many there are.

    The bare counterpart only encodes the finished envelope: the least that anybody has to do.
    """
    encode = msgspec.json.Encoder().encode
    told = [event for event in events if envelope(event, config) is not None]
    made = [msgspec.json.decode(encode(envelope(event, config))) for event in told]
    times, ratios = [], []
    for _ in range(ROUNDS):
        started = time.thread_time()
        for each in made:
            encode(each)
        between = time.thread_time()
        for event in told:
            encode(envelope(event, config))
        own = time.thread_time() - between
        times.append(own / len(told) * 1e6)
        ratios.append(own / (between - started))
    return median(times), median(ratios), len(told)


class BareDelivery:
    """The yardstick: a queue of JSON texts, and a task that takes them in batches."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._task = asyncio.create_task(self._take())
        self._encode = msgspec.json.Encoder().encode

    def tell(self, event: AgentEvent) -> None:
        written = envelope(event, STANDARD)
        if written is not None:
            self._queue.put_nowait(self._encode(written))

    async def _take(self) -> None:
        async for batch in self._batches():
            await take(batch)

    async def _batches(self) -> AsyncIterator[list[Any]]:
        while (first := await self._queue.get()) is not None:
            yield [first]

    async def close(self) -> None:
        self._queue.put_nowait(None)
        await self._task


async def bare_delivery() -> float:
    """Seconds of a run whose envelopes go through a plain queue, until all of them were taken."""
    agent, delivery = make_agent(STEPS), BareDelivery()
    agent.subscribe(delivery.tell)
    session = agent.new_session()
    started = time.process_time()
    await agent.run("go", state=session)
    await delivery.close()
    return time.process_time() - started


async def own_delivery(config: BroadcastConfig) -> float:
    """Seconds of a run with a Delivery, until all of it has arrived."""
    agent, delivery = make_agent(STEPS), Delivery(take)
    agent.subscribe(AgentEventEnvelopeAdapter(delivery, config))
    session = agent.new_session()
    started = time.process_time()
    await agent.run("go", state=session)
    await delivery.close()
    seconds = time.process_time() - started
    if delivery.dropped:
        raise RuntimeError(f"not all of it has arrived: {delivery.dropped}")
    return seconds


async def delivery_ratio(config: BroadcastConfig) -> float:
    """A run with a Delivery, until all of it has arrived, beside the run with a plain queue."""
    ratios = []
    for _ in range(ROUNDS):
        bare = await bare_delivery()
        ratios.append(await own_delivery(config) / bare)
    return median(ratios)


async def dead_ratio(make: Callable[[], Delivery], *, slow: bool = True) -> float:
    """A run whose target never answers, beside the same run without one."""
    plain, watched = [], []
    for _ in range(ROUNDS):
        plain.append(await timed(slow_agent() if slow else make_agent(STEPS), None))
        watched.append(await timed(slow_agent() if slow else make_agent(STEPS), make()))
    return min(watched) / min(plain)


async def follower_ratio(store: Store) -> float:
    """A stored run with a follower in the same process, until it has everything, beside one without."""
    ratios = []
    for _ in range(ROUNDS):
        times = []
        for follows in (False, True):
            session = await Session.open(store, make_agent(STEPS))
            following = asyncio.create_task(_follow(store, session.agent_id)) if follows else None
            await asyncio.sleep(0)
            started = time.process_time()
            await session.send("go")
            if following is not None:
                await following
            times.append(time.process_time() - started)
        ratios.append(times[1] / times[0])
    return median(ratios)


async def _follow(store: Store, agent_id: str) -> None:
    async with EventFeed(store) as feed, aclosing(feed.follow(agent_id)) as following:
        async for items in following:
            if '"status":"completed"' in items[-1].body:
                return


async def feeds() -> bool:
    """What it costs a run to be followed, until the last envelope has arrived."""
    with tempfile.TemporaryDirectory() as folder:
        async with SqliteStore(Path(folder) / "whyloop.db") as sqlite, MemoryStore() as memory:
            stores: dict[str, Store] = {"memory": memory, "SQLite": sqlite}
            met = True
            for name, store in stores.items():
                ratio, most = await follower_ratio(store), MOST_FOLLOWED[name]
                label = f"a stored run with a follower, {name}"
                met &= report(label, f"{ratio:.2f} x", f"at most {most:g} x", ratio <= most)
    return met


async def subscribers() -> bool:
    """How long it takes until everybody has heard everything, beside a bare server that writes as much."""
    measured = await measure()
    ratio = measured.seconds / measured.bare_seconds
    figure(f"{SUBSCRIBERS:,} subscribers, all connected", f"{measured.connected:.1f} s")
    figure(f"{SUBSCRIBERS:,} subscribers, {ENVELOPES} envelopes each", f"{measured.seconds:.1f} s")
    met = report(
        "those who got all, in order", f"{measured.complete:,}", f"{SUBSCRIBERS:,}", measured.is_whole
    )
    label = f"{SUBSCRIBERS:,} subscribers, beside a bare server"
    return report(label, f"{ratio:.2f} x", f"at most {MOST_TOLD:g} x", ratio <= MOST_TOLD) and met


async def main() -> bool:
    met = True
    logging.getLogger("whyloop").setLevel(logging.ERROR)  # That envelopes are dropped is the point here.
    events = await events_of_a_run()
    for name, config in (("standard", STANDARD), ("debug", BroadcastConfig.debug())):
        took, ratio, _ = encoding(events, config)
        most = MOST_ENCODED[name]
        label = f"an envelope as JSON, {name} ({took:.1f} µs), beside its JSON"
        met &= report(label, f"{ratio:.2f} x", f"at most {most:g} x", ratio <= most)
        ratio, most = await delivery_ratio(config), MOST_DELIVERED[name]
        label = f"a run with a Delivery, {name}, beside a queue"
        met &= report(label, f"{ratio:.2f} x", f"at most {most:g} x", ratio <= most)
    met &= await feeds()
    ratio = await dead_ratio(lambda: Delivery(hang))
    met &= report("a run with a dead target, model of 5 ms", f"{ratio:.3f} x", "at most 1.10 x", ratio <= 1.1)
    ratio = await dead_ratio(lambda: Delivery(hang), slow=False)
    figure("a run with a dead target, model of 0 ms", f"{ratio:.3f} x")
    return await subscribers() and met


if __name__ == "__main__":
    sys.exit(0 if asyncio.run(main()) else 1)
