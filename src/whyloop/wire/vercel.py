"""A run as the UI message stream of the Vercel AI SDK, for pages that are built with `useChat`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from whyloop.events import AgentEvent, ToolCallCompleted
from whyloop.values.continuation import StopReason
from whyloop.values.model import FinishReason
from whyloop.values.state import AgentStatus
from whyloop.values.text import clean
from whyloop.wire.run_stream import Call, Ending, RunStream, as_json

Data = dict[str, Any]

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
"""The type of the part that says after every step why the run goes on or stops."""

_CUT_OFF = {FinishReason.LENGTH: "length", FinishReason.CONTENT_FILTER: "content-filter"}


class VercelStream(RunStream[Data]):
    """Gives the parts of a UI message stream for each event of one run.

    An execution is one message, also when it is taken up again after a pause.
    """

    def _run_begins(self, event: AgentEvent) -> Iterator[Data]:
        yield {"type": "start", "messageId": clean(event.execution_id)}

    def _step_begins(self, number: int, goes_on: bool) -> Iterator[Data]:
        # What is decided about a call goes to the part that it has, if that is in the last step.
        if not goes_on:
            yield {"type": "start-step"}

    def _step_ends(self, number: int) -> Iterator[Data]:
        yield {"type": "finish-step"}

    def _text_begins(self, text_id: str) -> Iterator[Data]:
        yield {"type": "text-start", "id": text_id}

    def _text_goes_on(self, text_id: str, words: str) -> Iterator[Data]:
        yield {"type": "text-delta", "id": text_id, "delta": words}

    def _text_ends(self, text_id: str) -> Iterator[Data]:
        yield {"type": "text-end", "id": text_id}

    def _call_begins(self, call: Call) -> Iterator[Data]:
        about = {"toolCallId": call.told_id, "toolName": call.name}
        if not call.known:
            yield {"type": "tool-input-start", **about}
        yield {"type": "tool-input-available", **about, "input": _harmless(as_json(call.arguments))}

    def _call_ends(self, told_id: str, event: ToolCallCompleted) -> Iterator[Data]:
        if event.success:
            yield {"type": "tool-output-available", "toolCallId": told_id, "output": clean(event.result)}
        else:
            words = clean(event.error or event.result)
            yield {"type": "tool-output-error", "toolCallId": told_id, "errorText": words}

    def _call_waits(self, call_id: str, told_id: str, question: str) -> Iterator[Data]:
        yield {
            "type": "tool-approval-request",
            "approvalId": clean(call_id),
            "toolCallId": told_id,
            "approvalDescriptor": {"question": question},
        }

    def _evaluated(self, step: int, verdict: Data) -> Iterator[Data]:
        yield {"type": CONTINUATION, "id": self._message_id(step), "data": verdict}

    def _run_ends(self, ending: Ending) -> Iterator[Data]:
        # Clients read no further than an error, so all there is to know comes before it.
        yield {"type": "message-metadata", "messageMetadata": {"whyloop": ending.summary()}}
        if ending.stop_reason is StopReason.USER_REQUESTED:
            yield {"type": "abort", "reason": clean(ending.reason or "")}
            return
        if ending.status is AgentStatus.FAILED:
            yield {"type": "error", "errorText": ending.error_message or "The run failed"}
        yield {"type": "finish", "finishReason": _finish_reason(ending)}


def sse(part: Data) -> str:
    """A part as it goes over the wire."""
    return f"data: {msgspec.json.encode(part).decode()}\n\n"


def _finish_reason(ending: Ending) -> str:
    """Why the run ended, in one of the six words that the protocol has."""
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


def _harmless(value: Any) -> Any:
    """The value, with objects as text whose names the SDK refuses; it would end the stream there."""
    match value:
        case {"__proto__": _} | {"constructor": {"prototype": _}}:
            return msgspec.json.encode(value).decode()
        case dict():
            return {name: _harmless(each) for name, each in value.items()}
        case list():
            return [_harmless(each) for each in value]
    return value
