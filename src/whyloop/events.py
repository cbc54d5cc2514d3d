"""What the loop tells the world: one small class an event, each a frozen value.

`str(event)` is one readable line. A listener gets every event in order and can break nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct

from whyloop.values.continuation import ContinuationDecision, ContinuationOutcome, StopReason
from whyloop.values.messages import Message
from whyloop.values.model import FinishReason
from whyloop.values.state import AgentStatus
from whyloop.values.usage import Usage

__all__ = [
    "AgentEvent",
    "AgentExecutionFailed",
    "AgentExecutionFinished",
    "AgentExecutionStarted",
    "AgentStatusChanged",
    "AgentStepCompleted",
    "AgentStepStarted",
    "ContinuationEvaluated",
    "StreamChunkReceived",
    "TokenUsageReported",
    "ToolCallCompleted",
    "ToolCallStarted",
]


class AgentEvent(Struct, frozen=True, gc=False, tag=True, tag_field="event"):
    """What every event carries: whose it is, which step it belongs to, and when it happened."""

    agent_id: str
    parent_agent_id: str | None
    execution_id: str
    step_number: int
    time: datetime

    def __str__(self) -> str:
        return f"{self._where}: {self._what}"

    @property
    def _where(self) -> str:
        return f"Agent [{self.agent_id[:8]}] step {self.step_number}"

    @property
    def _what(self) -> str:
        return type(self).__name__


class AgentExecutionStarted(AgentEvent, frozen=True):
    """A query is taken up, or taken up again after a pause or a stop."""

    query: Message | None
    resumed: bool

    @property
    def _what(self) -> str:
        return "execution resumed" if self.resumed else "execution started"


class AgentStepStarted(AgentEvent, frozen=True):
    message_count: int
    available_tools: tuple[str, ...]

    @property
    def _what(self) -> str:
        return f"step started ({self.message_count} messages, {len(self.available_tools)} tools)"


class StreamChunkReceived(AgentEvent, frozen=True):
    """A piece of the answer's text; the last one of a step is empty and `is_complete`."""

    chunk: str
    chunk_index: int
    is_complete: bool

    @property
    def _what(self) -> str:
        return "answer complete" if self.is_complete else f"chunk {self.chunk_index}: {self.chunk!r}"


class ToolCallStarted(AgentEvent, frozen=True):
    tool: str
    tool_call_id: str
    args: Mapping[str, Any] | str

    @property
    def _what(self) -> str:
        return f"tool {self.tool} started"


class ToolCallCompleted(AgentEvent, frozen=True):
    tool: str
    tool_call_id: str
    success: bool
    error: str | None
    duration_ms: float
    result: str

    @property
    def _what(self) -> str:
        ending = "done" if self.success else f"failed: {self.error}"
        return f"tool {self.tool} {ending} ({self.duration_ms:.0f} ms)"


class ContinuationEvaluated(AgentEvent, frozen=True):
    """Every criterion was asked; `outcome` has all that they said."""

    outcome: ContinuationOutcome

    @property
    def _what(self) -> str:
        outcome = self.outcome
        if outcome.pauses:
            return f"PAUSE ({outcome.resolved_by})"
        if not outcome.should_continue:
            return f"STOP ({outcome.stop_reason})"
        requested = outcome.decision is ContinuationDecision.REQUEST_CONTINUATION
        return f"CONTINUE ({'requested' if requested else 'allowed'} by {outcome.resolved_by})"


class TokenUsageReported(AgentEvent, frozen=True):
    """What the step cost, and what its execution has cost so far."""

    usage: Usage
    execution_usage: Usage

    @property
    def _what(self) -> str:
        return f"{self.usage.total} tokens ({self.execution_usage.total} in this execution)"


class AgentStepCompleted(AgentEvent, frozen=True):
    has_tool_calls: bool
    error_count: int
    usage: Usage
    finish_reason: FinishReason | None
    duration_ms: float
    outcome: ContinuationOutcome

    @property
    def _what(self) -> str:
        return f"step completed ({self.duration_ms:.0f} ms, {self.error_count} errors)"


class AgentStatusChanged(AgentEvent, frozen=True):
    """The run started, paused or ended; what it ended with is there for whoever heard nothing else."""

    previous_status: AgentStatus
    status: AgentStatus
    stop_reason: StopReason | None = None
    step_count: int = 0
    error_message: str | None = None
    last_response: str | None = None

    @property
    def _what(self) -> str:
        return f"{self.previous_status} → {self.status}"


class AgentExecutionFailed(AgentEvent, frozen=True):
    """The execution ended in an error; `AgentExecutionFinished` follows."""

    error: str
    stop_reason: StopReason

    @property
    def _what(self) -> str:
        return f"execution failed: {self.error}"


class AgentExecutionFinished(AgentEvent, frozen=True):
    """The execution ended, well or not."""

    status: AgentStatus
    stop_reason: StopReason

    @property
    def _what(self) -> str:
        return f"execution {self.status} ({self.stop_reason})"
