"""Finding tool calls that a host has also written into the text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from whyloop.values.messages import ToolCall

_DECODER = json.JSONDecoder()
_DOCUMENT = re.compile(r"[{\[]")
# What stands before and after a call that is written out: fences, tags, special tokens.
_OPENING = re.compile(
    r"(?:```\w*\s*|<(?:tool_calls?|function_calls?|function(?:=[\w.-]+)?)>\s*"
    r"|<\|[\w▁-]+\|>\s*|<｜[^｜>]*｜>\s*|\[TOOL_CALLS\]\s*)+$"
)
_CLOSING = re.compile(r"(?:\s*(?:```|</[\w]+>|<\|[\w▁-]+\|>|<｜[^｜>]*｜>))+")
_NAMES = ("name", "tool", "tool_name", "function")
_ARGUMENTS = ("arguments", "parameters", "args", "input", "tool_input")


def without_calls(text: str, calls: Sequence[ToolCall]) -> str:
    """The text without what only repeats the tool calls: arguments are never shown as language."""
    if not calls or not _DOCUMENT.search(text):
        return text
    kept: list[str] = []
    done = 0
    for start, end in _repeats(text, calls):
        kept.append(_OPENING.sub("", text[done:start]))
        closing = _CLOSING.match(text, end)
        done = closing.end() if closing else end
    return "".join([*kept, text[done:]]).strip() if done else text


def _repeats(text: str, calls: Sequence[ToolCall]) -> Iterator[tuple[int, int]]:
    """Where in the text a document stands that is one of the calls, or some of them."""
    position = 0
    while found := _DOCUMENT.search(text, position):
        start = found.start()
        try:
            said, end = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            if _is_cut_off(text[start:], calls):
                yield start, len(text)
                return
            position = start + 1
            continue
        whole = not text[:start].strip() and not text[end:].strip()
        if _is_repeated(said, calls, whole=whole):
            yield start, end
        position = end


def _is_repeated(said: Any, calls: Sequence[ToolCall], *, whole: bool) -> bool:
    if isinstance(said, list):
        return bool(said) and all(_is_repeated(entry, calls, whole=whole) for entry in said)
    if not isinstance(said, dict):
        return False
    if isinstance(inner := said.get("tool_calls"), list) and len(said) == 1:
        return _is_repeated(inner, calls, whole=whole)
    if isinstance(said.get("function"), dict):
        return _is_repeated(said["function"], calls, whole=whole)
    named = next((said[key] for key in _NAMES if isinstance(said.get(key), str)), None)
    given = next((said[key] for key in _ARGUMENTS if key in said), None)
    for call in calls:
        # An empty object is in many texts, so it must be all there is.
        if said == call.arguments and (said or whole):
            return True
        if named == call.name and (given is None or _plain(given) == call.arguments):
            return True
    return False


def _plain(given: Any) -> Any:
    return ToolCall.parse_arguments(given) if isinstance(given, str) else given


def _is_cut_off(text: str, calls: Sequence[ToolCall]) -> bool:
    """True if the text is how the arguments of a call begin: a host that was cut off while repeating them."""
    said = _squeezed(text)
    written = [_squeezed(json.dumps(call.arguments, ensure_ascii=False)) for call in calls]
    return len(said) > 2 and any(arguments.startswith(said) for arguments in written)


def _squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)
