"""A real model behind the drivers: it calls tools, answers, streams, is cut off, and is resumed."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from tests.support import assert_complete_history, assert_readable
from whyloop import (
    Agent,
    AgentState,
    AgentStatus,
    FinishReason,
    Message,
    OutputMode,
    StopReason,
    ToolCall,
    tool,
)
from whyloop.cli.demo.scenarios import play_local
from whyloop.events import AgentStepCompleted, OutputChunkReceived, StreamChunkReceived
from whyloop.models import load, local
from whyloop.models.http import HttpModel
from whyloop.models.local import LocalServer
from whyloop.testing import assert_continued, assert_stopped, capture_events
from whyloop.tools.conversion import convert
from whyloop.values.log import Log

pytestmark = pytest.mark.slow

# The wire formats that llama.cpp serves.
PROVIDERS = ["llama.cpp", "openai-responses", "anthropic"]
providers = pytest.mark.parametrize("provider", PROVIDERS)

BERLIN = "What is the weather in Berlin?"


@tool
async def get_weather(city: str) -> str:
    """Get the weather of a city."""
    return f"It is 21 degrees and sunny in {city}."


def model(server: LocalServer, provider: str = "llama.cpp", **settings: Any) -> HttpModel:
    """The local model behind one of the drivers, as predictable as it gets."""
    return server.model(provider, **{"temperature": 0.0, "max_tokens": 80, **settings})


def example(*cities: str) -> AgentState:
    """A session in which the model has asked for these cities before: it does best what it has seen."""
    calls = [ToolCall(f"call_{city}", "get_weather", {"city": city}) for city in cities]
    results = [f"It is 15 degrees and rainy in {city}." for city in cities]
    history = [
        Message.user(f"What is the weather in {' and '.join(cities)}?"),
        Message.assistant("", calls),
        *(
            Message.result(result, tool_call_id=call.id, tool=call.name)
            for call, result in zip(calls, results, strict=True)
        ),
        Message.assistant(" ".join(results)),
    ]
    return AgentState(messages=Log(history))


def assert_called_and_answered(state: AgentState) -> None:
    """The tool was called for Berlin, its result told, and no arguments show up in any text."""
    assert_stopped(state, reason=StopReason.COMPLETED, by="ToolCallPresenceCheck")
    assert_continued(state, by="ToolCallPresenceCheck")
    calling, answering = state.steps
    asked, told = state.messages_of(calling)
    assert [(call.name, call.arguments) for call in asked.tool_calls] == [("get_weather", {"city": "Berlin"})]
    assert asked.text == ""
    assert told.text == "It is 21 degrees and sunny in Berlin."
    assert "21" in state.last_response
    assert "city" not in state.last_response
    assert "`" not in state.last_response
    assert (calling.finish_reason, answering.finish_reason) == (FinishReason.TOOL_CALLS, FinishReason.STOP)
    assert all(step.usage.input > 50 and step.usage.output > 5 for step in state.steps)
    assert state.usage == calling.usage + answering.usage
    assert state.usage.cost == 0


@providers
async def test_it_calls_the_tool_and_answers(server: LocalServer, provider: str) -> None:
    agent = Agent(model(server, provider, stream=False), [get_weather], max_steps=3)

    state = await agent.run(BERLIN, state=example("Rome"))

    assert_called_and_answered(state)
    assert_readable(state)


@providers
async def test_its_text_streams_while_the_step_runs_and_its_arguments_never_do(
    server: LocalServer, provider: str
) -> None:
    agent = Agent(model(server, provider), [get_weather], max_steps=3)
    events = capture_events(agent)

    state = await agent.run(BERLIN, state=example("Rome"))

    assert_called_and_answered(state)
    chunks = events.of(StreamChunkReceived)
    assert {chunk.step_number for chunk in chunks if chunk.chunk} == {2}
    assert len(chunks) > 3
    assert "".join(chunk.chunk for chunk in chunks) == state.last_response
    calling, answering = events.of(AgentStepCompleted)
    assert events.index(calling) < events.index(chunks[0])
    assert events.index(chunks[-1]) < events.index(answering)
    written = [chunk for chunk in chunks if chunk.chunk]
    assert written[0].time < written[-1].time < answering.time


@providers
async def test_it_calls_two_tools_at_once(server: LocalServer, provider: str) -> None:
    agent = Agent(model(server, provider), [get_weather], max_steps=1)

    state = await agent.run("What is the weather in Berlin and Madrid?", state=example("Rome", "Paris"))

    assert_stopped(state, reason=StopReason.STEPS_LIMIT_REACHED)
    assert state.current_step is not None
    asked = state.messages_of(state.current_step)[0]
    assert [call.arguments for call in asked.tool_calls] == [{"city": "Berlin"}, {"city": "Madrid"}]
    assert len({call.id for call in asked.tool_calls}) == 2
    assert asked.text == ""
    assert_complete_history(state.messages)


# Behind /v1/responses llama.cpp calls a cut-off answer complete, and looks at no schema.
@pytest.mark.parametrize("provider", ["llama.cpp", "anthropic"])
async def test_an_answer_that_is_cut_off_is_not_a_completed_one(server: LocalServer, provider: str) -> None:
    state = await Agent(model(server, provider, max_tokens=6)).run("Tell me a long story.")

    assert_stopped(state, reason=StopReason.FINISH_REASON_RECEIVED, by="FinishReasonCheck")
    assert state.status is AgentStatus.STOPPED
    assert state.steps[0].finish_reason is FinishReason.LENGTH
    assert state.last_response
    assert state.usage.output == 6


async def test_an_answer_fits_the_schema_that_was_asked_for(server: LocalServer) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "Rome"]}, "warm": {"type": "boolean"}},
        "required": ["city", "warm"],
        "additionalProperties": False,
    }
    agent = Agent(model(server, response_format=schema))

    state = await agent.run("Where is it warmer, in Oslo or in Rome?")

    assert_stopped(state, reason=StopReason.COMPLETED)
    answer = json.loads(state.last_response)
    assert answer.keys() == {"city", "warm"}
    assert answer["city"] in ("Oslo", "Rome")
    assert isinstance(answer["warm"], bool)


async def test_two_sessions_at_once_do_not_mix(server: LocalServer) -> None:
    agent = Agent(model(server), [get_weather], max_steps=3)
    cities = ["Berlin", "Madrid"]

    states = await asyncio.gather(
        *(agent.run(f"What is the weather in {city}?", state=example("Rome")) for city in cities)
    )

    for city, state in zip(cities, states, strict=True):
        assert_stopped(state, reason=StopReason.COMPLETED)
        assert city in state.last_response
    assert states[0].agent_id != states[1].agent_id


@providers
async def test_a_stored_run_continues_where_it_was(server: LocalServer, provider: str) -> None:
    first = Agent(model(server, provider), [get_weather], max_steps=1)
    stopped = await first.run(BERLIN, state=example("Rome"))
    assert_stopped(stopped, reason=StopReason.STEPS_LIMIT_REACHED)
    stored = json.dumps(stopped.to_dict())

    second = Agent(model(server, provider), [get_weather], max_steps=3)
    state = await second.resume(AgentState.from_dict(json.loads(stored)))

    assert_stopped(state, reason=StopReason.COMPLETED)
    assert state.agent_id == stopped.agent_id
    assert state.step_count == 2
    assert "21" in state.last_response


def test_it_is_loaded_by_its_name(server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "shared_server", lambda: server)
    state = Agent(load("local", max_tokens=8)).run_sync("Hello!")
    assert state.last_response
    assert state.usage.cost == 0


def test_closed_it_serves_no_more() -> None:
    with LocalServer() as server:
        health = f"{server.address}/health"
        with urllib.request.urlopen(health, timeout=10) as response:
            assert json.load(response) == {"status": "ok"}
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(health, timeout=10)
    server.close()


def test_the_demo_ends_with_its_explanation(server: LocalServer) -> None:
    state = play_local(server)

    assert state.execution_steps[0].tool_calls[0].name == "search_entities"
    assert_stopped(state)
    assert_readable(state)


@dataclass
class City:
    """A city that a text names."""

    name: str
    country: str
    size: Literal["small", "large"]


async def test_a_grammar_makes_the_answer_fit_its_type(server: LocalServer) -> None:
    agent = Agent(model(server), output_type=City)
    partial = []
    async with agent.stream("Paris is the capital of France.") as run:
        partial = [run.partial_output async for event in run if isinstance(event, OutputChunkReceived)]
    state = run.state
    assert_stopped(state, reason=StopReason.COMPLETED, by="ToolCallPresenceCheck")
    assert isinstance(state.output, City)
    assert state.output.name == "Paris"
    assert state.steps[-1].source is not None
    assert state.steps[-1].source.output is OutputMode.NATIVE
    assert len(partial) > 5
    assert convert(partial[-1], City) == state.output
    assert agent.output(AgentState.from_dict(state.to_dict())) == state.output


async def test_a_scalar_fits_its_type_too(server: LocalServer) -> None:
    agent: Agent[None, Literal["warm", "cold"]] = Agent(model(server), output_type=Literal["warm", "cold"])
    state = await agent.run("Is the Sahara warm or cold?")
    assert state.output in ("warm", "cold")
