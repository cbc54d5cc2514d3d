"""The state of a session: immutable, and complete enough to continue from."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from whyloop.errors import OutputError, UnfinishedRunError
from whyloop.values import encoding
from whyloop.values.approval import PendingCall, Verdict
from whyloop.values.continuation import ContinuationOutcome, StopReason
from whyloop.values.execution import AgentStatus, Execution
from whyloop.values.log import EMPTY, Log
from whyloop.values.messages import Message
from whyloop.values.model import NO_USAGE, DecodedOutput, Usage
from whyloop.values.scalars import NEVER, AnyT_co, Count, Moment, Seconds, new_id, utc_now
from whyloop.values.step import OpenStep, RequestPart, Step
from whyloop.values.text import counted, shortened

if TYPE_CHECKING:
    from whyloop.values.explanation import Explanation

__all__ = ["UNNAMED_PERSON", "AgentState", "AgentStatus", "StateInfo"]


class StateInfo(Struct, frozen=True, gc=False):
    """The session's own clocks, for audit."""

    started_at: Moment = msgspec.field(default_factory=utc_now)
    """When the session was created."""
    updated_at: Moment = msgspec.field(default_factory=utc_now)
    """When the session last changed."""
    cumulative_execution_seconds: Seconds = 0.0
    """The active time of all executions."""

    def add_execution_time(self, seconds: float) -> StateInfo:
        """Return the clocks with more time spent on the session.

        Args:
            seconds: The time.
        """
        return StateInfo(self.started_at, self.updated_at, self.cumulative_execution_seconds + seconds)


UNNAMED_PERSON = "an unnamed person"
"""The name in the trace of a decision that names no person."""


