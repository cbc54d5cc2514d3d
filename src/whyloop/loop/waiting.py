"""Work under a time limit that costs nothing unless the work has to wait."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

from whyloop.errors import DeadlineExceeded
from whyloop.loop.ports import Timeout

T = TypeVar("T")


async def within(limit: Callable[[], Timeout], work: Coroutine[Any, Any, T]) -> T:
    """What the work returns; a `DeadlineExceeded` if it is still waiting when its time is up.

    Setting up a timer costs as much as a whole step of the loop, so the work first runs as far as
    it gets by itself, and only if it has to wait is it asked how long it may.
    """
    try:
        waiting_for = work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    timeout = limit()
    try:
        async with timeout:
            return await _Rest(work, waiting_for)
    except TimeoutError:
        if not timeout.expired():
            raise
        raise DeadlineExceeded("it was still waiting when its time was up") from None


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
