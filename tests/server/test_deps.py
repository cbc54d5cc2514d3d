"""A server makes the deps of each run from the summary of its session."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.server.support import Lab
from whyloop import Agent, ToolContext, tool
from whyloop.errors import ConfigurationError
from whyloop.server import AgentServer
from whyloop.stores import MemoryStore, Store, Summary
from whyloop.testing import ScriptedModel, call, text


class Database(dict[str, str]):
    """The names of users by session."""


@tool
async def name_of_user(context: ToolContext[Database]) -> str:
    """Look the user up."""
    return context.deps["user"]


@tool(needs_approval=True)
async def pay(context: ToolContext[Database]) -> str:
    """Pay the user."""
    return f"paid {context.deps['user']}"


def agent(*script: Any) -> Agent[Database, str]:
    return Agent(ScriptedModel(script), [name_of_user, pay], deps_type=Database)


async def test_a_question_and_a_resume_get_deps_of_their_session(store: Store) -> None:
    async def deps(summary: Summary) -> Database:
        return Database(user=f"user of {summary.agent_id}")

    lab = Lab(store, agent(call("name_of_user"), call("pay"), text("done")), deps=deps)
    path = await lab.made()
    assert (await lab.post(f"{path}/messages", {"text": "go"})).status == 202
    await lab.rest()
    paused = await store.load("a")
    assert paused.messages[2].text == "user of a"
    approval = {"question_id": paused.pending_calls[0].id}
    assert (await lab.post(f"{path}/approve", approval)).status == 200
    assert (await lab.post(f"{path}/resume")).status == 202
    await lab.rest()
    state = await store.load("a")
    assert (state.status, state.messages[4].text) == ("completed", "paid user of a")


async def test_a_server_that_recovers_makes_deps_for_what_it_continues() -> None:
    store = MemoryStore()
    lab = Lab(store, agent(call("pay"), text("done")), deps=lambda _: Database(user="ann"), recover=True)
    assert lab.server._recovery is not None
    lab.server._recovery._every_seconds = 0.01
    async with lab.server.lifespan():
        path = await lab.made()
        await lab.post(f"{path}/messages", {"text": "go"})
        await lab.rest()
        paused = await store.load("a")
        await lab.post(f"{path}/approve", {"question_id": paused.pending_calls[0].id})

        async with asyncio.timeout(10):
            while (await store.load("a")).status != "completed":
                await asyncio.sleep(0)
    assert (await store.load("a")).messages[2].text == "paid ann"


def test_a_server_without_the_deps_of_its_agent_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="has no deps and needs Database"):
        AgentServer(MemoryStore(), agent(), public=True)
    with pytest.raises(
        ConfigurationError, match="invalid deps of type Database: pass a function of a session"
    ):
        AgentServer(MemoryStore(), agent(), deps=Database(), public=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [None, lambda _: None])
async def test_missing_deps_of_a_chosen_agent_are_an_error_of_the_server(store: Store, make: Any) -> None:
    lab = Lab(store, lambda _: agent(text("done")), deps=make)
    path = await lab.made()
    refused = await lab.post(f"{path}/messages", {"text": "go"})
    assert (refused.status, refused.error) == (500, "internal")
    assert not (await store.load("a")).messages
