"""Claims: large ones are hashed beside the event loop, and those that are too large are refused."""

from __future__ import annotations

import threading
from hashlib import sha256
from typing import Any

import pytest

from whyloop.errors import ConfigurationError, StoreError
from whyloop.stores import MemoryStore, records
from whyloop.testing.store_checks import a_summary, journal


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Note of each digest whether the event loop computes it; more than 1,000 bytes are large."""
    here: list[bool] = []

    def noted(data: bytes) -> Any:
        here.append(threading.current_thread() is threading.main_thread())
        return sha256(data)

    monkeypatch.setattr(records, "HASHED_AT_ONCE", 1000)
    monkeypatch.setattr(records, "sha256", noted)
    return here


async def created() -> MemoryStore:
    store = MemoryStore()
    await store.create(a_summary(), journal("first"))
    return store


async def test_a_large_claim_is_hashed_in_a_thread(hashed: list[bool]) -> None:
    store = await created()
    for size in (1000, 1001):
        assert len(await store.claim("a", await store.keep_claim("a", b"x" * size))) == size
    assert hashed == [True, True, False, False]


async def test_a_claim_that_is_too_large_is_refused_before_it_is_hashed(
    hashed: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "LARGEST_CLAIM", 2000)
    store = await created()
    await store.keep_claim("a", b"x" * 2000)
    with pytest.raises(ConfigurationError, match="invalid claim of 2,001 bytes: keep at most 2,000 bytes"):
        await store.keep_claim("a", b"x" * 2001)
    assert len(hashed) == 1


async def test_a_missing_claim_says_what_to_do() -> None:
    key = sha256(b"data").hexdigest()
    with pytest.raises(StoreError, match=f"session 'a' has no claim {key} in this store: open the store in"):
        await (await created()).claim("a", key)


async def test_a_long_value_that_is_not_bytes_is_shortened() -> None:
    with pytest.raises(ConfigurationError, match=r"invalid claim 'x+…: use bytes") as caught:
        await (await created()).keep_claim("a", "x" * 10_000_000)  # type: ignore[arg-type]
    assert len(str(caught.value)) < 200
