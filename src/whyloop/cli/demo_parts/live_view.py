"""A run as it happens, on a terminal."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.spinner import Spinner
from rich.text import Text

from whyloop.cli.demo_parts import drawing
from whyloop.cli.demo_parts.narration import Narrator
from whyloop.cli.demo_parts.scenario import Scenario
from whyloop.cli.renderer import rules_table
from whyloop.cli.terminal import STATUS_STYLES
from whyloop.events import AgentEvent
from whyloop.values.state import AgentState

WIDEST = 100


class LiveView:
    """Prints what happened and, while it is live, keeps what is happening below it."""

    def __init__(self, console: Console, *, live: bool) -> None:
        self._console = console
        self._narrator = Narrator()
        self._spinner = Spinner("dots", style="cyan")
        self._live = (
            Live(console=console, get_renderable=self._now, transient=True, refresh_per_second=12)
            if live
            else None
        )

    def __enter__(self) -> LiveView:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._settle()

    def open(self, scenario: Scenario) -> None:
        self._console.print(drawing.banner(scenario))
        if self._live is not None:
            self._live.start()

    def __call__(self, event: AgentEvent) -> None:
        for line in self._narrator.lines(event):
            self._console.print(drawing.row(line))
        if self._live is not None:
            self._live.refresh()

    def close(self, state: AgentState) -> None:
        """Print the explanation: the headline, what each rule decided, what would let the run continue."""
        self._settle()
        explanation = state.explanation
        self._console.print(drawing.verdict(explanation, state.execution.usage.total))
        if explanation.evaluations:
            self._console.print(rules_table(explanation))
        if explanation.next_actions:
            self._console.print(Text("To continue", style="bold"))
            for action in explanation.next_actions:
                self._console.print(Padding(Text(str(action)), (0, 0, 0, 2)))

    def hint(self, words: str) -> None:
        self._console.print(Text(words, style="dim"))

    def _now(self) -> RenderableType:
        self._spinner.update(text=Text(self._narrator.activity, style="cyan"))
        bars = drawing.bars(self._narrator.headroom, self._narrator.tokens)
        return Padding(Group(self._spinner, bars), (1, 0, 0, 1))

    def _settle(self) -> None:
        """Take away what is only true while it happens."""
        if self._live is not None:
            self._live.stop()


def show_in_short(console: Console, scenario: Scenario, state: AgentState) -> None:
    """Print the scenario in two lines: what it shows, and how it ended, in the colour of its status."""
    style = STATUS_STYLES[state.status]
    console.print(Text.assemble((scenario.name, f"bold {style}"), f"  {scenario.title}"))
    console.print(Padding(Text(state.explanation.headline, style="dim"), (0, 0, 1, 2)))
