"""What was done and decided in a session, and why, for machines."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from whyloop.values.state import AgentState
from whyloop.values.step import Step
from whyloop.values.usage import Usage


def document(state: AgentState, steps: Iterable[Step] | None = None) -> dict[str, Any]:
    """Everything that was done and decided, and why, as plain data; or only of some steps."""
    outcome, execution = state.last_continuation_outcome, state.execution
    return {
        "agent_id": state.agent_id,
        "status": state.status.value,
        "stop_reason": state.stop_reason,
        "resolved_by": outcome.resolved_by if outcome else None,
        "steps": [step_document(state, step) for step in (state.steps if steps is None else steps)],
        "usage": _usage(state.usage),
        "times": {
            "session_started_at": state.state_info.started_at.isoformat(),
            "execution_started_at": execution.started_at.isoformat(),
            "updated_at": state.state_info.updated_at.isoformat(),
            "active_seconds": _rounded(execution.active_seconds),
            "backoff_seconds": _rounded(execution.backoff_seconds),
            "waiting_seconds": _rounded(execution.waiting_seconds),
            "wall_seconds": _rounded(execution.wall_seconds),
            "cumulative_execution_seconds": _rounded(state.state_info.cumulative_execution_seconds),
        },
        "pending_calls": msgspec.to_builtins(state.pending_calls),
        "last_response": state.last_response,
    }


def step_document(state: AgentState, step: Step) -> dict[str, Any]:
    """What a step did, and what was decided after it."""
    messages = state.messages_of(step)
    arguments = {call.id: call.arguments for message in messages for call in message.tool_calls}
    results = {message.tool_call_id: message.text for message in messages if message.is_tool}
    return {
        "number": step.number,
        "execution_id": step.execution_id,
        "type": step.type.value,
        "finish_reason": step.finish_reason,
        "usage": _usage(step.usage),
        "duration_ms": _rounded(step.duration_ms),
        "source": msgspec.to_builtins(step.source),
        "tool_calls": [
            {
                "id": run.id,
                "name": run.name,
                "arguments": arguments.get(run.id),
                "result": results.get(run.id),
                "success": run.success,
                "error": run.error,
                "duration_ms": _rounded(run.duration_ms),
                "approvals": msgspec.to_builtins(run.approvals),
            }
            for run in step.tool_calls
        ],
        "failures": msgspec.to_builtins(step.failures),
        "interrupted": step.interrupted,
        "outcome": step.outcome.to_dict() if step.outcome else None,
    }


def _usage(usage: Usage) -> dict[str, int]:
    return {"input": usage.input, "output": usage.output, "total": usage.total}


def _rounded(number: float) -> float:
    return round(number, 3)
