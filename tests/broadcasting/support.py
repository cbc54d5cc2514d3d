"""Envelopes to send, and targets of all characters to send them to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from whyloop.broadcasting.transports import Envelope
from whyloop.wire.envelope import NUMBERED

NAMES = {"status": "agent.status", "chunk": "agent.stream.chunk", "step": "agent.step.started"}


def envelope(event: str = "step", /, seq: int = 1, session: str = "s1", **data: Any) -> dict[str, Any]:
    """Return an envelope of an event: a status, a chunk, a step, or by its full name."""
    return {
        "v": 1,
        "event": NAMES.get(event, event),
        "seq": seq,
        "timestamp": "2026-01-16T10:05:01.123Z",
        "agent_id": "1a2b3c4d5e6f",
        "session_id": session,
        "execution_id": "e1",
        "data": data,
    }


async def until(condition: Callable[[], object]) -> None:
    """Wait for something that happens soon, or fail."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


def seqs(envelopes: Sequence[Envelope]) -> list[int]:
    return [each["seq"] for each in envelopes]


def numbers(envelopes: Sequence[Envelope]) -> list[int]:
    """Return the numbers of the numbered envelopes."""
    return [each["seq"] for each in envelopes if each["event"] in NUMBERED]


def statuses(envelopes: Sequence[Envelope]) -> list[str]:
    return [each["data"]["status"] for each in envelopes if each["event"] == "agent.status"]


class Target:
    """Whoever envelopes are sent to: takes them, after raising what it was given to raise."""

    def __init__(self, *failures: BaseException) -> None:
        self.failures = list(failures)
        self.batches: list[list[Envelope]] = []
        self.attempts = 0

    async def __call__(self, batch: Sequence[Envelope]) -> None:
        self.attempts += 1
        if self.failures:
            raise self.failures.pop(0)
        self.batches.append(list(batch))

    @property
    def received(self) -> list[Envelope]:
        return [each for batch in self.batches for each in batch]


class Gate:
    """A target that takes nothing until it is opened."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.received: list[Envelope] = []
        self.reached = asyncio.Event()

    async def __call__(self, batch: Sequence[Envelope]) -> None:
        self.reached.set()
        await self.open.wait()
        self.received += batch


async def hang(batch: Sequence[Envelope]) -> None:
    """A target that never answers."""
    await asyncio.Event().wait()


class Naps:
    """A sleep that takes no time and remembers how long it was to be."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        await asyncio.sleep(0)
