"""The suite for stores detects faults of durable leases, claims and open workflows."""

from __future__ import annotations

from hashlib import blake2b, sha256
from typing import Any
from weakref import ref

import pytest
from msgspec.structs import replace

from tests.testing.broken import assert_some_check_fails, broken_stores
from whyloop import AgentState
from whyloop.errors import SessionNotFoundError, SessionRunningError, StoreError
from whyloop.stores import Lease, MemoryStore, OpenWorkflow, Stored
from whyloop.stores.memory import _Held
from whyloop.testing.store_checks import journal

# Durable leases


class Leasing(MemoryStore):
    """A store whose `acquire` some stores below change, with the lease that is held before."""

    async def acquire(
        self, agent_id: str, owner: str, seconds: float, *, durable: bool = False, **rest: Any
    ) -> Lease:
        session = self._shared.sessions.get(agent_id)
        held = session.holder(self._clock()) if session else None
        if session and held and self.gives_way(held, owner, durable):
            session.held = None
        lease = await super().acquire(agent_id, owner, seconds, durable=durable, **rest)
        self.then(lease, held)
        return lease

    def gives_way(self, held: _Held, owner: str, durable: bool) -> bool:
        return False

    def then(self, lease: Lease, before: _Held | None) -> None:
        pass

    def held(self, lease: Lease) -> _Held:
        return self._session(lease.agent_id).held_with(lease)


class BindsDurableLeases(Leasing):
    def then(self, lease: Lease, before: _Held | None) -> None:
        self.held(lease).runner = ref(self._runner)


class DoesNotSayThatALeaseIsDurable(MemoryStore):
    async def acquire(self, agent_id: str, owner: str, seconds: float, **rest: Any) -> Lease:
        return replace(await super().acquire(agent_id, owner, seconds, **rest), durable=False)


class MakesEveryLeaseDurable(MemoryStore):
    async def acquire(
        self, agent_id: str, owner: str, seconds: float, *, durable: bool = False, **rest: Any
    ) -> Lease:
        lease = await super().acquire(agent_id, owner, seconds, durable=True, **rest)
        return replace(lease, durable=durable)


class BindsDurableLeasesWhenTheyAreRenewed(Leasing):
    async def renew(self, lease: Lease) -> str | None:
        reason = await super().renew(lease)
        self.held(lease).runner = ref(self._runner)
        return reason


class LetsNoOwnerAcquireAgain(MemoryStore):
    async def acquire(self, agent_id: str, owner: str, seconds: float, **rest: Any) -> Lease:
        if agent_id in self._shared.sessions:
            self._session(agent_id).must_be_free(self._clock())
        return await super().acquire(agent_id, owner, seconds, **rest)


class LetsAnyOwnerAcquireADurableLease(Leasing):
    def gives_way(self, held: _Held, owner: str, durable: bool) -> bool:
        return durable and held.lease.durable


class LetsARunnerReplaceADurableLease(Leasing):
    def gives_way(self, held: _Held, owner: str, durable: bool) -> bool:
        return held.lease.durable and held.lease.owner == owner


class LetsADurableLeaseReplaceARunner(Leasing):
    def gives_way(self, held: _Held, owner: str, durable: bool) -> bool:
        return durable and held.lease.owner == owner


class ReturnsTheSameDurableLease(Leasing):
    def then(self, lease: Lease, before: _Held | None) -> None:
        if before and lease.durable:
            self._session(lease.agent_id).held = before


class ForgetsTheStopRequestOfADurableLease(Leasing):
    def then(self, lease: Lease, before: _Held | None) -> None:
        if before and lease.durable:
            self.held(lease).stop_request = None


class KeepsTheTimeOfTheDurableLeaseBefore(Leasing):
    def then(self, lease: Lease, before: _Held | None) -> None:
        if before and lease.durable:
            self.held(lease).until = before.until


class NeverLetsADurableLeaseLapse(MemoryStore):
    async def acquire(self, agent_id: str, owner: str, seconds: float, **rest: Any) -> Lease:
        session = self._shared.sessions.get(agent_id)
        held = session.held if session else None
        if held and held.lease.durable and held.lease.owner != owner:
            raise SessionRunningError(agent_id, held.lease.owner, seconds)
        return await super().acquire(agent_id, owner, seconds, **rest)


class NeedsTheStoreObjectOfADurableLease(Leasing):
    def then(self, lease: Lease, before: _Held | None) -> None:
        self.__dict__.setdefault("mine", set()).add(lease.token)

    async def release(self, lease: Lease) -> str | None:
        is_mine = not lease.durable or lease.token in self.__dict__.get("mine", ())
        return await super().release(lease) if is_mine else None


