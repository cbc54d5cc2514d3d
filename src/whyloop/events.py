"""The events of a run: one small class for each, all frozen values.

`str(event)` is one readable line. A handler receives every event in order and cannot break the run. Events
are a view of what the journal records, so a client that reads the journal later receives the same ones;
`AgentStepStarted` and `StreamChunkReceived` exist only while a run is live.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from msgspec import Struct

from whyloop.values.approval import PendingCall, Verdict
from whyloop.values.continuation import ContinuationDecision, ContinuationOutcome, StopReason
from whyloop.values.failure import ErrorType
from whyloop.values.messages import Message
from whyloop.values.model import FinishReason, Usage
from whyloop.values.state import AgentStatus
from whyloop.values.text import shortened

__all__ = [
    "AgentEvent",
    "AgentExecutionFailed",
    "AgentExecutionFinished",
    "AgentExecutionStarted",
    "AgentStatusChanged",
    "AgentStepCompleted",
    "AgentStepStarted",
    "ApprovalDecided",
    "ApprovalRequested",
    "ContinuationEvaluated",
    "RetryScheduled",
    "StreamChunkReceived",
    "TokenUsageReported",
    "ToolCallCompleted",
    "ToolCallStarted",
]


ChunkKind = Literal["text", "reasoning"]

LONGEST_LINE = 2000


class AgentEvent(Struct, frozen=True, gc=False, kw_only=True, tag=True, tag_field="event"):
    """What every event carries."""

    agent_id: str
    """The session."""
    parent_agent_id: str | None
    """The session whose tool runs this one, if there is one."""
    execution_id: str
    step_number: int
    """The step within the execution."""
    time: datetime
    seq: int = 0
    """The number of its envelope; of an event that is not numbered, that of the last one that is."""

    def __str__(self) -> str:
        return shortened(f"{self._where}: {self._what}", LONGEST_LINE)

    @property
    def _where(self) -> str:
        return f"Agent [{self.agent_id[:8]}] step {self.step_number}"

    @property
    def _what(self) -> str:
        return type(self).__name__


class AgentExecutionStarted(AgentEvent, frozen=True, kw_only=True):
    """The loop took a query up, or took it up again after a pause or a stop."""

    query: Message | None
    """The query; None after a resume."""
    resumed: bool

    @property
    def _what(self) -> str:
        return "execution resumed" if self.resumed else "execution started"


class AgentStepStarted(AgentEvent, frozen=True, kw_only=True):
    """The model is about to be called. Live only."""

    message_count: int
    available_tools: tuple[str, ...]

    @property
    def _what(self) -> str:
        return f"step started ({self.message_count} messages, {len(self.available_tools)} tools)"


class StreamChunkReceived(AgentEvent, frozen=True, kw_only=True):
    """A piece of the answer or of the reasoning as it streams in. Live only.

    `chunk_index` orders the pieces of a step. The last one is empty, and `is_complete` marks it.
    """

    chunk: str
    chunk_index: int
    is_complete: bool
    kind: ChunkKind = "text"

    @property
    def _what(self) -> str:
        return "answer complete" if self.is_complete else f"chunk {self.chunk_index}: {self.chunk!r}"


class ToolCallStarted(AgentEvent, frozen=True, kw_only=True):
    """A tool call was recorded as started and runs now."""

    tool: str
    tool_call_id: str
    args: Mapping[str, Any] | str
    """The arguments that it runs with, after hooks and a person's edit."""
    changed_by: tuple[str, ...] = ()
    """The hooks that changed the arguments."""

    @property
    def _what(self) -> str:
        return f"tool {self.tool} started"


class ToolCallCompleted(AgentEvent, frozen=True, kw_only=True):
    """A tool call has its result, whatever it is."""

    tool: str
    tool_call_id: str
    success: bool
    error: str | None
    duration_ms: float
    result: str
    """What the tool returned; the `error` if it did not succeed. The text for the model is in its message."""
    changed_by: tuple[str, ...] = ()
    """The hooks that made or replaced the result."""
    failed: bool = False
    """True if the error policy decides what happens next, and not if the call was denied or not run."""

    @property
    def _what(self) -> str:
        ending = "done" if self.success else f"failed: {self.error}" if self.failed else self.error
        return f"tool {self.tool} {ending} ({self.duration_ms:.0f} ms)"


