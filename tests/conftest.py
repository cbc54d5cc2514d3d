"""The rules that hold for every test: no network, and properties that are checked the same way each time."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, settings

from tests.real.browser import SHARED
from tests.support import QUICK, NetworkBlockedError
from whyloop.stores import MemoryStore, SqliteStore, Store

pytest_plugins = ["tests.required"]

SUITES = ("crash", "load", "scale", "fuzz", "temporal")
"""The suites of `make soak`; each test in it names its own: `@pytest.mark.soak(suite="crash")`."""

settings.register_profile(
    "whyloop",
    max_examples=20 if QUICK else 100,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("whyloop")

_LOOPBACK = ("127.", "::1", "localhost")


def _refuse_network(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "socket.connect":
        address = arguments[1]
    elif event == "socket.getaddrinfo":
        address = arguments
    else:
        return
    # Addresses of local (Unix) sockets are plain paths, not tuples.
    if isinstance(address, tuple) and address[0] and not str(address[0]).startswith(_LOOPBACK):
        raise NetworkBlockedError(f"a test tried to reach {address[0]!r}")


sys.addaudithook(_refuse_network)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files of slow tests: several processes then end at about the same time."""
    for item in items:
        mark = item.get_closest_marker("soak")
        if mark is not None and mark.kwargs.get("suite") not in SUITES:
            raise pytest.UsageError(f"{item.nodeid} is in no suite of {SUITES}: pytest.mark.soak(suite=…)")
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_configure() -> None:
    """Let commands that tests start heed Ctrl-C, also if a shell runs the tests in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


# A quarter of the time of a collection is spent on looking for garbage among thousands of tests.
gc.disable()


def pytest_collection_finish() -> None:
    """Nothing that is loaded by now is ever garbage: a test that collects looks at its own objects only."""
    gc.freeze()
    gc.enable()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_browser() -> AsyncIterator[None]:
    """One browser for all tests that ask for it, in one event loop; see `tests.real.browser`."""
    async with SHARED.share():
        yield


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """Each kind of store that needs no server."""
    made: Store = MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "whyloop.db")
    async with made:
        yield made
