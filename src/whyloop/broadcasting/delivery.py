"""Between a run and a network: a run never waits, and what could not be sent is counted."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import Context
from types import TracebackType
from typing import Self

from whyloop.broadcasting.adapter import Envelope
from whyloop.broadcasting.buffer import Buffer, Waiting
from whyloop.errors import BroadcastError, ConfigurationError
from whyloop.rules.backoff import Backoff
from whyloop.values.text import shortened

_log = logging.getLogger("whyloop")

Send = Callable[[Sequence[Envelope]], Awaitable[object]]

BACKOFF = Backoff(base=0.5, cap=30.0)
_STUBBORN_SECONDS = 1.0
_MOST_WARNINGS = 20  # Until the target is well again.


class Delivery:
    """A transport that keeps envelopes in memory and sends them in the background, in order.

    `send` gets up to `batch` of them at a time. What it raises is tried again after a while, `retries`
    times; then the batch is dropped, but for statuses, which wait for better times. It has to see to
    its own time limit. Use it with `async with`, or `close` it: that sends what is left.
    """

    def __init__(
        self,
        send: Send,
        *,
        capacity: int = 1000,
        batch: int = 10,
        retries: int = 5,
        backoff: Backoff = BACKOFF,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        if capacity < 1 or batch < 1 or retries < 0:
            raise ConfigurationError(
                f"capacity and batch are at least 1, retries at least 0, not {capacity}, {batch}, {retries}"
            )
        self._send = send
        self._batch = batch
        self._retries = retries
        self._backoff = backoff
        self._sleep = sleep
        self._buffer = Buffer(capacity)
        self._lock = threading.Lock()
        self._dropped: Counter[str] = Counter()
        self._told: set[str] = set()
        self._failures = 0
        self._closed = False
        self._worker: _Worker | None = None

    @property
    def dropped(self) -> Mapping[str, int]:
        """How many envelopes of each event were never sent."""
        return dict(self._dropped)

    @property
    def waiting(self) -> int:
        """How many envelopes are still to be sent, without those on their way."""
        return len(self._buffer)

    def broadcast(self, event: Envelope) -> None:
        """Take an envelope; it is sent when there is time."""
        self.broadcast_batch((event,))

    def broadcast_batch(self, events: Sequence[Envelope]) -> None:
        """Take envelopes; they are sent when there is time. From any thread."""
        if self._closed:
            self.give_up_on(events, "the delivery is closed")
            return
        worker = self._here()
        if worker is None:
            self.give_up_on(events, "no event loop is running that could send them")
            return
        with self._lock:
            gone = [old for event in events if (old := self._buffer.add(event)) is not None]
        if gone:
            self.give_up_on(gone, "the target is too slow")
        worker.wake()

    def give_up_on(self, events: Iterable[Envelope], why: str) -> None:
        """Count envelopes as dropped, and say so in the log once for each reason."""
        with self._lock:
            self._dropped.update(str(event.get("event", "")) for event in events)
            is_new = why not in self._told and len(self._told) < _MOST_WARNINGS
            if is_new:
                self._told.add(why)
        if is_new:
            _log.warning("envelopes are dropped: %s", why)

    async def close(self, timeout: float = 5.0) -> None:  # noqa: ASYNC109
        """Send what is left, for so many seconds at most; what is then left is counted as dropped."""
        worker = self._worker
        if worker is not None and worker.is_elsewhere():
            away = asyncio.run_coroutine_threadsafe(self.close(timeout), worker.loop)
            await asyncio.wrap_future(away)
            return
        self._closed = True
        if len(self._buffer):
            worker = self._here()
        if worker is not None and worker.is_alive():
            await worker.finish(timeout)
        self._worker = None
        with self._lock:
            left = [waiting.envelope for waiting in self._buffer.take(len(self._buffer))]
        if left:
            self.give_up_on(left, "the delivery was closed before they were sent")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _here(self) -> _Worker | None:
        """Whoever sends: on its own event loop for as long as that runs, then on the one that runs here."""
        worker = self._worker
        if worker is not None and worker.is_alive():
            return worker
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return None
        with self._lock:
            if self._worker is worker:
                if worker is not None:
                    worker.end()
                self._worker = _Worker(loop, self._work)
            return self._worker

    async def _work(self) -> bool:
        """Send one batch; False if there is nothing to send."""
        with self._lock:
            batch = self._buffer.take(self._batch)
        if not batch:
            return False
        try:
            failed = await self._tried(batch)
        except asyncio.CancelledError:
            self._give_back(batch)
            raise
        if failed is not None:
            self._give_up(batch, failed)
        return True

    async def _tried(self, batch: list[Waiting]) -> BroadcastError | None:
        """Send a batch, again and again if need be; why what is left of it cannot be sent."""
        failed = None
        for _ in range(self._retries + 1):
            failed = await self._attempt(batch)
            if failed is None:
                return None
            del batch[: failed.sent]
            if not failed.retry:
                return failed
            self._failures += 1
            await self._sleep(self._backoff.delay(self._failures, random.random(), failed.retry_after))
        return failed

    def _give_up(self, batch: list[Waiting], failed: BroadcastError) -> None:
        """Drop a batch, but keep its statuses if they may arrive another time."""
        kept = [each for each in batch if failed.retry and each.envelope.get("event") == "agent.status"]
        gone = [each.envelope for each in batch if each not in kept]
        self._give_back(kept)
        self.give_up_on(gone, shortened(str(failed), 300))

    async def _attempt(self, batch: list[Waiting]) -> BroadcastError | None:
        try:
            await self._send([each.envelope for each in batch])
        except BroadcastError as error:
            return error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return BroadcastError("sending was cancelled")
        except (Exception, SystemExit) as error:
            return BroadcastError(f"{type(error).__name__}: {error}")
        if self._failures:
            self._failures = 0
            self._told.clear()  # The next time it goes wrong is another time.
        return None

    def _give_back(self, batch: list[Waiting]) -> None:
        with self._lock:
            gone = list(self._buffer.give_back(batch))
        if gone:
            self.give_up_on(gone, "the target is too slow")


class _Worker:
    """A task that works whenever it is woken, on the event loop that it was made on."""

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Callable[[], Awaitable[bool]]) -> None:
        self.loop = loop
        self._thread = threading.get_ident()
        self._work = work
        self._woken = asyncio.Event()
        self._idle = asyncio.Event()
        # A context of its own: what is sent has nothing to do with the run that happened to be first.
        self._task = loop.create_task(self._run(), name="whyloop delivery", context=Context())

    def is_alive(self) -> bool:
        return self.loop.is_running() and not self._task.done()

    def is_elsewhere(self) -> bool:
        """Whether it works on the event loop of another thread."""
        return self.is_alive() and self._thread != threading.get_ident()

    def end(self) -> None:
        """Work no more, should the event loop ever run again."""
        if not self.loop.is_closed():
            self._task.cancel()

    def wake(self) -> None:
        if self._thread == threading.get_ident():
            self._idle.clear()
            self._woken.set()
        else:
            with suppress(RuntimeError):  # The loop has just been closed; the next one sends it.
                self.loop.call_soon_threadsafe(self._woken.set)

    async def finish(self, seconds: float) -> None:
        """Work until there is nothing left to do or the time is up, then end."""
        self.wake()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        self._task.cancel()
        # Whoever does not even let itself be cancelled is left behind.
        await asyncio.wait([self._task], timeout=_STUBBORN_SECONDS)

    async def _run(self) -> None:
        while True:
            await self._woken.wait()
            self._woken.clear()
            while await self._work():
                pass
            self._idle.set()
