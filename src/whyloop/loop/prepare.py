"""What happens before a step: the execution is taken up, others get their turn, a provider its backoff."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from whyloop.errors import leave_state
from whyloop.events import AgentExecutionStarted, AgentStatusChanged
from whyloop.loop.emit import Emitter
from whyloop.loop.kit import Kit
from whyloop.loop.record import settle
from whyloop.loop.take_step import CANCELLED
from whyloop.values.failure import ErrorHandlingDecision
from whyloop.values.state import AgentState, AgentStatus

# A model and tools that never wait would keep everything else on the event loop from running, so
# every so many steps the others get their turn.
STEPS_A_TURN = 16

_IN_PROGRESS = AgentStatus.IN_PROGRESS


async def taken_up(kit: Kit, state: AgentState) -> AgentState:
    """The execution is in progress from now on, and everyone is told if it was not before."""
    now = kit.world.now()
    before, state = state.status, state.in_progress(now)
    if kit.journal is not None:
        await kit.journal.record(state)
    if before is not _IN_PROGRESS:
        emit = Emitter(kit.listeners, state, state.execution.step_count)
        resumed = state.execution.resumes > 0
        query = state.messages[-1] if state.messages and not resumed else None
        emit(AgentExecutionStarted, now, query, resumed)
        count = state.execution.step_count
        emit(AgentStatusChanged, now, before, _IN_PROGRESS, None, count, None, None)
    return state


async def waited(kit: Kit, state: AgentState) -> AgentState:
    """All the waiting before a step; a cancellation meanwhile leaves a recorded state behind."""
    try:
        await asyncio.sleep(0)
        return await _backed_off(kit, state)
    except asyncio.CancelledError as error:
        leave_state(error, await end_now(kit, state.with_stop_request(CANCELLED)))
        raise


def must_end(kit: Kit, state: AgentState) -> bool:
    """True if there is to be no other step.

    Somebody asked for a stop, a limit was used up before the execution was resumed, or backoff
    took the time that there was.
    """
    execution = state.execution
    if execution.id in kit.stops.words:
        return True
    if execution.resumes and state.last_continuation_outcome is None and kit.criteria.used_up(state):
        return True
    if not execution.backoff_seconds or execution.updated_at is None:
        return False
    deadline = kit.criteria.deadline(state, execution.updated_at)
    return deadline is not None and execution.updated_at >= deadline


async def end_now(kit: Kit, state: AgentState) -> AgentState:
    """The state as it is judged without another step."""
    emit = Emitter(kit.listeners, state, state.execution.step_count)
    return await settle(kit, emit, state, kit.world.now())


async def _backed_off(kit: Kit, state: AgentState) -> AgentState:
    """Backoff before a failed model call is made again; its time is in no active clock."""
    outcome, step = state.last_continuation_outcome, state.current_step
    if outcome is None or step is None or step.model_failure is None:
        return state
    if outcome.failure_handling is not ErrorHandlingDecision.RETRY:
        return state
    world, failures = kit.world, state.execution.failures.consecutive
    delay = kit.backoff.delay(failures, world.random(), step.model_failure.retry_after)
    # No longer than until a limit on the wall clock; one on work does not run meanwhile.
    until = (now := world.now()) + timedelta(seconds=delay)
    deadline = kit.criteria.deadline(state, until)
    if deadline is not None and deadline < until:
        delay = max(0.0, (deadline - now).total_seconds())
    stopwatch = world.monotonic()
    await kit.stops.sleep(state.execution.id, world.sleep(delay))
    return state.with_backoff(max(0.0, world.monotonic() - stopwatch), world.now())
