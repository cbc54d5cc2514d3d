"""The public names, pinned: a name that comes or goes is a decision, not an accident."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

import whyloop
from whyloop import api

WHYLOOP = """
Agent AgentBuilder AgentErrorContextResolver AgentState AgentStatus Approval ApprovalRequired
AskModel
Backoff Block Budget CallExplanation CanDecideToContinue CanExplainContinuation CanResolveErrorContext
CanSerializeAgentState Clock ContinuationCriteria ContinuationDecision ContinuationEvaluation
ContinuationOutcome
Correction CostLimit CumulativeExecutionTimeLimit ErrorContext ErrorHandlingDecision ErrorPolicy
ErrorPolicyCriterion
ErrorType Execution ExecutionTimeLimit Explanation Failure FilePart FinishReason FinishReasonCheck
Hook ImagePart Interruption Message MessageRole Model ModelAttempt ModelRequest
ModelResponse ModelSource NextAction
OutputDelta OutputFormat OutputMode PendingCall
Price ReasoningDelta Recovery Redaction RepeatedCall RepeatedCallCheck RunContext RunStream RunTool
Session
SlimAgentStateSerializer
SlimSerializationConfig StateInfo Step StepExplanation StepsLimit StopReason StopRequestedCheck
SyncSession SyncStore
TextDelta TextPart TokenUsageLimit
Tool ToolCall ToolCallPresenceCheck ToolContext ToolDefinition ToolResult ToolRun ToolSpec Toolset
Usage Verdict WrapUp interrupted_state recover tool
"""
EVENTS = """
AgentEvent AgentExecutionFailed AgentExecutionFinished AgentExecutionStarted AgentStatusChanged
AgentStepCompleted AgentStepStarted ApprovalDecided ApprovalRequested ContinuationEvaluated
OutputChunkReceived RetryScheduled StreamChunkReceived TokenUsageReported
ToolCallCompleted ToolCallStarted
"""
TESTING = """
Attempt CapturedEvents CaseResult EvalReport FakeClock Reply ScriptedModel assert_continued assert_stopped
assert_would_stop call calls capture_events case compare_reports run_cases text
"""
STORES = """
Checkpoint Chunk ChunkReceiver Counts Entry Lease MemoryStore OpenWorkflow Page PostgresStore RequestKey
SessionFilter SqliteStore Store Stored Summary Tally open_store prune
"""
BROADCASTING = """
AgUiStream AgentConsoleLogger AgentEventEnvelopeAdapter BroadcastConfig BroadcastError
CanBroadcastAgentEvents Delivery EventFeed FanOut PusherBroadcaster QueueBroadcaster VercelStream
envelope_schema ui_message_schema
"""
REPLAY = """
Amounts Comparison Curve Difference Ending ExecutionReplay RecordedExecution Recording Replay Row
Rules RunProblem Survey Surveyor compare curves_of diff judge read_runs rules_for survey tune
"""
IMPORTS = "ImportReport LogProblem import_log read_log"
SERVER = "Access AgentServer Limits"
ERRORS = """
ApprovalError BroadcastError ConfigurationError ConflictError KeyUsedError LeaseLostError
ModelError NestingError NoWorkerError NotResumableError OutputError RateLimitError RequestTimeoutError
ResponseValidationError ScriptError SessionExistsError SessionNotFoundError SessionRunningError
SnapshotError StoreConfigurationError StoreError StoreUnavailableError ToolDefinitionError
ToolExecutionError ToolTimeoutError UnfinishedRunError WhyloopError WorkflowOpenError
"""


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("whyloop", WHYLOOP),
        ("whyloop.events", EVENTS),
        ("whyloop.testing", TESTING),
        ("whyloop.stores", STORES),
        ("whyloop.broadcasting", BROADCASTING),
        ("whyloop.server", SERVER),
        ("whyloop.replay", REPLAY),
        ("whyloop.imports", IMPORTS),
    ],
)
def test_a_module_exports_exactly_these_names(module: str, names: str) -> None:
    loaded = importlib.import_module(module)
    assert loaded.__all__ == sorted(loaded.__all__)
    assert loaded.__all__ == names.split()
    for name in loaded.__all__:
        assert getattr(loaded, name).__name__ == name


def test_the_errors_are_exactly_these_and_of_one_tree() -> None:
    from whyloop import errors

    found = [
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and value.__module__ == errors.__name__
    ]
    assert sorted(found) == ERRORS.split()
    assert all(issubclass(getattr(errors, name), errors.WhyloopError) for name in found)
    assert callable(errors.interrupted_state)


def test_the_tree_of_errors_is_drawn_with_every_class_in_it() -> None:
    from whyloop import errors

    assert errors.__doc__ is not None
    for name in ERRORS.split():
        assert name in errors.__doc__
        assert getattr(errors, name).__doc__


def test_every_public_name_is_exported_to_type_checkers() -> None:
    tree = ast.parse(Path(api.__file__).read_text(encoding="utf-8"))
    aliases = [alias for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert all(alias.asname == alias.name for alias in aliases)
    assert sorted(alias.name for alias in aliases) == whyloop.__all__


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Agnet"):
        whyloop.Agnet


def test_the_names_can_be_listed() -> None:
    assert set(whyloop.__all__) <= set(dir(whyloop))


def test_a_star_import_gets_the_public_names() -> None:
    scope: dict[str, object] = {}
    exec("from whyloop import *", scope)
    assert set(whyloop.__all__) <= set(scope)


def test_the_version_is_one() -> None:
    assert whyloop.__version__.count(".") == 2
    assert (Path(whyloop.__file__).parent / "py.typed").exists()


def test_the_face_of_an_agent_is_exactly_these_methods() -> None:
    assert [name for name in dir(whyloop.Agent) if not name.startswith("_")] == [
        *("final_step", "has_next_step", "iterate", "new_session", "next_step", "output", "request_stop"),
        *("restart", "resume", "resume_sync", "run", "run_sync", "start", "stream", "subscribe"),
    ]
