"""Opening the store that a command line names."""

from __future__ import annotations

import os
from pathlib import Path

from whyloop.cli.session_parts.options import DEFAULT_STORE, STORE_VARIABLE, without_password
from whyloop.cli.session_parts.refusal import Refusal
from whyloop.stores.open import open_store
from whyloop.stores.store import Store
from whyloop.values.text import shortened


def opened(address: str | None, *, create: bool = False) -> Store:
    """The store of this address, or the usual one; a file that is not there is only made with `create`."""
    address = address or os.environ.get(STORE_VARIABLE) or DEFAULT_STORE
    is_file = "://" not in address
    if is_file and not create and not Path(address).expanduser().exists():
        name = shortened(without_password(address))
        raise Refusal(
            f"there is no store {name!r}: record a run in one with "
            f'whyloop run "…" --store {name}, or name another with --store or ${STORE_VARIABLE}'
        )
    return open_store(address)
