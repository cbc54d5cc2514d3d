"""A command of `whyloop`: its name, its options, and the function that runs it, loaded when it runs."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from datetime import timedelta
from enum import Enum, auto
from importlib import import_module
from typing import Any, NamedTuple

from whyloop.cli.output import exit_codes_help, log_runs_to_stderr

LONGEST_DAYS = 36_500
_SPAN = re.compile(r"(\d{1,9}(?:\.\d{1,9})?) ?(s|min|m|h|d|w)", re.ASCII)
_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800}


def parse_span(text: str) -> timedelta:
    """Return the span of time that a command line names: "90s", "30m", "12h", "7d", "2w"."""
    match = _SPAN.fullmatch(text.strip().lower())
    if match is None:
        raise argparse.ArgumentTypeError(f"invalid span of time {text!r}: use 30m, 12h or 7d")
    seconds = float(match[1]) * _UNITS[match[2]]
    if seconds > LONGEST_DAYS * 86_400:
        raise argparse.ArgumentTypeError(f"invalid span of time {text!r}: use at most a hundred years")
    return timedelta(seconds=seconds)


class Opens(Enum):
    """The store that a command is given when it runs."""

    NONE = auto()
    """None: it opens one itself, or needs none."""
    EXISTING = auto()
    """The store that the command line names; an error if there is none."""
    ANY = auto()
    """The same; it is created if it does not exist."""


class Option(NamedTuple):
    """An option or a positional argument, as argparse takes it."""

    name: str
    settings: dict[str, Any]


class Command(NamedTuple):
    """One command of `whyloop`."""

    name: str
    target: str
    """The function that runs it, as "module:function" of this package."""
    opens: Opens
    summary: str
    """Its purpose, for the list of commands."""
    options: tuple[Option | tuple[Option, ...], ...]
    """Its options; of those in a tuple of their own, only one may be given."""
    details: str = ""
    """More about it, for its help."""
    has_exit_codes: bool = False
    """True if its exit code says how a run ended."""
    logs_runs: bool = False
    """True if it writes how each run ended to stderr."""

    def add_to(self, commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
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
    """Return an option by its name, the placeholder of its value, and its help: "--step N", "the step"."""
    name, _, placeholder = spec.partition(" ")
    return Option(name, {"help": text, "metavar": placeholder or None, **settings})


def flag(name: str, text: str) -> Option:
    return Option(name, {"help": text, "action": "store_true"})
