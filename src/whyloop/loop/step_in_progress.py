"""The step that a run is working on."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from whyloop.loop.request import RequestParts
from whyloop.values.step import Interruption


class StepInProgress(Struct):
    """What this process knows of a step beyond the state, to settle it whenever it is cut off."""

    taken_up_at: datetime
    lapped_at: float
    """The reading of the stopwatch up to which its time is counted."""
    request: RequestParts
    counted: float = 0.0
    """The active seconds of this step that the state has counted."""
    response_changed_by: tuple[str, ...] = ()
    interrupted: Interruption | None = None
    cut_off_by: Interruption | None = None
    """Why its work was cancelled; it may finish all the same."""
    is_wait: bool = False
    """True for a provider's backoff before a step: it is no work, so no deadline interrupts it."""
    interruptible: bool = True
    """True while the model answers; calls that run have a grace period."""
    chunks: list[str] = []
    """The text of the answer as far as it has arrived."""
    chunk_count: int = 0
    """The number of chunks that were sent, of text and of reasoning."""
    to_run: tuple[int, ...] = ()
    """The calls that were recorded as started by this process."""
    unlaunched: tuple[int, ...] = ()
    """Those of them that were never started before, while they do not run yet."""

    def lap(self, monotonic: float, until: datetime | None = None) -> float:
        """Return the active seconds since the previous lap, at least those up to a moment."""
        seconds, self.lapped_at = monotonic - self.lapped_at, monotonic
        if until is not None:
            seconds = max(seconds, (until - self.taken_up_at).total_seconds() - self.counted)
        self.counted += seconds
        return seconds
