"""The body of a response, read while it arrives: server-sent events or a document."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from whyloop.errors import ModelError, ResponseValidationError
from whyloop.models.provider import ProviderApi
from whyloop.rules.classification import normalize_response
from whyloop.tools.schema import problem_with
from whyloop.values.model import Delta, FinishReason, ModelResponse, ReasoningDelta, TextDelta
from whyloop.values.text import shortened

# Far more than any answer, and little enough for one that never ends to do no harm.
MAX_RESPONSE_BYTES = 64 * 1024 * 1024

_DOCUMENT_STARTS = (b"{", b"[", b"<")
_EVENT_STARTS = (b"data:", b"event:", b":")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class ResponseBody:
    """Reads one body; its first bytes decide, since content types are often wrong."""

    def __init__(
        self,
        api: ProviderApi,
        content_type: str,
        *,
        schema: Mapping[str, Any] | None = None,
    ) -> None:
        self._api = api
        self._schema = schema
        self._parser = EventParser()
        self._reader = api.reader()
        self._streams: bool | None = None if "event-stream" in content_type else False
        self._waiting: list[bytes] = []
        self._size = 0
        self._streamed: set[type[Delta]] = set()
        self.ended = False

    def feed(self, chunk: bytes) -> list[Delta]:
        """Take some bytes; return the text and the reasoning that they add."""
        self._size += len(chunk)
        if self._size > MAX_RESPONSE_BYTES:
            raise ResponseValidationError(f"the response is longer than {MAX_RESPONSE_BYTES:,} bytes")
        if self._streams is None and (start := chunk.lstrip()):
            self._streams = not start.startswith(_DOCUMENT_STARTS)
        if self._streams is not False and (b"\n" in chunk or b"\r" in chunk):
            return self._read(self._parser.feed(self._take_waiting() + chunk))
        # Part of a document, or of a line whose end is still to come: read once, when it is complete.
        self._waiting.append(chunk)
        return []

    def finish(self) -> list[Delta | ModelResponse]:
        """Return what did not arrive in pieces, and last the complete response."""
        rest = self._take_waiting()
        deltas: list[Delta] = []
        if self._streams is False and not rest.lstrip().startswith(_EVENT_STARTS):
            complete = self._read_document(rest)
        else:
            deltas += self._read([*self._parser.feed(rest), *self._parser.close()])
            complete = self._reader.finish()
        if complete.finish_reason is FinishReason.ERROR:
            reason = complete.source.finish_word if complete.source else None
            raise ModelError(f"the model ended its answer with an error: {reason}")
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
        if start.startswith(b"<"):
            page = shortened(start[:800].decode("utf-8", "replace"), 120)
            raise ResponseValidationError(f"the response is a web page, so check the address: {page}")
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
        raise ResponseValidationError(f"the answer does not fit the schema that was asked for: {problem}")


class ServerEvent(NamedTuple):
    """One event: its name (often empty) and its data."""

    name: str
    data: bytes


class EventParser:
    """Reads server-sent events from chunks of bytes that end anywhere.

    Lines end with LF, CR LF or CR; comments, ids and retry times are ignored; data of several lines is
    joined with LF, as the standard says.
    """

    def __init__(self) -> None:
        self._begun = False
        self._pending = b""
        self._name = ""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        """Return the events that this chunk completes."""
        text = self._pending + chunk
        if not self._begun and text:
            if _BYTE_ORDER_MARK.startswith(text):
                self._pending = text
                return []
            text = text.removeprefix(_BYTE_ORDER_MARK)
            self._begun = True
        if b"\r" in text:
            # A CR at the very end may be half of a CR LF: it waits for the next chunk.
            held = b"\r" if text.endswith(b"\r") else b""
            text = text.removesuffix(b"\r").replace(b"\r\n", b"\n").replace(b"\r", b"\n") + held
        *lines, self._pending = text.split(b"\n")
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
        if self._pending:
            self._take(self._pending.rstrip(b"\r"))
            self._pending = b""
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
