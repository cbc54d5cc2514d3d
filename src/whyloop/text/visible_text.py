"""The part of a streamed answer that can be shown: the text before a call written as text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

import msgspec

from whyloop.text.turns import SLICE, Search, slices
from whyloop.text.written_calls import CALL_KEYS, CALL_TAG, NAME_KEYS, NAMESPACE, SIGN
from whyloop.values.model import ToolSpec

_TOKEN = re.compile(
    r"""(?P<quote>["'])(?:[^"'\\]|\\.|(?!(?P=quote))["'])*(?P<end>(?P=quote)|\Z|\\\Z)|[{}\[\],]""", re.DOTALL
)

# How hosts and models begin a call that they write out; fences and JSON are read further.
_TAGS = ("<tool_call", "<function", "<invoke name=", "<|python_tag|>", "<|tool", "<｜tool", "[TOOL_CALLS]")
_PART_OF_TAG = re.compile(r"<[\w|｜▁=.-]{0,80}|<invoke name=[\"'][\w.-]{0,80}[\"']?")
_FENCE = re.compile(r"```(\w*)[ \t]*(?:\r?\n)?")
_NEXT_SIGN = re.compile(r"\s*(\S?)")

_ENVELOPE = CALL_KEYS | {"tool_calls"}
_LONGEST_KEY = 64

# A text is judged with every piece up to this length, then whenever it has grown by a quarter. One that is
# longer than a slice is held back to the end. So the time for a long answer is linear.
_WINDOW = 256
# The same if this many texts that looked like a call were none, besides one for so many characters.
_MOST_REFUSED = 200
_APART = 64

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
        self._seen = 0
        self._refused = 0
        self._closed = False

    def add(self, piece: str) -> str:
        """Add a piece; return the text that may be shown now."""
        if self._closed:
            return ""
        self._seen += len(piece)
        text = piece
        if self._length:
            self._held.append(piece)
            self._length += len(piece)
            if self._length < self._judge_at:
                return ""
            text = "".join(self._held)
        elif not SIGN.search(piece):
            return piece
        shown = self._find_call(text)
        self._length = len(text) - shown
        if not self._length:
            return text
        self._held = [text[shown:]]
        self._judge_at = self._length * 5 // 4 if self._length > _WINDOW else 0
        return text[:shown]

    def _find_call(self, text: str) -> int:
        """Return where text begins that may be a call."""
        if self._tools is None:
            self._tools = {spec.name: _arguments_of(spec) for spec in self._specs}
            self._start = _start_of_call(*_known(self._tools))
        start = 0
        while found := self._start.search(text, start):
            start = found.start()
            verdict = _may_be_call(text[start : start + _WINDOW], self._tools)
            if verdict is None and len(text) - start > _WINDOW:
                verdict = _may_be_call(text[start:], self._tools) if len(text) - start <= SLICE else True
            if verdict is False:
                self._refused += 1
                verdict = self._refused > _MOST_REFUSED + self._seen // _APART
            if verdict is not False:
                self._closed = verdict is True
                return start
            start += 1
        return len(text)


def text_before_call(text: str, tools: Sequence[ToolSpec]) -> Search[str]:
    """Return the part of a complete answer that can be shown, and stop after each slice."""
    visible, shown = VisibleText(tools), []
    for part in slices(text):
        shown.append(visible.add(part))
        yield
    return "".join(shown)


def _known(tools: OfferedTools) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """Return the names of the tools, and of all their arguments; None for any."""
    taken = list(tools.values())
    if None in taken:
        return tuple(sorted(tools)), None
    return tuple(sorted(tools)), tuple(sorted({name for names in taken for name in names or ()}))


@lru_cache(maxsize=64)
def _start_of_call(names: tuple[str, ...], arguments: tuple[str, ...] | None) -> re.Pattern[str]:
    """Return the pattern of what may begin a call of these tools.

    It passes over what cannot, however much of it a text has.
    """
    tools = "|".join(map(re.escape, names))
    # A key or a name that is not complete yet, or has an escape.
    part = r"""[^"'\\]{0,80}(?:\Z|\\)"""
    if arguments is None:
        keys = r"""[^"'\\]*+["']\s*+(?::|\Z)"""
    else:
        plain, named = (
            "|".join(map(re.escape, sorted(each)))
            for each in ((_ENVELOPE - {*NAME_KEYS}) | {*arguments}, {*NAME_KEYS} - {*arguments})
        )
        value = rf"""(?!["'](?!(?:{re.escape(NAMESPACE)})?(?:{tools})["']|{part}))"""
        keys = rf"""(?:{plain})["']\s*+(?::|\Z)|(?:{named or "(?!)"})["']\s*+(?:\Z|:\s*+{value})"""
    inside = rf"""\s*+(?:\Z|\}}\s*+\Z|["'](?:{keys}|{part}))"""
    fence = r"`(?:\Z|`(?:\Z|`(?:tool|\w*+[ \t]*+(?:\r?\n)?\s*+(?:\Z|[{\[<]))))"
    tags = "|".join(_begun(tag[1:]) for tag in _TAGS if tag[0] == "<")
    bracket = _begun(_TAGS[-1][1:])
    return re.compile(rf"\{{{inside}|\[(?:\s*+(?:\Z|\{{{inside})|{bracket})|{fence}|<(?:\Z|{tags})")


def _begun(literal: str) -> str:
    """Return the pattern of a text, or of its beginning at the end of all text."""
    pattern = ""
    for char in reversed(literal):
        pattern = re.escape(char) + (f"(?:{pattern}|\\Z)" if pattern else "")
    return pattern


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
    tag = CALL_TAG.match(text)
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
            if self._enveloped and self._key in NAME_KEYS:
                self._enveloped = self._named = text.removeprefix(NAMESPACE) in self._tools
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
