"""A run as a UI message stream: in order, in full, and in lines that nothing can break out of."""

from __future__ import annotations

import json
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from msgspec.structs import replace

from tests.support import START, examples, scripted
from tests.wire.random_runs import (
    HOSTILE,
    ODD_ARGUMENTS,
    Run,
    Scenario,
    hand_made,
    scenarios,
    two_payments_asked,
)
from tests.wire.test_envelope_golden import fixed_events
from whyloop import AgentStatus, ErrorPolicy, PendingCall, Usage, tool
from whyloop.errors import ToolExecutionError
from whyloop.events import AgentEvent, AgentStatusChanged, StreamChunkReceived
from whyloop.testing import call, calls, text
from whyloop.values.text import clean
from whyloop.wire.vercel import CONTINUATION, DECISION, DONE, HEADERS, QUESTION, VercelStream, sse

Part = dict[str, Any]


def parts_of(run: Iterable[AgentEvent], stream: VercelStream | None = None) -> list[Part]:
    stream = stream or VercelStream()
    return [part for event in run for part in stream.parts(event)]


def check_order(parts: list[Part]) -> None:
    """Check the order that the SDK relies on: a part begins before it continues, and ends."""
    texts: set[str] = set()
    calls: set[str] = set()
    in_step = False
    assert parts[0]["type"] == "start"
    assert parts[-1]["type"] in ("finish", "abort")
    for part in parts[1:-1]:
        match part["type"]:
            case "start-step":
                assert not in_step
                in_step = True
            case "finish-step":
                assert not texts
                in_step = False
            case "text-start":
                assert part["id"] not in texts
                texts.add(part["id"])
            case "text-delta":
                assert part["id"] in texts
            case "text-end":
                texts.remove(part["id"])
            case "tool-input-start":
                assert part["toolCallId"] not in calls
            case "tool-input-available":
                calls.add(part["toolCallId"])
            case "tool-output-available" | "tool-output-error" | "tool-approval-request":
                assert part["toolCallId"] in calls
            case other:
                assert other in (CONTINUATION, DECISION, "tool-output-denied", "message-metadata", "error")
    assert not texts
    assert not in_step


def check_lines(parts: list[Part]) -> None:
    for part in parts:
        line = sse(part)
        line.encode()
        assert line.startswith("data: {")
        assert line.endswith("}\n\n")
        assert not {"\n", "\r"} & set(line[:-2])
        assert json.loads(line.removeprefix("data: ")) == part


def ending(parts: list[Part]) -> dict[str, Any]:
    (part,) = [part for part in parts if part["type"] == "message-metadata"]
    about: dict[str, Any] = part["messageMetadata"]["whyloop"]
    return about


@examples(300)
@given(scenarios)
def test_the_parts_of_any_run_are_in_order(scenario: Scenario) -> None:
    for run in scenario.runs():
        parts = parts_of(run)
        check_order(parts)
        check_lines(parts)


@examples(60)
@given(scenarios)
def test_a_run_that_breaks_off_or_is_joined_late_is_in_order(scenario: Scenario) -> None:
    for run in scenario.runs():
        for cut in range(1, len(run)):
            for piece in (run[:cut], run[cut:]):
                stream = VercelStream()
                check_order(parts_of(piece, stream) + stream.break_off("The server went away"))
                assert stream.ended


async def test_the_fixed_run_has_the_expected_parts() -> None:
    parts = parts_of(await fixed_events())
    assert [part["type"] for part in parts] == [
        "start",
        "start-step",
        *("text-start", "text-delta", "text-end"),
        *("tool-input-start", "tool-input-available") * 2,
        *("tool-output-available", "tool-output-error"),
        CONTINUATION,
        "finish-step",
        "start-step",
        *("text-start", "text-delta", "text-end"),
        CONTINUATION,
        "finish-step",
        "message-metadata",
        "finish",
    ]
    verdict = parts[-4]
    assert verdict["data"] == {
        "step_number": 2,
        "should_continue": False,
        "stop_reason": "completed",
        "resolved_by": "ToolCallPresenceCheck",
        "reason": "The model answered and asked for no tools",
    }
    assert ending(parts)["last_response"] == "There are “four”.\n"


async def test_the_end_of_a_run_has_its_cost() -> None:
    events: list[AgentEvent] = []
    usage = Usage(5, 2, cost=Decimal("0.012"))
    await scripted(text("Done.", usage=usage), event_handler=events.append).run("Go")
    (metadata,) = [part for part in parts_of(events) if part["type"] == "message-metadata"]
    shown = metadata["messageMetadata"]["whyloop"]
    assert shown["usage"] == {"input": 5, "output": 2, "total": 7, "cost": "0.012"}


