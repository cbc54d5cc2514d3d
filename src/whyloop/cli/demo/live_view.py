"""A run as it happens, on a terminal."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.spinner import Spinner
from rich.text import Text

from whyloop.cli.demo.scenario import Scenario
from whyloop.cli.drawing import bars, row, rules_table, verdict
from whyloop.cli.narration import Narrator
from whyloop.cli.terminal import STATUS_STYLES
from whyloop.events import AgentEvent, AgentStepStarted, StreamChunkReceived
from whyloop.models.local import LocalServer
from whyloop.values.state import AgentState
from whyloop.values.text import printable

WIDEST = 100


class LiveView:
    """Print what happened and, while it is live, show what happens now below it."""

    def __init__(self, console: Console, *, live: bool) -> None:
        self._console = console
        self._narrator = Narrator()
        self._spinner = Spinner("dots", style="cyan")
        self._live = (
            Live(console=console, get_renderable=self._activity, transient=True, refresh_per_second=12)
            if live
            else None
        )

    def __enter__(self) -> LiveView:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_live()

    def open(self, scenario: Scenario) -> None:
        """Print what is about to be shown."""
        self._console.print(_banner(scenario))
        if self._live is not None:
            self._live.start()

    def __call__(self, event: AgentEvent) -> None:
        for line in self._narrator.lines(event):
            self._console.print(row(line))
        if self._live is not None:
            self._live.refresh()

    def close(self, state: AgentState) -> None:
        """Print the explanation: the headline, what each rule decided, what would let the run continue."""
        self._end_live()
        explanation = state.explanation
        self._console.print(verdict(explanation, state.execution.usage.total))
        if explanation.evaluations:
            self._console.print(rules_table(explanation))
        if explanation.next_actions:
            self._console.print(Text("To continue", style="bold"))
            for action in explanation.next_actions:
                self._console.print(Padding(Text(str(action)), (0, 0, 0, 2)))

    def hint(self, text: str) -> None:
        """Print a hint below everything else."""
        self._console.print(Text(text, style="dim"))

    def _activity(self) -> RenderableType:
        self._spinner.update(text=Text(self._narrator.activity, style="cyan"))
        used = bars(self._narrator.headroom, self._narrator.tokens)
        return Padding(Group(self._spinner, used), (1, 0, 0, 1))

    def _end_live(self) -> None:
        """Remove the part that shows what happens now."""
        if self._live is not None:
            self._live.stop()


class StreamingView(LiveView):
    """A live view that shows the text of an answer as it streams in."""

    _text = ""

    def __call__(self, event: AgentEvent) -> None:
        if isinstance(event, AgentStepStarted):
            self._text = ""
        if isinstance(event, StreamChunkReceived) and event.kind == "text":
            self._text += event.chunk
            # Once complete it is a line of its own.
            self._narrator.activity = "" if event.is_complete else printable(self._text)
        super().__call__(event)


def show_in_short(console: Console, scenario: Scenario, state: AgentState) -> None:
    """Print a scenario in two lines: its title, and how it ended, in the colour of its status."""
    style = STATUS_STYLES[state.status]
    console.print(Text.assemble((scenario.name, f"bold {style}"), f"  {scenario.title}"))
    console.print(Padding(Text(state.explanation.headline, style="dim"), (0, 0, 1, 2)))


def start_server(console: Console) -> LocalServer:
    """Start the server of the local model, with a bar that moves until it is ready."""
    columns = (TextColumn("{task.description}", style="cyan"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        progress.add_task("Starting the model", total=None)
        return LocalServer()


def _banner(scenario: Scenario) -> RenderableType:
    text = Text.assemble((scenario.title, "bold"), f"\n{scenario.shows}")
    if scenario.settings:
        text.append("\n\nAgent(model, tools, ", "dim").append(scenario.settings, "cyan").append(")", "dim")
    title = Text(f"whyloop demo {scenario.name}", style="bold cyan")
    return Panel(text, title=title, title_align="left", border_style="cyan", padding=(0, 1))
