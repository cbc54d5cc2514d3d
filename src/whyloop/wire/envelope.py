"""Envelopes: events as they leave the process, each a pure function of one event."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from whyloop.errors import ConfigurationError
from whyloop.events import (
    AgentEvent,
    AgentStatusChanged,
    AgentStepCompleted,
    AgentStepStarted,
    ApprovalDecided,
    ApprovalRequested,
    ContinuationEvaluated,
    RetryScheduled,
    StreamChunkReceived,
    ToolCallCompleted,
    ToolCallStarted,
)
from whyloop.values import encoding
from whyloop.values.continuation import ContinuationOutcome
from whyloop.values.model import Usage
from whyloop.values.redaction import DEFAULT_REDACTION, Redaction, redacted
from whyloop.values.scalars import as_utc
from whyloop.values.summaries import args_summary, result_summary
from whyloop.values.text import clean
from whyloop.wire.view import RECOVERY


class BroadcastConfig(Struct, frozen=True, gc=False):
    """Which events become envelopes, and how much of a tool call they show.

    Numbered envelopes are always sent.
    """

    include_stream_chunks: bool = True
    """Send the pieces of an answer as they arrive."""
    include_continuation: bool = False
    """Send the evaluations of all rules after every step."""
    include_tool_args: bool = False
    """Send all arguments of a call instead of a summary of the first three."""
    max_argument_length: int = 30
    """The characters of each argument in a summary."""
    max_result_length: int = 100
    """The characters of a result, which is always cut."""
    redaction: Redaction | None = DEFAULT_REDACTION
    """The secrets to remove from arguments, results, errors and reasons; None for none. Answers stay."""
    include_other_events: bool = False
    """Send all other events too, with their public fields."""
    include_tool_errors: bool = False
    """Send the messages of tools' own exceptions instead of their class: "ValueError in parse"."""

    def __post_init__(self) -> None:
        if self.max_argument_length < 0 or self.max_result_length < 0:
            raise ConfigurationError(f"invalid {self!r}: use lengths of zero or more")
        if self.redaction is not None and not isinstance(self.redaction, Redaction):
            raise ConfigurationError(f"invalid redaction {self.redaction!r}: use a Redaction or None")

    @classmethod
    def minimal(cls, *, redaction: Redaction | None = DEFAULT_REDACTION) -> BroadcastConfig:
        """Send statuses, steps, tools, approvals and retries.

        Args:
            redaction: The secrets to remove; None for none. Default: `Redaction()`.
        """
        return cls(include_stream_chunks=False, redaction=redaction)

    @classmethod
    def standard(cls, *, redaction: Redaction | None = DEFAULT_REDACTION) -> BroadcastConfig:
        """Send the text of the answer and the reasoning too, as they stream.

        Args:
            redaction: The secrets to remove; None for none. Default: `Redaction()`.
        """
        return cls(redaction=redaction)

    @classmethod
    def debug(cls, *, redaction: Redaction | None = DEFAULT_REDACTION) -> BroadcastConfig:
        """Send the evaluation of every rule, full arguments, messages of exceptions and all other events.

        Args:
            redaction: The secrets to remove; None for none. Default: `Redaction()`.
        """
        return cls(
            include_continuation=True,
            include_tool_args=True,
            include_other_events=True,
            include_tool_errors=True,
            redaction=redaction,
        )

    def at_most_standard(self) -> BroadcastConfig:
        """Return this configuration without everything that `standard` leaves out."""
        standard = BroadcastConfig()
        return replace(
            self,
            include_continuation=False,
            include_tool_args=False,
            include_other_events=False,
            include_tool_errors=False,
            max_argument_length=min(self.max_argument_length, standard.max_argument_length),
            max_result_length=min(self.max_result_length, standard.max_result_length),
        )


VERSION = 1
_WITH_MICROSECONDS = len("2026-01-16T10:05:01.123456Z")

Data = dict[str, Any]


def envelope(event: AgentEvent, config: BroadcastConfig, session_id: str | None = None) -> Data | None:
    """Return the envelope of an event, or None if the configuration leaves it out."""
    form = _FORMS.get(type(event), _OTHER)
    name, data, is_sent = form
    if is_sent is not None and not is_sent(config):
        return None
    return {
        "v": VERSION,
        "event": name,
        "seq": event.seq,
        "timestamp": timestamp(event.time),
        "agent_id": clean(event.agent_id),
        "session_id": clean(session_id or event.agent_id),
        "execution_id": clean(event.execution_id),
        "data": data(event, config),
    }


def timestamp(moment: datetime) -> str:
    """Return a moment in UTC, with milliseconds."""
    if moment.tzinfo is not UTC:
        moment = as_utc(moment)
    # Ten times as fast as `isoformat`; every envelope has a timestamp.
    written: str = msgspec.to_builtins(moment)
    return written[:23] + "Z" if len(written) == _WITH_MICROSECONDS else written[:19] + ".000Z"


