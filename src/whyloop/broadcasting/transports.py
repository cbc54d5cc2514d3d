"""Transports for envelopes: the protocol, the adapter, several at once, queues, and lines on a console."""

from __future__ import annotations

import asyncio
import json as json_format
import queue
import sys
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any, Protocol, TextIO, runtime_checkable

from whyloop.errors import ConfigurationError
from whyloop.events import AgentEvent
from whyloop.logger import Logger
from whyloop.values.approval import Verdict
from whyloop.values.price import dollars
from whyloop.values.text import counted, short_id
from whyloop.wire.envelope import BroadcastConfig, envelope

_log = Logger()

Envelope = Mapping[str, Any]
AnyQueue = asyncio.Queue[Any] | queue.Queue[Any]

CHUNK = "agent.stream.chunk"
DEFAULT_CAPACITY = 1000


@runtime_checkable
class CanBroadcastAgentEvents(Protocol):
    """A transport, which takes envelopes and returns at once."""

    def broadcast(self, event: Envelope) -> None:
        """Send one envelope.

        Args:
            event: The envelope.
        """

    def broadcast_batch(self, events: Sequence[Envelope]) -> None:
        """Send several envelopes.

        Args:
            events: The envelopes, in order.
        """


@runtime_checkable
class AuthorizesChannels(Protocol):
    """A transport with private channels, such as a `PusherBroadcaster`."""

    def session_of(self, channel_name: str) -> str: ...

    def authorize(
        self, socket_id: str, channel_name: str, *, user: Mapping[str, Any] | None = None
    ) -> dict[str, str]: ...


class AgentEventEnvelopeAdapter:
    """An event handler that turns events into envelopes and passes them to a transport.

    It has no state: the number of an envelope is that of its event, so any number of adapters, in any
    process, send the same. The events of agents inside another agent's tool are sent only with `nested`: they
    belong to another session, and the tool call around them is sent anyway.

    Args:
        transport: The transport that gets the envelopes.
        session_id: The id of the session on the wire. Default: the `agent_id` of each event.
        nested: True to send the events of agents inside tools too. Default: False.
        config: What envelopes contain. Default: `BroadcastConfig.standard()`.
    """

    def __init__(
        self,
        transport: CanBroadcastAgentEvents,
        config: BroadcastConfig | None = None,
        *,
        session_id: str | None = None,
        nested: bool = False,
    ) -> None:
        self._transport = transport
        self._config = config or BroadcastConfig.standard()
        self._session_id = session_id
        self._nested = nested

    def __call__(self, event: AgentEvent) -> None:
        """Send an event.

        Pass the adapter to an agent as its `event_handler`, or to `subscribe`.
        """
        written = self.envelope(event)
        if written is not None:
            self._transport.broadcast(written)

    def envelope(self, event: AgentEvent) -> dict[str, Any] | None:
        """Return the envelope of an event; None if it is not sent."""
        if event.parent_agent_id is not None and not self._nested:
            return None
        return envelope(event, self._config, self._session_id)


class FanOut:
    """A transport that passes each envelope to several others. The error of one is logged, and does not
    affect the others.

    Args:
        *transports: The transports, in order.
    """

    def __init__(self, *transports: CanBroadcastAgentEvents) -> None:
        self._transports = transports

    def broadcast(self, event: Envelope) -> None:
        """Pass one envelope to each transport."""
        self.broadcast_batch((event,))

    def broadcast_batch(self, events: Sequence[Envelope]) -> None:
        """Pass envelopes to each transport."""
        for transport in self._transports:
            try:
                transport.broadcast_batch(events)
            except Exception:
                _log.exception("a transport failed: %r", transport)


class QueueBroadcaster:
    """A transport that puts envelopes into your queue, and never waits for it.

    The queue holds as many as its `maxsize` and `capacity` allow. If the queue is full, chunks are dropped,
    and any other envelope replaces the oldest one. Use an `asyncio.Queue` on its own event loop only.

    Args:
        queue: An `asyncio.Queue` or a `queue.Queue`.
        capacity: The number of envelopes that it may hold. Default: the queue's `maxsize`, else 1000.
    """

    def __init__(self, queue: AnyQueue, capacity: int | None = None) -> None:
        if capacity is not None and capacity < 1:
            raise ConfigurationError(f"invalid capacity {capacity}: use 1 or more")
        self._queue = queue
        largest = queue.maxsize if queue.maxsize > 0 else capacity or DEFAULT_CAPACITY
        self._capacity = min(capacity or largest, largest)
        self._lock = threading.Lock()
        self._dropped: Counter[str] = Counter()

    @property
    def dropped(self) -> Mapping[str, int]:
        """The number of dropped envelopes of each event."""
        return dict(self._dropped)

    def broadcast(self, event: Envelope) -> None:
        """Put one envelope into the queue."""
        with self._lock:
            is_full = self._queue.qsize() >= self._capacity
            if is_full and event.get("event") == CHUNK:
                self._drop(event)
                return
            oldest = self._take_oldest() if is_full else None
            try:
                self._queue.put_nowait(event)
            except (asyncio.QueueFull, queue.Full):  # Other code fills the queue as well.
                self._drop(event)
            if oldest is not None:
                self._drop(oldest)
                self._queue.task_done()  # Only now, so that the queue never seems to be done in between.

    def broadcast_batch(self, events: Sequence[Envelope]) -> None:
        """Put envelopes into the queue, one after the other."""
        for event in events:
            self.broadcast(event)

    def _take_oldest(self) -> Envelope | None:
        with suppress(asyncio.QueueEmpty, queue.Empty):  # A reader in another thread was faster.
            oldest: Envelope = self._queue.get_nowait()
            return oldest
        return None

    def _drop(self, event: Envelope) -> None:
        self._dropped[str(event.get("event", ""))] += 1


