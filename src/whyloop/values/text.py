"""Text from outside, made fit to be stored and shown."""


def clean(text: str) -> str:
    """The text with lone surrogates replaced, since no UTF-8 encoder takes them."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


# Characters that steer a terminal or turn the reading direction around.
_UNSEEN = dict.fromkeys(
    [*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)], "�"
)


def shortened(text: str, limit: int) -> str:
    """The text on one line, safe to print, cut with an ellipsis where it is longer than the limit."""
    line = " ".join(text[: limit * 4].split()).translate(_UNSEEN)
    whole = len(line) <= limit and len(text) <= limit * 4
    return line if whole else line[: limit - 1] + "…"


def counted(number: int, noun: str) -> str:
    """A number with its noun: "1 step", "3 steps"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
