"""An agent with an `output_type` ends with a value of that type, or says why it did not."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
from collections.abc import AsyncIterator, Callable
from datetime import date
from typing import Any, Literal

import pytest

from tests.loop.outputs import (
    ANSWER,
    INVOICE,
    MODES,
    VALUE,
    WRONG,
    Circle,
    Invoice,
    Item,
    Missing,
    Person,
    Point,
    Square,
    agent_of,
    each_mode,
    reply,
)
from tests.support import RespondingModel, echo, requests_of, scripted
from whyloop import (
    Agent,
    AgentState,
    AgentStatus,
    ContinuationDecision,
    ContinuationEvaluation,
    Hook,
    ModelRequest,
    ModelResponse,
    OutputMode,
    Session,
    StopReason,
    ToolCall,
    ToolContext,
    tool,
)
from whyloop.errors import ConfigurationError, OutputError
from whyloop.stores import MemoryStore
from whyloop.testing import FakeClock, call, calls, text
from whyloop.values.step import StepType

# The answer


@each_mode
async def test_the_output_is_a_value_of_the_type(mode: str) -> None:
    agent = agent_of(mode, reply(mode, INVOICE))
    state = await agent.run("Read it.")
    assert state.output == VALUE
    assert state.status is AgentStatus.COMPLETED
    (step,) = state.steps
    assert step.type is StepType.FINAL
    assert step.tool_calls == ()
    assert step.source is not None
    assert step.source.output == mode
    assert json.loads(state.last_response) == INVOICE


@each_mode
async def test_a_loaded_state_gives_the_output_through_its_agent(mode: str) -> None:
    agent = agent_of(mode, reply(mode, INVOICE))
    state = await agent.run("Read it.")
    loaded = AgentState.from_dict(json.loads(json.dumps(state.to_dict())))
    assert loaded == state
    with pytest.raises(OutputError, match=r"use agent\.output\(state\)"):
        _ = loaded.output
    assert agent.output(loaded) == VALUE
    assert agent.output(state) == VALUE


async def test_a_session_gives_the_output_after_it_was_opened_again() -> None:
    store = MemoryStore()
    agent = agent_of("tool", reply("tool", INVOICE))
    session = await Session.open(store, agent)
    assert (await session.send("Read it.")).output == VALUE
    again = await Session.open(store, agent, session.agent_id)
    assert agent.output(again.state) == VALUE
    with pytest.raises(OutputError, match="loaded"):
        _ = again.state.output


@each_mode
async def test_the_journal_folds_to_the_same_state_without_the_type(mode: str) -> None:
    store = MemoryStore()
    agent = agent_of(mode, reply(mode, WRONG), reply(mode, WRONG))
    session = await Session.open(store, agent)
    state = await session.send("Read it.")
    read = (await Session.open(store, scripted("x"), session.agent_id)).state
    assert read == state
    for step in read.steps:
        assert step.outcome is not None
    assert agent.criteria.evaluate(read) == read.last_continuation_outcome
    correction = await agent_of(mode, reply(mode, WRONG), max_steps=1).run("go")
    assert correction.stop_reason is StopReason.STEPS_LIMIT_REACHED


KINDS: list[tuple[Any, Any, Any]] = [
    (Point, {"x": 1, "y": 2}, {"x": 1, "y": 2}),
    (Circle | Square, {"value": {"type": "Square", "side": 2}}, Square(2)),
    (Person, {"name": "Ada", "age": 36}, Person(name="Ada", age=36)),
    (Person | None, {"value": None}, None),
    (Invoice | Missing, {"value": {"reason": "no page"}}, Missing("no page")),
    (Person | Missing, {"value": {"name": "Ada", "age": 1}}, Person(name="Ada", age=1)),
    (list[Item], {"value": [{"name": "a", "price": 1}]}, [Item("a", 1.0)]),
    (dict[str, int], {"a": 1}, {"a": 1}),
    (int, {"value": 7}, 7),
    (bool, {"value": False}, False),
    (date, {"value": "2026-01-16"}, date(2026, 1, 16)),
    (Literal["b", "a"], {"value": "a"}, "a"),
    (str | int, {"value": "x"}, "x"),
]


@each_mode
@pytest.mark.parametrize(("kind", "answer", "value"), KINDS, ids=[str(kind) for kind, _, _ in KINDS])
async def test_every_kind_of_type_can_be_an_output(mode: str, kind: Any, answer: Any, value: Any) -> None:
    agent = agent_of(mode, reply(mode, answer), output_type=kind)
    state = await agent.run("go")
    assert state.output == value
    assert type(state.output) is type(value)
    loaded = AgentState.from_dict(state.to_dict())
    assert agent.output(loaded) == value


async def test_a_text_is_an_output_as_it_is() -> None:
    agent = agent_of("tool", "Hello {you}", output_type=str, output_validators=str.upper)
    state = await agent.run("go")
    assert state.output == state.last_response == "HELLO {YOU}"
    assert state.steps[0].source is not None
    assert state.steps[0].source.output is OutputMode.TEXT
    assert requests_of(agent)[0].tools == ()
    assert agent.output(AgentState.from_dict(state.to_dict())) == "HELLO {YOU}"


async def test_without_an_output_type_the_output_is_the_text() -> None:
    agent = scripted("Hello")
    state = await agent.run("go")
    assert state.output == agent.output(state) == "Hello"
    assert state.steps[0].output is None
    assert state.steps[0].source is None


@pytest.mark.parametrize(
    "written",
    [
        json.dumps(INVOICE),
        f"Here it is:\n```json\n{json.dumps(INVOICE, indent=2)}\n```",
        f"```\n{json.dumps(INVOICE)}\n```",
        f"See [1]. The invoice is {json.dumps(INVOICE)}. Anything else?",
        json.dumps({"name": ANSWER, "arguments": INVOICE}),
    ],
)
@each_mode
async def test_json_in_a_text_is_found(mode: str, written: str) -> None:
    assert (await agent_of(mode, written).run("go")).output == VALUE


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ("I could not read it.", "it is not JSON"),
        ("", "it is empty"),
        (f"{json.dumps(INVOICE)} or {json.dumps(INVOICE)}", "it has several documents"),
        ("[1, 2]", "it does not fit"),
        ('{"value": 1', "it is not JSON"),
    ],
)
@each_mode
async def test_a_text_without_one_fitting_document_is_not_an_output(
    mode: str, written: str, problem: str
) -> None:
    agent = agent_of(mode, written, output_retries=0)
    state = await agent.run("go")
    assert state.status is AgentStatus.FAILED
    assert problem in state.steps[0].failures[0].message
    with pytest.raises(OutputError, match="there is no output: the run is failed"):
        _ = state.output


# How the model is asked


async def test_each_mode_asks_in_its_own_way() -> None:
    asked = {}
    for mode in MODES:
        agent = agent_of(mode, reply(mode, INVOICE), tools=[echo], instructions="Be exact.")
        await agent.run("go")
        (asked[mode],) = requests_of(agent)
    native, by_tool, prompt = (asked[mode] for mode in MODES)
    assert native.output is not None
    assert native.output.name == "Invoice"
    assert native.output.schema["properties"].keys() == {"number", "day", "items"}
    assert [spec.name for spec in native.tools] == [spec.name for spec in prompt.tools] == ["echo"]
    assert [spec.name for spec in by_tool.tools] == ["echo", ANSWER]
    assert by_tool.tools[1].parameters == native.output.schema
    assert "An invoice as it was sent." in by_tool.tools[1].description
    assert by_tool.output is prompt.output is None
    assert native.instructions == by_tool.instructions == "Be exact."
    assert prompt.instructions is not None
    assert prompt.instructions.startswith("Be exact.\n\nGive your final answer as one JSON document")


async def test_the_mode_may_depend_on_whether_there_are_tools() -> None:
    class Model:
        def __init__(self) -> None:
            self.requests: list[ModelRequest] = []

        def output_mode(self, *, with_tools: bool, schema: object) -> str:
            return "tool" if with_tools else "native"

        async def respond(self, request: ModelRequest) -> AsyncIterator[ModelResponse]:
            self.requests.append(request)
            yield ModelResponse(json.dumps(INVOICE))

    model = Model()
    await Agent(model, output_type=Invoice, clock=FakeClock()).run("go")
    await Agent(model, [echo], output_type=Invoice, clock=FakeClock()).run("go")
    assert [request.output is not None for request in model.requests] == [True, False]


async def test_a_model_that_declares_nothing_is_given_a_tool() -> None:
    seen = []

    async def respond(request: Any) -> Any:
        seen.append([spec.name for spec in request.tools])
        yield ModelResponse("", (ToolCall("c", ANSWER, INVOICE),))

    state = await Agent(RespondingModel(respond), output_type=Invoice, clock=FakeClock()).run("go")
    assert state.output == VALUE
    assert seen == [[ANSWER]]


async def test_the_request_that_asks_for_an_output_is_recorded() -> None:
    for mode, part in (("tool", ANSWER), ("prompt", "JSON schema"), ("native", "An invoice")):
        state = await agent_of(mode, reply(mode, INVOICE)).run("go")
        assert any(part in each.text for each in state.request_parts)


# Output and other calls


class Seeing(Hook):
    def __init__(self) -> None:
        self.calls: list[str] = []

    async def before_tool(self, call: ToolCall, context: ToolContext) -> ToolCall:
        self.calls.append(call.name)
        return call


async def test_an_output_beside_other_calls_is_discarded_and_the_model_is_informed() -> None:
    hook = Seeing()
    agent = agent_of(
        "tool",
        calls(call(ANSWER, INVOICE), call("echo", {"value": "hi"})),
        call(ANSWER, {**INVOICE, "number": "B-2"}),
        tools=[echo],
        hooks=hook,
    )
    state = await agent.run("go")
    assert state.output.number == "B-2"
    first, last = state.steps
    assert first.type is StepType.TOOL_EXECUTION
    assert first.output is None
    assert [(run.name, run.success) for run in first.tool_calls] == [(ANSWER, False), ("echo", True)]
    assert first.failures == ()
    assert last.tool_calls == ()
    results = [message.text for message in requests_of(agent)[1].messages if message.is_tool]
    assert results == [
        "Not used: other calls came with it. Call final_answer alone, after their results.",
        "hi",
    ]
    assert hook.calls == ["echo"]


async def test_an_output_needs_no_approval_while_other_calls_wait() -> None:
    guarded = tool(needs_approval=True, name="pay")(paying_tool())
    agent = agent_of(
        "tool", calls(call("pay", {}), call(ANSWER, INVOICE)), reply("tool", INVOICE), tools=guarded
    )
    paused = await agent.run("go")
    assert paused.status is AgentStatus.PAUSED
    assert [pending.tool for pending in paused.pending_calls] == ["pay"]
    with pytest.raises(OutputError, match="the run is paused by ApprovalRequired: pay waits for approval"):
        _ = paused.output
    state = await agent.resume(paused.approve(paused.pending_calls[0].id))
    assert state.output == VALUE


def paying_tool() -> Callable[[], str]:
    def pay() -> str:
        return "paid"

    return pay


async def test_language_beside_the_call_stays_in_the_message() -> None:
    state = await agent_of("tool", call(ANSWER, INVOICE, "Here it is.")).run("go")
    assert state.output == VALUE
    assert state.last_response.startswith("Here it is.\n\n{")
    assert state.messages[-1].tool_calls == ()


def test_a_tool_cannot_have_the_name_of_the_output_tool() -> None:
    with pytest.raises(ConfigurationError, match="final_answer"):
        agent_of("tool", tools=[tool(name=ANSWER)(paying_tool())])


# What beats an output


@pytest.mark.parametrize("reason", ["length", "content_filter"])
@each_mode
async def test_a_truncated_answer_is_not_an_output(mode: str, reason: str) -> None:
    if mode == "tool":
        cut = call(ANSWER, INVOICE, finish_reason=reason)
    else:
        cut = text(json.dumps(INVOICE), finish_reason=reason)
    state = await agent_of(mode, cut).run("go")
    assert state.stop_reason is StopReason.FINISH_REASON_RECEIVED
    assert state.steps[0].output is None
    assert state.steps[0].tool_calls == ()
    assert "rope" not in state.messages[-1].text
    with pytest.raises(OutputError, match=r"the run is stopped \(finish_reason\) by FinishReasonCheck"):
        _ = state.output


async def test_a_terminal_finish_reason_beats_a_fitting_answer() -> None:
    state = await agent_of("native", json.dumps(INVOICE), finish_reasons=["stop"]).run("go")
    assert state.stop_reason is StopReason.FINISH_REASON_RECEIVED
    with pytest.raises(OutputError, match="finish_reason"):
        _ = state.output


async def test_a_guard_that_forbids_the_answer_leaves_no_output() -> None:
    class Guard:
        def explain(self, state: AgentState) -> ContinuationEvaluation:
            return ContinuationEvaluation("Guard", ContinuationDecision.FORBID_CONTINUATION, "not this one")

    agent = agent_of("tool", reply("tool", INVOICE), criteria=Guard())
    state = await agent.run("go")
    with pytest.raises(OutputError, match=r"stopped \(guard\) by Guard: not this one"):
        _ = state.output
    with pytest.raises(OutputError, match="by Guard"):
        agent.output(state)


async def test_an_answer_on_the_last_allowed_step_is_an_output() -> None:
    assert (await agent_of("tool", reply("tool", INVOICE), max_steps=1).run("go")).output == VALUE


async def test_before_the_end_there_is_no_output() -> None:
    agent = agent_of("tool", reply("tool", INVOICE))
    with pytest.raises(OutputError, match="the run has not ended"):
        _ = agent.start("go").output


async def test_the_next_query_of_a_session_has_its_own_output() -> None:
    agent = agent_of("tool", reply("tool", INVOICE), reply("tool", {**INVOICE, "number": "B"}))
    first = await agent.run("go")
    second = await agent.run("and this", state=first)
    assert (first.output.number, second.output.number) == ("A-1", "B")
    with pytest.raises(OutputError):
        _ = agent.start("third", state=second).output


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
async def test_a_copy_of_a_state_has_its_output(copied: Callable[[Any], Any]) -> None:
    state = await agent_of("tool", reply("tool", INVOICE)).run("go")
    assert copied(state).output == VALUE


async def test_a_pickled_state_has_its_output_as_json_for_any_class() -> None:
    @dataclasses.dataclass
    class Local:
        name: str

    agent = agent_of("tool", call(ANSWER, {"name": "a"}), output_type=Local)
    state = pickle.loads(pickle.dumps(await agent.run("go")))
    with pytest.raises(OutputError, match=r"use agent\.output\(state\)"):
        state.output
    assert agent.output(state) == Local("a")
