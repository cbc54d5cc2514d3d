"""A step in progress: the facts about it that are not in the state."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from msgspec import Struct

from whyloop.loop.output import TypedAnswer
from whyloop.loop.setup import RequestParts
from whyloop.values.messages import Message
from whyloop.values.model import ModelAttempt, Usage
from whyloop.values.step import Interruption


class StepInProgress(Struct, gc=False):
    """The facts about a step that are not in the state, so that it can be settled at any time."""

    begun_at: datetime
    """When this process began to work on the step."""
    lapped_at: float
    """The reading of the stopwatch up to which its time is counted."""
    request: RequestParts
    """The record of the request, and its texts."""
    left: Message | None = None
    """The rest of the limits, for the model to read with the request."""
    counted: float = 0.0
    """The active seconds of this step that the state has counted."""
    attempts: tuple[ModelAttempt, ...] = ()
    """The requests that failed and were repeated, with the waits between them."""
    waited: float = 0.0
    """The seconds of these waits."""
    on_wait: Callable[[float], object] | None = None
    """A function that receives these seconds when a wait begins, for an engine that keeps time elsewhere."""
    response_changed_by: tuple[str, ...] = ()
    """The hooks that changed the response."""
    interrupted: Interruption | None = None
    """Why the step was cut off; None if it was not."""
    cut_off_by: Interruption | None = None
    """Why its work was cancelled; it may still finish."""
    is_wait: bool = False
    """True for a provider's backoff before a step: it is not work, so no deadline interrupts it."""
    interruptible: bool = True
    """True while the model answers; calls that run have a grace period."""
    chunks: list[str] = []
    """The text of the answer as far as it has arrived."""
    chunk_count: int = 0
    """The number of chunks that were sent, of text and of reasoning."""
    sent: int = 0
    """The characters of a typed answer that were sent as text."""
    holds_back: bool = False
    """True once the JSON of a typed answer has begun, which is not sent as text."""
    usage: Usage | None = None
    """The usage of an answer that has arrived and is being read."""
    answer: TypedAnswer | None = None
    """The output in the answer; None for an agent without an output type."""
    to_run: tuple[int, ...] = ()
    """The calls that were recorded as started by this process."""
    repeated: tuple[int, ...] = ()
    """Those of them that an earlier process had started."""
    launched: bool = False
    """True once they run."""

    @property
    def unlaunched(self) -> tuple[int, ...]:
        """The calls that were never started, although they were recorded as started."""
        return () if self.launched else tuple([i for i in self.to_run if i not in self.repeated])

    @property
    def settled_seconds(self) -> float:
        """The seconds of this step that no limit on active time counts any more."""
        return self.counted + self.waited

    def active_until(self, monotonic: float) -> float:
        """Return the active seconds since the previous lap."""
        return monotonic - self.lapped_at

    def set_waited(self, seconds: float) -> None:
        """Take this much waiting between attempts out of the active time."""
        self.lapped_at += seconds - self.waited
        self.waited = seconds

    def lap(self, monotonic: float, until: datetime | None = None) -> float:
        """Return the active seconds since the previous lap, at least those up to a moment."""
        seconds, self.lapped_at = float(monotonic - self.lapped_at), monotonic
        if until is not None:
            seconds = max(seconds, (until - self.begun_at).total_seconds() - self.settled_seconds)
        if self.waited:  # By two models of a hook at the same time, perhaps.
            seconds = max(seconds, 0.0)
        self.counted += seconds
        return seconds
