"""The world of this process: its model, its tools, its clock."""

from __future__ import annotations

import asyncio
import functools
import random
import time
from collections.abc import Callable, Coroutine, Mapping
from datetime import UTC, datetime
from typing import Any

from whyloop.errors import ToolTimeoutError
from whyloop.loop.calls import run_call
from whyloop.loop.model_call import answer_transitions
from whyloop.loop.world import Clock, Model, Timeout, Timer
from whyloop.tools.tool import ToolContext, ToolDefinition
from whyloop.tools.toolset import Toolset
from whyloop.values.scalars import new_id


class SystemClock:
    """The clock of this machine."""

    # Called many times a step, so these are the functions themselves.
    now = staticmethod(functools.partial(datetime.now, UTC))
    monotonic = staticmethod(time.monotonic)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def timeout(self, seconds: float | None) -> Timeout:
        return asyncio.timeout(seconds)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(seconds, callback)


class LocalWorld:
    """The world of this process.

    Args:
        model: The model.
        clock: The clock.
    """

    is_replaying = False
    answer = staticmethod(answer_transitions)
    run_call = staticmethod(run_call)

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
        self, toolset: Toolset, tool: ToolDefinition, arguments: Mapping[str, Any], context: ToolContext
    ) -> Coroutine[Any, Any, object]:
        """Run a tool, within its own time limit."""
        work = toolset.call(tool.name, arguments, context)
        return work if tool.timeout is None else self._run_timed(tool, tool.timeout, work)

    async def _run_timed(
        self, tool: ToolDefinition, seconds: float, work: Coroutine[Any, Any, object]
    ) -> object:
        timeout = self.timeout(seconds)
        try:
            async with timeout:
                return await work
        except TimeoutError:
            if not timeout.expired():
                raise
            raise ToolTimeoutError(f"{tool.name} did not finish within {seconds:g} s") from None


def is_inside_event_loop() -> bool:
    """Return whether an event loop runs in this thread.

    Here, so that no later exception has the `RuntimeError` of the probe as its context.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
