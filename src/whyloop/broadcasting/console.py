"""A run as it happens, one line an event."""

from __future__ import annotations

import json as json_format
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from whyloop.broadcasting.adapter import Envelope
from whyloop.values.text import shortened

WIDTH = 160


class AgentConsoleLogger:
    """A transport that writes to a stream: a readable line for each envelope, or its JSON.

    Nothing in a line can steer a terminal, and a stream that is closed or broken breaks no run. It
    writes while the run waits: a pipe that is full, since nobody reads it, holds the run up.
    """

    def __init__(self, stream: TextIO | None = None, *, json: bool = False, width: int = WIDTH) -> None:
        self._stream = stream
        self._json = json
        self._width = width
        self._dropped: Counter[str] = Counter()

    @property
    def dropped(self) -> Mapping[str, int]:
        """How many envelopes of each event could not be written."""
        return dict(self._dropped)

    def broadcast(self, event: Envelope) -> None:
        """Write one envelope."""
        try:
            line = _document(event) if self._json else _line(event, self._width)
            # Looked up each time: tests and notebooks put another stream in its place.
            stream = sys.stderr if self._stream is None else self._stream
            stream.write(_writable(line, stream) + "\n")
            stream.flush()
        except Exception:
            self._dropped[str(event.get("event", ""))] += 1

    def broadcast_batch(self, events: Sequence[Envelope]) -> None:
        """Write envelopes, one after the other."""
        for event in events:
            self.broadcast(event)


def _document(event: Envelope) -> str:
    """The envelope as JSON in plain ASCII, which no terminal mistakes for anything else."""
    return json_format.dumps(event, default=repr)


def _line(event: Envelope, width: int) -> str:
    kind = str(event["event"])
    when = str(event["timestamp"])[11:23]
    whose = str(event["agent_id"])[:8]
    what = _WORDS.get(kind, str)(event["data"])
    line = f"{when} [{whose}] {event['seq']:>3} {kind.removeprefix('agent.'):<14} {what}"
    return _on_one_line(line[: 4 * width], width)


def _on_one_line(text: str, width: int) -> str:
    # Line ends become spaces, whatever else cannot be printed becomes visible. The columns stay.
    seen = "".join(char if char.isprintable() else " " if char.isspace() else "�" for char in text)
    return seen.rstrip() if len(seen) <= width else seen[: width - 1] + "…"


def _writable(line: str, stream: TextIO) -> str:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return line.encode(encoding, "backslashreplace").decode(encoding)


def _status(data: Mapping[str, Any]) -> str:
    reason = f" ({data['stop_reason']})" if data["stop_reason"] else ""
    ending = data["error_message"] or data["last_response"]
    words = f": {shortened(ending, 80)}" if ending else ""
    return f"{data['previous_status']} → {data['status']}{reason}{words}"


def _step_started(data: Mapping[str, Any]) -> str:
    return f"step {data['step_number']}, {data['message_count']} messages"


def _step_completed(data: Mapping[str, Any]) -> str:
    verdict = data["continuation"]
    then = "CONTINUE" if verdict["should_continue"] else f"STOP ({verdict['stop_reason'] or 'waiting'})"
    errors = f", {data['errors']} errors" if data["errors"] else ""
    tokens = data["usage"]["total"]
    return f"step {data['step_number']}, {data['duration_ms']:.0f} ms, {tokens} tokens{errors}: {then}"


def _tool_started(data: Mapping[str, Any]) -> str:
    return f"{data['tool']}({data.get('args_summary', data.get('args'))})"


def _tool_completed(data: Mapping[str, Any]) -> str:
    ending = data["result_summary"] if data["success"] else f"FAILED: {data['error']}"
    return f"{data['tool']}, {data['duration_ms']:.0f} ms: {ending}"


def _chunk(data: Mapping[str, Any]) -> str:
    return "(complete)" if data["is_complete"] else f"{data['chunk']!r}"


def _continuation(data: Mapping[str, Any]) -> str:
    then = "CONTINUE" if data["should_continue"] else f"STOP ({data['stop_reason'] or 'waiting'})"
    return f"{then} by {data['resolved_by']}"


_WORDS = {
    "agent.status": _status,
    "agent.step.started": _step_started,
    "agent.step.completed": _step_completed,
    "agent.tool.started": _tool_started,
    "agent.tool.completed": _tool_completed,
    "agent.stream.chunk": _chunk,
    "agent.continuation": _continuation,
}
