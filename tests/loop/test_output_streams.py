"""A typed answer while it streams, and answers of random types."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from datetime import date
from functools import reduce
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.loop.outputs import (
    ANSWER,
    INVOICE,
    JSON_DATA,
    MODES,
    VALUE,
    WRONG,
    Invoice,
    Item,
    agent_of,
    streamed,
)
from tests.support import (
    MemoryJournal,
    RespondingModel,
    assert_complete_history,
    broken,
    echo,
    examples,
)
from whyloop import (
    Agent,
    AgentState,
    AgentStatus,
    ErrorPolicy,
    ModelRequest,
    ModelResponse,
    OutputDelta,
    TextDelta,
    ToolCall,
)
from whyloop.errors import ModelError, OutputError, RateLimitError
from whyloop.events import AgentEvent, AgentStepStarted, OutputChunkReceived, StreamChunkReceived
from whyloop.loop.executions import start_run
from whyloop.loop.stream import partial_json
from whyloop.testing import FakeClock, call, calls, text
from whyloop.tools.conversion import convert, to_plain
from whyloop.tools.schema import problem_with
from whyloop.tools.types import schema_of
from whyloop.values.judgement import Judged
from whyloop.values.transitions import apply
from whyloop.wire.view import read_back

# While it streams


@pytest.mark.parametrize("mode", ["native", "prompt"])
async def test_json_is_streamed_as_output_and_shown_when_it_fits(mode: str) -> None:
    events: list[AgentEvent] = []
    agent = agent_of(mode, f"Look:\n\n\n{json.dumps(WRONG)}", f"Now: {json.dumps(INVOICE)}")
    state = await agent.run("go", on_event=events.append)
    shown, pieces = streamed(events)
    assert shown == "Look:\n\n\n" + state.last_response
    assert "a lot" not in shown
    assert pieces == json.dumps(WRONG) + json.dumps(INVOICE)


async def test_language_with_braces_before_a_tool_call_is_shown() -> None:
    events: list[AgentEvent] = []
    agent = agent_of("native", call("echo", {}, "I try {x}."), json.dumps(INVOICE), tools=[echo])
    await agent.run("go", on_event=events.append)
    assert streamed(events)[0].startswith("I try {x}.{")


async def test_a_partial_output_grows_while_the_answer_streams() -> None:
    pieces = ["Here: ", '{"value": [{"name": "ro', 'pe", "price": 2', '.5}, {"name"', ': "x", "price": 1}]}']

    async def respond(request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        for piece in pieces:
            yield TextDelta(piece)
        yield ModelResponse("".join(pieces))

    model = RespondingModel(respond)
    model.output_mode = "native"  # type: ignore[attr-defined]
    agent: Agent[None, list[Item]] = Agent(model, output_type=list[Item], clock=FakeClock())
    async with agent.stream("go") as run:
        assert run.partial_output is None
        seen = [run.partial_output async for event in run if isinstance(event, OutputChunkReceived)]
        assert run.state.output == [Item("rope", 2.5), Item("x", 1.0)]
    assert seen == [
        [{"name": "ro"}],
        [{"name": "rope"}],
        [{"name": "rope", "price": 2.5}, {}],
        [{"name": "rope", "price": 2.5}, {"name": "x", "price": 1}],
    ]


async def test_pieces_of_an_output_call_make_a_partial_output() -> None:
    async def respond(request: ModelRequest) -> AsyncIterator[OutputDelta | ModelResponse]:
        yield OutputDelta('{"number": "A')
        yield ModelResponse("", (ToolCall("c", ANSWER, INVOICE),))

    async with Agent(RespondingModel(respond), output_type=Invoice, clock=FakeClock()).stream("go") as run:
        seen = [run.partial_output async for event in run if isinstance(event, OutputChunkReceived)]
        assert run.state.output == VALUE
    assert seen == [{"number": "A"}]


async def test_a_correction_begins_a_new_partial_output() -> None:
    agent = agent_of("native", json.dumps(WRONG), json.dumps(INVOICE))
    async with agent.stream("go") as run:
        seen = [run.partial_output async for event in run if isinstance(event, OutputChunkReceived)]
    assert seen == [WRONG, INVOICE]


async def test_a_stopped_answer_keeps_its_json_from_people() -> None:
    async def respond(request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        yield TextDelta('Here: {"number": "A')
        agent.request_stop("enough")
        await asyncio.Event().wait()
        yield ModelResponse("late")

    agent = Agent(RespondingModel(respond), output_type=Invoice, clock=FakeClock())
    state = await agent.run("go")
    assert state.messages[-1].incomplete
    assert state.messages[-1].text == "Here: "
    with pytest.raises(OutputError, match="user_requested"):
        _ = state.output


@given(data=JSON_DATA, cut=st.integers(min_value=0))
def test_every_beginning_of_a_document_is_data(data: Any, cut: int) -> None:
    document = json.dumps({"value": data}, ensure_ascii=cut % 2 == 0)
    text = document[: cut % (len(document) + 1)]
    found = partial_json(text)
    assert found is None if not text else isinstance(found, dict)
    assert partial_json(document) == {"value": data}


# Any type


SCALARS = [int, float, bool, str, date, Literal["b", "a"], Literal[3, 1], str | None, int | bool]


@st.composite
def kinds(draw: st.DrawFn) -> Any:
    """Return a random type: dataclasses, lists, dicts, unions and literals, one inside the other."""

    def kind(depth: int) -> Any:
        if depth == 0 or draw(st.booleans()):
            return draw(st.sampled_from(SCALARS))
        shape = draw(st.sampled_from(["class", "list", "dict", "union"]))
        if shape == "list":
            return list[kind(depth - 1)]  # type: ignore[misc]
        if shape == "dict":
            return dict[str, kind(depth - 1)]  # type: ignore[misc]
        if shape == "union":
            return record(depth, "A") | record(depth, "B")
        return record(depth)

    def record(depth: int, tag: str | None = None) -> Any:
        fields: list[Any] = [("kind", Literal[tag])] if tag else []
        fields += [(f"f{index}", kind(depth - 1)) for index in range(draw(st.integers(1, 3)))]
        return dataclasses.make_dataclass(f"Record{tag or ''}", fields)

    found = kind(3)
    return list[str] if found is str else found  # Any text is text.


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(kind=kinds(), data=st.data())
def test_a_random_value_of_a_random_type_comes_back_as_it_was(kind: Any, data: st.DataObject) -> None:
    value = data.draw(values_of(kind))
    plain = json.loads(json.dumps(to_plain(value)))
    schema = schema_of(kind)
    assert problem_with(plain, schema) is None
    answer = plain if schema.get("type") == "object" else {"value": plain}
    agent = agent_of("native", json.dumps(answer), output_type=kind)
    state = agent.run_sync("go")
    assert state.output == value
    assert type(state.output) is type(value)
    assert agent.output(AgentState.from_dict(state.to_dict())) == value


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(kind=kinds(), answer=JSON_DATA)
def test_an_answer_becomes_an_output_only_if_it_fits_its_type(kind: Any, answer: Any) -> None:
    agent = agent_of("native", json.dumps(answer), output_type=kind, output_retries=0)
    state = agent.run_sync("go")
    if state.status is AgentStatus.COMPLETED:
        assert convert(json.loads(json.dumps(to_plain(state.output))), kind) == state.output
    else:
        with pytest.raises(OutputError):
            _ = state.output
        assert state.steps[0].output is None


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Return random values of a type that `kinds` makes."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is str:
        return st.text(st.characters(codec="utf-8"), max_size=5)
    if kind is float:
        return st.floats(-1e6, 1e6)
    if kind is int:
        return st.integers(-(2**40), 2**40)
    if origin is list:
        return st.lists(values_of(arguments[0]), max_size=3)
    if origin is dict:
        return st.dictionaries(st.sampled_from(["x", "y y", "é"]), values_of(arguments[1]), max_size=2)
    if origin is Literal:
        return st.sampled_from(arguments)
    if arguments:
        return st.one_of([values_of(each) for each in arguments])
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        return st.builds(kind, **{name: values_of(hint) for name, hint in hints.items()})
    return st.from_type(kind)


# Any run


LIVE_ONLY = (AgentStepStarted, StreamChunkReceived, OutputChunkReceived)
REPLIES = st.sampled_from(
    [
        call(ANSWER, INVOICE),
        call(ANSWER, WRONG),
        call(ANSWER, "{oops"),
        calls(call(ANSWER, INVOICE), call("echo", {"value": "x"})),
        calls(call("broken", {}), call(ANSWER, WRONG)),
        call("echo", {"value": "x"}),
        text(json.dumps(INVOICE)),
        text(json.dumps(WRONG)),
        text("No idea."),
        text(""),
        text(json.dumps(INVOICE), finish_reason="length"),
        call(ANSWER, INVOICE, finish_reason="content_filter"),
        RateLimitError("busy"),
        ModelError("gone", status=400),
    ]
)
POLICIES = st.sampled_from(
    [ErrorPolicy.stop_on_any_error(), ErrorPolicy.retry_all(1), ErrorPolicy.ignore_tool_errors()]
)


@examples(150)
@given(
    replies=st.lists(REPLIES, min_size=6, max_size=6),
    mode=st.sampled_from(MODES),
    policy=POLICIES,
    retries=st.integers(0, 2),
    rejects=st.booleans(),
)
def test_any_run_with_an_output_follows_from_its_journal(
    replies: list[Any], mode: str, policy: ErrorPolicy, retries: int, rejects: bool
) -> None:
    def reject(invoice: Invoice) -> Invoice:
        if rejects and invoice.number == "A-1":
            raise ValueError("not this one")
        return invoice

    agent = agent_of(
        mode,
        *replies,
        tools=[echo, broken],
        error_policy=policy,
        output_retries=retries,
        output_validators=reject,
        max_steps=6,
    )
    events: list[AgentEvent] = []
    journal = MemoryJournal()
    run = start_run(agent, "go", journal.create(agent), journal=journal, handlers=[events.append])
    state = asyncio.run(run.finish())
    assert journal.state == state
    base = AgentState.before_creation(journal.agent_id)
    assert reduce(apply, journal.transitions, base) == state
    recorded = [event for event in events if not isinstance(event, LIVE_ONLY)]
    assert recorded == list(read_back(base, journal.transitions))[-len(recorded) :]
    before = base
    for transition in journal.transitions:
        if isinstance(transition, Judged):
            for judged in (before, AgentState.from_dict(before.to_dict())):
                assert agent.criteria.evaluate(judged) == transition.outcome
        before = apply(before, transition)
    assert_complete_history(state.messages)
    free = [each.correction for step in state.steps for each in step.failures if each.is_free]
    assert len(free) <= retries
    if state.status is AgentStatus.COMPLETED:
        assert not rejects
        assert state.output == agent.output(journal.state) == VALUE
    else:
        with pytest.raises(OutputError, match="there is no output"):
            _ = state.output
