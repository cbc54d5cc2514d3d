"""Transitions: what happened in a session, each with the state that follows.

A run produces transitions, the journal stores exactly these, and a session is loaded by applying them in
order: `reduce(apply, transitions, AgentState(agent_id=…))`. Nothing else changes a recorded state.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from msgspec import UNSET, Struct
from msgspec.structs import replace

from whyloop.values.approval import Question
from whyloop.values.continuation import Budget
from whyloop.values.execution import AgentStatus, Execution
from whyloop.values.failure import ErrorType, FailureTally
from whyloop.values.log import Log
from whyloop.values.messages import Message, MessageRole
from whyloop.values.scalars import Count, Moment, Seconds
from whyloop.values.state import AgentState, StateInfo
from whyloop.values.step import RequestPart, Step

_IN_PROGRESS, _PENDING, _PAUSED = AgentStatus.IN_PROGRESS, AgentStatus.PENDING, AgentStatus.PAUSED


class Transition(Struct, frozen=True, gc=False, omit_defaults=True, tag_field="is"):
    """A change of a session, and when it happened."""

    at: Moment
    """When it happened."""

    def envelope_count(self) -> int:
        """Return the number of its numbered envelopes, which the journal alone determines."""
        return 0

    @abstractmethod
    def apply_to(self, state: AgentState) -> AgentState:
        """Return the state after this transition."""


def apply(state: AgentState, transition: Transition) -> AgentState:
    """Return the state after one transition."""
    return transition.apply_to(state)


# The session


class Created(Transition, frozen=True, tag="created", kw_only=True):
    """The creation of a session without a query."""

    identity: str
    """The identity of the session, which is never used again."""
    parent_agent_id: str | None = None
    """The session whose tool runs this one, if there is one."""
    metadata: Mapping[str, Any] = {}
    """The entries that the application gave to the session."""
    agent: str = ""
    """The name of the agent."""
    key: str | None = None
    """The idempotency key of the request."""

    def apply_to(self, state: AgentState) -> AgentState:
        return AgentState(
            agent_id=state.agent_id,
            identity=self.identity,
            parent_agent_id=self.parent_agent_id,
            metadata=self.metadata,
            agent=self.agent,
            state_info=StateInfo(self.at, self.at),
            execution=Execution(id="", started_at=self.at),
        )


class Restored(Transition, frozen=True, tag="restored", kw_only=True):
    """The import of a session with a state from elsewhere."""

    identity: str
    """The identity of the session, which is never used again."""
    state: dict[str, Any]
    """The full snapshot of the session."""
    key: str | None = None
    """The idempotency key of the request."""

    def apply_to(self, state: AgentState) -> AgentState:
        restored = AgentState.from_dict({**self.state, "agent_id": state.agent_id})
        return replace(restored, identity=self.identity)


class Forked(Transition, frozen=True, tag="forked", kw_only=True):
    """The start of a session that branches off another one.

    Every call without a result is asked about again; if there is none, an open question about the run is. A
    `Judged` with the pause follows.
    """

    identity: str
    """The identity of the new session."""
    execution_id: str
    """The new id of the current execution."""
    from_agent_id: str
    """The session that it branches off."""
    step: Count
    """The number of steps that it shares with that session."""
    questions: Mapping[int, Question] = {}
    """The questions about calls without a result, by the index of the call."""
    question: Question | None = None
    """The question about the run itself, if one was open and no call is asked about."""
    key: str | None = None
    """The idempotency key of the request."""

    def envelope_count(self) -> int:
        return len(self.questions) + (self.question is not None)

    def apply_to(self, state: AgentState) -> AgentState:
        step, status, asks = state.open_step, state.status, self.envelope_count() > 0
        for index, question in self.questions.items():
            assert step is not None
            call = replace(step.calls[index].without_decision(), question=question)
            step = step.with_call(index, call)
        if asks:
            status = _PAUSED
        elif status is _IN_PROGRESS:
            status = _PENDING
        origin = {"agent_id": self.from_agent_id, "step": self.step}
        return replace(
            state,
            identity=self.identity,
            status=status,
            metadata={**state.metadata, "forked_from": origin},
            state_info=replace(state.state_info, started_at=self.at, updated_at=self.at),
            open_step=step,
            execution=replace(
                state.execution,
                id=self.execution_id,
                last_seq=self.envelope_count(),
                question=self.question,
                recoveries=0,
                # The request was to stop the original.
                stop_request=None if asks else state.execution.stop_request,
            ),
        )


class MetadataSet(Transition, frozen=True, tag="metadata_set", kw_only=True):
    """A change of the metadata, between runs.

    It is no work on the session: no clock moves, and lists keep the time of its last change.
    """

    entries: Mapping[str, Any]
    """The new entries; None removes an entry."""
    by: str | None = None
    """The person or program that set them, if it is known."""
    key: str | None = None
    """The idempotency key of the request."""

    def apply_to(self, state: AgentState) -> AgentState:
        return replace(state, metadata=with_entries(state.metadata, self.entries))


def with_entries(metadata: Mapping[str, Any], entries: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata with these entries; one that is None is removed."""
    merged = {**metadata, **entries}
    return {key: value for key, value in merged.items() if key not in entries or value is not None}


