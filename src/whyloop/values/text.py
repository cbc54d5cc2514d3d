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


# What nobody sees, but what can reverse, hide or split the text around it; tabs and line ends are visible.
_INVISIBLE = re.compile(
    r"([\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5"
    r"\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0e\ufeff\uffa0\ufff0-\ufffb"
    r"\U0001d173-\U0001d17a\U000e0000-\U000e0fff])"
)
_SCRIPTS = {
    "Latin": r"A-Za-z\u00aa\u00ba\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u02af\u1d00-\u1d25"
    r"\u1d2c-\u1d5c\u1e00-\u1eff\u2c60-\u2c7f\ua720-\ua7ff\uff21-\uff3a\uff41-\uff5a",
    "Greek": r"\u0370-\u03ff\u1d26-\u1d2a\u1f00-\u1fff",
    "Cyrillic": r"\u0400-\u052f\u1c80-\u1c8f\u1d2b\u2de0-\u2dff\ua640-\ua69f",
    "Armenian": r"\u0531-\u058f\ufb13-\ufb17",
}
_WORD = re.compile(f"[{''.join(_SCRIPTS.values())}\u0300-\u036f]+")
_LETTER_OF = {name: re.compile(f"[{letters}]") for name, letters in _SCRIPTS.items()}


def revealed(text: str) -> str:
    """Return the text as a person must see it who decides about it.

    Characters that reverse or hide text become escapes, and a word of letters that look alike in several
    scripts is marked. Of a text that it returned it changes nothing. The JavaScript module does the same
    in `reveal`.
    """
    if text.isascii() and text.isprintable():
        return text
    parts = _INVISIBLE.split(text)
    parts[1::2] = [_escape(part) for part in parts[1::2]]
    parts[::2] = [_WORD.sub(_marked, part) for part in parts[::2]]
    return "".join(parts)


def _escape(char: str) -> str:
    units = char.encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def _marked(found: re.Match[str]) -> str:
    word = found[0]
    if word.isascii():
        return word
    scripts = [name for name, letter in _LETTER_OF.items() if letter.search(word)]
    mark = f"⟦mixes {' and '.join(scripts)}⟧"
    is_mixed = len(scripts) > 1 and scripts[0] == "Latin"
    return word + mark if is_mixed and not found.string.startswith(mark, found.end()) else word


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