# Lines on a console

WIDTH = 160


class AgentConsoleLogger:
    """A transport that writes to a stream: a readable line for each envelope, or its JSON.

    A line about the end of a run names the deciding rule and its reason. Nothing in a line can control a
    terminal, and a closed or broken stream does not affect a run. The run waits for each line, so a full pipe
    delays it.

    Args:
        stream: The stream. Default: stderr.
        json: True to write each envelope as JSON. Default: False.
        width: The maximum length of a line.
    """

    def __init__(self, stream: TextIO | None = None, *, json: bool = False, width: int = WIDTH) -> None:
        self._stream = stream
        self._json = json
        self._width = width
        self._dropped: Counter[str] = Counter()
        self._denied: set[tuple[str, str]] = set()

    @property
    def dropped(self) -> Mapping[str, int]:
        """The number of envelopes of each event that could not be written."""
        return dict(self._dropped)

    def broadcast(self, event: Envelope) -> None:
        """Write one envelope."""
        try:
            line = (
                _document(event) if self._json else _line(event, self._width, is_denied=self._denial(event))
            )
            # Looked up each time, because tests and notebooks replace the stream.
            stream = sys.stderr if self._stream is None else self._stream
            stream.write(_writable(line, stream) + "\n")
            stream.flush()
        except Exception:
            self._dropped[str(event.get("event", ""))] += 1

    def broadcast_batch(self, events: Sequence[Envelope]) -> None:
        """Write envelopes, one after the other."""
        for event in events:
            self.broadcast(event)

    def _denial(self, event: Envelope) -> bool:
        """Return whether an envelope ends a denied call, which is not a failure."""
        kind, data = event["event"], event["data"]
        if kind not in ("agent.approval.decided", "agent.tool.completed") or data["tool_call_id"] is None:
            return False  # A question without a call is about the run itself.
        call = str(event["agent_id"]), str(data["tool_call_id"])
        if kind == "agent.approval.decided":
            if data["verdict"] == Verdict.DENIED:
                self._denied.add(call)
            return False
        is_denied = call in self._denied
        self._denied.discard(call)
        return is_denied


def _document(event: Envelope) -> str:
    """Return the envelope as JSON in plain ASCII, which is safe on a terminal."""
    return json_format.dumps(event, default=repr)


def _line(event: Envelope, width: int, *, is_denied: bool) -> str:
    kind = str(event["event"])
    when = str(event["timestamp"])[11:23]
    session = short_id(str(event["agent_id"]))
    what = _tool_denied(event["data"]) if is_denied else _TEXTS.get(kind, str)(event["data"])
    line = f"{when} [{session}] {event['seq']:>3} {kind.removeprefix('agent.'):<18} {what}"
    return _on_one_line(line[: 4 * width], width)


def _on_one_line(text: str, width: int) -> str:
    # Line ends become spaces, and other unprintable characters become visible. The columns stay aligned.
    seen = "".join(char if char.isprintable() else " " if char.isspace() else "�" for char in text)
    return seen.rstrip() if len(seen) <= width else seen[: width - 1] + "…"


def _writable(line: str, stream: TextIO) -> str:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return line.encode(encoding, "backslashreplace").decode(encoding)


def _status(data: Mapping[str, Any]) -> str:
    return f"{data['previous_status']} → {data['status']}{_why(data)}"


def _why(data: Mapping[str, Any]) -> str:
    """Return why a run ended: the stop reason, the rule and its reason."""
    ended = f" ({data['stop_reason']})" if data["stop_reason"] else ""
    reason = data.get("error_message") or data["reason"]  # The error is the reason with the last failure.
    return f"{ended} by {data['resolved_by']}: {reason}" if data["resolved_by"] else ended


