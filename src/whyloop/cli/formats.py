"""Times, ids, names, tool arguments and command lines, as people read, write and copy them."""

from __future__ import annotations

import argparse
import getpass
import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from whyloop.cli.command import DEFAULT_STORE, STORE_VARIABLE
from whyloop.errors import ConfigurationError
from whyloop.values.redaction import DEFAULT_REDACTION, Redaction
from whyloop.values.scalars import utc_now
from whyloop.values.state import UNNAMED_PERSON
from whyloop.values.text import SHORT_ID, clean, counted, revealed, shortened

PROGRAM = "whyloop"
AN_AGENT = ("--agent", "package.module:name")
MOST_CHARACTERS = 4_000
ARGUMENTS_SHOWN = 3
ARGUMENT_LENGTH = 30
_LONG_UNITS = ((86_400, "day"), (3_600, "hour"), (60, "minute"))

Arguments = Mapping[str, Any] | str
PlainValue = str | int | float | bool | None


# Times


def before_now(span: timedelta | None) -> datetime | None:
    """Return the moment that was this long ago, None without a span."""
    return None if span is None else utc_now() - span


def age(moment: datetime) -> str:
    """Return how long ago a moment was: "3 d"."""
    return span_text(float(int(seconds_since(moment))))


def seconds_since(moment: datetime) -> float:
    """Return how many seconds ago a moment was, at least zero."""
    return max(0.0, (utc_now() - moment).total_seconds())


def span_text(seconds: float) -> str:
    """Return a span of time as short text: "420 ms", "12 s", "5 min", "40 d"."""
    if 0 < seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 and seconds % 1 else f"{seconds:.0f} s"
    if seconds < 2 * 3_600:
        return f"{seconds // 60:.0f} min"
    if seconds < 2 * 86_400:
        return f"{seconds // 3_600:.0f} h"
    return f"{seconds // 86_400:,.0f} d"


def long_span_text(seconds: float) -> str:
    """Return a span of time for a sentence: "90 days", "1.5 hours", "12 s"."""
    for size, noun in _LONG_UNITS:
        if seconds >= size:
            number = round(seconds / size, 1)
            return f"{number:,g} {noun}{'' if number == 1 else 's'}"
    return span_text(seconds)


# Ids and commands


def unique_length(identifiers: Iterable[str]) -> int:
    """Return how many characters distinguish these ids."""
    distinct, length = set(identifiers), SHORT_ID
    while len({identifier[:length] for identifier in distinct}) < len(distinct):
        length += 1
    return length


def program() -> tuple[str, ...]:
    """Return the command that starts this program: its name, or its path."""
    called, found = Path(sys.argv[0]), shutil.which(PROGRAM)
    if called.stem == PROGRAM and called.exists():
        return (PROGRAM,) if found and called.samefile(found) else (_path_from_here(called),)
    if called.parts[-2:] == (PROGRAM, "__main__.py") and not found:
        return (_path_from_here(Path(sys.executable)), "-m", PROGRAM)
    return (PROGRAM,)


def _path_from_here(path: Path) -> str:
    path = path.absolute()
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def command_line(args: argparse.Namespace, name: str, *arguments: str, options: tuple[str, ...] = ()) -> str:
    """Return a command for the store that was named, safe to paste."""
    store = _store_option(args.store)
    line = [*program(), name, *arguments, *options, *store]
    if any(argument.startswith("-") for argument in arguments):  # An id may look like an option.
        line = [*program(), name, *options, *store, "--", *arguments]
    return "".join(char if char.isprintable() else "?" for char in shlex.join(line))


def store_name(address: str | None) -> str:
    """Return the store that a command uses, without a password."""
    return without_password(address or os.environ.get(STORE_VARIABLE) or DEFAULT_STORE)


def without_password(address: str) -> str:
    """Return the path of a file; hide other addresses, which may have a password."""
    return "ADDRESS" if "://" in address or not {"@", "="}.isdisjoint(address) else address


def _store_option(address: str | None) -> tuple[str, ...]:
    """Return the option that names this store again; nothing for the default one."""
    if not address or (address == DEFAULT_STORE and not os.environ.get(STORE_VARIABLE)):
        return ()
    return ("--store", without_password(address))


# Tool arguments


def exact_arguments(arguments: Arguments, *, full: bool = False) -> list[str]:
    """Return the arguments of a call as JSON lines, safe to print."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, indent=2)
    if not isinstance(arguments, str) and len(text) <= 80:
        text = json.dumps(arguments, ensure_ascii=False)
    hidden = 0 if full else max(0, len(text) - MOST_CHARACTERS)
    lines = [escaped(line) for line in text[: len(text) - hidden].split("\n")]
    more = f"… and {counted(hidden, 'character')} more: whyloop show --full has them"
    return [*lines, more] if hidden else lines


def escaped(text: str) -> str:
    """Return the text with control characters and unprintable ones escaped."""
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in revealed(text))


def arguments_summary(arguments: Arguments) -> str:
    """Return the first arguments of a tool call: "query: 'fjord', kind: 'lead'"."""
    if isinstance(arguments, str):
        return shown_short(arguments)
    shown = [f"{shown_short(key)}: {_value(value)}" for key, value in arguments.items()]
    more = ["…"] if len(shown) > ARGUMENTS_SHOWN else []
    return ", ".join(shown[:ARGUMENTS_SHOWN] + more)


def _value(value: object) -> str:
    if isinstance(value, str):
        return f"'{shown_short(value)}'"
    return shown_short(json.dumps(value, ensure_ascii=False, default=repr))


def shown_short(text: str) -> str:
    """Return the beginning of a text that a person may decide about."""
    return shortened(revealed(text[: 4 * ARGUMENT_LENGTH + 1]), ARGUMENT_LENGTH)


# Metadata


def metadata_of(entries: Iterable[str], option: str = "--metadata") -> dict[str, PlainValue]:
    """Return the metadata that "key=value" texts name."""
    return dict(_entry(clean(text), option) for text in entries)


def _entry(word: str, option: str) -> tuple[str, PlainValue]:
    """Return the metadata entry "key=value"; the value is JSON or text."""
    key, equals, value = word.partition("=")
    if not key or not equals:
        raise ConfigurationError(f"invalid {option} {shortened(word, 80)!r}: use key=value")
    try:
        parsed = msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError):
        return key, value
    if isinstance(parsed, dict | list):
        raise ConfigurationError(
            f"invalid {option} {shortened(word, 80)!r}: use text, a number, true, false or null"
        )
    return key, parsed


def decider(by: str | None) -> str:
    """Return the name that was given, or the login name."""
    if by is not None:
        if not by.strip():
            raise ConfigurationError("--by is empty: give the name of a person")
        return by
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return UNNAMED_PERSON


def parse_arguments(text: str, name: str) -> Mapping[str, Any]:
    """Return the arguments that a person wrote as JSON; an error names where."""
    try:
        arguments = msgspec.json.decode(clean(text))
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigurationError(f"{name} is not JSON: {shortened(str(error), 100)}") from None
    if not isinstance(arguments, dict):
        raise ConfigurationError(f'{name} is not a JSON object, such as {{"amount": 5}}')
    return arguments


class View(NamedTuple):
    """How a conversation is shown."""

    full: bool = False
    """Whether long texts are not cut."""
    redaction: Redaction | None = DEFAULT_REDACTION
    """The rules for secrets; None shows them."""


def redaction_of(args: argparse.Namespace) -> Redaction | None:
    """Return the rules for secrets of a command that has `--show-secrets`."""
    return None if args.show_secrets else DEFAULT_REDACTION
