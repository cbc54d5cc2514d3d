"""Events as they leave the process: one envelope for all, the same for ever."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from whyloop.events import (
    AgentEvent,
    AgentStatusChanged,
    AgentStepCompleted,
    AgentStepStarted,
    ContinuationEvaluated,
    StreamChunkReceived,
    ToolCallCompleted,
    ToolCallStarted,
)
from whyloop.values import plain
from whyloop.values.continuation import ContinuationOutcome
from whyloop.values.text import clean
from whyloop.wire.broadcast_config import BroadcastConfig
from whyloop.wire.redact import without_secrets
from whyloop.wire.summaries import args_summary, result_summary, words_for

VERSION = 1
_WITH_MICROSECONDS = len("2026-01-16T10:05:01.123456Z")

Data = dict[str, Any]


def envelope(
    event: AgentEvent, seq: int, config: BroadcastConfig, session_id: str | None = None
) -> Data | None:
    """The envelope of an event, or None for one that is not told."""
    kind = type(event)
    form = _FORMS.get(kind)
    if form is None or not _is_told(kind, config):
        return None
    name, data = form
    return {
        "v": VERSION,
        "event": name,
        "seq": seq,
        "timestamp": timestamp(event.time),
        "agent_id": clean(event.agent_id),
        "session_id": clean(session_id or event.agent_id),
        "execution_id": clean(event.execution_id),
        "data": data(event, config),
    }


def timestamp(moment: datetime) -> str:
    """A moment in UTC, with milliseconds."""
    if moment.tzinfo is not UTC:
        moment = moment.astimezone(UTC)
    # Ten times as fast as `isoformat`, and every envelope has one.
    written: str = msgspec.to_builtins(moment)
    return written[:23] + "Z" if len(written) == _WITH_MICROSECONDS else written[:19] + ".000Z"


def _is_told(kind: type[AgentEvent], config: BroadcastConfig) -> bool:
    if kind is StreamChunkReceived:
        return config.include_stream_chunks
    return config.include_continuation or kind is not ContinuationEvaluated


def _status(event: AgentStatusChanged, config: BroadcastConfig) -> Data:
    return {
        "status": str(event.status),
        "previous_status": str(event.previous_status),
        "stop_reason": event.stop_reason and str(event.stop_reason),
        "step_count": event.step_count,
        "error_message": event.error_message and _words(event.error_message, config),
        "last_response": event.last_response and clean(event.last_response),
    }


def _step_started(event: AgentStepStarted, config: BroadcastConfig) -> Data:
    return {
        "step_number": event.step_number,
        "message_count": event.message_count,
        "available_tools": [clean(name) for name in event.available_tools],
    }


def _step_completed(event: AgentStepCompleted, config: BroadcastConfig) -> Data:
    usage, data = event.usage, dict[str, Any]()
    said = event.outcome.failure_evaluation if event.error_count else None
    if said is not None and said.context.get("handling") == "retry" and event.outcome.should_continue:
        failures, most = said.context.get("consecutive_failures"), said.context.get("max_retries")
        data["retry"] = {"attempt": failures, "max": most}
    return data | {
        "step_number": event.step_number,
        "has_tool_calls": event.has_tool_calls,
        "errors": event.error_count,
        "finish_reason": event.finish_reason and str(event.finish_reason),
        "usage": {"input": usage.input, "output": usage.output, "total": usage.total},
        "duration_ms": round(event.duration_ms, 3),
        "continuation": _verdict(event.outcome),
    }


def _tool_started(event: ToolCallStarted, config: BroadcastConfig) -> Data:
    data: Data = {"tool": clean(event.tool), "tool_call_id": clean(event.tool_call_id)}
    if config.include_tool_args:
        args = _plain(event.args)
        data["args"] = without_secrets(args) if config.redact else args
    else:
        redact = without_secrets if config.redact else None
        data["args_summary"] = args_summary(event.args, config.max_argument_length, redact)
    return data


def _tool_completed(event: ToolCallCompleted, config: BroadcastConfig) -> Data:
    redact = without_secrets if config.redact else None
    return {
        "tool": clean(event.tool),
        "tool_call_id": clean(event.tool_call_id),
        "success": event.success,
        "error": event.error and _words(event.error, config),
        "duration_ms": round(event.duration_ms, 3),
        "result_summary": result_summary(event.result, config.max_result_length, redact),
    }


def _chunk(event: StreamChunkReceived, config: BroadcastConfig) -> Data:
    return {
        "chunk": clean(event.chunk),
        "chunk_index": event.chunk_index,
        "is_complete": event.is_complete,
    }


def _continuation(event: ContinuationEvaluated, config: BroadcastConfig) -> Data:
    evaluations = event.outcome.evaluations
    contexts = _plain([e.context for e in evaluations])
    if isinstance(contexts, str):
        # One of them cannot be written as JSON; the others still can.
        contexts = [_plain(e.context) for e in evaluations]
    if config.redact:
        contexts = [without_secrets(context) for context in contexts]
    return {
        "step_number": event.step_number,
        **_verdict(event.outcome),
        "evaluations": [
            {
                "criterion": clean(e.criterion),
                "decision": str(e.decision),
                "reason": _words(e.reason, config),
                "context": context if isinstance(context, dict) else {"unreadable": context},
            }
            for e, context in zip(evaluations, contexts, strict=True)
        ],
    }


def _verdict(outcome: ContinuationOutcome) -> Data:
    return {
        "should_continue": outcome.should_continue,
        "stop_reason": outcome.stop_reason and str(outcome.stop_reason),
        "resolved_by": clean(outcome.resolved_by),
    }


def _plain(value: object) -> Any:
    """The value as JSON holds it; in words where it cannot, since those who watch break nothing."""
    try:
        return plain.encode(value)
    except (TypeError, ValueError, RecursionError):
        return words_for(value, 1000)


def _words(text: str, config: BroadcastConfig) -> str:
    words: str = without_secrets(clean(text)) if config.redact else clean(text)
    return words


_FORMS: dict[type[AgentEvent], tuple[str, Callable[[Any, BroadcastConfig], Data]]] = {
    AgentStatusChanged: ("agent.status", _status),
    AgentStepStarted: ("agent.step.started", _step_started),
    AgentStepCompleted: ("agent.step.completed", _step_completed),
    ToolCallStarted: ("agent.tool.started", _tool_started),
    ToolCallCompleted: ("agent.tool.completed", _tool_completed),
    StreamChunkReceived: ("agent.stream.chunk", _chunk),
    ContinuationEvaluated: ("agent.continuation", _continuation),
}
EVENTS = tuple(name for name, _ in _FORMS.values())
