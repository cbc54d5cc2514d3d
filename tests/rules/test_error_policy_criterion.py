"""The criterion that applies an error policy, and the counts in its evaluations."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.support import after_step, failed_steps, session, tool_failure
from whyloop import (
    AgentErrorContextResolver,
    AgentState,
    CanResolveErrorContext,
    ContinuationDecision,
    ErrorContext,
    ErrorPolicy,
    ErrorPolicyCriterion,
    ErrorType,
    Failure,
    StopReason,
    ToolCall,
)

FORBID = ContinuationDecision.FORBID_CONTINUATION
REQUEST = ContinuationDecision.REQUEST_CONTINUATION
ALLOW = ContinuationDecision.ALLOW_CONTINUATION

RETRY = ErrorPolicyCriterion(ErrorPolicy.retry_tool_errors(3))


def test_without_errors_the_reason_is_no_errors_present() -> None:
    said = RETRY.explain(session(steps=2, tool_calls=1))
    assert said.criterion == "ErrorPolicyCriterion"
    assert said.decision is ALLOW
    assert said.reason == "No errors present"
    assert said.context["handling"] == "ignore"
    assert said.context["consecutive_failures"] == 0


@pytest.mark.parametrize("failures", [1, 2, 3])
def test_a_failed_tool_is_retried_with_the_count_in_the_reason(failures: int) -> None:
    said = RETRY.explain(failed_steps(session(), failures))
    assert said.decision is ALLOW
    assert said.reason == f"Tool error, retrying ({failures}/3)"
    assert said.stop_reason is None


def test_one_failure_too_many_stops_with_retry_limit() -> None:
    said = RETRY.explain(failed_steps(session(), 4))
    assert said.decision is FORBID
    assert said.reason == "Tool error after 4 consecutive failures (max: 3)"
    assert said.stop_reason is StopReason.RETRY_LIMIT_REACHED
    assert said.context["handling"] == "stop"


def test_the_reason_of_an_ignored_failure() -> None:
    said = ErrorPolicyCriterion(ErrorPolicy.ignore_tool_errors()).explain(failed_steps(session(), 1))
    assert said.decision is ALLOW
    assert said.reason == "Tool error ignored by policy"
    assert said.context["handling"] == "ignore"


def test_a_policy_of_stopping_stops_with_error_and_the_message_of_the_failure() -> None:
    said = ErrorPolicyCriterion().explain(failed_steps(session(), 1))
    assert said.decision is FORBID
    assert said.stop_reason is StopReason.ERROR_FORBADE
    assert said.reason.startswith("Tool error")
    assert "it broke" in said.reason


def test_the_context_has_the_numbers_and_names() -> None:
    said = RETRY.explain(failed_steps(session(), 2))
    expected = {
        "error_type": "tool",
        "consecutive_failures": 2,
        "total_failures": 2,
        "max_retries": 3,
        "handling": "retry",
        "tool_name": "search",
    }
    assert expected.items() <= said.context.items()


@pytest.mark.parametrize(
    ("kind", "label"),
    [
        (ErrorType.TOOL, "Tool error"),
        (ErrorType.MODEL, "Model error"),
        (ErrorType.VALIDATION, "Validation error"),
        (ErrorType.RATE_LIMIT, "Rate limit error"),
        (ErrorType.TIMEOUT, "Timeout error"),
        (ErrorType.UNKNOWN, "Unknown error"),
    ],
)
def test_a_failed_model_call_that_is_to_be_retried_requests_the_retry_itself(
    kind: ErrorType, label: str
) -> None:
    criterion = ErrorPolicyCriterion(ErrorPolicy.retry_all(2))
    said = criterion.explain(failed_steps(session(), 1, Failure(kind, "busy")))
    assert said.decision is REQUEST
    assert said.reason == f"{label}, retrying (1/2)"
    assert said.context["tool_name"] is None


def test_of_several_failed_calls_the_first_decides_and_all_are_listed() -> None:
    first = tool_failure(ErrorType.VALIDATION, "no such field", "create")
    second = replace(tool_failure(ErrorType.TOOL, "it broke", "search"), tool_call_id="call_2")
    said = RETRY.explain(failed_steps(session(), 1, first, second))
    assert said.reason == "Validation error, retrying (1/3)"
    assert said.context["error_type"] == "validation"
    assert said.context["tool_name"] == "create"
    listed = [(f["tool_name"], f["type"], f["message"]) for f in said.context["failures"]]
    assert listed == [("create", "validation", "no such field"), ("search", "tool", "it broke")]


def test_a_step_that_succeeds_ends_the_count_of_failures_in_a_row() -> None:
    state = after_step(failed_steps(session(), 2), [ToolCall("call_1", "search", {})])
    assert RETRY.explain(state).reason == "No errors present"
    assert RETRY.explain(state).context["total_failures"] == 2
    assert RETRY.explain(failed_steps(state, 1)).reason == "Tool error, retrying (1/3)"


def test_a_resolver_of_ones_own_is_asked() -> None:
    class Strict:
        def resolve(self, state: AgentState) -> ErrorContext:
            return ErrorContext(ErrorType.MODEL, 9, 9, "the mirror cracked", "mirror", {"seven": "years"})

    resolver: CanResolveErrorContext = Strict()
    said = ErrorPolicyCriterion(ErrorPolicy.retry_all(5), resolver).explain(session())
    assert said.reason == "Model error after 9 consecutive failures (max: 5)"
    assert said.context["tool_name"] == "mirror"
    assert said.context["seven"] == "years"


def test_the_shipped_resolver_fits_the_protocol_and_finds_no_error_in_an_empty_session() -> None:
    resolver = AgentErrorContextResolver()
    assert isinstance(resolver, CanResolveErrorContext)
    assert resolver.resolve(AgentState()) == ErrorContext.none()


def test_the_resolver_returns_the_first_failure_of_the_latest_step() -> None:
    context = AgentErrorContextResolver().resolve(failed_steps(session(), 2))
    assert context.type is ErrorType.TOOL
    assert (context.consecutive_failures, context.total_failures) == (2, 2)
    assert (context.message, context.tool_name) == ("it broke", "search")
    assert len(context.metadata["failures"]) == 1
