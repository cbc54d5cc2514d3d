"""The exceptions that tests raise and drivers use."""

from __future__ import annotations

import pytest

from whyloop.errors import (
    ConfigurationError,
    ModelError,
    RateLimitError,
    RequestTimeoutError,
    ResponseValidationError,
    ScriptError,
    SnapshotError,
    ToolDefinitionError,
    ToolExecutionError,
    ToolTimeoutError,
    WhyloopError,
)


@pytest.mark.parametrize(
    ("error", "parents"),
    [
        (ModelError, (WhyloopError,)),
        (RateLimitError, (ModelError,)),
        (RequestTimeoutError, (ModelError,)),
        (ResponseValidationError, (ModelError,)),
        (ToolExecutionError, (WhyloopError,)),
        (ToolTimeoutError, (ToolExecutionError,)),
        (SnapshotError, (WhyloopError, ValueError)),
        (ConfigurationError, (WhyloopError, ValueError)),
        (ToolDefinitionError, (ConfigurationError,)),
        (ScriptError, (WhyloopError, AssertionError)),
    ],
)
def test_an_error_can_be_caught_as(error: type[Exception], parents: tuple[type[Exception], ...]) -> None:
    assert all(issubclass(error, parent) for parent in parents)


def test_a_rate_limit_has_the_wait() -> None:
    error = RateLimitError(retry_after=2.5)
    assert error.retry_after == 2.5
    assert error.status == 429
    assert RateLimitError("busy", status=529).status == 529


def test_a_model_error_keeps_its_status_and_request_id() -> None:
    error = ModelError("down", status=500, request_id="req-1")
    assert str(error) == "down"
    assert (error.status, error.request_id, error.retry_after) == (500, "req-1", None)


@pytest.mark.parametrize("error", [ModelError, RateLimitError, RequestTimeoutError, ResponseValidationError])
def test_a_model_error_has_a_default_message(error: type[ModelError]) -> None:
    assert str(error())
