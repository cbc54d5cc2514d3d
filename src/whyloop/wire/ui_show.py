"""How messages are shown: which text gets a bubble, which call a result belongs to, what does not stay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from whyloop.wire.ui_message import UiMessage, metadata_of
from whyloop.wire.ui_words import is_blank, is_json


def should_render_content(message: UiMessage) -> bool:
    """True if the text of a message is to be shown as text.

    Never that of a tool, which is shown under its call; beside tool calls only language.
    """
    if message.get("role") == "tool" or is_blank(message.get("content")):
        return False
    if message.get("role") == "assistant" and metadata_of(message).get("tool_calls"):
        return not is_json(message["content"])
    return True


def is_ephemeral(message: UiMessage) -> bool:
    """True for a status that goes when the history comes; an error stays."""
    return message.get("role") == "status" and metadata_of(message).get("status_type") != "error"


def group(messages: Sequence[UiMessage]) -> list[dict[str, Any]]:
    """What to draw, top to bottom: `{message, calls}`, each of the calls `{call, result}`.

    A result is the tool's message, or the status of a call that runs or waits, or None. What
    belongs to no call stands for itself.
    """
    drawn: list[dict[str, Any]] = []
    for message in messages:
        slot = _slot(drawn, message)
        if slot is not None:
            slot["result"] = message
            continue
        calls = metadata_of(message).get("tool_calls") if message.get("role") == "assistant" else None
        drawn.append({"message": message, "calls": [{"call": call, "result": None} for call in calls or []]})
    return drawn


def _slot(drawn: list[dict[str, Any]], message: UiMessage) -> dict[str, Any] | None:
    """The latest call that this message is the result of."""
    call_id = metadata_of(message).get("tool_call_id")
    if call_id is None or message.get("role") not in ("tool", "status"):
        return None
    for item in reversed(drawn):
        for slot in item["calls"]:
            if slot["call"].get("id") == call_id and slot["result"] is None:
                return slot  # type: ignore[no-any-return]
    return None
