"""What a command says instead of doing it."""

from __future__ import annotations

FAILED = 1
USAGE_ERROR = 2
CANNOT_WRITE = 74  # EX_IOERR, as other programs have it.


class Refusal(Exception):  # noqa: N818  (it says what happened)
    """The words for a person, which are safe to print, and the exit code."""

    def __init__(self, words: str, code: int = FAILED) -> None:
        super().__init__(words)
        self.code = code