def usage_data(usage: Usage) -> Data:
    """Return tokens and cost; the cost is decimal text, None if it is unknown."""
    return {
        "input": usage.input,
        "output": usage.output,
        "total": usage.total,
        "cost": None if usage.cost is None else str(usage.cost),
    }


# The data of each event


def _status(event: AgentStatusChanged, config: BroadcastConfig) -> Data:
    return {
        "status": str(event.status),
        "previous_status": str(event.previous_status),
        "stop_reason": event.stop_reason and str(event.stop_reason),
        "resolved_by": event.resolved_by and clean(event.resolved_by),
        "reason": event.reason and _text(event.reason, config),
        "step_count": event.step_count,
        **({"wrap_ups": event.wrap_ups} if event.wrap_ups else {}),
        "error_message": event.error_message and _text(event.error_message, config),
        "last_response": event.last_response and clean(event.last_response),
    }


def _step_started(event: AgentStepStarted, config: BroadcastConfig) -> Data:
    return {
        "step_number": event.step_number,
        "message_count": event.message_count,
        "available_tools": [clean(name) for name in event.available_tools],
        **_wrap_up(event),
    }


def _step_completed(event: AgentStepCompleted, config: BroadcastConfig) -> Data:
    return {
        "step_number": event.step_number,
        "has_tool_calls": event.has_tool_calls,
        "errors": event.error_count,
        "finish_reason": event.finish_reason and str(event.finish_reason),
        "usage": usage_data(event.usage),
        "duration_ms": round(event.duration_ms, 3),
        "continuation": _verdict(event.outcome),
        **_wrap_up(event),
    }


def _wrap_up(event: AgentStepStarted | AgentStepCompleted) -> Data:
    """Return the limit that ended the run, if the step is its wrap-up."""
    return {} if event.wrap_up is None else {"wrap_up": clean(event.wrap_up)}


def _tool_started(event: ToolCallStarted, config: BroadcastConfig) -> Data:
    return {"tool": clean(event.tool), "tool_call_id": clean(event.tool_call_id), **_arguments(event, config)}


def _tool_completed(event: ToolCallCompleted, config: BroadcastConfig) -> Data:
    error = event.raised if event.raised and config.include_tool_errors else event.error
    return {
        "tool": clean(event.tool),
        "tool_call_id": clean(event.tool_call_id),
        "success": event.success,
        "error": error and _text(error, config),
        "duration_ms": round(event.duration_ms, 3),
        "result_summary": result_summary(event.result, config.max_result_length, config.redaction),
        **_changes(event),
    }


def _approval_requested(event: ApprovalRequested, config: BroadcastConfig) -> Data:
    return {
        "question_id": clean(event.question_id),
        **_asked_about(event),
        "question": _text(event.question, config),
        **_arguments(event, config),
    }


def _approval_decided(event: ApprovalDecided, config: BroadcastConfig) -> Data:
    return {
        "question_id": clean(event.question_id),
        **_asked_about(event),
        "verdict": str(event.verdict),
        "by": _text(event.by, config),
        "reason": event.reason and _text(event.reason, config),
    }


def _asked_about(event: ApprovalRequested | ApprovalDecided) -> Data:
    """Return the tool call of a question; None twice if it is about the run itself."""
    if is_about_run(event.tool_call_id, event.tool):
        return {"tool": None, "tool_call_id": None}
    return {"tool": clean(event.tool), "tool_call_id": clean(event.tool_call_id)}


def is_about_run(call_id: str, name: str) -> bool:
    """Return whether a question is about the run itself and not about a tool call."""
    return (call_id, name) == (RECOVERY.id, RECOVERY.name)


def _arguments(event: ToolCallStarted | ApprovalRequested, config: BroadcastConfig) -> Data:
    """Return the arguments of a call or their summary, and the hooks behind changes."""
    if config.include_tool_args:
        args = encoding.encode_or_describe(event.args)
        return {"args": redacted(args, config.redaction), **_changes(event)}
    summary = args_summary(event.args, config.max_argument_length, config.redaction)
    return {"args_summary": summary, **_changes(event)}


def _changes(event: ToolCallStarted | ToolCallCompleted | ApprovalRequested) -> Data:
    return {"changed_by": [clean(name) for name in event.changed_by]} if event.changed_by else {}


def _retry(event: RetryScheduled, config: BroadcastConfig) -> Data:
    return {
        "attempt": event.attempt,
        "max": event.max_retries,
        "wait_seconds": round(event.wait_seconds, 3),
        "error_type": str(event.error_type),
    }


def _chunk(event: StreamChunkReceived, config: BroadcastConfig) -> Data:
    return {
        "kind": event.kind,
        "chunk": clean(event.chunk),
        "chunk_index": event.chunk_index,
        "is_complete": event.is_complete,
    }


