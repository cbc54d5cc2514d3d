"""Toolsets: tools that live behind one object, and how long it stays open."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import pytest

from tests.support import echo, requests_of, scripted
from whyloop import (
    Agent,
    AgentStatus,
    ErrorPolicy,
    RunContext,
    ToolContext,
    ToolDefinition,
    Toolset,
    tool,
)
from whyloop.errors import ConfigurationError, ToolDefinitionError
from whyloop.testing import FakeClock, ScriptedModel, call, calls
from whyloop.tools.toolset import Functions

SCHEMA = {
    "type": "object",
    "properties": {"query": {"type": "string"}},
    "required": ["query"],
    "additionalProperties": False,
}


class Catalogue(Toolset):
    """A server of one tool, which notes what happens to it."""

    def __init__(self, name: str = "search", **options: Any) -> None:
        self.name, self.options = name, options
        self.notes: list[str] = []
        self.opened_by: asyncio.Task[Any] | None = None

    async def list(self) -> Sequence[ToolDefinition]:
        self.notes.append("list")
        return [ToolDefinition(self.name, "Search the catalogue.", SCHEMA, **self.options)]

    async def call(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> object:
        self.notes.append(f"call {name} for {context.agent_id}")
        return {"found": arguments["query"]}

    async def __aenter__(self) -> Self:
        self.opened_by = asyncio.current_task()
        self.notes.append("open")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert asyncio.current_task() is self.opened_by
        self.notes.append("close")


async def test_the_tools_of_a_toolset_are_offered_and_called_beside_functions() -> None:
    catalogue = Catalogue()
    answer = calls(call("search", {"query": "tea"}), call("echo", {"value": "hey"}))
    agent = scripted(answer, "done", tools=[echo, catalogue])
    state = await agent.run("go", agent.new_session("s-1"))
    assert state.status is AgentStatus.COMPLETED
    assert [spec.name for spec in requests_of(agent)[0].tools] == ["echo", "search"]
    assert [message.text for message in state.messages if message.is_tool] == ['{"found":"tea"}', "hey"]
    assert catalogue.notes == ["open", "list", "call search for s-1", "close"]


async def test_arguments_are_checked_against_the_schema_before_the_toolset_is_called() -> None:
    catalogue = Catalogue()
    policy = ErrorPolicy.retry_tool_errors()
    agent = scripted(
        call("search", {"words": "s3cret"}), "done", tools=catalogue, error_policy=policy, clock=FakeClock()
    )
    state = await agent.run("go")
    failed = state.steps[0].tool_calls[0]
    assert "call" not in " ".join(catalogue.notes)
    assert failed.error == "invalid arguments for search: they do not fit its schema"
    assert "$.query is missing" in requests_of(agent)[1].messages[-1].text


async def test_a_tool_of_a_toolset_waits_for_approval_and_is_listed_again_after_the_pause() -> None:
    catalogue = Catalogue(needs_approval=True)
    agent = scripted(call("search", {"query": "tea"}), "done", tools=catalogue)
    paused = await agent.run("go")
    assert paused.status is AgentStatus.PAUSED
    state = await agent.resume(paused.approve(paused.pending_calls[0].id))
    assert state.messages[2].text == '{"found":"tea"}'
    assert catalogue.notes.count("list") == 2


async def test_a_toolset_stays_open_between_the_runs_of_an_agent_that_is_entered() -> None:
    catalogue = Catalogue()
    async with scripted("one", "two", tools=catalogue) as agent:
        await asyncio.gather(agent.run("first"), asyncio.create_task(agent.run("second")))
    assert catalogue.notes == ["open", "list", "list", "close"]


async def test_an_agent_can_be_entered_again_after_it_was_left() -> None:
    catalogue = Catalogue()
    agent = Agent(ScriptedModel([]), tools=catalogue)
    for _ in range(2):
        async with agent:
            pass
    assert catalogue.notes == ["open", "close"] * 2


def test_one_agent_runs_on_one_event_loop_after_another() -> None:
    catalogue = Catalogue()
    agent = scripted("one", "two", tools=catalogue)
    agent.run_sync("first")
    agent.run_sync("second")
    assert catalogue.notes == ["open", "list", "close"] * 2


class Down(Catalogue):
    """Refuses to open or to list until it has been asked some times."""

    def __init__(self, where: str, times: int) -> None:
        super().__init__()
        self.where, self.left = where, times

    def _fail(self, where: str) -> None:
        if where == self.where and self.left:
            self.left -= 1
            raise ConnectionError("the catalogue is down")

    async def __aenter__(self) -> Self:
        self._fail("open")
        return await super().__aenter__()

    async def list(self) -> Sequence[ToolDefinition]:
        self._fail("list")
        return await super().list()


@pytest.mark.parametrize("where", ["open", "list"])
async def test_a_toolset_that_cannot_be_reached_is_a_failure_in_the_trace(where: str) -> None:
    agent = scripted(tools=Down(where, 1))
    state = await agent.run("go")
    assert state.status is AgentStatus.FAILED
    assert "the catalogue is down" in state.steps[0].failures[0].message
    assert requests_of(agent) == []


async def test_leaving_an_agent_whose_toolset_could_not_be_opened_raises_its_error() -> None:
    catalogue = Down("open", 1)
    agent = scripted("done", tools=catalogue)
    with pytest.raises(ConnectionError, match="down"):
        async with agent:
            raise AssertionError("it must not be entered")
    state = await agent.run("go")  # It is reachable again.
    assert state.status is AgentStatus.COMPLETED


async def test_a_toolset_that_offers_the_name_of_another_tool_is_a_failure_in_the_trace() -> None:
    state = await scripted(tools=[echo, Catalogue("echo")]).run("go")
    assert state.status is AgentStatus.FAILED
    assert "two tools are named 'echo'" in state.steps[0].failures[0].message
    assert "toolset.prefixed(…) or toolset.renamed(…)" in state.steps[0].failures[0].message


async def test_a_toolset_that_cannot_be_closed_is_logged_and_the_run_keeps_its_state(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Stuck(Catalogue):
        async def __aexit__(
            self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
        ) -> None:
            raise ConnectionError("it does not hang up")

    state = await scripted("done", tools=Stuck()).run("go")
    assert state.last_response == "done"
    assert "it does not hang up" in caplog.text


class Prefixed(Toolset):
    """The tools of another toolset, under longer names."""

    def __init__(self, prefix: str, inner: Toolset) -> None:
        self.prefix, self.inner = prefix, inner

    async def list(self) -> Sequence[ToolDefinition]:
        return [tool.renamed(self.prefix + tool.name) for tool in await self.inner.list()]

    async def call(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> object:
        return await self.inner.call(name.removeprefix(self.prefix), arguments, context)


async def test_a_toolset_can_wrap_another_one() -> None:
    agent = scripted(
        call("text_echo", {"value": "hey"}), "done", tools=[echo, Prefixed("text_", Functions([echo]))]
    )
    state = await agent.run("go")
    assert [spec.name for spec in requests_of(agent)[0].tools] == ["echo", "text_echo"]
    assert state.messages[2].text == "hey"


def test_two_functions_of_one_name_are_refused_when_the_agent_is_built() -> None:
    with pytest.raises(ConfigurationError, match="two tools are named 'echo'"):
        scripted(tools=[echo, echo])


async def test_a_toolset_that_lists_something_else_is_a_failure_that_says_so() -> None:
    class Careless(Toolset):
        async def list(self) -> Sequence[ToolDefinition]:
            return [{"name": "search"}]  # type: ignore[list-item]

        async def call(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> object:
            raise AssertionError

    state = await scripted(tools=Careless()).run("go")
    assert "Careless.list returned dict: return a list of ToolDefinition" in state.explain()


def test_a_toolset_without_a_way_to_call_its_tools_cannot_be_made() -> None:
    class Half(Toolset):
        async def list(self) -> Sequence[ToolDefinition]:
            return []

    with pytest.raises(TypeError, match="call"):
        Half()  # type: ignore[abstract]


@pytest.mark.parametrize("parameters", [None, {}, {"type": "string"}, [], "object"])
def test_parameters_that_are_not_the_schema_of_an_object_are_refused(parameters: Any) -> None:
    with pytest.raises(ToolDefinitionError, match="not the JSON schema of an object"):
        ToolDefinition("search", "Search.", parameters)


@pytest.mark.parametrize("name", ["", "a b", None, 5])
def test_a_name_that_no_provider_accepts_is_refused(name: Any) -> None:
    with pytest.raises(ToolDefinitionError, match="1 to 64 letters"):
        ToolDefinition(name, "Search.", SCHEMA)


@pytest.mark.parametrize(
    "inner", [{"type": 5}, {"enum": 5}, {"$ref": "#/$defs/loop"}, {"anyOf": 5}, {"required": 5}]
)
async def test_a_tool_whose_schema_is_invalid_has_a_result_and_does_not_end_the_run(inner: Any) -> None:
    schema = {
        "type": "object",
        "properties": {"query": inner},
        "$defs": {"loop": {"$ref": "#/$defs/loop"}},
    }

    class Odd(Catalogue):
        async def list(self) -> Sequence[ToolDefinition]:
            return [ToolDefinition("search", "Search.", schema)]

    policy = ErrorPolicy.ignore_tool_errors()
    agent = scripted(call("search", {"query": {"key": "s3cret"}}), "done", tools=Odd(), error_policy=policy)
    state = await agent.run("go")
    assert state.status is AgentStatus.COMPLETED
    assert state.steps[0].tool_calls[0].error == "invalid arguments for search: they do not fit"


async def test_a_toolset_that_changes_its_arguments_does_not_change_the_history() -> None:
    class Greedy(Catalogue):
        async def list(self) -> Sequence[ToolDefinition]:
            return [ToolDefinition("search", "Search.", {"type": "object"})]

        async def call(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> object:
            arguments["filter"].clear()
            return "done"

    state = await scripted(call("search", {"filter": {"year": 2026}}), "done", tools=Greedy()).run("go")
    assert state.messages[1].tool_calls[0].arguments == {"filter": {"year": 2026}}


async def test_an_approved_call_whose_tool_is_gone_fails_and_names_those_that_are_left() -> None:
    catalogue = Catalogue(needs_approval=True)
    agent = scripted(call("search", {"query": "tea"}), "done", tools=[echo, catalogue])
    paused = await agent.run("go")
    catalogue.name = "find"
    state = await agent.resume(paused.approve(paused.pending_calls[0].id))
    error = "there is no tool named 'search'. The tools are: echo, find."
    assert state.steps[0].tool_calls[0].error == error


async def test_a_function_may_take_the_context_of_its_run() -> None:
    @tool
    async def where(context: RunContext) -> str:
        """Say where it runs."""
        return context.agent_id

    agent = scripted(call("where", {}), "done", tools=where)
    state = await agent.run("go", agent.new_session("s-1"))
    assert where.spec.parameters["properties"] == {}
    assert state.messages[2].text == "s-1"


# Changing what a toolset offers


class Shop(Toolset):
    """Two tools on one connection; each call returns the name under which it was made."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    async def list(self) -> Sequence[ToolDefinition]:
        return [ToolDefinition(name, "", SCHEMA) for name in ("find", "order")]

    async def call(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> object:
        return f"{name}, {context.tool}"

    async def __aenter__(self) -> Self:
        self.notes.append("open")
        return self

    async def __aexit__(self, *error: object) -> None:
        self.notes.append("close")


TEA = {"query": "tea"}


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        (Shop().prefixed("shop_"), ["shop_find", "shop_order"]),
        (Shop().filtered(lambda tool: tool.name != "order"), ["find"]),
        (Shop().renamed({"find": "search", "unknown": "other"}), ["search", "order"]),
        (Shop().renamed({"find": "order", "order": "find"}), ["order", "find"]),
        (Shop().approved(), ["find", "order"]),
        (Shop().prefixed("a_").prefixed("b_").renamed({"b_a_find": "c"}), ["c", "b_a_order"]),
    ],
)
async def test_a_changed_toolset_offers_its_tools_under_their_new_names(
    changed: Toolset, names: list[str]
) -> None:
    assert [tool.name for tool in await changed.list()] == names


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        (Shop().prefixed("shop_"), "shop_order"),
        (Shop().filtered(lambda tool: tool.name == "order"), "order"),
        (Shop().renamed({"find": "order", "order": "find"}), "find"),
        (Shop().approved(False), "order"),
        (Shop().renamed({"order": "buy"}).prefixed("shop_"), "shop_buy"),
    ],
)
async def test_a_tool_that_was_changed_runs_under_its_original_name(changed: Toolset, name: str) -> None:
    state = await scripted(call(name, TEA), "done", tools=[changed]).run("go")
    assert [message.text for message in state.messages if message.is_tool] == ["order, order"]


