"""How the values of a state are written in a slim snapshot."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from whyloop.values.approval import Approval
from whyloop.values.continuation import ContinuationOutcome
from whyloop.values.execution import Execution
from whyloop.values.failure import Failure
from whyloop.values.messages import Message, ToolCall
from whyloop.values.step import OpenCall, OpenStep, RequestRecord, Step, ToolRun
from whyloop.values.usage import Usage
from whyloop.wire.config import SlimSerializationConfig
from whyloop.wire.slim_schema import (
    MessageMetadata,
    SlimCall,
    SlimChange,
    SlimContinuation,
    SlimExecution,
    SlimMessage,
    SlimStep,
    StepTokens,
    Tokens,
)


class Notes:
    """How values are written under one configuration."""

    def __init__(
        self, config: SlimSerializationConfig, execution_id: str, kept: list[int], *, trimmed: bool
    ) -> None:
        self._config = config
        self._execution_id = execution_id
        self._kept = kept
        self._trimmed = trimmed

    def messages(self, messages: list[Message]) -> list[SlimMessage]:
        # Providers insist on their extras only until the user speaks again.
        current = max((i for i, message in enumerate(messages) if message.is_user), default=-1)
        start = 0 if self._config.max_content_length is None else current
        wanted = self._config.include_metadata
        return [
            self._message(message, extras=wanted and index >= start) for index, message in enumerate(messages)
        ]

    def _message(self, message: Message, *, extras: bool) -> SlimMessage:
        metadata = MessageMetadata(
            tool_calls=tuple([self._call(call) for call in message.tool_calls]),
            tool_call_id=message.tool_call_id,
            tool_name=message.tool_name,
            extras=dict(message.extras) if extras else {},
            reasoning=message.reasoning if self._config.include_metadata else "",
            incomplete=message.incomplete,
            source=message.source,
        )
        return SlimMessage(message.role, message.content, None if metadata == _NO_METADATA else metadata)

    def _call(self, call: ToolCall) -> SlimCall:
        changes = [
            SlimChange(change.by, self._arguments(change.before), change.name) for change in call.changes
        ]
        return SlimCall(call.id, call.name, self._arguments(call.arguments), tuple(changes))

    def _arguments(self, arguments: Mapping[str, Any] | str) -> dict[str, Any] | str | UnsetType:
        if not self._config.include_tool_args:
            return UNSET
        return arguments if isinstance(arguments, str) else dict(arguments)

    def step(self, step: Step) -> SlimStep:
        first = bisect_left(self._kept, step.first_message)
        return SlimStep(
            step_number=step.number,
            type=step.type,
            has_tool_calls=step.has_tool_calls,
            finish_reason=step.finish_reason,
            errors=step.error_count,
            usage=_step_tokens(step.usage),
            duration_ms=step.duration_ms,
            tool_calls=tuple([self._run(run) for run in step.tool_calls]),
            execution_id=None if step.execution_id == self._execution_id else step.execution_id,
            started_at=utc(step.started_at),
            completed_at=utc(step.completed_at),
            first_message=first,
            message_count=bisect_left(self._kept, step.first_message + step.message_count) - first,
            failures=tuple([self._failure(failure) for failure in step.failures]),
            interrupted=step.interrupted,
            source=step.source if self._config.include_metadata else None,
            continuation=self.continuation(step.outcome) if step.outcome else None,
            request=self._request(step.request),
            response_changed_by=step.response_changed_by,
            answered_at=step.answered_at and utc(step.answered_at),
        )

    def _request(self, record: RequestRecord | None) -> RequestRecord | None:
        """Return the record of a request, unless it refers to messages that are counted otherwise here."""
        if record is None or not self._config.include_metadata:
            return None
        return None if self._trimmed and record.messages is not None else record

    def execution(self, execution: Execution) -> SlimExecution:
        return SlimExecution(
            id=execution.id,
            step_count=execution.step_count,
            started_at=utc(execution.started_at),
            updated_at=execution.updated_at and utc(execution.updated_at),
            cumulative_seconds=execution.active_seconds,
            usage=tokens(execution.usage),
            failures=execution.failures if execution.failures.total else None,
            waiting_seconds=execution.waiting_seconds,
            backoff_seconds=execution.backoff_seconds,
            resumes=execution.resumes,
            granted=execution.granted,
            stop_request=execution.stop_request,
            leg_started_at=execution.leg_started_at and utc(execution.leg_started_at),
            resumed_from=execution.resumed_from,
            last_seq=execution.last_seq,
            wait_until=execution.wait_until and utc(execution.wait_until),
            recoveries=execution.recoveries,
            question=execution.question,
            approvals=self._approvals(execution.approvals),
            has_tool_results=execution.has_tool_results,
        )

    def open_step(self, step: OpenStep) -> OpenStep:
        wanted, message = self._config.include_metadata, step.message
        if message is not None and not wanted:
            message = replace(message, extras={}, reasoning="")
        return replace(
            step,
            started_at=utc(step.started_at),
            message=message,
            calls=tuple([self._open_call(call) for call in step.calls]),
            source=step.source if wanted else None,
            failure=step.failure and self._failure(step.failure),
            request=self._request(step.request),
            answered_at=step.answered_at and utc(step.answered_at),
        )

    def _open_call(self, call: OpenCall) -> OpenCall:
        result = call.result
        if result is not None and result.failure is not None:
            result = replace(result, failure=self._failure(result.failure))
        return replace(
            call,
            result=result,
            approvals=self._approvals(call.approvals),
            started_at=call.started_at and utc(call.started_at),
        )

    def _run(self, run: ToolRun) -> ToolRun:
        started_at = run.started_at and utc(run.started_at)
        return replace(run, approvals=self._approvals(run.approvals), started_at=started_at)

    def _approvals(self, approvals: Sequence[Approval]) -> tuple[Approval, ...]:
        wanted = self._config.include_tool_args
        return tuple(
            [
                replace(approval, at=utc(approval.at), arguments=approval.arguments if wanted else None)
                for approval in approvals
            ]
        )

    def _failure(self, failure: Failure) -> Failure:
        return failure if self._config.include_metadata else replace(failure, details={})

    def continuation(self, outcome: ContinuationOutcome) -> SlimContinuation:
        evaluations = outcome.evaluations
        if not self._config.include_all_steps:
            # A failure that was ignored does not count, so its handling is part of how the run continues.
            needed = (outcome.resolving_evaluation, outcome.policy_evaluation)
            evaluations = tuple([each for each in evaluations if any(each is one for one in needed)])
        if not self._config.include_metadata:
            evaluations = tuple([replace(each, context={}) for each in evaluations])
        return SlimContinuation(
            should_continue=outcome.should_continue,
            stop_reason=outcome.stop_reason,
            resolved_by=outcome.resolved_by,
            decision=outcome.decision,
            evaluations=evaluations,
        )


_NO_METADATA = MessageMetadata()


def tokens(usage: Usage) -> Tokens:
    return Tokens(
        usage.input, usage.output, usage.total, usage.cost, usage.cached, usage.reasoning, usage.reported
    )


def _step_tokens(usage: Usage) -> StepTokens:
    return StepTokens(
        usage.total, usage.cost, usage.input, usage.output, usage.cached, usage.reasoning, usage.reported
    )


def utc(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError:  # The first and the last day of the calendar have no neighbours.
        return moment.replace(tzinfo=UTC)
