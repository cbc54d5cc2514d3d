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


def shortened(text: str, limit: int) -> str:
    """The text on one line, cut with an ellipsis where it is longer than the limit."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def counted(number: int, noun: str) -> str:
    """A number with its noun: "1 step", "3 steps"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