async def test_every_end_has_a_finish_reason_of_the_protocol() -> None:
    @tool(needs_approval=True)
    async def pay() -> str:
        return "paid"

    async def ends(*script: Any, stop: bool = False, **options: Any) -> list[Part]:
        events: Run = []
        agent = scripted(*script, tools=[pay], event_handler=events.append, **options)
        agent.subscribe(lambda event: agent.request_stop("enough") if stop else None)
        await agent.run("Go")
        return parts_of(events)

    completed = await ends("Done.")
    assert completed[-1] == {"type": "finish", "finishReason": "stop"}
    cut_off = await ends(text("Do", finish_reason="length"))
    assert cut_off[-1] == {"type": "finish", "finishReason": "length"}
    limited = await ends(call("serach"), error_policy=ErrorPolicy.retry_all(), max_steps=1)
    assert limited[-1] == {"type": "finish", "finishReason": "other"}
    assert ending(limited)["stop_reason"] == "steps_limit"
    paused = await ends(call("pay", id="pay_1"))
    assert paused[-1] == {"type": "finish", "finishReason": "tool-calls"}
    (request,) = [part for part in paused if part["type"] == "tool-approval-request"]
    assert request["toolCallId"] == "pay_1"
    assert request["approvalId"] not in ("", "pay_1")  # The question has an id of its own.
    assert request["approvalDescriptor"] == {"question": "pay waits for approval"}
    failed = await ends(RuntimeError("it broke"))
    assert failed[-1] == {"type": "finish", "finishReason": "error"}
    assert failed[-2]["type"] == "error"
    assert "it broke" in failed[-2]["errorText"]
    stopped = await ends("Done.", stop=True)
    assert stopped[-1] == {"type": "abort", "reason": "enough"}
    assert ending(stopped)["stop_reason"] == "user_requested"


async def paused_and_decided() -> tuple[list[Part], list[Part]]:
    """A run that waits for two answers, and the run after a denial and an approval."""

    agent, state, events = await two_payments_asked()
    before = parts_of(events)
    events.clear()
    first, second = state.pending_calls
    decided = state.deny(first.id, "too much", by="Ann").approve(second.id)
    await agent.resume(decided)
    return before, parts_of(events, VercelStream(resumed=decided))


async def test_a_denial_is_sent_as_one_and_leaves_the_input_alone() -> None:
    _, parts = await paused_and_decided()
    check_order(parts)
    about_denied = [part for part in parts if part.get("toolCallId") == "pay_1"]
    assert about_denied == [{"type": "tool-output-denied", "toolCallId": "pay_1"}]


async def test_a_resumed_run_begins_with_the_decisions_since_the_pause() -> None:
    _, parts = await paused_and_decided()
    assert parts[0]["type"] == "start"
    decided = [part["data"] for part in parts if part["type"] == DECISION]
    assert [(each["tool_call_id"], each["verdict"], each["by"]) for each in decided] == [
        ("pay_1", "denied", "Ann"),
        ("pay_2", "approved", "an unnamed person"),
    ]
    assert parts[1]["type"] == DECISION
    assert [part["input"] for part in parts if part["type"] == "tool-input-available"] == [{"amount": 7}]


async def test_a_client_of_version_5_gets_only_parts_that_it_knows() -> None:
    @tool(needs_approval=True)
    async def pay() -> str:
        return "paid"

    events: Run = []
    agent = scripted(call("pay", id="pay_1"), "Done.", tools=[pay], event_handler=events.append)
    state = await agent.run("Pay")
    parts = parts_of(events, VercelStream(sdk_version=5))
    (question,) = [part for part in parts if part["type"] == QUESTION]
    assert question["data"] == {"question": "pay waits for approval", "toolCallId": "pay_1"}
    assert parts[-1] == {"type": "finish"}
    events.clear()
    denied = state.deny(state.pending_calls[0].id)
    await agent.resume(denied)
    parts += parts_of(events, VercelStream(sdk_version=5, resumed=denied))
    assert "denied by an unnamed person" in [part.get("errorText") for part in parts]
    types = {part["type"] for part in parts}
    assert not types & {"tool-approval-request", "tool-output-denied"}


