"""A session as one immutable value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from whyloop.errors import ApprovalError, ConfigurationError
from whyloop.values import plain
from whyloop.values.approval import Approval, PendingCall, Verdict
from whyloop.values.budget import Budget
from whyloop.values.continuation import ContinuationDecision, ContinuationOutcome, StopReason
from whyloop.values.execution import Execution, StateInfo
from whyloop.values.failure import ErrorHandlingDecision
from whyloop.values.ids import new_id
from whyloop.values.log import Log
from whyloop.values.messages import Message
from whyloop.values.open_step import OpenStep
from whyloop.values.step import Step
from whyloop.values.text import clean, shortened
from whyloop.values.times import utc_now
from whyloop.values.usage import Usage

if TYPE_CHECKING:
    from whyloop.values.explanation import Explanation


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
        """The status of a run after a step with this outcome."""
        if outcome.should_continue:
            return _IN_PROGRESS
        if outcome.stop_reason is None:
            return cls.PAUSED
        return _STATUS_AFTER.get(outcome.stop_reason, cls.STOPPED)


_IN_PROGRESS = AgentStatus.IN_PROGRESS
_STATUS_AFTER = {
    StopReason.COMPLETED: AgentStatus.COMPLETED,
    StopReason.ERROR_FORBADE: AgentStatus.FAILED,
    StopReason.RETRY_LIMIT_REACHED: AgentStatus.FAILED,
}
_IGNORE = ErrorHandlingDecision.IGNORE
_REQUEST = ContinuationDecision.REQUEST_CONTINUATION
_ALLOW = ContinuationDecision.ALLOW_CONTINUATION
SOMEBODY = "somebody"


class AgentState(Struct, frozen=True, eq=False, gc=False, kw_only=True):
    """One conversation: what was said, what was done, and why each step went on or did not.

    Every change returns a new state and is complete in itself; history is only ever added to,
    so older states stay valid and share what they have in common with newer ones.
    `current_step` is the latest step of the current execution, None before its first.
    `open_step` is a step whose tool calls have not all come to an end.
    """

    agent_id: str = msgspec.field(default_factory=new_id)
    parent_agent_id: str | None = None
    status: AgentStatus = AgentStatus.PENDING
    messages: Log[Message] = msgspec.field(default_factory=Log)
    steps: Log[Step] = msgspec.field(default_factory=Log)
    current_step: Step | None = None
    usage: Usage = Usage()
    metadata: Mapping[str, Any] = {}
    state_info: StateInfo = msgspec.field(default_factory=StateInfo)
    execution: Execution = msgspec.field(default_factory=Execution)
    last_continuation_outcome: ContinuationOutcome | None = None
    execution_started_at: datetime | None = None
    open_step: OpenStep | None = None

    # What can be asked

    @property
    def step_count(self) -> int:
        """The steps of the whole session; `execution.step_count` has those of the current query."""
        return len(self.steps)

    @property
    def execution_steps(self) -> tuple[Step, ...]:
        """The steps of the current execution."""
        return self.steps[max(0, len(self.steps) - self.execution.step_count) :]

    @property
    def pending_calls(self) -> tuple[PendingCall, ...]:
        """The tool calls that wait for a person."""
        return self.open_step.pending if self.open_step else ()

    @property
    def stop_reason(self) -> StopReason | None:
        """Why the run ended; None while it has not."""
        outcome = self.last_continuation_outcome
        return outcome.stop_reason if outcome else None

    @property
    def last_response(self) -> str:
        """The last thing the assistant said to this query; empty if it has said nothing yet."""
        for message in reversed(self.messages):
            if message.is_user:
                break
            if message.is_assistant and message.text:
                return message.text
        return ""

    def messages_of(self, step: Step) -> tuple[Message, ...]:
        """What a step added to the conversation: the assistant's message, then the tools' results."""
        return self.messages[step.first_message : step.first_message + step.message_count]

    @property
    def explanation(self) -> Explanation:
        """Why the current execution continued or stopped, step by step, and what would let it continue."""
        from whyloop.values.explanation import explanation_of

        return explanation_of(self)

    def explain(self) -> str:
        """Return the text of `explanation`, for a person to read."""
        from whyloop.values.explanation import explanation_of
        from whyloop.values.explanation_text import MOST_STEPS

        return str(explanation_of(self, most_steps=MOST_STEPS))

    # What can happen

    def with_query(self, query: Message, *, execution_id: str, now: datetime) -> AgentState:
        """A user asks something: a new execution, with fresh counters and clocks."""
        return replace(
            self,
            status=AgentStatus.PENDING,
            messages=Log.of(self.messages).appended(query),
            steps=Log.of(self.steps),
            current_step=None,
            state_info=replace(self.state_info, updated_at=now),
            execution=Execution(id=execution_id, started_at=now, updated_at=now),
            last_continuation_outcome=None,
            execution_started_at=now,
        )

    def resumed(self, now: datetime, grant: Budget | None = None) -> AgentState:
        """A person lets a paused, stopped or failed execution go on; counters stay as they are."""
        execution = self.execution
        granted = execution.granted if grant is None else (execution.granted or Budget()) + grant
        waited = (now - (execution.updated_at or execution.started_at)).total_seconds()
        return replace(
            self,
            status=AgentStatus.PENDING,
            state_info=replace(self.state_info, updated_at=now),
            execution=replace(
                execution,
                updated_at=now,
                resumes=execution.resumes + 1,
                granted=granted,
                waiting_seconds=execution.waiting_seconds + max(0.0, waited),
                stop_request=None,
            ),
            last_continuation_outcome=None,
            execution_started_at=now,
        )

    def mark_execution_started(self, now: datetime | None = None) -> AgentState:
        """The wall clock of the current execution starts now."""
        return replace(self, execution_started_at=now or utc_now())

    def in_progress(self, now: datetime) -> AgentState:
        """The loop takes the execution up."""
        return replace(
            self,
            status=_IN_PROGRESS,
            messages=Log.of(self.messages),
            steps=Log.of(self.steps),
            execution_started_at=self.execution_started_at or now,
        )

    def with_backoff(self, seconds: float, now: datetime) -> AgentState:
        """A provider asked for patience and got it."""
        execution = self.execution
        return replace(
            self,
            execution=replace(execution, updated_at=now, backoff_seconds=execution.backoff_seconds + seconds),
        )

    def add_execution_time(self, seconds: float) -> AgentState:
        """Time that was spent on the session, for its own clock; no limit counts it."""
        return replace(self, state_info=self.state_info.add_execution_time(seconds))

    def with_stop_request(self, reason: str) -> AgentState:
        """Somebody outside wants this execution to end, for this reason."""
        return replace(self, execution=replace(self.execution, stop_request=reason))

    def with_metadata(self, entries: Mapping[str, object] | None = None, /, **more: object) -> AgentState:
        """The session's own notes, with these entries added or replaced; kept as JSON keeps them."""
        return replace(self, metadata={**self.metadata, **plain.jsonable({**(entries or {}), **more})})

    def with_step(self, step: Step, messages: Sequence[Message] = ()) -> AgentState:
        """A step was taken: its messages join the history and every counter moves on."""
        execution, info = self.execution, self.state_info
        seconds, failures = step.duration_ms / 1000, execution.failures
        if self.open_step is not None:
            seconds = max(0.0, seconds - self.open_step.counted)
        if step.failures or failures.consecutive:
            failures = failures.after(failed=bool(step.failures))
        return replace(
            self,
            messages=self.messages.extended(messages),
            steps=self.steps.appended(step),
            current_step=step,
            usage=self.usage + step.usage,
            state_info=StateInfo(
                info.started_at, step.completed_at, info.cumulative_execution_seconds + seconds
            ),
            execution=replace(
                execution,
                updated_at=step.completed_at,
                step_count=execution.step_count + 1,
                usage=execution.usage + step.usage,
                failures=failures,
                active_seconds=execution.active_seconds + seconds,
            ),
            open_step=None,
        )

    def with_open_step(self, step: OpenStep, now: datetime | None = None) -> AgentState:
        """The model has answered, or one of its calls has come further.

        With a time, the step is left for now, and the seconds that it took are counted.
        """
        if now is None:
            return replace(self, open_step=step)
        execution, info = self.execution, self.state_info
        seconds = step.seconds - step.counted
        return replace(
            self,
            open_step=replace(step, counted=step.seconds),
            state_info=StateInfo(info.started_at, now, info.cumulative_execution_seconds + seconds),
            execution=replace(execution, updated_at=now, active_seconds=execution.active_seconds + seconds),
        )

    def approve(self, call_id: str, *, by: str = SOMEBODY, now: datetime | None = None) -> AgentState:
        """A person lets a pending call run; `resume` goes on."""
        return self._decided(call_id, Verdict.APPROVED, by, now)

    def deny(
        self, call_id: str, reason: str = "", *, by: str = SOMEBODY, now: datetime | None = None
    ) -> AgentState:
        """A person does not let a pending call run; the model is told why."""
        return self._decided(call_id, Verdict.DENIED, by, now, reason or None)

    def edit(
        self,
        call_id: str,
        arguments: Mapping[str, object],
        *,
        by: str = SOMEBODY,
        now: datetime | None = None,
    ) -> AgentState:
        """A person lets a pending call run with other arguments; the model is told which."""
        if not isinstance(arguments, Mapping):
            raise ConfigurationError(
                f"arguments are given by name, as a dict, and not as {shortened(repr(arguments), 80)}"
            )
        return self._decided(call_id, Verdict.EDITED, by, now, arguments=plain.jsonable(arguments))

    def _decided(
        self,
        call_id: str,
        verdict: Verdict,
        by: str,
        now: datetime | None,
        reason: str | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> AgentState:
        if not isinstance(by, str) or not isinstance(reason, str | None):
            raise ConfigurationError("who decides, and the reason, are given in words")
        if self.open_step is None:
            raise ApprovalError("no tool call of this session waits for a decision")
        question = next((call.question for call in self.open_step.pending if call.id == call_id), "")
        now = now or utc_now()
        approval = Approval(
            verdict, clean(by).strip() or SOMEBODY, now, question, reason and clean(reason), arguments
        )
        return replace(
            self,
            open_step=self.open_step.decided(call_id, approval),
            state_info=replace(self.state_info, updated_at=now),
        )

    def with_continuation_outcome(self, outcome: ContinuationOutcome) -> AgentState:
        """The criteria have spoken about the latest step; the status follows from what they said."""
        execution, steps, step = self.execution, self.steps, self.current_step
        if self.open_step is None and step is not None:
            step = replace(step, outcome=outcome)
            steps = steps.with_last(step)
        if execution.failures.consecutive and outcome.failure_handling is _IGNORE:
            execution = replace(execution, failures=execution.failures.forgiven())
        decision = outcome.decision
        goes_on = decision is _REQUEST or decision is _ALLOW
        return replace(
            self,
            status=_IN_PROGRESS if goes_on else AgentStatus.after(outcome),
            steps=steps,
            current_step=step,
            execution=execution,
            last_continuation_outcome=outcome,
        )

    # What it looks like elsewhere

    def to_dict(self) -> dict[str, Any]:
        """The whole state as plain data, with the version of its schema."""
        from whyloop.values.snapshot import state_to_dict

        return state_to_dict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> AgentState:
        """The state that `to_dict` wrote, in this version or an older one; its execution clock is unset."""
        from whyloop.values.snapshot import state_from_dict

        return state_from_dict(data)

    def __eq__(self, other: object) -> bool:
        """Equal in all that is stored; `execution_started_at` is a reading of this process's clock."""
        if not isinstance(other, AgentState):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in _STORED)

    __hash__ = None  # type: ignore[assignment]


_STORED = tuple(name for name in AgentState.__struct_fields__ if name != "execution_started_at")
