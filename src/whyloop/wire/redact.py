"""Taking secrets out of data: by the name of a value, and by what a text looks like."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from whyloop.values import plain
from whyloop.values.messages import MAX_DEPTH
from whyloop.values.secrets import PATTERNS, REMOVED, SECRET_KEYS
from whyloop.wire.config import SlimSerializationConfig

UNREADABLE = "[cannot be written]"

# A value that is named in a text which is no JSON: 'password': 'x', password=x, and password: x on a line
# of its own. What is repeated is bounded, so that a long text without spaces costs no more than another.
_NAMED = r"""
    (?P<key> (?:%s) [\w.-]{0,40} )
    (?P<is> \\{0,4} ["'] \s{0,3} : \s{0,3} | [ \t]{0,3} = (?![=>]) [ \t]{0,3} )
    (?P<value>
        "(?:[^"\\]|\\.)*"? | '(?:[^'\\]|\\.)*'? | \\+["'][^"'\\]*
        | \[[^\]]*\]? | \{[^}]*\}? | [^\s"',;&)\]}\\]+
    )
"""
_ON_A_LINE = r"""
    ^ (?P<is> [ \t>*#-]{0,20} (?: \w [\w.-]{0,59}? )? (?P<key> %s ) [\w.-]{0,40} [ \t]? : [ \t]+ )
    (?P<value> \S.* ) $
"""
_HARMLESS = frozenset(["null", "true", "false", "None", "True", "False", '""', "''"])


class Redactor:
    """Plain data with its secrets replaced by "[removed]"."""

    def __init__(self, config: SlimSerializationConfig) -> None:
        self._active = config.redact
        self._own_patterns = tuple(re.compile(pattern) for pattern in config.secret_patterns)
        keys = "|".join(re.escape(key).replace("_", "[-_. ]?") for key in config.secret_keys) or "(?!)"
        # Searched in lower case, which is ten times as fast as a search that ignores the case.
        self._keys = re.compile(keys.lower())
        flags = re.IGNORECASE | re.VERBOSE
        self._named = re.compile(_NAMED % keys, flags | re.DOTALL)
        self._on_a_line = re.compile(_ON_A_LINE % keys, flags | re.MULTILINE)

    def data(self, value: Any) -> Any:
        """A value as plain data, secrets removed; what has no form that could be written is named so."""
        if isinstance(value, str):
            return self._text(value, 0)
        if isinstance(value, Mapping):
            return self._entries({str(key): _as_plain(inner) for key, inner in value.items()}, 0)
        return self._inner(_as_plain(value), 0)

    def _inner(self, value: Any, depth: int) -> Any:
        if isinstance(value, str):
            return self._text(value, depth)
        if isinstance(value, dict | list) and depth > MAX_DEPTH:
            return UNREADABLE
        if isinstance(value, dict):
            return self._entries(value, depth)
        if isinstance(value, list):
            return [self._inner(item, depth + 1) for item in value]
        return REMOVED if _is_number(value) and self._is_own(value) else value

    def _entries(self, entries: dict[str, Any], depth: int) -> dict[str, Any]:
        return {
            self._text(key, depth): REMOVED if self._hides(key, value) else self._inner(value, depth + 1)
            for key, value in entries.items()
        }

    def _hides(self, key: str, value: Any) -> bool:
        """True if the value is a secret by its name; nothing at all is none, nor is a count of tokens."""
        if not self._active or value is None or isinstance(value, bool) or value in ("", [], {}):
            return False
        found = self._keys.search(key.lower())
        return found is not None and not (_is_number(value) and found[0] == "token")

    def _is_own(self, number: float) -> bool:
        return self._active and any(pattern.search(str(number)) for pattern in self._own_patterns)

    def _text(self, text: str, depth: int) -> str:
        if not self._active or not text:
            return text
        if depth <= MAX_DEPTH and text.lstrip()[:1] in ("{", "["):
            text = self._json(text, depth)
        for pattern in (*PATTERNS, *self._own_patterns):
            text = pattern.sub(REMOVED, text)
        if self._keys.search(text.lower()):
            text = self._on_a_line.sub(_line_hidden, self._named.sub(_name_hidden, text))
        return text

    def _json(self, text: str, depth: int) -> str:
        """A text that is JSON, with what its keys give away removed; any other text as it is."""
        try:
            data = msgspec.json.decode(text)
            shown = self._inner(data, depth + 1)
            return text if shown == data else msgspec.json.encode(shown).decode()
        except (msgspec.DecodeError, RecursionError, UnicodeError):
            return text


def _as_plain(value: Any) -> Any:
    try:
        return plain.encode(value)
    except Exception:  # Whatever people put into their notes, a snapshot is written.
        return UNREADABLE


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_harmless(found: re.Match[str]) -> bool:
    value = found["value"].strip().rstrip(",")
    return value in _HARMLESS or ("token" in found["key"].lower() and value.replace(".", "").isdigit())


def _name_hidden(found: re.Match[str]) -> str:
    if _is_harmless(found):
        return found[0]
    value = found["value"]
    escapes = len(value) - len(value.lstrip("\\"))
    quote = value[: escapes + 1] if value[escapes : escapes + 1] in ("'", '"') else ""
    # The end of an escaped text is the next quotation mark, which is not part of the value.
    end = "" if escapes else quote
    if not quote and ":" in found["is"]:
        quote = end = '"'
    return f"{found['key']}{found['is']}{quote}{REMOVED}{end}"


def _line_hidden(found: re.Match[str]) -> str:
    return found[0] if _is_harmless(found) else found["is"] + REMOVED


_redacted = Redactor(SlimSerializationConfig()).data
# What a text in lower case has in it if there is anything to remove: the beginning of a credential, or a
# name that gives one away. Most texts have neither, and need not be searched for all that there is.
_CREDENTIAL = re.compile(r"://|eyj|aiza|akia|asia|bearer |private key|[-_][a-z0-9_-]{16}")
_NAMES = (
    "|".join(SECRET_KEYS)
    .replace("_", "[-_. ]?")
    .replace("token", r"token(?!\w{0,40}\":(?:[-\d.]+|null)[,}])")
)
_NAME = re.compile(_NAMES)


def without_secrets(value: Any) -> Any:
    """Plain data without what looks like a credential."""
    try:
        text = (value if isinstance(value, str) else msgspec.json.encode(value).decode()).lower()
    except (UnicodeError, RecursionError):
        return _redacted(value)
    names = (":" in text or "=" in text) and _NAME.search(text)
    return _redacted(value) if names or _CREDENTIAL.search(text) else value
