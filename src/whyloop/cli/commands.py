"""The commands: their names, their options, and the functions that run them, loaded when they run."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from enum import Enum, auto
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from whyloop.cli.command_lines import DEFAULT_STORE, MODEL_VARIABLE, STORE_VARIABLE, TOKEN_VARIABLE
from whyloop.cli.exit_codes import exit_codes_help

if TYPE_CHECKING:
    from datetime import timedelta

    Parser = argparse.ArgumentParser

HOST, PORT = "127.0.0.1", 8000
DEFAULT_SCENARIO = "natural-end"


class Opens(Enum):
    """The store that a command is given when it runs."""

    NONE = auto()
    """None: it opens one itself, or needs none."""
    EXISTING = auto()
    """The store that the command line names; an error if there is none."""
    ANY = auto()
    """The same; it is created if it does not exist."""


class Command(NamedTuple):
    """One command of `whyloop`."""

    name: str
    target: str
    """The function that runs it, as "module:function" of this package."""
    opens: Opens
    summary: str
    """What it does, for the list of commands."""
    add_options: Callable[[Parser], None]
    details: str = ""
    """More about it, for its help."""
    epilog: str = ""
    logs_runs: bool = False
    """True if it writes how each run ended to stderr."""

    def add_to(self, commands: argparse._SubParsersAction[Parser]) -> None:
        """Add the command to a parser."""
        sentence = f"{self.summary[0].upper()}{self.summary[1:]}."
        parser = commands.add_parser(
            self.name,
            help=self.summary,
            description=f"{sentence} {self.details}".strip(),
            epilog=self.epilog or None,
            formatter_class=argparse.RawDescriptionHelpFormatter if self.epilog else argparse.HelpFormatter,
        )
        parser.set_defaults(command=self)
        self.add_options(parser)

    def load(self) -> Callable[..., Any]:
        """Import the function that runs the command."""
        module, _, name = self.target.partition(":")
        function: Callable[..., Any] = getattr(import_module(f"whyloop.cli.{module}"), name)
        return function

    def run(self, args: argparse.Namespace) -> int:
        """Run the command and return its exit code."""
        function = self.load()
        if self.opens is Opens.NONE:
            return int(function(args))
        from whyloop.cli.store_access import run_with_store

        create = self.opens is Opens.ANY
        return run_with_store(self.name, args.store, lambda store: function(store, args), create=create)


# Options that several commands have


def _store(parser: Parser) -> None:
    parser.add_argument(
        "--store",
        metavar="ADDRESS",
        help=f"a file, or the address of a database (default: ${STORE_VARIABLE}, else {DEFAULT_STORE})",
    )


def _session(parser: Parser) -> None:
    parser.add_argument("id", metavar="SESSION", help="the session: its id, or the beginning of it")
    _store(parser)


def _json(parser: argparse._ActionsContainer, text: str = "print JSON") -> None:
    parser.add_argument("--json", action="store_true", help=text)


def _agent(parser: Parser) -> None:
    parser.add_argument(
        "--agent", metavar="PATH", help="an agent of your code, package.module:name, instead of a model"
    )
    parser.add_argument(
        "--model", metavar="NAME", help=f"such as openai:gpt-5 or ollama:qwen3 (default: ${MODEL_VARIABLE})"
    )
    parser.add_argument(
        "--tools",
        metavar="PATH",
        nargs="+",
        action="extend",
        default=[],
        help="tools or functions, package.module:name; a module alone names all its tools",
    )
    parser.add_argument("--instructions", metavar="TEXT", help="the instructions for the model")
    parser.add_argument("--base-url", metavar="URL", help="another address of the model")
    parser.add_argument("--max-steps", metavar="N", type=int, help="stop after N steps (default: 20)")
    parser.add_argument("--max-tokens", metavar="N", type=int, help="stop after N tokens")
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=float, help="stop after this time (default: 300)"
    )
    parser.add_argument(
        "--retry", action="store_true", help="try again when a tool fails or the provider is busy"
    )


def _output(parser: Parser) -> None:
    _json(parser, "print the trace as JSON instead of the answer")
    parser.add_argument("--quiet", action="store_true", help="print only the answer, unless the run fails")


def _span(text: str) -> timedelta:
    from whyloop.cli.formats import parse_span

    return parse_span(text)


# The options of each command


def _demo(parser: Parser) -> None:
    parser.add_argument(
        "scenario", nargs="?", metavar="SCENARIO", help=f'its name, or "all" (default: {DEFAULT_SCENARIO})'
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--list", action="store_true", help="list the scenarios")
    _json(form, "print the trace as JSON")
    form.add_argument("--svg", metavar="FILE", help="draw the run as a picture")
    parser.add_argument("--fast", action="store_true", help="do not pause between events")
    parser.add_argument(
        "--model", choices=["local"], help="a small real model on this machine, offline, without a script"
    )


def _run(parser: Parser) -> None:
    # Not required here: --tools takes the words after it, and the question may be among them.
    parser.add_argument("question", metavar="QUESTION", nargs="?", help="the question; - reads it from stdin")
    _agent(parser)
    parser.add_argument(
        "--store",
        metavar="ADDRESS",
        help=f"record the run as a session, in a file or a database (default: ${STORE_VARIABLE})",
    )
    parser.add_argument(
        "--session", metavar="SESSION", help=f"ask in this session of the store (or of {DEFAULT_STORE})"
    )
    _output(parser)


def _resume(parser: Parser) -> None:
    _session(parser)
    _agent(parser)
    parser.add_argument("--grant-steps", metavar="N", type=int, help="allow N more steps")
    parser.add_argument("--grant-tokens", metavar="N", type=int, help="allow N more tokens")
    parser.add_argument("--grant-seconds", metavar="S", type=float, help="allow S more seconds")
    _output(parser)


def _serve(parser: Parser) -> None:
    _store(parser)
    _agent(parser)
    parser.add_argument("--host", default=HOST, help=f"the address to listen on (default: {HOST})")
    parser.add_argument("--port", default=PORT, type=int, help=f"the port; 0 chooses one (default: {PORT})")
    parser.add_argument(
        "--token",
        help=f"a secret that clients send as Authorization: Bearer TOKEN (default: ${TOKEN_VARIABLE}); "
        "required if other machines can reach the address",
    )
    parser.add_argument(
        "--origin",
        metavar="URL",
        action="append",
        help="an address under which the server is reached, or of a site whose pages may use it, such as "
        "https://app.example.com; may be given several times",
    )


def _worker(parser: Parser) -> None:
    _store(parser)
    parser.add_argument(
        "--agents",
        metavar="PATH",
        required=True,
        help="package.module:name of an agent, of a dict of agents by name, or of a function that makes them",
    )
    parser.add_argument(
        "--at-once", metavar="N", type=int, default=20, help="run at most N sessions at once (default: 20)"
    )


def _sessions(parser: Parser) -> None:
    _store(parser)
    parser.add_argument("--status", metavar="S", help="only those with this status, such as paused")
    parser.add_argument("--stop-reason", metavar="R", help="only those with this one, such as steps_limit")
    parser.add_argument("--rule", metavar="NAME", help="only those that this rule decided, as StepsLimit")
    parser.add_argument("--agent", metavar="NAME", help="only those of the agent with this name")
    parser.add_argument(
        "--older-than", metavar="SPAN", type=_span, help="only those that began before, such as 7d or 12h"
    )
    parser.add_argument("--newer-than", metavar="SPAN", type=_span, help="only those that began since")
    parser.add_argument(
        "--metadata",
        metavar="KEY=VALUE",
        nargs="+",
        action="extend",
        default=[],
        help="only those with this entry; the value is JSON or else text",
    )
    parser.add_argument("--limit", metavar="N", type=int, help="list N sessions (default: 50)")
    pages = parser.add_mutually_exclusive_group()
    pages.add_argument("--after", metavar="CURSOR", help="the page after this cursor")
    pages.add_argument("--all", action="store_true", help="every page")
    _json(parser)


def _show(parser: Parser) -> None:
    _session(parser)
    parser.add_argument("--full", action="store_true", help="do not shorten texts, arguments and results")
    _json(parser)


def _watch(parser: Parser) -> None:
    _session(parser)
    _json(parser, "print each envelope as JSON, one per line")
    parser.add_argument(
        "--after", metavar="CURSOR", help="start after this: a number, EXECUTION:NUMBER, or latest"
    )
    parser.add_argument("--so-far", action="store_true", help="end with the latest recorded event")


def _why(parser: Parser) -> None:
    _session(parser)
    parser.add_argument(
        "--step", metavar="N", type=int, help="explain step N of the session, counted from its first"
    )
    form = parser.add_mutually_exclusive_group()
    _json(form)
    form.add_argument("--markdown", action="store_true", help="print Markdown, to paste into a ticket")


def _question(parser: Parser) -> None:
    _session(parser)
    parser.add_argument(
        "question",
        metavar="QUESTION",
        nargs="?",
        help="the question: its id, or the beginning of it (default: the only open one)",
    )
    parser.add_argument("--by", metavar="NAME", help="the person who decides (default: your login name)")


def _approve(parser: Parser) -> None:
    _question(parser)
    parser.add_argument("--args", metavar="JSON", help="run the call with these arguments instead")


def _deny(parser: Parser) -> None:
    _question(parser)
    parser.add_argument("reason", metavar="REASON", nargs="?", help="the reason; the model receives it")


def _stop(parser: Parser) -> None:
    _session(parser)
    parser.add_argument("reason", metavar="REASON", nargs="?", help="the reason, for the trace")


def _fork(parser: Parser) -> None:
    _session(parser)
    parser.add_argument(
        "--step", metavar="N", type=int, help="after step N of the session (default: its last)"
    )


def _export(parser: Parser) -> None:
    parser.add_argument("ids", metavar="SESSION", nargs="*", help="the sessions (default: all of them)")
    _store(parser)
    parser.add_argument("--output", metavar="FILE", help="the file to write (default: stdout)")


def _import(parser: Parser) -> None:
    parser.add_argument("file", metavar="FILE", help="the file; - reads from stdin")
    _store(parser)
    parser.add_argument("--skip-existing", action="store_true", help="skip sessions that exist already")


def _delete(parser: Parser) -> None:
    parser.add_argument("ids", metavar="SESSION", nargs="+", help="the sessions")
    _store(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask")


def _prune(parser: Parser) -> None:
    parser.add_argument(
        "--older-than",
        metavar="SPAN",
        type=_span,
        required=True,
        help="those whose last change is at least this long ago, such as 90d, 12h or 30m",
    )
    parser.add_argument(
        "--status",
        metavar="S",
        action="append",
        help="those with this status: completed, stopped or failed; may be repeated (default: completed)",
    )
    _store(parser)
    parser.add_argument("--dry-run", action="store_true", help="print their ids, and delete nothing")
    parser.add_argument("--yes", action="store_true", help="do not ask")


_TO_STDOUT = "The answer goes to stdout, everything else to stderr."

COMMANDS = (
    Command(
        "demo",
        "demo:show_demo",
        Opens.NONE,
        "watch an agent run on a scripted model, and read why it ended",
        _demo,
    ),
    Command(
        "run",
        "runs:run",
        Opens.NONE,
        "ask a real model, with tools, and read why the run ended",
        _run,
        _TO_STDOUT,
        exit_codes_help(),
    ),
    Command(
        "serve",
        "serve:serve",
        Opens.ANY,
        "serve the sessions of a store over HTTP, and run them for clients",
        _serve,
        "There are a JSON API, server-sent events and WebSocket. With an agent or a model, clients can ask "
        "questions, and sessions whose runner died continue by themselves; without one, clients can read "
        "and decide. On an address that other machines can reach, clients need a token. For users of your "
        "own, mount whyloop.server.AgentServer in an app.",
        logs_runs=True,
    ),
    Command(
        "worker",
        "worker:work",
        Opens.ANY,
        "continue sessions whose runner died, or whose questions are all decided",
        _worker,
        "It looks for them once a second, until SIGTERM or Ctrl-C; then each run ends after its step, and "
        "another worker continues it. A second signal ends it at once, as a crash would.",
    ),
    Command("sessions", "sessions:list_sessions", Opens.EXISTING, "list sessions, newest first", _sessions),
    Command(
        "show",
        "show:show",
        Opens.EXISTING,
        "show a session: its messages, tool calls, decisions and open questions",
        _show,
    ),
    Command(
        "watch",
        "watch:watch",
        Opens.EXISTING,
        "follow the events of a session, whichever process runs it",
        _watch,
        "It prints the events so far and then new ones as they come, streaming text included, until Ctrl-C.",
    ),
    Command("why", "why:why", Opens.EXISTING, "explain why a session ended, or continued after a step", _why),
    Command(
        "approve",
        "decisions:approve",
        Opens.EXISTING,
        "let a tool call run that waits for a person",
        _approve,
    ),
    Command(
        "deny",
        "decisions:deny",
        Opens.EXISTING,
        "do not let a tool call run that waits for a person, and tell the model why",
        _deny,
    ),
    Command(
        "resume",
        "runs:resume",
        Opens.NONE,
        "continue a session that was paused, stopped, failed or cut off",
        _resume,
        _TO_STDOUT,
        exit_codes_help(),
    ),
    Command("stop", "decisions:stop", Opens.EXISTING, "stop a session's run, wherever it runs", _stop),
    Command(
        "fork",
        "copies:fork",
        Opens.EXISTING,
        "create a session with the history of another one, and print its id",
        _fork,
    ),
    Command(
        "export", "copies:export", Opens.EXISTING, "write sessions as the lines of a JSON lines file", _export
    ),
    Command(
        "import", "copies:import_", Opens.NONE, "store the sessions of a file that export wrote", _import
    ),
    Command("delete", "removal:delete", Opens.EXISTING, "delete sessions for good", _delete),
    Command(
        "prune",
        "removal:prune",
        Opens.EXISTING,
        "delete sessions that ended long ago",
        _prune,
        "Sessions that run or are paused are never deleted.",
    ),
)
