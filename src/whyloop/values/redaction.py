"""Redaction: the rules that remove secrets from everything that leaves the process.

A secret is recognized by its form (a key with a prefix, a token, the password in an address), or by its name
(`password=`, `"apiKey":`, `{"name": "Authorization", "value": …}`). Every rule takes time in proportion to
the text: repetitions are bounded or possessive, and no part is searched twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct

from whyloop.errors import ConfigurationError
from whyloop.values import encoding
from whyloop.values.credentials import (
    REMOVED,
    SECRET_NAMES,
    may_have_credentials,
    without_credentials,
)
from whyloop.values.encoding import MAX_DEPTH, UNREADABLE, is_too_deep

LONGEST = 512
"""Each rule recognizes a secret by at most this many characters, so a text may be cut after as many more."""

_MOST_READ = 50_000


class Redaction(Struct, frozen=True, cache_hash=True):
    """Which texts and values are secret; all of them are replaced by "[removed]"."""

    patterns: tuple[str, ...] = ()
    """Regular expressions for your own secrets, besides the usual credentials. A secret at the edge of a
    shortened text is found if it has at most 512 characters. In lists of sessions it is found if it has no
    spaces.
    """
    names: tuple[str, ...] = SECRET_NAMES
    """The terms that mark the name of a secret value."""

    def __post_init__(self) -> None:
        for field in ("patterns", "names"):
            texts = getattr(self, field)
            if not isinstance(texts, tuple) or not all(isinstance(text, str) and text for text in texts):
                raise _invalid(field, f"{texts!r}: use a tuple of texts that are not empty")
        for pattern in self.patterns:
            _refuse_useless(pattern)

    def text(self, text: str) -> str:
        """Return the text without its secrets; JSON stays JSON.

        Args:
            text: The text.
        """
        return _rules(self).text(text)

    def beginning(self, text: str, length: int) -> str:
        """Return the beginning of a text without its secrets.

        No more of the text is read than needed. If the text is longer, one more character is returned, so
        that the caller can tell.

        Args:
            text: The text.
            length: The number of characters.
        """
        window = length + LONGEST
        while window < len(text):
            shown = self.text(text[:window])
            if len(shown) >= length + LONGEST:  # A secret that was cut lies beyond the returned text.
                return shown[: length + 1]
            if window > length + _MOST_READ:  # Almost all of the text is secret.
                return shown[: max(0, len(shown) - LONGEST)] + REMOVED
            window *= 2
        return self.text(text)[: length + 1]

    def data(self, value: Any) -> Any:
        """Return a value as plain data without secrets, or marked if JSON cannot hold it.

        Args:
            value: Any value.
        """
        return _rules(self).data(value)


def _refuse_useless(pattern: str) -> None:
    try:
        found = re.compile(pattern).search("")
    except (re.error, OverflowError, RecursionError) as error:
        raise _invalid("patterns", f"{pattern!r}: not a regular expression: {error}") from None
    if found:
        raise _invalid("patterns", f"{pattern!r}: it matches an empty text, and so every text")


def _invalid(field: str, problem: str) -> ConfigurationError:
    return ConfigurationError(f"Redaction: invalid {field} {problem}")


# Secrets by their name


def _nested(depth: int) -> str:
    """Return the pattern of a list or an object of this depth, even without its end."""
    inner = f"|{_nested(depth - 1)}" if depth else ""
    return rf"[\[{{](?:[^\[\]{{}}]++{inner})*+[\]}}]?"


_VALUE = rf"""
    "(?:[^"\\]++|\\.)*+"? | '(?:[^'\\]++|\\.)*+'? | \\+["'][^"'\\]*+
    | {_nested(4)} | [^\s"',;&<)\]}}\\]++
"""
_GIVEN = re.compile(
    rf"""
    [\w.-]{{0,40}}+
    (?P<is>
        \\{{0,4}} ["'] \s{{0,3}} : \s{{0,3}}
        | [ \t]{{0,3}} :?= (?![=>]) [ \t]{{0,3}}
        | (?: \\{{0,4}} ["'] \s{{0,3}},? | , | \n ) \s{{0,20}}
          \\{{0,4}} ["']? [vV]alue \\{{0,4}} ["']? [ \t]{{0,3}} [:=] [ \t]{{0,3}}
        | > (?= [^<>\s]{{1,200}} </ )
        | [ \t]{{0,3}} : [ \t]{{0,3}} (?= \\{{0,4}} ["'`] [^\s"'`\\]{{4,200}} \\{{0,4}} ["'`] )
        | ["']? [ \t]{{0,3}} => [ \t]{{0,3}} (?= ["'] [^\s"'\\]{{4,200}} ["'] )
    )
    (?P<value> {_VALUE} )
    """,
    re.VERBOSE | re.DOTALL,
)
# The same pair with the value before the name.
_VALUE_AND_NAME = re.compile(
    r"""
    (["'] [vV]alue ["'] \s{0,3} : \s{0,3})
    (?P<value> "(?:[^"\\]++|\\.)*+" | '(?:[^'\\]++|\\.)*+' )
    (\s{0,3} , \s{0,20} ["'] (?:[nN]ame|[kK]ey|header) ["'] \s{0,3} : \s{0,3} ["'] (?P<name>[^"'\\]{1,60}) )
    """,
    re.VERBOSE | re.DOTALL,
)
_SCHEMES = "Basic|Bearer|Digest|Token|Negotiate|ApiKey|Key|AWS4-HMAC-SHA256"
_COLON = re.compile(
    rf"""
    (?P<is> [\w.-]{{0,40}}+ [ \t]{{0,3}} : [ \t]{{1,3}} (?P<scheme> (?:{_SCHEMES}) [ \t]{{1,3}} )? )
    (?P<value> [^\s"',;<>()\[\]{{}}\\]{{1,200}} )
    """,
    re.VERBOSE | re.IGNORECASE,
)
_LINE = re.compile(r"(?P<is>[\w.-]{0,40}+[ \t]?:[ \t]+)(?P<value>\S[^\n]*+)")
_LINE_IN_QUOTES = re.compile(r"(?P<is>[\w.-]{0,40}+[ \t]?:[ \t]+)(?P<value>[^\s\"\\][^\n\"\\]*+)")
_LINE_START = re.compile(r"(\A|\n|\\n|\")[ \t>*#-]{0,20}(?:\w[\w.-]{0,59})?\Z")
_LINE_REACH = 80
_HARMLESS = frozenset(["null", "true", "false", "None", "True", "False", '""', "''", REMOVED])
_WORDS = frozenset(["none", "null", "true", "false", "string", "required", "optional", "undefined"])
_HEADERS = frozenset(["authorization", "proxy-authorization", "cookie", "set-cookie", "x-api-key", "api-key"])
_NAME_KEYS = ("name", "key", "header", "Name", "Key")
_SHORTEST = 8  # A shorter text has no room for a name and a secret, nor for a form.
# Each name takes about 3 µs. A text with more names than this is hostile: the rest of it is removed.
_MOST_NAMED = 20_000


# Not a token but a number of tokens, as in completion_tokens_details and TokenUsageLimit.
_COUNTED = re.compile(r"s?(?:[-_ ]?(?:details|counts?|usage|limits?))+(?![a-z0-9])", re.IGNORECASE)
_COUNT = re.compile(r"\d[\d.,]*+(?![^\s;)])")


class _Rules:
    """The rules of a `Redaction`, compiled."""

    def __init__(self, redaction: Redaction) -> None:
        self._own = tuple([re.compile(pattern) for pattern in redaction.patterns])
        names = (
            "|".join(re.escape(name.lower()).replace("_", "[-_. ]?") for name in redaction.names) or "(?!)"
        )
        self._term_in = lru_cache(maxsize=1000)(self._find_term)
        # Searched in lower case, which is ten times as fast as ignoring case.
        self._name = re.compile(names)
        self._named = re.compile(
            rf"""(?:{names})(?=[\w.-]{{0,40}}+(?:[\s\\"']{{0,9}}+[:=>]|[\s\\"',]{{1,30}}+value))"""
        )

    def data(self, value: Any) -> Any:
        """Return a value as plain data without its secrets."""
        if isinstance(value, str):
            return self.text(value)
        try:
            encoded = msgspec.json.encode(value, enc_hook=encoding.describe)
            data, lower = msgspec.json.decode(encoded), _lower(encoded.decode())
        except Exception:  # Only the parts that JSON can hold are kept.
            return self._parts(value)
        found = self._own or self._name.search(lower) or may_have_credentials(lower)
        # JSON that is shorter than two brackets for each level cannot be too deep.
        if found or (len(lower) > 2 * MAX_DEPTH and is_too_deep(data)):
            return self._inner(data, 0)
        return data

    def _parts(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return self._entries(
                {str(key): encoding.encode_or_mark(inner) for key, inner in value.items()}, 0
            )
        return self._inner(encoding.encode_or_mark(value), 0)

    def text(self, text: str, depth: int = 0) -> str:
        """Return the text without its secrets."""
        if len(text) >= _SHORTEST:
            lower = _lower(text)
            shown = without_credentials(text, lower)
            if shown is not text:
                text, lower = shown, _lower(shown)
            has_pair = "value" in lower and self._name.search(lower)
            if has_pair or self._named.search(lower):
                text = self._without_named(text, lower, depth)
            if has_pair:
                text = _VALUE_AND_NAME.sub(self._without_value, text)
        for pattern in self._own:
            text = pattern.sub(REMOVED, text)
        return text

    def _without_value(self, found: re.Match[str]) -> str:
        is_secret = self._hides(found["name"], found["value"][1:-1])
        quote = found["value"][0]
        return f"{found[1]}{quote}{REMOVED}{quote}{found[3]}" if is_secret else found[0]

    # Plain data

    def _inner(self, value: Any, depth: int) -> Any:
        if isinstance(value, str):
            return self.text(value, depth)
        if isinstance(value, dict | list) and depth > MAX_DEPTH:
            return UNREADABLE
        if isinstance(value, dict):
            return self._entries(value, depth)
        if isinstance(value, list):
            if len(value) == 2 and isinstance(value[0], str) and value[0].lower() in _HEADERS:
                return [value[0], REMOVED]
            return [self._inner(item, depth + 1) for item in value]
        return REMOVED if _is_number(value) and self._is_own(value) else value

    def _entries(self, entries: dict[str, Any], depth: int) -> dict[str, Any]:
        hidden = self._hidden_by_pair(entries)
        return {
            self.text(key, depth): REMOVED
            if key == hidden or self._hides(key, value)
            else self._inner(value, depth + 1)
            for key, value in entries.items()
        }

    def _hidden_by_pair(self, entries: dict[str, Any]) -> str | None:
        """Return the key of the secret in {"name": "password", "value": …} or {"user": …, "pass": …}."""
        if isinstance(entries.get("pass"), str) and ("user" in entries or "username" in entries):
            return "pass"
        held = "value" if "value" in entries else "Value" if "Value" in entries else None
        if held is None:
            return None
        names = [entries[key] for key in _NAME_KEYS if key in entries]
        is_secret = any(isinstance(name, str) and self._hides(name, entries[held]) for name in names)
        return held if is_secret else None

    def _hides(self, key: str, value: Any) -> bool:
        """Return whether a value is secret by its name; empty values and counts are not."""
        term = self._term_in(key)
        if term is None or value is None or isinstance(value, bool) or value in ("", [], {}, REMOVED):
            return False
        return not (term == "token" and _is_number(value))

    def _find_term(self, name: str) -> str | None:
        """Return the term that marks a name as that of a secret."""
        return next(
            (found[0] for found in self._name.finditer(_lower(name)) if _is_whole_word(name, found)), None
        )

    def _is_own(self, number: float) -> bool:
        return any(pattern.search(str(number)) for pattern in self._own)

    # Text

    def _without_named(self, text: str, lower: str, depth: int) -> str:
        if depth <= MAX_DEPTH and text.lstrip()[:1] in ("{", "["):
            shown = self._without_named_in_json(text, depth)
            if shown is not None:
                return shown
        return self._without_named_in_text(text, lower)

    def _without_named_in_json(self, text: str, depth: int) -> str | None:
        """Hide the named values of a text that is JSON.

        Only a parser knows where an object ends, or a line in a text. Return None if the text is not JSON, or
        if the parsed value has no such values: a key may occur twice.
        """
        try:
            data = [msgspec.json.decode(text)]
            return msgspec.json.encode(data[0]).decode() if self._hide_named(data, depth) else None
        except (msgspec.DecodeError, RecursionError, UnicodeError):
            return None

    def _hide_named(self, data: Any, depth: int) -> bool:
        """Hide the named values of decoded JSON in place; return whether there were any."""
        is_object = type(data) is dict
        hidden = self._hidden_by_pair(data) if is_object else None
        changed = False
        entries: Iterable[tuple[Any, Any]] = data.items() if is_object else enumerate(data)
        for key, value in entries:
            kind = type(value)
            if is_object and (key == hidden or self._hides(key, value)):
                shown = REMOVED
            elif kind is str:
                if len(value) < _SHORTEST or (":" not in value and "=" not in value):
                    continue
                shown = self._line_by_line(value, depth + 1)
            elif kind is not dict and kind is not list:
                continue
            elif depth > MAX_DEPTH:
                shown = UNREADABLE
            else:
                changed = self._hide_named(value, depth + 1) or changed
                continue
            if shown is not value:
                data[key] = shown
                changed = True
        return changed

    def _line_by_line(self, text: str, depth: int) -> str:
        lower = _lower(text)
        return self._without_named(text, lower, depth) if self._named.search(lower) else text

    def _without_named_in_text(self, text: str, lower: str) -> str:
        kept: list[str] = []
        done = 0
        for count, name in enumerate(self._named.finditer(lower)):
            if count > _MOST_NAMED:
                return "".join([*kept, text[done : max(done, name.start())], REMOVED])
            if name.start() < done or not _is_whole_word(text, name):
                continue
            given = _given(text, name)
            if given is not None:
                kept += (text[done : given.start("value")], _replacement(given))
                done = given.end()
        return "".join([*kept, text[done:]]) if done else text


@lru_cache(maxsize=64)
def _rules(redaction: Redaction) -> _Rules:
    return _Rules(redaction)


def _lower(text: str) -> str:
    """Return the text in lower case, with every character at the same index."""
    # The only letter whose lower case has two characters.
    return text.replace("\u0130", "i").lower()


def _is_whole_word(text: str, name: re.Match[str]) -> bool:
    """Return whether a term ends a word: in tokens and tokenId, not in tokenizer."""
    at = name.end()
    if name[0] == "token" and _COUNTED.match(text, at):
        return False
    after = text[at : at + 1]
    if after == "s" or (after == "S" and text[at - 1].isupper()):
        at += 1
        after = text[at : at + 1]
    return not (after.islower() or (after.isupper() and text[at - 1].isupper()))


def _given(text: str, name: re.Match[str]) -> re.Match[str] | None:
    """Return the match of the value that follows a name, if it could be secret."""
    given = _GIVEN.match(text, name.end())
    if given is not None:
        # "Unexpected token: 'end'" is an ordinary error.
        is_word = name[0] == "token" and given["is"].strip() == ":" and not _is_random(given["value"])
        return None if is_word or _is_harmless(given["value"], name[0]) else given
    start = _LINE_START.search(text[max(0, name.start() - _LINE_REACH) : name.start()])
    if start is not None and (name.start() <= _LINE_REACH or start[1]):
        line = (_LINE_IN_QUOTES if start[1] in ('"', "\\n") else _LINE).match(text, name.end())
        if line is not None:
            return None if _is_harmless(line["value"], name[0]) else line
    given = _COLON.match(text, name.end())
    if given is None or not (given["scheme"] or _is_random(given["value"])):
        return None
    return None if _is_harmless(given["value"], name[0]) else given


def _is_random(value: str) -> bool:
    """Return whether a value in a sentence looks secret: it has letters and digits."""
    return (
        len(value) >= 6
        and not value.isalpha()
        and any(map(str.isdigit, value))
        and any(map(str.isalpha, value))
    )


def _is_harmless(value: str, name: str) -> bool:
    value = value.strip().rstrip(",")
    return (
        value in _HARMLESS
        or value.strip("\"'`\\").lower() in _WORDS
        or (name == "token" and _COUNT.match(value) is not None)
    )


def _replacement(given: re.Match[str]) -> str:
    value, operator = given["value"], given["is"]
    escapes = len(value) - len(value.lstrip("\\"))
    quote = value[: escapes + 1] if value[escapes : escapes + 1] in ("'", '"') else ""
    # The end of an escaped text is the next quotation mark, which is not part of the value.
    end = "" if escapes else quote
    if not quote and given.re is _GIVEN and operator.rstrip().endswith(":") and not operator[:1].isspace():
        quote = end = '"'  # A number in JSON.
    return f"{quote}{REMOVED}{end}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


DEFAULT_REDACTION = Redaction()


# Secrets consist of these; Chinese and Japanese have no spaces between words.
_AT_CUT = re.compile(r"[\w!#$%&*+./:;=?@^~-]++…\Z", re.ASCII)


def redacted_cut(text: str, redaction: Redaction | None = DEFAULT_REDACTION) -> str:
    """Return a text that `shortened` may have cut, without its secrets.

    A secret that the cut falls into does not look like one, so the word at the cut is left out.
    """
    if redaction is None:
        return text
    return redaction.text(_AT_CUT.sub("…", text) if text.endswith("…") else text)


def redacted(value: Any, redaction: Redaction | None = DEFAULT_REDACTION) -> Any:
    """Return plain data without its secrets; unchanged if the redaction is None."""
    return value if redaction is None else redaction.data(value)
