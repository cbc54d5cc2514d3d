"""A tool's own exception: people and the wire see its class, and only who looks for the fault its message."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from msgspec import Struct
from msgspec.structs import replace

from tests.server.support import Lab
from tests.support import requests_of, scripted
from whyloop import (
    Agent,
    AgentState,
    ErrorPolicy,
    Hook,
    ModelRequest,
    ModelResponse,
    RunContext,
    Session,
    SlimAgentStateSerializer,
    SlimSerializationConfig,
    ToolCall,
    ToolContext,
    ToolResult,
    tool,
)
from whyloop.broadcasting import AgentEventEnvelopeAdapter, BroadcastConfig
from whyloop.cli import main
from whyloop.cli.narration import Narrator
from whyloop.errors import ToolExecutionError
from whyloop.events import AgentEvent
from whyloop.loop.hooks import AskModel, RunTool
from whyloop.server import Access
from whyloop.server.bodies import RIGHTS, Right
from whyloop.stores import MemoryStore, SqliteStore, Store
from whyloop.testing import assert_stopped, call
from whyloop.values.step import end_error
from whyloop.wire.ag_ui import AgUiHistory, AgUiStream
from whyloop.wire.protocol_stream import ProtocolStream
from whyloop.wire.ui import canonical_messages
from whyloop.wire.vercel import VercelHistory, VercelStream

CANARY = "DE-8937-canary-0532"


class OddError(BaseException):
    """An exception that is not even an `Exception`, and whose repr has its message."""


CLASSES: list[type[BaseException]] = [ValueError, KeyError, TimeoutError, RuntimeError, OddError, SystemExit]


class Fault(Struct, frozen=True):
    """An exception, and those behind it."""

    kind: type[BaseException]
    cause: type[BaseException] | None = None
    context: type[BaseException] | None = None
    in_group: bool = False
    has_note: bool = False

    def throw(self) -> None:
        try:
            if self.context is not None:
                raise self.context(f"before {CANARY}")
            self._throw()
        except BaseException as error:
            if self.context is None or CANARY not in str(error) or "before" not in str(error):
                raise
            self._throw()

    def _throw(self) -> None:
        error = self.kind(f"bad value {CANARY!r}")
        if self.has_note:
            error.add_note(f"noted {CANARY}")
        if self.in_group:
            error = BaseExceptionGroup(f"group of {CANARY}", [error])
        raise error from (None if self.cause is None else self.cause(f"because of {CANARY}"))


kinds = st.sampled_from(CLASSES)
faults = st.builds(Fault, kinds, st.none() | kinds, st.none() | kinds, st.booleans(), st.booleans())
POLICIES = [
    ErrorPolicy.stop_on_any_error(),
    ErrorPolicy.retry_all(1),
    ErrorPolicy.ignore_tool_errors(),
]


class FaultyHook(Hook):
    """A hook whose code fails."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault


class BeforeTool(FaultyHook):
    async def before_tool(self, call: ToolCall, context: ToolContext) -> ToolCall:
        self.fault.throw()
        return call


class AroundTool(FaultyHook):
    async def around_tool(self, call: ToolCall, context: ToolContext, run: RunTool) -> ToolResult:
        result = await run()
        self.fault.throw()
        return result


class AroundModel(FaultyHook):
    async def around_model(self, request: ModelRequest, context: RunContext, ask: AskModel) -> ModelResponse:
        self.fault.throw()
        return await ask(request)


def parsing(fault: Fault, *, plain: bool) -> Any:
    """A tool that fails."""

    def parse(iban: str) -> str:
        fault.throw()
        return iban

    async def parse_later(iban: str) -> str:
        await asyncio.sleep(0)
        fault.throw()
        return iban

    return tool(name="parse")(parse if plain else parse_later)


async def parse(iban: str) -> str:
    return "parsed"


def agent_of(place: str, fault: Fault, policy: ErrorPolicy, events: list[AgentEvent]) -> Agent:
    """An agent whose own code fails in one place."""
    options: dict[str, Any] = {"tools": [tool(parse)], "error_policy": policy, "event_handler": events.append}

    def instruct(context: RunContext) -> str:
        fault.throw()
        return "Be brief."

    def asks(arguments: Any) -> bool:
        fault.throw()
        return False

    match place:
        case "tool" | "thread":
            options["tools"] = [parsing(fault, plain=place == "thread")]
        case "approval rule":
            options["tools"] = [tool(needs_approval=asks)(parse)]
        case "instructions":
            options["instructions"] = instruct
        case _:
            hooks = {"before": BeforeTool, "around": AroundTool, "model": AroundModel}
            options["hooks"] = [hooks[place](fault)]
    return scripted(call("parse", {"iban": "17"}), call("parse", {"iban": "18"}), "Sorry.", **options)


# What people and the wire get


