"""The events of a run: one small class for each, all frozen values.

`str(event)` is one readable line. A handler receives every event in order and cannot break the run. Events
are a view of what the journal records, so a client that reads the journal later receives the same ones;
`AgentStepStarted`, `StreamChunkReceived` and `OutputChunkReceived` exist only while a run is live.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from whyloop.values.approval import PendingCall, Verdict
from whyloop.values.continuation import ContinuationDecision, ContinuationOutcome, StopReason
from whyloop.values.failure import ErrorType
from whyloop.values.messages import Message
from whyloop.values.model import FinishReason, Usage
from whyloop.values.price import dollars
from whyloop.values.state import AgentStatus
from whyloop.values.text import counted, short_id, shortened

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
    "OutputChunkReceived",
    "RetryScheduled",
    "StreamChunkReceived",
    "TokenUsageReported",
    "ToolCallCompleted",
    "ToolCallStarted",
]


ChunkKind = Literal["text", "reasoning"]

LONGEST_LINE = 2000


class AgentEvent(Struct, frozen=True, gc=False, kw_only=True, tag=True, tag_field="event"):
    """The fields that every event has."""

    agent_id: str
    """The id of the session."""
    parent_agent_id: str | None
    """The session whose tool runs this one, if there is one."""
    execution_id: str
    """The id of the execution."""
    step_number: int
    """The number of the step within the execution."""
    time: datetime
    """When it happened."""
    seq: int = 0
    """The number of its envelope; if it is not numbered, that of the last numbered one."""

    def __str__(self) -> str:
        return shortened(f"{self._where}: {self._what}", LONGEST_LINE)

    @property
    def _where(self) -> str:
        return f"Agent [{short_id(self.agent_id)}] step {self.step_number}"

    @property
    def _what(self) -> str:
        return type(self).__name__


class AgentExecutionStarted(AgentEvent, frozen=True, kw_only=True):
    """The start of an execution, or its continuation after a pause or a stop."""

    query: Message | None
    """The query; None after a resume."""
    resumed: bool
    """True if a person resumed the execution."""

    @property
    def _what(self) -> str:
        return "execution resumed" if self.resumed else "execution started"


class AgentStepStarted(AgentEvent, frozen=True, kw_only=True):
    """The start of a model call. Live only."""

    message_count: int
    """The number of messages in the history."""
    available_tools: tuple[str, ...]
    """The names of the tools that the model may call."""
    wrap_up: str | None = None
    """The limit that has ended the run, if the step is its wrap-up."""

    @property
    def _what(self) -> str:
        messages, tools = counted(self.message_count, "message"), counted(len(self.available_tools), "tool")
        if self.wrap_up is not None:
            return f"wrap-up started ({messages}), {self.wrap_up} ended the run"
        return f"step started ({messages}, {tools})"


class StreamChunkReceived(AgentEvent, frozen=True, kw_only=True):
    """A piece of the answer or of the reasoning as it streams in. Live only."""

    chunk: str
    """The text of the piece."""
    chunk_index: int
    """The index of the piece within the step."""
    is_complete: bool
    """True for the last piece, which has no text."""
    kind: ChunkKind = "text"
    """`text` for a piece of the answer, `reasoning` for one of the reasoning."""

    @property
    def _what(self) -> str:
        return "answer complete" if self.is_complete else f"chunk {self.chunk_index}: {self.chunk!r}"


class OutputChunkReceived(AgentEvent, frozen=True, kw_only=True):
    """A piece of the JSON of a typed answer as it streams in. Live only.

    It is not text for people: whether the answer fits is not known yet. See `RunStream.partial_output`.
    """

    chunk: str
    """The piece of JSON."""
    is_wrapped: bool = False
    """True if the output is the field `value` of the JSON, since it is not an object itself."""

    @property
    def _what(self) -> str:
        return f"output chunk of {len(self.chunk)} characters"


class ToolCallStarted(AgentEvent, frozen=True, kw_only=True):
    """The start of a tool call, recorded before it runs."""

    tool: str
    """The name of the tool."""
    tool_call_id: str
    """The provider's id of the call."""
    args: Mapping[str, Any] | str
    """The arguments that it runs with, after hooks and a person's edit."""
    changed_by: tuple[str, ...] = ()
    """The hooks that changed the arguments."""

    @property
    def _what(self) -> str:
        return f"tool {self.tool} started"


class ToolCallCompleted(AgentEvent, frozen=True, kw_only=True):
    """The end of a tool call, whether it succeeded or not."""

    tool: str
    """The name of the tool."""
    tool_call_id: str
    """The provider's id of the call."""
    success: bool
    """True if the tool returned a result."""
    error: str | None
    """Why the call did not succeed, for people; None if it did."""
    duration_ms: float
    """How long the call took."""
    result: str
    """The text that the tool returned, or the `error`. The text for the model is in its message."""
    changed_by: tuple[str, ...] = ()
    """The hooks that made or replaced the result."""
    failed: bool = False
    """True if the error policy decides what happens next; False if the call was denied or not run."""
    raised: str | None = None
    """The class and the message of a tool's own exception, for `BroadcastConfig.debug()`."""

    def __repr__(self) -> str:
        """Return the fields without the message of an exception."""
        return super(ToolCallCompleted, replace(self, raised=None)).__repr__()

    @property
    def _what(self) -> str:
        ending = "done" if self.success else f"failed: {self.error}" if self.failed else self.error
        return f"tool {self.tool} {ending} ({self.duration_ms:.0f} ms)"


