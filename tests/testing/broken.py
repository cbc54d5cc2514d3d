"""What tests of the conformance suite share: stores that break the contract, and checks that notice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from whyloop.errors import WhyloopError
from whyloop.loop.world import Clock
from whyloop.stores import MemoryStore, Store
from whyloop.testing.store_checks import Check, processes
from whyloop.testing.store_conformance import CHECKS


def broken_stores(namespace: Mapping[str, Any], *bases: type[MemoryStore]) -> list[type[MemoryStore]]:
    """Return the stores that a module defines, without those that are only bases."""
    return [
        kind
        for kind in namespace.values()
        if isinstance(kind, type) and issubclass(kind, MemoryStore) and kind not in (MemoryStore, *bases)
    ]


async def fails(kind: type[MemoryStore], check: Check) -> bool:
    first = kind()

    async def open_store(clock: Clock) -> Store:
        return kind(clock, beside=first)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "_PATIENCE_SECONDS", 0.1)  # In memory, chunks arrive at once.
        try:
            await check(open_store)
        except (AssertionError, WhyloopError):
            return True
        return False


async def assert_some_check_fails(kind: type[MemoryStore]) -> None:
    for check in CHECKS:
        if await fails(kind, check):
            return
    pytest.fail(f"no check notices a store that {kind.__name__}")
