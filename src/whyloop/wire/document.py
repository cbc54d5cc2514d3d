"""A session as plain data for programs: its steps, their calls and outcomes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec.structs import replace

from whyloop.values.messages import ToolCall
from whyloop.values.state import AgentState
from whyloop.values.step import Step, ToolRun
from whyloop.wire.envelope import usage_data


def document(state: AgentState, steps: Iterable[Step] | None = None) -> dict[str, Any]:
    """Return the session as plain data, with all its steps or with those given."""
    outcome, execution = state.last_continuation_outcome, state.execution
    shown = state.steps[state.steps.start :] if steps is None else steps
    return {
        "agent_id": state.agent_id,
        "status": state.status.value,
        "stop_reason": state.stop_reason,
        "resolved_by": outcome.resolved_by if outcome else None,
        "reason": (outcome.reason or None) if outcome else None,
        "steps": [step_document(state, step) for step in shown],
        "usage": usage_data(state.usage),
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
        "pending_calls": list(msgspec.to_builtins(state.pending_calls)),
        "last_response": state.last_response,
    }


def step_document(state: AgentState, step: Step) -> dict[str, Any]:
    """Return what a step did, and what was decided after it."""
    messages = state.messages_of(step)
    calls = {call.id: call for message in messages for call in message.tool_calls}
    results = {message.tool_call_id: message.text for message in messages if message.is_tool}
    return {
        "number": step.number,
        "execution_id": step.execution_id,
        "type": step.type.value,
        "started_at": step.started_at.isoformat(),
        "completed_at": step.completed_at.isoformat(),
        "finish_reason": step.finish_reason,
        "usage": usage_data(step.usage),
        "duration_ms": _rounded(step.duration_ms),
        "source": msgspec.to_builtins(step.source),
        "request": msgspec.to_builtins(step.request),
        "response_changed_by": list(step.response_changed_by),
        "tool_calls": [_call(run, calls.get(run.id), results.get(run.id)) for run in step.tool_calls],
        "failures": [msgspec.to_builtins(replace(each, correction=None)) for each in step.failures],
        "interrupted": step.interrupted and step.interrupted.value,
        "wrap_up": step.wrap_up,
        "outcome": step.outcome.to_dict() if step.outcome else None,
    }


def _call(run: ToolRun, call: ToolCall | None, result: str | None) -> dict[str, Any]:
    changes = call.changes if call is not None else ()
    return {
        "id": run.id,
        "name": run.name,
        "arguments": call.arguments if call is not None else None,
        "changes": [msgspec.structs.asdict(change) for change in changes],
        "result": result,
        "result_changed_by": list(run.changed_by),
        "success": run.success,
        "error": run.error,
        "started_at": run.started_at and run.started_at.isoformat(),
        "duration_ms": _rounded(run.duration_ms),
        "approvals": list(msgspec.to_builtins(run.approvals)),
    }


def _rounded(number: float) -> float:
    return round(number, 3)
