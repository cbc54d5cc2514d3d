"""A model that writes what a test dictates, while the page shows it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from tests.server.streams_support import Serving
from tests.support import RespondingModel
from whyloop import ModelRequest, ModelResponse, TextDelta
from whyloop.testing import Reply

LONG_ENOUGH = 30  # Seconds, for a machine that does a lot at once.


class Dictation:
    """Pieces of text and answers, in the order in which the test gives them."""

    def __init__(self) -> None:
        self._items: asyncio.Queue[TextDelta | ModelResponse | Exception] = asyncio.Queue()
        self.model = RespondingModel(self._respond)
        self._serving: Serving | None = None

    def serve(self, serving: Serving) -> None:
        """Write for the runs of this server."""
        self._serving, self._items = serving, asyncio.Queue()

    async def write(self, *pieces: str) -> None:
        """Let the model write pieces of its answer."""
        await self._put(*[TextDelta(piece) for piece in pieces])

    async def write_until(self, shown: Any, piece: str) -> None:
        """
        Write a piece until the page shows it, as it does once it follows the run.

        Text in pieces is sent once: a page that comes later has it when the answer is complete.
        """
        async with asyncio.timeout(LONG_ENOUGH):
            while not await shown.count():
                await self.write(piece)

    async def answer(self, reply: Reply | str) -> None:
        """Let the model end its answer."""
        if isinstance(reply, str):
            await self._put(ModelResponse(reply))
        else:
            await self._put(
                ModelResponse(reply.text, reply.tool_calls, reply.finish_reason, reply.usage, reply.reasoning)
            )

    async def fail(self, error: Exception) -> None:
        """Let the model call fail."""
        await self._put(error)

    async def _put(self, *items: TextDelta | ModelResponse | Exception) -> None:
        assert self._serving is not None, "call `serve` with the server whose event loop runs the model"

        def put() -> None:
            for item in items:
                self._items.put_nowait(item)

        await self._serving.do(put)

    async def _respond(self, request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        while True:
            item = await self._items.get()
            if isinstance(item, Exception):
                raise item
            yield item
            if isinstance(item, ModelResponse):
                return
