"""How the values of a state are written in a slim snapshot."""

from __future__ import annotations

from bisect import bisect_left
from datetime import UTC, datetime

from msgspec import UNSET
from msgspec.structs import replace

from whyloop.rules.continuation.approval import ApprovalRequired
from whyloop.values.approval import Approval
from whyloop.values.continuation import ContinuationEvaluation, ContinuationOutcome
from whyloop.values.failure import Failure
from whyloop.values.messages import Message, ToolCall
from whyloop.values.open_step import OpenCall, OpenStep
from whyloop.values.step import Step, ToolRun
from whyloop.values.usage import Usage
from whyloop.wire.config import SlimSerializationConfig
from whyloop.wire.slim_schema import (
    MessageMetadata,
    SlimCall,
    SlimContinuation,
    SlimMessage,
    SlimStep,
    StepTokens,
    Tokens,
)


class Notes:
    """How values are written under one configuration."""

    def __init__(self, config: SlimSerializationConfig, execution_id: str, kept: list[int]) -> None:
        self._config = config
        self._execution_id = execution_id
        self._kept = kept

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
        )
        return SlimMessage(message.role, message.content, None if metadata == _NO_METADATA else metadata)

    def _call(self, call: ToolCall) -> SlimCall:
        arguments = call.arguments if isinstance(call.arguments, str) else dict(call.arguments)
        return SlimCall(call.id, call.name, arguments if self._config.include_tool_args else UNSET)

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
        )

    def open_step(self, step: OpenStep) -> OpenStep:
        wanted = self._config.include_metadata
        return replace(
            step,
            started_at=utc(step.started_at),
            message=step.message if wanted else replace(step.message, extras={}),
            calls=tuple([self._open_call(call) for call in step.calls]),
            source=step.source if wanted else None,
        )

    def _open_call(self, call: OpenCall) -> OpenCall:
        result = call.result
        if result is not None and result.failure is not None:
            result = replace(result, failure=self._failure(result.failure))
        return replace(call, result=result, approvals=self._approvals(call))

    def _run(self, run: ToolRun) -> ToolRun:
        return replace(run, approvals=self._approvals(run)) if run.approvals else run

    def _approvals(self, decided: ToolRun | OpenCall) -> tuple[Approval, ...]:
        wanted = self._config.include_tool_args
        return tuple(
            [
                replace(approval, at=utc(approval.at), arguments=approval.arguments if wanted else None)
                for approval in decided.approvals
            ]
        )

    def _failure(self, failure: Failure) -> Failure:
        return failure if self._config.include_metadata else replace(failure, details={})

    def continuation(self, outcome: ContinuationOutcome) -> SlimContinuation:
        evaluations = outcome.evaluations
        if not self._config.include_all_steps:
            decisive = outcome.resolving_evaluation
            evaluations = (decisive,) if decisive else ()
        if not self._config.include_metadata:
            evaluations = tuple([replace(said, context={}) for said in evaluations])
        elif not self._config.include_tool_args:
            evaluations = tuple([_without_arguments(said) for said in evaluations])
        return SlimContinuation(
            should_continue=outcome.should_continue,
            stop_reason=outcome.stop_reason,
            resolved_by=outcome.resolved_by,
            decision=outcome.decision,
            evaluations=evaluations,
        )


_NO_METADATA = MessageMetadata()


def _without_arguments(said: ContinuationEvaluation) -> ContinuationEvaluation:
    """The evaluation as it is; the one that names the calls which wait, without their arguments."""
    pending = said.context.get("pending")
    if said.criterion != ApprovalRequired.__name__ or not isinstance(pending, list):
        return said
    shown = [
        {key: value for key, value in call.items() if key != "arguments"}
        for call in pending
        if isinstance(call, dict)
    ]
    return replace(said, context={**said.context, "pending": shown})


def tokens(usage: Usage) -> Tokens:
    return Tokens(usage.input, usage.output, usage.total, usage.cached, usage.reasoning)


def _step_tokens(usage: Usage) -> StepTokens:
    return StepTokens(usage.total, usage.input, usage.output, usage.cached, usage.reasoning)


def utc(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError:  # The first and the last day of the calendar have no neighbours.
        return moment.replace(tzinfo=UTC)
