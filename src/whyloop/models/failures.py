"""From what a provider answers when it does not answer to an error that a policy can act on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import Any

import msgspec

from whyloop.errors import ModelError, RateLimitError, RequestTimeoutError, is_retryable
from whyloop.models.secrets import without_secrets
from whyloop.rules.classification import provider_error_type
from whyloop.values.failure import ErrorType
from whyloop.values.text import shortened

# The statuses that providers have for errors which, inside a stream, come without one.
_STATUS_OF_TYPE = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
}
_KINDS = {ErrorType.RATE_LIMIT: RateLimitError, ErrorType.TIMEOUT: RequestTimeoutError}
_DELAY = re.compile(r"^(\d+(?:\.\d+)?)s$")
_REQUEST_IDS = ("x-request-id", "request-id", "x-goog-request-id", "cf-ray")
_MOST = 100_000  # No words are longer than this before they are shortened.


def http_error(
    status: int, headers: Mapping[str, str], body: bytes, secrets: Iterable[str] = ()
) -> ModelError:
    """The error for a response that is not a success; header names are in lower case."""
    document = _decoded(body)
    # Secrets go before anything is cut: half a key is not found any more, and is still half a key.
    told = shortened(without_secrets(_words(document), secrets), 500)
    page = shortened(without_secrets(body.decode("utf-8", "replace"), secrets), 300)
    request_id, retry_after = request_id_in(headers), retry_after_seconds(headers)
    retry_after = _retry_info(document) if retry_after is None else retry_after
    text = f"{told} {_type_in(document)}"
    return _kind(status, text)(
        f"HTTP {status}: {told or page or 'no explanation was given'}",
        status=status,
        request_id=_request_id(document) if request_id is None else request_id,
        retry_after=retry_after,
        retryable=is_retryable(status, text, retry_after),
    )


def stream_error(document: Any) -> ModelError:
    """The error for a failure that is told inside a stream that began well.

    Its words are whole: whoever knows the secrets takes them out and then shortens what is left.
    """
    words = _words(document) or str(document)[:_MOST]
    status, kind, retry_after = _status_in(document), _type_in(document), _retry_info(document)
    implied = next((code for name, code in _STATUS_OF_TYPE.items() if name in kind), None)
    text = f"{words} {kind}"
    return _kind(status or implied, text)(
        words,
        status=status,
        request_id=_request_id(document),
        retry_after=retry_after,
        retryable=is_retryable(status or implied, text, retry_after),
    )


def request_id_in(headers: Mapping[str, str]) -> str | None:
    """What the provider calls this request; header names are in lower case."""
    return next((headers[name] for name in _REQUEST_IDS if name in headers), None)


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


def _kind(status: int | None, text: str) -> type[ModelError]:
    return _KINDS.get(provider_error_type(status, text), ModelError)


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
        return error[:_MOST]
    if not isinstance(error, dict):
        return ""
    words = error.get("message") or error.get("detail") or error.get("msg")
    if isinstance(words, list | dict):
        words = msgspec.json.encode(words).decode()
    raw = error.get("metadata", {}).get("raw") if isinstance(error.get("metadata"), dict) else None
    both = f"{words}: {raw}" if words and isinstance(raw, str) else words
    return str(both)[:_MOST] if both else ""


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


def _request_id(document: Any) -> str | None:
    """What the provider calls this request, where it says so beside the error."""
    told = document.get("request_id") if isinstance(document, dict) else None
    return told if isinstance(told, str) else None


def _retry_info(document: Any) -> float | None:
    """Google's way of asking for patience, among the details of its error."""
    error = _error_in(document)
    details = error.get("details") if isinstance(error, dict) else None
    for detail in details if isinstance(details, list) else ():
        delay = detail.get("retryDelay") if isinstance(detail, dict) else None
        if isinstance(delay, str) and (match := _DELAY.match(delay)):
            return float(match[1])
    return None
