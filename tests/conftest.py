"""The rules that hold for every test: no network, and properties that are checked the same way each time."""

from __future__ import annotations

import gc
import sys
from typing import Any

from hypothesis import HealthCheck, settings

from tests.support import QUICK, NetworkBlockedError

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


def pytest_collection_finish() -> None:
    """Nothing that is loaded by now is ever garbage: a test that collects looks at its own objects only."""
    gc.freeze()
