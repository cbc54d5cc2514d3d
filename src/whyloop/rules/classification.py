"""Failures that a policy can act on, made from exceptions and wrong responses."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from decimal import Decimal
from math import inf, isfinite
from operator import attrgetter

from msgspec.structs import replace

from whyloop.errors import (
    ConfigurationError,
    ModelError,
    NestingError,
    RateLimitError,
    RequestTimeoutError,
    ResponseValidationError,
    ToolExecutionError,
    is_retryable,
)
from whyloop.text.turns import Search, at_once
from whyloop.text.written_calls import remove_calls, search_call
from whyloop.values.failure import ErrorType, Failure
from whyloop.values.messages import ToolCall
from whyloop.values.model import FinishReason, ModelAttempt, ModelResponse, ModelSource, OutputMode, Usage
from whyloop.values.price import as_dollars
from whyloop.values.text import clean, shortened

MAX_ERROR_LENGTH = 10_000
EMPTY_REPLY = "the model's reply was empty: no text and no tool calls"
_MAX_NAME_LENGTH = 64
# The tokens of one answer. The sum of a session stays far below what a snapshot may hold.
_MOST = 2**53

_BUSY = frozenset({429, 529})
_UNAVAILABLE = 503
_LATE = frozenset({408, 504, 522, 524})  # The last two are how gateways report a 504.
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


class OwnCodeError(Exception):
    """An exception of the application's own code in a model call, as its cause.

    Args:
        what: What failed, for people: "the hook Audit failed".
        cause: The exception that the code raised.
    """

    def __init__(self, what: str, cause: BaseException) -> None:
        super().__init__(f"{what}: {type(cause).__name__}")
        self.__cause__ = cause


def model_failure(error: BaseException) -> Failure:
    """Return the failure for the exception of a model call."""
    if isinstance(error, OwnCodeError) and error.__cause__ is not None:
        failure = model_failure(error.__cause__)
        return replace(failure, message=str(error), raised=failure.message)
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
    # A retry does not change how an agent or a model is configured.
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
    """Return the status of another library's error, under one of the common names."""
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
    """Return the failure for a tool's exception, which may be a timeout.

    People see the message of a `ToolExecutionError`, which is written for them, and of any other only the
    class: it may quote arguments.
    """
    kind = ErrorType.TIMEOUT if isinstance(error, TimeoutError) else ErrorType.TOOL
    name, text = type(error).__name__, error_text(error)
    if isinstance(error, ToolExecutionError | NestingError):
        retryable = getattr(error, "retryable", True) is not False
        return tool_failure(kind, call, text, retryable=retryable, exception=name)
    return replace(tool_failure(kind, call, f"{name} in {call.name}", exception=name), raised=text)


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


