"""A command of `whyloop`, whose function is loaded when it runs, and the options that several share."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from datetime import timedelta
from enum import Enum, auto
from importlib import import_module
from typing import Any, NamedTuple, NoReturn

from whyloop.cli.terminal import USAGE_ERROR, exit_codes_help, log_runs_to_stderr
from whyloop.values.text import shortened

STORE_VARIABLE = "WHYLOOP_STORE"
MODEL_VARIABLE = "WHYLOOP_MODEL"
LONGEST_MESSAGE = 1000
TOKEN_VARIABLE = "WHYLOOP_TOKEN"
DEFAULT_STORE = "whyloop.db"
DEFAULT_SCENARIO = "natural-end"
# What happens after an error, by the name of the policy.
ERROR_POLICIES = {
    "stop_on_any_error": "any error ends the run",
    "retry_tool_errors": "the model may correct its mistakes",
    "ignore_tool_errors": "errors of tools are ignored",
    "retry_all": "every error is retried",
}
DEFAULT_ERROR_POLICY = "retry_tool_errors"
LOG_FORMATS = ("openai", "anthropic", "openhands", "swe-agent", "opentelemetry")
TASK_QUEUE = "whyloop"
HOST, PORT = "127.0.0.1", 8000

LONGEST_DAYS = 36_500
_SPAN = re.compile(r"(\d{1,9}(?:\.\d{1,9})?) ?(s|min|m|h|d|w)", re.ASCII)
_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800}


def parse_span(text: str) -> timedelta:
    """Return a span of time: "90s", "30m", "12h", "7d", "2w"."""
    match = _SPAN.fullmatch(text.strip().lower())
    if match is None:
        raise argparse.ArgumentTypeError(f"invalid span of time {text!r}: use 30m, 12h or 7d")
    seconds = float(match[1]) * _UNITS[match[2]]
    if seconds > LONGEST_DAYS * 86_400:
        raise argparse.ArgumentTypeError(f"invalid span of time {text!r}: use at most a hundred years")
    return timedelta(seconds=seconds)


def _whole_number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"invalid number {text!r}: use a whole number") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"invalid number {text!r}") from None


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, like those of the commands."""

    def __init__(self, prog: str, **options: Any) -> None:
        super().__init__(prog, **options)
        self.register("type", int, _whole_number)
        self.register("type", float, _number)

    def error(self, message: str) -> NoReturn:
        """Write what is wrong, and end the program."""
        self.exit(
            USAGE_ERROR, f"{self.prog}: {shortened(message, LONGEST_MESSAGE)}; see {self.prog} --help\n"
        )


class Opens(Enum):
    """The store that a command is given when it runs."""

    NONE = auto()
    """No store: the command opens one itself, or needs none."""
    EXISTING = auto()
    """The store that the command line names; an error if there is none."""
    ANY = auto()
    """The same store, which is created if it does not exist."""


class Option(NamedTuple):
    """An option or a positional argument, as argparse takes it."""

    name: str
    settings: dict[str, Any]

    def given(self, args: argparse.Namespace) -> Any:
        """Return what the command line has for it, else None; zero counts, an absent flag does not."""
        value = getattr(args, self.name.lstrip("-").replace("-", "_"))
        return None if value is False or value == [] else value


class Command(NamedTuple):
    """One command of `whyloop`."""

    name: str
    target: str
    """The function that runs it, as "module:function" of this package."""
    opens: Opens
    summary: str
    """Its purpose, for the list of commands."""
    options: tuple[Option | tuple[Option, ...], ...]
    """Its options; options in an inner tuple exclude each other."""
    details: str = ""
    """More about it, for its help."""
    has_exit_codes: bool = False
    """True if its exit code says how a run ended."""
    logs_runs: bool = False
    """True if it writes how each run ended to stderr."""

    def add_to(self, commands: argparse._SubParsersAction[Any]) -> None:
        """Add the command to a parser."""
        sentence = f"{self.summary[0].upper()}{self.summary[1:]}."
        raw = argparse.RawDescriptionHelpFormatter
        parser = commands.add_parser(
            self.name,
            help=self.summary,
            description=f"{sentence} {self.details}".strip(),
            epilog=exit_codes_help() if self.has_exit_codes else None,
            formatter_class=raw if self.has_exit_codes else argparse.HelpFormatter,
        )
        parser.set_defaults(command=self)
        for entry in self.options:
            if isinstance(entry, Option):
                parser.add_argument(entry.name, **entry.settings)
            else:
                group = parser.add_mutually_exclusive_group()
                for option in entry:
                    group.add_argument(option.name, **option.settings)

    def load(self) -> Callable[..., Any]:
        """Import the function that runs the command."""
        module, _, name = self.target.partition(":")
        function: Callable[..., Any] = getattr(import_module(f"whyloop.cli.{module}"), name)
        return function

    def run(self, args: argparse.Namespace) -> int:
        """Run the command and return its exit code."""
        if self.logs_runs:
            log_runs_to_stderr()
        function = self.load()
        from whyloop.cli.store_access import run_command, run_with_store

        if self.opens is Opens.NONE:
            return run_command(self.name, lambda: function(args))
        create = self.opens is Opens.ANY
        return run_command(self.name, lambda: run_with_store(function, args, create=create))


def option(spec: str, text: str, **settings: Any) -> Option:
    """Return an option, from "--step N" and its help text."""
    name, _, placeholder = spec.partition(" ")
    return Option(name, {"help": text, "metavar": placeholder or None, **settings})


