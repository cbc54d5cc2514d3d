"""Finding tool calls that are written into the text, beside the real calls or instead of them."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
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
NAME_KEYS = ("name", "tool", "tool_name", "function")
ARGUMENT_KEYS = ("arguments", "parameters", "args", "input", "tool_input")
OTHER_KEYS = ("type", "id", "call_id")
_WITHOUT_ARGUMENTS = frozenset({*NAME_KEYS, *OTHER_KEYS})
_CALL_KEYS = frozenset({*_WITHOUT_ARGUMENTS, *ARGUMENT_KEYS})
# Tags and tokens with which models begin a call, and nothing else; what follows tells a call from a mention.
CALL_TAG = re.compile(
    r"<(?:tool_calls?|function_calls?)>|<function(?:=(?P<name>[\w.-]+))?>|<\|python_tag\|>"
    r"|<\|tool[\w▁]*\|>|<｜tool[^｜>]*｜>|\[TOOL_CALLS\]"
)
_INLINE_CODE = re.compile(r"(?<!`)`\Z")
_SIGN = re.compile(r"[{<`\[]")
_TOOL_FENCE = re.compile(r"```tool\w*\s(?P<content>(?:(?!```).)*)", re.DOTALL)
_END = re.compile(r"\s*\Z")
_LONGEST_OPENING = 200
_MOST_ATTEMPTS = 100  # To read JSON where there is none: more would make long texts slow.


def written_call(text: str, tools: Collection[str]) -> str | None:
    """Return the tool that a text calls, where a model wrote the call instead of making it.

    A tag or a token of a call counts anywhere. JSON that names an offered tool, fenced or bare, counts if the
    text begins or ends with it: in the middle of an answer it is an example.
    """
    if not tools or not _SIGN.search(text):
        return None
    return _tagged_call(text, tools) or _fenced_call(text, tools) or _document_call(text, tools)


def _tagged_call(text: str, tools: Collection[str]) -> str | None:
    names = "|".join(map(re.escape, sorted(tools, key=len, reverse=True)))
    begins = re.compile(rf"\s*(?:(?P<name>{names})\b|[{{\[]\s*[{{\"]|<\w|<｜)")
    for tag in CALL_TAG.finditer(text):
        if _INLINE_CODE.search(text, max(0, tag.start() - 3), tag.start()):
            continue  # A mention.
        if tag["name"]:
            return str(tag["name"])
        if found := begins.match(text, tag.end()):
            named = re.compile(rf"\b(?:{names})\b").search(
                text, found.start(), found.start() + _LONGEST_OPENING
            )
            return named[0] if named else "a tool"
    return None


def _fenced_call(text: str, tools: Collection[str]) -> str | None:
    for fence in _TOOL_FENCE.finditer(text):
        for name in tools:
            if re.search(rf"\b{re.escape(name)}\b", fence["content"]):
                return name
    return None


def _document_call(text: str, tools: Collection[str]) -> str | None:
    for start, end, document in _documents(text):
        closing = _CLOSING.match(text, end)
        first = start < _LONGEST_OPENING and not _OPENING.sub("", text[:start]).strip()
        last = _END.match(text, closing.end() if closing else end) is not None
        if (first or last) and (name := _named_tool(document, tools, whole=first and last)):
            return name
    return None


def _documents(text: str) -> Iterator[tuple[int, int, Any]]:
    """Yield where the JSON documents in a text begin and end, and each document."""
    position = attempts = 0
    while attempts < _MOST_ATTEMPTS and (found := _DOCUMENT.search(text, position)):
        try:
            document, position = _DECODER.raw_decode(text, found.start())
        except (ValueError, RecursionError):
            attempts, position = attempts + 1, found.start() + 1
        else:
            yield found.start(), position, document


def _named_tool(said: Any, tools: Collection[str], *, whole: bool) -> str | None:
    """Return the offered tool that a document calls; one without arguments must be all there is."""
    if isinstance(said, list):
        named = [_named_tool(entry, tools, whole=whole) for entry in said]
        return named[0] if named and all(named) else None
    if not isinstance(said, dict):
        return None
    inner = said.get("tool_calls") if said.keys() == {"tool_calls"} else said.get("function")
    if isinstance(inner, list | dict):
        return _named_tool(inner, tools, whole=whole)
    name = next((said[key] for key in NAME_KEYS if isinstance(said.get(key), str)), None)
    if name not in tools:
        return None
    if not said.keys() <= _CALL_KEYS:
        return None  # A record of a call, with its result for example.
    given = next((said[key] for key in ARGUMENT_KEYS if key in said), None)
    complete = isinstance(given, dict | str) or (whole and said.keys() <= _WITHOUT_ARGUMENTS)
    return name if complete else None


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
    named = next((said[key] for key in NAME_KEYS if isinstance(said.get(key), str)), None)
    given = next((said[key] for key in ARGUMENT_KEYS if key in said), None)
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
