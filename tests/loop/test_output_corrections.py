"""An answer that does not fit goes back to the model, and a validator may reject it."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import json
import logging
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, Literal

import msgspec
import pytest

from tests.loop.outputs import (
    ANSWER,
    INVOICE,
    PRIVATE,
    VALUE,
    WRONG,
    Invoice,
    Item,
    Missing,
    agent_of,
    each_mode,
    reply,
)
from tests.support import RespondingModel, echo, requests_of, scripted
from whyloop import (
    Agent,
    AgentBuilder,
    AgentState,
    AgentStatus,
    ErrorPolicy,
    ModelRequest,
    ModelResponse,
    RunContext,
    SlimAgentStateSerializer,
    SlimSerializationConfig,
    StopReason,
    ToolCall,
)
from whyloop.broadcasting import BroadcastConfig
from whyloop.errors import ConfigurationError, OutputError
from whyloop.events import AgentEvent, RetryScheduled, StreamChunkReceived
from whyloop.testing import FakeClock, ScriptedModel, call, calls, capture_events
from whyloop.values.step import StepType
from whyloop.wire.document import document
from whyloop.wire.envelope import envelope
from whyloop.wire.ui import canonical_messages

# Corrections


async def test_several_answers_at_once_that_differ_go_back_to_the_model() -> None:
    twice = calls(call(ANSWER, INVOICE), call(ANSWER, {**INVOICE, "number": "other"}))
    agent = agent_of("tool", twice, reply("tool", INVOICE))
    state = await agent.run("go")
    assert state.output == VALUE
    assert state.explanation.steps[0].summary == (
        "the answer does not fit the output type: it has several documents"
    )
    assert "it has several JSON documents: give one" in requests_of(agent)[1].messages[-1].model_text


@pytest.mark.parametrize("other", [INVOICE, WRONG])
async def test_of_several_answers_at_once_the_one_that_fits_counts(other: Any) -> None:
    state = await agent_of("tool", calls(call(ANSWER, other), call(ANSWER, INVOICE))).run("go")
    assert (state.output, state.step_count) == (VALUE, 1)


@each_mode
async def test_an_answer_that_does_not_fit_goes_back_with_the_problem(mode: str) -> None:
    agent = agent_of(mode, reply(mode, WRONG), reply(mode, INVOICE))
    state = await agent.run("go")
    assert state.output == VALUE
    assert [step.type for step in state.steps] == [StepType.ERROR, StepType.FINAL]
    *_, answer, feedback = requests_of(agent)[1].messages
    assert answer.is_assistant
    assert json.loads(answer.model_text) == WRONG
    assert feedback.is_developer
    assert "$.items[0].price: Expected `float`, got `str`. Schema: " in feedback.model_text
    assert '{"type": "number"}' in feedback.model_text
    assert "final_answer" in feedback.model_text or mode != "tool"


async def test_every_problem_is_named_at_once() -> None:
    agent = agent_of("tool", call(ANSWER, {"items": [{"name": 1}]}), reply("tool", INVOICE))
    await agent.run("go")
    told = requests_of(agent)[1].messages[-1].model_text
    for path in (
        "$.number: is missing",
        "$.day: is missing",
        "$.items[0].name: ",
        "$.items[0].price: is missing",
    ):
        assert path in told


@pytest.mark.parametrize(
    "policy", [ErrorPolicy.stop_on_any_error(), ErrorPolicy.retry_all(2), ErrorPolicy.ignore_tool_errors()]
)
async def test_corrections_come_before_any_policy(policy: ErrorPolicy) -> None:
    wrong = [reply("tool", WRONG)] * 2
    agent = agent_of("tool", *wrong, reply("tool", INVOICE), error_policy=policy, output_retries=2)
    state = await agent.run("go")
    assert state.output == VALUE
    assert [step.failures[0].correction.attempt for step in state.steps[:2]] == [1, 2]  # type: ignore[union-attr]


async def test_the_policy_is_asked_after_the_corrections() -> None:
    wrong = [reply("tool", WRONG)] * 4
    stopped = await agent_of("tool", *wrong).run("go")
    assert stopped.step_count == 2
    assert stopped.stop_reason is StopReason.ERROR_FORBADE
    retried = await agent_of("tool", *wrong, error_policy=ErrorPolicy.retry_tool_errors(2)).run("go")
    assert retried.step_count == 4
    assert retried.stop_reason is StopReason.RETRY_LIMIT_REACHED


async def test_no_corrections_are_made_without_retries() -> None:
    state = await agent_of("tool", reply("tool", WRONG), output_retries=0).run("go")
    assert state.step_count == 1
    assert state.status is AgentStatus.FAILED


async def test_a_new_query_has_its_own_corrections() -> None:
    pair = [reply("tool", WRONG), reply("tool", INVOICE)]
    agent = agent_of("tool", *pair, *pair)
    state = await agent.run("go", state=await agent.run("go"))
    assert state.output == VALUE


async def test_a_correction_is_reported_as_a_retry() -> None:
    events: list[AgentEvent] = []
    await agent_of("tool", reply("tool", WRONG), reply("tool", INVOICE)).run("go", on_event=events.append)
    (retry,) = [event for event in events if isinstance(event, RetryScheduled)]
    assert (retry.attempt, retry.max_retries, retry.wait_seconds) == (1, 1, 0)


# Validators


def check(invoice: Invoice) -> Invoice:
    if not invoice.items or invoice.items[0].price > 100:
        raise ValueError(f"the price {invoice.items[0].price} is too high: look again")
    return dataclasses.replace(invoice, number=invoice.number.lower())


async def test_a_validator_may_change_the_output() -> None:
    agent = agent_of("tool", reply("tool", INVOICE), output_validators=check)
    state = await agent.run("go")
    assert state.output.number == "a-1"
    assert agent.output(AgentState.from_dict(state.to_dict())).number == "a-1"


async def test_the_message_of_a_validator_goes_to_the_model_and_not_to_people() -> None:
    dear = {**INVOICE, "items": [{"name": "gold", "price": 4711}]}
    agent = agent_of("tool", reply("tool", dear), reply("tool", INVOICE), output_validators=[check])
    state = await agent.run("go")
    told = requests_of(agent)[1].messages[-1]
    assert "- the price 4711.0 is too high: look again" in told.model_text
    assert told.text.endswith("the validator check rejected it")
    assert state.output.number == "a-1"


async def test_the_explanation_has_the_message_of_a_validator_and_no_event_has_it() -> None:
    dear = {**INVOICE, "items": [{"name": "gold", "price": 4711}]}
    events: list[AgentEvent] = []
    agent = agent_of("tool", *[reply("tool", dear)] * 2, output_validators=check, event_handler=events.append)
    state = await agent.run("go")
    told = "the validator check rejected it: the price 4711.0 is too high: look again"
    assert state.explanation.headline.endswith(f"{told}.")
    assert [step.summary.endswith(told) for step in state.explanation.steps] == [True, True]
    assert AgentState.from_dict(state.to_dict()).explain() == state.explain()
    for shown in (
        *map(str, events),
        *[json.dumps(envelope(each, BroadcastConfig.debug())) for each in events],
    ):
        assert "too high" not in shown


async def test_the_end_of_the_retries_counts_the_corrections_before_them() -> None:
    policy = ErrorPolicy.retry_tool_errors(3)
    agent = agent_of("tool", *[reply("tool", WRONG)] * 6, error_policy=policy, output_retries=2)
    state = await agent.run("go")
    assert state.outcome.reason == "Validation error after 6 consecutive failures (2 corrections, max: 3)"
    assert (len(state.steps), state.stop_reason) == (6, "retry_limit")


async def test_corrections_before_a_success_are_not_counted() -> None:
    policy = ErrorPolicy.retry_tool_errors(1)
    replies = [reply("tool", WRONG), call("echo"), reply("tool", WRONG), reply("tool", WRONG)]
    agent = agent_of("tool", *replies, tools=[echo], error_policy=policy, output_retries=1)
    state = await agent.run("go")
    assert state.outcome.reason == "Validation error after 2 consecutive failures (max: 1)"


async def test_validators_run_in_order_plain_or_async_with_the_context_if_they_want_it() -> None:
    seen: list[Any] = []

    async def first(invoice: Invoice, context: RunContext) -> Invoice:
        seen.append((context.step_number, context.agent_id))
        return dataclasses.replace(invoice, number="1")

    def second(invoice: Invoice, strict: bool = True) -> Invoice:
        assert strict
        return dataclasses.replace(invoice, number=invoice.number + "2")

    state = await agent_of("native", json.dumps(INVOICE), output_validators=[first, second]).run("go")
    assert state.output.number == "12"
    assert seen == [(1, state.agent_id)]


def forgets(invoice: Invoice) -> None: ...


def confuses(invoice: Invoice) -> object:
    return {"number": 5}


def breaks(invoice: Invoice) -> object:
    raise KeyError(invoice.items[0].name)


def leaves(invoice: Invoice) -> object:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("validator", "problem"),
    [
        (
            forgets,
            "the output validator forgets returned NoneType, which does not fit the output type: return",
        ),
        (confuses, "the output validator confuses returned dict, which does not fit the output type"),
        (breaks, "the output validator breaks raised KeyError"),
        (leaves, "the output validator leaves raised SystemExit"),
    ],
)
async def test_an_odd_validator_ends_the_run_with_a_clear_reason(validator: Any, problem: str) -> None:
    state = await agent_of("tool", reply("tool", INVOICE), output_validators=validator).run("go")
    assert state.status is AgentStatus.FAILED
    assert problem in state.explain()
    assert "rope" not in state.explain()


# Bad input


class Opaque:
    pass


@dataclasses.dataclass
class Holder:
    inner: Opaque


class Color(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Node:
    """A type that refers to itself, with a union of classes in it."""

    value: Item | Missing
    children: list[Node]


@dataclasses.dataclass(frozen=True)
class Frozen:
    name: str


NOT_TYPES: list[Any] = [
    Opaque,
    Holder,
    list[Opaque],
    "Invoice",
    5,
    Callable[[], int],
    set[Opaque],
    Literal[Color.RED],
]
NOT_TYPES += [tuple[Item | Missing, int], dict[str, Item | Opaque]]
NOT_TYPES += [
    set[Item],
    set[Item | Missing],
    list[frozenset[Item | Missing]],
    set[list[int]],
    dict[Item, int],
]


@pytest.mark.parametrize("kind", NOT_TYPES)
def test_a_type_without_a_schema_is_refused(kind: Any) -> None:
    with pytest.raises(ConfigurationError, match="invalid output_type"):
        agent_of("tool", output_type=kind)


def test_a_set_of_values_without_a_hash_is_refused_with_the_type_that_has_none() -> None:
    with pytest.raises(
        ConfigurationError, match=r"set\[.*Missing\]: .*a set cannot hold Item, which has no hash"
    ):
        agent_of("tool", output_type=set[Item | Missing])


@pytest.mark.parametrize(
    ("kind", "sent", "expected"),
    [
        (set[int | None], [1, None, 1], {1, None}),
        (set[tuple[int, ...]], [[1, 2], [1, 2]], {(1, 2)}),
        (set[Frozen], [{"name": "a"}, {"name": "a"}], {Frozen("a")}),
        (set[Annotated[int, "n"]], [1, 1], {1}),
    ],
)
async def test_a_set_of_values_with_a_hash_is_an_output_type(kind: Any, sent: Any, expected: Any) -> None:
    state = await agent_of("tool", call(ANSWER, {"value": sent}), output_type=kind).run("go")
    assert state.output == expected


@pytest.mark.parametrize("retries", [-1, 1.5, True, "2", None])
def test_invalid_retries_are_refused(retries: Any) -> None:
    with pytest.raises(ConfigurationError, match="invalid output_retries"):
        agent_of("tool", output_retries=retries)


@pytest.mark.parametrize("validator", [5, lambda: 1, lambda a, b, c: a, lambda *, a: a])
def test_a_validator_that_cannot_take_an_output_is_refused(validator: Any) -> None:
    with pytest.raises(ConfigurationError, match="invalid output validator"):
        agent_of("tool", output_validators=[validator])


def test_corrections_need_something_to_correct() -> None:
    with pytest.raises(ConfigurationError, match="pass output_type or output_validators too"):
        scripted("x", output_retries=3)


def test_an_unknown_mode_of_a_model_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="use native, tool or prompt"):
        agent_of("json")


async def test_another_type_than_the_stored_one_is_an_error() -> None:
    state = await agent_of("tool", reply("tool", INVOICE)).run("go")
    other = agent_of("tool", output_type=Missing)
    with pytest.raises(OutputError, match="does not fit the output type Missing"):
        other.output(AgentState.from_dict(state.to_dict()))
    with pytest.raises(OutputError, match="this state has no output"):
        other.output(await scripted("hi").run("go"))
    with pytest.raises(OutputError, match="this agent has no output_type"):
        scripted("hi").output(state)


def test_the_builder_takes_an_output_type() -> None:
    model = ScriptedModel([reply("tool", INVOICE)])
    builder = AgentBuilder.base().with_model(model).with_output_type(Invoice, validators=check, retries=2)
    assert builder.build().run_sync("go").output.number == "a-1"


# People


@each_mode
@pytest.mark.parametrize("retries", [0, 1])
async def test_no_answer_that_does_not_fit_reaches_people(
    mode: str, retries: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    events: list[AgentEvent] = []
    private = {"number": "A-1", "day": PRIVATE, PRIVATE: 1, "items": [{"name": "x", "price": PRIVATE}]}
    agent = agent_of(mode, *[reply(mode, private)] * 2, output_retries=retries)
    state = await agent.run("go", on_event=events.append)
    minimal = [envelope(event, BroadcastConfig.minimal()) for event in events]
    standard = [envelope(event, BroadcastConfig.standard()) for event in events]
    shown = [
        *[str(event) for event in events],
        *[json.dumps(each) for each in [*minimal, *standard]],
        json.dumps(SlimAgentStateSerializer(SlimSerializationConfig.minimal()).serialize(state)),
        state.explain(),
        state.explanation.to_markdown(),
        json.dumps(state.explanation.to_dict()),
        *[str(message) for message in canonical_messages(state)],
        *[message.text for message in state.messages],
        *[json.dumps(step.outcome.to_dict()) for step in state.steps if step.outcome],
        json.dumps(document(state)),
        state.last_response,
        caplog.text,
    ]
    for text_for_people in shown:
        assert PRIVATE not in text_for_people
        assert '"format"' not in text_for_people
    assert PRIVATE in state.messages[1].model_text
    assert "items.price does not fit" in state.explain()


async def test_a_type_may_refer_to_itself() -> None:
    answer = {"value": {"reason": "a"}, "children": [{"value": {"name": "b", "price": 1}, "children": []}]}
    state = await agent_of("tool", call(ANSWER, answer), output_type=Node).run("go")
    assert state.output == Node(Missing("a"), [Node(Item("b", 1.0), [])])


# Answers that are something else


@each_mode
async def test_a_call_written_as_text_is_not_an_output(mode: str) -> None:
    written = f'Let me look. <tool_call>{{"name": "echo", "arguments": {{"value": "{PRIVATE}"}}}}</tool_call>'
    agent = agent_of(mode, written, tools=[echo], output_retries=0)
    state = await agent.run("go")
    assert state.status is AgentStatus.FAILED
    assert PRIVATE not in state.messages[-1].text
    assert state.steps[0].output is None


async def test_a_provider_that_enforces_the_type_may_answer_with_what_looks_like_a_call() -> None:
    written = {"name": "echo", "arguments": {"value": "x"}}
    agent = agent_of("native", json.dumps(written), tools=[echo], output_type=dict[str, Any])
    assert (await agent.run("go")).output == written
    agent = agent_of("prompt", json.dumps(written), tools=[echo], output_type=dict[str, Any])
    with pytest.raises(OutputError, match="written as text"):
        _ = (await agent.run("go")).output


@each_mode
async def test_an_answer_with_an_image_is_not_an_output(mode: str) -> None:
    async def respond(request: ModelRequest) -> AsyncIterator[ModelResponse]:
        yield ModelResponse(json.dumps(INVOICE), unsupported=("an image",))

    model = RespondingModel(respond)
    model.output_mode = mode  # type: ignore[attr-defined]
    state = await Agent(model, output_type=Invoice, clock=FakeClock()).run("go")
    with pytest.raises(OutputError, match="an image, which whyloop does not support"):
        _ = state.output


@pytest.mark.parametrize("number", ["NaN", "Infinity"])
@each_mode
async def test_a_number_that_is_not_json_is_not_an_output(mode: str, number: str) -> None:
    agent = agent_of(
        mode, f'The price: {{"name": "x", "price": {number}}}', output_type=Item, output_retries=0
    )
    with pytest.raises(OutputError, match="it is not JSON"):
        _ = (await agent.run("go")).output


async def test_arguments_that_a_driver_made_of_other_objects_are_read_as_json() -> None:
    async def respond(request: ModelRequest) -> AsyncIterator[ModelResponse]:
        yield ModelResponse("", (ToolCall("c", ANSWER, {"name": "x", "price": float("nan")}),))

    state = await Agent(RespondingModel(respond), output_type=Item, output_retries=0, clock=FakeClock()).run(
        "go"
    )
    with pytest.raises(OutputError, match="price does not fit"):
        _ = state.output


async def test_the_missing_tag_of_an_alternative_is_named_to_the_model_alone() -> None:
    class Round(msgspec.Struct, tag=True):
        radius: int

    class Square(msgspec.Struct, tag=True):
        side: int

    model = ScriptedModel(['{"radius": 1}'], output_mode="prompt")
    state = await Agent(model, output_type=Round | Square, output_retries=0).run("go")
    failure = state.steps[-1].failures[0]
    assert failure.correction is not None
    assert "$.value.type: is missing" in failure.correction.for_model
    assert failure.message == "the answer does not fit the output type: value does not fit"


async def test_data_that_a_validator_returns_becomes_a_value_of_the_type() -> None:
    def rename(item: Item) -> Any:
        return {"name": item.name.upper(), "price": item.price}

    model = ScriptedModel([call(ANSWER, {"name": "pen", "price": 1.5})])
    agent = Agent(model, output_type=Item, output_validators=rename)
    state = await agent.run("go")
    assert state.output == agent.output(state) == Item("PEN", 1.5)


async def test_reported_usage_counts_if_a_run_is_stopped_during_a_validator() -> None:
    async def stop_and_wait(item: Item) -> Item:
        agent.request_stop("enough")
        await asyncio.Event().wait()
        return item

    reply = call(ANSWER, {"name": "pen", "price": 1.5}, usage=7)
    agent = Agent(ScriptedModel([reply]), output_type=Item, output_validators=stop_and_wait)
    state = await agent.run("go")
    assert state.stop_reason is StopReason.USER_REQUESTED
    assert state.usage.total == 7


async def test_an_output_beside_calls_is_not_shown_as_language() -> None:
    output = json.dumps({"name": PRIVATE, "price": 1.5})
    beside = call("echo", {"value": "a"}, f"Let me see. {output}")
    model = ScriptedModel([beside, output], output_mode="native", by_word=True)
    agent = Agent(model, [echo], output_type=Item)
    events = capture_events(agent)
    state = await agent.run("go")
    assert state.messages[1].content == f"Let me see. {output}"
    assert state.messages[1].shown == "Let me see. "
    assert canonical_messages(state)[1]["content"] == "Let me see. "
    first = [e.chunk for e in events if isinstance(e, StreamChunkReceived) and e.step_number == 1]
    assert "".join(first) == "Let me see. "
