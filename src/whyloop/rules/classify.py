"""From an exception to a failure that a policy can act on."""

from __future__ import annotations

import re
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
from whyloop.values.failure import ErrorType, Failure
from whyloop.values.messages import ToolCall
from whyloop.values.text import clean

MAX_WORDS = 10_000

_BUSY = frozenset({429, 529})
_UNAVAILABLE = 503
_LATE = frozenset({408, 504, 522, 524})  # The last two are how a gateway says 504.
_OVERLOAD = re.compile(
    r"overload|rate.?limit|too many requests|resource.?exhausted|capacity|high demand|slow.?down|\bbusy\b",
    re.IGNORECASE,
)
_TIMED_OUT = re.compile(r"time.?out|timed out|deadline", re.IGNORECASE)


def provider_error_type(status: int | None, text: str) -> ErrorType:
    """Return the type of a provider's error: by its status, or by its text if it has none."""
    if status in _BUSY or (status in (None, _UNAVAILABLE) and _OVERLOAD.search(text)):
        return ErrorType.RATE_LIMIT
    if status in _LATE or (status is None and _TIMED_OUT.search(text)):
        return ErrorType.TIMEOUT
    return ErrorType.MODEL


def model_failure(error: BaseException) -> Failure:
    """Return the failure that a failed model call is to the policy."""
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
            kind = provider_error_type(status, words_of(error))
        case _:
            kind = ErrorType.UNKNOWN
    details: dict[str, object] = {"exception": type(error).__name__}
    # An agent or a model that is set up wrongly stays so.
    retryable, retry_after = not isinstance(error, ConfigurationError), None
    if status is not None and not isinstance(error, ModelError):
        retryable = is_retryable(status, words_of(error))
        details["status"] = status
    if isinstance(error, ModelError):
        retry_after, retryable = _seconds(error.retry_after), error.retryable is not False
        details |= {
            key: value for key in ("status", "request_id") if (value := getattr(error, key)) is not None
        }
    return Failure(kind, words_of(error), retry_after=retry_after, details=details, retryable=retryable)


def _http_status(error: BaseException) -> int | None:
    """Return the status that an error of another library carries: HTTP clients and SDKs name it alike."""
    for path in ("status_code", "status", "response.status_code", "response.status"):
        try:
            status = attrgetter(path)(error)
        except Exception:  # It has none, or cannot say.
            continue
        else:
            if isinstance(status, int) and not isinstance(status, bool) and 400 <= status < 600:
                return status
    return None


def _seconds(value: object) -> float | None:
    """How long a provider asks to wait, if that is a length of time."""
    try:
        seconds = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return seconds if isfinite(seconds) and seconds >= 0 else None


def tool_failure(
    kind: ErrorType, call: ToolCall, message: str, *, retryable: bool = True, **details: object
) -> Failure:
    """Return the failure that a failed tool call is to the policy."""
    return Failure(kind, clean(message), call.name, call.id, details=details, retryable=retryable)


def raised_by_tool(call: ToolCall, error: BaseException) -> Failure:
    """What a tool's exception is to the policy: out of time if it says so itself, else a failed tool."""
    kind = ErrorType.TIMEOUT if isinstance(error, TimeoutError) else ErrorType.TOOL
    retryable = not isinstance(error, ToolExecutionError) or error.retryable is not False
    return tool_failure(kind, call, words_of(error), retryable=retryable, exception=type(error).__name__)


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
