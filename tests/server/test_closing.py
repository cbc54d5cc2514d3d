"""A server shuts down without losing anything."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Self

import pytest

from tests.server.gate import Gate
from tests.server.support import Json, Lab, agent_with
from whyloop import Agent, ToolContext, ToolDefinition, Toolset
from whyloop.server import AgentServer
from whyloop.stores import MemoryStore, Store
from whyloop.testing import ScriptedModel


@pytest.mark.parametrize("way", ["close", "lifespan", "asgi"])
async def test_a_run_in_progress_when_the_server_closes_can_be_resumed(store: Store, way: str) -> None:
    gate = Gate()
    lab = Lab(store, gate.agent, close_seconds=0)
    path = await lab.made()
    await lab.post(f"{path}/messages", {"text": "go"})
    await _ended(lab.server, way)
    assert not lab.server._api.runs._running
    again = Lab(store, agent_with("back again"))
    assert (await again.get(path)).json["session"]["is_running"] is False
    told = (await again.get(f"{path}/events")).json["events"]
    assert told[0]["data"]["status"] == "in_progress"
    assert (await again.post(f"{path}/resume")).status == 202
    await again.rest()
    assert (await again.get(path)).json["last_response"] == "back again"
    numbers = [each["seq"] for each in (await again.get(f"{path}/events")).json["events"]]
    assert numbers == sorted(set(numbers))


async def test_a_step_under_way_is_finished_before_the_server_ends(store: Store) -> None:
    gate = Gate()
    lab = Lab(store, gate.agent_with_tool)
    path = await lab.made()
    await lab.post(f"{path}/messages", {"text": "go"})
    await gate.asked.wait()
    closing = asyncio.create_task(lab.server.close())
    await asyncio.sleep(0)
    assert not closing.done()
    gate.open.set()
    await closing
    now = (await Lab(store).get(path)).json
    assert (now["session"]["status"], now["session"]["step_count"]) == ("stopped", 1)
    assert now["pending_calls"] == []
    trace = (await Lab(store).get(f"{path}/trace")).json
    assert "The server is shutting down." in trace["explanation"]
    assert [(run["success"], run["result"]) for run in trace["steps"][0]["tool_calls"]] == [(True, "waited")]


async def test_a_server_that_recovers_leaves_its_runs_to_the_next_one(store: Store) -> None:
    gate = Gate()
    lab = Lab(store, gate.agent_with_tool, recover=True)
    path = await lab.made()
    await lab.post(f"{path}/messages", {"text": "go"})
    await gate.asked.wait()
    closing = asyncio.create_task(lab.server.close())
    await asyncio.sleep(0)
    gate.open.set()
    await closing
    now = (await Lab(store).get(path)).json["session"]
    assert (now["status"], now["step_count"], now["is_running"]) == ("in_progress", 1, False)


async def test_a_server_that_is_closed_twice_is_closed(store: Store) -> None:
    lab = Lab(store, agent_with("hi"))
    await lab.asked()
    await lab.server.close()
    await lab.server.close()
    assert (await lab.get("/sessions/a")).status == 200


async def _ended(server: AgentServer, way: str) -> None:
    if way == "close":
        await server.close()
    elif way == "lifespan":
        async with server.lifespan():
            pass
    else:
        heard: list[Json] = []
        told = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])

        async def receive() -> Json:
            return next(told)

        async def send(message: object) -> None:
            assert isinstance(message, dict)
            heard.append(message)

        await server({"type": "lifespan", "asgi": {"version": "3.0"}}, receive, send)
        assert [each["type"] for each in heard] == [
            "lifespan.startup.complete",
            "lifespan.shutdown.complete",
        ]


class Tools(Toolset):
    """A connection that notes when it is opened and closed."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.notes: list[str] = []

    async def list(self) -> Sequence[ToolDefinition]:
        return []

    async def call(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> object:
        raise AssertionError

    async def __aenter__(self) -> Self:
        if self.error is not None:
            raise self.error
        self.notes.append("open")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.notes.append("close")


async def test_the_toolsets_of_an_agent_stay_open_for_the_lifespan_of_the_server() -> None:
    tools = Tools()
    server = AgentServer(MemoryStore(), Agent(ScriptedModel([]), tools), public=True)
    async with server.lifespan():
        assert tools.notes == ["open"]
    assert tools.notes == ["open", "close"]


async def test_a_toolset_that_cannot_be_opened_does_not_keep_the_server_from_starting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent = Agent(ScriptedModel([]), Tools(ConnectionError("the tools are down")), name="support")
    async with AgentServer(MemoryStore(), agent, public=True).lifespan():
        assert "The toolsets of agent support could not be opened" in caplog.text
        assert "the tools are down" in caplog.text
