"""The result of judging a run again: where it would have ended, and what that saves."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from whyloop.values import encoding
from whyloop.values.continuation import ContinuationDecision, ContinuationOutcome, StopReason
from whyloop.values.explanation import Explanation, explanation_of
from whyloop.values.explanation_text import MOST_STEPS
from whyloop.values.model import Usage
from whyloop.values.state import AgentState, AgentStatus


class Amounts(Struct, frozen=True):
    """The amounts that a run used, or would have saved. None means unknown; known plus unknown is unknown."""

    steps: int = 0
    """The closed steps."""
    tokens: int | None = 0
    """The tokens, read and written; None if a provider did not report those of an answer."""
    seconds: float | None = 0.0
    """The active seconds of models and tools; None if the run was imported without its times."""
    cost: Decimal | None = Decimal(0)
    """The cost in US dollars; None if the price of an answer is unknown."""

    def __add__(self, other: Amounts) -> Amounts:
        tokens = None if self.tokens is None or other.tokens is None else self.tokens + other.tokens
        cost = None if self.cost is None or other.cost is None else self.cost + other.cost
        seconds = None if self.seconds is None or other.seconds is None else self.seconds + other.seconds
        return Amounts(self.steps + other.steps, tokens, seconds, cost)

    @property
    def known(self) -> Amounts:
        """The same, with zero for unknown values."""
        return Amounts(self.steps, self.tokens or 0, self.seconds or 0.0, self.cost or Decimal(0))

    def to_dict(self) -> dict[str, Any]:
        """Return the amounts as plain data."""
        document: dict[str, Any] = encoding.encode(self)
        return document


def amounts_of(steps: int, seconds: float | None, usages: Iterable[Usage]) -> Amounts:
    """Return amounts with the sum of usages; any of them may be unknown."""
    tokens: int | None = 0
    cost: Decimal | None = Decimal(0)
    for usage in usages:
        tokens = None if tokens is None or not usage.reported else tokens + usage.total
        cost = None if cost is None or usage.is_unpriced else cost + (usage.cost or 0)
    return Amounts(steps, tokens, seconds, cost)


_FORBID = ContinuationDecision.FORBID_CONTINUATION


class Ending(Struct, frozen=True):
    """How an execution ended, if it did."""

    status: AgentStatus
    """The status of the run."""
    stopped_at: int | None = None
    """The step with which it ended, counted from 1; 0 before its first; None if it did not end."""
    stop_reason: StopReason | None = None
    """Why it ended; None if it did not."""
    resolved_by: str | None = None
    """The rule that ended it; None if it did not end."""
    reason: str = ""
    """The reason that the rule gave."""

    def __str__(self) -> str:
        if self.stopped_at is None:
            return str(self.status)
        return f"{self.status} at step {self.stopped_at} ({self.stop_reason}) by {self.resolved_by}"

    @property
    def conditional(self) -> str:
        """How it would have ended: "would have failed at step 3 (error) by …"."""
        by_itself = self.status in (AgentStatus.COMPLETED, AgentStatus.FAILED)
        return f"would have {self}" if by_itself else f"would have been {self}"


def ending_of(state: AgentState) -> Ending:
    """Return how the current execution of a state ended.

    Args:
        state: The state.
    """
    outcome = state.last_continuation_outcome
    if outcome is None or not state.status.has_ended:
        return Ending(state.status)
    number, last = state.execution.step_number, state.current_step
    if state.open_step is not None:
        number = state.open_step.number
    elif last is not None and last.wrap_up is not None:
        number -= 1  # The run ended before its wrap-up.
    return Ending(state.status, number, outcome.stop_reason, outcome.resolved_by, outcome.reason)


class ExecutionReplay(Struct, frozen=True):
    """One execution of a recorded run, judged again."""

    state: AgentState
    """The state with which it would have ended. `state.explain()` shows every new decision."""
    recorded: AgentState
    """The state with which it ended, as recorded."""
    assumed_from: int | None = None
    """The first step that assumes an effect that the recording lacks; None if all is exact."""
    beyond: bool = False
    """True if the rules would have continued past the recording, so that the end is unknown."""
    missing: str | None = None
    """What the recording lacks, if `beyond` is True for that reason: a state holds less than a journal."""

    @property
    def execution_id(self) -> str:
        """The id of the execution."""
        return self.recorded.execution.id

    @property
    def ending(self) -> Ending:
        """How it would have ended."""
        return Ending(AgentStatus.IN_PROGRESS) if self.beyond else ending_of(self.state)

    @property
    def recorded_ending(self) -> Ending:
        """How it ended, as recorded."""
        return ending_of(self.recorded)

    @property
    def outcomes(self) -> tuple[ContinuationOutcome, ...]:
        """The outcome of each step that would have been taken, in order."""
        return tuple(step.outcome for step in self.state.execution_steps if step.outcome is not None)

    @property
    def explanation(self) -> Explanation:
        """The execution with its new decisions, step by step, without next actions."""
        return replace(explanation_of(self.state, most_steps=MOST_STEPS), next_actions=())

    @property
    def assumed(self) -> bool:
        """True if its end follows from an effect that the recording lacks."""
        return self.assumed_from is not None and self.state.execution.step_number >= self.assumed_from

    @property
    def differs(self) -> bool:
        """True if the step, the rule or the reason of its end would have changed."""
        now, before = self.ending, self.recorded_ending
        if self.beyond:
            return before.stopped_at is not None
        return (now.stopped_at, now.stop_reason, now.resolved_by, now.status) != (
            before.stopped_at,
            before.stop_reason,
            before.resolved_by,
            before.status,
        )

    @property
    def is_cut(self) -> bool:
        """True if it would have ended before its recorded end."""
        if self.beyond or self.ending.stopped_at is None:
            return False
        was_completed = self.recorded.status is AgentStatus.COMPLETED
        return self.saved.steps > 0 or (was_completed and self.state.status is not AgentStatus.COMPLETED)

    @property
    def used(self) -> Amounts:
        """The amounts used up to the end under these rules."""
        execution = self.state.execution
        seconds = None if execution.untimed else execution.active_seconds
        return amounts_of(execution.step_count, seconds, [execution.usage])

    @property
    def saved(self) -> Amounts:
        """The minimum amounts that these rules would have saved.

        An interrupted step counts as used in full.

        A run that wrapped up would have done so at an earlier limit too, so its wrap-up is not saved.
        """
        if self.beyond:
            return Amounts()
        kept, had = self.state.execution, self.recorded.execution
        after = self.recorded.execution_steps[kept.step_number :]
        wrap_ups = [step for step in after if step.wrap_up is not None] if self._ends_by_limits else []
        dropped = [step.usage for step in after if step.wrap_up is None or not wrap_ups]
        opened = self.recorded.open_step
        if opened is not None and self.state.open_step is None and kept.step_number < opened.number:
            dropped.append(opened.usage)
        steps = max(0, had.step_count - kept.step_count)
        spent = had.active_seconds - sum(step.duration_ms for step in wrap_ups) / 1000
        seconds = None if had.untimed and steps else max(0.0, spent - kept.active_seconds)
        return amounts_of(steps, seconds, dropped)

    @property
    def _ends_by_limits(self) -> bool:
        outcome = self.state.last_continuation_outcome
        forbids = [e for e in outcome.evaluations if e.decision is _FORBID] if outcome else []
        return bool(forbids) and all(evaluation.exhausted for evaluation in forbids)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return {
            "execution_id": self.execution_id,
            **encoding.encode(self.ending),
            "assumed": self.assumed,
            "assumed_from": self.assumed_from,
            "beyond": self.beyond,
            "missing": self.missing,
            "differs": self.differs,
            "recorded": encoding.encode(self.recorded_ending),
            "used": self.used.to_dict(),
            "saved": self.saved.to_dict(),
            "outcomes": [outcome.to_dict() for outcome in self.outcomes],
        }


class Replay(Struct, frozen=True):
    """A recorded run, judged again.

    Its executions are judged one by one. As in a state, the properties are those of the latest one, except
    `saved`, which is the sum of all.
    """

    agent_id: str
    """The name of the session."""
    executions: tuple[ExecutionReplay, ...]
    """The executions, in order."""

    @property
    def latest(self) -> ExecutionReplay:
        """The latest execution."""
        return self.executions[-1]

    @property
    def state(self) -> AgentState:
        """The state with which the run would have ended."""
        return self.latest.state

    @property
    def outcomes(self) -> tuple[ContinuationOutcome, ...]:
        """The outcome of each step that would have been taken, in order."""
        return self.latest.outcomes

    @property
    def stopped_at(self) -> int | None:
        """The step with which the run would have ended; None if it would not have."""
        return self.latest.ending.stopped_at

    @property
    def stop_reason(self) -> StopReason | None:
        """Why it would have ended."""
        return self.latest.ending.stop_reason

    @property
    def resolved_by(self) -> str | None:
        """The rule that would have ended it."""
        return self.latest.ending.resolved_by

    @property
    def assumed(self) -> bool:
        """True if the end follows from an effect that the recording lacks."""
        return self.latest.assumed

    @property
    def beyond(self) -> bool:
        """True if the rules would have continued past the recording."""
        return self.latest.beyond

    @property
    def missing(self) -> str | None:
        """What the recording lacks, if the end is unknown for that reason."""
        return self.latest.missing

    @property
    def differs(self) -> bool:
        """True if any execution would have ended differently."""
        return any(execution.differs for execution in self.executions)

    @property
    def used(self) -> Amounts:
        """The use of the latest execution up to its end under these rules."""
        return self.latest.used

    @property
    def saved(self) -> Amounts:
        """The savings in all executions together."""
        return sum((execution.saved for execution in self.executions), Amounts())

    @property
    def explanation(self) -> Explanation:
        """The latest execution with its new decisions, step by step."""
        return self.latest.explanation

    def explain(self) -> str:
        """Return the text of `explanation`, for a person to read."""
        return str(self.explanation)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return {
            "agent_id": self.agent_id,
            "differs": self.differs,
            "saved": self.saved.to_dict(),
            "executions": [execution.to_dict() for execution in self.executions],
        }

    def __str__(self) -> str:
        """Return where the run would have ended, on one line."""
        if self.latest.missing is not None:
            return f"It is unknown how the run would have ended: {self.latest.missing}."
        if self.beyond:
            return "The rules would have continued past the recording."
        assumed = ""
        if self.assumed:
            start = self.latest.assumed_from
            assumed = f", assuming that the model had answered the same from step {start} on"
        return f"It {self.latest.ending.conditional}{assumed}."