# Claims


class KeepsClaimsForItself(MemoryStore):
    async def claim(self, agent_id: str, key: str) -> bytes:
        data = await super().claim(agent_id, key)
        if key not in self.__dict__.get("kept", ()):
            raise StoreError("no such claim")
        return data

    async def keep_claim(self, agent_id: str, data: bytes) -> str:
        key = await super().keep_claim(agent_id, data)
        self.__dict__.setdefault("kept", set()).add(key)
        return key


class SharesClaimsBetweenSessions(MemoryStore):
    async def claim(self, agent_id: str, key: str) -> bytes:
        own = self._session(agent_id).claims
        for session in self._shared.sessions.values():
            own |= session.claims
        return await super().claim(agent_id, key)


class KeepsTheClaimsOfDeletedSessions(MemoryStore):
    async def delete(self, agent_id: str, *, expected_version: int | None = None) -> None:
        session = self._shared.sessions.get(agent_id)
        await super().delete(agent_id, expected_version=expected_version)
        if session:
            self._shared.__dict__.setdefault("old", {})[agent_id] = session.claims

    async def claim(self, agent_id: str, key: str) -> bytes:
        old = self._shared.__dict__.get("old", {}).get(agent_id, {})
        return old[key] if key in old else await super().claim(agent_id, key)


class ReturnsNothingForAMissingClaim(MemoryStore):
    async def claim(self, agent_id: str, key: str) -> bytes:
        try:
            return await super().claim(agent_id, key)
        except SessionNotFoundError:
            raise
        except StoreError:
            return b""


class TakesAMissingClaimForAMissingSession(MemoryStore):
    async def claim(self, agent_id: str, key: str) -> bytes:
        try:
            return await super().claim(agent_id, key)
        except StoreError:
            raise SessionNotFoundError(agent_id) from None


class NamesNoMissingClaim(MemoryStore):
    async def claim(self, agent_id: str, key: str) -> bytes:
        try:
            return await super().claim(agent_id, key)
        except SessionNotFoundError:
            raise
        except StoreError:
            raise StoreError("there is no such claim") from None


class DigestsClaimsInAnotherWay(MemoryStore):
    async def keep_claim(self, agent_id: str, data: bytes) -> str:
        await super().keep_claim(agent_id, data)
        key = blake2b(data, digest_size=32).hexdigest()
        self._session(agent_id).claims[key] = data
        return key


class CutsClaims(MemoryStore):
    async def claim(self, agent_id: str, key: str) -> bytes:
        return (await super().claim(agent_id, key))[: 1 << 20]


class ReturnsClaimsOfAnotherType(MemoryStore):
    async def claim(self, agent_id: str, key: str) -> bytes:
        return memoryview(await super().claim(agent_id, key))  # type: ignore[return-value]


class EndsClaimsAtANul(MemoryStore):
    async def claim(self, agent_id: str, key: str) -> bytes:
        return (await super().claim(agent_id, key)).rstrip(b"\x00")


class NeedsAFreeSessionForAClaim(MemoryStore):
    async def keep_claim(self, agent_id: str, data: bytes) -> str:
        if agent_id in self._shared.sessions:
            self._session(agent_id).must_be_free(self._clock())
        return await super().keep_claim(agent_id, data)


class CountsClaimsAsEntries(MemoryStore):
    async def keep_claim(self, agent_id: str, data: bytes) -> str:
        key = await super().keep_claim(agent_id, data)
        self._session(agent_id).entries += journal(key)
        return key


class ReturnsAClaimOnce(MemoryStore):
    async def claim(self, agent_id: str, key: str) -> bytes:
        data = await super().claim(agent_id, key)
        del self._session(agent_id).claims[key]
        return data


class KeepsClaimsWithoutASession(MemoryStore):
    async def keep_claim(self, agent_id: str, data: bytes) -> str:
        try:
            return await super().keep_claim(agent_id, data)
        except SessionNotFoundError:
            return sha256(data).hexdigest()


class CopiesClaimsToForks(MemoryStore):
    async def fork(self, agent_id: str, **options: Any) -> AgentState:
        state = await super().fork(agent_id, **options)
        self._session(state.agent_id).claims |= self._session(agent_id).claims
        return state


class KeepsAnythingLikeBytes(MemoryStore):
    async def keep_claim(self, agent_id: str, data: Any) -> str:
        return await super().keep_claim(agent_id, bytes(data) if isinstance(data, bytearray) else data)


