"""The runs and followers of a store in this process, and the one task that keeps both up to date.

A run appends to its `SessionJournal` as long as its `Heartbeat` keeps the lease.

Other processes are seen by asking the store: five times a second for requests to stop what runs here, ten
times a second for what was appended to the sessions that are followed here. Streaming text is sent to the
followers of other processes in batches, all sessions together, every 100 ms and before a step is recorded.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar
from weakref import WeakKeyDictionary, ref

from whyloop.errors import (
    LeaseLostError,
    SessionNotFoundError,
    StoreError,
    StoreUnavailableError,
    WhyloopError,
)
from whyloop.logger import Logger
from whyloop.stores.listing import Counting, summary_of
from whyloop.stores.records import Chunk, Lease, RequestKey
from whyloop.stores.turns import running_turns
from whyloop.values.state import AgentState
from whyloop.values.step_transitions import AnyTransition
from whyloop.wire.journal import Entry, entries_of

if TYPE_CHECKING:
    from whyloop.stores.reading import Reading
    from whyloop.stores.store import Store

TICK_SECONDS = 0.1
BEATS_A_LEASE = 3
MOST_CHUNKS = 10_000
STOP_TICKS = 2  # A stop request from another process is noticed within 200 ms.

T = TypeVar("T")

_log = Logger()

OnStop = Callable[[str], object]
Deliver = Callable[[Sequence[Chunk]], None]


class ChunkReceiver(ABC):
    """A receiver of chunks that other store objects send, for use with `async with`.

    Args:
        deliver: The function that takes the chunks.
    """

    def __init__(self, deliver: Deliver) -> None:
        self._deliver = deliver
        self.followed: set[str] = set()
        """The ids of the sessions whose chunks are received."""

    @abstractmethod
    async def __aenter__(self) -> Self: ...

    @abstractmethod
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def follow(self, agent_id: str) -> None:
        """Receive the chunks of this session too, unless it is already followed."""
        self.followed.add(agent_id)

    def unfollow(self, agent_id: str) -> None:
        """Stop receiving the chunks of this session, if it is followed."""
        self.followed.discard(agent_id)

    async def catch_up(self) -> None:  # noqa: B027
        """Deliver everything that was sent before this call."""

    def hand_over(self, chunks: Sequence[Chunk]) -> None:
        """Deliver the chunks of followed sessions; log errors of the receiver."""
        wanted = [chunk for chunk in chunks if chunk.agent_id in self.followed]
        try:
            if wanted:
                self._deliver(wanted)
        except Exception:
            _log.exception("a receiver of chunks failed: the chunks are lost, and the next ones follow")


class Watcher:
    """A follower of one session: `changed` is set by new entries of its journal, and by streaming text."""

    def __init__(self, agent_id: str, identity: str, version: int) -> None:
        self.agent_id = agent_id
        self.identity = identity
        self.version = version
        self.changed = asyncio.Event()
        self.chunks: list[str] = []
        self.is_gone = False
        """True once the session was deleted, even if another one has its id now."""


class Live:
    """The runs and followers of one store on one event loop."""

    def __init__(self, store: Store) -> None:
        # A store without other references is garbage, and its leases are void.
        self._store = ref(store)
        self.unreleased: dict[str, Lease] = {}
        """The leases of sessions that are being released, or could not be, because the store failed."""
        self._runs: dict[int, tuple[Lease, OnStop]] = {}
        self._watchers: dict[str, set[Watcher]] = {}
        self._outgoing: list[Chunk] = []
        self._unsent_text: set[str] = set()
        self._sending = asyncio.Lock()
        self._turns = running_turns()
        self._receiver: ChunkReceiver | None = None
        self._task: asyncio.Task[None] | None = None

    # Runs

    @contextmanager
    def running(self, lease: Lease, on_stop: OnStop) -> Iterator[None]:
        """Pass stop requests on to a run of this process."""
        self._runs[lease.token] = (lease, on_stop)
        self._start()
        try:
            yield
        finally:
            self._runs.pop(lease.token, None)

    async def take_turn(self, agent_id: str | None = None) -> None:
        """Wait for a turn to run a session, then send its text before recording it."""
        await self._turns.take()
        if agent_id in self._unsent_text:
            await self.flush(agent_id)

    def appended(self, agent_id: str) -> None:
        """Wake the followers of a session that this process appended to."""
        for watcher in self._watchers.get(agent_id, ()):
            watcher.changed.set()

    def send_chunk(self, agent_id: str, body: str | Callable[[], str], *, is_text: bool = True) -> None:
        """Send an envelope to the followers in this process, and soon to others."""
        chunk = Chunk(agent_id, body)
        self._deliver((chunk,))
        self._outgoing.append(chunk)
        if is_text:
            self._unsent_text.add(agent_id)
        self._start()

    async def flush(self, agent_id: str) -> None:
        """Send the remaining text of a session, before the entry that records it.

        Runs that end a step at the same time share one batch.
        """
        if agent_id in self._unsent_text:
            async with self._sending:
                store = self._store()
                if agent_id in self._unsent_text and store is not None:
                    try:
                        await self._send(store)
                    except Exception:
                        _log.exception("streaming text could not be sent")

    async def catch_up(self) -> None:
        """Deliver text from other processes to the followers of this one."""
        if self._receiver is not None:
            await self._receiver.catch_up()

    # Followers

    @contextmanager
    def watching(self, agent_id: str, identity: str, version: int) -> Iterator[Watcher]:
        """Follow a session from a version on."""
        watcher = Watcher(agent_id, identity, version)
        self._watchers.setdefault(agent_id, set()).add(watcher)
        if self._receiver is not None:
            self._receiver.follow(agent_id)
        self._start()
        try:
            yield watcher
        finally:
            others = self._watchers[agent_id]
            others.discard(watcher)
            if not others:
                del self._watchers[agent_id]
                if self._receiver is not None:
                    self._receiver.unfollow(agent_id)

    # The task

    @property
    def is_needed(self) -> bool:
        return bool(self._runs or self._watchers or self._outgoing)

    def _start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._keep_up(), name="whyloop live")

    async def _keep_up(self) -> None:
        try:
            while True:
                await self._watch()
                await self._stop_receiving()
                # A run or a follower may have come meanwhile. If not, nothing is awaited from here on.
                if not self.is_needed or self._store() is None:
                    return
        finally:
            if self._receiver is not None:  # The task was cancelled.
                await self._stop_receiving()

    async def _watch(self) -> None:
        tick, failing = 0, False
        while self.is_needed:
            await asyncio.sleep(TICK_SECONDS)
            tick += 1
            store = self._store()
            if store is None:
                return
            try:
                await self._look(store, tick)
                failing = False
            except Exception as error:
                if not failing:
                    is_known = isinstance(error, WhyloopError)
                    _log.warning(
                        "the store cannot be watched at the moment, trying again: %s",
                        error,
                        exc_info=None if is_known else error,
                    )
                failing = True
            del store

    async def _look(self, store: Store, tick: int) -> None:
        if self._outgoing:
            async with self._sending:
                await self._send(store)
        if self._watchers:
            await self._receive(store)
            await self._compare_versions(store)
        if self._runs and tick % STOP_TICKS == 0:
            leases = [lease for lease, _ in self._runs.values()]
            for token, reason in (await store.stop_requests(leases)).items():
                if token in self._runs:
                    self._runs[token][1](reason)

    async def _send(self, store: Store) -> None:
        batch, self._outgoing = self._outgoing, []
        self._unsent_text.clear()
        if batch:
            await store.send_chunks(batch)

    async def _receive(self, store: Store) -> None:
        if self._receiver is None:
            receiver = store.receive_chunks(self._deliver)
            await receiver.__aenter__()
            self._receiver = receiver
            for agent_id in self._watchers:
                receiver.follow(agent_id)

    async def _stop_receiving(self) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            await receiver.__aexit__(None, None, None)

    async def _compare_versions(self, store: Store) -> None:
        asked = {agent_id: list(watchers) for agent_id, watchers in self._watchers.items()}
        versions = await store.versions(list(asked))
        for agent_id, watchers in asked.items():
            found = versions.get(agent_id)
            for watcher in watchers:
                if found is None or found[0] != watcher.identity:
                    watcher.is_gone = True
                    watcher.changed.set()
                elif found[1] != watcher.version:
                    watcher.changed.set()

    def _deliver(self, chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            for watcher in self._watchers.get(chunk.agent_id, ()):
                watcher.chunks.append(chunk.body)
                if len(watcher.chunks) > MOST_CHUNKS:  # Nobody reads them at the moment.
                    del watcher.chunks[: MOST_CHUNKS // 2]
                watcher.changed.set()

    async def close(self) -> None:
        """End the task; unsent chunks are lost."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


