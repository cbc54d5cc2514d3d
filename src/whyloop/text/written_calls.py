"""Tool calls that a model writes as text: found, and removed."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from whyloop.text.documents import CutOff, Document, document_at, documents, end_of_brackets
from whyloop.text.turns import SLICE, Search, at_once
from whyloop.values.messages import ToolCall

# What surrounds a call that is written out: fences, tags, special tokens.
_OPENING = re.compile(
    r"(?:```\w*\s*|<(?:tool_calls?|function_calls?|function(?:=[\w.-]+)?)>\s*"
    r"|<\|[\w▁-]+\|>\s*|<｜[^｜>]*｜>\s*|\[TOOL_CALLS\]\s*)+$"
)
_CLOSING = re.compile(r"(?:\s*(?:```|</[\w]+>|<\|[\w▁-]+\|>|<｜[^｜>]*｜>))*+")
_END = re.compile(rf"{_CLOSING.pattern}\s*\Z")
_LONGEST_OPENING = 200
# The keys of a call that is written as JSON.
NAME_KEYS = ("name", "tool", "tool_name", "function")
ARGUMENT_KEYS = ("arguments", "parameters", "args", "input", "tool_input")
NAMESPACE = "functions."  # The namespace in which OpenAI's models know their tools.
OTHER_KEYS = ("type", "id", "call_id")
_WITHOUT_ARGUMENTS = frozenset({*NAME_KEYS, *OTHER_KEYS})
CALL_KEYS = frozenset({*_WITHOUT_ARGUMENTS, *ARGUMENT_KEYS})
# Tags and tokens with which models only begin a call; what follows tells a call from a mention.
_TAG = (
    r"(?:tool_calls?|function_calls?)>|function(?:=(?P<name>[\w.-]{1,100}))?>|\|python_tag\|>"
    r"|\|tool[\w▁]{0,100}\|>|｜tool[^｜>]{0,100}｜>|invoke name=[\"'](?P<invoked>[\w.-]{1,100})[\"']>"
)
CALL_TAG = re.compile(rf"<(?:{_TAG})|\[TOOL_CALLS\]")
_MENTION = r"(?<!(?<!`)`[<\[])"  # A tag in inline code.
# The beginning of a call in JSON, even if the model used the wrong quotes or never closed it.
_CALL_BODY = re.compile(
    rf"""["'](?:{"|".join(NAME_KEYS)})["']\s*:\s*["'](?:{re.escape(NAMESPACE)})?(?P<name>[^"']{{1,80}})["']"""
    rf"""\s*,\s*["'](?:{"|".join(ARGUMENT_KEYS)})["']\s*:\s*["']?\s*\{{"""
)
_CALL_START = re.compile(
    rf"""(?:[{{\[]\s*+(?:["'](?:{"|".join(OTHER_KEYS)})["']\s*:\s*["'][^"']{{0,80}}["']\s*,\s*){{0,3}}"""
    rf"""(?:["'](?:tool_calls|function)["']\s*:\s*)?){{1,4}}{_CALL_BODY.pattern}"""
)
_LONGEST_START = 1000
SIGN = re.compile(r"[{\[<`]")
_SHORT = 20


def written_call(text: str, tools: Collection[str], *, truncated: bool = False) -> str | None:
    """Return the tool that a text calls, if a model wrote the call as text.

    A tag or a token of a call counts anywhere. JSON that names an offered tool, fenced or bare, counts if the
    text begins or ends with it: in the middle of an answer it is an example. In an answer that was
    `truncated`, the call at the end may be cut off.
    """
    return at_once(search_call(text, tools, truncated=truncated))


def search_call(text: str, tools: Collection[str], *, truncated: bool = False) -> Search[str | None]:
    """Return what `written_call` returns, and stop after each slice."""
    if not tools:
        return None
    has_sign = has_name = False
    for part in _parts(text, _LONGEST_OPENING):
        has_sign = has_sign or SIGN.search(part) is not None
        has_name = has_name or any(name in part for name in tools)
        if has_sign and has_name:
            break
        if len(text) > SLICE:
            yield
    if not has_sign:
        return None
    names = _Names.of(tuple(sorted(tools, key=len, reverse=True)))
    if (name := (yield from _tagged_call(text, names))) is not None or not has_name:
        return name
    return (
        _fenced_call(text, names)
        or (yield from _document_call(text, tools))
        or (yield from _malformed_call(text, tools, truncated=truncated))
    )


def _parts(text: str, overlap: int) -> Iterator[str]:
    """Yield a text in slices, each with the beginning of the next one."""
    if len(text) <= SLICE:
        yield text
        return
    for at in range(0, len(text), SLICE):
        yield text[at : at + SLICE + overlap]


class _Names:
    """The patterns that contain the names of the offered tools."""

    def __init__(self, tools: tuple[str, ...]) -> None:
        names = "|".join(map(re.escape, tools))
        self.name = re.compile(rf"\b(?:{names})\b")
        self.tag = re.compile(
            rf"(?:<{_MENTION}(?:{_TAG})|\[{_MENTION}TOOL_CALLS\])"
            rf"(?(name)|(?(invoked)|(?=\s{{0,100}}(?:(?:{names})\b|[{{\[]\s{{0,100}}[{{\"]|<\w|<｜))))"
        )

    @staticmethod
    @lru_cache(maxsize=64)
    def of(tools: tuple[str, ...]) -> _Names:
        """Return the patterns of these tools, the longest name first."""
        return _Names(tools)


def _tagged_call(text: str, names: _Names) -> Search[str | None]:
    for at in range(0, len(text), SLICE):
        if at:
            yield
        tag = names.tag.search(text, at, at + SLICE + _LONGEST_OPENING)
        if tag is not None:
            if named := tag["name"] or tag["invoked"]:
                return str(named)
            near = names.name.search(text, tag.end(), tag.end() + _LONGEST_OPENING)
            return near[0] if near else "a tool"
    return None


def _fenced_call(text: str, names: _Names) -> str | None:
    """Return the tool that is named in a fence for calls."""
    read, is_for_calls = text.find("```tool"), False
    if read < 0:
        return None
    for name in names.name.finditer(text, read):
        fence = text.rfind("```", read, name.start())
        if fence >= 0:
            is_for_calls = text.startswith("```tool", fence)
        if is_for_calls:
            return name[0]
        read = name.end()
    return None


def _document_call(text: str, tools: Collection[str]) -> Search[str | None]:
    for found in documents(text):
        if found is None:
            yield
        elif isinstance(found, Document):
            first, last = _begins(text, found.start), _END.match(text, found.end) is not None
            if (first or last) and (name := _named_tool(found.value, tools, whole=first and last)):
                return name
    return None


def _begins(text: str, start: int) -> bool:
    """Return whether a text begins with the document at `start` or its opening."""
    return start < _LONGEST_OPENING and not _OPENING.sub("", text[:start]).strip()


def _malformed_call(text: str, tools: Collection[str], *, truncated: bool) -> Search[str | None]:
    """Return the tool that a text calls in malformed JSON.

    It may be unclosed, or have the wrong quotes.
    """
    found = None
    for at in range(0, len(text), SLICE):
        if at:
            yield
        limit = at + SLICE + _LONGEST_START
        if _CALL_BODY.search(text, at, limit) and (found := _CALL_START.search(text, at, limit)):
            break
    if found is None or found["name"] not in tools:
        return None
    start = found.start()
    document, _ = yield from document_at(text, start)
    if document is not None:
        return None  # It was judged as a document.
    if not _begins(text, start):
        end = yield from end_of_brackets(text, start)
        opened = _OPENING.search(text, max(0, start - _LONGEST_OPENING), start)
        if not ((truncated or opened) if end is None else _END.match(text, end)):
            return None
    return found["name"]


def _calls_in(document: Any) -> list[dict[str, Any]]:
    """Return the objects in a document that may be calls; none if it has others.

    The wrappers {"tool_calls": …} and {"function": {…}} are removed.
    """
    calls, waiting = [], [document]
    while waiting:  # Not by recursion, since a model may nest a text as deeply as it likes.
        entry = waiting.pop()
        if isinstance(entry, list):
            waiting += reversed(entry)
        elif not isinstance(entry, dict):
            return []
        elif entry.keys() == {"tool_calls"} and isinstance(entry["tool_calls"], list | dict):
            waiting.append(entry["tool_calls"])
        elif isinstance(entry.get("function"), dict):
            waiting.append(entry["function"])
        else:
            calls.append(entry)
    return calls


def _named_tool(document: Any, tools: Collection[str], *, whole: bool) -> str | None:
    """Return the offered tool that a document calls.

    A call without arguments counts only if it is the `whole` text.
    """
    names = [_called_tool(entry, tools, whole=whole) for entry in _calls_in(document)]
    return names[0] if names and all(names) else None


def _called_tool(entry: Mapping[str, Any], tools: Collection[str], *, whole: bool) -> str | None:
    name = _name_in(entry)
    if name not in tools or not entry.keys() <= CALL_KEYS:
        return None  # It may be the record of a call, for example with its result.
    given = _arguments_in(entry)
    complete = isinstance(given, dict | str) or (whole and entry.keys() <= _WITHOUT_ARGUMENTS)
    return name if complete else None


def _name_in(entry: Mapping[str, Any]) -> str | None:
    name = next((entry[key] for key in NAME_KEYS if isinstance(entry.get(key), str)), None)
    return name if name is None else name.removeprefix(NAMESPACE)


def _arguments_in(entry: Mapping[str, Any]) -> Any:
    return next((entry[key] for key in ARGUMENT_KEYS if key in entry), None)


# Repetitions of the calls that a response makes


def without_calls(text: str, calls: Sequence[ToolCall]) -> str:
    """Return the text without repetitions of the tool calls."""
    return at_once(remove_calls(text, calls))


def remove_calls(text: str, calls: Sequence[ToolCall]) -> Search[str]:
    """Return what `without_calls` returns, and stop after each slice."""
    if not calls or not _may_repeat(text, calls):
        return text
    kept: list[str] = []
    done = 0
    first, last = len(text) - len(text.lstrip()), len(text.rstrip())
    for found in documents(text):
        if isinstance(found, Document):
            entries, whole = _calls_in(found.value), found.start <= first and found.end >= last
            if not entries or not all(_repeats(entry, calls, whole=whole) for entry in entries):
                continue
            closing = _CLOSING.match(text, found.end)
            end = closing.end() if closing else found.end
        elif isinstance(found, CutOff):
            if not _is_cut_off(text, found.start, calls):
                continue
            end = len(text)
        else:
            yield
            continue
        kept += _without_opening(text[done : found.start])
        done = end
        if isinstance(found, CutOff):
            break
    return "".join([*kept, text[done:]]).strip() if done else text


def _may_repeat(text: str, calls: Sequence[ToolCall]) -> bool:
    """Return whether a text has the name of a call or an argument; most have none."""
    if "{" not in text:
        return False
    if "\\u" in text:
        return True  # A name may be written in escapes.
    for call in calls:
        key = next(iter(call.arguments), None) if isinstance(call.arguments, Mapping) else None
        if call.name in text or (len(text) < _SHORT if key is None else f'"{key}"' in text or "\\" in key):
            return True
    return False


def _without_opening(text: str) -> tuple[str, str]:
    """Return the two parts of a text without the opening at its end."""
    cut = max(0, len(text) - _LONGEST_OPENING)
    return text[:cut], _OPENING.sub("", text[cut:])


def _repeats(entry: Mapping[str, Any], calls: Sequence[ToolCall], *, whole: bool) -> bool:
    """Return whether an object is one of the calls, or its arguments."""
    name, given = _name_in(entry), _arguments_in(entry)
    if isinstance(given, str):
        given = ToolCall.parse_arguments(given)
    # Many texts contain an empty object, so it must be the whole text.
    return any(
        (entry == call.arguments and bool(entry or whole))
        or (name == call.name and (given is None or given == call.arguments))
        for call in calls
    )


def _is_cut_off(text: str, start: int, calls: Sequence[ToolCall]) -> bool:
    """Return whether the text from `start` on is the beginning of a call's arguments."""
    begun = "".join(text[start : start + _LONGEST_OPENING].split())
    written = ("".join(json.dumps(call.arguments, ensure_ascii=False).split()) for call in calls)
    alike = [arguments for arguments in written if arguments.startswith(begun)]
    if len(begun) <= 2 or not alike:
        return False
    rest = "".join(text[start:].split())
    return any(arguments.startswith(rest) for arguments in alike)
