"""A session as plain data for programs: its steps, their calls and outcomes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec.structs import replace

from whyloop.values.approval import Approval, Verdict
from whyloop.values.call_explanation import CallStatus, closed_call_status, open_call_status
from whyloop.values.continuation import Budget, ContinuationOutcome
from whyloop.values.failure import ErrorHandlingDecision, Failure
from whyloop.values.messages import ToolCall
from whyloop.values.model import Usage
from whyloop.values.redaction import Redaction
from whyloop.values.state import AgentState, AgentStatus
from whyloop.values.step import OpenCall, OpenStep, Step, ToolRun, end_error
from whyloop.values.summaries import args_summary, result_summary
from whyloop.wire.envelope import usage_data

Document = dict[str, Any]

# For each limit, the option of an agent that sets it, its unit, and its part of a grant.
_LIMITS = {
    "StepsLimit": ("max_steps", "steps", "steps"),
    "TokenUsageLimit": ("max_tokens", "tokens", "tokens"),
    "ExecutionTimeLimit": ("timeout", "seconds", "seconds"),
    "CumulativeExecutionTimeLimit": ("cumulative_timeout", "seconds", "seconds"),
    "CostLimit": ("max_cost", "usd", "usd"),
}


def document(state: AgentState, steps: Iterable[int] | None = None, *, debug: bool = False) -> Document:
    """Return the session as plain data, with all or some of its steps.

    With `debug`, the messages of tools' own exceptions are in it.
    """
    outcome, execution = state.last_continuation_outcome, state.execution
    shown = range(state.steps.start + 1, len(state.steps) + 1) if steps is None else steps
    return {
        "agent_id": state.agent_id,
        "status": state.status.value,
        "stop_reason": state.stop_reason,
        "resolved_by": outcome.resolved_by if outcome else None,
        "reason": (end_error(outcome, state.current_step) or None) if outcome else None,
        "steps": [step_document(state, index, debug=debug) for index in shown],
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
        "pending_calls": list(msgspec.to_builtins(state.pending_calls)),
        "last_response": state.last_response,
    }


def _usage(usage: Usage) -> Document:
    """Return tokens and cost, and whether every answer reported them; if not, they are at least these."""
    return {**usage_data(usage), "reported": usage.reported}


# Steps


def step_document(state: AgentState, index: int, *, debug: bool = False) -> Document:
    """Return what a step did, and what was decided after it.

    `index` is its number in the session, from 1 on. The step before it says how long it waited for a
    provider, if the state has that one.
    """
    step = state.steps[index - 1]
    before = state.steps[index - 2] if index - 2 >= state.steps.start else None
    messages = state.messages_of(step)
    calls = {call.id: call for message in messages for call in message.tool_calls}
    results = {message.tool_call_id: message.text for message in messages if message.is_tool}
    failures = [_shown(failure, debug) for failure in step.failures]
    failed = {failure.tool_call_id: failure for failure in step.failures}
    if not debug:  # The model reads more than people.
        private = {key: failure for key, failure in failed.items() if failure.raised}
        results |= {key: f"Error: {failure.message}" for key, failure in private.items() if key in results}
    return {
        "index": index,
        "number": step.number,
        "execution_id": step.execution_id,
        "type": step.type.value,
        "started_at": step.started_at.isoformat(),
        "answered_at": _moment(step.answered_at),
        "completed_at": step.completed_at.isoformat(),
        "backoff_seconds": _backoff(step, step.execution_id, step.leg_started_at, before),
        "waited_seconds": _waited(step, step.completed_at, step.leg_started_at, step.duration_ms / 1000),
        "finish_reason": step.finish_reason,
        "usage": _usage(step.usage),
        "duration_ms": _rounded(step.duration_ms),
        "source": msgspec.to_builtins(step.source),
        "request": msgspec.to_builtins(step.request),
        "response_changed_by": list(step.response_changed_by),
        "tool_calls": [
            _call(run, calls.get(run.id), results.get(run.id), failed=run.id in failed)
            for run in step.tool_calls
        ],
        "failures": failures,
        "interrupted": step.interrupted and step.interrupted.value,
        "wrap_up": step.wrap_up,
        "outcome": step.outcome.to_dict() if step.outcome else None,
    }


def open_step_document(state: AgentState, *, debug: bool = False) -> Document | None:
    """Return the step in progress in the form of a closed one; None if there is none.

    Its outcome is that of the pause or the end in it; None while the run goes on.
    """
    step, execution = state.open_step, state.execution
    if step is None:
        return None
    before = state.steps.last if execution.step_number else None
    ended_at = execution.updated_at or step.started_at
    goes_on = state.status is AgentStatus.IN_PROGRESS
    outcome = None if goes_on else state.last_continuation_outcome
    return {
        "index": len(state.steps) + 1,
        "number": step.number,
        "execution_id": execution.id,
        "type": "error" if step.failure else "tool_execution" if step.calls else "final",
        "started_at": step.started_at.isoformat(),
        "answered_at": _moment(step.answered_at),
        "completed_at": None,
        "backoff_seconds": _backoff(step, execution.id, execution.leg_started_at, before),
        "waited_seconds": _waited(step, ended_at, execution.leg_started_at, step.seconds),
        "finish_reason": step.finish_reason,
        "usage": _usage(step.usage),
        "duration_ms": _rounded(step.seconds * 1000),
        "source": msgspec.to_builtins(step.source),
        "request": msgspec.to_builtins(step.request),
        "response_changed_by": list(step.response_changed_by),
        "tool_calls": [_open_call(step, index, call, debug) for index, call in enumerate(step.calls)],
        "failures": [] if step.failure is None else [_shown(step.failure, debug)],
        "interrupted": step.interrupted and step.interrupted.value,
        "wrap_up": execution.wrap_up,
        "outcome": outcome.to_dict() if outcome else None,
    }


def brief(step: Document, redaction: Redaction | None) -> Document:
    """Return a step with redacted summaries instead of its contents."""
    calls = [_brief_call(call, redaction) for call in step["tool_calls"]]
    return {key: value for key, value in step.items() if key != "request"} | {"tool_calls": calls}


def _brief_call(call: Document, redaction: Redaction | None) -> Document:
    arguments, result = call["arguments"], call["result"]
    left_out = ("arguments", "result", "changes", "approvals")
    return {
        **{key: value for key, value in call.items() if key not in left_out},
        "args_summary": "" if arguments is None else args_summary(arguments, redaction=redaction),
        "result_summary": None if result is None else result_summary(result, redaction=redaction),
        "approvals": [
            {key: value for key, value in approval.items() if key != "arguments"}
            for approval in call["approvals"]
        ],
    }


def _shown(failure: Failure, debug: bool) -> Any:
    """Return a failure without the texts that are only for the model."""
    return msgspec.to_builtins(replace(failure, correction=None, raised=failure.raised if debug else None))


def _call(run: ToolRun, call: ToolCall | None, result: str | None, *, failed: bool) -> Document:
    changes = call.changes if call is not None else ()
    return {
        "id": run.id,
        "name": run.name,
        "status": _status(closed_call_status(run, failed=failed), run.approvals),
        "arguments": call.arguments if call is not None else None,
        "changes": [msgspec.structs.asdict(change) for change in changes],
        "result": result,
        "result_changed_by": list(run.changed_by),
        "success": run.success,
        "error": run.error,
        "started_at": _moment(run.started_at),
        "duration_ms": _rounded(run.duration_ms),
        "approvals": list(msgspec.to_builtins(run.approvals)),
    }


def _open_call(step: OpenStep, index: int, call: OpenCall, debug: bool) -> Document:
    asked, result = step.call_to_run(index), call.result
    if result is not None and not debug:
        result = result.without_raised()
    return {
        "id": asked.id,
        "name": asked.name,
        "status": _status(open_call_status(call), call.approvals),
        "arguments": asked.arguments,
        "changes": [msgspec.structs.asdict(change) for change in asked.changes],
        "result": None if result is None else result.content,
        "result_changed_by": [] if result is None else list(result.changed_by),
        "success": None if result is None else result.error is None,
        "error": None if result is None else result.error,
        "started_at": _moment(call.started_at),
        "duration_ms": _rounded(call.duration_ms) if call.is_done else None,
        "approvals": list(msgspec.to_builtins(call.approvals)),
    }


def _status(status: CallStatus, approvals: Sequence[Approval]) -> str:
    denied = bool(approvals) and approvals[-1].verdict is Verdict.DENIED
    return "denied" if denied and status is CallStatus.NOT_COMPLETED else status.value


def _backoff(
    step: Step | OpenStep, execution_id: str, leg_started_at: datetime | None, before: Step | None
) -> float:
    """Return the backoff between two steps; a resume ends it."""
    if before is None or before.execution_id != execution_id or before.model_failure is None:
        return 0.0
    if before.outcome is None or before.outcome.handling is not ErrorHandlingDecision.RETRY:
        return 0.0
    if leg_started_at is not None and before.completed_at < leg_started_at <= step.started_at:
        return 0.0
    return _rounded(max(0.0, (step.started_at - before.completed_at).total_seconds()))


def _waited(
    step: Step | OpenStep, until: datetime, leg_started_at: datetime | None, active_seconds: float
) -> float:
    """Return how long a step waited for a person, and not for a provider."""
    answered_at = step.answered_at
    if answered_at is None or leg_started_at is None or leg_started_at <= answered_at:
        return 0.0
    backoff = step.source.waited if step.source is not None else 0.0
    waited = (until - step.started_at).total_seconds() - active_seconds - backoff
    return _rounded(max(0.0, waited))


# Rules


def latest_outcome(state: AgentState) -> ContinuationOutcome | None:
    """Return the latest evaluations of the execution, even after it was resumed."""
    if state.last_continuation_outcome is not None:
        return state.last_continuation_outcome
    return None if state.current_step is None else state.current_step.outcome


def limits_document(state: AgentState) -> list[Document]:
    """Return the limits of the execution, with their latest numbers.

    Grants come on top of `limit`.
    """
    outcome, granted = latest_outcome(state), state.execution.granted
    by_then = granted  # Before the next step, no evaluation includes the grant of a resume.
    if state.last_continuation_outcome is None and state.current_step is not None:
        by_then = state.current_step.granted
    found = []
    for evaluation in outcome.evaluations if outcome is not None else ():
        used, limit = evaluation.context.get("used"), evaluation.context.get("limit")
        if (
            evaluation.criterion in _LIMITS
            and isinstance(used, int | float)
            and isinstance(limit, int | float)
        ):
            option, unit, share = _LIMITS[evaluation.criterion]
            found.append(
                {
                    "rule": evaluation.criterion,
                    "option": option,
                    "unit": unit,
                    "limit": _rounded(limit - _share(by_then, share), 9),
                    "used": used,
                    "granted": _share(granted, share),
                }
            )
    return found


def _share(granted: Budget | None, name: str) -> int | float:
    amount = 0 if granted is None else getattr(granted, name)
    return amount if isinstance(amount, int) else float(amount)


def rule_names(state: AgentState) -> list[str]:
    """Return the names of the rules in the order in which they were last evaluated."""
    outcome = latest_outcome(state) or (state.steps.last.outcome if state.steps.last else None)
    return [] if outcome is None else [evaluation.criterion for evaluation in outcome.evaluations]


def _moment(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()


def _rounded(number: float, digits: int = 3) -> float:
    return round(number, digits)
