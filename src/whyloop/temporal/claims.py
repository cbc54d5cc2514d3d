"""Claims: large payloads, which the store of their session keeps; Temporal has their keys."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    StorageDriver,
    StorageDriverClaim,
    StorageDriverRetrieveContext,
    StorageDriverStoreContext,
    StorageDriverWorkflowInfo,
)

from whyloop.errors import ConfigurationError, SessionNotFoundError, StoreError, StoreUnavailableError
from whyloop.stores.reading import texts_after
from whyloop.stores.store import Store
from whyloop.temporal.payloads import KIND, Opened, StructConverter
from whyloop.values import encoding

LARGEST_PAYLOAD = 64 * 1024
"""A payload of more bytes is kept in the store, and Temporal has its key."""

LARGEST_CLAIM = 90_000_000
"""The maximum size of an activity's result in bytes, even as text within a journal entry."""

PAUSES = (0.1, 0.2, 0.4, 0.8)
"""The seconds between attempts to keep a payload, during which a worker sends no heartbeat."""


def too_large(value: Struct, name: str = "result", *, share: int = 1) -> ConfigurationError | None:
    """Return why a value cannot be recorded by a workflow; None if it can.

    It is refused before it reaches a workflow, since Temporal would try to store it forever.

    Args:
        value: The value that an activity returns, or that a client sends.
        name: The kind of value, for the error. Default: "result".
        share: The number of such values in one payload. Default: 1.
    """
    text, limit = encoding.json_text(value), LARGEST_CLAIM // share
    if len(text) < limit // 8:  # The most bytes that a character takes as text within text.
        return None
    size = len(msgspec.json.encode(text))
    if size <= limit:
        return None
    return ConfigurationError(
        f"the {name} takes {size / 1e6:.0f} MB when recorded, and the maximum is {limit / 1e6:.0f} MB: "
        "shorten it, or say where the rest can be found"
    )


class StoreDriver(StorageDriver):
    """A driver that keeps large payloads of a session's workflow in the store of the session, beside its
    journal. Entries of the journal are not copied: they never change, and are read there again.

    Args:
        store: The store.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def name(self) -> str:
        """Return the name by which Temporal finds the driver."""
        return "whyloop-store"

    async def store(
        self, context: StorageDriverStoreContext, payloads: Sequence[Payload]
    ) -> list[StorageDriverClaim]:
        """Store payloads, and return their keys."""
        target = context.target
        found = target.id if isinstance(target, StorageDriverWorkflowInfo) else None
        _, colon, agent_id = (found or "").partition(":")
        if not colon:
            raise StoreError(f"the payload of {found!r} is too large, and only sessions have a place for it")
        return [await self._claim_of(agent_id, payload) for payload in payloads]

    async def _claim_of(self, agent_id: str, payload: Payload) -> StorageDriverClaim:
        if payload.metadata.get(KIND) == Opened.__name__.encode():
            opened = msgspec.json.decode(payload.data, type=Opened)
            place = replace(opened, entries=())
            until = opened.after + len(opened.entries)
            return StorageDriverClaim({"opened": msgspec.json.encode(place).decode(), "until": str(until)})
        key = await self._keep(agent_id, payload.SerializeToString())
        return StorageDriverClaim({"session": agent_id, "key": key})

    async def _keep(self, agent_id: str, data: bytes) -> str:
        """Keep bytes; wait if the store is unavailable, so that no result is lost."""
        for seconds in PAUSES:
            try:
                return await self._store.keep_claim(agent_id, data)
            except StoreUnavailableError:
                await asyncio.sleep(seconds)
        return await self._store.keep_claim(agent_id, data)

    async def retrieve(
        self, context: StorageDriverRetrieveContext, claims: Sequence[StorageDriverClaim]
    ) -> list[Payload]:
        """Return the payloads of keys."""
        return [await self._payload_of(claim.claim_data) for claim in claims]

    async def _payload_of(self, claim: Mapping[str, str]) -> Payload:
        if "opened" in claim:
            place = msgspec.json.decode(claim["opened"], type=Opened)
            opened = await read_opened(self._store, place, int(claim["until"]))
            return StructConverter().to_payload(opened)
        return Payload.FromString(await self._store.claim(claim["session"], claim["key"]))


async def read_opened(store: Store, place: Opened, until: int | None = None) -> Opened:
    """Return a session with its entries after one version, up to another.

    Args:
        store: The store.
        place: The session without entries.
        until: The last version to read. Default: the newest.
    """
    summary = (await store.read(place.agent_id, limit=0)).summary
    if place.identity not in ("", summary.identity):
        raise SessionNotFoundError(place.agent_id)
    entries: list[str] = []
    async for _, texts in texts_after(store, summary, place.after, until or summary.version):
        entries += texts
    return replace(place, identity=summary.identity, entries=tuple(entries))
