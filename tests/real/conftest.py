"""One real model for all of these tests, in a process of its own on this machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from whyloop.errors import ConfigurationError
from whyloop.models.local import LocalServer


@pytest.fixture(scope="session")
def server() -> Iterator[LocalServer]:
    """The local model, started once; without it the tests say what is missing."""
    try:
        server = LocalServer()
    except ConfigurationError as error:
        pytest.skip(str(error))
    with server:
        yield server
