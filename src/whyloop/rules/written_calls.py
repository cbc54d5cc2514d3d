"""Tool calls that a model writes as text: found, removed, held back in a stream."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from whyloop.values.messages import ToolCall
from whyloop.values.model import ToolSpec

_DECODER = json.JSONDecoder()
_DOCUMENT = re.compile(r"[{\[]")
# What surrounds a call that is written out: fences, tags, special tokens.
_OPENING = re.compile(
    r"(?:```\w*\s*|<(?:tool_calls?|function_calls?|function(?:=[\w.-]+)?)>\s*"
    r"|<\|[\w▁-]+\|>\s*|<｜[^｜>]*｜>\s*|\[TOOL_CALLS\]\s*)+$"
)
_CLOSING = re.compile(r"(?:\s*(?:```|</[\w]+>|<\|[\w▁-]+\|>|<｜[^｜>]*｜>))*+")
_END = re.compile(rf"{_CLOSING.pattern}\s*\Z")
# The keys of a call that is written as JSON.
_NAME_KEYS = ("name", "tool", "tool_name", "function")
_ARGUMENT_KEYS = ("arguments", "parameters", "args", "input", "tool_input")
_NAMESPACE = "functions."  # The namespace in which OpenAI's models know their tools.
_OTHER_KEYS = ("type", "id", "call_id")
_WITHOUT_ARGUMENTS = frozenset({*_NAME_KEYS, *_OTHER_KEYS})
_CALL_KEYS = frozenset({*_WITHOUT_ARGUMENTS, *_ARGUMENT_KEYS})
# Tags and tokens with which models only begin a call; what follows tells a call from a mention.
_CALL_TAG = re.compile(
    r"<(?:tool_calls?|function_calls?)>|<function(?:=(?P<name>[\w.-]+))?>|<\|python_tag\|>"
    r"|<\|tool[\w▁]*\|>|<｜tool[^｜>]*｜>|\[TOOL_CALLS\]|<invoke name=[\"'](?P<invoked>[\w.-]+)[\"']>"
)
# The beginning of a call in JSON, even if the model used the wrong quotes or never closed it.
_CALL_START = re.compile(
    rf"""(?:[{{\[]\s*(?:["'](?:{"|".join(_OTHER_KEYS)})["']\s*:\s*["'][^"']{{0,80}}["']\s*,\s*){{0,3}}"""
    r"""(?:["'](?:tool_calls|function)["']\s*:\s*)?){1,4}"""
    rf"""["'](?:{"|".join(_NAME_KEYS)})["']\s*:\s*["'](?:{re.escape(_NAMESPACE)})?(?P<name>[^"']{{1,80}})["']"""
    rf"""\s*,\s*["'](?:{"|".join(_ARGUMENT_KEYS)})["']\s*:\s*["']?\s*\{{"""
)
_TOKEN = re.compile(
    r"""(?P<quote>["'])(?:[^"'\\]|\\.|(?!(?P=quote))["'])*(?P<end>(?P=quote)|\Z|\\\Z)|[{}\[\],]""", re.DOTALL
)
_INLINE_CODE = re.compile(r"(?<!`)`\Z")
_SIGN = re.compile(r"[{\[<`]")
_TOOL_FENCE = re.compile(r"```tool\w*\s(?P<content>(?:(?!```).)*)", re.DOTALL)
_LONGEST_OPENING = 200
_MOST_ATTEMPTS = 100  # Attempts to find JSON in a text: more would make long texts slow.


def written_call(text: str, tools: Collection[str], *, truncated: bool = False) -> str | None:
    """Return the tool that a text calls, if a model wrote the call as text.

    A tag or a token of a call counts anywhere. JSON that names an offered tool, fenced or bare, counts if the
    text begins or ends with it: in the middle of an answer it is an example. In an answer that was
    `truncated`, the call at the end may be cut off.
    """
    if not tools or not _SIGN.search(text):
        return None
    return (
        _tagged_call(text, tools)
        or _fenced_call(text, tools)
        or _document_call(text, tools)
        or _malformed_call(text, tools, truncated=truncated)
    )


def _tagged_call(text: str, tools: Collection[str]) -> str | None:
    names = "|".join(map(re.escape, sorted(tools, key=len, reverse=True)))
    begins = re.compile(rf"\s*(?:(?P<name>{names})\b|[{{\[]\s*[{{\"]|<\w|<｜)")
    for tag in _CALL_TAG.finditer(text):
        if _INLINE_CODE.search(text, max(0, tag.start() - 3), tag.start()):
            continue  # A mention.
        if named := tag["name"] or tag["invoked"]:
            return str(named)
        if found := begins.match(text, tag.end()):
            near = re.compile(rf"\b(?:{names})\b").search(
                text, found.start(), found.start() + _LONGEST_OPENING
            )
            return near[0] if near else "a tool"
    return None


def _fenced_call(text: str, tools: Collection[str]) -> str | None:
    contents = (fence["content"] for fence in _TOOL_FENCE.finditer(text))
    named = (each for content in contents for each in tools if re.search(rf"\b{re.escape(each)}\b", content))
    return next(named, None)


def _document_call(text: str, tools: Collection[str]) -> str | None:
    for start, end, document in documents_in(text):
        first, last = _begins(text, start), _END.match(text, end) is not None
        if (first or last) and (name := _named_tool(document, tools, whole=first and last)):
            return name
    return None


def _begins(text: str, start: int) -> bool:
    """Return whether a text begins with the document at `start` or its opening."""
    return start < _LONGEST_OPENING and not _OPENING.sub("", text[:start]).strip()


def _malformed_call(text: str, tools: Collection[str], *, truncated: bool) -> str | None:
    """Return the tool that a text calls in malformed JSON.

    It may be unclosed, or have the wrong quotes.
    """
    found = _CALL_START.search(text)
    if found is None or found["name"] not in tools:
        return None
    start, is_json, _ = next(_decoded(text, found.start()))
    if is_json:
        return None  # It was judged as a document.
    end = _end_of_brackets(text, start)
    opened = _OPENING.search(text, max(0, start - _LONGEST_OPENING), start)
    ends = (truncated or opened) if end is None else _END.match(text, end)
    return found["name"] if ends or _begins(text, start) else None


def _end_of_brackets(text: str, start: int) -> int | None:
    """Return where the brackets that open at `start` are closed; None if they are not."""
    depth = 0
    for token in _TOKEN.finditer(text, start):
        if token[0] in "{[":
            depth += 1
        elif token[0] in "}]":
            depth -= 1
            if depth == 0:
                return token.end()
    return None


def documents_in(text: str) -> Iterator[tuple[int, int, Any]]:
    """Yield where the JSON documents in a text begin and end, and each document."""
    attempts = 0
    for start, end, document in _decoded(text):
        if end is not None:
            yield start, end, document
        elif (attempts := attempts + 1) == _MOST_ATTEMPTS:
            return


def _decoded(text: str, position: int = 0) -> Iterator[tuple[int, int | None, Any]]:
    """Yield where JSON may begin, with its end and the document if it is JSON."""
    while found := _DOCUMENT.search(text, position):
        start = found.start()
        try:
            document, position = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            position = start + 1
            yield start, None, None
        else:
            yield start, position, document


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
    if name not in tools or not entry.keys() <= _CALL_KEYS:
        return None  # It may be the record of a call, for example with its result.
    given = _arguments_in(entry)
    complete = isinstance(given, dict | str) or (whole and entry.keys() <= _WITHOUT_ARGUMENTS)
    return name if complete else None


def _name_in(entry: Mapping[str, Any]) -> str | None:
    name = next((entry[key] for key in _NAME_KEYS if isinstance(entry.get(key), str)), None)
    return name if name is None else name.removeprefix(_NAMESPACE)


def _arguments_in(entry: Mapping[str, Any]) -> Any:
    return next((entry[key] for key in _ARGUMENT_KEYS if key in entry), None)


def without_calls(text: str, calls: Sequence[ToolCall]) -> str:
    """Return the text without repetitions of the tool calls."""
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
    """Yield the start and end of every document in the text that repeats a call."""
    for start, end, document in _decoded(text):
        if end is None:
            if _is_cut_off(text[start:], calls):
                yield start, len(text)
                return
            continue
        whole = not text[:start].strip() and not text[end:].strip()
        entries = _calls_in(document)
        if entries and all(_repeats_one(entry, calls, whole=whole) for entry in entries):
            yield start, end


def _repeats_one(entry: Mapping[str, Any], calls: Sequence[ToolCall], *, whole: bool) -> bool:
    name, given = _name_in(entry), _arguments_in(entry)
    if isinstance(given, str):
        given = ToolCall.parse_arguments(given)
    # Many texts contain an empty object, so it must be the whole text.
    return any(
        (entry == call.arguments and bool(entry or whole))
        or (name == call.name and (given is None or given == call.arguments))
        for call in calls
    )


def _is_cut_off(text: str, calls: Sequence[ToolCall]) -> bool:
    """Return whether the text is the beginning of a call's arguments, cut off."""
    begun = "".join(text.split())
    written = ("".join(json.dumps(call.arguments, ensure_ascii=False).split()) for call in calls)
    return len(begun) > 2 and any(arguments.startswith(begun) for arguments in written)


# Text that streams in, held back while it may still be a call

# How hosts and models begin a call that they write out; fences and JSON are read further.
_TAGS = ("<tool_call", "<function", "<invoke name=", "<|python_tag|>", "<|tool", "<｜tool", "[TOOL_CALLS]")
_PART_OF_TAG = re.compile(r"<[\w|｜▁=.-]{0,80}|<invoke name=[\"'][\w.-]{0,80}[\"']?")
_FENCE = re.compile(r"```(\w*)[ \t]*(?:\r?\n)?")
_NEXT_SIGN = re.compile(r"\s*(\S?)")

_ENVELOPE = _CALL_KEYS | {"tool_calls"}
_LONGEST_KEY = 64

# A text is judged with every piece up to this length, then whenever it has grown by a quarter. Once judging
# has taken too long, the text is held back to the end. So the time for a long answer is linear.
_WINDOW = 2000
_MOST_READ = 3_000_000

OfferedTools = Mapping[str, frozenset[str] | None]
"""The tools of a request, each with the arguments that it takes; None if it takes any."""


class VisibleText:
    """Decides which part of a streamed answer can be shown already.

    Text that may still be a call stays hidden; if it is language, the complete answer contains it.
    """

    def __init__(self, tools: Sequence[ToolSpec]) -> None:
        self._specs = tools
        self._tools: OfferedTools | None = None  # Computed once a text has a sign of a call: most have none.
        self._held: list[str] = []
        self._length = 0
        self._judge_at = 0
        self._read = 0
        self._closed = False

    def add(self, piece: str) -> str:
        """Add a piece; return the text that may be shown now."""
        if self._closed:
            return ""
        if not self._length and not _SIGN.search(piece):
            return piece
        self._held.append(piece)
        self._length += len(piece)
        if self._length < self._judge_at:
            return ""
        text = "".join(self._held)
        shown = self._find_call(text)
        self._held, self._length = [text[shown:]], len(text) - shown
        self._judge_at = self._length * 5 // 4 if self._length > _WINDOW else 0
        return text[:shown]

    def _find_call(self, text: str) -> int:
        """Return where text begins that may be a call."""
        if self._tools is None:
            self._tools = {spec.name: _arguments_of(spec) for spec in self._specs}
        start = 0
        while found := _SIGN.search(text, start):
            start = found.start()
            verdict = _may_be_call(text[start : start + _WINDOW], self._tools)
            if verdict is None and len(text) - start > _WINDOW:
                self._read += len(text) - start
                verdict = _may_be_call(text[start:], self._tools) if self._read < _MOST_READ else True
            if verdict is not False:
                self._closed = verdict is True
                return start
            start += 1
        return len(text)


def _may_be_call(text: str, tools: OfferedTools) -> bool | None:
    """Return whether a text may be a call: None if more of it is needed to decide.

    True is final: the text is not shown before the answer is complete.
    """
    if text[0] == "`":
        return _judge_fence(text, tools)
    verdict = _judge_tag(text, tools)
    if verdict is False and text[0] in "{[":
        return _judge_json(text, tools)
    return verdict


def _judge_tag(text: str, tools: OfferedTools) -> bool | None:
    if any(tag.startswith(text) for tag in _TAGS):
        return None
    if not text.startswith(_TAGS):
        return False
    tag = _CALL_TAG.match(text)
    if tag is None:
        return None if _PART_OF_TAG.fullmatch(text) else False
    if tag["name"] or tag["invoked"]:
        return True
    rest = text[tag.end() :].lstrip()
    if rest[:1] in ("{", "[", "<") or rest.startswith(tuple(tools)):
        return True
    if rest[:1] == "`":
        return _judge_fence(rest, tools)
    return None if any(name.startswith(rest) for name in tools) else False


def _judge_fence(text: str, tools: OfferedTools) -> bool | None:
    fence = _FENCE.match(text)
    if fence is None:
        return None if "```".startswith(text) else False
    label, rest = fence[1], text[fence.end() :].lstrip()
    if label.startswith("tool"):
        return True
    if not rest:
        return None
    return _may_be_call(rest, tools) if rest[0] in "{[<" else False


def _judge_json(text: str, tools: OfferedTools) -> bool | None:
    """Judge a document by the keys of its object, or of the objects in its list."""
    if _sign_after(text, 1) not in ("", *("\"'}" if text[0] == "{" else "{")):
        return False
    level, depth = (1 if text[0] == "{" else 2), 0
    judged, at_key = _Object(tools), False
    for token in _TOKEN.finditer(text):
        sign = token[0][0]
        if sign in "{[":
            depth += 1
            if depth == level and sign == "{":
                judged, at_key = _Object(tools), True
        elif sign in "}]":
            depth -= 1
            if depth == level - 1 and not judged.is_call:
                return None if judged.is_empty and not _sign_after(text, token.end()) else False
            if depth == 0:
                return True
        elif depth == level:
            if sign == ",":
                at_key = True
                continue
            if token["end"] != token["quote"]:
                return None if len(token[0]) < _LONGEST_KEY or not at_key else False
            if at_key and _sign_after(text, token.end()) not in ("", ":"):
                return False
            if not judged.takes(_text_of(token[0]), is_key=at_key):
                return False
            at_key = False
    return None


class _Object:
    """An object that may be the arguments of some tools, or a call with a name."""

    def __init__(self, tools: OfferedTools) -> None:
        self._tools = tools
        self._takers = list(tools)
        self._enveloped, self._named = True, False
        self._key = ""
        self.is_empty = True

    @property
    def is_call(self) -> bool:
        """Whether it may be a call; an empty object is one only where it is all there is."""
        return not self.is_empty and bool(self._takers or (self._enveloped and self._named))

    def takes(self, text: str, *, is_key: bool) -> bool:
        """Add a key, or the text of the latest one; return whether it may still be a call."""
        if not is_key:
            if self._enveloped and self._key in _NAME_KEYS:
                self._enveloped = self._named = text.removeprefix(_NAMESPACE) in self._tools
        else:
            self._key, self.is_empty = text, False
            self._takers = [
                name for name in self._takers if (known := self._tools[name]) is None or text in known
            ]
            self._enveloped = self._enveloped and text in _ENVELOPE
            self._named = self._named or text in ("tool_calls", "function")
        return bool(self._takers or self._enveloped)


def _sign_after(text: str, position: int) -> str:
    """Return the next character that is not white space; "" at the end."""
    found = _NEXT_SIGN.match(text, position)
    return found[1] if found else ""


def _text_of(token: str) -> str:
    try:
        return str(msgspec.json.decode(token))
    except (msgspec.DecodeError, UnicodeError):
        return token[1:-1]


def _arguments_of(spec: ToolSpec) -> frozenset[str] | None:
    properties = spec.parameters.get("properties")
    more = spec.parameters.get("additionalProperties", False)
    return frozenset(properties) if isinstance(properties, Mapping) and more is False else None
