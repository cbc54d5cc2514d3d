"""A case of `reduce`: messages, the envelopes that arrive, and the lines that a person sees then."""

from __future__ import annotations

from typing import NamedTuple

from tests.ui.envelopes import Json


class Case(NamedTuple):
    """Messages, the envelopes that arrive, and the lines that are shown then."""

    name: str
    messages: list[Json]
    envelopes: list[Json]
    lines: list[str]


def line(message: Json) -> str:
    """Return a message in one line: its role and kind, its text, the tools that it calls, and more of it."""
    metadata = message.get("metadata", {})
    kind = " ".join([message["role"], *([metadata["status_type"]] if message["role"] == "status" else [])])
    kind = "tool error" if "tool_error" in metadata else kind
    text = f"{kind}: {message['content']}"
    if message["role"] == "assistant" and "tool_calls" in metadata:
        text += f" [{', '.join(map(_call, metadata['tool_calls']))}]"
    text += f" ({metadata['reasoning']})" if "reasoning" in metadata else ""
    text += f" (changed by {', '.join(metadata['changed_by'])})" if "changed_by" in metadata else ""
    return text + (" (incomplete)" if "incomplete" in metadata else "")


def _call(call: Json) -> str:
    return " ".join([call["name"], *(f"changed by {name}" for name in call.get("changed_by", ()))])


THINKS = "status thinking: Thinking…"
WHO = "user: Who?"
LOOKS = "assistant: Let me look. [search]"
FOUND = 'tool: ["a","b"]'
ASKED = "status tool_call: pay waits for approval"
