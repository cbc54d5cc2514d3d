"""A process of the lab: it runs a session to its end, and decides like a person who looks at the ledger."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from tests.sessions.crash_agent import Ledger, crash_agent
from tests.sessions.crash_findings import digest
from whyloop import Session
from whyloop.broadcasting import BroadcastConfig
from whyloop.errors import StoreUnavailableError
from whyloop.events import AgentEvent
from whyloop.stores import Entry, RequestKey, Store
from whyloop.wire.envelope import NUMBERED, envelope
from whyloop.wire.journal import state_of

# Long enough that no lease lapses: the next runner finds that the one before it is dead.
LEASE_SECONDS = 3600.0
GO = RequestKey("go", "the digest of the query")


class Frozen:
    """A runner that was stopped in the middle of its work, and that may be woken."""

    def __init__(self, process: int, its_end: int) -> None:
        self.process = process
        self._its_end = its_end

    def wake(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.process, signal.SIGCONT)

    def is_over(self) -> None:
        """Wait until the process has ended, which closes the other end of the pipe."""
        os.read(self._its_end, 1)


class Runner:
    """One runner of one session, in a process of its own.

    Args:
        store: The store.
        ledger: The file outside the store.
        name: The id of the session.
        lease_seconds: The seconds of its leases.
        frozen: The runner before it, which is still there.
        is_deployed: Whether SIGTERM cancels its work, which the same session object then continues.
    """

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        name: str,
        *,
        lease_seconds: float = LEASE_SECONDS,
        frozen: Frozen | None = None,
        is_deployed: bool = False,
    ) -> None:
        self._store, self._ledger, self._name = store, ledger, name
        self._lease_seconds = lease_seconds
        self._frozen = frozen
        self._is_deployed = is_deployed
        self._work: asyncio.Future[None] | None = None

    async def run(self) -> None:
        """Continue the session until it is completed."""
        if self._is_deployed:
            self._ledger.write("deployed")
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._cancel)
        async with self._store:
            session = await self._opened()
            while session.state.status != "completed":
                self._work = asyncio.ensure_future(self._advance(session))
                try:
                    await self._work
                except (asyncio.CancelledError, StoreUnavailableError):
                    if not self._is_deployed:
                        raise
                    await asyncio.sleep(0.01)
                finally:
                    await self._look(session)

    def _cancel(self) -> None:
        if self._work is not None:
            self._work.cancel()

    async def _opened(self) -> Session:
        while True:
            try:
                return await Session.open(
                    self._store,
                    crash_agent(self._ledger),
                    self._name,
                    create=True,
                    lease_seconds=self._lease_seconds,
                    handlers=[self._write_sent],
                )
            except StoreUnavailableError:
                if not self._is_deployed:
                    raise
                await asyncio.sleep(0.01)

    def _write_sent(self, event: AgentEvent) -> None:
        told = envelope(event, BroadcastConfig.standard())
        if told is not None and told["event"] in NUMBERED:
            self._ledger.write("sent", event.execution_id, event.seq, digest(json.dumps(told)))

    async def _advance(self, session: Session) -> None:
        state = session.state
        if not state.messages:
            await session.send("go", key=GO)
            return
        for call in state.pending_calls:
            arguments = call.arguments
            assert isinstance(arguments, dict)
            self._ledger.write("asked", arguments["number"])
            if self._frozen is not None:  # Until it has ended, nobody knows what it may still do.
                self._frozen.wake()
                self._frozen.is_over()
            if ["work", str(arguments["number"])] in self._ledger.lines():
                await session.deny(call.id, "it was carried out")
            else:
                await session.approve(call.id)
        crashed = session.state.status == "in_progress" and state.execution.recoveries < 2
        await (session.recover() if crashed else session.resume())

    async def _look(self, session: Session) -> None:
        """Compare what the session shows with what the store has."""
        stored = await self._store.read(self._name)
        if session.state != state_of(self._name, stored.entries[: session.version]):
            self._ledger.write("untrue", f"the state at version {session.version} is not in the store")
        state = await session.refresh()
        stored = await self._store.read(self._name)
        if session.version == len(stored.entries) and state != state_of(self._name, stored.entries):
            self._ledger.write("untrue", f"version {session.version} was read and is not in the store")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def mortal(store: Store, when: str, number: int) -> Store:
    """Let the process die right before or right after the store's so many-th write."""
    append, writes = store.append, 0

    async def counted(agent_id: str, entries: Sequence[Entry], **rest: Any) -> str | None:
        nonlocal writes
        writes += 1
        if (when, writes) == ("before", number):
            die()
        stop = await append(agent_id, entries, **rest)
        if (when, writes) == ("after", number):
            die()
        return stop

    store.append = counted  # type: ignore[method-assign]
    return store
