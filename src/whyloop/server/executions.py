"""The executions of a session: one for each query."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import aclosing

from whyloop.broadcasting.feed import find_execution
from whyloop.server.bodies import ExecutionSummary
from whyloop.stores.reading import Reading, entries_after
from whyloop.stores.store import Store
from whyloop.values.continuation import ContinuationOutcome
from whyloop.values.redaction import Redaction
from whyloop.values.state import AgentState, AgentStatus
from whyloop.values.step import Step
from whyloop.values.text import shortened
from whyloop.values.transitions import Queried, Restored

LONGEST_QUERY, LONGEST_REASON = 200, 300
# A trace has so many of the latest executions, and those of its steps.
MOST_LATEST = 100
# The sessions whose earlier executions are remembered.
MOST_SESSIONS = 100


class Executions:
    """The executions of the sessions of a store, without secrets.

    Those before the latest one never change. They are read once, from the checkpoint of each query.
    """

    def __init__(self, store: Store, redaction: Redaction | None) -> None:
        self._store = store
        self._redaction = redaction
        self._earlier: OrderedDict[str, list[ExecutionSummary]] = OrderedDict()

    async def read(self, end: Reading) -> list[ExecutionSummary]:
        """Return the executions of a session up to a reading, oldest first."""
        known = self._earlier.get(end.state.identity, [])
        places = {each.id: place for place, each in enumerate(known)}
        state, found = end.state, list[ExecutionSummary]()
        while state.execution.id:
            if (place := places.get(state.execution.id)) is not None:
                found += reversed(known[: place + 1])
                break
            latest, state = await self._before(state)
            found += latest
        found.reverse()
        self._earlier[end.state.identity] = found[:-1]
        self._earlier.move_to_end(end.state.identity)
        while len(self._earlier) > MOST_SESSIONS:
            self._earlier.popitem(last=False)
        return found

    async def _before(self, state: AgentState) -> tuple[list[ExecutionSummary], AgentState]:
        """Return the execution of a state, those that were imported with it, and the state before them."""
        execution_id = state.execution.id
        while execution_id:
            begin, is_found = await find_execution(self._store, state.agent_id, execution_id)
            before = begin.state if begin.version else AgentState.before_creation(state.agent_id)
            async with aclosing(entries_after(self._store, begin, begin.version + 1)) as entries:
                async for entry, _, after in entries:
                    for transition in entry.transitions:
                        if isinstance(transition, Queried):
                            return [self._current(state, transition.message.text)], before
                        if isinstance(transition, Restored):
                            return list(self._imported(state, after)), before
            # A fork gave it another id.
            execution_id = before.execution.id if is_found else ""
        return [self._current(state, "")], AgentState.before_creation(state.agent_id)

    def _imported(self, state: AgentState, restored: AgentState) -> Iterator[ExecutionSummary]:
        """Yield the executions of a session that was imported as a snapshot, the latest one first."""
        firsts = [index for index, step in enumerate(restored.steps) if step.number == 1]
        ends = [*firsts, len(restored.steps)][1:]
        parts = list(zip(firsts, ends, strict=True))
        query = next((each.text for each in reversed(restored.messages) if each.is_user), "")
        if parts and restored.execution.step_count:
            first, _ = parts.pop()
            query = _query_before(restored, restored.steps[first])
        yield self._current(state, query)
        for first, end in reversed(parts):
            yield self._earlier_one(restored, restored.steps[first:end], first + 1)

    def _current(self, state: AgentState, query: str) -> ExecutionSummary:
        """Return the execution of a state."""
        execution, outcome, ended = state.execution, state.last_continuation_outcome, state.status.has_ended
        return ExecutionSummary(
            id=execution.id,
            query=self._cut(query, LONGEST_QUERY),
            status=state.status,
            stop_reason=state.stop_reason,
            resolved_by=outcome.resolved_by if outcome else None,
            reason=self._reason(outcome),
            first_step=len(state.steps) - execution.step_number + 1,
            step_count=execution.step_number,
            started_at=execution.started_at,
            ended_at=(execution.updated_at or execution.started_at) if ended else None,
        )

    def _earlier_one(self, state: AgentState, steps: Sequence[Step], first_step: int) -> ExecutionSummary:
        """Return an execution of which a snapshot has the steps alone."""
        first, last = steps[0], steps[-1]
        outcome = last.outcome
        return ExecutionSummary(
            id=first.execution_id,
            query=self._cut(_query_before(state, first), LONGEST_QUERY),
            status=AgentStatus.after(outcome) if outcome else AgentStatus.PENDING,
            stop_reason=outcome.stop_reason if outcome else None,
            resolved_by=outcome.resolved_by if outcome else None,
            reason=self._reason(outcome),
            first_step=first_step,
            step_count=len(steps),
            started_at=first.leg_started_at or first.started_at,
            ended_at=last.completed_at,
        )

    def _reason(self, outcome: ContinuationOutcome | None) -> str | None:
        return self._cut(outcome.reason, LONGEST_REASON) if outcome and outcome.reason else None

    def _cut(self, text: str, length: int) -> str:
        return shortened(text if self._redaction is None else self._redaction.beginning(text, length), length)


def _query_before(state: AgentState, step: Step) -> str:
    before = state.messages[step.first_message - 1] if step.first_message else None
    return before.text if before is not None and before.is_user else ""


def executions_of(executions: Sequence[ExecutionSummary], first: int, last: int) -> list[ExecutionSummary]:
    """Return the latest executions, and those of the steps after `first` up to `last`."""
    begin = len(executions) - MOST_LATEST
    return [
        each
        for place, each in enumerate(executions)
        if place >= begin or (each.first_step <= last and each.first_step + each.step_count > first + 1)
    ]
