"""A run as a UI message stream of the Vercel AI SDK, for pages with `useChat`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import takewhile
from typing import Any, Literal

import msgspec

from whyloop.events import AgentEvent
from whyloop.values.continuation import StopReason
from whyloop.values.model import FinishReason
from whyloop.values.redaction import DEFAULT_REDACTION, Redaction
from whyloop.values.state import AgentState, AgentStatus
from whyloop.values.text import clean
from whyloop.wire.protocol_stream import ProtocolStream, TextKind
from whyloop.wire.stream_values import LARGEST_COUNT, Call, Result, RunEnd, query_id, query_of

Data = dict[str, Any]
SdkVersion = Literal[5, 6, 7]

HEADERS = {
    "content-type": "text/event-stream",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
    "x-vercel-ai-ui-message-stream": "v1",
}
"""The headers of a response whose body is such a stream."""

DONE = "data: [DONE]\n\n"
"""The last line of a stream."""

CONTINUATION = "data-whyloop-continuation"
"""The type of the part with the outcome of every step: why the run continues or stops."""

QUESTION = "data-whyloop-question"
"""The type of the part with a question about the run itself, which a person must answer first."""

DECISION = "data-whyloop-decision"
"""The type of the part with a person's answer to a question."""

_CUT_OFF = {FinishReason.LENGTH: "length", FinishReason.CONTENT_FILTER: "content-filter"}


class VercelStream(ProtocolStream[Data]):
    """A stream that turns the events of one run into a UI message stream.

    An execution is one message, even when it is resumed after a pause. `sdk_version` is the client's major
    version: version 5 knows no approvals and refuses every part that it does not know, so there a question
    about a call is a part of its own, as one about the run is.

    Args:
        agent_id: The session whose run is streamed. Default: that of the first event.
        resumed: The state with which the run is resumed, if it is. Default: None.
        sdk_version: The major version of the client's AI SDK: 5, 6 or 7. Default: 6.
        redaction: Which texts are secret; None for none. Default: `Redaction()`.
    """

    def __init__(
        self,
        *,
        agent_id: str | None = None,
        resumed: AgentState | None = None,
        sdk_version: SdkVersion = 6,
        redaction: Redaction | None = DEFAULT_REDACTION,
    ) -> None:
        super().__init__(agent_id=agent_id, resumed=resumed, redaction=redaction)
        self._knows_approvals = sdk_version >= 6

    def _run_begins(self, event: AgentEvent) -> Iterator[Data]:
        yield {"type": "start", "messageId": clean(event.execution_id)}

    def _step_begins(self, number: int, continued: bool) -> Iterator[Data]:
        # A decision about a call goes to the part of that call, if it is in the last step.
        if not continued:
            yield {"type": "start-step"}

    def _step_ends(self, number: int) -> Iterator[Data]:
        yield {"type": "finish-step"}

    def _text_begins(self, kind: TextKind, text_id: str) -> Iterator[Data]:
        yield {"type": f"{kind}-start", "id": text_id}

    def _text_continues(self, kind: TextKind, text_id: str, text: str) -> Iterator[Data]:
        yield {"type": f"{kind}-delta", "id": text_id, "delta": text}

    def _text_ends(self, kind: TextKind, text_id: str) -> Iterator[Data]:
        yield {"type": f"{kind}-end", "id": text_id}

    def _call_begins(self, call: Call) -> Iterator[Data]:
        if call.known and call.arguments is None:
            return  # The client already has the call with its input, which this would replace.
        about: Data = {"toolCallId": call.stream_id, "toolName": call.name}
        if not call.known:
            yield {"type": "tool-input-start", **about}
        if call.changed_by:
            about["providerMetadata"] = {"whyloop": {"changed_by": list(call.changed_by)}}
        yield {"type": "tool-input-available", **about, "input": _harmless(call.arguments)}

    def _call_ends(self, result: Result) -> Iterator[Data]:
        about = {"toolCallId": result.stream_id}
        if result.error is None:
            yield {"type": "tool-output-available", **about, "output": as_data(result.text)}
        elif result.denied and self._knows_approvals:
            yield {"type": "tool-output-denied", **about}
        else:
            yield {"type": "tool-output-error", **about, "errorText": result.error}

    def _waits(self, question_id: str, question: str, stream_id: str | None) -> Iterator[Data]:
        about = {"toolCallId": stream_id} if stream_id is not None else {}
        if about and self._knows_approvals:
            descriptor = {"question": question}
            yield {
                "type": "tool-approval-request",
                "approvalId": question_id,
                **about,
                "approvalDescriptor": descriptor,
            }
        else:
            yield {"type": QUESTION, "id": question_id, "data": {"question": question, **about}}

    def _decided(self, decision: Data) -> Iterator[Data]:
        yield {"type": DECISION, "id": decision["question_id"], "data": decision}

    def _evaluated(self, step: int, verdict: Data) -> Iterator[Data]:
        yield {"type": CONTINUATION, "id": self._message_id(step), "data": verdict}

    def _run_ends(self, ending: RunEnd) -> Iterator[Data]:
        # Clients read no further than an error, so everything else comes before it.
        yield {"type": "message-metadata", "messageMetadata": {"whyloop": ending.summary()}}
        is_old = not self._knows_approvals
        if ending.stop_reason is StopReason.USER_REQUESTED:
            reason = clean(ending.reason or "")
            yield {"type": "abort"} if is_old else {"type": "abort", "reason": reason}
            return
        if ending.status is AgentStatus.FAILED:
            yield {"type": "error", "errorText": ending.error_message or "The run failed"}
        yield {"type": "finish"} if is_old else {"type": "finish", "finishReason": _finish_reason(ending)}


