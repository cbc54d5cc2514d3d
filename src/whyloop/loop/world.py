"""The world as it is: this process, its clock, its randomness."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from whyloop.errors import ToolTimeoutError
from whyloop.loop.ports import Clock, Model, Timeout
from whyloop.loop.tool import Tool, ToolContext
from whyloop.values.ids import new_id


class SystemClock:
    """The clock of this machine."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def timeout(self, seconds: float | None) -> Timeout:
        return asyncio.timeout(seconds)


class LocalWorld:
    """A world that does everything here and now."""

    def __init__(self, model: Model, clock: Clock) -> None:
        self.respond = model.respond
        self.now = clock.now
        self.monotonic = clock.monotonic
        self.sleep = clock.sleep
        self.timeout = clock.timeout
        self.new_id = new_id
        self.random = random.random

    async def call_tool(self, tool: Tool, arguments: Mapping[str, Any], context: ToolContext) -> object:
        if tool.timeout is None:
            return await tool.call(arguments, context)
        limit = self.timeout(tool.timeout)
        try:
            async with limit:
                return await tool.call(arguments, context)
        except TimeoutError:
            if not limit.expired():
                raise
            raise ToolTimeoutError(f"{tool.name} did not finish within {tool.timeout:g} s") from None
