"""The AI SDK's own chat has conversations with a real server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.real.node_packages import install
from tests.real.test_vercel_decoder import each_version
from tests.server.streams_support import serving
from tests.server.support import agent_with
from tests.support import RespondingModel
from whyloop import Agent, ModelRequest, ModelResponse, ReasoningDelta, TextDelta
from whyloop.server import AgentServer
from whyloop.stores import MemoryStore
from whyloop.testing import call, calls

pytestmark = pytest.mark.slow

SECONDS = 60
Seen = dict[str, Any]


@pytest.fixture(scope="module")
def folder() -> Path:
    return install(Path(__file__).parent / "vercel")


class Gate:
    """A server with a model that waits, halfway through its answer, for a request to /go."""

    def __init__(self) -> None:
        self.server = AgentServer(MemoryStore(), Agent(RespondingModel(self.respond)))
        self._go: asyncio.Event | None = None

    async def respond(self, request: ModelRequest) -> AsyncIterator[Any]:
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
        await self.server(scope, receive, send)


async def chat(folder: Path, version: str, app: Any, *steps: list[Any]) -> list[Seen]:
    """What the SDK shows after each step of a conversation."""
    async with serving(app) as server:
        node = await asyncio.create_subprocess_exec(
            *("node", "chat.mjs", version, server.address, json.dumps(steps)),
            cwd=folder,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, errors = await asyncio.wait_for(node.communicate(), SECONDS)
    assert node.returncode == 0, errors.decode()
    seen: list[Seen] = json.loads(out)
    return seen


def texts(seen: Seen, kind: str = "text") -> list[str]:
    return [part["text"] for each in seen["messages"] for part in each["parts"] if part["type"] == kind]


@each_version
async def test_a_conversation_is_remembered_and_loaded_again(folder: Path, version: str) -> None:
    async def respond(request: ModelRequest) -> AsyncIterator[ModelResponse]:
        yield ModelResponse(str(sum(message.is_user for message in request.messages)))

    app = AgentServer(MemoryStore(), Agent(RespondingModel(respond)))
    seen = await chat(folder, version, app, ["send", "a"], ["send", "b"], ["reload"], ["send", "c"])
    assert [texts(each) for each in seen] == [
        ["a", "1"],
        ["a", "1", "b", "2"],
        ["a", "1", "b", "2"],
        ["a", "1", "b", "2", "c", "3"],
    ]
    assert [each["errors"] for each in seen] == [[]] * 4
    first, loaded = seen[1]["messages"], seen[2]["messages"]
    assert [without_ids(each) for each in loaded] == [without_ids(each) for each in first]


def without_ids(message: Seen) -> Seen:
    """A message without what the client chose, and what one version adds to parts and another does not."""
    parts = [{name: value for name, value in part.items() if name != "id"} for part in message["parts"]]
    return {"role": message["role"], "parts": parts, "metadata": message.get("metadata")}


@pytest.mark.parametrize("reloads", [False, True])
@each_version
async def test_questions_are_answered_also_after_a_reload(folder: Path, version: str, reloads: bool) -> None:
    if version == "ai-5":
        pytest.skip("this version knows no approvals")
    asked = calls(call("pay", {"amount": 5}, id="pay_1"), call("pay", {"amount": 7}, id="pay_2"))
    app = AgentServer(MemoryStore(), agent_with(asked, "Done."))
    steps = [["send", "Pay"], *([["reload"]] if reloads else []), ["decide", False, True], ["reload"]]
    *_, decided, loaded = await chat(folder, version, app, *steps)
    for seen in (decided, loaded):
        tools = [part for part in seen["messages"][-1]["parts"] if part["type"] == "tool-pay"]
        assert [(part["state"], part["input"]["amount"]) for part in tools] == [
            ("output-denied", 5),
            ("output-available", 7),
        ]
        assert tools[1]["output"] == "paid 7"
        assert texts(seen) == ["Pay", "Done."]
        assert seen["errors"] == []


@each_version
async def test_a_client_that_comes_back_during_a_run_sees_all_of_it(folder: Path, version: str) -> None:
    left, returned = await chat(folder, version, Gate(), ["leave after", "Count", "One, "], ["return"])
    assert texts(left) == ["Count", "One, "]
    assert texts(returned) == ["Count", "One, two."]
    assert texts(returned, "reasoning") == ["Hm."]
    assert returned["errors"] == []