# A run: its journal, and the heartbeat of its lease


class SessionJournal:
    """The journal of a session, to which its runner appends while it holds the lease.

    The entry that ends the run releases the lease. `key` goes into the first entry.
    """

    def __init__(
        self, store: Store, lease: Lease, reading: Reading, live: Live, key: RequestKey | None = None
    ) -> None:
        self.state = reading.state
        self.version = reading.version
        self.released = False
        self.first_version = 0
        """The version after the first append; 0 before it."""
        self._store = store
        self._lease = lease
        self._live = live
        self._key = key
        self._counting = Counting()

    async def append(
        self, transitions: Sequence[AnyTransition], before: AgentState, after: AgentState
    ) -> str | None:
        stop, cancelled = None, None
        try:
            await self._live.take_turn(after.agent_id)
        except asyncio.CancelledError as error:  # It is delivered after the append.
            cancelled = error
        counts = self._counting.counts(before, after)
        entries = entries_of(transitions, before, counts)
        # A paused run keeps its lease for a moment: a stop may just have been requested.
        self.released = after.status.has_ended  # A heartbeat that finds the lease gone knows why.
        try:
            try:
                stop = await self._store.append(
                    after.agent_id,
                    entries,
                    after=self.version,
                    lease=self._lease,
                    summary=None if counts is not None else summary_of(after),
                    release=self.released,
                    key=self._key,
                )
            except asyncio.CancelledError as error:
                cancelled = error
                await self._confirm(entries)
        except BaseException:
            self.released = False
            raise
        self._key, self.state, self.version = None, after, self.version + len(entries)
        self.first_version = self.first_version or self.version
        self._live.appended(after.agent_id)
        if cancelled is not None:
            raise cancelled
        return stop

    async def _confirm(self, entries: Sequence[Entry]) -> None:
        """Raise unless the store has these entries after all: the write of them was cancelled."""
        agent_id, identity = self._lease.agent_id, self._lease.identity
        reading, _ = await ended(self._store.read(agent_id, after=self.version, limit=len(entries)))
        stored = reading.result()
        if stored.summary.identity != identity or stored.entries != tuple(each.body for each in entries):
            raise StoreUnavailableError(
                f"the latest change of session {agent_id!r} was not recorded, because its task was cancelled "
                "while the store was writing. What was recorded before is safe: continue the session"
            )


