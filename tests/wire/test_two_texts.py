"""A failure has two texts: only the one for the model quotes the arguments that it sent."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, Literal

import pytest

from tests.support import RespondingModel, echo, requests_of, scripted
from whyloop import (
    Agent,
    AgentState,
    ErrorPolicy,
    FinishReason,
    Hook,
    ModelRequest,
    ModelResponse,
    SlimAgentStateSerializer,
    SlimSerializationConfig,
    TextDelta,
    ToolCall,
    ToolContext,
    ToolResult,
    tool,
)
from whyloop.broadcasting import BroadcastConfig
from whyloop.events import AgentEvent, StreamChunkReceived
from whyloop.loop.hooks import RunTool
from whyloop.testing import FakeClock, ScriptedModel, call, text as written
from whyloop.wire.ag_ui import AgUiStream
from whyloop.wire.envelope import envelope
from whyloop.wire.protocol_stream import ProtocolStream
from whyloop.wire.ui import canonical_messages
from whyloop.wire.vercel import VercelStream

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
    ({"amount": 1, PRIVATE: 1}, "an argument is unknown; to is missing"),
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
    assert "a hook returned" in failure.message
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


WRITTEN = [
    f'<tool_call>{{"name": "echo", "arguments": {{"value": "{PRIVATE}"}}}}</tool_call>',
    f'Let me look.\n\n```json\n{{"name": "echo", "arguments": {{"value": "{PRIVATE}"}}}}\n```',
    f'{{"name": "echo", "arguments": {{"value": "{PRIVATE}"}}}}',
    f'```tool_call\necho("{PRIVATE}")\n```',
    f'<function=echo>{{"value": "{PRIVATE}"}}</function>',
    f"<function=echo>\n<parameter=value>\n{PRIVATE}\n</parameter>\n</function>",
    f"{{'name': 'echo', 'arguments': {{'value': '{PRIVATE}'}}}}",
    f'Let me look.\n\n```json\n{{"name": "echo", "arguments": {{"value": "{PRIVATE}",}}}}\n```',
    f'{{"name": "echo", "arguments": {{"value": "{PRIVATE}',
]
each_written = pytest.mark.parametrize("text", WRITTEN)


def shown_texts(state: AgentState, events: list[AgentEvent]) -> list[str]:
    """Return what people and minimal formats show of a run, besides the arguments of the calls it made."""
    configs = (BroadcastConfig.minimal(), BroadcastConfig.standard())
    sent = [envelope(event, config) for config in configs for event in events]
    calls = ("agent.tool.started", "agent.tool.pending")  # Which summarise the arguments of a call.
    streams: list[ProtocolStream[Any]] = [AgUiStream(), VercelStream()]
    return [
        *[json.dumps(each["data"]) for each in sent if each and each["event"] not in calls],
        *[str(part) for stream in streams for event in events for part in stream.parts(event)],
        *[str(event) for event in events],
        state.explain(),
        json.dumps(SlimAgentStateSerializer(SlimSerializationConfig.minimal()).serialize(state)),
        *[str(message["content"]) for message in canonical_messages(state)],
        *[message.text for message in state.messages],
        state.last_response,
    ]


@pytest.mark.parametrize("finish_reason", [FinishReason.STOP, FinishReason.LENGTH])
@pytest.mark.parametrize("by_word", [False, True])
@each_written
async def test_a_call_written_as_text_is_for_the_model_alone(
    text: str, by_word: bool, finish_reason: FinishReason
) -> None:
    events: list[AgentEvent] = []
    model = ScriptedModel([written(text, finish_reason=finish_reason)], by_word=by_word)
    state = await Agent(model, [echo], clock=FakeClock(), event_handler=events.append).run("Go.")
    assert state.status != "completed"
    assert PRIVATE in state.messages[-1].model_text
    assert [shown for shown in shown_texts(state, events) if PRIVATE in shown] == []
    assert PRIVATE not in json.dumps(state.explanation.to_dict())
    assert state.messages[-1].text == ("Let me look." if text.startswith("Let") else "")
    pieces = [event.chunk for event in events if isinstance(event, StreamChunkReceived)]
    assert "".join(pieces).rstrip() == state.messages[-1].text


@tool
async def now() -> str:
    """Tell the time."""
    return "12:00"


@each_written
@pytest.mark.parametrize(
    ("options", "script"),
    [
        ({}, lambda text: [call("now", text=text), "Noon."]),
        ({}, lambda text: [written(text, finish_reason="pause_turn"), "Noon."]),
        ({"max_steps": 1, "wrap_up": True}, lambda text: [call("now"), text]),
        ({"output_type": int}, lambda text: [call("now", text=text), call("final_answer", {"value": 12})]),
        ({"output_type": int}, lambda text: [text, text]),
        ({"output_validators": len}, lambda text: [text, text]),
        ({"output_validators": len}, lambda text: [written(text, finish_reason="length")]),
    ],
    ids=["beside a call", "pause", "wrap-up", "typed beside a call", "typed", "checked", "checked truncated"],
)
async def test_no_step_shows_a_call_written_as_text(
    options: dict[str, Any], script: Callable[[str], list[Any]], text: str
) -> None:
    events: list[AgentEvent] = []
    agent = scripted(*script(text), tools=[echo, now], event_handler=events.append, **options)
    state = await agent.run("Go.")
    assert any(PRIVATE in message.model_text for message in state.messages) or options.get("wrap_up")
    assert [shown for shown in shown_texts(state, events) if PRIVATE in shown] == []


async def test_a_call_that_is_cut_off_while_it_is_written_is_dropped() -> None:
    events: list[AgentEvent] = []

    async def respond(request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        yield TextDelta("Let me look. ")
        yield TextDelta(f'{{"name": "echo", "arguments": {{"value": "{PRIVATE}')
        agent.request_stop("enough")
        await asyncio.Event().wait()

    agent = Agent(RespondingModel(respond), [echo], clock=FakeClock(), event_handler=events.append)
    state = await agent.run("Go.")
    assert state.stop_reason == "user_requested"
    assert (state.messages[-1].model_text, state.messages[-1].incomplete) == ("Let me look. ", True)
    assert [shown for shown in shown_texts(state, events) if PRIVATE in shown] == []


@pytest.mark.parametrize(
    "text", ['{"value": "Oslo"}', '{"temperature": 3}', "<tool_call> is a tag", 'Use {"name": "echo"} and']
)
@pytest.mark.parametrize("by_word", [False, True])
async def test_text_that_was_held_back_is_sent_in_the_end_if_it_is_language(text: str, by_word: bool) -> None:
    events: list[AgentEvent] = []
    model = ScriptedModel([text], by_word=by_word)
    state = await Agent(model, [echo], clock=FakeClock(), event_handler=events.append).run("Go.")
    pieces = [event.chunk for event in events if isinstance(event, StreamChunkReceived)]
    assert "".join(pieces) == state.last_response == text


async def test_the_model_reads_the_call_that_it_wrote_as_text() -> None:
    agent = scripted(WRITTEN[0], "Sorry.", tools=[echo], error_policy=ErrorPolicy.retry_all(2))
    state = await agent.run("Go.")
    assert state.last_response == "Sorry."
    assert [m.model_text for m in requests_of(agent)[1].messages if m.is_assistant] == [WRITTEN[0]]


def echo_nothing(value: str) -> str:
    return "echoed"


async def test_arguments_that_a_person_chose_are_for_the_model_alone() -> None:
    events: list[AgentEvent] = []
    agent = Agent(
        ScriptedModel([call("echo_nothing", {"value": "a"}), "Done."]),
        [tool(needs_approval=True)(echo_nothing)],
        clock=FakeClock(),
        event_handler=[events.append],
    )
    paused = await agent.run("Go.")
    state = await agent.resume(paused.edit(paused.pending_calls[0].id, {"value": PRIVATE}, by="ann"))
    assert state.last_response == "Done."
    result = next(message for message in state.messages if message.is_tool)
    assert result.model_text == f'[ann changed the arguments to {{"value":"{PRIVATE}"}}]\nechoed'
    assert result.text == "echoed"
    assert [shown for shown in shown_texts(state, events) if PRIVATE in shown] == []


async def test_both_texts_survive_a_full_snapshot() -> None:
    state = await scripted(WRITTEN[1], tools=[echo]).run("Go.")
    serializer = SlimAgentStateSerializer(SlimSerializationConfig.full())
    assert serializer.deserialize(serializer.serialize(state)).messages == state.messages
