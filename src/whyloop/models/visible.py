"""Text as it streams in, held back where it could turn out to be a tool call written out as text."""

from __future__ import annotations

import re

# How hosts and models begin a call that they write out.
_BEGINNINGS = (
    "<tool_call",
    "<function",
    "<|python_tag|>",
    "<|tool",
    "<｜tool",
    "[TOOL_CALLS]",
    "```json",
    "```tool",
    "```\n{",
    "```\n[",
)
_CANDIDATE = re.compile(r"[{\[<`]")


class VisibleText:
    """Says which part of an answer can be shown already.

    Whatever is held back is decided at the end: the complete answer has it, if it is language.
    """

    def __init__(self) -> None:
        self._waiting = ""
        self._closed = False

    def add(self, piece: str) -> str:
        """Take a piece; what may be shown now comes back."""
        if self._closed:
            return ""
        text, self._waiting = self._waiting + piece, ""
        for candidate in _CANDIDATE.finditer(text):
            rest = text[candidate.start() :]
            begins = _begins_a_call(rest)
            if begins is False:
                continue
            self._closed = begins is True
            self._waiting = rest
            return text[: candidate.start()]
        return text


def _begins_a_call(text: str) -> bool | None:
    """True if a call could begin like this, False if none could, None if it is too early to tell."""
    if any(text.startswith(beginning) for beginning in _BEGINNINGS):
        return True
    if any(beginning.startswith(text) for beginning in _BEGINNINGS):
        return None
    inside = text[1:].lstrip()
    if text[0] == "{":
        return None if not inside else inside[0] in '"}'
    if text[0] == "[":
        return None if not inside else inside[0] == "{"
    return False
