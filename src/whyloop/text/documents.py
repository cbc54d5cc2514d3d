"""JSON inside prose: the objects in a text, and the lists that begin with one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from whyloop.text.turns import SLICE, Search

_DECODER = json.JSONDecoder()
# No search ever stops at other brackets, of which a text may consist.
_OBJECT = re.compile(r'\{(?=\s{0,100}["}])')
_LONGEST_SPACE = 101
_MOST_TRIED = 250
_APART = 256
"""So many documents are tried, and one more for so many characters: each takes about 2 µs."""
_READ_AGAIN = 2
"""How often a text is read, at most, to find a document in what is not one."""
_LONGEST_LITERAL = 10
_NESTED = 25_000
"""About how many characters a decoder reads before it refuses to go deeper."""

_SKIPPED = re.compile(
    r"""(?:[^"'{}\[\]]++|"(?:[^"\\]++|\\.)*+"|'(?:[^'\\]++|\\.)*+'|[{\[][^"'{}\[\]]*+[}\]])*+""", re.DOTALL
)
_BRACKETS = re.compile(r"[{\[]++|[}\]]++")
_REST_OF_STRING = {quote: re.compile(rf"(?:[^{quote}\\]++|\\.)*+", re.DOTALL) for quote in ('"', "'")}


class Document(NamedTuple):
    """A JSON document in a text."""

    start: int
    end: int
    value: Any


class CutOff(NamedTuple):
    """The place of a document that the end of the text may cut off."""

    start: int


Found = Document | CutOff | None
"""What a search finds; None after each slice of the text."""


def documents(text: str) -> Iterator[Found]:
    """Yield the documents in a text, and those that its end may cut off."""
    position = tried = read_again = since_stop = 0
    most = _MOST_TRIED + len(text) // _APART
    while tried < most and read_again <= _READ_AGAIN * len(text) + 2 * _NESTED:
        begin = _OBJECT.search(text, position, position + SLICE)
        if begin is None:
            if position + SLICE >= len(text):
                return
            position += SLICE - _LONGEST_SPACE
            yield None
            continue
        tried += 1
        start = _start_of_list(text, position, begin.start())
        found, read = yield from document_at(text, start)
        since_stop += start - position + read
        if since_stop >= SLICE // 2:
            since_stop = 0
            yield None
        if found is not None:
            yield found
            position = found.end
            continue
        if start + read >= len(text):
            yield CutOff(start)
        read_again += read
        # The object may be complete, if the list around it is not.
        position = begin.start() + (start == begin.start())


def document_at(text: str, start: int) -> Search[tuple[Document | None, int]]:
    """Return the document that begins at `start`, and how many characters were read.

    A document that is longer than a slice is decoded at once, as soon as its end is known.
    """
    found, read = _decoded(text, start)
    if found is None and len(text) > SLICE and start + read >= len(text):
        end = yield from end_of_brackets(text, start)
        found, read = _decoded(text, start, end) if end else (None, len(text) - start)
    return found, read


def _start_of_list(text: str, position: int, start: int) -> int:
    """Return where the lists begin that begin with the object at `start`."""
    before = text[max(position, start - _LONGEST_SPACE) : start]
    around = before[len(before.rstrip("[ \t\r\n")) :]
    bracket = around.find("[")
    return start if bracket < 0 else start - len(around) + bracket


def _decoded(text: str, start: int, end: int | None = None) -> tuple[Document | None, int]:
    """Return the document at `start` that has an end within a slice, or this `end`."""
    part, at = (text, start) if len(text) <= SLICE else (text[start : end or start + SLICE], 0)
    try:
        value, stop = _DECODER.raw_decode(part, at)
    except json.JSONDecodeError as error:
        unfinished = error.msg.startswith("Unterminated") or len(part) - error.pos < _LONGEST_LITERAL
        return None, len(text) - start if unfinished else error.pos - at
    except (ValueError, RecursionError):
        return None, min(_NESTED, len(text) - start - 1)
    return Document(start, start + stop - at, value), stop - at


def end_of_brackets(text: str, start: int) -> Search[int | None]:
    """Return where the brackets that open at `start` are closed; None if they are not."""
    depth, position, quote = 0, start, ""
    while position < len(text):
        limit = min(position + SLICE, len(text))
        while position < limit:
            if quote:
                position = _past(_REST_OF_STRING[quote], text, position, limit)
                if not text.startswith(quote, position):
                    break
                position, quote = position + 1, ""
            position = _past(_SKIPPED, text, position, limit)
            brackets = _BRACKETS.match(text, position, limit)
            if brackets is None:  # The end of the slice, or a string that goes on after it.
                quote = text[position:limit][:1]
                position += len(quote)
                continue
            opens = brackets[0][0] in "{["
            if not opens and depth <= len(brackets[0]):
                return position + depth
            depth += len(brackets[0]) if opens else -len(brackets[0])
            position = brackets.end()
        if limit == len(text):
            return None
        yield
    return None


def _past(pattern: re.Pattern[str], text: str, position: int, limit: int) -> int:
    """Return where the match of a pattern at this position ends."""
    found = pattern.match(text, position, limit)
    return found.end() if found else position
