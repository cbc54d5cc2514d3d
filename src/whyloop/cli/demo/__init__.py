"""`whyloop demo`: an assistant for partner programs that runs on scripts, in thirteen endings."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from whyloop.cli.commands import DEFAULT_SCENARIO
from whyloop.cli.demo.scenario import Scenario, play
from whyloop.cli.demo.scenarios import SCENARIOS
from whyloop.cli.exit_codes import FAILED, USAGE_ERROR
from whyloop.cli.narration import Narrator
from whyloop.cli.terminal import is_terminal, terminal, write_error
from whyloop.errors import WhyloopError
from whyloop.events import AgentEvent, AgentStepCompleted
from whyloop.values.state import AgentState
from whyloop.wire.document import document

HINT = f"This is one of {len(SCENARIOS)} endings. See the others: whyloop demo --list"


def show_demo(args: argparse.Namespace) -> int:
    """Show one scenario or all of them, and return the exit code."""
    if args.list:
        _print(_listing())
        return 0
    if args.model:
        if args.scenario or args.json or args.svg:
            return _fail("a real model has no script: leave out SCENARIO, --json and --svg", USAGE_ERROR)
        return _show_local()
    name = args.scenario or DEFAULT_SCENARIO
    if name == "all" and args.svg:
        return _fail("--svg draws one scenario: name one instead of all", USAGE_ERROR)
    if name != "all" and name not in SCENARIOS:
        return _fail(f"there is no scenario {name!r}: use {', '.join(SCENARIOS)} or all", USAGE_ERROR)
    chosen = list(SCENARIOS.values()) if name == "all" else [SCENARIOS[name]]
    if args.json:
        documents = [trace(scenario, play(scenario)) for scenario in chosen]
        _print(json.dumps(documents if name == "all" else documents[0], indent=2))
        return 0
    if args.svg:
        return _draw(chosen[0], args.svg)
    if name == "all":
        _show_all(chosen)
    else:
        _show(chosen[0], paced=not args.fast, hint=HINT if args.scenario is None else "")
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
        if hint:
            self._lines.append(hint)

    def __call__(self, event: AgentEvent) -> None:
        self._lines += [line.plain() for line in self._narrator.lines(event)]
        if isinstance(event, AgentStepCompleted) and self._narrator.headroom:
            used = ", ".join(f"{room.label} {room}" for room in self._narrator.headroom)
            self._lines.append(f"  used: {used}")

    def text(self, state: AgentState) -> str:
        """Return the whole run, with its explanation at the end."""
        return "\n".join([*self._lines, "", state.explain()])


def _show(scenario: Scenario, *, paced: bool, hint: str) -> None:
    """Show one scenario step by step: live on a terminal, in plain lines in a pipe."""
    if not is_terminal():
        plain = PlainView(scenario, hint)
        _print(plain.text(play(scenario, plain)))
        return
    from whyloop.cli.demo.live_view import WIDEST, LiveView

    with LiveView(terminal(WIDEST), live=paced) as live:
        live.open(scenario)
        live.close(play(scenario, live, paced=paced))
        if hint:
            live.hint(hint)


def _show_all(scenarios: list[Scenario]) -> None:
    """Show every scenario in two lines: its title, and how it ended."""
    if not is_terminal():
        for scenario in scenarios:
            _print(f"{scenario.name}: {scenario.title}\n  {play(scenario).explanation.headline}\n")
        return
    from whyloop.cli.demo.live_view import WIDEST, show_in_short

    console = terminal(WIDEST)
    for scenario in scenarios:
        show_in_short(console, scenario, play(scenario))


def _show_local() -> int:
    """Show the assistant on a real model."""
    from whyloop.cli.demo.local_model import LOCAL, play_local
    from whyloop.models.local import LocalServer

    try:
        if not is_terminal():
            plain = PlainView(LOCAL)
            with LocalServer() as server:
                _print(plain.text(play_local(server, plain)))
            return 0
        from whyloop.cli.demo.live_view import WIDEST, StreamingView, start_server

        console = terminal(WIDEST)
        with start_server(console) as server, StreamingView(console, live=True) as live:
            live.open(LOCAL)
            live.close(play_local(server, live))
    except WhyloopError as error:
        return _fail(str(error), FAILED)
    return 0


def _draw(scenario: Scenario, path: str) -> int:
    from whyloop.cli.demo.picture import svg

    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(svg(scenario))
    except OSError as error:
        return _fail(f"cannot write {path}: {error.strerror}", FAILED)
    _print(f"Wrote {path}")
    return 0


def _listing() -> str:
    width = max(map(len, SCENARIOS))
    lines = [f"  {name:<{width}}  {scenario.title}" for name, scenario in SCENARIOS.items()]
    return "\n".join(["The scenarios of whyloop demo:", "", *lines])


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _fail(text: str, code: int) -> int:
    write_error(f"whyloop demo: {text}")
    return code