class TakesKeysInAnyCase(MemoryStore):
    async def claim(self, agent_id: str, key: Any) -> bytes:
        return await super().claim(agent_id, key.lower() if isinstance(key, str) else key)


# Workflows


class DeletesSessionsOfOpenWorkflows(MemoryStore):
    async def delete(self, agent_id: str, **options: Any) -> None:
        if agent_id in self._shared.sessions:
            self._session(agent_id).opened = None
        await super().delete(agent_id, **options)


class ForgetsAWorkflowThatWasRecordedAgain(MemoryStore):
    async def forget_workflow(self, agent_id: str, token: int) -> None:
        if agent_id in self._shared.sessions:
            self._session(agent_id).opened = None


class ForgetsAWorkflowWithItsStoreObject(MemoryStore):
    async def record_workflow(self, agent_id: str, engine: str, workflow: str) -> OpenWorkflow:
        opened = await super().record_workflow(agent_id, engine, workflow)
        self.__dict__.setdefault("mine", []).append(opened)
        return opened

    async def close(self) -> None:
        for opened in self.__dict__.get("mine", ()):
            await self.forget_workflow(opened.agent_id, opened.token)
        await super().close()


class ForgetsAWorkflowWithItsLease(MemoryStore):
    async def append(self, agent_id: str, entries: Any, *, release: bool = False, **rest: Any) -> str | None:
        reason = await super().append(agent_id, entries, release=release, **rest)
        if release:
            self._session(agent_id).opened = None
        return reason


class NeverForgetsAWorkflow(MemoryStore):
    async def forget_workflow(self, agent_id: str, token: int) -> None:
        pass


class RecordsTheSameWorkflowOnce(MemoryStore):
    async def record_workflow(self, agent_id: str, engine: str, workflow: str) -> OpenWorkflow:
        session = self._shared.sessions.get(agent_id)
        known = session.opened if session else None
        opened = await super().record_workflow(agent_id, engine, workflow)
        if session and known:
            session.opened = opened = known
        return opened


class LetsAWorkflowReplaceAnother(MemoryStore):
    async def record_workflow(self, agent_id: str, engine: str, workflow: str) -> OpenWorkflow:
        if agent_id in self._shared.sessions:
            self._session(agent_id).opened = None
        return await super().record_workflow(agent_id, engine, workflow)


class NeedsAFreeSessionForAWorkflow(MemoryStore):
    async def record_workflow(self, agent_id: str, engine: str, workflow: str) -> OpenWorkflow:
        if agent_id in self._shared.sessions:
            self._session(agent_id).must_be_free(self._clock())
        return await super().record_workflow(agent_id, engine, workflow)


class ListsWorkflowsOfSessionsThatWait(MemoryStore):
    async def open_workflows(self, engine: str, *, limit: int) -> tuple[OpenWorkflow, ...]:
        found = [each.opened for each in self._shared.sessions.values() if each.opened]
        return tuple([opened for opened in found if opened.engine == engine][:limit])


class ListsNoWorkflows(MemoryStore):
    async def open_workflows(self, engine: str, *, limit: int) -> tuple[OpenWorkflow, ...]:
        return ()


class DoesNotSayHowOldARecordIs(MemoryStore):
    async def open_workflows(self, engine: str, *, limit: int) -> tuple[OpenWorkflow, ...]:
        return tuple([replace(each, seconds=0) for each in await super().open_workflows(engine, limit=limit)])


class ListsTheLastWorkflowsFirst(MemoryStore):
    async def open_workflows(self, engine: str, *, limit: int) -> tuple[OpenWorkflow, ...]:
        return tuple(reversed(await super().open_workflows(engine, limit=100)))[:limit]


class ShowsNoWorkflow(MemoryStore):
    async def read(self, agent_id: str, **options: Any) -> Stored:
        stored = await super().read(agent_id, **options)
        return replace(stored, summary=replace(stored.summary, workflow=None))


class CopiesWorkflowsToForks(MemoryStore):
    async def fork(self, agent_id: str, **options: Any) -> AgentState:
        state = await super().fork(agent_id, **options)
        self._session(state.agent_id).opened = self._session(agent_id).opened
        return state


BROKEN = broken_stores(globals(), Leasing)


@pytest.mark.parametrize("kind", BROKEN, ids=lambda kind: kind.__name__)
async def test_a_broken_store_fails_a_check(kind: type[MemoryStore]) -> None:
    await assert_some_check_fails(kind)
