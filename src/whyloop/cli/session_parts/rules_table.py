"""What each rule said, on a terminal."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from whyloop.cli.demo_parts.words import brief
from whyloop.values.continuation import ContinuationDecision, ContinuationOutcome

_STYLES = {
    ContinuationDecision.FORBID_CONTINUATION: "bold red",
    ContinuationDecision.REQUEST_CONTINUATION: "cyan",
    ContinuationDecision.ALLOW_STOP: "green",
    ContinuationDecision.ALLOW_CONTINUATION: "dim",
}


def rules_table(outcome: ContinuationOutcome) -> Table:
    """A row a rule; the one that decided stands out."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_column(overflow="fold", ratio=1)
    for said in outcome.evaluations:
        style = "bold" if said is outcome.resolving_evaluation else ""
        grid.add_row(
            Text(said.decision.value, style=_STYLES[said.decision]),
            Text(brief(said.criterion), style=style),
            Text(brief(said.reason, 300), style=style),
        )
    return grid
