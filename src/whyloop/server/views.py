"""Sessions as clients see them, without credentials."""

from __future__ import annotations

from itertools import islice
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from whyloop.server.bodies import SessionState, SessionSummary, Trace
from whyloop.stores.records import Summary, summary_of
from whyloop.values.explanation import explanation_of
from whyloop.values.explanation_text import MOST_STEPS
from whyloop.values.state import AgentState
from whyloop.wire.document import document
from whyloop.wire.redact import without_secrets
from whyloop.wire.summaries import args_summary
from whyloop.wire.ui import canonical_messages


def summary_view(summary: Summary) -> SessionSummary:
    return SessionSummary(
        agent_id=summary.agent_id,
        status=summary.status,
        stop_reason=summary.stop_reason,
        title=without_secrets(summary.title),
        step_count=summary.step_count,
        started_at=summary.started_at,
        updated_at=summary.updated_at,
        parent_agent_id=summary.parent_agent_id,
        is_running=summary.runner is not None,  # And not by whom: that is a host of ours.
        version=summary.version,
        metadata=without_secrets(msgspec.to_builtins(summary.metadata)),
    )


def state_view(summary: Summary, state: AgentState) -> SessionState:
    outcome = state.last_continuation_outcome
    # How it is listed is brought up to date when its status changes, and not with every step.
    latest = replace(summary_of(state), version=summary.version, runner=summary.runner)
    return SessionState(
        session=summary_view(latest),
        execution_id=state.execution.id,
        resolved_by=outcome.resolved_by if outcome else None,
        last_response=state.last_response,
        pending_calls=without_secrets(msgspec.to_builtins(list(state.pending_calls))),
    )


def messages_view(state: AgentState) -> list[Raw]:
    """What was said stays as it is; what tools were given and gave may have a credential in it."""
    return [Raw(msgspec.json.encode(_shown(message))) for message in canonical_messages(state)]


def _shown(message: dict[str, Any]) -> dict[str, Any]:
    shown = {**message}
    if "metadata" in message:
        shown["metadata"] = _metadata(without_secrets(message["metadata"]))
    if message["role"] in ("tool", "status"):
        shown["content"] = without_secrets(message["content"])
    return shown


def _metadata(shown: dict[str, Any]) -> dict[str, Any]:
    """A summary is made anew of what is shown: in one that was cut short a secret may not look like one."""
    if "tool_calls" not in shown:
        return shown
    calls = [{**call, "args_summary": args_summary(call["args"])} for call in shown["tool_calls"]]
    summary = {"args_summary": calls[0]["args_summary"]} if "args_summary" in shown else {}
    return {**shown, "tool_calls": calls, **summary}


def trace_view(state: AgentState, after: int, limit: int) -> Trace:
    steps = tuple(islice(state.steps, after, after + limit))
    told = without_secrets(document(state, steps))
    explanation = explanation_of(state, most_steps=MOST_STEPS)
    return Trace(
        agent_id=state.agent_id,
        status=state.status,
        stop_reason=state.stop_reason,
        resolved_by=told["resolved_by"],
        headline=without_secrets(explanation.headline),
        explanation=without_secrets(str(explanation)),
        next_actions=without_secrets(msgspec.to_builtins(list(explanation.next_actions))),
        steps=told["steps"],
        has_more=len(state.steps) > after + len(steps),
        usage=told["usage"],
        times=told["times"],
    )
