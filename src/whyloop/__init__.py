"""An agent framework whose loop can always say why it went on, and why it stopped."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whyloop.errors import interrupted_state as interrupted_state
    from whyloop.loop.agent import Agent as Agent
    from whyloop.loop.builder import AgentBuilder as AgentBuilder
    from whyloop.loop.hooks import (
        Block as Block,
        Hook as Hook,
    )
    from whyloop.loop.tool import (
        Tool as Tool,
        ToolContext as ToolContext,
        tool as tool,
    )
    from whyloop.rules.backoff import Backoff as Backoff
    from whyloop.rules.continuation.approval import ApprovalRequired as ApprovalRequired
    from whyloop.rules.continuation.checks import (
        FinishReasonCheck as FinishReasonCheck,
        StopRequestedCheck as StopRequestedCheck,
        ToolCallPresenceCheck as ToolCallPresenceCheck,
    )
    from whyloop.rules.continuation.criteria import ContinuationCriteria as ContinuationCriteria
    from whyloop.rules.continuation.criterion import (
        CanDecideToContinue as CanDecideToContinue,
        CanExplainContinuation as CanExplainContinuation,
    )
    from whyloop.rules.continuation.error_policy_criterion import ErrorPolicyCriterion as ErrorPolicyCriterion
    from whyloop.rules.continuation.limits import (
        StepsLimit as StepsLimit,
        TokenUsageLimit as TokenUsageLimit,
    )
    from whyloop.rules.continuation.time_limits import (
        CumulativeExecutionTimeLimit as CumulativeExecutionTimeLimit,
        ExecutionTimeLimit as ExecutionTimeLimit,
    )
    from whyloop.rules.error_context import (
        AgentErrorContextResolver as AgentErrorContextResolver,
        CanResolveErrorContext as CanResolveErrorContext,
    )
    from whyloop.rules.error_policy import ErrorPolicy as ErrorPolicy
    from whyloop.sessions.recovery import (
        Recovery as Recovery,
        recover as recover,
    )
    from whyloop.sessions.session import Session as Session
    from whyloop.values.approval import (
        Approval as Approval,
        PendingCall as PendingCall,
        Verdict as Verdict,
    )
    from whyloop.values.budget import Budget as Budget
    from whyloop.values.continuation import (
        ContinuationDecision as ContinuationDecision,
        ContinuationEvaluation as ContinuationEvaluation,
        ContinuationOutcome as ContinuationOutcome,
        StopReason as StopReason,
    )
    from whyloop.values.execution import (
        Execution as Execution,
        StateInfo as StateInfo,
    )
    from whyloop.values.explanation import (
        CallExplanation as CallExplanation,
        Explanation as Explanation,
        RepeatedCall as RepeatedCall,
        StepExplanation as StepExplanation,
    )
    from whyloop.values.failure import (
        ErrorContext as ErrorContext,
        ErrorHandlingDecision as ErrorHandlingDecision,
        ErrorType as ErrorType,
        Failure as Failure,
    )
    from whyloop.values.messages import (
        FilePart as FilePart,
        ImagePart as ImagePart,
        Message as Message,
        MessageRole as MessageRole,
        TextPart as TextPart,
        ToolCall as ToolCall,
    )
    from whyloop.values.model import (
        FinishReason as FinishReason,
        ModelRequest as ModelRequest,
        ModelResponse as ModelResponse,
        ModelSource as ModelSource,
        ReasoningDelta as ReasoningDelta,
        TextDelta as TextDelta,
        ToolSpec as ToolSpec,
    )
    from whyloop.values.next_action import NextAction as NextAction
    from whyloop.values.redaction import Redaction as Redaction
    from whyloop.values.state import (
        AgentState as AgentState,
        AgentStatus as AgentStatus,
    )
    from whyloop.values.step import (
        Interruption as Interruption,
        Step as Step,
        ToolRun as ToolRun,
    )
    from whyloop.values.tool_result import ToolResult as ToolResult
    from whyloop.values.usage import Usage as Usage
    from whyloop.wire.config import SlimSerializationConfig as SlimSerializationConfig
    from whyloop.wire.slim import (
        CanSerializeAgentState as CanSerializeAgentState,
        SlimAgentStateSerializer as SlimAgentStateSerializer,
    )

__version__ = "0.1.0"

# Where each public name lives. They are loaded when asked for, so that importing whyloop is fast
# and a program pays only for the parts that it uses.
_HOMES = {
    "whyloop.errors": ("interrupted_state",),
    "whyloop.loop.agent": ("Agent",),
    "whyloop.loop.builder": ("AgentBuilder",),
    "whyloop.loop.hooks": ("Block", "Hook"),
    "whyloop.loop.tool": ("Tool", "ToolContext", "tool"),
    "whyloop.rules.backoff": ("Backoff",),
    "whyloop.rules.continuation.approval": ("ApprovalRequired",),
    "whyloop.rules.continuation.checks": ("FinishReasonCheck", "StopRequestedCheck", "ToolCallPresenceCheck"),
    "whyloop.rules.continuation.criteria": ("ContinuationCriteria",),
    "whyloop.rules.continuation.criterion": ("CanDecideToContinue", "CanExplainContinuation"),
    "whyloop.rules.continuation.error_policy_criterion": ("ErrorPolicyCriterion",),
    "whyloop.rules.continuation.limits": ("StepsLimit", "TokenUsageLimit"),
    "whyloop.rules.continuation.time_limits": ("CumulativeExecutionTimeLimit", "ExecutionTimeLimit"),
    "whyloop.rules.error_context": ("AgentErrorContextResolver", "CanResolveErrorContext"),
    "whyloop.rules.error_policy": ("ErrorPolicy",),
    "whyloop.sessions.recovery": ("Recovery", "recover"),
    "whyloop.sessions.session": ("Session",),
    "whyloop.values.approval": ("Approval", "PendingCall", "Verdict"),
    "whyloop.values.budget": ("Budget",),
    "whyloop.values.continuation": (
        "ContinuationDecision",
        "ContinuationEvaluation",
        "ContinuationOutcome",
        "StopReason",
    ),
    "whyloop.values.execution": ("Execution", "StateInfo"),
    "whyloop.values.explanation": ("CallExplanation", "Explanation", "RepeatedCall", "StepExplanation"),
    "whyloop.values.failure": ("ErrorContext", "ErrorHandlingDecision", "ErrorType", "Failure"),
    "whyloop.values.messages": ("FilePart", "ImagePart", "Message", "MessageRole", "TextPart", "ToolCall"),
    "whyloop.values.model": (
        "FinishReason",
        "ModelRequest",
        "ModelResponse",
        "ModelSource",
        "ReasoningDelta",
        "TextDelta",
        "ToolSpec",
    ),
    "whyloop.values.next_action": ("NextAction",),
    "whyloop.values.redaction": ("Redaction",),
    "whyloop.values.state": ("AgentState", "AgentStatus"),
    "whyloop.values.step": ("Interruption", "Step", "ToolRun"),
    "whyloop.values.tool_result": ("ToolResult",),
    "whyloop.values.usage": ("Usage",),
    "whyloop.wire.config": ("SlimSerializationConfig",),
    "whyloop.wire.slim": ("CanSerializeAgentState", "SlimAgentStateSerializer"),
}
_MODULES = frozenset({"errors", "events", "models", "stores", "testing"})
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"whyloop.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'whyloop' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
