"""From the error that a provider reports to an exception that a policy can act on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from whyloop.errors import ModelError, RateLimitError, RequestTimeoutError, is_retryable
from whyloop.models.secrets import without_secrets
from whyloop.rules.classification import duration_from, provider_error_type
from whyloop.values.failure import ErrorType
from whyloop.values.text import shortened

# The statuses of errors that come without one inside a stream.
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
_MAX_LENGTH = 100_000  # Of a message before it is shortened.


def http_error(
    status: int, headers: Mapping[str, str], body: bytes, secrets: Iterable[str] = ()
) -> ModelError:
    """Return the error for a response with an error status.

    Header names are in lower case.
    """
    document = _decoded(body)
    # Secrets are removed before anything is cut: half a key would not be found, and is still half a key.
    message = shortened(without_secrets(_message(document), secrets), 500)
    page = shortened(without_secrets(body.decode("utf-8", "replace"), secrets), 300)
    request_id, retry_after = request_id_in(headers), retry_after_seconds(headers)
    retry_after = _retry_info(document) if retry_after is None else retry_after
    text = f"{message} {_type_in(document)}"
    return _kind(status, text)(
        f"HTTP {status}: {message or page or 'no explanation was given'}",
        status=status,
        request_id=_request_id(document) if request_id is None else request_id,
        retry_after=retry_after,
        retryable=is_retryable(status, text, retry_after),
    )


def stream_error(document: Any) -> ModelError:
    """Return the error for a failure that is reported inside a stream that began well.

    Its message is complete: the client removes the secrets and then shortens it.
    """
    message = _message(document) or str(document)[:_MAX_LENGTH]
    status, kind, retry_after = _status_in(document), _type_in(document), _retry_info(document)
    implied = next((code for name, code in _STATUS_OF_TYPE.items() if name in kind), None)
    text = f"{message} {kind}"
    return _kind(status or implied, text)(
        message,
        status=status,
        request_id=_request_id(document),
        retry_after=retry_after,
        retryable=is_retryable(status or implied, text, retry_after),
    )


def request_id_in(headers: Mapping[str, str]) -> str | None:
    """Return the provider's id of this request; header names are in lower case."""
    return next((headers[name] for name in _REQUEST_IDS if name in headers), None)


def retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    """Return how long the provider asks to wait, in whichever unit it says so."""
    milliseconds = duration_from(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after")
    seconds = duration_from(value)
    if seconds is not None or value is None:
        return seconds
    until = _date(value)
    if until is None:
        return None
    # The provider's own date, if it sends one, spares us the difference between two clocks.
    now = _date(headers.get("date")) or datetime.now(UTC)
    return max(0.0, (until - now).total_seconds())


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
    """Return the error object, wherever this provider puts it."""
    if isinstance(document, list):
        document = document[0] if document else None
    if not isinstance(document, dict):
        return document
    inner = document.get("response")
    return document.get("error") or (inner.get("error") if isinstance(inner, dict) else None) or document


def _message(document: Any) -> str:
    error = _error_in(document)
    if isinstance(error, str):
        return error[:_MAX_LENGTH]
    if not isinstance(error, dict):
        return ""
    message = error.get("message") or error.get("detail") or error.get("msg")
    if isinstance(message, list | dict):
        message = msgspec.json.encode(message).decode()
    metadata = error.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    if message and isinstance(raw, str):
        message = f"{message}: {raw}"
    return str(message)[:_MAX_LENGTH] if message else ""


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
    """Return the provider's id of this request, where it is beside the error."""
    request_id = document.get("request_id") if isinstance(document, dict) else None
    return request_id if isinstance(request_id, str) else None


def _retry_info(document: Any) -> float | None:
    """Return the wait that Google asks for among the details of its error."""
    error = _error_in(document)
    details = error.get("details") if isinstance(error, dict) else None
    for detail in details if isinstance(details, list) else ():
        delay = detail.get("retryDelay") if isinstance(detail, dict) else None
        if isinstance(delay, str) and (match := _DELAY.match(delay)):
            return float(match[1])
    return None
