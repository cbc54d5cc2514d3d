"""From a state to the document of a slim snapshot."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from whyloop.values import plain
from whyloop.values.continuation import ContinuationOutcome
from whyloop.values.execution import Execution, StateInfo
from whyloop.values.messages import Message, ToolCall
from whyloop.values.secrets import REMOVED
from whyloop.values.state import AgentState
from whyloop.values.step import Step
from whyloop.values.usage import Usage
from whyloop.wire.config import SlimSerializationConfig
from whyloop.wire.redact import Redactor
from whyloop.wire.slim_schema import (
    VERSION,
    MessageMetadata,
    SlimCall,
    SlimContinuation,
    SlimExecution,
    SlimMessage,
    SlimState,
    SlimStep,
    StepTokens,
    Tokens,
    Truncated,
)
from whyloop.wire.trim import LEFT_OUT, changed_message, changed_outcome, changed_step, cut, kept_indices


class SlimWriter:
    """A state without its secrets, ready to be written in the asked-for detail or in less.

    The secrets are removed once and first, so that no cut leaves half of one behind.
    """

    def __init__(self, state: AgentState, asked: SlimSerializationConfig, redactor: Redactor) -> None:
        hide = redactor.data
        self._asked = asked
        self._state = state
        self._messages = {
            index: _without_secrets(state.messages[index], redactor)
            for index in kept_indices(state.messages, asked.max_messages)
        }
        step, outcome = state.current_step, state.last_continuation_outcome
        self._current = step and changed_step(step, hide)
        self._steps = [changed_step(step, hide) for step in state.steps] if asked.include_all_steps else []
        self._outcome = outcome and changed_outcome(outcome, hide)
        self._stop_request: str | None = state.execution.stop_request and hide(state.execution.stop_request)
        self._metadata: dict[str, Any] = hide(state.metadata) if asked.include_metadata else {}

    def document(self, config: SlimSerializationConfig) -> dict[str, Any]:
        """The snapshot under this configuration, which allows no more than the one that was asked for."""
        state, shorten = self._state, partial(cut, most=config.max_content_length)
        kept = kept_indices(state.messages, config.max_messages)
        whole = [self._messages[index] for index in kept]
        messages = [changed_message(message, shorten, LEFT_OUT) for message in whole]
        notes = _Notes(config, state.execution.id, kept)
        current = self._current and changed_step(self._current, shorten)
        steps = [changed_step(step, shorten) for step in self._steps] if config.include_all_steps else []
        outcome = self._outcome and changed_outcome(self._outcome, shorten)
        stop_request = shorten(self._stop_request)
        before = [self._current, *self._steps[: len(steps)], self._outcome, self._stop_request]
        after = [current, *steps, outcome, stop_request]
        slim = SlimState(
            version=VERSION,
            agent_id=state.agent_id,
            parent_agent_id=state.parent_agent_id,
            status=state.status,
            execution=_execution(state.execution, stop_request),
            usage=_tokens(state.usage),
            messages=tuple(notes.messages(messages)),
            current_step=notes.step(replace(current, outcome=None)) if current else None,
            steps=tuple([notes.step(step) for step in steps]),
            last_continuation=notes.continuation(outcome) if outcome else None,
            metadata=self._metadata if config.include_metadata else {},
            truncated=Truncated(
                messages=len(state.messages) - len(kept),
                contents=_differences(whole, messages),
                details=_differences(before, after),
                steps=len(self._steps) - len(steps),
                args=sum(len(message.tool_calls) for message in messages)
                if self._asked.include_tool_args and not config.include_tool_args
                else 0,
                metadata=0 if config.include_metadata else len(self._metadata),
            ),
            state_info=_state_info(state.state_info),
        )
        document: dict[str, Any] = plain.encode(slim)
        return document


def _without_secrets(message: Message, redactor: Redactor) -> Message:
    message = changed_message(message, redactor.data, REMOVED)
    if message.extras and redactor.data(message.extras) != message.extras:
        return replace(message, extras={})
    return message


def _differences(before: Sequence[object], after: Sequence[object]) -> int:
    return sum(a != b for a, b in zip(before, after, strict=True))


class _Notes:
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
        failures, wanted = step.failures, self._config.include_metadata
        if not wanted:
            failures = tuple([replace(failure, details={}) for failure in failures])
        return SlimStep(
            step_number=step.number,
            type=step.type,
            has_tool_calls=step.has_tool_calls,
            finish_reason=step.finish_reason,
            errors=step.error_count,
            usage=_step_tokens(step.usage),
            duration_ms=step.duration_ms,
            tool_calls=step.tool_calls,
            execution_id=None if step.execution_id == self._execution_id else step.execution_id,
            started_at=_utc(step.started_at),
            completed_at=_utc(step.completed_at),
            first_message=first,
            message_count=bisect_left(self._kept, step.first_message + step.message_count) - first,
            failures=failures,
            interrupted=step.interrupted,
            source=step.source if wanted else None,
            continuation=self.continuation(step.outcome) if step.outcome else None,
        )

    def continuation(self, outcome: ContinuationOutcome) -> SlimContinuation:
        evaluations = outcome.evaluations
        if not self._config.include_all_steps:
            decisive = outcome.resolving_evaluation
            evaluations = (decisive,) if decisive else ()
        if not self._config.include_metadata:
            evaluations = tuple([replace(said, context={}) for said in evaluations])
        return SlimContinuation(
            should_continue=outcome.should_continue,
            stop_reason=outcome.stop_reason,
            resolved_by=outcome.resolved_by,
            decision=outcome.decision,
            evaluations=evaluations,
        )


_NO_METADATA = MessageMetadata()


def _execution(execution: Execution, stop_request: str | None) -> SlimExecution:
    return SlimExecution(
        id=execution.id,
        step_count=execution.step_count,
        started_at=_utc(execution.started_at),
        updated_at=execution.updated_at and _utc(execution.updated_at),
        cumulative_seconds=execution.active_seconds,
        usage=_tokens(execution.usage),
        failures=execution.failures if execution.failures.total else None,
        waiting_seconds=execution.waiting_seconds,
        backoff_seconds=execution.backoff_seconds,
        resumes=execution.resumes,
        granted=execution.granted,
        stop_request=stop_request,
    )


def _state_info(info: StateInfo) -> StateInfo:
    return replace(info, started_at=_utc(info.started_at), updated_at=_utc(info.updated_at))


def _tokens(usage: Usage) -> Tokens:
    return Tokens(usage.input, usage.output, usage.total, usage.cached, usage.reasoning)


def _step_tokens(usage: Usage) -> StepTokens:
    return StepTokens(usage.total, usage.input, usage.output, usage.cached, usage.reasoning)


def _utc(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError:  # The first and the last day of the calendar have no neighbours.
        return moment.replace(tzinfo=UTC)