class ApprovalRequested(AgentEvent, frozen=True, kw_only=True):
    """A tool call waits for a person."""

    question_id: str
    tool: str
    tool_call_id: str
    question: str
    """Names the tool and never its arguments."""
    args: Mapping[str, Any] | str
    changed_by: tuple[str, ...] = ()

    @property
    def _what(self) -> str:
        return f"{self.question} (question {self.question_id[:8]})"


class ApprovalDecided(AgentEvent, frozen=True, kw_only=True):
    """A person answered a question."""

    question_id: str
    tool: str
    tool_call_id: str
    verdict: Verdict
    by: str
    reason: str | None

    @property
    def _what(self) -> str:
        why = f": {self.reason}" if self.reason else ""
        return f"tool {self.tool} {self.verdict} by {self.by}{why}"


class ContinuationEvaluated(AgentEvent, frozen=True, kw_only=True):
    """Every criterion was evaluated; `outcome` holds all evaluations."""

    outcome: ContinuationOutcome

    @property
    def _what(self) -> str:
        outcome = self.outcome
        reason = f": {outcome.reason}" if outcome.reason else ""
        if outcome.pauses:
            return f"PAUSE by {outcome.resolved_by}{reason}"
        if not outcome.should_continue:
            return f"STOP ({outcome.stop_reason}) by {outcome.resolved_by}{reason}"
        requested = outcome.decision is ContinuationDecision.REQUEST_CONTINUATION
        return f"CONTINUE ({'requested' if requested else 'allowed'} by {outcome.resolved_by}){reason}"


class TokenUsageReported(AgentEvent, frozen=True, kw_only=True):
    """What the step used, and what its execution has used so far."""

    usage: Usage
    execution_usage: Usage

    @property
    def _what(self) -> str:
        return f"{self.usage.total} tokens ({self.execution_usage.total} in this execution)"


class AgentStepCompleted(AgentEvent, frozen=True, kw_only=True):
    """A step was closed and judged."""

    has_tool_calls: bool
    error_count: int
    usage: Usage
    finish_reason: FinishReason | None
    duration_ms: float
    outcome: ContinuationOutcome

    @property
    def _what(self) -> str:
        return f"step completed ({self.duration_ms:.0f} ms, {self.error_count} errors)"


class RetryScheduled(AgentEvent, frozen=True, kw_only=True):
    """A failure is retried, after a wait where a provider failed."""

    attempt: int
    max_retries: int
    wait_seconds: float
    error_type: ErrorType

    @property
    def _what(self) -> str:
        wait = f" in {self.wait_seconds:.1f} s" if self.wait_seconds else ""
        return f"{self.error_type.label}, retrying ({self.attempt}/{self.max_retries}){wait}"


class AgentStatusChanged(AgentEvent, frozen=True, kw_only=True):
    """The run started, paused or ended."""

    previous_status: AgentStatus
    status: AgentStatus
    stop_reason: StopReason | None = None
    resolved_by: str | None = None
    """The rule that decided."""
    reason: str | None = None
    """The reason that the rule gave."""
    step_count: int = 0
    error_message: str | None = None
    last_response: str | None = None
    pending_calls: tuple[PendingCall, ...] = ()
    """The questions that wait for a person, at a pause."""

    @property
    def _what(self) -> str:
        return (
            f"{self.previous_status} → {self.status}{_why(self.stop_reason, self.resolved_by, self.reason)}"
        )


class AgentExecutionFailed(AgentEvent, frozen=True, kw_only=True):
    """The execution ended in an error; `AgentExecutionFinished` follows."""

    error: str
    """The reason that the deciding rule gave."""
    stop_reason: StopReason
    resolved_by: str | None = None

    @property
    def _what(self) -> str:
        return f"execution failed{_why(self.stop_reason, self.resolved_by, self.error)}"


class AgentExecutionFinished(AgentEvent, frozen=True, kw_only=True):
    """The execution ended, well or not."""

    status: AgentStatus
    stop_reason: StopReason
    resolved_by: str | None = None
    reason: str | None = None

    @property
    def _what(self) -> str:
        return f"execution {self.status}{_why(self.stop_reason, self.resolved_by, self.reason)}"


def _why(stop_reason: StopReason | None, resolved_by: str | None, reason: str | None) -> str:
    """Return the rest of a line about the end of a run: the stop reason, the rule and its reason."""
    ended = f" ({stop_reason})" if stop_reason else ""
    by = f" by {resolved_by}" if resolved_by else ""
    return f"{ended}{by}: {reason}" if by and reason else f"{ended}{by}"
