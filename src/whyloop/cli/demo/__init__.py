"""`whyloop demo`: an assistant for partner programs that runs on scripts, each with another ending."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable
from typing import Any

from whyloop.cli.command import DEFAULT_SCENARIO
from whyloop.cli.demo.scenarios import LOCAL, SCENARIOS, Scenario, play, play_local
from whyloop.cli.demo.served import serve_demo
from whyloop.cli.formats import program
from whyloop.cli.narration import Narrator
from whyloop.cli.terminal import USAGE_ERROR, CommandError, is_terminal, terminal
from whyloop.errors import WhyloopError
from whyloop.events import AgentEvent, AgentStepCompleted
from whyloop.values.state import AgentState
from whyloop.wire.document import document

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
        return serve_demo(args) if args.serve else _show_fleet(args)
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
    from whyloop.cli.demo.pictures import WIDTH, draw_run

    draw_run(terminal(WIDTH), scenario, run, live=live, hint=hint)


def _show_all(scenarios: list[Scenario]) -> None:
    """Show every scenario in two lines: its title, and how it ended."""
    if not is_terminal():
        for scenario in scenarios:
            _print(f"{scenario.name}: {scenario.title}\n  {play(scenario).explanation.headline}\n")
        return
    from whyloop.cli.demo.pictures import WIDTH, draw_in_short

    console = terminal(WIDTH)
    for scenario in scenarios:
        draw_in_short(console, scenario, play(scenario))


def _show_local() -> None:
    """Show the assistant on a real model."""
    from whyloop.models.local import LocalServer

    try:
        if is_terminal():
            from whyloop.cli.demo.pictures import start_server

            server = start_server(terminal())
        else:
            server = LocalServer()
        with server:
            _show(LOCAL, lambda view: play_local(server, view))
    except WhyloopError as error:
        raise CommandError(str(error)) from None


def _show_fleet(args: argparse.Namespace) -> int:
    from whyloop.cli.demo.fleet import show_fleet

    return show_fleet(args)


def _draw(scenario: Scenario, path: str) -> None:
    from whyloop.cli.demo.pictures import svg

    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(svg(scenario))
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}") from None
    _print(f"Wrote {path}")


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
