"""Content blocks: what this API makes of texts, images, files, thoughts and tool calls.

An answer of this API is a row of blocks whose order matters when it is sent back. The text and the
tool calls are kept in the message itself; `extras["anthropic"]["blocks"]` is the row, with the text
(by its length) and the tool calls (by their id) left out, and all other blocks as they came.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any

from whyloop.models.parts import own_bytes
from whyloop.values.messages import FilePart, ImagePart, Message, Part, TextPart, ToolCall

NAME = "anthropic"

Block = dict[str, Any]

_THOUGHTS = ("thinking", "redacted_thinking")
_UNFIT = re.compile(r"[^a-zA-Z0-9_-]")
_TEXTUAL = re.compile(r"text/|application/(.*\+)?(json|xml|yaml|x-yaml|toml|javascript|sql|csv)$")


def fit(name: str) -> str:
    """An id or a name from anywhere, in the letters that this API accepts."""
    return _UNFIT.sub("_", name) or "_"


def text_entry(text: str, block: Mapping[str, Any]) -> Block:
    """A text block without its text, which is part of the message's."""
    citations = {"citations": block["citations"]} if block.get("citations") else {}
    return {"type": "text", "length": len(text), **citations}


def call_entry(call: ToolCall, block: Mapping[str, Any]) -> Block:
    """A tool call's block without the call; who made it is told where it was not the model itself."""
    caller = block.get("caller")
    direct = not isinstance(caller, dict) or caller.get("type") == "direct"
    return {"type": "tool_use", "id": call.id, **({} if direct else {"caller": caller})}


def usual_row(text: str, calls: Sequence[ToolCall]) -> list[Block]:
    """The row that needs no keeping: the text, then the tool calls."""
    return [*([text_entry(text, {})] if text else []), *[call_entry(call, {}) for call in calls]]


def assistant_blocks(message: Message) -> list[Block]:
    """An assistant's message as the row of blocks that it was."""
    text, calls = message.text, message.tool_calls
    row: Sequence[Block] = message.extras.get(NAME, {}).get("blocks", ())
    if not _describes(row, text, calls):
        # The message came from elsewhere or was edited: of the row, only thoughts still hold.
        thoughts = [entry for entry in row if entry.get("type") in _THOUGHTS]
        row = [*thoughts, *usual_row(text, calls)]
    blocks, start, remaining = [], 0, iter(calls)
    for entry in row:
        if entry["type"] == "text":
            piece = text[start : start + entry["length"]]
            start += entry["length"]
            # A block that holds nothing but blanks is refused.
            if piece.strip():
                blocks.append({**_without(entry, "length"), "text": piece})
        elif entry["type"] == "tool_use":
            blocks.append({**entry, **_call_fields(next(remaining))})
        else:
            blocks.append(entry)
    # So is a turn that ends in a thought, which is what is left of an answer that was cut off early.
    while blocks and blocks[-1]["type"] in _THOUGHTS:
        blocks.pop()
    return blocks


def part_blocks(content: str | Sequence[Part]) -> list[Block]:
    """What a user said and showed."""
    parts = (TextPart(content),) if isinstance(content, str) else content
    return [_part(part) for part in parts if not isinstance(part, TextPart) or part.text.strip()]


def _describes(row: Sequence[Block], text: str, calls: Sequence[ToolCall]) -> bool:
    length = sum(entry["length"] for entry in row if entry.get("type") == "text")
    ids = [entry["id"] for entry in row if entry.get("type") == "tool_use"]
    return length == len(text) and ids == [call.id for call in calls]


def _call_fields(call: ToolCall) -> Block:
    # Arguments that are no object cannot be sent; the result of the call tells the model about them.
    arguments = {} if isinstance(call.arguments, str) else call.arguments
    return {"id": fit(call.id), "name": fit(call.name), "input": arguments}


def _without(entry: Block, key: str) -> Block:
    return {name: value for name, value in entry.items() if name != key}


def _part(part: Part) -> Block:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    media_type, data = own_bytes(part)
    if isinstance(part, ImagePart) or media_type.startswith("image/"):
        return {"type": "image", "source": _source(part, media_type or "image/png", data)}
    title = {"title": part.name} if part.name else {}
    # What is neither said nor recognised is text if it can be read as text.
    if data is not None and (not media_type or _TEXTUAL.match(media_type)):
        words = _decoded(data)
        if words is not None:
            source = {"type": "text", "media_type": "text/plain", "data": words}
            return {"type": "document", "source": source, **title}
    return {"type": "document", "source": _source(part, media_type or "application/pdf", data), **title}


def _source(part: ImagePart | FilePart, media_type: str, data: str | None) -> Block:
    if data is None:
        return {"type": "url", "url": part.url}
    return {"type": "base64", "media_type": media_type, "data": data}


def _decoded(data: str) -> str | None:
    try:
        return base64.b64decode(data, validate=True).decode()
    except ValueError:
        return None