def _continuation(event: ContinuationEvaluated, config: BroadcastConfig) -> Data:
    evaluations = event.outcome.evaluations
    contexts = encoding.encode_or_describe([e.context for e in evaluations])
    if isinstance(contexts, str):
        # One of them cannot be written as JSON; the others still can.
        contexts = [encoding.encode_or_describe(e.context) for e in evaluations]
    contexts = [redacted(context, config.redaction) for context in contexts]
    return {
        "step_number": event.step_number,
        **_verdict(event.outcome),
        "evaluations": [
            {
                "criterion": clean(e.criterion),
                "decision": str(e.decision),
                "reason": _text(e.reason, config),
                "stop_reason": e.stop_reason and str(e.stop_reason),
                "context": context if isinstance(context, dict) else {"unreadable": context},
            }
            for e, context in zip(evaluations, contexts, strict=True)
        ],
    }


def _other(event: AgentEvent, config: BroadcastConfig) -> Data:
    """Return the name and the fields of an event that has no specific envelope."""
    names = [name for name in event.__struct_fields__ if name not in _IN_ENVELOPE and name[:1] != "_"]
    fields = {name: _field(getattr(event, name)) for name in names}
    return {"name": type(event).__name__, "fields": redacted(fields, config.redaction)}


_IN_ENVELOPE = ("agent_id", "execution_id", "time", "seq")


def _field(value: object) -> Any:
    return usage_data(value) if isinstance(value, Usage) else encoding.encode_or_describe(value)


def _verdict(outcome: ContinuationOutcome) -> Data:
    return {
        "should_continue": outcome.should_continue,
        "stop_reason": outcome.stop_reason and str(outcome.stop_reason),
        "resolved_by": clean(outcome.resolved_by),
    }


def _text(text: str, config: BroadcastConfig) -> str:
    return config.redaction.text(clean(text)) if config.redaction else clean(text)


# For each event: the name of its envelope, its data, and what decides whether it is sent; None for always.
_Form = tuple[str, Callable[[Any, BroadcastConfig], Data], Callable[[BroadcastConfig], bool] | None]
_FORMS: dict[type[AgentEvent], _Form] = {
    AgentStatusChanged: ("agent.status", _status, None),
    AgentStepStarted: ("agent.step.started", _step_started, None),
    AgentStepCompleted: ("agent.step.completed", _step_completed, None),
    ToolCallStarted: ("agent.tool.started", _tool_started, None),
    ToolCallCompleted: ("agent.tool.completed", _tool_completed, None),
    ApprovalRequested: ("agent.approval.requested", _approval_requested, None),
    ApprovalDecided: ("agent.approval.decided", _approval_decided, None),
    RetryScheduled: ("agent.retry", _retry, None),
    StreamChunkReceived: ("agent.stream.chunk", _chunk, lambda config: config.include_stream_chunks),
    ContinuationEvaluated: ("agent.continuation", _continuation, lambda config: config.include_continuation),
}
_OTHER: _Form = ("agent.event", _other, lambda config: config.include_other_events)

EVENTS = (*[name for name, _, _ in _FORMS.values()], _OTHER[0])
"""The names of all envelopes."""

NUMBERED = frozenset(
    {
        "agent.status",
        "agent.step.completed",
        "agent.tool.started",
        "agent.tool.completed",
        "agent.approval.requested",
        "agent.approval.decided",
        "agent.retry",
    }
)
"""The names of the numbered envelopes; every preset sends them, and the journal has them."""


def envelope_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of every envelope that a run sends."""
    return _schema("envelope")


def ui_message_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of every message that a UI shows."""
    return _schema("ui_message")


def _schema(name: str) -> dict[str, Any]:
    file = files("whyloop.wire") / "schemas" / f"{name}.schema.json"
    schema: dict[str, Any] = msgspec.json.decode(file.read_bytes())
    return schema


# Envelopes that are too large for a transport

_LENGTHS = (8_000, 4_000, 2_000, 1_000, 500, 250, 125, 60, 30, 15)
# These are never cut: results are found by the id of the call, decisions by that of the question.
_KEPT = ("tool_call_id", "question_id")


def shortened_envelopes(sent: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the envelope with shorter and shorter texts, and last without its lists.

    In the data of a shortened envelope, `trimmed` is true, and `trimmed_fields` has the names of the fields.
    """
    yield sent
    data = sent["data"]
    for length in _LENGTHS:
        data = {name: encoding.with_short_texts(value, length) for name, value in data.items()}
        yield _trimmed(sent, data)
    yield _trimmed(sent, {k: type(v)() if isinstance(v, dict | list) else v for k, v in data.items()})


def _trimmed(sent: Mapping[str, Any], data: Mapping[str, Any]) -> Data:
    whole = sent["data"]
    cut = {name: value for name, value in data.items() if name not in _KEPT and value != whole[name]}
    return {**sent, "data": {**whole, **cut, "trimmed": True, "trimmed_fields": list(cut)}}
