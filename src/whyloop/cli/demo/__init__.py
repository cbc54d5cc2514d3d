"""`whyloop demo`: an assistant for partner programs that follows scripts, each with a different ending."""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from whyloop.cli.command import DEFAULT_SCENARIO, HOST
from whyloop.cli.demo.assistant import INSTRUCTIONS, PartnerDesk, SlowWorld
from whyloop.cli.demo.scenarios import CLEANUP, LOCAL, SCENARIOS, Scenario, play, play_local
from whyloop.cli.formats import program
from whyloop.cli.narration import Narrator
from whyloop.cli.services import in_background, listen, serve_until_signal
from whyloop.cli.terminal import (
    STATUS_STYLES,
    USAGE_ERROR,
    CommandError,
    is_terminal,
    terminal,
    using_file,
    write_error,
)
from whyloop.errors import WhyloopError
from whyloop.events import AgentEvent, AgentStepCompleted
from whyloop.loop.agent import Agent
from whyloop.sessions.session import Session
from whyloop.stores.memory import MemoryStore
from whyloop.stores.records import Summary
from whyloop.testing import Reply, ScriptedModel, text
from whyloop.values.state import AgentState
from whyloop.values.text import counted
from whyloop.wire.document import document

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

WIDTH = 100
# US dollars for a million tokens, so that the page has costs to show.
READ_PRICE, WRITE_PRICE = Decimal(3), Decimal(15)
SECONDS_BETWEEN_STARTS = 2.5
# A colleague decides after at most this long; other questions wait for the person at the page.
LONGEST_DECISION = 60.0
# The last answer, repeated for anything else that a person asks in the page.
AFTERWARDS = text("The script of this demo ends here, so there is nothing more that I can do.")

Play = Callable[[Callable[[AgentEvent], object]], AgentState]
"""A run whose events a view receives."""


def show_demo(args: argparse.Namespace) -> int:
    """Show one scenario or all of them, and return the exit code."""
    name = args.scenario or DEFAULT_SCENARIO
    if args.model and (args.scenario or args.list or args.json or args.svg):
        raise _refusal("a real model has no script: leave out SCENARIO, --list, --json and --svg")
    if name == "all" and args.svg:
        raise _refusal("--svg draws one scenario: name one instead of all")
    if name != "all" and name not in SCENARIOS:
        raise _refusal(f"unknown scenario {name!r}: use {', '.join(SCENARIOS)} or all")
    if args.serve or args.fleet:
        if args.scenario or args.model:
            option = "--serve shows every scenario" if args.serve else "--fleet has a script of its own"
            raise _refusal(f"{option}: leave out SCENARIO and --model")
        if args.serve:
            return _serve_scenarios(args)
        from whyloop.cli.demo.fleet import show_fleet

        return show_fleet(args)
    chosen = list(SCENARIOS.values()) if name == "all" else [SCENARIOS[name]]
    if args.list:
        _print(_listing())
    elif args.model:
        _show_local()
    elif args.json:
        documents = [trace(scenario, play(scenario)) for scenario in chosen]
        _print(json.dumps(documents if name == "all" else documents[0], indent=2))
    elif args.svg:
        _draw(chosen[0], args.svg)
    elif name == "all":
        _show_all(chosen)
    else:
        paced = is_terminal() and not args.fast
        hint = _hint() if args.scenario is None else ""
        _show(chosen[0], lambda view: play(chosen[0], view, paced=paced), live=paced, hint=hint)
    return 0


def trace(scenario: Scenario, state: AgentState) -> dict[str, Any]:
    """Return a scenario and its run as plain data, the same on every run."""
    return {
        "scenario": scenario.name,
        "title": scenario.title,
        "settings": scenario.settings,
        "queries": [query.text for query in scenario.queries],
        **document(state),
    }


