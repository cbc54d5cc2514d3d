"""Agents that wait until they are let."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from tests.server.support import pay
from tests.support import RespondingModel, scripted
from whyloop import Agent, ModelRequest, ModelResponse, TextDelta, tool
from whyloop.testing import call


class Gate:
    """A model that answers when it is let, and says when it was asked."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.asked = asyncio.Event()

    @property
    def agent(self) -> Agent:
        return Agent(RespondingModel(self._respond), [pay])

    @property
    def agent_with_tool(self) -> Agent:
        """One whose tool returns when it is let, and that would use it for ever."""

        @tool
        async def wait() -> str:
            self.asked.set()
            await self.open.wait()
            return "waited"

        return scripted(*[call("wait")] * 5, tools=[wait])

    async def _respond(self, request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        self.asked.set()
        await self.open.wait()
        yield ModelResponse("done")
