"""A response, read while it arrives: its body as events or a document, or the error that it reports."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from whyloop.errors import (
    ModelError,
    RateLimitError,
    RequestTimeoutError,
    ResponseValidationError,
    is_retryable,
)
from whyloop.models.secrets import without_secrets
from whyloop.rules.classification import duration_from, normalize_response, provider_error_type
from whyloop.text.turns import SLICE
from whyloop.tools.schema import problem_with
from whyloop.values.failure import ErrorType
from whyloop.values.model import Delta, FinishReason, ModelResponse, ReasoningDelta, TextDelta
from whyloop.values.text import shortened

if TYPE_CHECKING:
    from whyloop.models.provider import ProviderApi

# Far more than any answer needs, but little enough to stop one that never ends.
MAX_RESPONSE_BYTES = 64 * 1024 * 1024

_DOCUMENT_STARTS = (b"{", b"[", b"<")
_EVENT_STARTS = (b"data:", b"event:", b":")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class ResponseBody:
    """A reader of one body; its first bytes decide, since content types are often wrong."""

    def __init__(
        self,
        api: ProviderApi,
        content_type: str,
        address: str = "",
        *,
        schema: Mapping[str, Any] | None = None,
    ) -> None:
        self._api = api
        self._is_page = content_type.startswith("text/html")
        self._address = address
        self._schema = schema
        self._parser = EventParser()
        self._reader = api.reader()
        self._streams: bool | None = None if "event-stream" in content_type else False
        self._waiting: list[bytes] = []
        self._size = 0
        self._streamed: set[type[Delta]] = set()
        self._is_complete = False
        self.ended = False

    @property
    def has_begun(self) -> bool:
        """True once a piece of the answer has arrived, or an answer that ended in an error."""
        return self._is_complete or bool(self._streamed)

    def feed(self, chunk: bytes) -> list[Delta]:
        """Read some bytes; return the text and the reasoning that they add."""
        self._size += len(chunk)
        if self._size > MAX_RESPONSE_BYTES:
            raise ResponseValidationError(f"the response is longer than {MAX_RESPONSE_BYTES:,} bytes")
        if self._streams is None and (start := chunk.lstrip()):
            self._streams = not start.startswith(_DOCUMENT_STARTS)
        if self._streams is not False and (b"\n" in chunk or b"\r" in chunk):
            return self._read(self._parser.feed(self._take_waiting() + chunk))
        # Part of a document, or of an unfinished line: read once, when it is complete.
        self._waiting.append(chunk)
        return []

    def finish(self) -> list[Delta | ModelResponse]:
        """Return the pieces that are left, and last the complete response."""
        rest = self._take_waiting()
        deltas: list[Delta] = []
        if self._streams is False and not rest.lstrip().startswith(_EVENT_STARTS):
            complete = self._read_document(rest)
        else:
            deltas += self._read([*self._parser.feed(rest), *self._parser.close()])
            complete = self._reader.finish()
        self._is_complete = True
        if complete.finish_reason is FinishReason.ERROR:
            reason = complete.source.finish_word if complete.source else None
            raise ModelError(f"the model ended its answer with an error: {reason}")
        if len(complete.text) <= SLICE:  # A longer one is repaired by the loop, in several turns.
            complete = normalize_response(complete)
        if self._schema is not None:
            _refuse_misfit(complete, self._schema)
        if complete.reasoning and ReasoningDelta not in self._streamed:
            deltas.append(ReasoningDelta(complete.reasoning))
        if complete.text and TextDelta not in self._streamed:
            deltas.append(TextDelta(complete.text))
        return [*deltas, complete]

    def _take_waiting(self) -> bytes:
        waiting = b"".join(self._waiting)
        self._waiting.clear()
        return waiting

    def _read(self, events: Iterable[ServerEvent]) -> list[Delta]:
        deltas: list[Delta] = []
        for event in events:
            if self.ended:
                break
            for delta in self._reader.read(event.name, event.data):
                deltas.append(delta)
                self._streamed.add(type(delta))
            self.ended = self._reader.ended
        return deltas

    def _read_document(self, body: bytes) -> ModelResponse:
        start = body.lstrip()
        if not start:
            raise ResponseValidationError("the response is empty")
        if start.startswith(b"<") or (self._is_page and not start.startswith(_DOCUMENT_STARTS)):
            page = shortened(start[:800].decode("utf-8", "replace"), 120)
            at = (
                f"{self._address} answered with a web page" if self._address else "the response is a web page"
            )
            raise ModelError(f"{at}, so check the address: {page}", retryable=False)
        return self._api.decode(body)


def _refuse_misfit(response: ModelResponse, schema: Mapping[str, Any]) -> None:
    """Refuse an answer that does not fit its schema, unless it was cut off."""
    if response.tool_calls or response.finish_reason is not FinishReason.STOP:
        return
    try:
        problem = problem_with(msgspec.json.decode(response.text), schema)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        problem = f"it is not JSON: {shortened(response.text, 80)!r}"
    if problem is not None:
        raise ResponseValidationError(f"the answer does not fit the requested schema: {problem}")


class ServerEvent(NamedTuple):
    """One event: its name (often empty) and its data."""

    name: str
    data: bytes


class EventParser:
    """A parser of server-sent events from chunks of bytes, which may end anywhere.

    Lines end with LF, CR LF or CR; comments, ids and retry times are ignored; data of several lines is
    joined with LF, as the standard says.
    """

    def __init__(self) -> None:
        self._begun = False
        self._pending: list[bytes] = []
        self._name = ""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        """Return the events that this chunk completes."""
        begun = self._pending[-1] if self._pending else b""
        if self._begun and not (b"\n" in chunk or b"\r" in chunk or begun.endswith(b"\r")):
            self._pending.append(chunk)
            return []
        text = b"".join([*self._pending, chunk])
        if not self._begun and text:
            if _BYTE_ORDER_MARK.startswith(text):
                self._pending = [text]
                return []
            text = text.removeprefix(_BYTE_ORDER_MARK)
            self._begun = True
        if b"\r" in text:
            # A CR at the very end may be half of a CR LF: it waits for the next chunk.
            held = b"\r" if text.endswith(b"\r") else b""
            text = text.removesuffix(b"\r").replace(b"\r\n", b"\n").replace(b"\r", b"\n") + held
        *lines, rest = text.split(b"\n")
        self._pending = [rest]
        events = []
        for line in lines:
            if line:
                self._take(line)
            elif self._data:
                events.append(self._complete())
            else:
                self._name = ""
        return events

    def close(self) -> list[ServerEvent]:
        """Return the event that was complete but for its blank line, if there is one."""
        if rest := b"".join(self._pending):
            self._take(rest.rstrip(b"\r"))
            self._pending = []
        return [self._complete()] if self._data else []

    def _take(self, line: bytes) -> None:
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._name = value.decode("utf-8", "replace")

    def _complete(self) -> ServerEvent:
        event = ServerEvent(self._name, self._data[0] if len(self._data) == 1 else b"\n".join(self._data))
        self._name, self._data = "", []
        return event


# Errors

# The statuses of errors inside a stream, which have none.
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
_MAX_LENGTH = 100_000  # The length of a message before it is shortened.


def http_error(
    status: int, headers: Mapping[str, str], body: bytes, secrets: Iterable[str] = ()
) -> ModelError:
    """Return the error for a response with an error status.

    Header names are in lower case.
    """
    document = _decoded(body)
    # Secrets are removed before anything is cut: half a key would not be recognized.
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
    """Return the error for a failure reported inside a stream.

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
    """Return the seconds that the provider asks to wait, from any unit."""
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
    # With the provider's own date, a difference between the clocks does not matter.
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
    """Return the error object; each provider puts it elsewhere."""
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
    """Return the provider's id of this request, if it is next to the error."""
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
