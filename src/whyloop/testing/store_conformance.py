"""The suite of checks that every store must pass, for authors of stores.

A check is an async function that gets a way to open the store, and fails with an `AssertionError` that
says what was expected. Each call of `open_store` within one check opens another store object on the same
sessions. At first there are none. A check opens two to play two processes, and closes all that it opens.
With pytest, where each test has its own folder:

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    async def test_my_store_keeps_the_contract(check: Check, tmp_path: Path) -> None:
        async def open_store(clock: Clock) -> Store:
            return MyStore(tmp_path / "sessions", clock=clock)

        await check(open_store)

Empty a store on a server before each check instead. Time passes on the clock that a store is opened
with, so only the checks of chunks wait, for fractions of a second.
"""

from __future__ import annotations

from whyloop.testing.store_checks import (
    Check,
    OpenStore,
    contents,
    counts,
    engines,
    journals,
    leases,
    listing,
    paging,
    processes,
    random_use,
)

__all__ = ["CHECKS", "Check", "OpenStore"]

CHECKS: tuple[Check, ...] = tuple(
    check
    for topic in (journals, contents, counts, leases, processes, engines, listing, paging, random_use)
    for name, check in vars(topic).items()
    if name.startswith("check_")
)