class PlainView:
    """Collect the lines of a run, for pipes, files and simple terminals.

    They are written at the end, since an event handler cannot report that a pipe broke.
    """

    def __init__(self, scenario: Scenario, hint: str = "") -> None:
        self._narrator = Narrator()
        self._lines = [f"whyloop demo {scenario.name}: {scenario.title}", scenario.shows]
        if scenario.settings:
            self._lines.append(f"Settings: {scenario.settings}")
        self._hint = hint

    def __call__(self, event: AgentEvent) -> None:
        self._lines += [line.plain() for line in self._narrator.lines(event)]
        if isinstance(event, AgentStepCompleted) and self._narrator.headroom:
            used = ", ".join(f"{room.label} {room}" for room in self._narrator.headroom)
            self._lines.append(f"  used: {used}")

    def text(self, state: AgentState) -> str:
        """Return the whole run, with its explanation at the end."""
        end = ["", self._hint] if self._hint else []
        return "\n".join([*self._lines, "", state.explain(), *end])


def _show(scenario: Scenario, run: Play, *, live: bool = True, hint: str = "") -> None:
    """Show one run step by step: live on a terminal, in plain lines in a pipe."""
    if not is_terminal():
        plain = PlainView(scenario, hint)
        _print(plain.text(run(plain)))
        return
    draw_run(terminal(WIDTH), scenario, run, live=live, hint=hint)


def _show_all(scenarios: list[Scenario]) -> None:
    """Show every scenario in two lines: its title, and how it ended."""
    if not is_terminal():
        for scenario in scenarios:
            _print(f"{scenario.name}: {scenario.title}\n  {play(scenario).explanation.headline}\n")
        return
    from rich.padding import Padding
    from rich.text import Text

    console = terminal(WIDTH)
    for scenario in scenarios:
        state = play(scenario)
        style = f"bold {STATUS_STYLES[state.status]}"
        console.print(Text.assemble((scenario.name, style), f"  {scenario.title}"))
        console.print(Padding(Text(state.explanation.headline, style="dim"), (0, 0, 1, 2)))


def _show_local() -> None:
    """Show the assistant on a real model."""
    from whyloop.models.local import LocalServer

    try:
        with _waiting_for("Starting the model"):
            server = LocalServer()
        with server:
            _show(LOCAL, lambda view: play_local(server, view))
    except WhyloopError as error:
        raise CommandError(str(error)) from None


def _draw(scenario: Scenario, path: str) -> None:
    with using_file("write", path):
        Path(path).write_text(svg(scenario), encoding="utf-8")
    _print(f"Wrote {path}")


@contextmanager
def _waiting_for(what: str) -> Iterator[None]:
    """Move a bar on a terminal until the block ends."""
    if not is_terminal():
        yield
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}", style="cyan"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=terminal(), transient=True) as progress:
        progress.add_task(what, total=None)
        yield


def _hint() -> str:
    command = shlex.join([*program(), "demo"])
    return (
        f"This is one of {len(SCENARIOS)} endings. See the others: {command} --list\n"
        f"Watch them live in a browser: {command} --serve"
    )


def _listing() -> str:
    width = max(map(len, SCENARIOS))
    lines = [f"  {name:<{width}}  {scenario.title}" for name, scenario in SCENARIOS.items()]
    command = shlex.join([*program(), "demo", DEFAULT_SCENARIO])
    return "\n".join(["The scenarios of whyloop demo:", "", *lines, "", f"Watch one of them: {command}"])


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _refusal(text: str) -> CommandError:
    return CommandError(text, USAGE_ERROR)


# A run that is drawn; Rich is loaded for that alone


def draw_run(
    console: Console,
    scenario: Scenario,
    run: Play,
    *,
    live: bool,
    hint: str = "",
) -> None:
    """Show one run step by step, and then why it ended."""
    from rich.padding import Padding
    from rich.text import Text

    from whyloop.cli.drawing import LiveView, draw_end

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


