"""The error policy: a decision for each kind of error, and the number of retries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, strategies as st

from whyloop import ErrorContext, ErrorHandlingDecision, ErrorPolicy, ErrorType

KINDS = ("tool", "model", "validation", "rate_limit", "timeout", "unknown")

# The table of the contract, word for word.
TABLE: list[tuple[str, Callable[[], ErrorPolicy], str, int]] = [
    ("stop_on_any_error", ErrorPolicy.stop_on_any_error, "stop stop stop stop stop stop", 0),
    ("retry_tool_errors", ErrorPolicy.retry_tool_errors, "retry stop retry retry retry stop", 3),
    ("ignore_tool_errors", ErrorPolicy.ignore_tool_errors, "ignore stop ignore retry retry ignore", 3),
    ("retry_all", ErrorPolicy.retry_all, "retry retry retry retry retry retry", 5),
]
CELLS = [
    pytest.param(make, kind, decision, retries, id=f"{name}-{kind}")
    for name, make, decisions, retries in TABLE
    for kind, decision in zip(KINDS, decisions.split(), strict=True)
]


def failure(kind: str, consecutive: int = 1) -> ErrorContext:
    return ErrorContext(ErrorType(kind), consecutive, consecutive, "it broke")


@pytest.mark.parametrize(("make", "kind", "decision", "retries"), CELLS)
def test_a_preset_handles_each_kind_of_error_as_in_the_table(
    make: Callable[[], ErrorPolicy], kind: str, decision: str, retries: int
) -> None:
    policy = make()
    assert getattr(policy, f"on_{kind}_error") == decision
    assert policy.evaluate(failure(kind)) == decision
    assert policy.max_retries == retries


def test_the_default_policy_stops_on_any_error() -> None:
    assert ErrorPolicy() == ErrorPolicy.stop_on_any_error()


@pytest.mark.parametrize("make", [ErrorPolicy.retry_tool_errors, ErrorPolicy.retry_all])
def test_presets_that_retry_take_the_number_of_retries(make: Callable[..., ErrorPolicy]) -> None:
    assert make(7).max_retries == 7
    assert make(max_retries=2).max_retries == 2


@given(st.integers(0, 20), st.integers(1, 40), st.sampled_from(KINDS))
def test_n_retries_mean_that_failures_up_to_n_retry_and_the_next_one_stops(
    most: int, failures: int, kind: str
) -> None:
    decision = ErrorPolicy.retry_all(most).evaluate(failure(kind, failures))
    expected = ErrorHandlingDecision.RETRY if failures <= most else ErrorHandlingDecision.STOP
    assert decision is expected


@given(st.integers(1, 1000), st.sampled_from(("tool", "validation", "unknown")))
def test_an_ignored_error_is_ignored_any_number_of_times(failures: int, kind: str) -> None:
    decision = ErrorPolicy.ignore_tool_errors().evaluate(failure(kind, failures))
    assert decision is ErrorHandlingDecision.IGNORE


@pytest.mark.parametrize(("name", "make", "decisions", "retries"), TABLE)
def test_no_failure_is_ignored_by_every_policy(
    name: str, make: Callable[[], ErrorPolicy], decisions: str, retries: int
) -> None:
    assert make().evaluate(ErrorContext.none()) is ErrorHandlingDecision.IGNORE


def test_no_error_is_unknown_with_zeros() -> None:
    assert ErrorContext.none() == ErrorContext(ErrorType.UNKNOWN, 0, 0, None, None, {})


def test_with_max_retries_changes_only_the_retries() -> None:
    policy = ErrorPolicy.ignore_tool_errors().with_max_retries(9)
    assert policy.max_retries == 9
    assert policy.with_max_retries(3) == ErrorPolicy.ignore_tool_errors()


@pytest.mark.parametrize("decision", ["stop", "retry", "ignore", ErrorHandlingDecision.IGNORE])
def test_with_tool_error_handling_changes_only_tool_errors(decision: Any) -> None:
    policy = ErrorPolicy().with_tool_error_handling(decision)
    assert policy.on_tool_error is ErrorHandlingDecision(decision)
    assert policy.with_tool_error_handling("stop") == ErrorPolicy()


@pytest.mark.parametrize("kind", KINDS)
def test_with_handling_changes_one_kind_of_error(kind: str) -> None:
    policy = ErrorPolicy().with_handling(kind, "ignore")
    for other in KINDS:
        expected = "ignore" if other == kind else "stop"
        assert policy.evaluate(failure(other)) == expected
    assert policy == ErrorPolicy().with_handling(ErrorType(kind), ErrorHandlingDecision.IGNORE)


@pytest.mark.parametrize(("kind", "decision"), [("disk", "stop"), ("tool", "explode")])
def test_with_handling_refuses_unknown_values(kind: str, decision: str) -> None:
    with pytest.raises(ValueError):
        ErrorPolicy().with_handling(kind, decision)


@pytest.mark.parametrize("bad", [-1, 1.5, True, "3", None])
def test_the_number_of_retries_is_a_whole_number_from_zero_on(bad: Any) -> None:
    with pytest.raises(ValueError, match="max_retries"):
        ErrorPolicy(max_retries=bad)
    with pytest.raises(ValueError, match="max_retries"):
        ErrorPolicy.retry_all().with_max_retries(bad)


def test_an_invalid_decision_is_refused_with_its_field() -> None:
    wrong: Any = "maybe"
    with pytest.raises(ValueError, match="on_tool_error"):
        ErrorPolicy(on_tool_error=wrong)


def test_enums_are_strings_with_these_values() -> None:
    assert [member.value for member in ErrorType] == list(KINDS)
    assert [member.value for member in ErrorHandlingDecision] == ["stop", "retry", "ignore"]
    assert [m.name for m in ErrorType] == [k.upper() for k in KINDS]


def test_a_policy_survives_plain_data() -> None:
    policy = ErrorPolicy.retry_tool_errors(2)
    assert policy.to_dict() == {
        "on_tool_error": "retry",
        "on_model_error": "stop",
        "on_validation_error": "retry",
        "on_rate_limit_error": "retry",
        "on_timeout_error": "retry",
        "on_unknown_error": "stop",
        "max_retries": 2,
    }
    assert ErrorPolicy.from_dict(policy.to_dict()) == policy


def test_an_error_context_survives_plain_data() -> None:
    context = ErrorContext(ErrorType.TOOL, 2, 3, "no funds", "pay", {"exception": "ValueError"})
    assert context.to_dict()["type"] == "tool"
    assert context.to_dict()["retryable"] is True
    assert ErrorContext.from_dict(context.to_dict()) == context