@pytest.mark.parametrize(
    ("returned", "output"),
    [
        ({"rows": [1, 2.5, None]}, {"rows": [1, 2.5, None]}),
        ([], []),
        (1200, 1200),
        ("plain words", "plain words"),
        ('{"a": 1}', {"a": 1}),
        ('{"a": 1', '{"a": 1'),
        ({"id": 2**53}, {"id": str(2**53)}),
        ({"a": {"__proto__": 1}}, {"a": '{"__proto__":1}'}),
    ],
    ids=repr,
)
async def test_a_result_that_is_json_is_sent_as_data(returned: Any, output: Any) -> None:
    @tool
    async def look() -> Any:
        return returned

    events: Run = []
    await scripted(call("look"), "Done.", tools=[look], event_handler=events.append).run("Go")
    sent = [part["output"] for part in parts_of(events) if part["type"] == "tool-output-available"]
    assert sent == [output]


async def test_credentials_in_errors_results_and_arguments_are_removed() -> None:
    @tool
    async def look(api_key: str) -> dict[str, str]:
        return {"password": "open-sesame"}

    @tool
    async def fail() -> str:
        raise ToolExecutionError("Authorization: Bearer abcdefghijklmnop1234")

    events: Run = []
    asked = calls(call("look", {"api_key": "sk-abcdefghijklmnop1234"}), call("fail"))
    await scripted(asked, tools=[look, fail], event_handler=events.append).run("Go")
    parts = parts_of(events)
    sent = "".join(sse(part) for part in parts)
    assert [secret for secret in ("open-sesame", "sk-abc", "abcdefghijklmnop1234") if secret in sent] == []
    assert [part["output"] for part in parts if "output" in part] == [{"password": "[removed]"}]
    assert "[removed]" in parts[-2]["errorText"]


async def test_a_call_that_a_hook_changed_says_so() -> None:
    events = await fixed_events()
    paying = [event for event in events if event.execution_id == events[-1].execution_id]
    calls = [part for part in parts_of(paying) if part["type"] == "tool-input-available"]
    assert [part.get("providerMetadata") for part in calls] == [{"whyloop": {"changed_by": ["Cap"]}}, None]
    assert [part["input"]["amount"] for part in calls] == [7, 5]


def test_a_question_about_the_run_itself_is_a_separate_part() -> None:
    common: dict[str, Any] = {"agent_id": "a", "parent_agent_id": None, "execution_id": "e", "step_number": 1}
    paused = AgentStatusChanged(
        **common,
        time=START,
        previous_status=AgentStatus.IN_PROGRESS,
        status=AgentStatus.PAUSED,
        pending_calls=(PendingCall("q", "recovery", "", {}, "Continue?"),),
    )
    parts = parts_of([paused])
    assert parts[1] == {"type": QUESTION, "id": "q", "data": {"question": "Continue?"}}
    assert parts[-1] == {"type": "finish", "finishReason": "tool-calls"}


def test_reasoning_is_never_part_of_the_text() -> None:
    (started, chunk, *_) = hand_made("Hm.", {})
    assert isinstance(chunk, StreamChunkReceived)
    stream = VercelStream()
    parts = parts_of([started, replace(chunk, kind="reasoning"), replace(chunk, chunk="Four.")], stream)
    parts += stream.break_off("x")
    assert [(part["type"], part["delta"]) for part in parts if "delta" in part] == [
        ("reasoning-delta", "Hm."),
        ("text-delta", "Four."),
    ]
    assert [part["type"] for part in parts[2:8]] == [
        *("reasoning-start", "reasoning-delta", "reasoning-end"),
        *("text-start", "text-delta", "text-end"),
    ]


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
@pytest.mark.parametrize("arguments", ODD_ARGUMENTS, ids=range(len(ODD_ARGUMENTS)))
def test_hostile_text_is_sent_as_text(text: str, arguments: Any) -> None:
    stream = VercelStream()
    parts = parts_of(hand_made(text, arguments), stream) + stream.break_off(text)
    check_order(parts)
    check_lines(parts)
    assert [part["delta"] for part in parts if part["type"] == "text-delta"] == [clean(text)]
    assert [part["errorText"] for part in parts if part["type"] == "error"] == [clean(text)]


def test_objects_that_the_sdk_refuses_go_as_text() -> None:
    arguments = {"a": [{"__proto__": 1}], "constructor": {"prototype": 2}}
    given = [part["input"] for part in parts_of(hand_made("x", arguments)) if "input" in part]
    assert given == ['{"a":[{"__proto__":1}],"constructor":{"prototype":2}}']
    given = [part["input"] for part in parts_of(hand_made("x", {"a": [{"__proto__": 1}]})) if "input" in part]
    assert given == [{"a": ['{"__proto__":1}']}]


def test_a_stream_has_the_headers_of_the_protocol() -> None:
    assert HEADERS["x-vercel-ai-ui-message-stream"] == "v1"
    assert DONE == "data: [DONE]\n\n"