# The execution


class Queried(Transition, frozen=True, tag="queried", kw_only=True):
    """A query of a user: a new execution, with fresh counters and clocks."""

    execution_id: str
    """The id of the new execution."""
    message: Message
    """The query."""
    agent: str = ""
    """The name of the agent."""
    key: str | None = None
    """The idempotency key of the request."""
    untimed: bool = False
    """True if the times of the execution are unknown: it was imported from a log without them."""

    def apply_to(self, state: AgentState) -> AgentState:
        return replace(
            state,
            status=_PENDING,
            agent=self.agent or state.agent,
            messages=Log.of(state.messages).appended(self.message),
            steps=Log.of(state.steps),
            state_info=replace(state.state_info, updated_at=self.at),
            execution=Execution(
                id=self.execution_id,
                started_at=self.at,
                updated_at=self.at,
                leg_started_at=self.at,
                untimed=self.untimed,
            ),
            last_continuation_outcome=None,
            execution_started_at=self.at,
            open_step=None,
            decoded_output=UNSET,
        )


class Resumed(Transition, frozen=True, tag="resumed", kw_only=True):
    """The continuation of a paused, stopped or failed execution by a person.

    After a wrap-up, the model is asked to continue, because it was told that its last answer was due.
    """

    grant: Budget | None = None
    """The budget that a person adds to the limits."""
    agent: str = ""
    """The name of the agent."""
    key: str | None = None
    """The idempotency key of the request."""

    def apply_to(self, state: AgentState) -> AgentState:
        execution, messages, last = state.execution, Log.of(state.messages), state.current_step
        if last is not None and last.wrap_up is not None and _ends_with(state, last):
            messages = messages.appended(Message(MessageRole.DEVELOPER, RESUMED, source=RESUMED_BY))
        granted = execution.granted if self.grant is None else (execution.granted or Budget()) + self.grant
        waited = (self.at - (execution.updated_at or execution.started_at)).total_seconds()
        return replace(
            state,
            status=_PENDING,
            agent=self.agent or state.agent,
            messages=messages,
            steps=Log.of(state.steps),
            state_info=replace(state.state_info, updated_at=self.at),
            execution=replace(
                execution,
                updated_at=self.at,
                leg_started_at=self.at,
                resumes=execution.resumes + 1,
                failures=FailureTally(0, execution.failures.total),
                resumed_from=state.status,
                granted=granted,
                waiting_seconds=execution.waiting_seconds + max(0.0, waited),
                # A stop request that arrived during the pause is still open.
                stop_request=execution.stop_request if state.status is _PAUSED else None,
                wait_until=None,
                recoveries=0,
                untimed=False,
                wrap_up=None,
            ),
            last_continuation_outcome=None,
            execution_started_at=self.at,
        )


