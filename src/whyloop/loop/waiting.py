"""Work under a time limit that costs nothing unless the work has to wait."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

from whyloop.errors import DeadlineExceeded
from whyloop.loop.ports import Timeout

T = TypeVar("T")


# Work may wait for nothing in particular (None), so being done needs a sign of its own.
DONE = object()


def begun(work: Coroutine[Any, Any, None]) -> Any:
    """Run some work as far as it gets by itself; what it then waits for, or DONE.

    Setting up a timer costs as much as a whole step of the loop, so it is worth knowing first
    whether there is anything to time.
    """
    try:
        return work.send(None)
    except StopIteration:
        return DONE


async def ended_within(limit: Callable[[], Timeout], work: Coroutine[Any, Any, T], waiting_for: Any) -> T:
    """The rest of work that has begun; a `DeadlineExceeded` if it still waits when its time is up."""
    timeout = limit()
    try:
        async with timeout:
            return await _Rest(work, waiting_for)
    except TimeoutError:
        if not timeout.expired():
            raise
        raise DeadlineExceeded("it was still waiting when its time was up") from None


async def within(limit: Callable[[], Timeout], work: Coroutine[Any, Any, T]) -> T:
    """What the work returns; a `DeadlineExceeded` if it still waits when its time is up."""
    try:
        waiting_for = work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    return await ended_within(limit, work, waiting_for)


class _Rest(Generic[T]):
    """What is left of a coroutine that was run up to its first wait."""

    def __init__(self, work: Coroutine[Any, Any, T], waiting_for: Any) -> None:
        self._work = work
        self._waiting_for = waiting_for

    def __await__(self) -> Generator[Any, Any, T]:
        waiting_for = self._waiting_for
        try:
            while True:
                try:
                    answer = yield waiting_for
                except BaseException as error:
                    waiting_for = self._work.throw(error)
                else:
                    waiting_for = self._work.send(answer)
        except StopIteration as done:
            result: T = done.value
            return result
