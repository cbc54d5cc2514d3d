"""The history that a UI shows of a stored session."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from jsonschema import ValidationError

from tests.golden.fixed_run import fixed_run
from tests.support import START, broken, echo, empty_session, scripted, session
from tests.ui.support import assert_valid
from whyloop import (
    AgentState,
    ErrorPolicy,
    FilePart,
    ImagePart,
    Message,
    StepsLimit,
    TextPart,
    ToolCall,
    tool,
)
from whyloop.errors import ModelError
from whyloop.testing import call, calls, text
from whyloop.values.log import Log
from whyloop.values.transitions import Queried
from whyloop.wire.ui import canonical_messages, status_text

Json = dict[str, Any]


@tool(needs_approval=True)
async def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


def shown(state: AgentState) -> list[tuple[str, str]]:
    messages = canonical_messages(state)
    assert_valid(messages)
    return [(message["role"], message["content"]) for message in messages]


def last_of(state: AgentState) -> Json:
    messages = canonical_messages(state)
    assert_valid(messages)
    return messages[-1]


def test_an_empty_session_shows_nothing() -> None:
    assert shown(AgentState()) == []


async def test_a_conversation_is_shown_in_its_order() -> None:
    agent = scripted(call("echo", {"value": "a"}, text="I ask."), "Done.", "Again.", tools=[echo])
    state = await agent.run("Go", state=await agent.run("First"))
    assert shown(state) == [
        ("user", "First"),
        ("assistant", "I ask."),
        ("tool", "a"),
        ("assistant", "Done."),
        ("user", "Go"),
        ("assistant", "Again."),
    ]


async def test_ids_are_made_of_the_execution_the_step_and_the_call() -> None:
    state = await scripted(call("echo", id="c1"), "Done.", tools=[echo]).run("Go")
    execution = state.execution.id
    assert [message["id"] for message in canonical_messages(state)] == [
        f"{state.agent_id}:0",
        f"{execution}:1:assistant",
        f"{execution}:1:tool:c1",
        f"{execution}:2:assistant",
    ]


async def test_ids_stay_the_same_while_a_session_grows_and_is_stored() -> None:
    agent = scripted(call("echo"), "One.", call("echo"), "Two.", tools=[echo])
    first = await agent.run("Go")
    second = AgentState.from_dict((await agent.run("Again", state=first)).to_dict())
    before = [message["id"] for message in canonical_messages(first)]
    assert [message["id"] for message in canonical_messages(second)][: len(before)] == before


async def test_calls_with_one_id_have_results_with_two() -> None:
    both = calls(call("echo", {"value": "a"}, id="one"), call("echo", {"value": "b"}, id="two"))
    state = await scripted(both, "Done.", tools=[echo]).run("Go")
    stored = json.loads(json.dumps(state.to_dict()).replace('"two"', '"one"'))
    messages = canonical_messages(AgentState.from_dict(stored))
    assert_valid(messages)
    assert [message["id"].split(":", 2)[2] for message in messages[2:4]] == ["tool:one", "tool2:one"]
    assert [message["content"] for message in messages[2:4]] == ["a", "b"]


async def test_a_call_shows_its_name_and_its_arguments_and_no_text() -> None:
    state = await scripted(call("echo", {"value": "x" * 40}, id="c1"), "Done.", tools=[echo]).run("Go")
    asked = canonical_messages(state)[1]
    assert asked["metadata"]["tool_calls"] == [
        {"id": "c1", "name": "echo", "args": {"value": "x" * 40}, "args_summary": f"value: '{'x' * 30}'"}
    ]
    assert asked["content"] == ""


async def test_arguments_that_are_not_json_are_kept_as_text() -> None:
    policy = ErrorPolicy.retry_tool_errors()
    state = await scripted(call("echo", "{no"), "Done.", tools=[echo], error_policy=policy).run("Go")
    (asked,) = canonical_messages(state)[1]["metadata"]["tool_calls"]
    assert (asked["args"], asked["args_summary"]) == ("{no", "{no")


async def test_a_result_has_its_tool_and_its_time() -> None:
    state = await scripted(call("echo", {"value": "a"}, id="c1"), "Done.", tools=[echo]).run("Go")
    metadata = canonical_messages(state)[2]["metadata"]
    assert {key: value for key, value in metadata.items() if key.startswith("tool_")} == {
        "tool_call_id": "c1",
        "tool_name": "echo",
        "tool_result": "a",
        "tool_duration_ms": 0.0,
    }


async def test_a_failed_tool_has_its_error_and_no_result() -> None:
    policy = ErrorPolicy.retry_tool_errors()
    state = await scripted(call("broken"), "Done.", tools=[broken], error_policy=policy).run("Go")
    result = canonical_messages(state)[2]
    assert result["metadata"]["tool_error"].endswith("broken")
    assert "tool_result" not in result["metadata"]


async def test_a_stop_can_still_be_read_from_the_last_message() -> None:
    state = await scripted(call("echo"), tools=[echo], max_steps=1).run("Go")
    last = last_of(state)
    assert last["metadata"]["continuation"] == {
        "should_continue": False,
        "stop_reason": "steps_limit",
        "resolved_by": StepsLimit.__name__,
    }
    assert last["metadata"]["reason"] == "Limit reached: 1 of 1 steps used"
    assert status_text(last["metadata"]["continuation"]) == "Agent stopped: steps_limit"


async def test_each_execution_shows_once_why_it_ended() -> None:
    agent = scripted(call("echo"), call("echo"), "Done.", tools=[echo], max_steps=1)
    state = await agent.run("First")
    state = await agent.run("Second", state=state)
    state = await agent.run("Third", state=state)
    ends = [
        (message["role"], message["metadata"]["continuation"]["stop_reason"])
        for message in canonical_messages(state)
        if "continuation" in message["metadata"]
    ]
    assert ends == [("tool", "steps_limit"), ("tool", "steps_limit"), ("assistant", "completed")]


async def test_a_failure_is_an_error_that_stays() -> None:
    agent = scripted(ModelError("no service"), "Better.")
    failed = await agent.run("Go")
    error = last_of(failed)
    assert (error["role"], error["metadata"]["status_type"]) == ("status", "error")
    assert "no service" in error["content"]
    assert error["metadata"]["continuation"]["stop_reason"] == "error"
    later = await agent.run("And now?", state=failed)
    assert [role for role, _ in shown(later)] == ["user", "status", "user", "assistant"]


async def test_a_failure_that_was_resumed_is_still_there() -> None:
    agent = scripted(ModelError("no service"), "Better.")
    resumed = await agent.resume(await agent.run("Go"))
    assert [role for role, _ in shown(resumed)] == ["user", "status", "assistant"]
    assert last_of(resumed)["metadata"]["continuation"]["stop_reason"] == "completed"


async def test_an_attempt_that_was_retried_leaves_nothing() -> None:
    agent = scripted(ModelError("once"), "Better.", error_policy=ErrorPolicy.retry_all())
    assert shown(await agent.run("Go")) == [("user", "Go"), ("assistant", "Better.")]


async def test_a_call_that_waits_is_shown_with_its_question() -> None:
    reply = calls(call("echo", {"value": "a"}, id="c1"), call("pay", {"amount": 7}, id="c2"))
    state = await scripted(reply, tools=[echo, pay]).run("Go")
    waiting = last_of(state)
    assert waiting["id"] == f"{state.execution.id}:1:tool:c2"
    (pending,) = state.pending_calls
    assert (waiting["role"], waiting["content"]) == ("status", pending.question)
    asked = {name: waiting["metadata"][name] for name in ("question_id", "question", "args_summary")}
    assert asked == {"question_id": pending.id, "question": pending.question, "args_summary": "amount: 7"}
    assert waiting["metadata"]["continuation"]["stop_reason"] is None
    assert [message["role"] for message in canonical_messages(state)[2:]] == ["tool", "status"]


async def test_a_call_that_was_decided_waits_no_longer() -> None:
    reply = calls(call("pay", {"amount": 7}, id="c1"), call("pay", {"amount": 8}, id="c2"))
    state = await scripted(reply, tools=[pay]).run("Go")
    first, second = state.pending_calls
    state = state.edit(first.id, {"amount": 5}, by="bo").deny(second.id, "too much", by="ada")
    messages = canonical_messages(state)
    assert_valid(messages)
    edited, denied = messages[-2:]
    assert (edited["metadata"]["status_type"], edited["content"]) == ("info", "pay: edited by bo")
    assert "question_id" not in edited["metadata"]
    assert (denied["role"], denied["metadata"]["tool_error"]) == ("tool", "denied by ada: too much")


def test_a_question_without_an_answer_is_shown() -> None:
    assert shown(session()) == [("user", "go")]


def test_messages_of_the_application_are_not_shown() -> None:
    state = empty_session()
    for message in (Message.system("Be kind."), Message.developer("Be brief."), Message.user("Hi")):
        state = Queried(START, execution_id="e", message=message).apply_to(state)
    assert shown(state) == [("user", "Hi")]


def test_a_history_from_before_the_session_is_shown() -> None:
    asked = Message.assistant("I ask.", [ToolCall("c1", "echo", {})])
    result = Message.result("a", tool_call_id="c1", tool="echo")
    state = AgentState(messages=Log([Message.user("Hi"), asked, result]))
    assert shown(state) == [("user", "Hi"), ("assistant", "I ask."), ("tool", "a")]


async def test_images_and_files_are_named_and_their_bytes_stay_in_the_store() -> None:
    parts: list[TextPart | ImagePart | FilePart] = [
        TextPart("See:"),
        ImagePart(url="https://example.com/a.png"),
        FilePart(data="AAAA", media_type="application/pdf", name="a.pdf"),
    ]
    question = canonical_messages(await scripted("Nice.").run(parts))[0]
    assert_valid([question])
    assert question["content"] == "See:"
    assert question["metadata"]["attachments"] == [
        {"type": "image", "url": "https://example.com/a.png"},
        {"type": "file", "media_type": "application/pdf", "name": "a.pdf"},
    ]


async def test_times_are_utc_with_milliseconds_and_never_go_back() -> None:
    messages = canonical_messages(await fixed_run())
    assert_valid(messages)
    times = [message["timestamp"] for message in messages]
    assert times == sorted(times)
    assert times[0] == "2026-01-16T10:00:00.000Z"


async def test_a_truncated_answer_has_its_stop_reason() -> None:
    state = await scripted(text("Once upon a", finish_reason="length")).run("Go")
    assert status_text(last_of(state)["metadata"]["continuation"]) == "Agent stopped: finish_reason"


@pytest.mark.parametrize(
    "change",
    [
        {"role": "system"},
        {"content": None},
        {"timestamp": "2026-01-16T10:00:00Z"},
        {"id": ""},
        {"more": 1},
        {"role": "status"},
        {"role": "tool"},
        {"metadata": {"tool_calls": [{"id": "c1"}]}},
        {"metadata": {"status_type": "thinking"}},
        {"metadata": {"question_id": "q1"}},
        {"metadata": {"waiting": True}},
        {"metadata": {"continuation": {"should_continue": True}}},
    ],
)
async def test_the_schema_refuses_invalid_messages(change: Json) -> None:
    message = last_of(await scripted("Done.").run("Go"))
    with pytest.raises(ValidationError):
        assert_valid([{**copy.deepcopy(message), **change}])
