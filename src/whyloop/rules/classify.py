"""From an exception to a failure that a policy can act on."""

from __future__ import annotations

from math import isfinite

from whyloop.errors import (
    ModelError,
    RateLimitError,
    RequestTimeoutError,
    ResponseValidationError,
    ToolExecutionError,
)
from whyloop.values.failure import ErrorType, Failure
from whyloop.values.messages import ToolCall
from whyloop.values.text import clean

MAX_WORDS = 10_000


def model_failure(error: BaseException) -> Failure:
    """What a failed model call is to the policy."""
    match error:
        case RateLimitError() | ModelError(status=429 | 529):
            kind = ErrorType.RATE_LIMIT
        case RequestTimeoutError() | TimeoutError():
            kind = ErrorType.TIMEOUT
        case ResponseValidationError():
            kind = ErrorType.VALIDATION
        case ModelError():
            kind = ErrorType.MODEL
        case _:
            kind = ErrorType.UNKNOWN
    details: dict[str, object] = {"exception": type(error).__name__}
    retry_after = None
    if isinstance(error, ModelError):
        retry_after = _seconds(error.retry_after)
        details |= {
            key: value for key in ("status", "request_id") if (value := getattr(error, key)) is not None
        }
    return Failure(kind, words_of(error), retry_after=retry_after, details=details)


def _seconds(value: object) -> float | None:
    """How long a provider asks to wait, if that is a length of time."""
    try:
        seconds = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return seconds if isfinite(seconds) and seconds >= 0 else None


def tool_failure(kind: ErrorType, call: ToolCall, message: str, **details: object) -> Failure:
    """What a failed tool call is to the policy."""
    return Failure(kind, clean(message), call.name, call.id, details=details)


def raised_by_tool(call: ToolCall, error: BaseException) -> Failure:
    """What a tool's exception is to the policy: out of time if it says so itself, else a failed tool."""
    kind = ErrorType.TIMEOUT if isinstance(error, TimeoutError) else ErrorType.TOOL
    return tool_failure(kind, call, words_of(error), exception=type(error).__name__)


def words_of(error: BaseException) -> str:
    """The words of an exception; its name goes first unless it was made to be read."""
    try:
        words = str(error).strip()
    except Exception:
        words = "(its message could not be read)"
    if len(words) > MAX_WORDS:
        words = f"{words[:MAX_WORDS]} [cut here: {len(words):,} characters in all]"
    if isinstance(error, ModelError | ToolExecutionError) and words:
        return clean(words)
    return clean(f"{type(error).__name__}: {words}" if words else type(error).__name__)
