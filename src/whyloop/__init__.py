"""An agent framework whose loop can always explain why it continued, and why it stopped."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whyloop.api import *  # noqa: F403

__version__ = "0.1.0"

_MODULES = frozenset({"errors", "events", "models", "stores", "testing"})
# The public names by module; `whyloop.api` has them once more, for type checkers.
_NAMES = {
    "errors": "interrupted_state",
    "loop.agent": "Agent",
    "loop.builder": "AgentBuilder",
    "loop.setup": "WrapUp",
    "loop.hooks": "AskModel Block Hook RunTool",
    "loop.stream": "RunStream",
    "loop.world": "Clock Model",
    "rules.checks": "ApprovalRequired FinishReasonCheck StopRequestedCheck ToolCallPresenceCheck",
    "rules.criteria": "ContinuationCriteria",
    "rules.criterion": "CanDecideToContinue CanExplainContinuation",
    "rules.error_policy": (
        "AgentErrorContextResolver Backoff CanResolveErrorContext ErrorPolicy ErrorPolicyCriterion"
    ),
    "rules.limits": "CostLimit CumulativeExecutionTimeLimit ExecutionTimeLimit StepsLimit TokenUsageLimit",
    "rules.repetition": "RepeatedCallCheck",
    "sessions.recovery": "Recovery recover",
    "sessions.session": "Session",
    "sessions.sync": "SyncSession SyncStore",
    "tools.tool": "RunContext Tool ToolContext ToolDefinition tool",
    "tools.toolset": "Toolset",
    "values.approval": "Approval PendingCall Verdict",
    "values.call_explanation": "CallExplanation",
    "values.continuation": (
        "Budget ContinuationDecision ContinuationEvaluation ContinuationOutcome StopReason"
    ),
    "values.execution": "AgentStatus Execution",
    "values.explanation": "Explanation RepeatedCall StepExplanation",
    "values.failure": "Correction ErrorContext ErrorHandlingDecision ErrorType Failure",
    "values.messages": "FilePart ImagePart Message MessageRole TextPart ToolCall ToolResult",
    "values.model": (
        "FinishReason ModelAttempt ModelRequest ModelResponse ModelSource OutputDelta OutputFormat "
        "OutputMode ReasoningDelta TextDelta ToolSpec Usage"
    ),
    "values.next_action": "NextAction",
    "values.price": "Price",
    "values.redaction": "Redaction",
    "values.state": "AgentState StateInfo",
    "values.step": "Interruption Step ToolRun",
    "wire.slim": "CanSerializeAgentState SlimAgentStateSerializer",
    "wire.slim_document": "SlimSerializationConfig",
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Load a name from its module when it is first used, so that a program loads what it needs."""
    if name in _MODULES:
        return importlib.import_module(f"whyloop.{name}")
    if name == "__all__":
        return sorted(_MODULE_OF)
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'whyloop' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"whyloop.{_MODULE_OF[name]}"), name)
    globals()[name] = value  # The next use is a plain look-up.
    return value


def __dir__() -> list[str]:
    return [*globals(), *_MODULE_OF]
