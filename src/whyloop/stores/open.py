"""A store by its address."""

from __future__ import annotations

import os
import re
from pathlib import Path

from whyloop.errors import ConfigurationError
from whyloop.stores.store import Store

VARIABLE = "WHYLOOP_STORE"
DEFAULT_PATH = "whyloop.db"

_POSTGRES = re.compile(r"postgres(ql)?://", re.IGNORECASE)
# A letter and a colon is a drive; more letters, or a slash after them, are an address of some kind.
_ADDRESS = re.compile(r"\W*[a-z][a-z0-9+.-]+:|.*://|.*\b(password|host)\s*=", re.IGNORECASE | re.DOTALL)


def open_store(address: str | Path | None = None) -> Store:
    """The store at an address: the path of a SQLite file, or `postgresql://…`.

    Without one it is that of the variable WHYLOOP_STORE, else the file whyloop.db in this folder.
    """
    if address is None:
        address = os.environ.get(VARIABLE) or DEFAULT_PATH
    if isinstance(address, str):
        if _POSTGRES.match(address):
            from whyloop.stores.postgres import PostgresStore

            return PostgresStore(address)
        if _ADDRESS.match(address):
            # What it is exactly is not said, since there may be a password in it.
            raise ConfigurationError(
                "this is the address of no store: give the path of a file, or an address that begins "
                "with postgresql://. A path that looks like an address is given as a pathlib.Path"
            )
    from whyloop.stores.sqlite import SqliteStore

    return SqliteStore(address)
