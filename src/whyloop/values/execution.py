"""An execution, which is the work on one user query, and the status of its session."""

from __future__ import annotations

from enum import StrEnum

import msgspec
from msgspec import Struct

from whyloop.values.approval import Approval, Question
from whyloop.values.continuation import Budget, ContinuationOutcome, StopReason
from whyloop.values.failure import FailureTally
from whyloop.values.model import NO_USAGE, Usage
from whyloop.values.scalars import Count, Moment, Seconds, new_id, utc_now


class AgentStatus(StrEnum):
    """The status of a session."""

    PENDING = "pending"
    """No question was asked yet."""
    IN_PROGRESS = "in_progress"
    """It runs, or its process died and it can be recovered."""
    PAUSED = "paused"
    """It waits for a person."""
    COMPLETED = "completed"
    """The model answered."""
    STOPPED = "stopped"
    """A limit, a rule or a person ended the run."""
    FAILED = "failed"
    """An error ended the run."""

    @property
    def has_ended(self) -> bool:
        """True if the run has ended; a pause is not an end."""
        return self is AgentStatus.COMPLETED or self is AgentStatus.STOPPED or self is AgentStatus.FAILED

    @classmethod
    def after(cls, outcome: ContinuationOutcome) -> AgentStatus:
        """Return the status of a run after a step with this outcome.

        Args:
            outcome: The outcome.
        """
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
    """The work on one user query, with its counters and four separate times.

    Active: models and tools at work. Waiting: stopped, paused or stored, until somebody continued it.
    Backoff: waiting to retry. Wall: from the query to the latest transition.
    """

    id: str = msgspec.field(default_factory=new_id)
    """The id of the execution."""
    started_at: Moment = msgspec.field(default_factory=utc_now)
    """When the query arrived."""
    updated_at: Moment | None = None
    """When the latest transition happened."""
    leg_started_at: Moment | None = None
    """When the query arrived, or when it was last resumed, or continued after it was restored."""
    step_count: Count = 0
    """The closed steps, without wrap-ups."""
    usage: Usage = NO_USAGE
    """The tokens that it used."""
    failures: FailureTally = FailureTally()
    """The failed steps."""
    active_seconds: Seconds = 0.0
    """The time in which models and tools were at work."""
    waiting_seconds: Seconds = 0.0
    """The time in which it was stopped, paused or stored."""
    backoff_seconds: Seconds = 0.0
    """The time spent waiting before retries, and before a model repeated a request."""
    resumes: Count = 0
    """How often a person resumed it."""
    resumed_from: AgentStatus | None = None
    """The status that the last resume found."""
    granted: Budget | None = None
    """The budget that a person allowed on top of the limits."""
    stop_request: str | None = None
    """The reason of a stop request."""
    last_seq: Count = 0
    """The number of the last numbered envelope."""
    wait_until: Moment | None = None
    """The time until which the next model call waits for the provider."""
    recoveries: Count = 0
    """The number of recoveries from a crash since its last closed step."""
    question: Question | None = None
    """The question to a person about the run itself, after it crashed too often."""
    approvals: tuple[Approval, ...] = ()
    """The decisions of people about the run itself."""
    last_response: str = ""
    """The last text of the assistant to this query."""
    has_tool_results: bool = False
    """True once a tool result of this execution is in the history."""
    untimed: bool = False
    """True if its times are unknown: it was imported from a log without them, and has not been resumed."""
    wrap_up: str | None = None
    """The limit that ended the run, if its wrap-up has begun since the query or the last resume."""
    wrap_ups: Count = 0
    """The closed wrap-ups, which `step_count` does not include."""

    @property
    def step_number(self) -> int:
        """The number of the latest closed step; 0 before the first."""
        return self.step_count + self.wrap_ups

    def next_step_number(self) -> int:
        """Return the number of the step that is open, or that comes next."""
        return self.step_count + self.wrap_ups + 1

    @property
    def wall_seconds(self) -> float:
        """The seconds from the query to the latest transition."""
        if self.updated_at is None:
            return 0.0
        return max(0.0, (self.updated_at - self.started_at).total_seconds())
