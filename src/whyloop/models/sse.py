"""Server-sent events, read from chunks of bytes that end anywhere."""

from __future__ import annotations

from typing import NamedTuple


class ServerEvent(NamedTuple):
    """One event: its name (often empty) and its data."""

    name: str
    data: bytes


_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class EventParser:
    """Collects bytes and gives back the events that are complete.

    Lines end with LF, CR LF or CR; comments, ids and retry times are passed over; data that spans
    several lines is joined with LF, as the standard says.
    """

    def __init__(self) -> None:
        self._begun = False
        self._pending = b""
        self._name = ""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        """The events that this chunk completes."""
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
        """The event that was complete but for its blank line, if there is one."""
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