class AgentState(Struct, Generic[AnyT_co], frozen=True, eq=False, gc=False, kw_only=True):
    """One conversation: its messages, its steps, and the outcome of each step.

    A state never changes: applying a transition returns a new one, and history is only ever added to, so
    older states stay valid and share what they have in common with newer ones. `AgentState[T]` is the state
    of an agent whose answers are of type T.
    """

    agent_id: str = msgspec.field(default_factory=new_id)
    """The name of the session."""
    identity: str = msgspec.field(default_factory=new_id)
    """A unique id: a session that is deleted and created again under the same name gets a new one."""
    parent_agent_id: str | None = None
    """The session whose tool runs this one, if there is one."""
    agent: str = ""
    """The name of the agent that ran it last."""
    status: AgentStatus = AgentStatus.PENDING
    """The status of the current execution."""
    messages: Log[Message] = EMPTY
    """The history."""
    steps: Log[Step] = EMPTY
    """The closed steps of all executions."""
    usage: Usage = NO_USAGE
    """The tokens of all executions."""
    metadata: Mapping[str, Any] = {}
    """The entries that the application gave to the session."""
    state_info: StateInfo = msgspec.field(default_factory=StateInfo)
    """The clocks of the session."""
    execution: Execution = msgspec.field(default_factory=Execution)
    """The work on the latest query."""
    last_continuation_outcome: ContinuationOutcome | None = None
    """The latest outcome of the execution; None while nothing was decided since it started or resumed."""
    execution_started_at: datetime | None = None
    """When this process began the leg; a snapshot shows it, and a restored state has none."""
    open_step: OpenStep | None = None
    """A step whose tool calls are not all done."""
    request_parts: Log[RequestPart] = EMPTY
    """The texts that the requests of steps refer to by their hashes."""
    decoded_output: DecodedOutput | UnsetType = UNSET
    """The output of the run as a value of the agent's `output_type`; never stored. See `output`."""
    wrap_ups: Count = 0
    """The number of wrap-ups among the steps, which `step_count` does not include."""

    @classmethod
    def before_creation(cls, agent_id: str) -> AgentState[AnyT_co]:
        """Return the state before the first transition, which has only a name."""
        return cls(
            agent_id=agent_id,
            identity="",
            state_info=StateInfo(NEVER, NEVER),
            execution=Execution(id="", started_at=NEVER),
        )

    @property
    def current_step(self) -> Step | None:
        """The latest closed step of the current execution; None before its first."""
        return self.steps.last if self.execution.step_count else None

    def latest_step(self) -> OpenStep | Step | None:
        """Return the open step, or else the latest closed one of the execution, or None."""
        return self.open_step or (self.steps.last if self.execution.step_count else None)

    @property
    def step_count(self) -> int:
        """The number of steps of the whole session, without wrap-ups."""
        return len(self.steps) - self.wrap_ups

    @property
    def wrap_up(self) -> str | None:
        """The limit that ended the run, while its wrap-up is in progress and after it."""
        execution = self.execution
        if execution.wrap_up is not None or not execution.wrap_ups or self.open_step is not None:
            return execution.wrap_up
        step = self.current_step
        return None if step is None else step.wrap_up

    @property
    def execution_steps(self) -> tuple[Step, ...]:
        """The closed steps of the current execution."""
        return self.steps[max(0, len(self.steps) - self.execution.step_number) :]

    @property
    def pending_calls(self) -> tuple[PendingCall, ...]:
        """The questions that wait for a person, each with its tool call."""
        pending = self.open_step.pending if self.open_step else ()
        question = self.execution.question
        if question is None:
            return pending
        return (*pending, PendingCall(question.id, "recovery", "", {}, question.text))

    @property
    def question_count(self) -> int:
        """The number of `pending_calls`."""
        count = 0 if self.execution.question is None else 1
        if self.open_step is not None:
            for call in self.open_step.calls:
                if call.question is not None:
                    count += 1
        return count

    @property
    def outcome(self) -> ContinuationOutcome:
        """The outcome of the ended or paused run; an `UnfinishedRunError` before."""
        outcome = self.last_continuation_outcome
        if outcome is None or self.is_unfinished:
            raise UnfinishedRunError(
                f"session {self.agent_id!r} has no outcome yet, it is {self.status}: run it to its end, or "
                "read last_continuation_outcome, the latest outcome or None"
            )
        return outcome

    @property
    def stop_reason(self) -> StopReason | None:
        """Why the run ended; None while it has not."""
        outcome = self.last_continuation_outcome
        return outcome.stop_reason if outcome is not None and not self.is_unfinished else None

    @property
    def is_unfinished(self) -> bool:
        """True unless the latest outcome ended or paused the run.

        A wrap-up comes before the end.
        """
        outcome = self.last_continuation_outcome
        wraps_up = self.execution.wrap_up is not None and self.status is AgentStatus.IN_PROGRESS
        return outcome is None or outcome.should_continue or wraps_up

    @property
    def last_response(self) -> str:
        """The last text of the assistant to this query; empty if there is none yet."""
        return self.execution.last_response

    @property
    def output(self) -> AnyT_co:
        """The answer of a completed run as a value of the agent's `output_type`.

        Without an `output_type`, it is the text. If a limit ended the run, it is the answer of the wrap-up,
        if there is one. An `OutputError` says why there is no output. A loaded state has no types: use
        `agent.output(state)`.
        """
        written, step = self.written_output, self.current_step
        if written is None and (step is None or step.source is None or step.source.output is None):
            return self.last_response  # type: ignore[return-value]
        if self.decoded_output is UNSET:
            raise OutputError("the output of a loaded state is JSON: use agent.output(state)")
        value: AnyT_co = self.decoded_output.value
        return value

    @property
    def written_output(self) -> str | None:
        """The JSON of a completed run's output; None without an `output_type`.

        An `OutputError` says why a run has none.
        """
        step, outcome = self.current_step, self.last_continuation_outcome
        if step is not None and (self.status is AgentStatus.COMPLETED or self._has_wrap_up_answer(step)):
            return step.output
        if outcome is None or self.is_unfinished:
            raise OutputError(f"there is no output: the run has not ended ({self.status})")
        ended = f" ({outcome.stop_reason})" if outcome.stop_reason else ""
        raise OutputError(
            f"there is no output: the run is {self.status}{ended} by {outcome.resolved_by}: {outcome.reason}"
        )

    def _has_wrap_up_answer(self, step: Step) -> bool:
        """Return whether the run ended with the complete answer of a wrap-up."""
        return step.wrap_up is not None and step.has_answer and self.status is AgentStatus.STOPPED

    def messages_of(self, step: Step) -> tuple[Message, ...]:
        """Return the messages of a step: the assistant's, then the results of its calls.

        Args:
            step: A step of this session.
        """
        return self.messages[step.first_message : step.first_message + step.message_count]

    @property
    def explanation(self) -> Explanation:
        """The reasons why the current execution continued or stopped, step by step."""
        from whyloop.values.explanation import explanation_of

        return explanation_of(self)

    def explain(self, *, debug: bool = False, redact: bool = True) -> str:
        """Return the text of `explanation`, for a person to read.

        Args:
            debug: True to show the messages of tools' own exceptions, which may quote arguments, instead of
                their classes. Default: False.
            redact: False to show secrets. Default: True, which removes them.
        """
        from whyloop.values.explanation import explanation_of
        from whyloop.values.explanation_text import MOST_STEPS

        explanation = explanation_of(self, most_steps=MOST_STEPS, debug=debug)
        return str(explanation.without_secrets() if redact else explanation)

    def __repr__(self) -> str:
        """Return one short line; `explain` and `messages` have the rest."""
        reason = f" ({self.stop_reason})" if self.stop_reason not in (None, StopReason.COMPLETED) else ""
        sizes = f"{counted(self.step_count, 'step')}, {counted(len(self.messages), 'message')}"
        return f"AgentState({shortened(self.agent_id, 40)!r}, {self.status}{reason}, {sizes})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        shown = ("agent_id", "status", "stop_reason", "step_count", "last_response")
        return [(name, getattr(self, name)) for name in shown]

    def _repr_markdown_(self) -> str:
        return self.explanation.to_markdown()

    def _repr_html_(self) -> str:
        return self.explanation._repr_html_()

    # Changes

    def approve(
        self, question_id: str, *, by: str = UNNAMED_PERSON, now: datetime | None = None
    ) -> AgentState[AnyT_co]:
        """Approve a pending call; it runs when the execution is resumed."""
        return self._decided(question_id, Verdict.APPROVED, by, now)

    def deny(
        self, question_id: str, reason: str = "", *, by: str = UNNAMED_PERSON, now: datetime | None = None
    ) -> AgentState[AnyT_co]:
        """Deny a pending call; the model gets the reason."""
        return self._decided(question_id, Verdict.DENIED, by, now, reason or None)

    def edit(
        self,
        question_id: str,
        arguments: Mapping[str, object],
        *,
        by: str = UNNAMED_PERSON,
        now: datetime | None = None,
    ) -> AgentState[AnyT_co]:
        """Approve a pending call with other arguments, which its result names."""
        return self._decided(question_id, Verdict.EDITED, by, now, arguments=arguments)

    def _decided(
        self,
        question_id: str,
        verdict: Verdict,
        by: str,
        now: datetime | None,
        reason: str | None = None,
        arguments: Mapping[str, object] | None = None,
    ) -> AgentState[AnyT_co]:
        from whyloop.values.decisions import decide

        state = self
        for transition in decide(self, question_id, verdict, by, now or utc_now(), reason, arguments):
            state = transition.apply_to(state)
        return state

    def with_continuation_outcome(self, outcome: ContinuationOutcome) -> AgentState[AnyT_co]:
        """Return the state after the criteria were evaluated with this outcome.

        Args:
            outcome: The outcome.
        """
        from whyloop.values.judgement import Judged

        closed = self.current_step if self.open_step is None else None
        judged = Judged(self.state_info.updated_at, outcome=outcome, step=closed.number if closed else None)
        return judged.apply_to(self)

    def mark_execution_started(self, now: datetime | None = None) -> AgentState[AnyT_co]:
        """Begin a new leg of the execution: its wall clock starts anew.

        The time since its latest transition counts as waiting. `iterate`, `next_step` and `final_step` do
        this with a state in progress that was restored.

        Args:
            now: When the leg begins. Default: the time of day.
        """
        now, execution = now or utc_now(), self.execution
        waited = (now - (execution.updated_at or execution.started_at)).total_seconds()
        execution = replace(
            execution,
            updated_at=now,
            leg_started_at=now,
            waiting_seconds=execution.waiting_seconds + max(0.0, waited),
        )
        return replace(self, execution=execution, execution_started_at=now)

    def add_execution_time(self, seconds: float) -> AgentState:
        """Add time that was spent on the session to its own clock; no limit counts it.

        Args:
            seconds: The time.
        """
        return replace(self, state_info=self.state_info.add_execution_time(seconds))

    def with_metadata(
        self, entries: Mapping[str, object] | None = None, /, **more: object
    ) -> AgentState[AnyT_co]:
        """Return the session with these entries added to its metadata, as JSON holds them.

        Args:
            entries: The entries, as a mapping.
            **more: More entries.
        """
        return replace(self, metadata={**self.metadata, **encoding.jsonable({**(entries or {}), **more})})

    # Snapshots

    def to_dict(self) -> dict[str, Any]:
        """Return the whole state as plain data, with the version of its schema."""
        from whyloop.values.snapshot import state_to_dict

        return state_to_dict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> AgentState:
        """Return the state that `to_dict` wrote; its `execution_started_at` is unset.

        Args:
            data: The plain data that `to_dict` returned.
        """
        from whyloop.values.snapshot import state_from_dict

        return state_from_dict(data)

    def __eq__(self, other: object) -> bool:
        """Compare everything that is stored."""
        if not isinstance(other, AgentState):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in _STORED)

    def __ne__(self, other: object) -> bool:  # The base class compares by identity.
        return not self == other

    __hash__ = None  # type: ignore[assignment]


_UNSTORED = ("execution_started_at", "decoded_output")
_STORED = tuple(name for name in AgentState.__struct_fields__ if name not in _UNSTORED)