def shown_texts(state: AgentState, events: Sequence[AgentEvent]) -> Iterator[str]:
    """Yield everything that people and the wire get of a run in this process."""
    for config in (BroadcastConfig.minimal(), BroadcastConfig.standard()):
        sent: list[Any] = []
        adapter = AgentEventEnvelopeAdapter(Kept(sent), config)
        for event in events:
            adapter(event)
        yield json.dumps(sent)
    streams: list[ProtocolStream[Any]] = [AgUiStream(), VercelStream()]
    yield from [str(part) for stream in streams for event in events for part in stream.parts(event)]
    ag_ui, vercel = AgUiHistory(), VercelHistory(6)
    ag_ui.add_run(list(events))
    vercel.add_run(list(events))
    yield from (str(ag_ui.snapshot()), str(vercel.messages))
    narrator = Narrator()
    yield from [line.plain() for event in events for line in narrator.lines(event)]
    for event in events:
        yield str(event)
        yield repr(event)
    for slim in (SlimSerializationConfig.minimal(), SlimSerializationConfig.standard()):
        yield json.dumps(SlimAgentStateSerializer(slim).serialize(state))
    yield json.dumps(canonical_messages(state))
    explanation = state.explanation
    yield from (state.explain(), explanation.to_markdown(), json.dumps(explanation.to_dict()), repr(state))
    yield explanation._repr_html_()
    yield from [repr(failure) for step in state.steps for failure in step.failures]
    for step in state.steps:
        if step.outcome is not None:
            yield from (step.outcome.explain(), json.dumps(step.outcome.to_dict()))
            yield end_error(step.outcome, step)
    with pytest.raises(AssertionError) as caught:
        assert_stopped(state, reason="finish_reason")
    yield str(caught.value)


class Kept:
    """A transport that keeps envelopes."""

    def __init__(self, sent: list[Any]) -> None:
        self._sent = sent

    def broadcast(self, event: Any) -> None:
        self._sent.append(event)

    def broadcast_batch(self, events: Any) -> None:
        self._sent += events


PLACES = ["tool", "thread", "before", "around", "model", "instructions", "approval rule"]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(fault=faults, policy=st.sampled_from(POLICIES))
@pytest.mark.parametrize("place", PLACES)
def test_the_message_of_an_exception_is_on_no_surface(
    place: str, fault: Fault, policy: ErrorPolicy, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    caplog.clear()
    events: list[AgentEvent] = []
    if place not in ("tool", "thread") and not issubclass(fault.kind, Exception):
        fault = replace(fault, kind=ValueError)  # Others end the program.
    state = agent_of(place, fault, policy, events).run_sync("Parse it.")
    for shown in shown_texts(state, events):
        assert CANARY not in shown
    records = [record for record in caplog.records if CANARY in record.getMessage()]
    assert all(record.name == "whyloop.runs" and record.levelname == "ERROR" for record in records)
    assert all("Traceback" in record.getMessage() for record in records)


# The model, and people who look for the fault


FAULT = Fault(ValueError)


async def failed_run(store: Store | None = None) -> tuple[AgentState, list[AgentEvent], Agent]:
    events: list[AgentEvent] = []
    agent = agent_of("tool", FAULT, ErrorPolicy.retry_all(1), events)
    if store is None:
        return await agent.run("Parse it."), events, agent
    session = await Session.open(store, agent, "a", create=True, metadata={"user": "ann"})
    return await session.send("Parse it."), events, agent


async def test_the_model_gets_the_class_and_the_message() -> None:
    state, _, agent = await failed_run()
    message = f"ValueError: bad value '{CANARY}'"
    assert requests_of(agent)[1].messages[-1].model_text == f"Error: {message}"
    (failure,) = state.steps[0].failures
    assert (failure.message, failure.raised) == ("ValueError in parse", message)
    assert AgentState.from_dict(json.loads(json.dumps(state.to_dict()))) == state


async def test_debugging_shows_the_message() -> None:
    state, events, _ = await failed_run()
    sent: list[Any] = []
    adapter = AgentEventEnvelopeAdapter(Kept(sent), BroadcastConfig.debug())
    for event in events:
        adapter(event)
    completed = [each["data"] for each in sent if each["event"] == "agent.tool.completed"]
    assert [CANARY in each["error"] for each in completed] == [True, True]
    assert CANARY in state.explain(debug=True)
    everything = SlimAgentStateSerializer(SlimSerializationConfig.full())
    assert everything.deserialize(everything.serialize(state)).steps == state.steps


async def test_the_text_of_a_tool_execution_error_is_written_for_people() -> None:
    @tool
    async def parse(iban: str) -> str:
        try:
            FAULT.throw()
        except ValueError as error:
            raise ToolExecutionError("the account is unknown") from error
        return ""

    state = await scripted(call("parse", {"iban": "17"}), tools=[parse]).run("Parse it.")
    assert state.steps[0].failures[0].message == "the account is unknown"
    assert "the account is unknown" in state.explain()
    assert CANARY not in state.explain(debug=True)


async def test_a_result_that_cannot_be_encoded_shows_no_message_of_its_code() -> None:
    class Account:
        def model_dump(self, mode: str) -> object:
            raise ValueError(CANARY)

    @tool
    async def parse(iban: str) -> Any:
        return Account()

    state = await scripted(call("parse", {"iban": "17"}), tools=[parse]).run("Parse it.")
    assert "Account.model_dump raised ValueError" in state.explain()
    assert CANARY not in state.explain()


@pytest.mark.parametrize("may", [frozenset({"send"}), frozenset(RIGHTS)])
async def test_only_a_client_that_inspects_gets_the_message(may: frozenset[Right]) -> None:
    store = MemoryStore()
    await failed_run(store)
    lab = Lab(store, access=lambda _: Access("ann", {"user": "ann"}, may))
    read = {
        path: (await lab.get(path)).body.decode()
        for path in ("/sessions", "/questions", "/sessions/a", "/sessions/a/messages", "/sessions/a/events")
    }
    read["chat"] = (await lab.get("/vercel/a/messages")).body.decode()
    stream = await lab.get("/sessions/a/events", headers={"accept": "text/event-stream"}, until=b'"failed"')
    live = await lab.get("/live", query={"list": "true", "session": "a"}, until=b'"failed"')
    read |= {"stream": stream.body.decode(), "live": live.body.decode()}
    assert {path for path, body in read.items() if CANARY in body} == set()
    assert all("ValueError in parse" in read[name] for name in ("/sessions/a/messages", "stream", "chat"))
    for path in ("trace", "trace?brief=true", "steps/1", "saved.html", "snapshot"):
        answer = await lab.get(f"/sessions/a/{path}".partition("?")[0], query=path.partition("?")[2])
        assert (answer.status, CANARY in answer.body.decode()) == (
            (200, True) if "inspect" in may else (403, False)
        )
    await lab.server.close()


def test_show_has_the_message_and_the_other_commands_have_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "whyloop.db")

    async def record() -> None:
        async with SqliteStore(file) as store:
            await failed_run(store)

    asyncio.run(record())
    shown = {}
    for command in (
        ["why", "a"],
        ["why", "a", "--json"],
        ["why", "a", "--markdown"],
        ["why", "a", "--step", "1"],
        ["why", "a", "--step", "1", "--json"],
        ["sessions"],
        ["sessions", "--json"],
        ["tune"],
        ["what-if", "a", "--max-steps", "1"],
        ["show", "a"],
        ["show", "a", "--full"],
        ["show", "a", "--json"],
    ):
        main([*command, "--store", file])
        written = capsys.readouterr()
        shown[" ".join(command)] = CANARY in written.out + written.err
    assert {name for name, has_message in shown.items() if has_message} == {
        "show a",
        "show a --full",
        "show a --json",
    }