def _banner(scenario: Scenario) -> RenderableType:
    from rich.panel import Panel
    from rich.text import Text

    text = Text.assemble((scenario.title, "bold"), f"\n{scenario.shows}")
    if scenario.settings:
        text.append("\n\nAgent(model, tools, ", "dim").append(scenario.settings, "cyan").append(")", "dim")
    title = Text(f"whyloop demo {scenario.name}", style="bold cyan")
    return Panel(text, title=title, title_align="left", border_style="cyan", padding=(0, 1))


def svg(scenario: Scenario) -> str:
    """Return the scenario as a terminal shows it, the same on every run."""
    from rich.console import Console

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


# The scenarios live in the inspector, slowly enough to watch


def _serve_scenarios(args: argparse.Namespace) -> int:
    """Serve each scenario as a session until Ctrl-C, except the one that takes days."""
    shown = [
        each for each in (CLEANUP, *SCENARIOS.values()) if not any(query.after for query in each.queries)
    ]
    return asyncio.run(_serve({scenario.name: scenario for scenario in shown}, HOST, args.port))


async def _serve(scenarios: Mapping[str, Scenario], host: str, port: int) -> int:
    from whyloop.server.app import AgentServer

    agents = {name: agent_for(scenario) for name, scenario in scenarios.items()}

    def agent_of(summary: Summary) -> Agent:
        return agents.get(str(summary.metadata.get("scenario")), agents[DEFAULT_SCENARIO])

    async with MemoryStore() as store:
        server = AgentServer(store, agent_of, public=True, inspector=True)
        listening = listen(host, port)
        shown_host, shown_port = listening.getsockname()[:2]
        write_error(f"http://{shown_host}:{shown_port}/  (open it in a browser; Ctrl-C ends the demo)")
        async with in_background(_play_all(store, agents, scenarios)):
            await serve_until_signal(server, listening)
    return 0


async def _play_all(
    store: MemoryStore, agents: Mapping[str, Agent], scenarios: Mapping[str, Scenario]
) -> None:
    async with asyncio.TaskGroup() as group:
        for name, scenario in scenarios.items():
            group.create_task(_play(store, agents[name], scenario))
            await asyncio.sleep(SECONDS_BETWEEN_STARTS)
    waiting = (await store.sessions(status="paused")).sessions
    if waiting:
        write_error(
            f"All scenarios have ended except {counted(len(waiting), 'session')}: decide in the page."
        )


async def _play(store: MemoryStore, agent: Agent, scenario: Scenario) -> None:
    """Run one scenario; its questions wait for the person at the page."""
    metadata = {"scenario": scenario.name}
    session = await Session.open(store, agent, scenario.name, create=True, metadata=metadata)
    for query in scenario.queries:
        state = await session.send(query.text)
        decided = scenario.approval
        while decided is not None and decided.after <= LONGEST_DECISION and state.pending_calls:
            await asyncio.sleep(decided.after)
            for pending in session.state.pending_calls:
                await session.approve(pending.id, by=decided.by)
            state = await session.resume()


def agent_for(scenario: Scenario) -> Agent:
    """Return the agent of a scenario, in real time and with costs."""
    script = chain(priced(scenario.script), repeat(AFTERWARDS))
    model = ScriptedModel(script)
    agent = Agent(
        model,
        PartnerDesk(scenario.outages).tools(scenario.needs_approval),
        instructions=INSTRUCTIONS,
        name="partner-desk",
        world=SlowWorld(model, scenario.tool_seconds),
        stop_grace=0,
        **scenario.options,
    )
    react = scenario.react
    if react is not None:
        agent.subscribe(lambda event: react(agent, event))
    return agent


def priced(script: Iterable[Reply | Exception]) -> Iterator[Reply | Exception]:
    """Yield the replies of a script with their costs."""
    for reply in script:
        if not isinstance(reply, Reply):
            yield reply
            continue
        usage = reply.usage
        cost = (usage.input * READ_PRICE + usage.output * WRITE_PRICE) / 1_000_000
        yield replace(reply, usage=replace(usage, cost=cost))
