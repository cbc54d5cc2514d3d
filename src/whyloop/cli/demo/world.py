"""The world of the demo: the same ids, times and random numbers on every run."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from datetime import datetime, timedelta
from itertools import count
from typing import Any

from whyloop.loop.tool import Tool, ToolContext
from whyloop.loop.world import LocalWorld, Model
from whyloop.testing import FakeClock
from whyloop.values.model import ModelRequest, ModelResponse, TextDelta

_WORD = re.compile(r"\S+\s*|\s+")

FIRST_WORD_SECONDS = 0.4
TOKENS_PER_SECOND = 60
TOOL_SECONDS = {"search_entities": 0.42, "create_program_lead": 0.68, "delete_program_lead": 0.35}

# How long a paced run really waits.
MODEL_PAUSE, WORD_PAUSE, TOOL_PAUSE, BACKOFF_PAUSE = 0.8, 0.04, 0.55, 1.2


class DemoWorld(LocalWorld):
    """Models and tools advance a clock that stands still otherwise; a paced run also waits for people."""

    def __init__(
        self, model: Model, clock: FakeClock, *, tool_seconds: Mapping[str, float], paced: bool
    ) -> None:
        super().__init__(model, clock)
        self._answers = model.respond
        self._clock = clock
        self._tool_seconds = {**TOOL_SECONDS, **tool_seconds}
        self._pace = 1.0 if paced else 0.0
        numbers = count(1)
        self.new_id = lambda: f"demo-{next(numbers)}"
        self.random = lambda: 0.5
        self.respond = self._respond
        self.sleep = self._sleep

    async def _respond(self, request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        await self._pause(MODEL_PAUSE)
        self._clock.advance(FIRST_WORD_SECONDS)
        async for item in self._answers(request):
            if isinstance(item, ModelResponse):
                self._clock.advance(item.usage.output / TOKENS_PER_SECOND)
                yield item
            else:
                for word in _WORD.findall(item.text):
                    yield TextDelta(word)
                    await self._pause(WORD_PAUSE)

    async def call_tool(self, tool: Tool, arguments: Mapping[str, Any], context: ToolContext) -> object:
        done_at = self.now() + timedelta(seconds=self._tool_seconds[tool.name])
        await self._pause(TOOL_PAUSE)
        if context.deadline is not None and done_at > context.deadline:
            self._pass_until(context.deadline + timedelta(milliseconds=10))
            await asyncio.Event().wait()  # The loop cuts it off.
        self._pass_until(done_at)
        return await super().call_tool(tool, arguments, context)

    def _pass_until(self, moment: datetime) -> None:
        """Advance the clock to a moment, unless a call that runs at the same time has."""
        self._clock.advance(max(0.0, (moment - self.now()).total_seconds()))

    async def _sleep(self, seconds: float) -> None:
        await self._pause(BACKOFF_PAUSE)
        await self._clock.sleep(seconds)

    async def _pause(self, seconds: float) -> None:
        """Let other tasks run, so that a paced run is exactly like a fast one."""
        await asyncio.sleep(seconds * self._pace)