def flag(name: str, text: str) -> Option:
    return Option(name, {"help": text, "action": "store_true"})


# Options that several commands have

METADATA = option(
    "--metadata KEY=VALUE",
    "set metadata of a new session, which --deps can read; the value is JSON or text; may be repeated",
    action="append",
    default=[],
)

STORE = option(
    "--store ADDRESS",
    f"a file, or the address of a database (default: ${STORE_VARIABLE}, else {DEFAULT_STORE})",
)
SESSION = option("id SESSION", "the session: its id, or the beginning of it")
JSON = flag("--json", "print JSON")
SHOW_SECRETS = flag("--show-secrets", "show texts that look like credentials, which are removed otherwise")
YES = flag("--yes", "delete without asking")
NAMESPACE = (
    option("--namespace NAME", "Temporal's namespace (default: $TEMPORAL_NAMESPACE, else default)"),
    option("--task-queue NAME", f"Temporal's task queue of the workers (default: {TASK_QUEUE})"),
)
DEPS = option(
    "--deps PATH", "package.module:name of a function that takes a session's summary and returns its deps"
)
MODEL = (
    option(
        "--model NAME",
        f"the model, such as openai:gpt-5 or ollama:qwen3, or local for a small one on this machine "
        f"(default: ${MODEL_VARIABLE})",
    ),
    option(
        "--tools PATH",
        "package.module:name of tools or functions; a module alone means all its tools",
        nargs="+",
        action="extend",
        default=[],
    ),
    option("--instructions TEXT", "the instructions for the model"),
    option("--base-url URL", "the address of the model, if it is not the provider's"),
    option("--max-steps N", "stop after N steps (default: 20)", type=int),
    option("--max-tokens N", "stop after N tokens", type=int),
    option("--timeout SECONDS", "stop after this many seconds (default: 300)", type=float),
    option(
        "--error-policy NAME",
        f"{', '.join(ERROR_POLICIES)} (default: {DEFAULT_ERROR_POLICY}, "
        f"{ERROR_POLICIES[DEFAULT_ERROR_POLICY]})",
        choices=tuple(ERROR_POLICIES),
    ),
)
AGENT = (
    option("--agent PATH", "package.module:name of an agent in your code, instead of --model"),
    DEPS,
    *MODEL,  # An agent has all of this.
)
TEMPORAL = (
    option(
        "--temporal ADDRESS",
        "let the workers of a Temporal server run the sessions, such as 127.0.0.1:7233; --agent is then the "
        "name of one of their agents, or its path; Temporal's own variables set the key and certificates",
    ),
    *NAMESPACE,
)
TEMPORAL_WORKER = (
    *NAMESPACE,
    option(
        "--drain SECONDS",
        "with --temporal, the time for running calls to finish after a signal (default: 30)",
        type=float,
    ),
    option(
        "--tool-queue TOOL=QUEUE",
        "with --temporal, let the workers of another task queue run this tool; may be repeated",
        action="append",
        default=[],
    ),
    option(
        "--deployment NAME:BUILD",
        "with --temporal, the version of this worker for Worker Deployment Versioning; a run stays "
        "on the version that it began with",
    ),
    flag(
        "--tools-only",
        "with --temporal, only run the tool calls of this task queue, and wake no sessions",
    ),
)
OUTPUT = (
    flag("--json", "print the trace as JSON instead of the answer"),
    flag("--quiet", "print only the answer, unless the run fails"),
)
QUESTION = (
    SESSION,
    STORE,
    option(
        "question QUESTION",
        "the question: its id, or the beginning of it (default: the only open one)",
        nargs="?",
    ),
    option("--by NAME", "the name of the person (default: your login name)"),
)
FILTERS = (
    option("--status S", "only sessions with this status, such as paused"),
    option("--stop-reason R", "only sessions with this stop reason, such as steps_limit"),
    option("--rule NAME", "only sessions that this rule decided, such as StepsLimit"),
    option("--agent NAME", "only sessions of this agent"),
    option("--older-than SPAN", "only sessions that began longer ago, such as 7d or 12h", type=parse_span),
    option("--newer-than SPAN", "only sessions that began within this time", type=parse_span),
    option("--updated-since SPAN", "only sessions whose status changed within this time", type=parse_span),
    flag("--waiting", "only sessions with open questions for a person"),
    option("--search TEXT", "only sessions with all these terms in a query, the answer, the reason, …"),
    option(
        "--metadata KEY=VALUE",
        "only sessions with this metadata; the value is JSON or text",
        nargs="+",
        action="extend",
        default=[],
    ),
)
RULES = (
    option("--max-steps N", "a limit of N steps", type=int),
    option("--max-tokens N", "a limit of N tokens", type=int),
    option("--timeout SECONDS", "a limit on the time since the query or the last resume", type=float),
    option("--cumulative-timeout SECONDS", "a limit on working time, without pauses", type=float),
    option("--max-cost USD", "a limit on the cost; unknown costs do not count"),
    option(
        "--error-policy NAME",
        f"another error policy: {', '.join(ERROR_POLICIES)}",
        choices=tuple(ERROR_POLICIES),
    ),
    option(
        "--criteria PATH",
        "package.module:name of a criterion, an error policy, an agent or a list in your code; may be "
        "repeated",
        action="append",
        default=[],
    ),
)
TO_STDOUT = "The answer goes to stdout, everything else to stderr."
