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


class StepWaits:
    """The waits of the models that a step asks, by the clock of its run."""

    __slots__ = ("_step", "_world")

    def __init__(self, world: World, step: StepInProgress) -> None:
        self._world = world
        self._step: StepInProgress | None = step

    def end(self) -> None:
        """Let go of the step: a task that its model started may live on with this context."""
        self._step = None

    def random(self) -> float:
        return self._world.random()

    async def wait(self, failure: str, seconds: float) -> ModelAttempt:
        """Wait, and add the attempt to the step, also if the wait is interrupted."""
        step, world = self._step, self._world
        if step is None:
            await world.sleep(seconds)
            return ModelAttempt(failure, waited=seconds)
        started, index = world.monotonic(), len(step.attempts)
        took = step.active_until(started) - sum([attempt.seconds for attempt in step.attempts])
        step.attempts.append(ModelAttempt(failure, max(0.0, took), seconds))
        step.set_waited(step.waited + seconds)  # Now, so that the deadline of a limit on active time moves.
        if step.on_wait is not None:
            step.on_wait(step.waited)
        usage, step.usage = step.usage, NO_USAGE
        try:
            await world.sleep(seconds)
        finally:
            waited = max(0.0, world.monotonic() - started)
            step.attempts[index] = attempt = replace(step.attempts[index], waited=waited)
            step.set_waited(step.waited + waited - seconds)
        step.usage = usage
        return attempt


asking: ContextVar[StepWaits | None] = ContextVar("asking", default=None)
"""The waits of the step whose model is asked in this context."""


def randomness() -> float:
    """Return a random number from 0 to 1, of the run that asks if there is one."""
    waits = asking.get()
    return random.random() if waits is None else waits.random()


async def wait_to_repeat(failure: str, seconds: float) -> ModelAttempt:
    """Wait before a model repeats a request, and return the attempt that failed.

    Inside a run, the clock of the run measures the wait, no active time includes it, a stop or a deadline
    interrupts it, and the attempt is in the source of the step.

    Args:
        failure: Why the attempt failed, in a word or two: "429".
        seconds: The length of the wait.
    """
    failure, waits = shortened(clean(failure), FAILURE_LENGTH), asking.get()
    if waits is not None:
        return await waits.wait(failure, seconds)
    await asyncio.sleep(seconds)
    return ModelAttempt(failure, waited=seconds)
