"""A response body, put together as it comes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from whyloop.errors import ResponseValidationError
from whyloop.models.sse import EventParser, ServerEvent
from whyloop.models.tidy import refuse_misfit, tidied
from whyloop.models.wire import WireFormat
from whyloop.rules.written_calls import VisibleText, written_call
from whyloop.values.model import Delta, ModelResponse, ReasoningDelta, TextDelta, ToolSpec
from whyloop.values.text import shortened

# Far more than any answer, and little enough for one that never ends to do no harm.
MAX_RESPONSE_BYTES = 64 * 1024 * 1024

_DOCUMENT_STARTS = (b"{", b"[", b"<")
_EVENT_STARTS = (b"data:", b"event:", b":")


class Answer:
    """Reads one body: server-sent events, or a document in one piece.

    Hosts are not always right about which of the two they send, so its first bytes are looked at.
    """

    def __init__(
        self,
        wire: WireFormat,
        content_type: str,
        *,
        tools: Sequence[ToolSpec] = (),
        schema: Mapping[str, Any] | None = None,
    ) -> None:
        self._wire = wire
        self._schema = schema
        self._parser = EventParser()
        self._reader = wire.reader()
        self._streams: bool | None = None if "event-stream" in content_type else False
        self._waiting: list[bytes] = []
        self._size = 0
        self._shown = 0
        self._thought = False
        self._tools = [spec.name for spec in tools]
        # Where no tools were offered nothing can be a call, and all text is shown as it comes.
        self._visible = VisibleText(tools) if tools else None
        self.ended = False

    def feed(self, chunk: bytes) -> list[Delta]:
        """Take some bytes; return what they add to the visible text and to the reasoning."""
        self._size += len(chunk)
        if self._size > MAX_RESPONSE_BYTES:
            raise ResponseValidationError(f"the response is longer than {MAX_RESPONSE_BYTES:,} bytes")
        if self._streams is None and (start := chunk.lstrip()):
            self._streams = not start.startswith(_DOCUMENT_STARTS)
        if self._streams is not False and (b"\n" in chunk or b"\r" in chunk):
            return self._read(self._parser.feed(self._taken() + chunk))
        # Part of a document, or of a line whose end is still to come: looked at once, when it is there.
        self._waiting.append(chunk)
        return []

    def finish(self) -> list[Delta | ModelResponse]:
        """Return the rest of the visible text, and last the complete response."""
        rest = self._taken()
        deltas: list[Delta] = []
        if self._streams is False and not rest.lstrip().startswith(_EVENT_STARTS):
            complete = self._document(rest)
        else:
            deltas += self._read([*self._parser.feed(rest), *self._parser.close()])
            complete = self._reader.finish()
        complete = tidied(complete)
        if self._schema is not None:
            refuse_misfit(complete, self._schema)
        if complete.reasoning and not self._thought:
            deltas.append(ReasoningDelta(complete.reasoning))
        # What was held back until it was clear that it is language, or did not come in pieces.
        unseen = complete.text[self._shown :]
        if unseen and written_call(complete.text, self._tools) is None:
            deltas.append(TextDelta(unseen))
        return [*deltas, complete]

    def _taken(self) -> bytes:
        waiting = b"".join(self._waiting)
        self._waiting.clear()
        return waiting

    def _read(self, events: Iterable[ServerEvent]) -> list[Delta]:
        deltas: list[Delta] = []
        for event in events:
            if self.ended:
                break
            for delta in self._reader.read(event.name, event.data):
                if isinstance(delta, ReasoningDelta):
                    self._thought = True
                    deltas.append(delta)
                    continue
                text = delta.text if self._visible is None else self._visible.add(delta.text)
                if text:
                    deltas.append(TextDelta(text))
                    self._shown += len(text)
            self.ended = self._reader.ended
        return deltas

    def _document(self, body: bytes) -> ModelResponse:
        start = body.lstrip()
        if not start:
            raise ResponseValidationError("the response is empty")
        if start.startswith(b"<"):
            page = shortened(start[:800].decode("utf-8", "replace"), 120)
            raise ResponseValidationError(f"the response is a web page, so check the address: {page}")
        return self._wire.decode(body)