async def test_a_tool_that_is_filtered_out_cannot_be_called() -> None:
    agent = scripted(call("order", TEA), tools=[Shop().filtered(lambda tool: tool.name == "find")])
    state = await agent.run("go")
    assert "there is no tool named 'order'. The tools are: find." in state.steps[0].failures[0].message


@pytest.mark.parametrize(("query", "waits"), [("tea", True), ("coffee", False)])
async def test_an_approval_rule_of_a_toolset_decides_by_the_arguments(query: str, waits: bool) -> None:
    shop = Shop().approved(lambda arguments: arguments["query"] == "tea")
    state = await scripted(call("order", {"query": query}), "done", tools=[shop]).run("go")
    assert (state.status is AgentStatus.PAUSED) is waits


async def test_changed_toolsets_share_the_connection_of_the_original() -> None:
    shop = Shop()
    agent = scripted(
        call("a_find", TEA), call("b_order", TEA), "done", tools=[shop.prefixed("a_"), shop.prefixed("b_")]
    )
    state = await agent.run("go")
    assert state.status is AgentStatus.COMPLETED
    assert shop.notes == ["open", "close"]


async def test_a_changed_toolset_can_be_opened_by_itself() -> None:
    shop = Shop()
    async with shop.prefixed("a_") as changed:
        assert len(await changed.list()) == 2
        assert shop.notes == ["open"]
    assert shop.notes == ["open", "close"]


def test_two_tools_cannot_get_the_same_name() -> None:
    with pytest.raises(ConfigurationError, match="two tools get the same name in renamed"):
        Shop().renamed({"find": "it", "order": "it"})


async def test_a_name_that_no_provider_accepts_is_refused_with_the_name() -> None:
    with pytest.raises(ToolDefinitionError, match=r"invalid tool name .shop\.find."):
        await Shop().prefixed("shop.").list()
