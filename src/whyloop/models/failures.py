"""From what a provider answers when it does not answer to an error that a policy can act on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import Any

import msgspec

from whyloop.errors import ModelError, RateLimitError, RequestTimeoutError
from whyloop.values.text import shortened

_BUSY = frozenset({429, 498, 503, 529})
_LATE = frozenset({408, 504, 522, 524})
_BUSY_WORDS = re.compile(
    r"overload|rate.?limit|too many requests|resource.?exhausted|capacity", re.IGNORECASE
)
_LATE_WORDS = re.compile(r"time.?out|timed out|deadline", re.IGNORECASE)
_DELAY = re.compile(r"^(\d+(?:\.\d+)?)s$")
_REQUEST_IDS = ("x-request-id", "request-id", "x-goog-request-id", "cf-ray")


def http_error(status: int, headers: Mapping[str, str], body: bytes) -> ModelError:
    """The error for a response that is not a success; header names are in lower case."""
    document = _decoded(body)
    told = _words(document)
    words = told or shortened(body.decode("utf-8", "replace"), 300) or "no explanation was given"
    message = f"HTTP {status}: {words}"
    request_id = next((headers[name] for name in _REQUEST_IDS if name in headers), None)
    if request_id is None and isinstance(document, dict) and isinstance(document.get("request_id"), str):
        request_id = document["request_id"]
    retry_after = retry_after_seconds(headers)
    if retry_after is None:
        retry_after = _retry_info(document)
    kind = _kind(status, f"{told} {_type_in(document)}")
    return kind(message, status=status, request_id=request_id, retry_after=retry_after)


def stream_error(document: Any) -> ModelError:
    """The error for a failure that is told inside a stream that began well."""
    words = _words(document) or shortened(str(document), 300)
    status = _status_in(document)
    return _kind(status or 0, f"{words} {_type_in(document)}")(words, status=status)


def retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    """How long the provider asks to wait: in milliseconds, in seconds, or until a date."""
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after")
    seconds = _number(value)
    if seconds is not None or value is None:
        return seconds
    until = _date(value)
    if until is None:
        return None
    # The provider's own date, if it sends one, spares us the difference between two clocks.
    now = _date(headers.get("date")) or datetime.now(UTC)
    return max(0.0, (until - now).total_seconds())


def _number(value: str | None) -> float | None:
    try:
        number = float(value) if value else None
    except ValueError:
        return None
    return number if number is not None and isfinite(number) and number >= 0 else None


def _date(value: str | None) -> datetime | None:
    try:
        date = parsedate_to_datetime(value) if value else None
    except (ValueError, TypeError, OverflowError):
        return None
    return date.replace(tzinfo=UTC) if date is not None and date.tzinfo is None else date


def _kind(status: int, words: str) -> type[ModelError]:
    if status in _BUSY or (not 400 <= status < 500 and _BUSY_WORDS.search(words)):
        return RateLimitError
    if status in _LATE or (not 400 <= status < 500 and _LATE_WORDS.search(words)):
        return RequestTimeoutError
    return ModelError


def _decoded(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None


def _error_in(document: Any) -> Any:
    """The error object, wherever this provider puts it."""
    if isinstance(document, list):
        document = document[0] if document else None
    if not isinstance(document, dict):
        return document
    inner = document.get("response")
    return document.get("error") or (inner.get("error") if isinstance(inner, dict) else None) or document


def _words(document: Any) -> str:
    error = _error_in(document)
    if isinstance(error, str):
        return shortened(error, 500)
    if not isinstance(error, dict):
        return ""
    words = error.get("message") or error.get("detail") or error.get("msg")
    if isinstance(words, list | dict):
        words = msgspec.json.encode(words).decode()
    raw = error.get("metadata", {}).get("raw") if isinstance(error.get("metadata"), dict) else None
    both = f"{words}: {raw}" if words and isinstance(raw, str) else words
    return shortened(str(both), 500) if both else ""


def _type_in(document: Any) -> str:
    error = _error_in(document)
    if not isinstance(error, dict):
        return ""
    return " ".join(str(error.get(key, "")) for key in ("type", "code", "status"))


def _status_in(document: Any) -> int | None:
    error = _error_in(document)
    code = error.get("code") if isinstance(error, dict) else None
    if isinstance(code, str) and code.isdigit():
        code = int(code)
    return code if isinstance(code, int) and not isinstance(code, bool) and 100 <= code < 600 else None


def _retry_info(document: Any) -> float | None:
    """Google's way of asking for patience, among the details of its error."""
    error = _error_in(document)
    details = error.get("details") if isinstance(error, dict) else None
    for detail in details if isinstance(details, list) else ():
        delay = detail.get("retryDelay") if isinstance(detail, dict) else None
        if isinstance(delay, str) and (match := _DELAY.match(delay)):
            return float(match[1])
    return None
