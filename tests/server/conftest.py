"""The stores that tests of the server are run on, and a server to ask."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.server.support import Lab, agent_with
from whyloop.stores import MemoryStore
from whyloop.testing import call


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    """A server with a session "a", in which a tool call waits for a person."""
    lab = Lab(MemoryStore(), agent_with(call("pay", {"amount": 7}), "done"))
    await lab.asked()
    yield lab
    await lab.server.close()


@pytest.fixture
def nothing_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """What clients get wrong is nothing for the log of the server."""
    yield
    assert [each.message for each in caplog.records if each.levelno >= logging.WARNING] == []
