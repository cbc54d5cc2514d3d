"""Text from outside, made safe to store and to show."""

import re


def clean(text: str) -> str:
    """Return the text with lone surrogates replaced, since they cannot be encoded."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


# Persian text and joined emoji need these, and no terminal obeys them.
_KEPT = "\n\u200c\u200d"


def printable(text: str) -> str:
    """Return the text without characters that could steer a terminal; line ends stay."""
    if text.isprintable():
        return text
    return "".join([char if char.isprintable() or char in _KEPT else _shown(char) for char in text])


def _shown(char: str) -> str:
    return " " if char.isspace() else "�"


def shortened(text: str, limit: int = 100) -> str:
    """Return the text on one line, safe to print, cut with an ellipsis at the limit."""
    line = printable(" ".join(text[: limit * 4].split()))
    whole = len(line) <= limit and len(text) <= limit * 4
    return line if whole else line[: limit - 1] + "…"


SHORT_ID = 8
_GENERATED_ID = re.compile(r"(?=.*[a-f])([0-9a-f]{12,}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})", re.ASCII)


def short_id(identifier: str, length: int = SHORT_ID) -> str:
    """Return the first characters of a generated id, and any other id whole.

    Names and numbers, such as "customer-42", often share their first characters.
    """
    return identifier[:length] if _GENERATED_ID.fullmatch(identifier) else identifier


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: "1 step", "3 steps"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def ordinal(number: int) -> str:
    """Return a number as a place in an order: "1st", "12th"."""
    ending = "th" if 10 < number % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{ending}"
