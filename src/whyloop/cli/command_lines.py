"""Command lines for people to copy, and the names that they use; nothing heavy is loaded here."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Iterable

STORE_VARIABLE = "WHYLOOP_STORE"
MODEL_VARIABLE = "WHYLOOP_MODEL"
TOKEN_VARIABLE = "WHYLOOP_TOKEN"
DEFAULT_STORE = "whyloop.db"
AN_AGENT = ("--agent", "package.module:name")
SHORT = 8
_HEXADECIMAL = frozenset("0123456789abcdef")


def command_line(args: argparse.Namespace, name: str, *words: str, options: tuple[str, ...] = ()) -> str:
    """Return a command for the store that was named, safe to paste whatever the words are."""
    store = _store_option(args.store)
    line = ["whyloop", name, *words, *options, *store]
    if any(word.startswith("-") for word in words):  # An id may look like an option.
        line = ["whyloop", name, *options, *store, "--", *words]
    return "".join(char if char.isprintable() else "?" for char in shlex.join(line))


def without_password(address: str) -> str:
    """Return the path of a file; any other address may hold a password, and is not shown."""
    return "ADDRESS" if "://" in address or not {"@", "="}.isdisjoint(address) else address


def short(identifier: str, length: int = SHORT) -> str:
    """Return the first characters of an id that whyloop made, and any other id whole."""
    made = len(identifier) == 32 and _HEXADECIMAL.issuperset(identifier)
    return identifier[:length] if made else identifier


def unique_length(identifiers: Iterable[str], least: int = SHORT) -> int:
    """Return how many characters tell these ids apart."""
    distinct = set(identifiers)
    length = least
    while len({identifier[:length] for identifier in distinct}) < len(distinct):
        length += 1
    return length


def _store_option(address: str | None) -> tuple[str, ...]:
    """Return the option that names this store again; nothing for the default one."""
    if not address or (address == DEFAULT_STORE and not os.environ.get(STORE_VARIABLE)):
        return ()
    return ("--store", without_password(address))
