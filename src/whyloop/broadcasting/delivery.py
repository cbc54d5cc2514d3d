"""Delivery of envelopes in the background: a run never waits, and unsent envelopes are counted."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from contextvars import Context
from itertools import chain, count, islice
from typing import NamedTuple, Self

from whyloop.broadcasting.transports import DEFAULT_CAPACITY, Envelope
from whyloop.errors import BroadcastError, ConfigurationError
from whyloop.logger import Logger
from whyloop.rules.error_policy import Backoff

_log = Logger()

Send = Callable[[Sequence[Envelope]], Awaitable[object]]

BACKOFF = Backoff(base=0.5, cap=30.0)
ABOUT_THE_CONTENT = (400, 413, 422)
"""The HTTP statuses of a request that was refused for its content."""
ENDINGS_TO_CAPACITY = 10
"""Endings are kept beyond the capacity, up to this factor, so that a dead target cannot fill the memory."""
_SECONDS_TO_CANCEL = 1.0
_MOST_WARNINGS = 20  # Until the target works again.


class Delivery:
    """A transport that keeps envelopes in memory and sends them in the background, in order.

    `send` gets up to `batch` of them at a time, and needs its own time limit. If it raises, the batch
    is sent again after a while, `retries` times, and then dropped, except for endings: they wait until the
    target works again. Use it with `async with`, or call `close`, which sends the rest.

    `capacity` counts envelopes, not bytes, and up to ten times as many endings are kept.

    Args:
        send: An async function that sends envelopes, and raises a `BroadcastError` if it cannot.
        capacity: The number of envelopes that may wait. Default: 1000.
        batch: The maximum number of envelopes for one call of `send`. Default: 10.
        retries: How often a failed batch is sent again. Default: 5.
        backoff: The waits between attempts.
        sleep: The function that waits, for tests.
    """

    def __init__(
        self,
        send: Send,
        *,
        capacity: int = DEFAULT_CAPACITY,
        batch: int = 10,
        retries: int = 5,
        backoff: Backoff = BACKOFF,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        if capacity < 1 or batch < 1 or retries < 0:
            raise ConfigurationError(
                f"invalid capacity {capacity}, batch {batch} or retries {retries}: use at least 1, 1 and 0"
            )
        self._send = send
        self._batch = batch
        self._retries = retries
        self._backoff = backoff
        self._sleep = sleep
        self._buffer = Buffer(capacity)
        # Reentrant: a worker whose event loop is gone gives its batch back when it is garbage collected.
        self._lock = threading.RLock()
        self._dropped: Counter[str] = Counter()
        self._logged: set[str] = set()
        self._failures = 0
        self._closed = False
        self._ended = False
        self._worker: _Worker | None = None

    @property
    def dropped(self) -> Mapping[str, int]:
        """The number of envelopes of each event that were never sent."""
        return dict(self._dropped)

    @property
    def waiting(self) -> int:
        """The number of envelopes that wait to be sent, without those being sent."""
        return len(self._buffer)

    def broadcast(self, event: Envelope) -> None:
        """Queue an envelope, which the background task sends."""
        self.broadcast_batch((event,))

    def broadcast_batch(self, events: Sequence[Envelope]) -> None:
        """Queue envelopes, which the background task sends; callable from any thread."""
        with self._lock:
            closed = self._closed
            worker = None if closed else self._live_worker()
            added = () if worker is None else [self._buffer.add(event) for event in events]
        if worker is None:
            why = "the delivery is closed" if closed else "no event loop is running that could send them"
            self.drop(events, why)
            return
        dropped = [old for old in added if old is not None]
        if dropped:
            self.drop(dropped, "the target is too slow")
        worker.wake()

    def drop(self, events: Iterable[Envelope], why: str) -> None:
        """Count envelopes as dropped, and log each reason once.

        Args:
            why: The reason, for the log.
        """
        with self._lock:
            self._dropped.update(str(event.get("event", "")) for event in events)
            is_new = why not in self._logged and len(self._logged) < _MOST_WARNINGS
            if is_new:
                self._logged.add(why)
        if is_new:
            _log.warning("envelopes are dropped: %s", why)

    async def close(self, timeout: float = 5.0) -> None:  # noqa: ASYNC109
        """Send the rest within the timeout, in seconds; drop and count the remainder.

        Args:
            timeout: The seconds. Default: 5.
        """
        with self._lock:
            self._closed = True
            worker = self._live_worker() if len(self._buffer) else self._worker
        if worker is not None and worker.is_alive():
            await worker.finish(timeout)
        with self._lock:
            self._ended = True
            self._worker = None
            left = [waiting.envelope for waiting in self._buffer.take(len(self._buffer))]
        if left:
            self.drop(left, "the delivery was closed before they were sent")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _live_worker(self) -> _Worker | None:
        """Return the worker, or a new one on this event loop if its own has ended.

        The caller holds the lock.
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
        """Send one batch; return False if there is nothing to send."""
        with self._lock:
            batch = self._buffer.take(self._batch)
        if not batch:
            return False
        try:
            failed = await self._send_with_retries(batch)
        except BaseException:
            self._give_back(batch)
            raise
        if failed is not None and self._drop_batch(batch, failed) and not failed.retry:
            await self._pause(failed)
        return True

    async def _send_with_retries(self, batch: list[Waiting]) -> BroadcastError | None:
        """Remove from a batch what could be sent; return why the rest cannot be sent."""
        failed = None
        for _ in range(self._retries + 1):
            failed = await self._attempt(batch)
            del batch[: len(batch) if failed is None else failed.sent]
            if _is_cancelled():  # Even if `send` has suppressed the cancellation.
                raise asyncio.CancelledError
            if failed is None or not batch:
                return None
            if not failed.retry:
                return failed
            await self._pause(failed)
        return failed

    async def _attempt(self, batch: list[Waiting]) -> BroadcastError | None:
        try:
            await self._send([each.envelope for each in batch])
        except BroadcastError as error:
            return error
        except asyncio.CancelledError:
            return BroadcastError("sending was cancelled")
        except (Exception, SystemExit) as error:
            return BroadcastError(f"{type(error).__name__}: {_message_of(error)}")
        if self._failures:
            self._failures = 0
            self._logged.clear()  # The next outage is logged again.
        return None

    async def _pause(self, failed: BroadcastError) -> None:
        self._failures += 1
        await self._sleep(self._backoff.delay(self._failures, random.random(), failed.retry_after))

    def _drop_batch(self, batch: list[Waiting], failed: BroadcastError) -> bool:
        """Drop a batch except for endings; return whether there are any."""
        may_arrive = failed.retry or failed.status not in ABOUT_THE_CONTENT
        kept = [each for each in batch if may_arrive and worth(each.envelope) == ENDING]
        self._give_back(kept)
        places = {each.place for each in kept}
        self.drop([each.envelope for each in batch if each.place not in places], _message_of(failed))
        return bool(kept)

    def _give_back(self, batch: list[Waiting]) -> None:
        with self._lock:
            ended = self._ended  # After that, the buffer is not read any more.
            dropped = [each.envelope for each in batch] if ended else self._buffer.give_back(batch)
        if dropped:
            self.drop(dropped, "the delivery is closed" if ended else "the target is too slow")


