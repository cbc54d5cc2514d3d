"""The demo on a terminal and as a picture, drawn with Rich."""

from __future__ import annotations

import io
import re
from collections.abc import Callable

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from whyloop.cli.demo.scenarios import Scenario, play
from whyloop.cli.drawing import LiveView, draw_end
from whyloop.cli.terminal import STATUS_STYLES
from whyloop.events import AgentEvent
from whyloop.models.local import LocalServer
from whyloop.values.state import AgentState

WIDTH = 100


def draw_run(
    console: Console,
    scenario: Scenario,
    run: Callable[[Callable[[AgentEvent], object]], AgentState],
    *,
    live: bool,
    hint: str = "",
) -> None:
    """Show one run step by step, and then why it ended."""
    console.print(_banner(scenario))
    with LiveView(console, live=live) as view:
        state = run(view)
    explanation = state.explanation
    draw_end(console, explanation, state.execution.usage)
    if explanation.next_actions:
        console.print(Text("To continue", style="bold"))
        for action in explanation.next_actions:
            console.print(Padding(Text(str(action)), (0, 0, 0, 2)))
    if hint:
        console.print(Text(hint, style="dim"), soft_wrap=True)


def draw_in_short(console: Console, scenario: Scenario, state: AgentState) -> None:
    """Print a scenario in two lines: its title, and how it ended."""
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


def svg(scenario: Scenario) -> str:
    """Return the scenario as a terminal shows it, the same on every run."""
    console = Console(
        record=True,
        width=WIDTH,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        no_color=False,
        legacy_windows=False,
        highlight=False,
        markup=False,
        emoji=False,
    )
    draw_run(console, scenario, lambda view: play(scenario, view), live=False)
    picture = console.export_svg(title=f"whyloop demo {scenario.name}", unique_id=f"whyloop-{scenario.name}")
    # Rich would fetch its font from another site.
    return re.sub(r"<!--.*?-->|@font-face \{.*?\}", "", picture, flags=re.DOTALL)
