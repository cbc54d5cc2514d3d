"""Text as it streams in, held back where it could turn out to be a tool call written out as text."""

from __future__ import annotations

from whyloop.models.parts import may_be_a_call

_TAG = "<tool_call"
_ENOUGH = 40  # By so many characters it is clear whether a text begins as a call does.


class VisibleText:
    """Collects the text of an answer and says which part of it can be shown already.

    Whatever is held back is decided at the end: the complete answer has it, if it is language.
    """

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._waiting = ""
        self._open = False
        self._closed = False

    def add(self, piece: str) -> str:
        """Take a piece; what may be shown now comes back."""
        self._pieces.append(piece)
        if self._closed:
            return ""
        text = self._waiting + piece
        if not self._open:
            if may_be_a_call(text):
                self._closed = len(text) > _ENOUGH and not _TAG.startswith(text.strip())
                self._waiting = text
                return ""
            self._open = True
        return self._shown_of(text)

    def complete(self) -> str:
        """All of the text."""
        return "".join(self._pieces)

    def _shown_of(self, text: str) -> str:
        """The text up to a tag, or up to what could be the beginning of one."""
        found = text.find("<")
        while found >= 0:
            rest = text[found : found + len(_TAG)]
            if _TAG.startswith(rest):
                self._closed = rest == _TAG
                self._waiting = text[found:]
                return text[:found]
            found = text.find("<", found + 1)
        self._waiting = ""
        return text
