"""Text as it streams in, held back while it may still be a tool call that is written as text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from whyloop.rules.repeated import ARGUMENT_KEYS, CALL_TAG, NAME_KEYS, OTHER_KEYS
from whyloop.values.model import ToolSpec

# How hosts and models begin a call that they write out; fences and JSON are read further.
_TAGS = ("<tool_call", "<function", "<|python_tag|>", "<|tool", "<｜tool", "[TOOL_CALLS]")
_PART_OF_TAG = re.compile(r"<[\w|｜▁=.-]{0,80}")
_FENCE = re.compile(r"```(\w*)[ \t]*(?:\r?\n)?")
_CANDIDATE = re.compile(r"[{\[<`]")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*(?P<end>"|\Z|\\\Z)|[{}\[\],]', re.DOTALL)
_COLON = re.compile(r"\s*(?P<sign>\S?)")

# What stands around the arguments of a call that is written as JSON.
_ENVELOPE = frozenset({*NAME_KEYS, *ARGUMENT_KEYS, *OTHER_KEYS, "tool_calls"})
_LONGEST_KEY = 64

# A text is judged with every piece up to this length, then whenever it has grown by a quarter, and held back
# to the end once all that took too long: so the time for a long answer is linear.
_WINDOW = 2000
_MOST_READ = 3_000_000

Arguments = Mapping[str, frozenset[str] | None]
"""The tools that were offered, and the arguments that each one takes; None if it takes any."""


class VisibleText:
    """Decides which part of an answer can be shown already.

    Text that may be a call to the end is decided there: the complete answer has it, if it is language.
    """

    def __init__(self, tools: Sequence[ToolSpec]) -> None:
        self._tools = {spec.name: _arguments_of(spec) for spec in tools}
        self._held: list[str] = []
        self._length = 0
        self._judge_at = 0
        self._read = 0
        self._closed = False

    def add(self, piece: str) -> str:
        """Take a piece; return what may be shown now."""
        if self._closed:
            return ""
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
        start = 0
        while found := _CANDIDATE.search(text, start):
            start = found.start()
            verdict = may_be_call(text[start : start + _WINDOW], self._tools)
            if verdict is None and len(text) - start > _WINDOW:
                self._read += len(text) - start
                verdict = may_be_call(text[start:], self._tools) if self._read < _MOST_READ else True
            if verdict is not False:
                self._closed = verdict is True
                return start
            start += 1
        return len(text)


def may_be_call(text: str, tools: Arguments) -> bool | None:
    """Return whether a text begins with a tool call: True if it may be one to its end, None if undecided."""
    if text[0] == "`":
        return _judge_fence(text, tools)
    verdict = _judge_tag(text, tools)
    if verdict is False and text[0] in "{[":
        return _judge_json(text, tools)
    return verdict


def _judge_tag(text: str, tools: Arguments) -> bool | None:
    if any(tag.startswith(text) for tag in _TAGS):
        return None
    if not text.startswith(_TAGS):
        return False
    tag = CALL_TAG.match(text)
    if tag is None:
        return None if _PART_OF_TAG.fullmatch(text) else False
    if tag["name"]:
        return True
    rest = text[tag.end() :].lstrip()
    if rest[:1] in ("{", "[", "<") or rest.startswith(tuple(tools)):
        return True
    if rest[:1] == "`":
        return _judge_fence(rest, tools)
    return None if any(name.startswith(rest) for name in tools) else False


def _judge_fence(text: str, tools: Arguments) -> bool | None:
    fence = _FENCE.match(text)
    if fence is None:
        return None if "```".startswith(text) else False
    label, rest = fence[1], text[fence.end() :].lstrip()
    if label.startswith("tool"):
        return True
    if not rest:
        return None
    return may_be_call(rest, tools) if rest[0] in "{[<" else False


def _judge_json(text: str, tools: Arguments) -> bool | None:
    """Judge a document by the keys of its object, or of the objects in its list."""
    first = _COLON.match(text, 1)
    expected = '"}' if text[0] == "{" else "{"
    if first is not None and first["sign"] and first["sign"] not in expected:
        return False
    level, depth = (1 if text[0] == "{" else 2), 0
    judged = _Object(tools)
    key, at_key = "", False
    for token in _TOKEN.finditer(text):
        sign = token[0][0]
        if sign in "{[":
            depth += 1
            if depth == level and sign == "{":
                judged, at_key = _Object(tools), True
        elif sign in "}]":
            depth -= 1
            if depth == level - 1 and not judged.is_call:
                return _judge_empty(text, token.end()) if judged.is_empty else False
            if depth == 0:
                return True
        elif depth == level:
            if sign == ",":
                at_key = True
                continue
            if token["end"] != '"':
                return None if len(token[0]) < _LONGEST_KEY or not at_key else False
            colon = _COLON.match(text, token.end())
            if at_key and colon is not None and colon["sign"] not in ("", ":"):
                return False
            word = _text_of(token[0])
            key, fits = (word, judged.takes_key(word)) if at_key else (key, judged.takes_value(key, word))
            if not fits:
                return False
            at_key = False
    return None


class _Object:
    """An object that may be the arguments of some tools, or a call with a name."""

    def __init__(self, tools: Arguments) -> None:
        self._tools = tools
        self._takers = list(tools)
        self._enveloped, self._named = True, False
        self.is_empty = True

    @property
    def is_call(self) -> bool:
        """True if nothing speaks against a call; an empty object is one only where it is all there is."""
        return not self.is_empty and bool(self._takers or (self._enveloped and self._named))

    def takes_key(self, key: str) -> bool:
        self.is_empty = False
        self._takers = [name for name in self._takers if (known := self._tools[name]) is None or key in known]
        self._enveloped = self._enveloped and key in _ENVELOPE
        self._named = self._named or key in ("tool_calls", "function")
        return bool(self._takers or self._enveloped)

    def takes_value(self, key: str, text: str) -> bool:
        if self._enveloped and key in NAME_KEYS:
            self._enveloped = self._named = text in self._tools
        return bool(self._takers or self._enveloped)


def _judge_empty(text: str, end: int) -> bool | None:
    return False if text[end:].strip() else None


def _text_of(token: str) -> str:
    try:
        return str(msgspec.json.decode(token))
    except (msgspec.DecodeError, UnicodeError):
        return token[1:-1]


def _arguments_of(spec: ToolSpec) -> frozenset[str] | None:
    properties = spec.parameters.get("properties")
    more = spec.parameters.get("additionalProperties", False)
    return frozenset(properties) if isinstance(properties, Mapping) and more is False else None
