"""A clock that only a test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import TracebackType

from whyloop.loop.world import Timeout, Timer

# A call that waits on this clock gets this long, in real time, to return by itself before a timeout that
# has passed cuts it off. A call that returns never waits for it.
_GRACE_SECONDS = 0.05


class FakeClock:
    """Time for tests: `advance` moves it, and its sleep returns at once and moves it too.

    A timeout ends when the clock is moved past it, and also after as many real seconds, since
    what hangs does not look at a clock.

    Args:
        start: The time at the beginning: a datetime, seconds since 1970, or an ISO text. Default: 2026-01-01,
            UTC.
    """

    def __init__(self, start: datetime | float | str | None = None) -> None:
        if start is None:
            start = datetime(2026, 1, 1, tzinfo=UTC)
        elif isinstance(start, str):
            start = datetime.fromisoformat(start)
        elif not isinstance(start, datetime):
            start = datetime.fromtimestamp(start, UTC)
        self._start = start if start.tzinfo else start.replace(tzinfo=UTC)
        self._elapsed = 0.0
        self._waiting: list[_FakeTimeout | _FakeTimer] = []
        self.sleeps: list[float] = []
        """The seconds of each sleep, in order."""

    def now(self) -> datetime:
        """Return the time."""
        return self._start + timedelta(seconds=self._elapsed)

    def monotonic(self) -> float:
        """Return the seconds that have passed since the beginning."""
        return self._elapsed

    def advance(self, seconds: float) -> None:
        """Let time pass; may be called from any thread.

        Args:
            seconds: The seconds that pass.
        """
        self._elapsed += seconds
        for each in list(self._waiting):
            each.notice(self._elapsed)

    def watch(self, waiting: _FakeTimeout | _FakeTimer) -> None:
        """End a timeout or a timer when the clock passes it.

        Args:
            waiting: The timeout or timer.
        """
        self._waiting.append(waiting)

    def forget(self, waiting: _FakeTimeout | _FakeTimer) -> None:
        """Leave a timeout or a timer alone from now on.

        Args:
            waiting: The timeout or timer.
        """
        if waiting in self._waiting:
            self._waiting.remove(waiting)

    def watches(self, waiting: _FakeTimeout | _FakeTimer) -> bool:
        """Return whether a timeout or a timer is still waiting.

        Args:
            waiting: The timeout or timer.
        """
        return waiting in self._waiting

    async def sleep(self, seconds: float) -> None:
        """Let time pass, and return at once.

        Args:
            seconds: The seconds that pass.
        """
        self.sleeps.append(seconds)
        self.advance(seconds)
        await asyncio.sleep(0)

    def timeout(self, seconds: float | None) -> Timeout:
        """Return a timeout for an `async with` block.

        Args:
            seconds: The seconds until it ends; None is never.
        """
        return asyncio.timeout(None) if seconds is None else _FakeTimeout(self, seconds)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call a function when the clock has passed these seconds.

        Args:
            seconds: The seconds until then.
            callback: The function.
        """
        return _FakeTimer(self, seconds, callback)


class _FakeTimer:
    """A timer that fires when a fake clock is moved past it, or after as many real seconds."""

    def __init__(self, clock: FakeClock, seconds: float, callback: Callable[[], None]) -> None:
        self._clock = clock
        self._deadline = clock.monotonic() + seconds
        self._callback = callback
        self._loop = asyncio.get_running_loop()
        self._handle = self._loop.call_later(max(seconds, _GRACE_SECONDS), self._fire)
        clock.watch(self)

    def cancel(self) -> None:
        self._handle.cancel()
        self._clock.forget(self)

    def notice(self, elapsed: float) -> None:
        if elapsed >= self._deadline and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._fire_soon)

    def _fire_soon(self) -> None:
        if self._clock.watches(self) and not self._handle.cancelled():
            self._handle.cancel()
            self._handle = self._loop.call_later(_GRACE_SECONDS, self._fire)

    def _fire(self) -> None:
        self._clock.forget(self)
        self._callback()


class _FakeTimeout:
    """A timeout that passes with a fake clock, or with real time."""

    def __init__(self, clock: FakeClock, seconds: float) -> None:
        self._clock = clock
        self._deadline = clock.monotonic() + seconds
        self._loop = asyncio.get_running_loop()
        self._real = asyncio.timeout(max(seconds, _GRACE_SECONDS))

    async def __aenter__(self) -> object:
        self._clock.watch(self)
        return await self._real.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._clock.forget(self)
        await self._real.__aexit__(kind, error, trace)

    def expired(self) -> bool:
        return self._real.expired()

    def notice(self, elapsed: float) -> None:
        if elapsed >= self._deadline:
            self._loop.call_soon_threadsafe(self._cut_off_soon)

    def _cut_off_soon(self) -> None:
        if self._clock.watches(self) and not self.expired():
            self._real.reschedule(self._loop.time() + _GRACE_SECONDS)
