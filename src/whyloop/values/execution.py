"""The work on one user query, and the clocks of the session around it."""

from __future__ import annotations

from enum import StrEnum

import msgspec
from msgspec import Struct

from whyloop.values.approval import Approval, Question
from whyloop.values.budget import Budget
from whyloop.values.continuation import ContinuationOutcome, StopReason
from whyloop.values.failure import FailureTally
from whyloop.values.ids import new_id
from whyloop.values.times import Count, Moment, Seconds, utc_now
from whyloop.values.usage import NO_USAGE, Usage


class AgentStatus(StrEnum):
    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    PAUSED = "paused"
    COMPLETED = "completed"
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def has_ended(self) -> bool:
        return self is AgentStatus.COMPLETED or self is AgentStatus.STOPPED or self is AgentStatus.FAILED

    @classmethod
    def after(cls, outcome: ContinuationOutcome) -> AgentStatus:
        """Return the status of a run after a step with this outcome."""
        if outcome.should_continue:
            return cls.IN_PROGRESS
        if outcome.stop_reason is None:
            return cls.PAUSED
        return _STATUS_AFTER.get(outcome.stop_reason, cls.STOPPED)


_STATUS_AFTER = {
    StopReason.COMPLETED: AgentStatus.COMPLETED,
    StopReason.ERROR_FORBADE: AgentStatus.FAILED,
    StopReason.RETRY_LIMIT_REACHED: AgentStatus.FAILED,
}


class Execution(Struct, frozen=True, gc=False, omit_defaults=True):
    """The work on one user query: its counters, and the four times that are measured apart.

    Active: models and tools at work. Waiting: stopped or paused, until a person resumed it.
    Backoff: waiting out a provider. Wall: from the query to the last thing that happened.
    """

    id: str = msgspec.field(default_factory=new_id)
    started_at: Moment = msgspec.field(default_factory=utc_now)
    """When the query arrived."""
    updated_at: Moment | None = None
    leg_started_at: Moment | None = None
    """When the query arrived, or when it was last resumed."""
    step_count: Count = 0
    usage: Usage = NO_USAGE
    failures: FailureTally = FailureTally()
    active_seconds: Seconds = 0.0
    waiting_seconds: Seconds = 0.0
    backoff_seconds: Seconds = 0.0
    resumes: Count = 0
    resumed_from: AgentStatus | None = None
    """The status that the last resume found."""
    granted: Budget | None = None
    """What a person allowed on top of the limits."""
    stop_request: str | None = None
    """The reason of a request to stop."""
    last_seq: Count = 0
    """The number of the last numbered envelope."""
    wait_until: Moment | None = None
    """Until when the next model call waits for the provider."""
    recoveries: Count = 0
    """How often the run was continued after a crash since its last closed step."""
    question: Question | None = None
    """What a person is asked about the run itself, after it crashed too often."""
    approvals: tuple[Approval, ...] = ()
    """What people decided about the run itself."""
    last_response: str = ""
    """The last text of the assistant to this query."""
    has_tool_results: bool = False
    """True once a tool result of this execution is in the history."""

    @property
    def wall_seconds(self) -> float:
        if self.updated_at is None:
            return 0.0
        return max(0.0, (self.updated_at - self.started_at).total_seconds())

    @property
    def leg_seconds(self) -> float:
        """The seconds from the start of the current leg to the last thing that happened."""
        if self.updated_at is None:
            return 0.0
        started = self.started_at if self.leg_started_at is None else self.leg_started_at
        return max(0.0, (self.updated_at - started).total_seconds())  # A clock may have been set back.


class StateInfo(Struct, frozen=True, gc=False):
    """The session's own clocks, for audit: its age, and all the time that was ever spent on it."""

    started_at: Moment = msgspec.field(default_factory=utc_now)
    updated_at: Moment = msgspec.field(default_factory=utc_now)
    cumulative_execution_seconds: Seconds = 0.0

    def add_execution_time(self, seconds: float) -> StateInfo:
        return StateInfo(self.started_at, self.updated_at, self.cumulative_execution_seconds + seconds)
