"""What it costs to be watched: `make bench-broadcast`.

Times are taken within one run of this program, in turns, and the best of them are compared with each
other, since machines are noisy.
A dead target is judged on a model that takes five milliseconds to answer, which is faster than any
real one; on the benchmark's own, which answers at once, the comparison is told and not judged.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import AsyncIterator, Sequence

import msgspec

from benchmarks.loop import report
from benchmarks.work import lookup, make_agent, script
from whyloop import Agent, ModelRequest, ModelResponse, TextDelta
from whyloop.broadcasting import AgentEventEnvelopeAdapter, BroadcastConfig, Delivery
from whyloop.broadcasting.adapter import Envelope
from whyloop.events import AgentEvent
from whyloop.testing import ScriptedModel
from whyloop.wire.envelope import envelope

ROUNDS = 21
STEPS = 200
MODEL_SECONDS = 0.005
SLOW_STEPS = 40


async def take(batch: Sequence[Envelope]) -> None:
    """A target that takes everything at once."""


async def hang(batch: Sequence[Envelope]) -> None:
    """A target that never answers."""
    await asyncio.Event().wait()


class SlowModel:
    """A scripted model that takes its time."""

    def __init__(self, steps: int) -> None:
        self._inner = ScriptedModel(script(steps))

    async def respond(self, request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        await asyncio.sleep(MODEL_SECONDS)
        async for piece in self._inner.respond(request):
            yield piece


def slow_agent() -> Agent:
    return Agent(SlowModel(SLOW_STEPS), [lookup], max_steps=SLOW_STEPS + 1)


async def timed(agent: Agent, delivery: Delivery | None, config: BroadcastConfig) -> float:
    """Seconds of a run, with whoever watches it."""
    if delivery is not None:
        agent.subscribe(AgentEventEnvelopeAdapter(delivery, config))
    started = time.perf_counter()
    await agent.run("go")
    seconds = time.perf_counter() - started
    if delivery is not None:
        await delivery.close(timeout=0)
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
    told = [event for event in events if envelope(event, 1, config) is not None]
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        for event in told:
            encode(envelope(event, 1, config))
        times.append((time.perf_counter() - started) / len(told) * 1e6)
    return min(times), len(told)


async def added(config: BroadcastConfig, count: int) -> float:
    """Microseconds that each envelope adds to a run, sent and all."""
    plain, watched = [], []
    for _ in range(ROUNDS):
        plain.append(await timed(make_agent(STEPS), None, config))
        watched.append(await timed(make_agent(STEPS), Delivery(take), config))
    return (min(watched) - min(plain)) / count * 1e6


async def dead_ratio(*, slow: bool) -> float:
    """A run whose target never answers, beside the same run without one."""
    config = BroadcastConfig.standard()
    plain, watched = [], []
    for _ in range(ROUNDS):
        plain.append(await timed(slow_agent() if slow else make_agent(STEPS), None, config))
        watched.append(await timed(slow_agent() if slow else make_agent(STEPS), Delivery(hang), config))
    return min(watched) / min(plain)


async def main() -> bool:
    met = True
    logging.getLogger("whyloop").setLevel(logging.ERROR)  # That envelopes are dropped is the point here.
    events = await events_of_a_run()
    for name, config in (("standard", BroadcastConfig.standard()), ("debug", BroadcastConfig.debug())):
        took, count = encoding(events, config)
        judged = name == "standard"
        label = f"an envelope as JSON, {name}"
        met &= report(label, f"{took:.1f} µs", "at most 5 µs" if judged else "", took <= 5 or not judged)
        cost = await added(config, count)
        met &= report(f"an event with a Delivery, {name}", f"{cost:.1f} µs", "at most 20 µs", cost <= 20)
    ratio = await dead_ratio(slow=True)
    met &= report(
        "a run with a dead target, model of 5 ms", f"{ratio:.3f} x", "at most 1.05 x", ratio <= 1.05
    )
    report("a run with a dead target, model of 0 ms", f"{await dead_ratio(slow=False):.3f} x", "", True)
    return met


if __name__ == "__main__":
    sys.exit(0 if asyncio.run(main()) else 1)
