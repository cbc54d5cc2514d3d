"""Deps: objects of the application that reach its code in a run, and are never stored."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support import RespondingModel, scripted
from whyloop import (
    Agent,
    AgentBuilder,
    AgentState,
    FinishReason,
    Hook,
    ModelRequest,
    ModelResponse,
    RunContext,
    Session,
    ToolCall,
    ToolContext,
    ToolResult,
    recover,
    tool,
)
from whyloop.errors import ConfigurationError
from whyloop.loop.hooks import AskModel, RunTool
from whyloop.stores import MemoryStore, SqliteStore, Summary
from whyloop.testing import ScriptedModel, call, capture_events, text
from whyloop.wire.slim import SlimAgentStateSerializer

SECRET = "the-only-key-to-the-vault"


@dataclass
class Vault:
    """Deps whose text must be found nowhere."""

    key: str = SECRET
    heard: list[str] = field(default_factory=list)

    def hear(self, where: str, context: RunContext[Vault]) -> None:
        assert context.deps is self
        self.heard.append(where)


@tool
def look(context: ToolContext[Vault], what: str = "gold") -> str:
    """Look into the vault."""
    context.deps.hear("tool", context)
    return what


def rich(arguments: Mapping[str, Any], context: ToolContext[Vault]) -> bool:
    context.deps.hear("approval", context)
    return bool(arguments["amount"] > 100)


@tool(needs_approval=rich)
async def pay(amount: int, context: ToolContext[Vault]) -> str:
    """Pay from the vault."""
    context.deps.hear("async tool", context)
    return f"paid {amount}"


class Listening(Hook):
    async def around_model(
        self, request: ModelRequest, context: RunContext[Vault], ask: AskModel
    ) -> ModelResponse:
        context.deps.hear("around_model", context)
        return await ask(request)

    async def before_tool(self, call: ToolCall, context: ToolContext[Vault]) -> ToolCall:
        context.deps.hear("before_tool", context)
        return call

    async def around_tool(self, call: ToolCall, context: ToolContext[Vault], run: RunTool) -> ToolResult:
        context.deps.hear("around_tool", context)
        return await run()


def instruct(context: RunContext[Vault]) -> str:
    context.deps.hear("instructions", context)
    return f"Step {context.step_number} of {context.metadata.get('user', 'nobody')}."


def vault_agent(*replies: Any, **options: Any) -> Agent[Vault, str]:
    model = ScriptedModel(replies)
    return Agent(
        model, [look, pay], deps_type=Vault, instructions=instruct, hooks=Listening(), name="vault", **options
    )


EVERYWHERE = ["instructions", "around_model", "before_tool", "around_tool", "tool"]


async def test_deps_reach_instructions_hooks_approval_rules_and_tools() -> None:
    vault = Vault()
    state = await vault_agent(call("look"), call("pay", {"amount": 5}), text("done")).run("go", deps=vault)
    assert state.last_response == "done"
    paying = ["instructions", "around_model", "before_tool", "approval", "around_tool", "async tool"]
    assert vault.heard == [*EVERYWHERE, *paying, "instructions", "around_model"]


async def test_a_resumed_execution_gets_the_deps_of_its_resume() -> None:
    agent, first, second = vault_agent(call("pay", {"amount": 500}), text("done")), Vault(), Vault()
    paused = await agent.run("go", deps=first)
    assert paused.status == "paused"
    approved = paused.approve(paused.pending_calls[0].id)
    with pytest.raises(ConfigurationError, match="agent 'vault' has no deps and needs Vault: pass deps=… to"):
        await agent.resume(approved)
    state = await agent.resume(approved, deps=second)
    assert state.status == "completed"
    assert "async tool" not in first.heard
    assert "async tool" in second.heard


async def test_two_runs_of_one_agent_have_their_own_deps() -> None:
    async def respond(request: ModelRequest) -> AsyncIterator[ModelResponse]:
        if any(message.is_tool for message in request.messages):
            yield ModelResponse("done")
        else:
            yield ModelResponse("", (ToolCall("call_1", "look", {}),), FinishReason.TOOL_CALLS)

    agent = Agent(RespondingModel(respond), [look], deps_type=Vault, instructions=instruct, hooks=Listening())
    vaults = [Vault() for _ in range(5)]
    await asyncio.gather(*[agent.run("go", deps=vault) for vault in vaults])
    assert all(vault.heard == [*EVERYWHERE, "instructions", "around_model"] for vault in vaults)


async def test_step_by_step_and_streams_take_deps() -> None:
    agent, vault = vault_agent(call("look"), text("done"), text("again"), text("more")), Vault()
    state: AgentState[str] = agent.start("go")
    with pytest.raises(ConfigurationError, match="has no deps"):
        await agent.next_step(state)
    state = await agent.next_step(state, deps=vault)
    state = await agent.final_step(state, deps=vault)
    assert state.last_response == "done"
    async with agent.stream("more", state, deps=vault) as run:
        async for _ in run:
            pass
    assert run.state.last_response == "again"
    async with agent.stream("more", state) as run:
        with pytest.raises(ConfigurationError, match="has no deps"):
            await anext(run)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_session_asks_for_deps_again_and_records_nothing_without_them(
    kind: str, tmp_path: Any
) -> None:
    store = MemoryStore() if kind == "memory" else SqliteStore(tmp_path / "whyloop.db")
    agent, vault = vault_agent(call("pay", {"amount": 500}), text("done"), text("more")), Vault()
    session = await Session.open(store, agent, "a", create=True)
    with pytest.raises(ConfigurationError, match="has no deps"):
        await session.send("go")
    assert (await session.refresh()).messages == []
    paused = await session.send("go", deps=vault)
    await session.approve(paused.pending_calls[0].id)
    forked = await Session.open(store, agent, (await store.fork("a")).agent_id)
    for resumed in (session, forked):
        with pytest.raises(ConfigurationError, match="has no deps"):
            await resumed.resume()
    assert (await session.resume(deps=vault)).status == "completed"
    async with session.stream("more", deps=vault) as run:
        async for _ in run:
            pass
    assert run.state.last_response == "more"
    await store.close()


async def test_deps_are_in_no_event_snapshot_journal_or_log(
    tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    @tool
    def fail(context: ToolContext[Vault]) -> str:
        """Fail."""
        raise RuntimeError(f"failed in {context!r}")

    caplog.set_level(logging.DEBUG)
    vault = Vault()
    agent = Agent(ScriptedModel([call("fail")]), [fail], deps_type=Vault)
    events = capture_events(agent)
    async with SqliteStore(tmp_path / "whyloop.db") as store:
        session = await Session.open(store, agent, "a", create=True)
        state = await session.send("go", deps=vault)
    assert state.status == "failed"
    slim = json.dumps(SlimAgentStateSerializer().serialize(state))
    texts = [repr(list(events)), json.dumps(state.to_dict()), repr(state), slim, caplog.text, state.explain()]
    assert "failed in ToolContext(" in caplog.text
    assert all(SECRET not in each and "Vault" not in each for each in texts)
    assert all(SECRET.encode() not in path.read_bytes() for path in tmp_path.iterdir())


async def test_an_agent_without_deps_type_may_still_be_given_deps() -> None:
    vault = Vault()
    state = await scripted(call("look"), "done", tools=[look]).run("go", deps=vault)  # type: ignore[arg-type]
    assert (state.last_response, vault.heard) == ("done", ["tool"])


async def test_deps_in_the_place_of_their_type_are_refused_and_not_shown() -> None:
    with pytest.raises(
        ConfigurationError, match="invalid deps_type, an object of type Vault: name the"
    ) as error:
        Agent(ScriptedModel([]), deps_type=Vault())  # type: ignore[arg-type]
    assert SECRET not in str(error.value)
    Agent(ScriptedModel([]), deps_type=Vault | None)
    Agent(ScriptedModel([]), deps_type=dict[str, Vault])
    assert (await Agent(ScriptedModel(["done"]), deps_type=None).run("go")).status == "completed"


async def test_a_builder_takes_the_type_of_the_deps() -> None:
    builder = AgentBuilder.base().with_model(ScriptedModel(["done"])).with_deps_type(Vault)
    with pytest.raises(ConfigurationError, match="needs Vault"):
        await builder.build().run("go")


# Recovery


async def test_recover_makes_deps_from_the_summary_of_each_session() -> None:
    store, vault = MemoryStore(), Vault()
    agent = vault_agent(call("pay", {"amount": 500}), text("done"))
    session = await Session.open(store, agent, "a", create=True, metadata={"user": "ann"})
    paused = await session.send("go", deps=Vault())
    await session.approve(paused.pending_calls[0].id)
    seen: list[Summary] = []

    async def make(summary: Summary) -> Vault:
        seen.append(summary)
        return vault

    assert await recover(store, {"vault": agent}, deps=make) == ["a"]
    assert [(each.agent_id, each.metadata) for each in seen] == [("a", {"user": "ann"})]
    assert "async tool" in vault.heard
    assert (await store.load("a")).status == "completed"


async def test_recover_without_the_deps_that_an_agent_needs_leaves_its_sessions(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, agent = MemoryStore(), vault_agent(call("pay", {"amount": 500}), text("done"))
    session = await Session.open(store, agent, "a", create=True)
    paused = await session.send("go", deps=Vault())
    await session.approve(paused.pending_calls[0].id)
    assert await recover(store, {"vault": agent}) == []
    assert "session 'a' could not be continued: agent 'vault' has no deps and needs Vault" in caplog.text
    assert (await store.load("a")).status == "paused"
    with pytest.raises(ConfigurationError, match="invalid deps of type Vault: pass a function of a session"):
        await recover(store, {"vault": agent}, deps=Vault())  # type: ignore[arg-type]


# Instructions


async def test_instructions_are_made_for_each_request_and_recorded_by_their_hash() -> None:
    agent = vault_agent(call("look"), text("done"))
    state = await agent.run("go", state=agent.new_session(metadata={"user": "ann"}), deps=Vault())
    model = agent.model
    assert isinstance(model, ScriptedModel)
    made = ["Step 1 of ann.", "Step 2 of ann."]
    assert [request.instructions for request in model.requests] == made
    texts = {part.hash: part.text for part in state.request_parts}
    records = [step.request for step in state.steps if step.request is not None]
    assert [texts[str(record.instructions)] for record in records] == made
    assert len({record.tools for record in records}) == 1


async def test_instructions_may_be_made_by_an_async_function() -> None:
    async def make(context: RunContext) -> str:
        return f"You work for {context.agent_id}."

    agent = scripted("done", instructions=make)
    state = await agent.run("go")
    assert isinstance(agent.model, ScriptedModel)
    assert agent.model.requests[0].instructions == f"You work for {state.agent_id}."


async def test_hooks_see_and_may_change_instructions_that_were_made() -> None:
    class Politely(Hook):
        async def around_model(
            self, request: ModelRequest, context: RunContext, ask: AskModel
        ) -> ModelResponse:
            return await ask(replace(request, instructions=f"{request.instructions} Be polite."))

    agent = scripted("done", instructions=lambda context: "Be brief.", hooks=[Politely()])
    state = await agent.run("go")
    record = state.steps[0].request
    assert record is not None
    texts = {part.hash: part.text for part in state.request_parts}
    assert texts[str(record.instructions)] == "Be brief. Be polite."
    assert record.changed_by == ("Politely",)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda context: context.metadata["user"], "the instructions could not be made: KeyError"),
        (lambda context: 7, "the function for the instructions returned int: return a string"),
    ],
)
async def test_instructions_that_cannot_be_made_are_a_failed_step(make: Any, reason: str) -> None:
    agent = scripted("never", instructions=make)
    state = await agent.run("go")
    assert (state.status, state.stop_reason) == ("failed", "error")
    assert reason in state.explain()


def test_instructions_are_a_text_or_a_function() -> None:
    with pytest.raises(
        ConfigurationError, match="invalid instructions 7: use a string, or a function of the"
    ):
        scripted(instructions=7)


# Approval rules


async def test_an_approval_rule_with_a_default_gets_only_the_arguments() -> None:
    @tool(needs_approval=lambda arguments, limit=100: arguments["amount"] > limit)
    async def give(amount: int) -> str:
        return f"gave {amount}"

    assert (await scripted(call("give", {"amount": 5}), "done", tools=[give]).run("go")).status == "completed"
    assert (await scripted(call("give", {"amount": 500}), tools=[give]).run("go")).status == "paused"
