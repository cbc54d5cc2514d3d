"""A session on a terminal, or in plain lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from whyloop.cli.demo_parts.narration import Kind, Line
from whyloop.cli.session_parts.screen import print_notes, terminal, watched, write_lines

WIDEST = 120


def show_parts(heading: Sequence[str], lines: Iterable[Line], notes: Sequence[str]) -> None:
    """What it is, what happened in it, and what can be done now."""
    if not watched():
        write_lines([*heading, *(_plain(line) for line in lines), *(["", *notes] if notes else [])])
        return
    from rich.text import Text

    from whyloop.cli.demo_parts.drawing import row

    console = terminal()
    for words in heading:
        label, _, rest = words.partition("  ")
        console.print(Text.assemble((label, "dim"), "  ", rest))
    for line in lines:
        console.print(row(line), width=min(console.width, WIDEST))
    print_notes(console, notes)


def _plain(line: Line) -> str:
    measure = f" ({line.measure})" if line.measure else ""
    text = line.text.replace("\n", "\n    ")
    match line.kind:
        case Kind.QUERY:
            return f"\nuser: {text}"
        case Kind.STEP:
            return f"\n{text}"
        case Kind.SAID:
            return f"  {line.head or 'assistant'}: {text}"
        case Kind.DONE:
            return f"  {line.head}({text}) ok{measure}"
        case Kind.FAILED if line.measure:
            return f"  {line.head}({text}) failed{measure}"
        case Kind.FAILED:
            return f"  {line.head}: {text}"
        case Kind.RESULT | Kind.ERROR:
            return f"    {text}"
        case _:
            return f"  {line.head}, {text}{measure}"
