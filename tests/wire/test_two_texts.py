"""A failure has two texts: only the one for the model quotes the arguments that it sent."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from typing import Any, Literal

import pytest

from tests.support import RespondingModel, echo, requests_of, scripted
from whyloop import (
    Agent,
    AgentState,
    ErrorPolicy,
    Hook,
    ModelRequest,
    ModelResponse,
    SlimAgentStateSerializer,
    SlimSerializationConfig,
    ToolCall,
    ToolContext,
    ToolResult,
    tool,
)
from whyloop.broadcasting import BroadcastConfig
from whyloop.events import AgentEvent
from whyloop.loop.hooks import RunTool
from whyloop.testing import FakeClock, call
from whyloop.wire.envelope import envelope
from whyloop.wire.ui import canonical_messages

PRIVATE = "hunter-of-whales"


@tool
async def pay(amount: int, to: Literal["ada", "bob"], notes: list[dict[str, int]] | None = None) -> str:
    """Pay an amount.

    Args:
        amount: A number whose description must not be shown to people
        to: Who gets it
        notes: What it is for
    """
    return f"paid {amount}"


UNFIT: list[tuple[Any, str]] = [
    (f'{{"amount": "{PRIVATE}', "not a JSON object"),
    ({"amount": PRIVATE, "to": "ada"}, "amount does not fit"),
    ({"amount": 1, "to": PRIVATE}, "to does not fit"),
    ({"amount": 1, "to": "ada", PRIVATE: 1}, "an argument is unknown"),
    ({"amount": 1, "to": "ada", "notes": [{"a": PRIVATE}]}, "notes does not fit"),
    ({"amount": PRIVATE}, "amount does not fit; to is missing"),
]
each_unfit = pytest.mark.parametrize(("arguments", "expected"), UNFIT, ids=[text for _, text in UNFIT])


async def failed_run(arguments: Any, events: list[AgentEvent] | None = None) -> AgentState:
    handlers = [] if events is None else [events.append]
    return await scripted(call("pay", arguments), tools=[pay], event_handler=handlers).run("Pay ada.")


@each_unfit
async def test_people_see_which_argument_does_not_fit(arguments: Any, expected: str) -> None:
    state = await failed_run(arguments)
    (failure,) = state.steps[0].failures
    assert failure.message == f"invalid arguments for pay: {expected}"


@each_unfit
async def test_no_argument_and_no_schema_reaches_people(
    arguments: Any, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    events: list[AgentEvent] = []
    state = await failed_run(arguments, events)
    minimal = [envelope(event, BroadcastConfig.minimal()) for event in events]
    slim = SlimAgentStateSerializer(SlimSerializationConfig.minimal()).serialize(state)
    shown = [
        *[str(event) for event in events],
        *[json.dumps(each["data"]) for each in minimal if each and each["event"] != "agent.tool.started"],
        json.dumps(slim),
        state.explain(),
        state.explanation.to_markdown(),
        json.dumps(state.explanation.to_dict()),
        *[str(m["content"]) + str(m["metadata"].get("tool_error")) for m in canonical_messages(state)[2:]],
        *[json.dumps(step.outcome.to_dict()) for step in state.steps if step.outcome],
        caplog.text,
    ]
    for text in shown:
        assert PRIVATE not in text
        assert "must not be shown" not in text
        assert "integer" not in text


@each_unfit
async def test_the_model_gets_the_path_and_the_part_of_the_schema(arguments: Any, expected: str) -> None:
    agent = scripted(
        call("pay", arguments), "sorry", tools=[pay], error_policy=ErrorPolicy.retry_tool_errors()
    )
    await agent.run("Pay ada.")
    told = requests_of(agent)[1].messages[-1].text
    assert told.startswith("Error: invalid arguments for pay")
    assert len(told) < 700
    if isinstance(arguments, dict) and arguments.get("to") == PRIVATE:
        assert f"- to: Invalid enum value '{PRIVATE}'. Schema: " in told
        assert '"enum": ["ada", "bob"]' in told
        assert "amount" not in told


async def test_the_part_of_the_schema_is_that_of_the_item_that_does_not_fit() -> None:
    agent = scripted(
        call("pay", {"amount": 1, "to": "ada", "notes": [{"a": "x"}]}),
        "sorry",
        tools=[pay],
        error_policy=ErrorPolicy.retry_tool_errors(),
    )
    await agent.run("Pay ada.")
    told = requests_of(agent)[1].messages[-1].text
    assert "- notes[][]: Expected `int`, got `str`. Schema: " in told


async def test_a_failed_call_reads_the_same_live_and_stored() -> None:
    events: list[AgentEvent] = []
    state = await failed_run({"amount": PRIVATE, "to": "ada"}, events)
    live = [envelope(event, BroadcastConfig.standard()) for event in events]
    (completed,) = [each for each in live if each and each["event"] == "agent.tool.completed"]
    (stored,) = [message for message in canonical_messages(state) if message["role"] == "tool"]
    assert completed["data"]["error"] == stored["metadata"]["tool_error"] == stored["content"]
    assert completed["data"]["result_summary"] == stored["content"]


class WrongBefore(Hook):
    async def before_tool(self, call: ToolCall, context: ToolContext) -> ToolCall:
        return call.arguments  # type: ignore[return-value]


class WrongAfter(Hook):
    async def around_tool(self, call: ToolCall, context: ToolContext, run: RunTool) -> ToolResult:
        return call  # type: ignore[return-value]


@pytest.mark.parametrize("hook", [WrongBefore(), WrongAfter()])
async def test_a_hook_that_answers_wrongly_shows_no_argument(
    hook: Hook, caplog: pytest.LogCaptureFixture
) -> None:
    state = await scripted(call("echo", {"value": PRIVATE}), tools=[echo], hooks=hook).run("go")
    (failure,) = state.steps[0].failures
    assert "a hook answered" in failure.message
    assert PRIVATE not in state.explain() + failure.message + caplog.text


@pytest.mark.parametrize(
    "yielded",
    [
        {"name": "echo", "arguments": PRIVATE},
        ModelResponse("", ({"name": "echo", "arguments": PRIVATE},)),  # type: ignore[arg-type]
        ModelResponse("", (ToolCall("c1", "echo", [PRIVATE]),)),  # type: ignore[arg-type]
        ModelResponse([PRIVATE]),  # type: ignore[arg-type]
    ],
)
async def test_a_driver_that_answers_wrongly_shows_no_argument(yielded: Any) -> None:
    async def respond(request: ModelRequest) -> AsyncIterator[ModelResponse]:
        yield yielded

    state = await Agent(RespondingModel(respond), [echo], clock=FakeClock()).run("go")
    (failure,) = state.steps[0].failures
    assert failure.type == "validation"
    assert PRIVATE not in state.explain() + failure.message
