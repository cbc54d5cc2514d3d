"""`whyloop demo`: an assistant for partner programs, in twelve endings."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from whyloop.cli.terminal import is_terminal

if TYPE_CHECKING:
    from whyloop.cli.demo_parts.scenario import Scenario

DEFAULT = "natural-end"
HINT = "This is one of twelve endings. See the others: whyloop demo --list"


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Make the command known to the parser; the demo itself is not loaded yet."""
    words = "watch an agent run on a scripted model, and read why it ended"
    parser = commands.add_parser("demo", help=words, description=f"{words[0].upper()}{words[1:]}.")
    parser.add_argument(
        "scenario", nargs="?", metavar="SCENARIO", help=f'how it is to end, or "all" (default: {DEFAULT})'
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--list", action="store_true", help="list the scenarios")
    form.add_argument("--json", action="store_true", help="print the trace for machines")
    form.add_argument("--svg", metavar="FILE", help="draw the run into a picture")
    parser.add_argument("--fast", action="store_true", help="no pauses for the eye")
    parser.add_argument(
        "--model", choices=["local"], help="no script: a small real model on this machine, offline"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run what was asked for and return the exit code."""
    from whyloop.cli.demo_parts.scenarios import SCENARIOS

    if args.list:
        _print(_listing(SCENARIOS))
        return 0
    if args.model:
        if args.scenario or args.json or args.svg:
            return _refused("a real model has no script: leave out SCENARIO, --json and --svg", 2)
        return _show_local()
    name = args.scenario or DEFAULT
    if name == "all" and args.svg:
        return _refused("--svg draws one scenario, so name one instead of all", 2)
    if name != "all" and name not in SCENARIOS:
        return _refused(f"there is no scenario {name!r}. There are: {', '.join(SCENARIOS)}, all", 2)
    chosen = list(SCENARIOS.values()) if name == "all" else [SCENARIOS[name]]
    if args.json:
        _print(_traces(chosen, as_list=name == "all"))
        return 0
    if args.svg:
        return _draw(chosen[0], args.svg)
    if name == "all":
        _show_all(chosen)
    else:
        _show(chosen[0], paced=not args.fast, hint=HINT if args.scenario is None else "")
    return 0


def _show(scenario: Scenario, *, paced: bool, hint: str) -> None:
    """One scenario, step by step: live on a terminal, in plain lines in a pipe."""
    from whyloop.cli.demo_parts.scenario import play

    if is_terminal():
        from whyloop.cli.demo_parts.live_view import WIDEST, LiveView
        from whyloop.cli.terminal import terminal

        with LiveView(terminal(WIDEST), live=paced) as live:
            live.open(scenario)
            live.close(play(scenario, live, paced=paced))
            if hint:
                live.hint(hint)
        return
    from whyloop.cli.demo_parts.plain_view import PlainView

    plain = PlainView(scenario, hint)
    _print(plain.text(play(scenario, plain)))


def _show_all(scenarios: list[Scenario]) -> None:
    """Every scenario in short: what it shows, and the verdict."""
    from whyloop.cli.demo_parts.scenario import play

    if is_terminal():
        from whyloop.cli.demo_parts.live_view import WIDEST, show_in_short
        from whyloop.cli.terminal import terminal

        console = terminal(WIDEST)
        for scenario in scenarios:
            show_in_short(console, scenario, play(scenario))
        return
    from whyloop.cli.demo_parts.plain_view import in_short

    for scenario in scenarios:
        _print(in_short(scenario, play(scenario)))


def _show_local() -> int:
    """The assistant on a real model, if there is one."""
    from whyloop.errors import WhyloopError

    try:
        _play_local()
    except WhyloopError as error:
        return _refused(str(error), 1)
    return 0


def _play_local() -> None:
    from whyloop.cli.demo_parts.local_run import LOCAL, play_local

    if is_terminal():
        from whyloop.cli.demo_parts.live_view import WIDEST
        from whyloop.cli.demo_parts.local_view import StreamingView, started
        from whyloop.cli.terminal import terminal

        console = terminal(WIDEST)
        with started(console) as server, StreamingView(console, live=True) as live:
            live.open(LOCAL)
            live.close(play_local(server, live))
        return
    from whyloop.cli.demo_parts.plain_view import PlainView
    from whyloop.models.local import LocalServer

    plain = PlainView(LOCAL)
    with LocalServer() as server:
        _print(plain.text(play_local(server, plain)))


def _draw(scenario: Scenario, path: str) -> int:
    from whyloop.cli.demo_parts.picture import svg

    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(svg(scenario))
    except OSError as error:
        return _refused(f"cannot write {path}: {error.strerror}", 1)
    _print(f"Wrote {path}")
    return 0


def _traces(scenarios: list[Scenario], *, as_list: bool) -> str:
    import json

    from whyloop.cli.demo_parts.scenario import play
    from whyloop.cli.demo_parts.trace import trace

    documents = [trace(scenario, play(scenario)) for scenario in scenarios]
    return json.dumps(documents if as_list else documents[0], indent=2)


def _listing(scenarios: dict[str, Scenario]) -> str:
    width = max(map(len, scenarios))
    lines = [f"  {name:<{width}}  {scenario.title}" for name, scenario in scenarios.items()]
    return "\n".join(["The scenarios of whyloop demo, each with another ending:", "", *lines])


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _refused(words: str, code: int) -> int:
    sys.stderr.write(f"whyloop demo: {words}\n")
    return code
