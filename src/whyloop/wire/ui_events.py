"""What each event of an execution changes in the messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from whyloop.wire.ui_live import Live
from whyloop.wire.ui_message import (
    UiMessage,
    assistant_id,
    error_id,
    is_status,
    metadata_of,
    tool_id,
    ui_message,
    with_metadata,
)
from whyloop.wire.ui_words import GAP, THINKING, retry_words, status_text, text, whole

Envelope = Mapping[str, Any]

ENDED = ("completed", "stopped", "failed")


def apply(live: Live, envelope: Envelope) -> None:
    """Change the messages as the envelope says, which is the next one that is heard."""
    if live.after_gap:
        _mark_gap(live)
    EVENTS[envelope["event"]](live, envelope["data"], envelope["timestamp"])


def _status(live: Live, data: Mapping[str, Any], timestamp: str) -> None:
    status = data.get("status")
    if status == "in_progress":
        live.note(step_number=(whole(data.get("step_count")) or 0) + 1, continuation=None, evaluations=None)
        live.say("thinking", THINKING)
        live.end_others()
        return
    if status not in ENDED and status != "paused":
        return
    _finish_text(live)
    reason, before = text(data.get("stop_reason")), live.verdict
    resolved_by = before.get("resolved_by") if before.get("should_continue") is False else None
    end = {"should_continue": False, "stop_reason": reason, "resolved_by": resolved_by}
    live.note(continuation=end)
    words = status_text(data)
    if status != "failed":
        live.say("continuation" if status == "stopped" else "info", words)
        return
    live.say("info", "")
    step = whole(data.get("step_count")) or 0
    metadata = {**_of_step(live, step), "status_type": "error", "continuation": end}
    live.put(ui_message(error_id(live.execution_id, step), "status", words, timestamp, metadata))


def _step_started(live: Live, data: Mapping[str, Any], timestamp: str) -> None:
    live.note(step_number=whole(data.get("step_number")) or live.step)
    # A step that was cut off when its process died is told from its beginning.
    said = live.get(assistant_id(live.execution_id, live.step))
    if said is not None and metadata_of(said).get("streaming"):
        _take_back(live, live.step)
    if not _retries(live):
        live.say("thinking", THINKING)


def _chunk(live: Live, data: Mapping[str, Any], timestamp: str) -> None:
    piece, own_id = text(data.get("chunk")) or "", assistant_id(live.execution_id, live.step)
    message = live.get(own_id)
    if message is None:
        metadata = {**_of_step(live, live.step), "streaming": True}
        begun_unheard = live.after_gap and whole(data.get("chunk_index"))
        message = ui_message(own_id, "assistant", GAP if begun_unheard else "", timestamp, metadata)
    said = message["content"] + piece
    if said and metadata_of(message).get("streaming"):
        live.put({**message, "content": said})
        live.say("thinking", "")
    if data.get("is_complete") is True:
        _finish_text(live)


def _tool_started(live: Live, data: Mapping[str, Any], timestamp: str) -> None:
    name, call_id = text(data.get("tool")), text(data.get("tool_call_id"))
    if name is None or call_id is None:
        return
    own_id, step = _place_of_call(live, call_id)
    done = live.get(own_id)
    if done is not None and done["role"] == "tool":
        return
    call: dict[str, Any] = {"id": call_id, "name": name}
    if isinstance(data.get("args"), dict | str):
        call["args"] = data["args"]
    if isinstance(data.get("args_summary"), str):
        call["args_summary"] = data["args_summary"]
    _add_call(live, step, call, timestamp)
    metadata = {
        **_of_step(live, step),
        "status_type": "tool_call",
        "tool_call_id": call_id,
        "tool_name": name,
        "tool_calls": [call],
    }
    live.put(ui_message(own_id, "status", f"Running {name}", timestamp, metadata))
    live.say("thinking", "")


def _tool_completed(live: Live, data: Mapping[str, Any], timestamp: str) -> None:
    name, call_id = text(data.get("tool")), text(data.get("tool_call_id"))
    if name is None or call_id is None:
        return
    own_id, step = _place_of_call(live, call_id)
    _add_call(live, step, {"id": call_id, "name": name}, timestamp)
    summary, error = text(data.get("result_summary")) or "", text(data.get("error"))
    succeeded = data.get("success") is True
    came_of = {"tool_result": summary} if succeeded else {"tool_error": error or summary}
    metadata: dict[str, Any] = {
        **_of_step(live, step),
        "tool_call_id": call_id,
        "tool_name": name,
        **came_of,
    }
    duration = data.get("duration_ms")
    if isinstance(duration, int | float) and not isinstance(duration, bool):
        metadata["tool_duration_ms"] = duration
    live.put(ui_message(own_id, "tool", summary if succeeded else error or summary, timestamp, metadata))


def _step_completed(live: Live, data: Mapping[str, Any], timestamp: str) -> None:
    step = whole(data.get("step_number")) or live.step
    _finish_text(live)
    if data.get("finish_reason") is None and data.get("has_tool_calls") is False:
        _take_back(live, step)
    live.note(step_number=step + 1)
    verdict = _verdict(data.get("continuation"))
    if verdict is not None:
        live.note(continuation=verdict)
        words = retry_words(data.get("retry")) if verdict["should_continue"] else ""
        if words:
            live.say("continuation", words)


def _continuation(live: Live, data: Mapping[str, Any], timestamp: str) -> None:
    verdict = _verdict(data)
    if verdict is None:
        return
    evaluations = data.get("evaluations")
    live.note(continuation=verdict, evaluations=evaluations if isinstance(evaluations, list) else None)


EVENTS: dict[str, Callable[[Live, Mapping[str, Any], str], None]] = {
    "agent.status": _status,
    "agent.step.started": _step_started,
    "agent.step.completed": _step_completed,
    "agent.tool.started": _tool_started,
    "agent.tool.completed": _tool_completed,
    "agent.stream.chunk": _chunk,
    "agent.continuation": _continuation,
}


# Their parts


def _verdict(value: object) -> dict[str, Any] | None:
    if not isinstance(value, dict) or not isinstance(value.get("should_continue"), bool):
        return None
    return {
        "should_continue": value["should_continue"],
        "stop_reason": text(value.get("stop_reason")),
        "resolved_by": text(value.get("resolved_by")),
    }


def _of_step(live: Live, step: int) -> dict[str, Any]:
    return {"execution_id": live.execution_id, "step_number": step}


def _retries(live: Live) -> bool:
    """True while the status says that something is tried again."""
    return live.verdict.get("should_continue") is True and live.known.get("status_type") == "continuation"


def _growing(live: Live) -> list[UiMessage]:
    """The texts of this execution that are still being added to."""
    own = (m for m in live.messages if metadata_of(m).get("execution_id") == live.execution_id)
    return [message for message in own if metadata_of(message).get("streaming")]


def _finish_text(live: Live) -> None:
    """Nothing more is added to a text of this execution."""
    for message in _growing(live):
        live.put(with_metadata(message, streaming=None))


def _mark_gap(live: Live) -> None:
    """What was not heard may have been text, so that what there is of it is not shown as whole."""
    for message in _growing(live):
        if not message["content"].endswith(GAP):
            live.put({**message, "content": message["content"] + GAP})


def _take_back(live: Live, step: int) -> None:
    """The text of an answer that broke off goes, since nothing of it is in the history."""
    own_id = assistant_id(live.execution_id, step)
    message = live.get(own_id)
    if message is not None and not metadata_of(message).get("tool_calls"):
        live.drop(own_id)


def _place_of_call(live: Live, call_id: str) -> tuple[str, int]:
    """The id of a call's message and its step: of the one that waits or runs, else of the current step."""
    for message in reversed(live.messages):
        metadata = metadata_of(message)
        own = metadata.get("execution_id") == live.execution_id and metadata.get("tool_call_id") == call_id
        if own and is_status(message, "tool_call"):
            return message["id"], whole(metadata.get("step_number")) or live.step
    return tool_id(live.execution_id, live.step, call_id), live.step


def _add_call(live: Live, step: int, call: dict[str, Any], timestamp: str) -> None:
    """The call in the assistant's message of its step, which may have no text at all."""
    own_id = assistant_id(live.execution_id, step)
    message = live.get(own_id) or ui_message(own_id, "assistant", "", timestamp, _of_step(live, step))
    calls = metadata_of(message).get("tool_calls", [])
    if not any(known["id"] == call["id"] for known in calls):
        live.put(with_metadata(message, tool_calls=[*calls, call]))