# The log


@st.composite
def arguments(draw: st.DrawFn) -> dict[str, Any]:
    texts = st.text(st.characters(codec="utf-8"), min_size=12, max_size=300)
    leaves = st.one_of(texts, st.integers(10**8, 10**30), st.lists(texts, max_size=3))
    return draw(st.dictionaries(st.sampled_from(["iban", "name", "notes"]), leaves, min_size=1))


def quotes(value: Any) -> list[str]:
    """The ways in which an exception may quote a value."""
    if isinstance(value, list):
        return [quote for each in value for quote in quotes(each)]
    return [str(value), repr(value), json.dumps(value), f"{value!r:.200}"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(given_arguments=arguments())
def test_no_argument_is_in_a_traceback(
    given_arguments: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    called = call("look", given_arguments)

    @tool
    def look(iban: Any = None, name: Any = None, notes: Any = None) -> str:
        quoted = "; ".join([quote for value in (iban, name, notes) if value for quote in quotes(value)])
        try:
            raise KeyError(quoted)
        except KeyError as cause:
            error = ValueError(f"cannot look up {quoted}")
            error.add_note(quoted)
            raise ExceptionGroup(quoted, [error]) from cause

    scripted(called, tools=[look]).run_sync("Go.")
    (record,) = [each for each in caplog.records if each.levelname == "ERROR"]
    logged = record.getMessage()
    is_found = "cannot look up [" in logged or "message is left out" in logged
    assert is_found or not any(given_arguments.values())
    for value in given_arguments.values():
        for each in value if isinstance(value, list) else [value]:
            assert str(each).strip()[:40] not in logged.replace("\n", "") or len(str(each).strip()) < 8


def test_short_values_stay_in_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    @tool
    def look(name: str, city: str) -> str:
        raise LookupError(f"no {name} in {city}")

    scripted(call("look", {"name": "Ada", "city": "Llanfairpwll"}), tools=[look]).run_sync("Go.")
    assert "LookupError: no Ada in [city]" in caplog.text
    assert "Llanfairpwll" not in caplog.text
