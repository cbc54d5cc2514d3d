"""What it costs to be watched, and what it takes to tell a thousand: `make bench-broadcast`.

Times are taken within one run of this program, in turns, and the best of them are compared with each
other, since machines are noisy.
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

import msgspec

from benchmarks.loop import report
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


async def timed(
    agent: Agent,
    transport: Delivery | None,
    config: BroadcastConfig = STANDARD,
    *,
    to_the_end: bool = False,
) -> float:
    """Seconds of a run with whoever watches it, and until all of it has arrived if that is to be counted."""
    session = agent.new_session()
    if transport is not None:
        agent.subscribe(AgentEventEnvelopeAdapter(transport, config))
    started = time.perf_counter()
    await agent.run("go", state=session)
    if to_the_end and transport is not None:
        await transport.close()
    seconds = time.perf_counter() - started
    if transport is not None:
        await transport.close(timeout=0)
    if to_the_end and transport is not None and transport.dropped:
        raise RuntimeError(f"not all of it has arrived: {transport.dropped}")
    return seconds


async def events_of_a_run() -> list[AgentEvent]:
    events: list[AgentEvent] = []
    agent = make_agent(STEPS)
    agent.subscribe(events.append)
    await agent.run("go")
    return events


def encoding(events: list[AgentEvent], config: BroadcastConfig) -> tuple[float, int]:
    """Microseconds for an envelope as JSON, on average over a run, and how many there are."""
    encode = msgspec.json.Encoder().encode
    told = [event for event in events if envelope(event, config) is not None]
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        for event in told:
            encode(envelope(event, config))
        times.append((time.perf_counter() - started) / len(told) * 1e6)
    return min(times), len(told)


async def added(
    make: Callable[[], Delivery],
    count: int,
    config: BroadcastConfig = STANDARD,
    *,
    to_the_end: bool = False,
) -> float:
    """Microseconds that each envelope adds to a run, sent and all."""
    plain, watched = [], []
    for _ in range(ROUNDS):
        plain.append(await timed(make_agent(STEPS), None))
        watched.append(await timed(make_agent(STEPS), make(), config, to_the_end=to_the_end))
    return (min(watched) - min(plain)) / count * 1e6


async def dead_ratio(make: Callable[[], Delivery], *, slow: bool = True) -> float:
    """A run whose target never answers, beside the same run without one."""
    plain, watched = [], []
    for _ in range(ROUNDS):
        plain.append(await timed(slow_agent() if slow else make_agent(STEPS), None))
        watched.append(await timed(slow_agent() if slow else make_agent(STEPS), make()))
    return min(watched) / min(plain)


async def follower_cost(store: Store, count: int) -> float:
    """Microseconds that a follower in the same process adds to a stored run, for each envelope."""
    plain: list[float] = []
    followed: list[float] = []
    for _ in range(ROUNDS):
        for times, follows in ((plain, False), (followed, True)):
            session = await Session.open(store, make_agent(STEPS))
            following = asyncio.create_task(_follow(store, session.agent_id)) if follows else None
            await asyncio.sleep(0)
            started = time.perf_counter()
            await session.send("go")
            if following is not None:
                await following
            times.append(time.perf_counter() - started)
    return (min(followed) - min(plain)) / count * 1e6


async def _follow(store: Store, agent_id: str) -> None:
    async with EventFeed(store) as feed, aclosing(feed.follow(agent_id)) as following:
        async for items in following:
            if '"status":"completed"' in items[-1].body:
                return


async def feeds(count: int) -> bool:
    """What it costs a run to be followed, until the last envelope has arrived."""
    with tempfile.TemporaryDirectory() as folder:
        async with SqliteStore(Path(folder) / "whyloop.db") as sqlite, MemoryStore() as memory:
            stores: dict[str, Store] = {"memory": memory, "SQLite": sqlite}
            met = True
            for name, store in stores.items():
                cost = await follower_cost(store, count)
                label = f"an envelope with a follower, {name}"
                met &= report(label, f"{cost:.1f} µs", "at most 50 µs", cost <= 50)
    return met


async def subscribers() -> bool:
    """How long it takes until everybody has heard everything."""
    measured = await measure()
    label = f"{SUBSCRIBERS:,} subscribers, {ENVELOPES} envelopes each"
    met = measured.complete == SUBSCRIBERS
    report(f"{SUBSCRIBERS:,} subscribers, all connected", f"{measured.connected:.1f} s", "", True)
    met &= report(label, f"{measured.seconds:.1f} s", "at most 10 s", measured.seconds <= 10)
    return report("those who got all, in order", f"{measured.complete:,}", f"{SUBSCRIBERS:,}", met) and met


async def main() -> bool:
    met = True
    logging.getLogger("whyloop").setLevel(logging.ERROR)  # That envelopes are dropped is the point here.
    events = await events_of_a_run()
    for name, config in (("standard", STANDARD), ("debug", BroadcastConfig.debug())):
        took, count = encoding(events, config)
        judged = name == "standard"
        label = f"an envelope as JSON, {name}"
        met &= report(label, f"{took:.1f} µs", "at most 5 µs" if judged else "", took <= 5 or not judged)
        cost = await added(lambda: Delivery(take), count, config)
        met &= report(f"an event with a Delivery, {name}", f"{cost:.1f} µs", "at most 20 µs", cost <= 20)
    met &= await feeds(encoding(events, STANDARD)[1])
    ratio = await dead_ratio(lambda: Delivery(hang))
    met &= report(
        "a run with a dead target, model of 5 ms", f"{ratio:.3f} x", "at most 1.05 x", ratio <= 1.05
    )
    ratio = await dead_ratio(lambda: Delivery(hang), slow=False)
    report("a run with a dead target, model of 0 ms", f"{ratio:.3f} x", "", True)
    return await subscribers() and met


if __name__ == "__main__":
    sys.exit(0 if asyncio.run(main()) else 1)
