"""A run as AG-UI events, complete and in the order of the protocol."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import pytest
from ag_ui.core import (
    PROTOCOL_VERSION,
    BaseEvent,
    CustomEvent,
    Event,
    ReasoningEndEvent,
    ReasoningMessageContentEvent,
    ReasoningMessageEndEvent,
    ReasoningMessageStartEvent,
    ReasoningStartEvent,
    RunErrorEvent,
    RunFinishedEvent,
    RunFinishedInterruptOutcome,
    RunStartedEvent,
    StepFinishedEvent,
    StepStartedEvent,
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
    ToolCallArgsEvent,
    ToolCallEndEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
)
from ag_ui.encoder import EventEncoder
from hypothesis import given
from pydantic import TypeAdapter

from tests.support import START, RespondingModel, examples, scripted
from tests.wire.random_runs import (
    HOSTILE,
    ODD_ARGUMENTS,
    Run,
    Said,
    Scenario,
    Scene,
    hand_made,
    own_run,
    run_end,
    scenarios,
    texts_of,
    two_payments_asked,
)
from tests.wire.test_envelope_golden import fixed_events
from whyloop import Agent, ErrorPolicy, FinishReason, ModelResponse, ToolCall, Usage, tool
from whyloop.errors import ConfigurationError, ToolExecutionError
from whyloop.events import (
    AgentEvent,
    AgentStatusChanged,
    ApprovalRequested,
    ContinuationEvaluated,
    StreamChunkReceived,
    ToolCallCompleted,
    ToolCallStarted,
)
from whyloop.testing import FakeClock, call, calls, text
from whyloop.values.text import clean
from whyloop.wire.ag_ui import CONTINUATION, DECISION, AgUiStream

ANY_EVENT: TypeAdapter[Any] = TypeAdapter(Event)


def parts_of(run: Iterable[AgentEvent], stream: AgUiStream | None = None) -> list[BaseEvent]:
    stream = stream or AgUiStream(protocol_version=PROTOCOL_VERSION)
    return [part for event in run for part in stream.parts(event)]


def check_order(parts: list[BaseEvent]) -> None:
    """The rules of the protocol for one run: what its own client refuses fails here."""
    steps: set[str] = set()
    texts: set[str] = set()
    calls: set[str] = set()
    seen: set[str] = set()
    assert isinstance(parts[0], RunStartedEvent)
    assert isinstance(parts[-1], RunFinishedEvent | RunErrorEvent)
    for part in parts[1:-1]:
        match part:
            case StepStartedEvent():
                assert not steps
                steps.add(part.step_name)
            case StepFinishedEvent():
                steps.remove(part.step_name)
            case TextMessageStartEvent():
                assert part.message_id not in texts | seen
                texts.add(part.message_id)
                seen.add(part.message_id)
            case TextMessageContentEvent():
                assert part.message_id in texts
            case TextMessageEndEvent():
                texts.remove(part.message_id)
            case ToolCallStartEvent():
                assert f"call {part.tool_call_id}" not in seen
                calls.add(part.tool_call_id)
                seen.add(f"call {part.tool_call_id}")
            case ToolCallArgsEvent():
                assert part.tool_call_id in calls
            case ToolCallEndEvent():
                calls.remove(part.tool_call_id)
            case ToolCallResultEvent():
                assert part.tool_call_id not in calls
                assert f"call {part.tool_call_id}" in seen
                assert part.message_id not in seen
                seen.add(part.message_id)
            case ReasoningStartEvent() | ReasoningMessageStartEvent():
                assert part.message_id not in texts or part.type == "REASONING_MESSAGE_START"
                texts.add(part.message_id)
            case ReasoningMessageContentEvent() | ReasoningMessageEndEvent():
                assert part.message_id in texts
            case ReasoningEndEvent():
                texts.remove(part.message_id)
            case CustomEvent():
                assert part.name in (CONTINUATION, DECISION)
            case _:
                pytest.fail(f"{part.type} in the middle of a run")
    assert not steps
    assert not texts
    assert not calls


def check_encoding(parts: list[BaseEvent]) -> None:
    """Each is one event of a stream, and what is read from it is what was written."""
    for part in parts:
        line = EventEncoder().encode(part)
        line.encode()
        assert line.startswith("data: ")
        assert line.endswith("\n\n")
        assert not {"\n", "\r"} & set(line[:-2])
        assert ANY_EVENT.validate_python(json.loads(line.removeprefix("data: "))) == part


def check_contents(run: Run, parts: list[BaseEvent]) -> None:
    """Check that everything in a run is in its parts, with the same text."""
    texts: dict[str, str] = {}
    for part in parts:
        if isinstance(part, TextMessageContentEvent):
            texts[part.message_id] = texts.get(part.message_id, "") + part.delta
    assert list(texts.values()) == texts_of(run)
    about = [e for e in run if isinstance(e, ToolCallStarted | ApprovalRequested | ToolCallCompleted)]
    calls = list({(event.step_number, event.tool_call_id): clean(event.tool) for event in about}.values())
    announced = [part.tool_call_name for part in parts if isinstance(part, ToolCallStartEvent)]
    assert announced[: len(calls)] == calls
    results = [clean(event.result) for event in run if isinstance(event, ToolCallCompleted)]
    assert [part.content for part in parts if isinstance(part, ToolCallResultEvent)] == results
    verdicts = [event.outcome for event in run if isinstance(event, ContinuationEvaluated)]
    customs = [part.value for part in parts if isinstance(part, CustomEvent) and part.name == CONTINUATION]
    assert [(value["resolved_by"], value["stop_reason"]) for value in customs] == [
        (outcome.resolved_by, outcome.stop_reason) for outcome in verdicts
    ]
    check_end(run_end(run), parts[-1], verdicts[-1].resolved_by)


def check_end(ended: AgentStatusChanged, end: BaseEvent, resolved_by: str) -> None:
    if isinstance(end, RunErrorEvent):
        assert ended.status == "failed"
        assert (end.message, end.code) == (clean(ended.error_message or ""), ended.stop_reason)
        return
    assert isinstance(end, RunFinishedEvent)
    assert end.result is not None
    assert end.outcome is not None
    assert end.result["status"] == ended.status
    assert (end.result["stop_reason"], end.result["resolved_by"]) == (ended.stop_reason, resolved_by)
    kinds = {"completed": "success", "stopped": "cancelled", "paused": "interrupt"}
    assert end.outcome.type == kinds[ended.status]


@examples(500)
@given(scenarios)
def test_the_events_of_any_run_are_complete_and_in_order(scenario: Scenario) -> None:
    for run in scenario.runs():
        parts = parts_of(run)
        check_order(parts)
        check_encoding(parts)
        check_contents(own_run(run), parts)


@examples(100)
@given(scenarios)
def test_a_run_that_breaks_off_anywhere_has_an_end(scenario: Scenario) -> None:
    for run in scenario.runs():
        for length in range(1, len(run)):
            stream = AgUiStream()
            parts = parts_of(run[:length], stream) + stream.break_off("The server went away \ud800")
            check_order(parts)
            assert stream.ended
            assert stream.break_off("Again") == []


@examples(100)
@given(scenarios)
def test_a_run_that_is_joined_late_is_in_order(scenario: Scenario) -> None:
    for run in scenario.runs():
        for first in range(1, len(run)):
            stream = AgUiStream()
            check_order(parts_of(run[first:], stream) + stream.break_off("Nothing more was heard"))


async def test_the_fixed_run_has_the_expected_parts() -> None:
    events = await fixed_events()
    executions = dict.fromkeys(event.execution_id for event in events)
    first, second, third, *_ = (
        parts_of(event for event in events if event.execution_id == execution) for execution in executions
    )
    assert [part.type.value for part in first] == [
        "RUN_STARTED",
        "STEP_STARTED",
        *("TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END"),
        *("TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END") * 2,
        *("TOOL_CALL_RESULT", "TOOL_CALL_RESULT"),
        "CUSTOM",
        "STEP_FINISHED",
        "STEP_STARTED",
        *("TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END"),
        "CUSTOM",
        "STEP_FINISHED",
        "RUN_FINISHED",
    ]
    assert isinstance(first[0], RunStartedEvent)
    assert (first[0].thread_id, first[0].run_id) == (events[0].agent_id, events[0].execution_id)
    assert first[0].protocol_version == PROTOCOL_VERSION
    failed = [part for part in first if isinstance(part, ToolCallResultEvent)][1]
    assert failed.metadata == {
        "whyloop": {"success": False, "error": "an empty query finds nothing", "duration_ms": 1250.5}
    }
    assert isinstance(second[-1], RunFinishedEvent)
    assert second[-1].result is not None
    assert (second[-1].result["stop_reason"], second[-1].result["resolved_by"]) == (
        "steps_limit",
        "StepsLimit",
    )
    assert isinstance(third[-1], RunErrorEvent)
    assert third[-1].code == "error"
    assert "the provider fell over" in third[-1].message


async def test_the_end_of_a_run_has_its_tokens_and_its_cost() -> None:
    events: Run = []
    usage = Usage(5, 2, cache_writes=4, cost=Decimal("0.012"))
    await scripted(text("Done.", usage=usage), event_handler=events.append).run("Go")
    end = parts_of(events)[-1]
    assert isinstance(end, RunFinishedEvent)
    assert end.usage is not None
    assert (end.usage[0].total_tokens, end.usage[0].cache_write_input_tokens) == (7, 4)
    assert end.result is not None
    assert end.result["usage"] == {"input": 5, "output": 2, "total": 7, "cost": "0.012"}


async def test_ids_are_the_same_in_every_stream_of_a_run() -> None:
    events = await fixed_events()
    assert parts_of(events) == parts_of(events)
    texts = [part.message_id for part in parts_of(events) if isinstance(part, TextMessageStartEvent)]
    assert texts == [f"{events[0].execution_id}:1", f"{events[0].execution_id}:2"]


async def test_the_ids_of_the_client_can_be_given() -> None:
    events = await fixed_events()
    parts = parts_of(events, AgUiStream(thread_id="thread-1", run_id="run-1"))
    for part in (parts[0], parts[-1]):
        assert isinstance(part, RunStartedEvent | RunFinishedEvent)
        assert (part.thread_id, part.run_id) == ("thread-1", "run-1")


async def test_a_stream_has_only_one_execution() -> None:
    events = await fixed_events()
    stream = AgUiStream()
    check_order(parts_of(events, stream))
    assert stream.ended
    assert parts_of(events, stream) == []
    assert parts_of(events, AgUiStream(agent_id="somebody else")) == []


async def test_an_answer_that_was_not_streamed_is_sent_at_the_end() -> None:
    async def respond(request: object) -> Any:
        yield ModelResponse("All at once.")

    events: Run = []
    await Agent(RespondingModel(respond), clock=FakeClock(), event_handler=events.append).run("Go")
    parts = parts_of(events)
    check_order(parts)
    assert [part.delta for part in parts if isinstance(part, TextMessageContentEvent)] == ["All at once."]


async def test_a_call_that_waits_is_an_interrupt_and_continues_in_the_next_run() -> None:
    @tool(needs_approval=True)
    async def pay(amount: int) -> str:
        return f"paid {amount}"

    events: Run = []
    agent = scripted(
        call("pay", {"amount": 5}, id="pay_1"), "Done.", tools=[pay], event_handler=events.append
    )
    state = await agent.run("Pay")
    first = parts_of(events)
    check_order(first)
    assert isinstance(first[-1], RunFinishedEvent)
    outcome = first[-1].outcome
    assert isinstance(outcome, RunFinishedInterruptOutcome)
    (interrupt,) = outcome.interrupts
    question = state.pending_calls[0]
    assert (interrupt.id, interrupt.tool_call_id, interrupt.reason) == (question.id, "pay_1", "tool_call")
    assert interrupt.message == "pay waits for approval"
    assert [part.delta for part in first if isinstance(part, ToolCallArgsEvent)] == ['{"amount":5}']

    events.clear()
    await agent.resume(state.approve(interrupt.id))
    second = parts_of(events)
    check_order(second)
    assert isinstance(second[0], RunStartedEvent)
    assert isinstance(first[0], RunStartedEvent)
    assert second[0].run_id != first[0].run_id
    # Clients append arguments, and they have these.
    assert not [part for part in second if isinstance(part, ToolCallArgsEvent)]
    assert [part.content for part in second if isinstance(part, ToolCallResultEvent)] == ["paid 5"]
    parents = [part.parent_message_id for part in first + second if isinstance(part, ToolCallStartEvent)]
    assert parents == [f"{state.execution.id}:1"] * 2


async def test_an_outcome_is_sent_only_to_a_client_that_declares_its_protocol() -> None:
    @tool(needs_approval=True)
    async def pay() -> str:
        return "paid"

    async def outcomes(*script: Any, **options: Any) -> list[str | None]:
        events: Run = []
        await scripted(*script, tools=[pay], event_handler=events.append, **options).run("Go")
        ends = [parts_of(events, AgUiStream(protocol_version=version))[-1] for version in ("1.0", None)]
        found = [end.outcome for end in ends if isinstance(end, RunFinishedEvent)]
        return [None if outcome is None else outcome.type for outcome in found]

    assert await outcomes("Done.") == ["success", None]
    limited = await outcomes(call("serach"), error_policy=ErrorPolicy.retry_all(), max_steps=1)
    assert limited == ["cancelled", None]
    # Older clients know this one, and without it they could not answer.
    assert await outcomes(call("pay", id="pay_1")) == ["interrupt", "interrupt"]


async def test_a_resumed_run_begins_with_the_decisions_since_the_pause() -> None:
    agent, state, events = await two_payments_asked()
    events.clear()
    first, second = state.pending_calls
    decided = state.deny(first.id, "too much", by="Ann").approve(second.id, by="Ben")
    await agent.resume(decided)
    parts = parts_of(events, AgUiStream(resumed=decided))
    check_order(parts)
    decisions = [part.value for part in parts if isinstance(part, CustomEvent) and part.name == DECISION]
    assert [(each["tool_call_id"], each["verdict"], each["by"], each["reason"]) for each in decisions] == [
        ("pay_1", "denied", "Ann", "too much"),
        ("pay_2", "approved", "Ben", None),
    ]
    results = [part for part in parts if isinstance(part, ToolCallResultEvent)]
    assert [part.content for part in results] == ["denied by Ann: too much", "paid 7"]
    assert [(part.metadata or {})["whyloop"].get("denied") for part in results] == [True, None]
    assert [type(part) for part in parts[:2]] == [RunStartedEvent, CustomEvent]
    assert not [part for part in parts if isinstance(part, ToolCallArgsEvent)]


async def test_credentials_in_errors_results_and_arguments_are_removed() -> None:
    @tool
    async def look(api_key: str) -> str:
        return "password=open-sesame"

    @tool
    async def fail() -> str:
        raise ToolExecutionError("Authorization: Bearer abcdefghijklmnop1234")

    events: Run = []
    asked = calls(call("look", {"api_key": "sk-abcdefghijklmnop1234"}), call("fail"))
    agent = scripted(asked, tools=[look, fail], event_handler=events.append)
    await agent.run("Go")
    parts = parts_of(events)
    sent = "".join(EventEncoder().encode(part) for part in parts)
    assert [secret for secret in ("open-sesame", "sk-abc", "abcdefghijklmnop1234") if secret in sent] == []
    assert isinstance(parts[-1], RunErrorEvent)
    assert "[removed]" in parts[-1].message


async def test_calls_that_a_provider_numbers_anew_in_each_answer_have_different_ids() -> None:
    one = Said([], [ToolCall("call_0", "work", {"value": "a"})], True, False, FinishReason.TOOL_CALLS)
    two = Said([], [ToolCall("call_0", "work", {"value": "b"})], True, False, FinishReason.TOOL_CALLS)
    (run,) = (await Scenario([one, two], ErrorPolicy(), 20, []).scene()).runs
    parts = parts_of(run)
    check_order(parts)
    results = [part for part in parts if isinstance(part, ToolCallResultEvent)]
    assert [(part.tool_call_id, part.content) for part in results] == [("call_0", "a"), ("call_0:2", "b")]


def chunk(text: str, kind: Any, index: int) -> StreamChunkReceived:
    common: dict[str, Any] = {"agent_id": "a", "parent_agent_id": None, "execution_id": "e", "step_number": 1}
    return StreamChunkReceived(
        **common, time=START, chunk=text, chunk_index=index, is_complete=not text, kind=kind
    )


def test_reasoning_is_never_part_of_the_text() -> None:
    stream = AgUiStream()
    chunks = [chunk("Hm", "reasoning", 0), chunk("m.", "reasoning", 1), chunk("Four.", "text", 2)]
    parts = parts_of([*chunks, chunk("", "text", 3)], stream) + stream.break_off("x")
    check_order(parts)
    check_encoding(parts)
    texts = {type(part): "" for part in parts}
    for part in parts:
        if isinstance(part, ReasoningMessageContentEvent | TextMessageContentEvent):
            texts[type(part)] += part.delta
    assert texts[ReasoningMessageContentEvent] == "Hmm."
    assert texts[TextMessageContentEvent] == "Four."


async def test_a_call_that_a_hook_changed_says_so() -> None:
    events = await fixed_events()
    paying = [event for event in events if event.execution_id == events[-1].execution_id]
    first = parts_of(paying)
    calls = [part for part in first if isinstance(part, ToolCallStartEvent)]
    assert [part.metadata for part in calls] == [{"whyloop": {"changed_by": ["Cap"]}}, None]
    assert [part.delta for part in first if isinstance(part, ToolCallArgsEvent)] == [
        '{"amount":7,"password":"[removed]"}',
        '{"amount":5,"password":"[removed]"}',
    ]


async def test_a_query_that_supersedes_a_paused_execution_begins_its_own_stream() -> None:
    guarded = Said([], [ToolCall("c", "guarded", {})], True, False, FinishReason.TOOL_CALLS)
    scene = await Scenario([guarded], ErrorPolicy(), 20, [("query", 1)]).scene()
    _, second = scene.runs
    assert second[0].execution_id != second[-1].execution_id
    parts = parts_of(second)
    check_order(parts)
    assert isinstance(parts[0], RunStartedEvent)
    assert parts[0].run_id == second[-1].execution_id
    check_contents(own_run(second), parts)


async def test_a_question_about_the_run_itself_is_an_interrupt_without_a_call() -> None:
    scene = Scene([], ErrorPolicy(), 20)
    scene.journal.crash(2)
    await scene.happens("query", 0)
    for _ in range(4):
        scene.journal.crash(1)
        await scene.happens("recover", 0)
    await scene.happens("resume", 0)
    parts = parts_of(scene.runs[-1])
    check_order(parts)
    assert isinstance(parts[-1], RunFinishedEvent)
    outcome = parts[-1].outcome
    assert isinstance(outcome, RunFinishedInterruptOutcome)
    (interrupt,) = outcome.interrupts
    assert (interrupt.id, interrupt.tool_call_id) == (scene.state.pending_calls[0].id, None)
    assert interrupt.reason == "run"


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
@pytest.mark.parametrize("arguments", ODD_ARGUMENTS, ids=range(len(ODD_ARGUMENTS)))
def test_hostile_text_is_sent_as_text(text: str, arguments: Any) -> None:
    stream = AgUiStream()
    parts = parts_of(hand_made(text, arguments), stream) + stream.break_off(text)
    check_order(parts)
    check_encoding(parts)
    assert [part.content for part in parts if isinstance(part, ToolCallResultEvent)] == [clean(text)]
    assert [part.delta for part in parts if isinstance(part, TextMessageContentEvent)] == [clean(text)]


def test_without_the_package_the_error_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ag_ui.core", None)
    with pytest.raises(ConfigurationError, match=r'pip install "\.\[ag-ui\]"'):
        AgUiStream()
