"""The pieces of the terminal view. Whatever text they are given is drawn as text, never as markup."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from whyloop.cli.demo_parts.headroom import Headroom, headroom_of
from whyloop.cli.demo_parts.narration import Kind, Line
from whyloop.cli.demo_parts.scenario import Scenario
from whyloop.cli.demo_parts.words import brief
from whyloop.values.continuation import ContinuationDecision, ContinuationOutcome
from whyloop.values.state import AgentState, AgentStatus
from whyloop.values.text import counted

BAR = 20

STATUS_COLOURS = {
    AgentStatus.COMPLETED: "green",
    AgentStatus.STOPPED: "yellow",
    AgentStatus.FAILED: "red",
}
_DECISION_STYLES = {
    ContinuationDecision.FORBID_CONTINUATION: "bold red",
    ContinuationDecision.REQUEST_CONTINUATION: "cyan",
    ContinuationDecision.ALLOW_STOP: "green",
    ContinuationDecision.ALLOW_CONTINUATION: "dim",
}
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


def verdict(state: AgentState) -> RenderableType:
    """How it ended and who decided, in the colour of the status."""
    colour, outcome = STATUS_COLOURS.get(state.status, "cyan"), state.last_continuation_outcome
    title = Text(f"{state.status.capitalize()} after ", style=f"bold {colour}")
    title.append(counted(state.execution.step_count, "step"))
    if state.status is not AgentStatus.COMPLETED:
        title.append(f": {state.stop_reason}")
    parts: list[RenderableType] = [Text("Nothing was decided")]
    if outcome is not None:
        said = outcome.resolving_evaluation
        reason = f" decided: {brief(said.reason, 300)}" if said else " decided"
        words = Text.assemble((brief(outcome.resolved_by), f"bold {colour}"), reason)
        parts = [words, Text(), bars(headroom_of(outcome), state.execution.usage.total)]
    return Padding(
        Panel(Group(*parts), title=title, title_align="left", border_style=colour, padding=(0, 1)),
        (1, 0, 0, 0),
    )


def rules(outcome: ContinuationOutcome, step: int) -> RenderableType:
    """What each rule said, the one that decided marked."""
    table = Table(box=box.SIMPLE_HEAD, expand=True, pad_edge=False, header_style="dim", border_style="dim")
    table.add_column("")
    table.add_column("said")
    table.add_column("rule", overflow="fold")
    table.add_column(f"after step {step}", ratio=1)
    for said in outcome.evaluations:
        decided = said is outcome.resolving_evaluation
        table.add_row(
            Text("▶" if decided else " "),
            Text(said.decision.value, style=_DECISION_STYLES[said.decision]),
            Text(brief(said.criterion), style="bold" if decided else ""),
            Text(brief(said.reason, 300), style="bold" if decided else ""),
        )
    return table
