"""Whether a request is the one that was recorded, and where they part if it is not."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from whyloop.values.messages import Message
from whyloop.values.redaction import REMOVED
from whyloop.values.text import shortened

Described = list[tuple[str, str]]
"""A request part by part: what the part is called, and its text."""


def described(messages: Iterable[Message], tools: list[str], instructions: str | None) -> Described:
    """The parts of a request, in the order in which they are compared."""
    said = [(f"message {number}", as_json(message)) for number, message in enumerate(messages, 1)]
    return [("instructions", as_json(instructions)), ("tools", as_json(tools)), *said]


def difference(ours: Described, theirs: Described) -> str | None:
    """The words for the first part in which two requests differ; None if they are the same."""
    for (part, text), (_, recorded) in zip(ours, theirs, strict=False):
        if not _same(text, recorded):
            here, there = _where_they_part(text, recorded)
            return f"{part} is {here}, and was {there} when it was recorded"
    if len(ours) > len(theirs):
        return f"it goes on after the recorded one, up to {last_words(ours)}"
    if len(ours) < len(theirs):
        return f"it ends before the recorded one, which goes on up to {last_words(theirs)}"
    return None


def last_words(parts: Described) -> str:
    """How a request ends."""
    return shortened(parts[-1][1], 200)


def as_json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _same(text: str, recorded: str) -> bool:
    """Equal, whatever stood where a secret was taken out."""
    if REMOVED not in recorded:
        return text == recorded
    pattern = ".+?".join(map(re.escape, recorded.split(REMOVED)))
    return re.fullmatch(pattern, text, re.DOTALL) is not None


def _where_they_part(ours: str, theirs: str) -> tuple[str, str]:
    """Both texts from a little before the first difference."""
    pairs = enumerate(zip(ours, theirs, strict=False))
    parting = next((index for index, (a, b) in pairs if a != b), min(len(ours), len(theirs)))
    start = max(0, parting - 40)
    dots = "…" if start else ""
    return dots + shortened(ours[start:], 160), dots + shortened(theirs[start:], 160)
