"""The one path on which a step is recorded: evaluate once, store once, tell once."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from datetime import datetime
from typing import Any

from whyloop.events import (
    AgentExecutionFailed,
    AgentExecutionFinished,
    AgentStatusChanged,
    AgentStepCompleted,
    ContinuationEvaluated,
    TokenUsageReported,
)
from whyloop.loop.emit import Emitter
from whyloop.loop.kit import Kit
from whyloop.rules.continuation.approval import paused
from whyloop.values.continuation import ContinuationOutcome
from whyloop.values.messages import Message
from whyloop.values.state import AgentState, AgentStatus
from whyloop.values.step import Step

_IN_PROGRESS = AgentStatus.IN_PROGRESS


def record_step(
    kit: Kit, emit: Emitter, state: AgentState, step: Step, messages: Sequence[Message]
) -> Coroutine[Any, Any, AgentState]:
    """The state after this step, with every criterion's word on it."""
    state = state.with_step(step, messages)
    if step.finish_reason is not None:
        emit(TokenUsageReported, step.completed_at, step.usage, state.execution.usage)
    return settle(kit, emit, state, step.completed_at, step)


async def settle(
    kit: Kit, emit: Emitter, state: AgentState, now: datetime, step: Step | None = None
) -> AgentState:
    """Ask every criterion about the state as it stands, and tell everyone what came of it."""
    requested = kit.stops.words.get(state.execution.id)
    if requested is not None and state.execution.stop_request is None:
        state = state.with_stop_request(requested)
    outcome = kit.criteria.evaluate(state)
    if state.open_step is not None and state.pending_calls:
        outcome = paused(outcome, state)
    previous, state = state.status, state.with_continuation_outcome(outcome)
    if kit.journal is not None:
        await kit.journal.record(state)  # Whoever hears of it can read it.
        unheard = state.execution.stop_request is None and state.execution.id in kit.stops.words
        if outcome.pauses and unheard:
            return await settle(kit, emit, state, now, step)  # Somebody asked for a stop meanwhile.
    emit(ContinuationEvaluated, now, outcome)
    if step is not None:
        emit(
            AgentStepCompleted,
            now,
            bool(step.tool_calls),
            len(step.failures),
            step.usage,
            step.finish_reason,
            step.duration_ms,
            outcome,
        )
    if state.status is not _IN_PROGRESS:
        _tell_the_end(emit, now, previous, state, outcome)
    return state


def _tell_the_end(
    emit: Emitter, now: datetime, previous: AgentStatus, state: AgentState, outcome: ContinuationOutcome
) -> None:
    """A pause is told as a change of status alone: the execution is not at its end."""
    said, status, reason = outcome.resolving_evaluation, state.status, outcome.stop_reason
    error = (said.reason if said else "") if status is AgentStatus.FAILED else None
    count, last = state.execution.step_count, state.last_response or None
    emit(AgentStatusChanged, now, previous, status, reason, count, error, last)
    if reason is not None:
        if error is not None:
            emit(AgentExecutionFailed, now, error, reason)
        emit(AgentExecutionFinished, now, status, reason)
