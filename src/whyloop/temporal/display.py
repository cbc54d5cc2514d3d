"""What Temporal's own pages show of a session: search attributes, details, the result of its workflow."""

from __future__ import annotations

from temporalio import workflow
from temporalio.common import SearchAttributeKey

from whyloop.temporal.payloads import Ended, Start
from whyloop.values.state import AgentState

STATUS = SearchAttributeKey.for_keyword("WhyloopStatus")
STOP_REASON = SearchAttributeKey.for_keyword("WhyloopStopReason")
RULE = SearchAttributeKey.for_keyword("WhyloopRule")
AGENT = SearchAttributeKey.for_keyword("WhyloopAgent")
SEARCH_ATTRIBUTES = (STATUS, STOP_REASON, RULE, AGENT)


def show(start: Start, state: AgentState, *, is_running: bool) -> None:
    """Show the status, the stop reason and the rule of a session.

    Args:
        start: The input of the workflow.
        state: The session.
        is_running: True if the outcome of the last step is no end.
    """
    outcome = None if is_running else state.last_continuation_outcome
    reason = str(outcome.stop_reason or "") if outcome else ""
    rule = outcome.resolved_by or "" if outcome else ""
    if start.searchable:
        shown = [
            STATUS.value_set(str(state.status)),
            STOP_REASON.value_set(reason) if reason else STOP_REASON.value_unset(),
            RULE.value_set(rule) if rule else RULE.value_unset(),
            AGENT.value_set(start.agent),
        ]
        workflow.upsert_search_attributes(shown)
    if outcome is not None:
        workflow.set_current_details(f"**{state.status}** by {rule}: {outcome.reason}")


def ended(state: AgentState) -> Ended:
    """Return how the last execution of a session ended.

    Args:
        state: The session.
    """
    outcome = state.last_continuation_outcome
    return Ended(
        state.agent_id,
        state.status,
        outcome.stop_reason if outcome else None,
        outcome.resolved_by if outcome else None,
        outcome.reason if outcome else "",
        state.execution.step_number,
    )