# Waiting envelopes

CHUNKS, OTHERS, ENDING = range(3)
"""The classes of envelopes, in the order in which a full buffer drops them."""


def worth(envelope: Envelope) -> int:
    """Return the class of an envelope; an ending is a status or has a stop reason."""
    data = envelope.get("data")
    match envelope.get("event"):
        case "agent.stream.chunk":
            return CHUNKS
        case "agent.status":
            return ENDING
        case "agent.continuation":
            return ENDING if _has_stop_reason(data) else OTHERS
        case "agent.step.completed":
            verdict = data.get("continuation") if isinstance(data, Mapping) else None
            return ENDING if _has_stop_reason(verdict) else OTHERS
    return OTHERS


def _has_stop_reason(verdict: object) -> bool:
    return isinstance(verdict, Mapping) and bool(verdict.get("stop_reason"))


class Waiting(NamedTuple):
    """An envelope and its number in the order of arrival."""

    place: int
    envelope: Envelope


class Buffer:
    """Envelopes in the order of arrival, at most `capacity` of them.

    A full buffer drops the oldest chunk, or else the oldest other envelope. Endings stay, up to ten times
    the capacity. Each class has its own queue, so dropping from a full buffer takes no search.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._places = count()
        self._size = 0
        self._lines: tuple[deque[Waiting], ...] = (deque(), deque(), deque())

    def __len__(self) -> int:
        return self._size

    def add(self, envelope: Envelope) -> Envelope | None:
        """Add an envelope; return the one that was dropped for it, if any."""
        self._lines[worth(envelope)].append(Waiting(next(self._places), envelope))
        self._size += 1
        return self._drop_surplus() if self._size > self._capacity else None

    def take(self, most: int) -> list[Waiting]:
        """Remove and return the oldest envelopes."""
        oldest = sorted(chain.from_iterable(islice(line, most) for line in self._lines))[:most]
        for line in self._lines:
            while line and oldest and line[0].place <= oldest[-1].place:
                line.popleft()
        self._size -= len(oldest)
        return oldest

    def give_back(self, taken: Iterable[Waiting]) -> list[Envelope]:
        """Put envelopes back in their places; return those that were dropped for them."""
        for waiting in sorted(taken, reverse=True, key=lambda waiting: waiting.place):
            self._lines[worth(waiting.envelope)].appendleft(waiting)
            self._size += 1
        return list(iter(self._drop_surplus, None))

    def _drop_surplus(self) -> Envelope | None:
        if self._size <= self._capacity:
            return None
        chunks, others, endings = self._lines
        line = chunks or others
        if not line and len(endings) > self._capacity * ENDINGS_TO_CAPACITY:
            line = endings
        if not line:
            return None
        self._size -= 1
        return line.popleft().envelope


# The task that sends


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class _Worker:
    """A task that works whenever it is woken, on the event loop on which it was created."""

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Callable[[], Awaitable[bool]]) -> None:
        self.loop = loop
        self._thread = threading.get_ident()
        self._work = work
        self._woken = asyncio.Event()
        self._idle = asyncio.Event()
        self._finishing: asyncio.Task[None] | None = None
        # A separate context: the run of the first envelope must not affect what is sent.
        self._task = loop.create_task(self._run(), name="whyloop delivery", context=Context())

    def is_alive(self) -> bool:
        return self.loop.is_running() and not self._task.done()

    def end(self) -> None:
        """Stop working, in case the event loop ever runs again."""
        if not self.loop.is_closed():
            self._task.cancel()

    def wake(self) -> None:
        if self._thread == threading.get_ident():
            self._idle.clear()
            self._woken.set()
        else:
            with suppress(RuntimeError):  # The loop was just closed; the next one sends it.
                self.loop.call_soon_threadsafe(self._woken.set)

    async def finish(self, seconds: float) -> None:
        """Work until nothing is left or the time is up, then end; from any thread."""
        if self._thread == threading.get_ident():
            await self._finish(seconds)
            return
        done = Future[None]()
        with suppress(RuntimeError):  # The loop has just been closed.
            self.loop.call_soon_threadsafe(self._finish_for, done, seconds)
            # That loop may be busy, or stuck.
            await asyncio.wait([asyncio.wrap_future(done)], timeout=seconds + _SECONDS_TO_CANCEL)

    def _finish_for(self, done: Future[None], seconds: float) -> None:
        self._finishing = self.loop.create_task(self._finish(seconds))
        self._finishing.add_done_callback(lambda _: done.set_result(None))

    async def _finish(self, seconds: float) -> None:
        self.wake()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        self._task.cancel()
        # A `send` that cannot be cancelled is left behind.
        await asyncio.wait([self._task], timeout=_SECONDS_TO_CANCEL)

    async def _run(self) -> None:
        while True:
            await self._woken.wait()
            self._woken.clear()
            while await self._work():
                pass
            self._idle.set()


def _message_of(error: BaseException) -> str:
    """Return the message of an exception, even of one whose `str` fails."""
    try:
        return str(error)
    except Exception:
        return "an error without a message"