def sse(part: Data) -> str:
    """Return a part as a server-sent event."""
    return f"data: {msgspec.json.encode(part).decode()}\n\n"


def is_end(part: Data) -> bool:
    """Return whether a part belongs to the end of a run."""
    return part["type"] in ("message-metadata", "error", "abort", "finish")


class VercelHistory:
    """The messages of a session's runs, for a page that is loaded again."""

    def __init__(self, sdk_version: SdkVersion = 6, redaction: Redaction | None = DEFAULT_REDACTION) -> None:
        self.messages: list[Data] = []
        self._sdk_version = sdk_version
        self._redaction = redaction

    def add_query(self, run: Iterable[AgentEvent]) -> None:
        """Add the user's message that a run works on, if it is not a resumed one."""
        begun = query_of(run)
        if begun is not None and begun.query is not None:
            parts = [{"type": "text", "text": clean(begun.query.text)}]
            self.messages.append({"id": query_id(begun.execution_id), "role": "user", "parts": parts})

    def add_run(self, run: Iterable[AgentEvent]) -> None:
        """Add a run: its query, and its answer to the message of its execution."""
        events = list(run)
        self.add_query(events)
        stream = VercelStream(sdk_version=self._sdk_version, redaction=self._redaction)
        for part in stream.all_parts(events):
            self._add(part)

    def _add(self, part: Data) -> None:
        match part:
            case {"type": "start", "messageId": own_id}:
                if not self.messages or self.messages[-1]["id"] != own_id:
                    self.messages.append({"id": own_id, "role": "assistant", "parts": []})
            case {"type": "start-step"}:
                self._parts.append({"type": "step-start"})
            case {"type": "text-start" | "reasoning-start" as name}:
                kind = name.removesuffix("-start")
                self._parts.append({"type": kind, "text": "", "state": "done"})
            case {"type": "text-delta" | "reasoning-delta", "delta": text}:
                self._parts[-1]["text"] += text
            case {"type": "tool-input-available", "toolCallId": call_id, "toolName": name}:
                tool = self._tool(call_id)
                if tool is None:
                    tool = {"type": f"tool-{name}", "toolCallId": call_id}
                    self._parts.append(tool)
                tool |= {"state": "input-available", "input": part["input"]}
                if "providerMetadata" in part:
                    tool["callProviderMetadata"] = part["providerMetadata"]
            case {"toolCallId": str() as call_id}:
                self._change(self._tool(call_id) or {}, part)
            case {"type": str() as name, "id": own_id, "data": data} if name.startswith("data-"):
                self._put_data(name, own_id, data)
            case {"type": "message-metadata", "messageMetadata": metadata}:
                self.messages[-1]["metadata"] = {**self.messages[-1].get("metadata", {}), **metadata}

    def _change(self, tool: Data, part: Data) -> None:
        match part["type"]:
            case "tool-approval-request":
                about = {"id": part["approvalId"], "descriptor": part["approvalDescriptor"]}
                tool |= {"state": "approval-requested", "approval": about}
            case "tool-output-available":
                tool |= {"state": "output-available", "output": part["output"]}
            case "tool-output-error":
                tool |= {"state": "output-error", "errorText": part["errorText"]}
            case "tool-output-denied":
                tool["state"] = "output-denied"

    @property
    def _parts(self) -> list[Data]:
        parts: list[Data] = self.messages[-1]["parts"]
        return parts

    def _tool(self, call_id: str) -> Data | None:
        """Return the part of a call of the current step; later ones may repeat its id."""
        step = takewhile(lambda part: part["type"] != "step-start", reversed(self._parts))
        return next((part for part in step if part.get("toolCallId") == call_id), None)

    def _put_data(self, name: str, own_id: str, data: Data) -> None:
        for part in self._parts:
            if (part["type"], part.get("id")) == (name, own_id):
                part["data"] = data
                return
        self._parts.append({"type": name, "id": own_id, "data": data})


def _finish_reason(ending: RunEnd) -> str:
    """Return why the run ended, as one of the six values of the protocol."""
    match ending.status:
        case AgentStatus.COMPLETED:
            return "stop"
        case AgentStatus.FAILED:
            return "error"
        case AgentStatus.PAUSED:
            return "tool-calls"
    if ending.stop_reason is StopReason.FINISH_REASON_RECEIVED and ending.finish_reason is not None:
        return _CUT_OFF.get(ending.finish_reason, "other")
    return "other"


def as_data(text: str) -> Any:
    """Return the data in a JSON text; any other text unchanged."""
    try:
        return _harmless(msgspec.json.decode(text))
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return text


def _harmless(value: Any) -> Any:
    """Return the value, with unreadable parts as text.

    The SDK rejects objects with some names, and would end the stream there. Large numbers would lose digits.
    """
    match value:
        case {"__proto__": _} | {"constructor": {"prototype": _}}:
            return msgspec.json.encode(value).decode()
        case dict():
            return {name: _harmless(each) for name, each in value.items()}
        case list():
            return [_harmless(each) for each in value]
        case int() if abs(value) > LARGEST_COUNT:
            return str(value)
    return value
