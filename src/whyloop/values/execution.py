"""The work on one user query, and the clocks of the session around it."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from whyloop.values.budget import Budget
from whyloop.values.failure import FailureTally
from whyloop.values.ids import new_id
from whyloop.values.times import Count, Moment, Seconds, utc_now
from whyloop.values.usage import Usage


class Execution(Struct, frozen=True, gc=False):
    """The work on one user query: its counters and the four times that are measured apart.

    Active: models and tools at work. Waiting: stopped or paused, until a person resumed it.
    Backoff: waiting out a provider. Wall: from the query to the last thing that happened.
    `granted` is what a person allowed on top of the limits.
    """

    id: str = msgspec.field(default_factory=new_id)
    started_at: Moment = msgspec.field(default_factory=utc_now)
    updated_at: Moment | None = None
    step_count: Count = 0
    usage: Usage = Usage()
    failures: FailureTally = FailureTally()
    active_seconds: Seconds = 0.0
    waiting_seconds: Seconds = 0.0
    backoff_seconds: Seconds = 0.0
    resumes: Count = 0
    granted: Budget | None = None
    stop_request: str | None = None

    @property
    def wall_seconds(self) -> float:
        if self.updated_at is None:
            return 0.0
        return max(0.0, (self.updated_at - self.started_at).total_seconds())


class StateInfo(Struct, frozen=True, gc=False):
    """The session's own clocks, for audit: its age, and all the time that was ever spent on it."""

    started_at: Moment = msgspec.field(default_factory=utc_now)
    updated_at: Moment = msgspec.field(default_factory=utc_now)
    cumulative_execution_seconds: Seconds = 0.0

    def add_execution_time(self, seconds: float) -> StateInfo:
        return StateInfo(self.started_at, self.updated_at, self.cumulative_execution_seconds + seconds)
