"""The document of a slim snapshot, field by field.

Fields without a default are always present. Those with one are written where they hold something, and are
what a state needs beyond the rest to continue exactly as it would have:

- `usage`: `cost` is decimal text, null if it is unknown; `reported` is false if a provider reported nothing;
- `execution`: `usage` and `failures` of the execution, the start of its leg, the seconds spent waiting and in
  backoff, its resumes, grants and stop request, the last number of its envelopes, and what a person is or
  was asked about the run itself;
- a step: when it began and ended, its execution if that is an earlier one, which of the snapshot's messages
  are its own, its `failures`, what `interrupted` it, the `source` of the answer, the record of its request,
  and in `steps` its `continuation`;
- a continuation: the `decision`, and the `evaluations` (those that decided and that handled a failure, or all
  of them where all steps are included);
- a message's metadata: the `extras` that its provider wants back, the model's `reasoning`, whether it is
  `incomplete`, the `source` of feedback, and the hooks that changed a call;
- `identity`, `agent` and `state_info`: the session itself, and its clocks;
- `request_parts`: the texts that requests refer to, where all steps are included; a text that would have to
  be changed is left out, since it goes by its hash;
- `open_step`: a step whose tool calls do not all have their results, in the form of the full snapshot. It is
  present only if the calls that are still to run are there word by word;
- `truncated`: `details` (steps, outcomes, questions, stop requests and request texts that were cut), and
  `open_step` if there is one that could not be kept.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from whyloop.values.approval import Approval, Question
from whyloop.values.budget import Budget
from whyloop.values.continuation import ContinuationDecision, ContinuationEvaluation, StopReason
from whyloop.values.execution import AgentStatus, StateInfo
from whyloop.values.failure import Failure, FailureTally
from whyloop.values.messages import Content, MessageRole
from whyloop.values.model import FinishReason, ModelSource
from whyloop.values.step import Interruption, OpenStep, RequestPart, RequestRecord, StepType, ToolRun
from whyloop.values.times import Count, Moment, Seconds

VERSION = 1


class Tokens(Struct, frozen=True, omit_defaults=True):
    input: Count
    output: Count
    total: Count
    cost: Decimal | UnsetType | None = UNSET
    cached: Count = 0
    reasoning: Count = 0
    reported: bool = True


class StepTokens(Struct, frozen=True, omit_defaults=True):
    total: Count
    cost: Decimal | UnsetType | None = UNSET
    input: Count = 0
    output: Count = 0
    cached: Count = 0
    reasoning: Count = 0
    reported: bool = True


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
    leg_started_at: Moment | None = None
    resumed_from: AgentStatus | None = None
    last_seq: Count = 0
    wait_until: Moment | None = None
    recoveries: Count = 0
    question: Question | None = None
    approvals: tuple[Approval, ...] = ()
    has_tool_results: bool = False


class SlimChange(Struct, frozen=True, omit_defaults=True):
    by: str
    before: dict[str, Any] | str | UnsetType = UNSET
    name: str | None = None


class SlimCall(Struct, frozen=True, omit_defaults=True):
    id: str
    name: str
    args: dict[str, Any] | str | UnsetType = UNSET
    changes: tuple[SlimChange, ...] = ()


class MessageMetadata(Struct, frozen=True, omit_defaults=True):
    tool_calls: tuple[SlimCall, ...] = ()
    tool_call_id: str | None = None
    tool_name: str | None = None
    extras: dict[str, Any] = {}
    reasoning: str = ""
    incomplete: bool = False
    source: tuple[str, ...] = ()


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
    interrupted: Interruption | None = None
    source: ModelSource | None = None
    continuation: SlimContinuation | None = None
    request: RequestRecord | None = None
    response_changed_by: tuple[str, ...] = ()
    answered_at: Moment | None = None


class Truncated(Struct, frozen=True, omit_defaults=True):
    messages: Count
    contents: Count
    details: Count = 0
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
    identity: str | None = None
    agent: str = ""
    request_parts: tuple[RequestPart, ...] = ()