RESUMED_BY = ("wrap_up",)
"""The source of the message that continues a run after the answer of a wrap-up."""
RESUMED = "The run was resumed after your last answer. Continue the work: tools can be called again."


def _ends_with(state: AgentState, step: Step) -> bool:
    """Return whether the history ends with a message of this step."""
    return step.message_count > 0 and state.messages.length == step.first_message + step.message_count


class Begun(Transition, frozen=True, tag="begun"):
    """The start of work on an execution, or of another leg of one that was restored."""

    leg: bool = False
    """True if the state was restored, so that a leg begins without a query and without a resume."""

    @classmethod
    def of(cls, state: AgentState, now: datetime, *, is_recorded: bool) -> Begun | None:
        """Return how work on a state begins; None if it goes on.

        A restored state begins a leg. If the run `is_recorded`, it was recovered, and its leg goes on.
        """
        leg = state.execution_started_at is None and not is_recorded
        if state.status is _PENDING or (leg and state.status is _IN_PROGRESS):
            return cls(now, leg=leg)
        return None

    def envelope_count(self) -> int:
        return 1

    def apply_to(self, state: AgentState) -> AgentState:
        if self.leg:
            state = state.mark_execution_started(self.at)
        execution = state.execution
        return replace(
            state,
            status=_IN_PROGRESS,
            execution=replace(execution, last_seq=execution.last_seq + 1),
            execution_started_at=state.execution_started_at or self.at,
        )


class Recovered(Transition, frozen=True, tag="recovered", kw_only=True):
    """The continuation of an execution by another runner, after its runner died.

    Its leg and its clock continue. With a `question`, the execution waits until a person decides.
    """

    question: Question | None = None
    """The question to a person, if the run crashed too often."""

    def envelope_count(self) -> int:
        return self.question is not None

    def apply_to(self, state: AgentState) -> AgentState:
        execution = state.execution
        execution = replace(
            execution,
            updated_at=self.at,
            recoveries=execution.recoveries + 1,
            question=self.question,
            last_seq=execution.last_seq + self.envelope_count(),
        )
        return replace(state, execution=execution, execution_started_at=self.at)


class StopRequested(Transition, frozen=True, tag="stop_requested", kw_only=True):
    """A request to end the run. No clock moves, so time limits decide as before."""

    reason: str
    """The reason of the request."""
    key: str | None = None
    """The idempotency key of the request."""

    def apply_to(self, state: AgentState) -> AgentState:
        return replace(
            state,
            execution=replace(state.execution, stop_request=self.reason),
            state_info=replace(state.state_info, updated_at=self.at),
        )


class RetryPlanned(Transition, frozen=True, tag="retry_planned", kw_only=True):
    """The plan to retry a failure; a model call is repeated after some seconds.

    The wait is computed when the step is settled, so a new process only waits for the remainder.
    """

    seconds: Seconds
    """The wait before the retry."""
    attempt: Count
    """The number of this retry, starting at 1."""
    max_retries: Count
    """The number of retries that the policy allows."""
    error_type: ErrorType
    """The type of the failure."""

    def envelope_count(self) -> int:
        return 1

    def apply_to(self, state: AgentState) -> AgentState:
        execution = state.execution
        until = self.at + timedelta(seconds=self.seconds) if self.seconds else None
        return replace(state, execution=replace(execution, wait_until=until, last_seq=execution.last_seq + 1))


class Waited(Transition, frozen=True, tag="waited", kw_only=True):
    """The end of the wait before a retry."""

    seconds: Seconds
    """The length of the wait."""

    def apply_to(self, state: AgentState) -> AgentState:
        execution = state.execution
        total = execution.backoff_seconds + self.seconds
        return replace(
            state,
            execution=replace(execution, updated_at=self.at, backoff_seconds=total, wait_until=None),
        )


class Noted(Transition, frozen=True, tag="noted", kw_only=True):
    """The first use of a text that requests refer to by its hash."""

    part: RequestPart
    """The text and its hash."""

    def apply_to(self, state: AgentState) -> AgentState:
        return replace(state, request_parts=state.request_parts.appended(self.part))
