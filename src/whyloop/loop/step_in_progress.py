"""The step that a run is working on."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from whyloop.loop.request import RequestParts
from whyloop.values.step import Interruption


class StepInProgress:
    """What this process knows of a step beyond the state, to settle it whenever it is cut off."""

    def __init__(self, now: datetime, monotonic: Callable[[], float], request: RequestParts) -> None:
        self.taken_up_at = now
        self.request = request
        self.response_changed_by: tuple[str, ...] = ()
        self.interrupted: Interruption | None = None
        self.cut_off_by: Interruption | None = None
        """Why its work was cancelled; it may finish all the same."""
        self.interruptible = True
        """True while the model answers; calls that run have a grace period."""
        self.chunks: list[str] = []
        """The text of the answer as far as it has arrived."""
        self.unlaunched: set[int] = set()
        """Calls that were recorded as started for the first time by this process, and do not run yet."""
        self._counted = 0.0
        self._monotonic = monotonic
        self._lapped_at = monotonic()

    @property
    def counted_until(self) -> datetime:
        """The end of the previous lap: the state has counted the time of this step up to then."""
        return self.taken_up_at + timedelta(seconds=self._counted)

    def lap(self, until: datetime | None = None) -> float:
        """Return the active seconds since the previous lap, at least those up to a moment."""
        now = self._monotonic()
        seconds = max(0.0, now - self._lapped_at)
        if until is not None:
            seconds = max(seconds, (until - self.counted_until).total_seconds())
        self._lapped_at = now
        self._counted += seconds
        return seconds
