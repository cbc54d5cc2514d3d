"""The pieces of the terminal view. Whatever text they are given is drawn as text, never as markup."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from whyloop.cli.demo_parts.headroom import Headroom, headroom_of
from whyloop.cli.demo_parts.narration import Kind, Line
from whyloop.cli.demo_parts.scenario import Scenario
from whyloop.cli.terminal import STATUS_STYLES
from whyloop.values.explanation import Explanation

BAR = 20

# The sign before a line, its style, the style of its first word, and that of the rest.
_LOOKS = {
    Kind.QUERY: ("❯", "bold magenta", "", "bold"),
    Kind.WAITED: ("…", "yellow", "", "yellow"),
    Kind.SAID: ("◆", "blue", "", ""),
    Kind.DONE: ("✓", "green", "bold", ""),
    Kind.FAILED: ("✗", "red", "bold red", ""),
    Kind.RESULT: ("", "", "", "dim"),
    Kind.ERROR: ("", "", "", ""),
    Kind.POLICY: ("↻", "yellow", "bold yellow", "dim"),
    Kind.GO_ON: ("→", "cyan", "bold cyan", "dim"),
    Kind.COMPLETE: ("■", "green", "bold green", ""),
    Kind.STOP: ("■", "yellow", "bold yellow", ""),
}


def banner(scenario: Scenario) -> RenderableType:
    """What is about to be shown."""
    words = Text.assemble((scenario.title, "bold"), f"\n{scenario.shows}")
    if scenario.settings:
        words.append("\n\nAgent(model, tools, ", "dim").append(scenario.settings, "cyan").append(")", "dim")
    title = Text(f"whyloop demo {scenario.name}", style="bold cyan")
    return Panel(words, title=title, title_align="left", border_style="cyan", padding=(0, 1))


def row(line: Line) -> RenderableType:
    """One line of the run: a sign, the words, and the measure at the right edge."""
    if line.kind is Kind.STEP:
        return Padding(Rule(Text(line.text, style="bold"), align="left", style="dim"), (1, 0, 0, 0))
    sign, sign_style, head_style, style = _LOOKS[line.kind]
    gap = "  " if line.head and line.text else ""
    words = Text.assemble((line.head, head_style), gap, (line.text, style))
    grid = Table.grid(expand=True)
    grid.add_column(width=4)
    # A result is worth a glance, so it gets one line; everything else is shown to its end.
    grid.add_column(ratio=1, no_wrap=line.kind is Kind.RESULT, overflow="ellipsis")
    grid.add_column(justify="right", no_wrap=True)
    grid.add_row(Text(f" {sign}", style=sign_style), words, Text(f"  {line.measure}", style="dim"))
    return Padding(grid, (1, 0, 0, 0)) if line.kind in (Kind.QUERY, Kind.WAITED) else grid


def bars(headroom: Sequence[Headroom], tokens: int) -> RenderableType:
    """How much of every limit is used."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    for room in headroom:
        full = max(round(room.share * BAR), 1 if room.used else 0)
        colour = "red" if room.share >= 1 else "yellow" if room.share >= 0.75 else "green"
        bar = Text.assemble(("━" * full, colour), ("─" * (BAR - full), "dim"))
        grid.add_row(Text(room.label, style="dim"), bar, Text(str(room)))
    if tokens and all(room.label != "tokens" for room in headroom):
        grid.add_row(Text("tokens", style="dim"), Text("no limit", style="dim"), Text(f"{tokens:,}"))
    return grid


def verdict(explanation: Explanation, tokens: int) -> RenderableType:
    """The headline and how much of every limit is used, in the colour of the status."""
    style = STATUS_STYLES[explanation.status]
    title = Text(explanation.status.replace("_", " ").capitalize(), style=f"bold {style}")
    used = bars(headroom_of(explanation.evaluations), tokens)
    parts = Group(Text(explanation.headline), Text(), used)
    return Padding(
        Panel(parts, title=title, title_align="left", border_style=style, padding=(0, 1)), (1, 0, 0, 0)
    )
