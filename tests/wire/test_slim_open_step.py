"""A step that waits for a person, in a slim snapshot: whole, or not there at all."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support import at, requests_of, scripted, session
from tests.wire.support import read, slim
from whyloop import (
    AgentState,
    AgentStatus,
    Approval,
    ErrorType,
    Failure,
    Redaction,
    SlimAgentStateSerializer,
    SlimSerializationConfig,
    Tool,
    Verdict,
    tool,
)
from whyloop.errors import SnapshotError
from whyloop.testing import call, calls
from whyloop.values.approval import Question
from whyloop.values.messages import CallChange
from whyloop.values.step_transitions import ModelFailed
from whyloop.values.transitions import Recovered

TOKEN = "sk-proj-abcdefghijklmnop1234"
ARGUMENTS = {"amount": 500, "to": "Bob"}


def till(paid: list[str]) -> Tool:
    """A tool that pays once a person agrees, and notes what it paid."""

    @tool(needs_approval=True)
    async def pay(amount: int, to: str, password: str = "") -> str:
        paid.append(f"{amount} to {to}")
        return "paid"

    return pay


@tool
async def look(query: str) -> str:
    return f"{query} " * 40


async def waiting(text: str = "I pay.", query: str = "Bob", **arguments: Any) -> AgentState:
    """A session with one finished step, whose next step has one call done and one that waits."""
    agent = scripted(
        call("look", {"query": "x"}),
        calls(
            call("look", {"query": query}, id="looked"),
            call("pay", {**ARGUMENTS, **arguments}, id="paying"),
            text=text,
        ),
        tools=[look, till([])],
    )
    return await agent.run("Pay Bob.")


def question_of(state: AgentState) -> str:
    (pending,) = state.pending_calls
    return pending.id


async def test_an_open_step_is_kept_whole_and_can_be_run() -> None:
    state = await waiting()
    document = slim(state)
    assert document["truncated"] == {"messages": 0, "contents": 0}
    restored = read(document)
    assert restored.open_step == state.open_step
    assert restored.pending_calls == state.pending_calls
    paid: list[str] = []
    approved = restored.approve(question_of(restored), by="ada")
    done = await scripted("Done.", tools=[look, till(paid)]).resume(approved)
    assert (done.last_response, paid) == ("Done.", ["500 to Bob"])
    assert [run.id for run in done.steps[-2].tool_calls] == ["looked", "paying"]


def test_a_session_without_one_has_no_field_for_it() -> None:
    document = slim(session(steps=2, tool_calls=1), include_all_steps=True)
    assert "open_step" not in document
    assert "open_step" not in document["truncated"]


LOSSES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a secret in the arguments": ({"to": TOKEN}, {}),
    "a secret by its name in the arguments": ({"password": "hunter2"}, {}),
    "a secret in the text": ({"text": f"I use {TOKEN}."}, {}),
    "a secret in the arguments of a call that is done": ({"query": TOKEN}, {}),
    "long arguments": ({"to": "Bob " * 300}, {}),
    "a long text": ({"text": "Bob " * 300}, {}),
    "no arguments asked for": ({}, {"include_tool_args": False}),
    "a secret of people's own": ({}, {"redaction": Redaction(patterns=("Bob",))}),
    "a short length": ({}, {"max_content_length": 2}),
}


@pytest.mark.parametrize("loss", LOSSES)
async def test_an_open_step_that_would_be_changed_is_left_out_and_counted(loss: str) -> None:
    content, options = LOSSES[loss]
    state = await waiting(**content)
    document = slim(state, **options)
    assert "open_step" not in document
    assert document["truncated"]["open_step"] == 1
    await goes_on_by_asking_again(state, document)


async def test_the_smallest_configuration_leaves_it_out_and_keeps_the_pause() -> None:
    state = await waiting()
    document = SlimAgentStateSerializer(SlimSerializationConfig.minimal()).serialize(state)
    assert (document["status"], document["truncated"]["open_step"]) == ("paused", 1)
    assert "waits for approval" in document["last_continuation"]["evaluations"][0]["reason"]
    await goes_on_by_asking_again(state, document)


async def goes_on_by_asking_again(state: AgentState, document: dict[str, Any]) -> None:
    restored = read(document)
    assert (restored.status, restored.open_step) == (AgentStatus.PAUSED, None)
    assert restored.pending_calls == ()
    assert len(restored.steps) == 1
    paid: list[str] = []
    agent = scripted("I ask again.", tools=[look, till(paid)])
    resumed = await agent.resume(restored)
    assert (resumed.last_response, paid) == ("I ask again.", [])
    assert len(requests_of(agent)[0].messages) == len(restored.messages) == len(state.messages)


async def test_edited_arguments_are_never_run_changed() -> None:
    asked = await waiting()
    state = asked.edit(question_of(asked), {"amount": 1, "to": "Al"}, by="ada")
    restored = read(slim(state))
    assert restored.open_step == state.open_step
    paid: list[str] = []
    await scripted("Done.", tools=[look, till(paid)]).resume(restored)
    assert paid == ["1 to Al"]
    secret = asked.edit(question_of(asked), {"amount": 1, "to": TOKEN}, by="ada")
    document = slim(secret)
    assert document["truncated"]["open_step"] == 1
    assert "abcdefgh" not in json.dumps(document)


async def test_results_of_calls_that_are_done_are_cut_like_other_contents() -> None:
    state = await waiting()
    document = slim(state, max_content_length=60)
    assert len(document["open_step"]["calls"][0]["result"]["content"]) == 60
    assert document["truncated"]["details"] == 1
    restored = read(document)
    assert restored.pending_calls == state.pending_calls
    paid: list[str] = []
    done = await scripted("Done.", tools=[look, till(paid)]).resume(restored.approve(question_of(restored)))
    assert (done.last_response, paid) == ("Done.", ["500 to Bob"])


async def test_secrets_in_results_are_removed_and_waiting_calls_are_kept() -> None:
    state = await waiting()
    assert state.open_step is not None
    done, waits = state.open_step.calls
    assert done.result is not None
    finished = replace(done, result=replace(done.result, content=TOKEN, error=f"password={TOKEN}"))
    asked = replace(waits, question=Question("q", f"May I use {TOKEN}?"))
    state = replace(state, open_step=replace(state.open_step, calls=(finished, asked)))
    document = slim(state)
    assert document["open_step"]["calls"][1]["question"] == {"id": "q", "text": "May I use [removed]?"}
    assert "abcdefgh" not in json.dumps(document)
    assert document["open_step"]["calls"][0]["result"]["content"] == "[removed]"
    assert read(document).pending_calls[0].arguments == ARGUMENTS


async def test_an_open_step_is_kept_with_its_extras_or_not_at_all() -> None:
    state = await waiting()
    assert state.open_step is not None

    def signed(extras: dict[str, Any]) -> AgentState:
        assert state.open_step is not None
        assert state.open_step.message is not None
        message = replace(state.open_step.message, extras=extras)
        return replace(state, open_step=replace(state.open_step, message=message))

    fine = signed({"anthropic": {"blocks": ["x"]}})
    assert read(slim(fine)).open_step == fine.open_step
    assert slim(signed({"anthropic": {"api_key": "x"}}))["truncated"]["open_step"] == 1
    without = slim(fine, include_metadata=False)["open_step"]
    assert "extras" not in without["message"]


def decided(**changes: Any) -> AgentState:
    """A session whose step has a call that a person decided about."""
    state = session(steps=1, tool_calls=1)
    assert state.current_step is not None
    approval = replace(
        Approval(Verdict.EDITED, "ada", at(5), "May it?", "why not", {"to": "Bob"}, "q"), **changes
    )
    run = replace(state.current_step.tool_calls[0], approvals=(approval,))
    step = replace(state.current_step, tool_calls=(run,))
    return replace(state, steps=state.steps.with_last(step))


def approval_in(document: dict[str, Any]) -> dict[str, Any]:
    shown: dict[str, Any] = document["current_step"]["tool_calls"][0]["approvals"][0]
    return shown


def test_a_decision_is_kept() -> None:
    state = decided()
    assert read(slim(state, include_all_steps=True)) == state
    assert approval_in(slim(state)) == {
        "verdict": "edited",
        "by": "ada",
        "at": "2026-01-16T10:00:05Z",
        "question": "May it?",
        "reason": "why not",
        "arguments": {"to": "Bob"},
        "question_id": "q",
    }


def test_the_texts_of_a_decision_are_redacted_and_cut_and_person_and_time_stay() -> None:
    state = decided(
        by="a" * 50,
        question=f"Use {TOKEN}?",
        reason=f"with {TOKEN}",
        arguments={"password": "x", "to": TOKEN},
    )
    shown = approval_in(slim(state))
    assert (shown["question"], shown["reason"]) == ("Use [removed]?", "with [removed]")
    assert shown["arguments"] == {"password": "[removed]", "to": "[removed]"}
    short = slim(state, max_content_length=5)
    assert approval_in(short) == {
        "verdict": "edited",
        "by": "a" * 50,
        "at": "2026-01-16T10:00:05Z",
        "question": "Use …",
        "reason": "with…",
        "arguments": {"password": "[rem…", "to": "[rem…"},
        "question_id": "q",
    }
    assert short["truncated"]["details"] == 1


async def test_without_arguments_none_are_left_in_decisions_and_questions() -> None:
    assert "arguments" not in approval_in(slim(decided(), include_tool_args=False))
    paused = slim(await waiting(), include_tool_args=False)
    (said,) = paused["last_continuation"]["evaluations"]
    assert [set(pending) for pending in said["context"]["pending"]] == [{"id", "call_id", "name", "question"}]


async def test_an_open_step_without_arguments_is_refused() -> None:
    document = slim(await waiting())
    broken = copy.deepcopy(document)
    del broken["open_step"]["message"]["tool_calls"][1]["arguments"]
    with pytest.raises(SnapshotError) as caught:
        read(broken)
    assert caught.value.path == "$.open_step.message.tool_calls[1].arguments"
    broken = copy.deepcopy(document)
    broken["open_step"]["calls"].pop()
    with pytest.raises(SnapshotError) as caught:
        read(broken)
    assert caught.value.path == "$.open_step.calls"


async def test_reasoning_and_the_arguments_before_a_hook_may_be_cut_without_the_step() -> None:
    state = await waiting()
    assert state.open_step is not None
    assert state.open_step.message is not None
    first, second = state.open_step.message.tool_calls
    changed = replace(second, changes=(CallChange("Cap", {"to": TOKEN}),))
    message = replace(state.open_step.message, tool_calls=(first, changed), reasoning=f"Use {TOKEN} " * 200)
    state = replace(state, open_step=replace(state.open_step, message=message))
    document = slim(state)
    assert "abcdefgh" not in json.dumps(document)
    restored = read(document)
    assert restored.pending_calls == state.pending_calls
    assert restored.open_step is not None
    assert restored.open_step.message is not None
    assert len(restored.open_step.message.reasoning) == 1000
    assert restored.open_step.message.tool_calls[1].changes == (CallChange("Cap", {"to": "[removed]"}),)


def test_a_step_that_failed_before_it_had_a_message_is_kept() -> None:
    failed = ModelFailed(at(3), started_at=at(2), failure=Failure(ErrorType.MODEL, f"It broke: {TOKEN}"))
    state = failed.apply_to(session(steps=1))
    restored = read(slim(state))
    assert restored.open_step is not None
    assert restored.open_step.failure == Failure(ErrorType.MODEL, "It broke: [removed]")
    assert restored.open_step.message is None


def test_a_question_about_the_run_itself_is_kept_and_so_is_its_answer() -> None:
    asked = Recovered(at(3), question=Question("q", f"It used {TOKEN}. Continue?"))
    state = asked.apply_to(session(steps=1))
    restored = read(slim(state))
    assert [(pending.id, pending.question) for pending in restored.pending_calls] == [
        ("q", "It used [removed]. Continue?")
    ]
    answered = state.deny("q", f"not with {TOKEN}", by="ada", now=at(4))
    (approval,) = read(slim(answered)).execution.approvals
    assert (approval.by, approval.reason, approval.question_id) == ("ada", "not with [removed]", "q")
