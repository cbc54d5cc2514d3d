"""The document of a slim snapshot, field by field.

Fields without a default are always there. Those with one are written where they say something, and
are what a state needs beyond the rest to be run again just as it would have been:

- `execution`: `usage` and `failures` of the execution, the seconds spent waiting and in backoff, how often
  it was resumed, what was granted to it, and the words of a request to stop;
- a step: when it began and ended, its execution if that is an earlier one, which of the snapshot's messages
  are its own, its `failures`, what `interrupted` it, the `source` of the answer, and in `steps` its
  `continuation`;
- a continuation: the `decision`, and the `evaluations` (of the criterion that decided, or of all of them
  where all steps are included);
- a message's metadata: the `extras` that its provider wants back;
- `state_info`: the clocks of the session;
- `open_step`: a step whose tool calls have not all come to an end, in the form of the full snapshot. It is
  there only if what is still to be run is there word by word;
- `truncated`: `details` (steps, outcomes and requests to stop whose words were cut), `open_step` if there is
  one that could not be kept, and what a limit on the size cost: `steps`, `args` and entries of `metadata`
  that were asked for and are not there.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct, UnsetType

from whyloop.values.budget import Budget
from whyloop.values.continuation import ContinuationDecision, ContinuationEvaluation, StopReason
from whyloop.values.execution import StateInfo
from whyloop.values.failure import Failure, FailureTally
from whyloop.values.messages import Content, MessageRole
from whyloop.values.model import FinishReason, ModelSource
from whyloop.values.open_step import OpenStep
from whyloop.values.state import AgentStatus
from whyloop.values.step import StepType, ToolRun
from whyloop.values.times import Count, Moment, Seconds

VERSION = 1


class Tokens(Struct, frozen=True, omit_defaults=True):
    input: Count
    output: Count
    total: Count
    cached: Count = 0
    reasoning: Count = 0


class StepTokens(Struct, frozen=True, omit_defaults=True):
    total: Count
    input: Count = 0
    output: Count = 0
    cached: Count = 0
    reasoning: Count = 0


class SlimExecution(Struct, frozen=True, omit_defaults=True):
    id: str
    step_count: Count
    started_at: Moment
    updated_at: Moment | None
    cumulative_seconds: Seconds
    usage: Tokens | None = None
    failures: FailureTally | None = None
    waiting_seconds: Seconds = 0.0
    backoff_seconds: Seconds = 0.0
    resumes: Count = 0
    granted: Budget | None = None
    stop_request: str | None = None


class SlimCall(Struct, frozen=True, omit_defaults=True):
    id: str
    name: str
    args: dict[str, Any] | str | UnsetType = UNSET


class MessageMetadata(Struct, frozen=True, omit_defaults=True):
    tool_calls: tuple[SlimCall, ...] = ()
    tool_call_id: str | None = None
    tool_name: str | None = None
    extras: dict[str, Any] = {}


class SlimMessage(Struct, frozen=True, omit_defaults=True):
    role: MessageRole
    content: Content
    metadata: MessageMetadata | None = None


class SlimContinuation(Struct, frozen=True, omit_defaults=True):
    should_continue: bool
    stop_reason: StopReason | None
    resolved_by: str
    decision: ContinuationDecision | None = None
    evaluations: tuple[ContinuationEvaluation, ...] = ()


class SlimStep(Struct, frozen=True, omit_defaults=True):
    step_number: Count
    type: StepType
    has_tool_calls: bool
    finish_reason: FinishReason | None
    errors: Count
    usage: StepTokens
    duration_ms: Seconds
    tool_calls: tuple[ToolRun, ...]
    execution_id: str | None = None
    started_at: Moment | None = None
    completed_at: Moment | None = None
    first_message: Count = 0
    message_count: Count = 0
    failures: tuple[Failure, ...] = ()
    interrupted: str | None = None
    source: ModelSource | None = None
    continuation: SlimContinuation | None = None


class Truncated(Struct, frozen=True, omit_defaults=True):
    messages: Count
    contents: Count
    details: Count = 0
    steps: Count = 0
    args: Count = 0
    metadata: Count = 0
    open_step: Count = 0


class SlimState(Struct, frozen=True, omit_defaults=True):
    version: int
    agent_id: str
    parent_agent_id: str | None
    status: AgentStatus
    execution: SlimExecution
    usage: Tokens
    messages: tuple[SlimMessage, ...]
    current_step: SlimStep | None
    steps: tuple[SlimStep, ...]
    last_continuation: SlimContinuation | None
    metadata: dict[str, Any]
    truncated: Truncated
    state_info: StateInfo | None = None
    open_step: OpenStep | None = None
