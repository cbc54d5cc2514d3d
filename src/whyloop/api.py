"""Every public name of whyloop, for type checkers; at run time `whyloop` loads each from its module."""

from whyloop.errors import interrupted_state as interrupted_state
from whyloop.loop.agent import Agent as Agent
from whyloop.loop.builder import AgentBuilder as AgentBuilder
from whyloop.loop.hooks import (
    AskModel as AskModel,
    Block as Block,
    Hook as Hook,
    RunTool as RunTool,
)
from whyloop.loop.setup import WrapUp as WrapUp
from whyloop.loop.stream import RunStream as RunStream
from whyloop.loop.world import Clock as Clock, Model as Model
from whyloop.rules.checks import (
    ApprovalRequired as ApprovalRequired,
    FinishReasonCheck as FinishReasonCheck,
    StopRequestedCheck as StopRequestedCheck,
    ToolCallPresenceCheck as ToolCallPresenceCheck,
)
from whyloop.rules.criteria import ContinuationCriteria as ContinuationCriteria
from whyloop.rules.criterion import (
    CanDecideToContinue as CanDecideToContinue,
    CanExplainContinuation as CanExplainContinuation,
)
from whyloop.rules.error_policy import (
    AgentErrorContextResolver as AgentErrorContextResolver,
    Backoff as Backoff,
    CanResolveErrorContext as CanResolveErrorContext,
    ErrorPolicy as ErrorPolicy,
    ErrorPolicyCriterion as ErrorPolicyCriterion,
)
from whyloop.rules.limits import (
    CostLimit as CostLimit,
    CumulativeExecutionTimeLimit as CumulativeExecutionTimeLimit,
    ExecutionTimeLimit as ExecutionTimeLimit,
    StepsLimit as StepsLimit,
    TokenUsageLimit as TokenUsageLimit,
)
from whyloop.rules.repetition import RepeatedCallCheck as RepeatedCallCheck
from whyloop.sessions.recovery import (
    Recovery as Recovery,
    recover as recover,
)
from whyloop.sessions.session import Session as Session
from whyloop.sessions.sync import SyncSession as SyncSession, SyncStore as SyncStore
from whyloop.tools.tool import (
    RunContext as RunContext,
    Tool as Tool,
    ToolContext as ToolContext,
    ToolDefinition as ToolDefinition,
    tool as tool,
)
from whyloop.tools.toolset import Toolset as Toolset
from whyloop.values.approval import (
    Approval as Approval,
    PendingCall as PendingCall,
    Verdict as Verdict,
)
from whyloop.values.call_explanation import CallExplanation as CallExplanation
from whyloop.values.continuation import (
    Budget as Budget,
    ContinuationDecision as ContinuationDecision,
    ContinuationEvaluation as ContinuationEvaluation,
    ContinuationOutcome as ContinuationOutcome,
    StopReason as StopReason,
)
from whyloop.values.execution import AgentStatus as AgentStatus, Execution as Execution
from whyloop.values.explanation import (
    Explanation as Explanation,
    RepeatedCall as RepeatedCall,
    StepExplanation as StepExplanation,
)
from whyloop.values.failure import (
    Correction as Correction,
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
    ToolResult as ToolResult,
)
from whyloop.values.model import (
    FinishReason as FinishReason,
    ModelAttempt as ModelAttempt,
    ModelRequest as ModelRequest,
    ModelResponse as ModelResponse,
    ModelSource as ModelSource,
    OutputDelta as OutputDelta,
    OutputFormat as OutputFormat,
    OutputMode as OutputMode,
    ReasoningDelta as ReasoningDelta,
    TextDelta as TextDelta,
    ToolSpec as ToolSpec,
    Usage as Usage,
)
from whyloop.values.next_action import NextAction as NextAction
from whyloop.values.price import Price as Price
from whyloop.values.redaction import Redaction as Redaction
from whyloop.values.state import AgentState as AgentState, StateInfo as StateInfo
from whyloop.values.step import (
    Interruption as Interruption,
    Step as Step,
    ToolRun as ToolRun,
)
from whyloop.wire.slim import (
    CanSerializeAgentState as CanSerializeAgentState,
    SlimAgentStateSerializer as SlimAgentStateSerializer,
)
from whyloop.wire.slim_document import SlimSerializationConfig as SlimSerializationConfig
