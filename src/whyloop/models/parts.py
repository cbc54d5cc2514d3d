"""What the wire formats share: images and files as data addresses, arguments as text, ids, hidden calls."""

from __future__ import annotations

import base64
import json
import os
from typing import Any, NoReturn

import msgspec

from whyloop.errors import ResponseValidationError
from whyloop.values.messages import FilePart, ImagePart, ToolCall
from whyloop.values.usage import Usage

# How the bytes of a few well-known formats begin.
_BEGINNINGS = {
    b"\xff\xd8\xff": "image/jpeg",
    b"\x89PNG": "image/png",
    b"GIF8": "image/gif",
    b"%PDF": "application/pdf",
}
# What is in a RIFF file comes after its length.
_RIFF = {b"WEBP": "image/webp", b"WAVE": "audio/wav", b"AVI ": "video/x-msvideo"}


def new_call_id() -> str:
    """An id for a tool call that came without one."""
    return f"call_{os.urandom(12).hex()}"


def count(value: object) -> int:
    """A number of tokens; no answer is lost over a counter that cannot be read."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 10**15:
        return 0
    return int(value)


def usage(*, read: int, written: int, cached: object = 0, reasoning: object = 0, total: object = 0) -> Usage:
    """Return the tokens; a total above its parts holds reasoning that the host counts nowhere else."""
    thoughts, hidden = count(reasoning), count(total) - read - written
    if hidden > 0:
        written, thoughts = written + hidden, max(thoughts, hidden)
    return Usage(read, written, count(cached), thoughts)


def name(value: object) -> str:
    """The name of a tool."""
    if isinstance(value, str) and value:
        return value
    raise TypeError(f"{value!r} is no name of a tool")


def media_text(media_type: object) -> str:
    """Return what a file in an answer is called: "an image (image/png)"."""
    kind = media_type.partition("/")[0] if isinstance(media_type, str) else ""
    noun = {"image": "an image", "audio": "audio", "video": "a video"}.get(kind, "a file")
    return f"{noun} ({media_type})" if kind else noun


def own_bytes(part: ImagePart | FilePart) -> tuple[str, str | None]:
    """The media type and the base64 of a part; no base64 if it is only an address."""
    media_type, data = part.media_type, part.data
    if part.url is not None and part.url.startswith("data:"):
        head, _, data = part.url.partition(",")
        media_type = media_type or head.removeprefix("data:").split(";")[0]
    # Some APIs compare the type with the bytes, so the bytes have the last word.
    return _type_of(data or "") or media_type or "", data


def _type_of(data: str) -> str | None:
    """Return the media type that the first bytes of a file tell, if they tell one."""
    try:
        start = base64.b64decode(data[:16])
    except ValueError:
        return None
    if start.startswith(b"RIFF"):
        return _RIFF.get(start[8:12])
    return next((kind for beginning, kind in _BEGINNINGS.items() if start.startswith(beginning)), None)


def data_address(part: ImagePart | FilePart) -> str:
    """The address of an image or a file; its own bytes as a data: address."""
    media_type, data = own_bytes(part)
    if data is None:
        return part.url or ""
    return f"data:{media_type or 'application/octet-stream'};base64,{data}"


def json_of(data: bytes, what: str) -> Any:
    """The document in some bytes of a response; a `ResponseValidationError` if there is none."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        problem = error
    try:
        # Half of a character, cut between two pieces of a stream, is JSON to some and not to others.
        return json.loads(data) if b"\\ud" in data.lower() else _refuse(what, data, problem)
    except (ValueError, RecursionError):
        return _refuse(what, data, problem)


def _refuse(what: str, data: bytes, problem: Exception) -> NoReturn:
    wrong = "cannot be read" if isinstance(problem, UnicodeError) else "is no JSON"
    raise ResponseValidationError(f"{what} {wrong}: {problem}: {data[:80]!r}") from None


def arguments_text(call: ToolCall) -> str:
    """The arguments of a call as JSON text.

    What was no JSON goes back as an empty object: hosts parse it and would refuse the whole history,
    and the result of the call tells the model what it had written.
    """
    if isinstance(call.arguments, str):
        return "{}"
    return msgspec.json.encode(call.arguments).decode()


def arguments_of(value: Any) -> Any:
    """Arguments from wherever a host puts them: JSON text, an object in one piece, or nothing."""
    if isinstance(value, dict):
        return value
    if value is None:
        return {}
    return ToolCall.parse_arguments(value if isinstance(value, str) else msgspec.json.encode(value))