class Heartbeat:
    """A heartbeat, which renews a lease three times in its period and passes on stop requests.

    If another runner has the session, the run of this process is cancelled, because it could not record
    anything.
    """

    def __init__(
        self, store: Store, lease: Lease, on_stop_request: Callable[[str], object], journal: SessionJournal
    ) -> None:
        self._journal = journal
        self._store = store
        self._lease = lease
        self._on_stop_request = on_stop_request
        self._lost: StoreError | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._has_ended = False

    async def __aenter__(self) -> None:
        self._runner = asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        self._wait()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._has_ended = True
        self._timer.cancel()
        if self._renewing is not None:
            self._renewing.cancel()
            if not isinstance(error, StoreUnavailableError):  # Which it waits for, too.
                await asyncio.wait([self._renewing])
        if self._lost is not None:
            if self._runner is not None:
                self._runner.uncancel()
            if isinstance(error, asyncio.CancelledError):
                raise self._lost from None

    @property
    def is_still(self) -> bool:
        """True once it renews nothing any more."""
        return self._timer.cancelled() and (self._renewing is None or self._renewing.done())

    def _wait(self) -> None:
        if self._has_ended:  # While the lease was being renewed.
            return
        self._timer = self._loop.call_later(self._lease.seconds / BEATS_A_LEASE, self._beat)

    def _beat(self) -> None:
        self._renewing = self._loop.create_task(self._renew())

    async def _renew(self) -> None:
        try:
            reason = await self._store.renew(self._lease)
            if reason is not None:
                self._on_stop_request(reason)
        except (LeaseLostError, SessionNotFoundError) as error:
            if self._journal.released or self._has_ended:
                return
            self._lost = error
            if self._runner is not None:
                self._runner.cancel()
            return
        except Exception as error:
            _log.warning("the lease of session %s could not be renewed: %s", self._lease.agent_id, error)
        self._wait()


# For each event loop

_live: WeakKeyDictionary[Store, dict[asyncio.AbstractEventLoop, Live]] = WeakKeyDictionary()


def live(store: Store) -> Live:
    """Return the runs and followers of a store on this event loop."""
    loop = asyncio.get_running_loop()
    loops = _live.setdefault(store, {})
    for other in [each for each in loops if each.is_closed()]:
        del loops[other]
    if loop not in loops:
        loops[loop] = Live(store)
    return loops[loop]


async def ended(work: Awaitable[T]) -> tuple[asyncio.Future[T], asyncio.CancelledError | None]:
    """Wait until a write has ended; return it, and a cancellation that came meanwhile."""
    future, cancelled = asyncio.ensure_future(work), None
    while not future.done():
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError as error:
            cancelled = error
        except Exception:
            break  # It is that of the work.
    return future, cancelled


async def finish(work: Awaitable[T]) -> T:
    """Wait until a write has ended, and only then deliver a cancellation.

    An error of the write is raised instead: whoever is cancelled here knows that the write was made.
    """
    future, cancelled = await ended(work)
    result = future.result()
    if cancelled is not None:
        raise cancelled
    return result


MOMENT_SECONDS = 0.1
_begun: set[asyncio.Future[None]] = set()


async def begin(work: Awaitable[None]) -> None:
    """Begin work that need not end now; return when it has ended, or after a moment."""
    future = asyncio.ensure_future(work)
    _begun.add(future)
    future.add_done_callback(_begun.discard)
    await asyncio.wait([future], timeout=MOMENT_SECONDS)
