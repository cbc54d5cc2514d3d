"""Options that several commands have, and the commands that they suggest; nothing heavy is loaded here."""

from __future__ import annotations

import argparse
import os
import shlex

STORE_VARIABLE = "WHYLOOP_STORE"
DEFAULT_STORE = "whyloop.db"
SHORT = 8
AN_AGENT = ("--agent", "package.module:name")
_HEXADECIMAL = frozenset("0123456789abcdef")


def add_store(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--store",
        metavar="ADDRESS",
        help=f"a file, or the address of a database (default: ${STORE_VARIABLE}, else {DEFAULT_STORE})",
    )


def add_session(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the session; the beginning of its id will do")


def add_json(parser: argparse._ActionsContainer, words: str = "print it for machines") -> None:
    parser.add_argument("--json", action="store_true", help=words)


def command(args: argparse.Namespace, name: str, *words: str, options: tuple[str, ...] = ()) -> str:
    """A command line to be copied: for the store that was named, and safe to paste whatever the words are."""
    store = _store_option(args.store)
    line = ["whyloop", name, *words, *options, *store]
    if any(word.startswith("-") for word in words):  # One from a model may look like an option.
        line = ["whyloop", name, *options, *store, "--", *words]
    return "".join(char if char.isprintable() else "?" for char in shlex.join(line))


def _store_option(address: str | None) -> tuple[str, ...]:
    """What names this store again; nothing if it is the usual one, and nobody's password."""
    if not address or (address == DEFAULT_STORE and not os.environ.get(STORE_VARIABLE)):
        return ()
    return ("--store", without_password(address))


def without_password(address: str) -> str:
    """The path of a file; of any other address nothing, since there may be a password in it."""
    return "ADDRESS" if "://" in address or not {"@", "="}.isdisjoint(address) else address


def short(agent_id: str, length: int = SHORT) -> str:
    """The beginning of an id that whyloop made; any other is shown whole."""
    made = len(agent_id) == 32 and _HEXADECIMAL.issuperset(agent_id)
    return agent_id[:length] if made else agent_id
