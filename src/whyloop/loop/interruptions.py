"""Interruptions of a run: stop requests, deadlines, the cancellation of its task."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Coroutine
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from whyloop.loop.world import Timer
from whyloop.values.step import Interruption

if TYPE_CHECKING:
    from whyloop.loop.run import Run
    from whyloop.loop.step import StepInProgress

# Timers and clocks differ by microseconds, and a limit must see that its time is up.
JUST_AFTER = timedelta(microseconds=1)

LATE_LOOK_SECONDS = 0.05


class Interruptions:
    """The means to end the work of a run early, from any thread.

    The model's answer and a wait end at once; calls that run have a grace period. One timer serves all the
    steps of a run: `asyncio.timeout` costs 6 µs for each.
    """

    def __init__(self, run: Run) -> None:
        # A weak reference makes no cycle, so a finished run is freed at once, without a garbage collection.
        self._run: Run = weakref.proxy(run)
        self._world = run.world
        self._step: StepInProgress | None = None  # While its work may be interrupted.
        self._task: asyncio.Task[object] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.deadline: datetime | None = None
        """When the time for the run is up, as of the latest look; None is never."""
        self._timer: Timer | None = None
        self._grace: Timer | None = None

    def attach(self) -> None:
        """Receive stop requests in the task that is running."""
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()

    def end(self) -> None:
        """Cancel the timer of the run, and let go of its task."""
        self._stop_watching()
        self._task = None  # Not a cycle: a task keeps its error, and the error the frames of the run.

    def _stop_watching(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def request_stop(self, reason: str) -> None:
        """Interrupt the run with this reason."""
        self._run.stop = reason
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._interrupt, Interruption.STOPPED)

    def stop_now(self, reason: str) -> None:
        """Interrupt the run with this reason, on its own event loop."""
        self._run.stop = reason
        self._interrupt(Interruption.STOPPED)

    async def run_until_interrupted(
        self, step: StepInProgress, work: Coroutine[Any, Any, None]
    ) -> BaseException | None:
        """Await some work until it is done, or until a stop or a deadline ends it.

        Return the error of a cancellation from outside.
        """
        task = self._task
        assert task is not None
        self._step, cancelling = step, task.cancelling()
        try:
            await work
        except asyncio.CancelledError as error:
            if step.cut_off_by is None or task.uncancel() > cancelling:
                return error
            step.interrupted = step.cut_off_by
        except KeyboardInterrupt as error:
            return error
        except Exception:
            if step.cut_off_by is not None:
                task.uncancel()
            raise
        else:
            if step.cut_off_by is not None:  # It finished although it was being cancelled.
                task.uncancel()
        finally:
            self._step = None
            if self._grace is not None:
                self._grace.cancel()
                self._grace = None
        return None

    def _interrupt(self, why: Interruption) -> None:
        """Cut the step off now, or when its running calls have had their grace period."""
        step = self._step
        if step is None:
            return
        if step.interruptible:
            self._cut_off(step, why)
        else:
            cut_off = partial(self._cut_off, step, why)
            self._grace = self._world.call_later(self._run.setup.stop_grace, cut_off)

    def _cut_off(self, step: StepInProgress, why: Interruption) -> None:
        if self._task is not None and step is self._step and step.cut_off_by is None:
            step.cut_off_by = why
            self._task.cancel()

    def model_waits(self, seconds: float) -> None:
        """Take all waits of a model elsewhere out of the active time, so that the deadline moves."""
        if self._step is not None:
            self._step.set_waited(max(seconds, self._step.waited))

    def watch_deadline(self) -> None:
        """Interrupt the step at its deadline.

        A limit on active time may move the deadline, so look again then.
        """
        step, now = self._step, self._world.now()
        if step is not None and step.is_wait:  # It ends at the deadline by itself.
            step = None
        started, counted = (now, 0.0) if step is None else (step.begun_at, step.settled_seconds)
        self._stop_watching()
        self.deadline = deadline = self._run.deadline(started, counted)
        if deadline is None:
            return
        left = (deadline - now).total_seconds()
        if left > 0:
            self._timer = self._world.call_later(left, self.watch_deadline)
        elif step is not None:
            self._interrupt(Interruption.OUT_OF_TIME)
        else:  # Between two steps, or in a wait: the next one starts with its own reading of the clock.
            self._timer = self._world.call_later(LATE_LOOK_SECONDS, self.watch_deadline)
