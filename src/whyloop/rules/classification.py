"""From an exception, or a wrong response, to a failure that a policy can act on."""

from __future__ import annotations

import re
from collections.abc import Collection
from math import isfinite
from operator import attrgetter

from whyloop.errors import (
    ConfigurationError,
    ModelError,
    RateLimitError,
    RequestTimeoutError,
    ResponseValidationError,
    ToolExecutionError,
    is_retryable,
)
from whyloop.rules.written_calls import written_call
from whyloop.values.failure import ErrorType, Failure
from whyloop.values.messages import ToolCall
from whyloop.values.model import FinishReason, ModelResponse
from whyloop.values.text import clean, shortened

MAX_ERROR_LENGTH = 10_000
EMPTY_REPLY = "the model's reply was empty: no text and no tool calls"
_MAX_NAME_LENGTH = 64

_BUSY = frozenset({429, 529})
_UNAVAILABLE = 503
_LATE = frozenset({408, 504, 522, 524})  # The last two are how a gateway says 504.
_OVERLOAD = re.compile(
    r"overload|rate.?limit|too many requests|resource.?exhausted|capacity|high demand|slow.?down|\bbusy\b",
    re.IGNORECASE,
)
_TIMED_OUT = re.compile(r"time.?out|timed out|deadline", re.IGNORECASE)


def provider_error_type(status: int | None, text: str) -> ErrorType:
    """Return the type of a provider's error, by its status or else by its text."""
    if status in _BUSY or (status in (None, _UNAVAILABLE) and _OVERLOAD.search(text)):
        return ErrorType.RATE_LIMIT
    if status in _LATE or (status is None and _TIMED_OUT.search(text)):
        return ErrorType.TIMEOUT
    return ErrorType.MODEL


def model_failure(error: BaseException) -> Failure:
    """Return the failure for the exception of a model call."""
    status = _http_status(error)
    match error:
        case RateLimitError():
            kind = ErrorType.RATE_LIMIT
        case RequestTimeoutError() | TimeoutError():
            kind = ErrorType.TIMEOUT
        case ResponseValidationError():
            kind = ErrorType.VALIDATION
        case ModelError(status=None):
            kind = ErrorType.MODEL
        case ModelError():
            kind = provider_error_type(error.status, str(error))
        case _ if status is not None:
            kind = provider_error_type(status, error_text(error))
        case _:
            kind = ErrorType.UNKNOWN
    details: dict[str, object] = {"exception": type(error).__name__}
    # An agent or a model that is set up wrongly stays so.
    retryable, retry_after = not isinstance(error, ConfigurationError), None
    if status is not None and not isinstance(error, ModelError):
        retryable = is_retryable(status, error_text(error))
        details["status"] = status
    if isinstance(error, ModelError):
        retry_after, retryable = duration_from(error.retry_after), error.retryable is not False
        details |= {
            key: value for key in ("status", "request_id") if (value := getattr(error, key)) is not None
        }
    return Failure(kind, error_text(error), retry_after=retry_after, details=details, retryable=retryable)


def _http_status(error: BaseException) -> int | None:
    """Return the status of another library's error, under the names that are common."""
    for path in ("status_code", "status", "response.status_code", "response.status"):
        try:
            status = attrgetter(path)(error)
        except Exception:  # It has none, or cannot say.
            continue
        else:
            if isinstance(status, int) and not isinstance(status, bool) and 400 <= status < 600:
                return status
    return None


def duration_from(value: object) -> float | None:
    """Return a wait as a number; None if the value is not a length of time."""
    try:
        seconds = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return seconds if isfinite(seconds) and seconds >= 0 else None


def tool_failure(
    kind: ErrorType, call: ToolCall, message: str, *, retryable: bool = True, **details: object
) -> Failure:
    """Return the failure of a tool call."""
    return Failure(kind, clean(message), call.name, call.id, details=details, retryable=retryable)


def raised_by_tool(call: ToolCall, error: BaseException) -> Failure:
    """Return the failure for a tool's exception, which may be a timeout."""
    kind = ErrorType.TIMEOUT if isinstance(error, TimeoutError) else ErrorType.TOOL
    retryable = not isinstance(error, ToolExecutionError) or error.retryable is not False
    return tool_failure(kind, call, error_text(error), retryable=retryable, exception=type(error).__name__)


def error_text(error: BaseException) -> str:
    """Return the message of an exception, after its name if it is not one of ours."""
    try:
        message = str(error).strip()
    except Exception:
        message = "(its message could not be read)"
    if len(message) > MAX_ERROR_LENGTH:
        message = f"{message[:MAX_ERROR_LENGTH]} [cut here: {len(message):,} characters in all]"
    if isinstance(error, ModelError | ToolExecutionError) and message:
        return clean(message)
    return clean(f"{type(error).__name__}: {message}" if message else type(error).__name__)


def answer_failure(response: ModelResponse, tools: Collection[str], *, after_results: bool) -> Failure | None:
    """Return the failure of a response that is neither an answer nor a tool call.

    `tools` are the names of those that were offered. A response that is `readable` and wrong stays in the
    history, so that the model can correct itself. An empty one is an answer only after tool results.
    """
    if response.unsupported:
        arrived = ", ".join(shortened(item, 200) for item in response.unsupported)
        problem = f"the model answered with {arrived}, which whyloop does not support"
        return model_failure(ResponseValidationError(problem, retryable=False))
    if (
        response.tool_calls
        or response.finish_reason.truncates
        or response.finish_reason is FinishReason.PAUSE_TURN
    ):
        return None
    if not response.text.strip():
        return None if after_results else model_failure(ResponseValidationError(EMPTY_REPLY))
    if (name := written_call(response.text, tools)) is not None:
        problem = (
            f"the answer has a call of {shortened(name, _MAX_NAME_LENGTH)} written as text, "
            "so it was not run: call the tool itself, and write no call as text"
        )
        return Failure(ErrorType.VALIDATION, problem, readable=True)
    return None
