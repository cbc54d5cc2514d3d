"""The world as it is: this process, its clock, its randomness."""

from __future__ import annotations

import asyncio
import functools
import random
import time
from collections.abc import Callable, Coroutine, Mapping
from datetime import UTC, datetime
from typing import Any

from whyloop.errors import ToolTimeoutError
from whyloop.loop.ports import Clock, Model, Timeout, Timer
from whyloop.loop.tool import Tool, ToolContext
from whyloop.values.ids import new_id


class SystemClock:
    """The clock of this machine."""

    # Asked many times a step, so these are the functions themselves.
    now = staticmethod(functools.partial(datetime.now, UTC))
    monotonic = staticmethod(time.monotonic)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def timeout(self, seconds: float | None) -> Timeout:
        return asyncio.timeout(seconds)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(seconds, callback)


class LocalWorld:
    """A world that does everything here and now."""

    def __init__(self, model: Model, clock: Clock) -> None:
        self.respond = model.respond
        self.now = clock.now
        self.monotonic = clock.monotonic
        self.sleep = clock.sleep
        self.timeout = clock.timeout
        self.call_later = clock.call_later
        self.new_id = new_id
        self.random = random.random

    def call_tool(
        self, tool: Tool, arguments: Mapping[str, Any], context: ToolContext
    ) -> Coroutine[Any, Any, object]:
        work = tool.call(arguments, context)
        return work if tool.timeout is None else self._timed(tool, tool.timeout, work)

    async def _timed(self, tool: Tool, seconds: float, work: Coroutine[Any, Any, object]) -> object:
        timeout = self.timeout(seconds)
        try:
            async with timeout:
                return await work
        except TimeoutError:
            if not timeout.expired():
                raise
            raise ToolTimeoutError(f"{tool.name} did not finish within {seconds:g} s") from None
