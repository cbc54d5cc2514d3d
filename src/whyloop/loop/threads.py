"""Plain functions, run off the event loop."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def in_thread(function: Callable[[], T]) -> T:
    """What the function returns, computed in a thread of its own.

    The thread is a daemon: a function that never returns must keep neither the event loop nor the
    interpreter from ending, as the threads of `asyncio.to_thread` would.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def work() -> None:
        try:
            result = context.run(function)
        except BaseException as error:
            _hand_over(loop, future, None, error)
        else:
            _hand_over(loop, future, result, None)

    threading.Thread(target=work, daemon=True, name="whyloop-tool").start()
    return await future


def _hand_over(
    loop: asyncio.AbstractEventLoop, future: asyncio.Future[T], result: T | None, error: BaseException | None
) -> None:
    def settle() -> None:
        if future.done():  # The caller gave up waiting.
            return
        if error is None:
            future.set_result(result)  # type: ignore[arg-type]
        else:
            future.set_exception(_carried(error))

    with suppress(RuntimeError):  # The event loop was closed while the function was still at work.
        loop.call_soon_threadsafe(settle)


def _carried(error: BaseException) -> BaseException:
    """The error, or a stand-in where a future cannot carry it."""
    if isinstance(
        error, StopIteration | GeneratorExit | asyncio.CancelledError | KeyboardInterrupt | SystemExit
    ):
        return RuntimeError(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
    return error