class ApprovalRequested(AgentEvent, frozen=True, kw_only=True):
    """A tool call waits for a person."""

    question_id: str
    """The id that a decision names."""
    tool: str
    """The name of the tool."""
    tool_call_id: str
    """The provider's id of the call."""
    question: str
    """The question for a person: it names the tool, and never its arguments."""
    args: Mapping[str, Any] | str
    """The arguments that the call would run with."""
    changed_by: tuple[str, ...] = ()
    """The hooks that changed the arguments."""

    @property
    def _what(self) -> str:
        return f"{self.question} (question {short_id(self.question_id)})"


class ApprovalDecided(AgentEvent, frozen=True, kw_only=True):
    """A person answered a question."""

    question_id: str
    """The id of the question."""
    tool: str
    """The name of the tool."""
    tool_call_id: str
    """The provider's id of the call."""
    verdict: Verdict
    """The decision."""
    by: str
    """The name of the person."""
    reason: str | None
    """The reason that the person gave, if there is one."""

    @property
    def _what(self) -> str:
        why = f": {self.reason}" if self.reason else ""
        return f"tool {self.tool} {self.verdict} by {self.by}{why}"


class ContinuationEvaluated(AgentEvent, frozen=True, kw_only=True):
    """The evaluation of every criterion after a step."""

    outcome: ContinuationOutcome
    """All evaluations, and the outcome that they resolve to."""

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
    """The tokens of a step, and those of its execution so far."""

    usage: Usage
    """The usage of the step."""
    execution_usage: Usage
    """The usage of the execution so far."""

    @property
    def _what(self) -> str:
        cost = "" if self.usage.cost is None else f", {dollars(self.usage.cost)}"
        return f"{self.usage.total} tokens ({self.execution_usage.total} in this execution){cost}"


class AgentStepCompleted(AgentEvent, frozen=True, kw_only=True):
    """A step was closed and judged."""

    has_tool_calls: bool
    """True if the model asked for tool calls."""
    error_count: int
    """The number of failures in the step."""
    usage: Usage
    """The usage of the step."""
    finish_reason: FinishReason | None
    """Why the model ended its answer; None without an answer."""
    duration_ms: float
    """The time in which the model or a tool was at work."""
    outcome: ContinuationOutcome
    """Why the run continues or stops after the step."""
    wrap_up: str | None = None
    """The limit that has ended the run, if the step is its wrap-up."""

    @property
    def _what(self) -> str:
        kind = "step" if self.wrap_up is None else "wrap-up"
        return f"{kind} completed ({self.duration_ms:.0f} ms, {self.error_count} errors)"


class RetryScheduled(AgentEvent, frozen=True, kw_only=True):
    """A failure is retried, after a wait where a provider failed."""

    attempt: int
    """The number of this retry, starting at 1."""
    max_retries: int
    """The number of retries that the policy allows."""
    wait_seconds: float
    """The wait before the retry."""
    error_type: ErrorType
    """The type of the failure."""

    @property
    def _what(self) -> str:
        wait = f" in {self.wait_seconds:.1f} s" if self.wait_seconds else ""
        return f"{self.error_type.label}, retrying ({self.attempt}/{self.max_retries}){wait}"


class AgentStatusChanged(AgentEvent, frozen=True, kw_only=True):
    """The run started, paused or ended."""

    previous_status: AgentStatus
    """The status before."""
    status: AgentStatus
    """The status now."""
    stop_reason: StopReason | None = None
    """Why the run ended; None if it did not."""
    resolved_by: str | None = None
    """The rule that decided."""
    reason: str | None = None
    """The reason that the rule gave."""
    step_count: int = 0
    """The number of closed steps of the execution."""
    wrap_ups: int = 0
    """The number of its closed wrap-ups, which `step_count` leaves out."""
    error_message: str | None = None
    """The error of a failed run, for people."""
    last_response: str | None = None
    """The last text of the assistant to this query."""
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
    """Why the run ended."""
    resolved_by: str | None = None
    """The rule that decided."""

    @property
    def _what(self) -> str:
        return f"execution failed{_why(self.stop_reason, self.resolved_by, self.error)}"


class AgentExecutionFinished(AgentEvent, frozen=True, kw_only=True):
    """The execution ended, well or not."""

    status: AgentStatus
    """The status at the end."""
    stop_reason: StopReason
    """Why the run ended."""
    resolved_by: str | None = None
    """The rule that decided."""
    reason: str | None = None
    """The reason that the rule gave."""

    @property
    def _what(self) -> str:
        return f"execution {self.status}{_why(self.stop_reason, self.resolved_by, self.reason)}"


def _why(stop_reason: StopReason | None, resolved_by: str | None, reason: str | None) -> str:
    """Return the end of a line about a run: its stop reason, the rule and its reason."""
    ended = f" ({stop_reason})" if stop_reason else ""
    by = f" by {resolved_by}" if resolved_by else ""
    return f"{ended}{by}: {reason}" if by and reason else f"{ended}{by}"
