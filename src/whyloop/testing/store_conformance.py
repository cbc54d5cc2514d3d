"""The suite that every store must pass, for whoever writes one.

A check is an async function that gets a way to open the store, and fails with an `AssertionError`
in words. What is opened within one check is always the same underlying store, empty at first, so a
check opens it twice to play two processes; it closes whatever it opens. With pytest, where each
test has a folder of its own:

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    async def test_my_store_keeps_the_contract(check: Check, tmp_path: Path) -> None:
        async def open_store(clock: Clock) -> Store:
            return MyStore(tmp_path / "sessions", clock=clock)

        await check(open_store)

A store on a server is emptied before each check instead. Nothing here waits: time passes on the
clock that the store is opened with.
"""

from __future__ import annotations

from types import ModuleType

from whyloop.testing.store_checks import (
    at_once,
    contents,
    deletion,
    events,
    journals,
    leases,
    listing,
    paging,
    random_use,
    requests,
)
from whyloop.testing.store_checks.support import Check, OpenStore

__all__ = ["CHECKS", "Check", "OpenStore"]


def _checks_in(module: ModuleType) -> list[Check]:
    return [value for name, value in vars(module).items() if name.startswith("check_")]


CHECKS: tuple[Check, ...] = tuple(
    check
    for module in (
        journals,
        at_once,
        contents,
        leases,
        requests,
        deletion,
        events,
        listing,
        paging,
        random_use,
    )
    for check in _checks_in(module)
)
