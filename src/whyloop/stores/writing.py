"""From transitions to the entries of a journal, and from a state to how its session is listed."""

from __future__ import annotations

from collections.abc import Sequence

from whyloop.stores.records import LONGEST_TITLE, Checkpoint, Entry, Summary
from whyloop.values.state import AgentState
from whyloop.values.step_transitions import Answered, AnyTransition, ModelFailed
from whyloop.values.text import shortened
from whyloop.values.transitions import Queried
from whyloop.wire.journal import STEPS_PER_CHECKPOINT, encode_entry, encode_head

LONGEST_REASON = 300


def entries_of(transitions: Sequence[AnyTransition], before: AgentState) -> list[Entry]:
    """Return the entries of one append: one, or two where a query replaces an execution that was open.

    Reading can start where an execution begins and every so many steps: there the entry has a checkpoint.
    """
    entries, start, state = [], 0, before
    for index, transition in enumerate(transitions):
        if index and isinstance(transition, Queried):
            for earlier in transitions[start:index]:
                state = earlier.apply_to(state)
            entries.append(_entry(transitions[start:index], before))
            before, start = state, index
    entries.append(_entry(transitions[start:], before))
    return entries


def _entry(transitions: Sequence[AnyTransition], before: AgentState) -> Entry:
    return Entry(encode_entry(transitions, before), _checkpoint(transitions, before))


def _checkpoint(transitions: Sequence[AnyTransition], before: AgentState) -> Checkpoint | None:
    if before.open_step is not None or not transitions:
        return None
    first, steps = transitions[0], len(before.steps)
    execution_id, seq = before.execution.id, before.execution.last_seq
    if isinstance(first, Queried):
        execution_id, seq = first.execution_id, 0
    elif not steps or steps % STEPS_PER_CHECKPOINT or not _opens_step(transitions):
        return None
    return Checkpoint(execution_id, seq, steps, len(before.messages), encode_head(before))


def _opens_step(transitions: Sequence[AnyTransition]) -> bool:
    return any(isinstance(transition, Answered | ModelFailed) for transition in transitions)


def summary_of(state: AgentState) -> Summary:
    """Return how a session in this state is listed."""
    outcome, usage = state.last_continuation_outcome, state.usage
    return Summary(
        agent_id=state.agent_id,
        status=state.status,
        started_at=state.state_info.started_at,
        updated_at=state.state_info.updated_at,
        stop_reason=state.stop_reason,
        parent_agent_id=state.parent_agent_id,
        step_count=state.step_count,
        title=_title(state),
        metadata=state.metadata,
        identity=state.identity,
        agent=state.agent,
        resolved_by=outcome.resolved_by if outcome else None,
        reason=shortened(outcome.reason, LONGEST_REASON) if outcome and outcome.reason else None,
        pending=state.question_count,
        cost=None if usage.cost is None else str(usage.cost),
    )


def _title(state: AgentState) -> str:
    """Return the first query of the session, in one line."""
    asked = next((message.text for message in state.messages if message.is_user), "")
    return shortened(asked, LONGEST_TITLE)
