"""The suite for stores detects faults of dead runners, stop requests and chunks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from tests.testing.broken import assert_some_check_fails, broken_stores
from whyloop.errors import ConfigurationError
from whyloop.stores import Chunk, ChunkReceiver, Lease, MemoryStore, Summary
from whyloop.stores.live import Deliver
from whyloop.stores.memory import _Receiver, _Shared
from whyloop.values.state import AgentStatus

# Runners


class LeasesWithoutAVersion(MemoryStore):
    async def acquire(self, agent_id: str, owner: str, seconds: float, **rest: Any) -> Lease:
        return replace(await super().acquire(agent_id, owner, seconds, **rest), version=0)


class LeasesWithoutAnIdentity(MemoryStore):
    async def acquire(self, agent_id: str, owner: str, seconds: float, **rest: Any) -> Lease:
        return replace(await super().acquire(agent_id, owner, seconds, **rest), identity="")


class NeverNoticesADeadRunner(MemoryStore):
    async def close(self) -> None:
        self._shared.__dict__.setdefault("runners", []).append(self._runner)


class TakesEveryOtherRunnerForDead(MemoryStore):
    async def acquire(self, agent_id: str, owner: str, seconds: float, **rest: Any) -> Lease:
        held = self._session(agent_id).held
        if held is not None and held.runner and held.runner() is not self._runner:
            held.until = self._clock()
        return await super().acquire(agent_id, owner, seconds, **rest)


class AsksADeadRunner(MemoryStore):
    async def ask_to_stop(self, agent_id: str, reason: str, **rest: Any) -> bool:
        held = self._session(agent_id).held
        if held is not None and held.until > self._clock():
            held.stop_request = reason
            return True
        return await super().ask_to_stop(agent_id, reason, **rest)


class StoresNoKeyWithAStopRequest(MemoryStore):
    async def ask_to_stop(self, agent_id: str, reason: str, **rest: Any) -> bool:
        return await super().ask_to_stop(agent_id, reason)


class StoresAKeyWithoutARunner(MemoryStore):
    async def ask_to_stop(self, agent_id: str, reason: str, **rest: Any) -> bool:
        session, key = self._session(agent_id), rest.get("key")
        found = await super().ask_to_stop(agent_id, reason, **rest)
        if not found:
            session.keep(key)
        return found


class StopsUnderAKeyThatWasUsed(MemoryStore):
    async def ask_to_stop(self, agent_id: str, reason: str, **rest: Any) -> bool:
        await super().ask_to_stop(agent_id, reason)
        return await super().ask_to_stop(agent_id, reason, **rest)


class KeepsTheSessionsOfADeadRunner(MemoryStore):
    async def delete(self, agent_id: str, *, expected_version: int | None = None) -> None:
        held = self._session(agent_id).held
        if held is not None and held.until > self._clock():
            raise ConfigurationError("it runs")
        await super().delete(agent_id, expected_version=expected_version)


class ForgetsWhatADeadRunnerWasAsked(MemoryStore):
    async def acquire(self, agent_id: str, owner: str, seconds: float, **rest: Any) -> Lease:
        held = self._session(agent_id).held
        if held is not None and held.runner and held.runner() is None:
            held.stop_request = None
        return await super().acquire(agent_id, owner, seconds, **rest)


class FindsSessionsThatRun(MemoryStore):
    async def unattended(self, *, limit: int = 100, **rest: Any) -> tuple[Summary, ...]:
        held = {agent_id: session.held for agent_id, session in self._shared.sessions.items()}
        for session in self._shared.sessions.values():
            session.held = None
        try:
            return await super().unattended(limit=limit, **rest)
        finally:
            for agent_id, lease in held.items():
                self._session(agent_id).held = lease


class FindsSessionsThatWaitForAPerson(MemoryStore):
    async def unattended(self, *, limit: int = 100, **rest: Any) -> tuple[Summary, ...]:
        found = await super().unattended(limit=limit, **rest)
        waiting = [
            session.shown(self._clock())
            for session in self._shared.sessions.values()
            if session.summary.status is AgentStatus.PAUSED and session.summary.pending
        ]
        return (*found, *waiting)


class OverlooksPausedSessions(MemoryStore):
    async def unattended(self, *, limit: int = 100, **rest: Any) -> tuple[Summary, ...]:
        found = await super().unattended(limit=limit, **rest)
        return tuple(summary for summary in found if summary.status is not AgentStatus.PAUSED)


class OverlooksLapsedLeases(MemoryStore):
    async def unattended(self, *, limit: int = 100, **rest: Any) -> tuple[Summary, ...]:
        found = await super().unattended(limit=limit, **rest)
        return tuple(summary for summary in found if self._session(summary.agent_id).held is None)


class FindsTheLastUpdatedFirst(MemoryStore):
    async def unattended(self, *, limit: int = 100, **rest: Any) -> tuple[Summary, ...]:
        return (await super().unattended(limit=100, **rest))[::-1][:limit]


class LooksForAgentsAfterTheLimit(MemoryStore):
    async def unattended(
        self, *, limit: int = 100, agents: Collection[str] | None = None
    ) -> tuple[Summary, ...]:
        found = await super().unattended(limit=limit)
        return tuple(summary for summary in found if agents is None or summary.agent in agents)


class ContinuesSessionsOfAllAgents(MemoryStore):
    async def unattended(
        self, *, limit: int = 100, agents: Collection[str] | None = None
    ) -> tuple[Summary, ...]:
        return await super().unattended(limit=limit)


class FindsMoreThanItWasAskedFor(MemoryStore):
    async def unattended(self, *, limit: int = 100, **rest: Any) -> tuple[Summary, ...]:
        return await super().unattended(limit=100, **rest)


# Stop requests


class ForgetsStopRequestsThatWereRead(MemoryStore):
    async def stop_requests(self, leases: Collection[Lease]) -> Mapping[int, str]:
        found = await super().stop_requests(leases)
        for lease in leases:
            if lease.token in found:
                self._session(lease.agent_id).held_with(lease).stop_request = None
        return found


class FindsEveryStopRequest(MemoryStore):
    async def stop_requests(self, leases: Collection[Lease]) -> Mapping[int, str]:
        held = [session.held for session in self._shared.sessions.values() if session.held]
        return {each.lease.token: each.stop_request for each in held if each.stop_request is not None}


class OverlooksEmptyReasons(MemoryStore):
    async def stop_requests(self, leases: Collection[Lease]) -> Mapping[int, str]:
        return {token: reason for token, reason in (await super().stop_requests(leases)).items() if reason}


class FindsTheRequestsOfTheNextRunner(MemoryStore):
    async def stop_requests(self, leases: Collection[Lease]) -> Mapping[int, str]:
        found: dict[int, str] = {}
        for lease in leases:
            session = self._shared.sessions.get(lease.agent_id)
            if session and session.held and session.held.stop_request is not None:
                found[lease.token] = session.held.stop_request
        return found


# Chunks


class SendsNothing(MemoryStore):
    async def send_chunks(self, chunks: Sequence[Chunk]) -> None:
        pass


class SendsTwice(MemoryStore):
    async def send_chunks(self, chunks: Sequence[Chunk]) -> None:
        await super().send_chunks(chunks)
        await super().send_chunks(chunks)


class SendsBackwards(MemoryStore):
    async def send_chunks(self, chunks: Sequence[Chunk]) -> None:
        await super().send_chunks(chunks[::-1])


class CutsChunks(MemoryStore):
    async def send_chunks(self, chunks: Sequence[Chunk]) -> None:
        await super().send_chunks([Chunk(chunk.agent_id, chunk.body[:2000]) for chunk in chunks])


class SendsToItself(MemoryStore):
    async def send_chunks(self, chunks: Sequence[Chunk]) -> None:
        for receiver in self._shared.receivers:
            receiver.send(chunks)


class SendsToOne(MemoryStore):
    async def send_chunks(self, chunks: Sequence[Chunk]) -> None:
        for receiver in [each for each in self._shared.receivers if each.store is not self][:1]:
            receiver.send(chunks)


class RefusesChunksOfMissingSessions(MemoryStore):
    async def send_chunks(self, chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            self._session(chunk.agent_id)
        await super().send_chunks(chunks)


class BrokenReceiver(_Receiver):
    """A receiver that a store below hands out."""


class ReceivesEverything(MemoryStore):
    class Receiver(BrokenReceiver):
        def hand_over(self, chunks: Sequence[Chunk]) -> None:
            self._deliver(chunks)

    def receive_chunks(self, deliver: Deliver) -> ChunkReceiver:
        return self.Receiver(self, self._shared, deliver)


class NeverStopsFollowing(MemoryStore):
    class Receiver(BrokenReceiver):
        def unfollow(self, agent_id: str) -> None:
            pass

    def receive_chunks(self, deliver: Deliver) -> ChunkReceiver:
        return self.Receiver(self, self._shared, deliver)


class CannotStopFollowingTwice(MemoryStore):
    class Receiver(BrokenReceiver):
        def unfollow(self, agent_id: str) -> None:
            if agent_id not in self.followed:
                raise ConfigurationError("it is not followed")
            super().unfollow(agent_id)

    def receive_chunks(self, deliver: Deliver) -> ChunkReceiver:
        return self.Receiver(self, self._shared, deliver)


class ReceivesAfterItWasLeft(MemoryStore):
    class Receiver(BrokenReceiver):
        async def __aexit__(self, *error: object) -> None:
            pass

    def receive_chunks(self, deliver: Deliver) -> ChunkReceiver:
        return self.Receiver(self, self._shared, deliver)


class GivesUpAfterAFailure(MemoryStore):
    class Receiver(BrokenReceiver):
        failed = False

        def hand_over(self, chunks: Sequence[Chunk]) -> None:
            if not self.failed:
                try:
                    self._deliver([chunk for chunk in chunks if chunk.agent_id in self.followed])
                except RuntimeError:
                    self.failed = True

    def receive_chunks(self, deliver: Deliver) -> ChunkReceiver:
        return self.Receiver(self, self._shared, deliver)


class ReceivesOncePerFollow(MemoryStore):
    class Receiver(BrokenReceiver):
        def __init__(self, store: MemoryStore, shared: _Shared, deliver: Deliver) -> None:
            super().__init__(store, shared, deliver)
            self.times: list[str] = []

        def follow(self, agent_id: str) -> None:
            super().follow(agent_id)
            self.times.append(agent_id)

        def hand_over(self, chunks: Sequence[Chunk]) -> None:
            for agent_id in self.times:
                super().hand_over([chunk for chunk in chunks if chunk.agent_id == agent_id])

    def receive_chunks(self, deliver: Deliver) -> ChunkReceiver:
        return self.Receiver(self, self._shared, deliver)


BROKEN = broken_stores(globals())


@pytest.mark.parametrize("kind", BROKEN, ids=lambda kind: kind.__name__)
async def test_a_broken_store_fails_a_check(kind: type[MemoryStore]) -> None:
    await assert_some_check_fails(kind)
