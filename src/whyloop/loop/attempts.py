"""The waits of a model between its attempts: in the record of the step, and in no active clock."""

from __future__ import annotations

import asyncio
import random
from contextvars import ContextVar
from typing import TYPE_CHECKING

from msgspec.structs import replace

from whyloop.values.model import NO_USAGE, ModelAttempt
from whyloop.values.text import clean, shortened

if TYPE_CHECKING:
    from whyloop.loop.step import StepInProgress
    from whyloop.loop.world import World

FAILURE_LENGTH = 60


asking: ContextVar[tuple[World, StepInProgress] | None] = ContextVar("asking", default=None)
"""The world and the step of the run that asks a model in this context."""


def randomness() -> float:
    """Return a random number from 0 to 1, of the run that asks if there is one."""
    asked = asking.get()
    return random.random() if asked is None else asked[0].random()


async def wait_to_repeat(failure: str, seconds: float) -> ModelAttempt:
    """Wait before a model repeats a request, and return the attempt that failed.

    Inside a run, the clock of the run measures the wait, no active time includes it, a stop or a deadline
    interrupts it, and the attempt is in the source of the step.

    Args:
        failure: Why the attempt failed, in a word or two: "429".
        seconds: The length of the wait.
    """
    failure, asked = shortened(clean(failure), FAILURE_LENGTH), asking.get()
    if asked is not None:
        return await _wait(*asked, failure, seconds)
    await asyncio.sleep(seconds)
    return ModelAttempt(failure, waited=seconds)


async def _wait(world: World, step: StepInProgress, failure: str, seconds: float) -> ModelAttempt:
    """Wait, and add the attempt to the step, also if the wait is interrupted."""
    started, before = world.monotonic(), step.attempts
    took = step.active_until(started) - sum([attempt.seconds for attempt in before])
    attempt = ModelAttempt(failure, max(0.0, took), seconds)
    step.attempts = (*before, attempt)
    step.set_waited(step.waited + seconds)  # Now, so that the deadline of a limit on active time moves.
    if step.on_wait is not None:
        step.on_wait(step.waited)
    usage, step.usage = step.usage, NO_USAGE
    try:
        await world.sleep(seconds)
    finally:
        waited = max(0.0, world.monotonic() - started)
        measured = replace(attempt, waited=waited)
        step.attempts = tuple([measured if each is attempt else each for each in step.attempts])
        step.set_waited(step.waited + waited - seconds)
    step.usage = usage
    return measured
