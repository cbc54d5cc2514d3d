"""A log of one session, in a store that fails when it is told to."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.broadcasting.shaky import ShakyStore
from tests.broadcasting.support import Naps
from tests.broadcasting.watching import add_session
from whyloop.broadcasting import EventLog, channels


@pytest.fixture
async def store() -> ShakyStore:
    store = ShakyStore()
    await add_session(store)
    return store


@pytest.fixture
async def log(store: ShakyStore, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[EventLog]:
    """A log that tries again without waiting."""
    monkeypatch.setattr(channels, "_PAUSE_SECONDS", 0.001)
    async with EventLog(store) as log:
        log._delivery._sleep = Naps()
        yield log