def _step_started(data: Mapping[str, Any]) -> str:
    messages, tools = counted(data["message_count"], "message"), counted(len(data["available_tools"]), "tool")
    if "wrap_up" in data:
        return f"wrap-up started ({messages}), {data['wrap_up']} ended the run"
    return f"step {data['step_number']} started ({messages}, {tools})"


def _step_completed(data: Mapping[str, Any]) -> str:
    """Return what the step used.

    The status envelope that follows says why a run ended.
    """
    verdict = data["continuation"]
    then = f": CONTINUE by {verdict['resolved_by']}" if verdict["should_continue"] else ""
    errors = f", {counted(data['errors'], 'error')}" if data["errors"] else ""
    cost = data["usage"].get("cost")
    spent = "" if cost is None else f", {dollars(Decimal(cost))}"
    used = f"{data['duration_ms']:.0f} ms, {counted(data['usage']['total'], 'token')}{spent}{errors}"
    step = "wrap-up" if "wrap_up" in data else f"step {data['step_number']}"
    return f"{step} completed ({used}){then}"


def _tool_started(data: Mapping[str, Any]) -> str:
    return f"{data['tool']}({_arguments(data)}){_changes(data)}"


def _arguments(data: Mapping[str, Any]) -> object:
    return data["args_summary"] if "args_summary" in data else data["args"]


def _changes(data: Mapping[str, Any]) -> str:
    return f" changed by {', '.join(data['changed_by'])}" if "changed_by" in data else ""


def _tool_completed(data: Mapping[str, Any]) -> str:
    ending = data["result_summary"] if data["success"] else f"FAILED: {data['error']}"
    return f"{data['tool']} ({data['duration_ms']:.0f} ms){_changes(data)}: {ending}"


def _tool_denied(data: Mapping[str, Any]) -> str:
    return f"{data['tool']}{_changes(data)}: {data['error']}"


def _approval_requested(data: Mapping[str, Any]) -> str:
    call = f": {data['tool']}({_arguments(data)}){_changes(data)}" if data["tool"] is not None else ""
    return f"{data['question']} (question {short_id(data['question_id'])}){call}"


def _approval_decided(data: Mapping[str, Any]) -> str:
    reason = f": {data['reason']}" if data["reason"] else ""
    about = "the run" if data["tool"] is None else data["tool"]
    return f"{about} {data['verdict']} by {data['by']}{reason} (question {short_id(data['question_id'])})"


def _retry(data: Mapping[str, Any]) -> str:
    wait = f" in {data['wait_seconds']:.1f} s" if data["wait_seconds"] else ""
    error = f"{data['error_type']} error".replace("_", " ").capitalize()
    return f"{error}, retrying ({data['attempt']}/{data['max']}){wait}"


def _chunk(data: Mapping[str, Any]) -> str:
    if data["is_complete"]:
        return "(complete)"
    return repr(data["chunk"]) if data["kind"] == "text" else f"{data['kind']} {data['chunk']!r}"


def _continuation(data: Mapping[str, Any]) -> str:
    by, evaluation = data["resolved_by"], _deciding(data)
    reason = f": {evaluation['reason']}" if evaluation else ""
    if data["should_continue"]:
        verb = "requested" if evaluation and evaluation["decision"] == "request" else "allowed"
        return f"CONTINUE ({verb} by {by}){reason}"
    verb = f"STOP ({data['stop_reason']})" if data["stop_reason"] else "PAUSE"
    return f"{verb} by {by}{reason}"


def _deciding(data: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the evaluation that decided.

    If one rule has several, it is the first that agrees with the outcome.
    """
    named = [e for e in data["evaluations"] if e["criterion"] == data["resolved_by"]]
    agreeing = ("request", "allow") if data["should_continue"] else ("forbid", "stop")
    return next((e for e in named if e["decision"] in agreeing), named[0] if named else None)


def _event(data: Mapping[str, Any]) -> str:
    fields = data["fields"]
    match data["name"]:
        case "AgentExecutionFinished":
            return f"execution {fields['status']}{_why(fields)}"
        case "AgentExecutionFailed":
            return f"execution failed{_why({**fields, 'reason': fields['error']})}"
    shown = ", ".join(f"{name}={value}" for name, value in fields.items() if value is not None)
    return f"{data['name']}({shown})"


_TEXTS = {
    "agent.status": _status,
    "agent.step.started": _step_started,
    "agent.step.completed": _step_completed,
    "agent.tool.started": _tool_started,
    "agent.tool.completed": _tool_completed,
    "agent.approval.requested": _approval_requested,
    "agent.approval.decided": _approval_decided,
    "agent.retry": _retry,
    "agent.stream.chunk": _chunk,
    "agent.continuation": _continuation,
    "agent.event": _event,
}
