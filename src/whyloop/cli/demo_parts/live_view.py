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
from whyloop.cli.demo_parts.plain_view import verdict
from whyloop.cli.demo_parts.scenario import Scenario
from whyloop.events import AgentEvent
from whyloop.values.state import AgentState

WIDEST = 100


def terminal() -> Console:
    """The terminal, no wider than is good to read."""
    console = Console(highlight=False, markup=False, emoji=False)
    console.width = min(console.width, WIDEST)
    return console


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
        """The explanation: the verdict, then what each rule said."""
        self._settle()
        self._console.print(drawing.verdict(state))
        outcome = state.last_continuation_outcome
        if outcome is not None:
            self._console.print(drawing.rules(outcome, state.execution.step_count))

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
    """The scenario in two lines: what it shows, and the verdict in the colour of its status."""
    colour = drawing.STATUS_COLOURS.get(state.status, "cyan")
    console.print(Text.assemble((scenario.name, f"bold {colour}"), f"  {scenario.title}"))
    console.print(Padding(Text(verdict(state), style="dim"), (0, 0, 1, 2)))
