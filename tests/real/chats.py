"""Conversations of real clients with a real server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tests.server.streams_support import serving
from tests.support import RespondingModel
from whyloop import Agent, ModelRequest, ModelResponse, ReasoningDelta, TextDelta
from whyloop.server import AgentServer
from whyloop.stores import MemoryStore

SECONDS = 60
Seen = dict[str, Any]


async def chat(folder: Path, package: str, app: Any, *steps: list[Any]) -> list[Seen]:
    """What a client shows after each step of a conversation."""
    async with serving(app) as server:
        node = await asyncio.create_subprocess_exec(
            *("node", "chat.mjs", package, server.address, json.dumps(steps)),
            cwd=folder,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, errors = await asyncio.wait_for(node.communicate(), SECONDS)
    assert node.returncode == 0, errors.decode()
    seen: list[Seen] = json.loads(out)
    return seen


def counting() -> AgentServer:
    """A server whose agent says how many questions it was asked."""

    async def respond(request: ModelRequest) -> AsyncIterator[ModelResponse]:
        yield ModelResponse(str(sum(message.is_user for message in request.messages)))

    return AgentServer(MemoryStore(), Agent(RespondingModel(respond)), public=True)


class Gate:
    """A server with a model that waits, halfway through its answer, for a request to /go."""

    def __init__(self) -> None:
        self._server = AgentServer(MemoryStore(), Agent(RespondingModel(self._respond)), public=True)
        self._go: asyncio.Event | None = None

    async def _respond(self, request: ModelRequest) -> AsyncIterator[Any]:
        self._go = asyncio.Event()
        yield ReasoningDelta("Hm.")
        yield TextDelta("One, ")
        await self._go.wait()
        yield TextDelta("two.")
        yield ModelResponse("One, two.", reasoning="Hm.")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope.get("path") == "/go" and self._go is not None:
            self._go.set()
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        await self._server(scope, receive, send)
