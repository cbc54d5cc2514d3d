"""A world for the demo: the same ids, times and dice on every run, and pauses only for the eye."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import datetime, timedelta
from itertools import count
from typing import Any

from whyloop.loop.ports import Model
from whyloop.loop.tool import Tool, ToolContext
from whyloop.loop.world import LocalWorld
from whyloop.testing import FakeClock
from whyloop.values.model import ModelRequest, ModelResponse, TextDelta

FIRST_WORD_SECONDS = 0.4
TOKENS_A_SECOND = 60
TOOL_SECONDS = {"search_entities": 0.42, "create_program_lead": 0.68, "delete_program_lead": 0.35}

# How long a person watches each of these happen.
MODEL_PAUSE, TOOL_PAUSE, BACKOFF_PAUSE = 0.8, 0.55, 1.2


class DemoWorld(LocalWorld):
    """Models and tools take their time on a clock that stands still otherwise."""

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
        async for piece in self._answers(request):
            if isinstance(piece, ModelResponse):
                self._clock.advance(piece.usage.output / TOKENS_A_SECOND)
            yield piece

    async def call_tool(self, tool: Tool, arguments: Mapping[str, Any], context: ToolContext) -> object:
        done_at = self.now() + timedelta(seconds=self._tool_seconds[tool.name])
        await self._pause(TOOL_PAUSE)
        if context.deadline is not None and done_at > context.deadline:
            self._pass_until(context.deadline + timedelta(milliseconds=10))
            await asyncio.Event().wait()  # Still at it when the time is up: the loop cuts it off.
        self._pass_until(done_at)
        return await super().call_tool(tool, arguments, context)

    def _pass_until(self, moment: datetime) -> None:
        """Calls of one step run side by side, so the clock may be there already."""
        self._clock.advance(max(0.0, (moment - self.now()).total_seconds()))

    async def _sleep(self, seconds: float) -> None:
        await self._pause(BACKOFF_PAUSE)
        await self._clock.sleep(seconds)

    async def _pause(self, seconds: float) -> None:
        """Always a chance for others to run, so that a paced run goes exactly like a fast one."""
        await asyncio.sleep(seconds * self._pace)
