"""What this process runs and follows of a store, and the one task that keeps both up to date.

Other processes are seen by asking the store: four times a second for requests to stop what runs here, ten
times a second for what was appended to the sessions that are followed here. Streaming text is sent to the
followers of other processes in batches, all sessions together, every 100 ms.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

from whyloop.errors import StoreError
from whyloop.stores.records import Chunk, Lease
from whyloop.stores.store import ChunkReceiver, Store

TICK_SECONDS = 0.1
STOP_TICKS = 2  # A stop request of another process is seen within 200 ms.

_log = logging.getLogger("whyloop")

OnStop = Callable[[str], object]


class Watcher:
    """A follower of one session: called when its journal has grown, and with streaming text."""

    def __init__(self, agent_id: str, version: int) -> None:
        self.agent_id = agent_id
        self.version = version
        self.changed = asyncio.Event()
        self.chunks: list[str] = []
        self.is_gone = False


class Live:
    """The runs and followers of one store on one event loop."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._runs: dict[int, tuple[Lease, OnStop]] = {}
        self._watchers: dict[str, set[Watcher]] = {}
        self._outgoing: list[Chunk] = []
        self._receiver: ChunkReceiver | None = None
        self._task: asyncio.Task[None] | None = None

    # Runs

    @contextmanager
    def running(self, lease: Lease, on_stop: OnStop) -> Iterator[None]:
        """Pass requests to stop on to a run of this process."""
        self._runs[lease.token] = (lease, on_stop)
        self._start()
        try:
            yield
        finally:
            self._runs.pop(lease.token, None)

    def appended(self, agent_id: str) -> None:
        """Wake the followers of a session that this process appended to."""
        for watcher in self._watchers.get(agent_id, ()):
            watcher.changed.set()

    def send_chunk(self, agent_id: str, body: str) -> None:
        """Give streaming text to the followers of this process now, and to those of others soon."""
        self._deliver([Chunk(agent_id, body)])
        self._outgoing.append(Chunk(agent_id, body))
        self._start()

    # Followers

    @contextmanager
    def watching(self, agent_id: str, version: int) -> Iterator[Watcher]:
        """Follow a session from a version on."""
        watcher = Watcher(agent_id, version)
        self._watchers.setdefault(agent_id, set()).add(watcher)
        if self._receiver is not None:
            self._receiver.follow(agent_id)
        self._start()
        try:
            yield watcher
        finally:
            others = self._watchers.get(agent_id, set())
            others.discard(watcher)
            if not others:
                self._watchers.pop(agent_id, None)
                if self._receiver is not None:
                    self._receiver.unfollow(agent_id)

    # The task

    def _start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._keep_up(), name="whyloop live")

    async def _keep_up(self) -> None:
        tick, failing = 0, False
        try:
            while self._runs or self._watchers or self._outgoing:
                await asyncio.sleep(TICK_SECONDS)
                tick += 1
                try:
                    await self._look(tick)
                    failing = False
                except StoreError as error:
                    if not failing:
                        _log.warning("the store cannot be watched, and is asked again: %s", error)
                    failing = True
        finally:
            receiver, self._receiver = self._receiver, None
            if receiver is not None:
                await receiver.__aexit__(None, None, None)

    async def _look(self, tick: int) -> None:
        if self._outgoing:
            batch, self._outgoing = self._outgoing, []
            await self._store.send_chunks(batch)
        if self._watchers:
            await self._receive()
            await self._compare_versions()
        if self._runs and tick % STOP_TICKS == 0:
            leases = [lease for lease, _ in self._runs.values()]
            for token, reason in (await self._store.stop_requests(leases)).items():
                if token in self._runs:
                    self._runs[token][1](reason)

    async def _receive(self) -> None:
        if self._receiver is None:
            receiver = self._store.receive_chunks(self._deliver)
            await receiver.__aenter__()
            self._receiver = receiver
            for agent_id in self._watchers:
                receiver.follow(agent_id)

    async def _compare_versions(self) -> None:
        versions = await self._store.versions(list(self._watchers))
        for agent_id, watchers in self._watchers.items():
            found = versions.get(agent_id)
            for watcher in watchers:
                if found is None:
                    watcher.is_gone = True
                    watcher.changed.set()
                elif found[1] != watcher.version:
                    watcher.changed.set()

    def _deliver(self, chunks: list[Chunk] | tuple[Chunk, ...] | object) -> None:
        assert isinstance(chunks, list | tuple)
        for chunk in chunks:
            for watcher in self._watchers.get(chunk.agent_id, ()):
                watcher.chunks.append(chunk.body)
                watcher.changed.set()

    async def close(self) -> None:
        """End the task; what it would have sent is lost."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


_live: WeakKeyDictionary[Store, dict[asyncio.AbstractEventLoop, Live]] = WeakKeyDictionary()


def live(store: Store) -> Live:
    """Return what this event loop runs and follows of a store."""
    loop = asyncio.get_running_loop()
    loops = _live.setdefault(store, {})
    for other in [each for each in loops if each.is_closed()]:
        del loops[other]
    if loop not in loops:
        loops[loop] = Live(store)
    return loops[loop]
