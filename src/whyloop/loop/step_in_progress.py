"""The step that a run is working on."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from whyloop.loop.request import RequestParts
from whyloop.values.step import Interruption


class StepInProgress:
    """What this process knows of a step beyond the state, so that it can be settled whenever it is cut off."""

    def __init__(self, now: datetime, monotonic: Callable[[], float], request: RequestParts) -> None:
        self.taken_up_at = now
        self.request = request
        self.response_changed_by: tuple[str, ...] = ()
        self.interrupted: Interruption | None = None
        self.interruptible = True
        """True while the model answers; calls that run have a grace period."""
        self.chunks: list[str] = []
        """The text of the answer as far as it has arrived."""
        self.unlaunched: set[int] = set()
        """Calls that were recorded as started for the first time by this process, and do not run yet."""
        self._counted = 0.0
        self._monotonic = monotonic
        self._lapped_at = monotonic()

    def lap(self, in_all: float = 0.0) -> float:
        """Return the active seconds since the previous lap; all laps together are at least `in_all`."""
        now = self._monotonic()
        seconds = max(0.0, now - self._lapped_at, in_all - self._counted)
        self._lapped_at = now
        self._counted += seconds
        return seconds
