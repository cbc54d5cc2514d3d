"""From the document of a slim snapshot to a state that can be run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET, UnsetType

from whyloop.errors import SnapshotError
from whyloop.values import plain
from whyloop.values.continuation import ContinuationDecision, ContinuationOutcome, StopReason
from whyloop.values.execution import Execution, StateInfo
from whyloop.values.failure import FailureTally
from whyloop.values.ids import new_id
from whyloop.values.log import Log
from whyloop.values.messages import CallChange, Message, ToolCall
from whyloop.values.snapshot import check_open_step
from whyloop.values.state import AgentState
from whyloop.values.step import Step
from whyloop.values.usage import Usage
from whyloop.wire.slim_schema import (
    VERSION,
    MessageMetadata,
    SlimContinuation,
    SlimExecution,
    SlimMessage,
    SlimState,
    SlimStep,
    StepTokens,
    Tokens,
)


def read_slim(data: Mapping[str, Any]) -> AgentState:
    """The state in a slim snapshot, its execution clock unset."""
    _check_version(data)
    slim = plain.decode(dict(data), SlimState)
    check_open_step(slim.open_step, "$.open_step")
    messages = [_message(message) for message in slim.messages]
    execution = _execution(slim.execution, messages)
    last = _outcome(slim.last_continuation) if slim.last_continuation else None
    current = _step(slim.current_step, execution, last) if slim.current_step else None
    # Where the steps were left out the current one is all that is known of them.
    steps = [_step(step, execution, None) for step in slim.steps] or [step for step in [current] if step]
    return AgentState(
        agent_id=slim.agent_id,
        identity=slim.identity or new_id(),
        agent=slim.agent,
        parent_agent_id=slim.parent_agent_id,
        status=slim.status,
        messages=Log(messages),
        steps=Log(steps),
        usage=_usage(slim.usage),
        metadata=slim.metadata,
        state_info=slim.state_info or _made_up(slim.execution),
        execution=execution,
        last_continuation_outcome=last,
        open_step=slim.open_step,
        request_parts=Log(slim.request_parts),
    )


def _check_version(data: object) -> None:
    if not isinstance(data, Mapping):
        raise SnapshotError(f"a snapshot is an object, this is {type(data).__name__}")
    version = data.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise SnapshotError("a slim snapshot names its version with a number from 1 on", "$.version")
    if version > VERSION:
        raise SnapshotError(
            f"it is of a version newer than {VERSION}, the newest that this whyloop reads: upgrade whyloop",
            "$.version",
        )


def _execution(slim: SlimExecution, messages: Sequence[Message]) -> Execution:
    since_query = _since_query(messages) if slim.step_count else []
    return Execution(
        id=slim.id,
        started_at=slim.started_at,
        updated_at=slim.updated_at,
        step_count=slim.step_count,
        usage=_usage(slim.usage) if slim.usage else Usage(),
        failures=slim.failures or FailureTally(),
        active_seconds=slim.cumulative_seconds,
        waiting_seconds=slim.waiting_seconds,
        backoff_seconds=slim.backoff_seconds,
        resumes=slim.resumes,
        granted=slim.granted,
        stop_request=slim.stop_request,
        leg_started_at=slim.leg_started_at,
        resumed_from=slim.resumed_from,
        last_seq=slim.last_seq,
        wait_until=slim.wait_until,
        recoveries=slim.recoveries,
        question=slim.question,
        approvals=slim.approvals,
        last_response=next((m.text for m in reversed(since_query) if m.is_assistant and m.text), ""),
        has_tool_results=slim.has_tool_results or any(m.is_tool for m in since_query),
    )


def _since_query(messages: Sequence[Message]) -> Sequence[Message]:
    """Return the messages after the last query."""
    last = max((index for index, message in enumerate(messages) if message.is_user), default=-1)
    return messages[last + 1 :]


def _made_up(slim: SlimExecution) -> StateInfo:
    """The clocks of a session that names none: those of its execution."""
    return StateInfo(slim.started_at, slim.updated_at or slim.started_at, slim.cumulative_seconds)


def _message(slim: SlimMessage) -> Message:
    metadata = slim.metadata or MessageMetadata()
    return Message(
        role=slim.role,
        content=slim.content,
        tool_calls=tuple(
            [
                ToolCall(
                    call.id,
                    call.name,
                    _arguments(call.args),
                    tuple([CallChange(each.by, _arguments(each.before), each.name) for each in call.changes]),
                )
                for call in metadata.tool_calls
            ]
        ),
        tool_call_id=metadata.tool_call_id,
        tool_name=metadata.tool_name,
        extras=metadata.extras,
        reasoning=metadata.reasoning,
        incomplete=metadata.incomplete,
        source=metadata.source,
    )


def _arguments(arguments: dict[str, Any] | str | UnsetType) -> dict[str, Any] | str:
    return {} if arguments is UNSET else arguments


def _step(slim: SlimStep, execution: Execution, outcome: ContinuationOutcome | None) -> Step:
    return Step(
        number=slim.step_number,
        execution_id=slim.execution_id or execution.id,
        started_at=slim.started_at or execution.started_at,
        completed_at=slim.completed_at or execution.updated_at or execution.started_at,
        first_message=slim.first_message,
        message_count=slim.message_count,
        tool_calls=slim.tool_calls,
        finish_reason=slim.finish_reason,
        usage=_usage(slim.usage),
        duration_ms=slim.duration_ms,
        failures=slim.failures,
        interrupted=slim.interrupted,
        source=slim.source,
        outcome=_outcome(slim.continuation) if slim.continuation else outcome,
        request=slim.request,
        response_changed_by=slim.response_changed_by,
        answered_at=slim.answered_at,
    )


def _usage(slim: Tokens | StepTokens) -> Usage:
    # A total alone is enough for a limit on tokens; it does not say which way they went.
    read = slim.input or max(0, slim.total - slim.output)
    cost = None if slim.cost is UNSET else slim.cost
    return Usage(read, slim.output, slim.cached, slim.reasoning, cost, slim.reported)


def _outcome(slim: SlimContinuation) -> ContinuationOutcome:
    return ContinuationOutcome(
        decision=slim.decision or _likely(slim),
        resolved_by=slim.resolved_by,
        stop_reason=slim.stop_reason,
        evaluations=slim.evaluations,
    )


def _likely(slim: SlimContinuation) -> ContinuationDecision:
    """The decision behind a continuation that does not name it."""
    if slim.should_continue:
        return ContinuationDecision.REQUEST_CONTINUATION
    if slim.stop_reason is StopReason.COMPLETED:
        return ContinuationDecision.ALLOW_STOP
    return ContinuationDecision.FORBID_CONTINUATION