def answer_failure(
    response: ModelResponse, tools: Collection[str], *, after_results: bool
) -> Search[Failure | None]:
    """Return the failure of a response that is neither an answer nor a tool call.

    `tools` are the names of the offered tools. A readable but wrong response stays in the history, so that
    the model can correct itself. An empty one is an answer only after tool results.
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
    if (name := (yield from search_call(response.text, tools))) is not None:
        problem = (
            f"the answer has a call of {shortened(name, _MAX_NAME_LENGTH)} written as text, "
            "so it was not run: call the tool itself, and write no call as text"
        )
        return Failure(ErrorType.VALIDATION, problem, readable=True)
    return None


# The response itself


def normalize_response(response: ModelResponse) -> ModelResponse:
    """Return the response, repaired if possible; raise `ResponseValidationError`."""
    try:
        text, calls, usage = response.text, response.tool_calls, response.usage
        if (
            text.isascii()
            and type(response.finish_reason) is FinishReason
            and type(calls) is tuple
            and type(response.extras) is dict
            and type(response.reasoning) is str
            and response.source is None
            and not response.unsupported
            and 0 <= usage.input | usage.output | usage.cached | usage.reasoning | usage.cache_writes <= _MOST
            and usage.cost is None
        ):
            if text and calls:
                return at_once(repair(response))
            for call in calls:
                if not (call.name.isascii() and call.id.isascii()) or type(call.arguments) is not dict:
                    break
            else:
                if len(calls) < 2 or _are_distinct(calls):
                    return response
        return at_once(repair(response))
    except (AttributeError, TypeError):
        return at_once(repair(response))  # A part of it has a wrong type, which the error names.


def repair(response: ModelResponse) -> Search[ModelResponse]:
    """Return what `normalize_response` returns, and stop after each slice of the text."""
    if not isinstance(response.text, str):
        raise ResponseValidationError(f"the model's text is {_type(response.text)} instead of str")
    if not isinstance(response.reasoning, str | None):
        raise ResponseValidationError(f"the model's reasoning is {_type(response.reasoning)} instead of str")
    if not isinstance(response.usage, Usage):
        raise ResponseValidationError(f"the model's usage is {_type(response.usage)} instead of Usage")
    word = response.finish_reason
    known = word in list(FinishReason)
    unsupported = tuple(clean(str(item)) for item in response.unsupported)
    # If one call cannot be answered, none of the response runs.
    calls = () if unsupported else _with_distinct_ids([_call(call) for call in response.tool_calls])
    # For every model: arguments are not language, and are not kept as text.
    text = yield from remove_calls(clean(response.text), calls)
    return replace(
        response,
        text=text,
        reasoning=response.reasoning or "",
        usage=_usage(response.usage),
        tool_calls=calls,
        finish_reason=FinishReason(word) if known else FinishReason.OTHER,
        extras=response.extras if isinstance(response.extras, dict) else {},
        source=_source(response.source),
        unsupported=unsupported,
    )


def _usage(usage: Usage) -> Usage:
    return Usage(
        _count(usage.input),
        _count(usage.output),
        _count(usage.cached),
        _count(usage.reasoning),
        _cost(usage.cost),
        usage.reported is not False,
        _count(usage.cache_writes),
    )


def _cost(cost: object) -> Decimal | None:
    """Return a cost in dollars; None for anything else, since unknown is not zero."""
    try:
        return None if cost is None else as_dollars(cost, "cost ")
    except ConfigurationError:
        return None


def _count(number: object) -> int:
    """Return a number of tokens; 0 for anything that is not a number."""
    if isinstance(number, bool) or not isinstance(number, int | float) or not -inf < number < inf:
        return 0
    return min(max(0, int(number)), _MOST)


def _call(call: object) -> ToolCall:
    if not isinstance(call, ToolCall) or not isinstance(call.name, str) or not isinstance(call.id, str):
        raise ResponseValidationError(f"the model asked for {_type(call)}, which is not a valid ToolCall")
    arguments = call.arguments
    if not isinstance(arguments, Mapping | str):
        raise ResponseValidationError(f"the arguments for {call.name} are {_type(arguments)} instead of dict")
    if not isinstance(arguments, str):
        arguments = dict(arguments)
    return ToolCall(clean(call.id), clean(call.name), arguments)


def _type(value: object) -> str:
    """Return the name of a type; the value itself may hold arguments."""
    return type(value).__name__


def _are_distinct(calls: Sequence[ToolCall]) -> bool:
    return len({call.id for call in calls}) == len(calls)


def _with_distinct_ids(calls: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
    """Return the calls with distinct ids, so that results and decisions find them."""
    if _are_distinct(calls):
        return tuple(calls)
    taken: set[str] = set()
    apart = []
    for call in calls:
        own, number = call.id, 1
        while own in taken:
            number += 1
            own = f"{call.id}-{number}"
        taken.add(own)
        apart.append(call if own == call.id else replace(call, id=own))
    return tuple(apart)


def _source(source: object) -> ModelSource | None:
    """Return the source of the answer, with its fields as text."""
    if not isinstance(source, ModelSource):
        return None
    model, answer, word = (
        text if isinstance(text, str) else None
        for text in (source.model, source.response_id, source.finish_word)
    )
    notes = source.notes if isinstance(source.notes, tuple) else ()
    texts = tuple(note for note in notes if isinstance(note, str))
    output = source.output if isinstance(source.output, OutputMode) else None
    given = source.attempts if isinstance(source.attempts, tuple) else ()
    attempts = tuple(attempt for attempt in given if isinstance(attempt, ModelAttempt))
    cleaned = ModelSource(model, answer, word, texts, output, attempts)
    return source if cleaned == source else cleaned
