"""Between a run and a network: a run never waits, and what could not be sent is counted."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from contextvars import Context
from types import TracebackType
from typing import Self

from whyloop.broadcasting.adapter import Envelope
from whyloop.broadcasting.buffer import ENDING, Buffer, Waiting, worth
from whyloop.errors import BroadcastError, ConfigurationError
from whyloop.logger import Logger
from whyloop.rules.backoff import Backoff

_log = Logger()

Send = Callable[[Sequence[Envelope]], Awaitable[object]]

BACKOFF = Backoff(base=0.5, cap=30.0)
ABOUT_THE_CONTENT = (400, 413, 422)  # Statuses of HTTP: it was refused for what is in it.
_STUBBORN_SECONDS = 1.0
_MOST_WARNINGS = 20  # Until the target is well again.


class Delivery:
    """A transport that keeps envelopes in memory and sends them in the background, in order.

    `send` gets up to `batch` of them at a time. What it raises is tried again after a while, `retries`
    times; then the batch is dropped, but for what says how a run ended, which waits for better times.
    It has to see to its own time limit. Use it with `async with`, or `close` it: that sends what is left.

    `capacity` counts envelopes, not bytes, and up to ten times as many endings are kept.
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
        # Taken again by one thread: a sender whose event loop is gone gives back when it is cleared away.
        self._lock = threading.RLock()
        self._dropped: Counter[str] = Counter()
        self._told: set[str] = set()
        self._failures = 0
        self._closed = False
        self._ended = False
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
        with self._lock:
            closed = self._closed
            worker = None if closed else self._here()
            added = () if worker is None else [self._buffer.add(event) for event in events]
        if worker is None:
            why = "the delivery is closed" if closed else "no event loop is running that could send them"
            self.give_up_on(events, why)
            return
        gone = [old for old in added if old is not None]
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
        with self._lock:
            self._closed = True
            worker = self._here() if len(self._buffer) else self._worker
        if worker is not None and worker.is_alive():
            await worker.finish(timeout)
        with self._lock:
            self._ended = True
            self._worker = None
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
        """Whoever sends: on its own event loop for as long as that runs, then on the one that runs here.

        To be asked by whoever holds the lock.
        """
        worker = self._worker
        if worker is not None and worker.is_alive():
            return worker
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return None
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
        except BaseException:
            self._give_back(batch)
            raise
        if failed is not None and self._give_up(batch, failed) and not failed.retry:
            await self._pause(failed)
        return True

    async def _tried(self, batch: list[Waiting]) -> BroadcastError | None:
        """Send a batch, again and again if need be; why what is left of it cannot be sent."""
        failed = None
        for _ in range(self._retries + 1):
            failed = await self._attempt(batch)
            batch[:] = _left(batch, failed)
            if _is_told_to_end():  # Whatever `send` made of it.
                raise asyncio.CancelledError
            if failed is None or not failed.retry:
                return failed
            await self._pause(failed)
        return failed

    async def _pause(self, failed: BroadcastError) -> None:
        self._failures += 1
        await self._sleep(self._backoff.delay(self._failures, random.random(), failed.retry_after))

    def _give_up(self, batch: list[Waiting], failed: BroadcastError) -> bool:
        """Drop a batch, but for endings that may arrive another time; whether there are any."""
        may_arrive = failed.retry or failed.status not in ABOUT_THE_CONTENT
        kept = [each for each in batch if may_arrive and worth(each.envelope) == ENDING]
        places = {each.place for each in kept}
        self._give_back(kept)
        self.give_up_on([each.envelope for each in batch if each.place not in places], _words_of(failed))
        return bool(kept)

    async def _attempt(self, batch: list[Waiting]) -> BroadcastError | None:
        try:
            await self._send([each.envelope for each in batch])
        except BroadcastError as error:
            return error
        except asyncio.CancelledError:
            return BroadcastError("sending was cancelled")
        except (Exception, SystemExit) as error:
            return BroadcastError(f"{type(error).__name__}: {_words_of(error)}")
        if self._failures:
            self._failures = 0
            self._told.clear()  # The next time it goes wrong is another time.
        return None

    def _give_back(self, batch: list[Waiting]) -> None:
        with self._lock:
            # Nobody looks into the buffer any more once the delivery has ended.
            ended = self._ended
            gone = [each.envelope for each in batch] if ended else list(self._buffer.give_back(batch))
        if gone:
            self.give_up_on(gone, "the delivery is closed" if ended else "the target is too slow")


def _left(batch: list[Waiting], failed: BroadcastError | None) -> list[Waiting]:
    """What is still to be sent of a batch."""
    if failed is None:
        return []
    if failed.unsent is None:
        return batch[failed.sent :]
    unsent = {id(envelope) for envelope in failed.unsent}
    return [each for each in batch if id(each.envelope) in unsent]


def _is_told_to_end() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class _Worker:
    """A task that works whenever it is woken, on the event loop that it was made on."""

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Callable[[], Awaitable[bool]]) -> None:
        self.loop = loop
        self._thread = threading.get_ident()
        self._work = work
        self._woken = asyncio.Event()
        self._idle = asyncio.Event()
        self._finishing: asyncio.Task[None] | None = None
        # A context of its own: what is sent has nothing to do with the run that happened to be first.
        self._task = loop.create_task(self._run(), name="whyloop delivery", context=Context())

    def is_alive(self) -> bool:
        return self.loop.is_running() and not self._task.done()

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
        """Work until there is nothing left to do or the time is up, then end. From any thread."""
        if self._thread == threading.get_ident():
            await self._finish(seconds)
            return
        done = Future[None]()
        with suppress(RuntimeError):  # The loop has just been closed.
            self.loop.call_soon_threadsafe(self._finish_for, done, seconds)
            # That loop may be busy, or may never come to it.
            await asyncio.wait([asyncio.wrap_future(done)], timeout=seconds + _STUBBORN_SECONDS)

    def _finish_for(self, done: Future[None], seconds: float) -> None:
        self._finishing = self.loop.create_task(self._finish(seconds))
        self._finishing.add_done_callback(lambda _: done.set_result(None))

    async def _finish(self, seconds: float) -> None:
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


def _words_of(error: BaseException) -> str:
    """Return the message of an exception, even of one that cannot say it."""
    try:
        return str(error)
    except Exception:
        return "it has no words for what happened"
