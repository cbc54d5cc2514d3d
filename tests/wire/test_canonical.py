"""The history that the server returns to a chat UI, for whatever a session holds."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from jsonschema import Draft202012Validator
from msgspec.structs import replace

from tests.support import START, at, examples, session
from tests.wire.random_runs import SESSION, Said, Scenario, Scene, crashing_scenarios
from tests.wire.support import with_messages
from whyloop import (
    AgentStatus,
    ContinuationDecision,
    ContinuationEvaluation,
    ContinuationOutcome,
    ErrorPolicy,
    FinishReason,
    Message,
    ToolCall,
)
from whyloop.broadcasting import ui_message_schema
from whyloop.values.approval import Question
from whyloop.values.judgement import Judged
from whyloop.values.step_transitions import Answered, Closed
from whyloop.values.transitions import Queried, Recovered
from whyloop.wire.journal import decode_head, encode_head
from whyloop.wire.ui import canonical_messages

_validator = Draft202012Validator(ui_message_schema())


def shown(messages: list[dict[str, Any]], role: str) -> list[dict[str, Any]]:
    return [message for message in messages if message["role"] == role]


@examples(150)
@given(crashing_scenarios)
def test_every_history_fits_the_schema_and_has_the_last_number(scenario: Scenario) -> None:
    for state in scenario.play().journal.states:
        messages = canonical_messages(state)
        assert [error.message for message in messages for error in _validator.iter_errors(message)] == []
        assert len({message["id"] for message in messages}) == len(messages)
        numbers = [message["metadata"]["seq"] for message in messages if "seq" in message.get("metadata", {})]
        assert numbers in ([], [state.execution.last_seq])
        assert bool(numbers) == bool(state.execution.last_seq)


def asks(*calls: ToolCall) -> Said:
    return Said(["I see."], calls, True, False, FinishReason.TOOL_CALLS)


async def test_a_question_has_its_own_id_and_the_call_that_it_is_about() -> None:
    scene = await Scenario([asks(ToolCall("c1", "guarded", {"value": "x"}))], ErrorPolicy(), 20, []).scene()
    (waiting,) = shown(canonical_messages(scene.state), "status")
    (pending,) = scene.state.pending_calls
    assert waiting["content"] == "guarded waits for approval"
    metadata = waiting["metadata"]
    assert (metadata["question_id"], metadata["tool_call_id"]) == (pending.id, "c1")
    assert (metadata["args_summary"], metadata["seq"]) == ("value: 'x'", scene.state.execution.last_seq)


async def test_a_decision_is_shown_until_the_run_is_resumed() -> None:
    scene = await Scenario([asks(ToolCall("c1", "guarded", {}))], ErrorPolicy(), 20, [("decide", 0)]).scene()
    (decided,) = shown(canonical_messages(scene.state), "status")
    assert decided["content"] == "guarded: approved by ada"
    assert (decided["metadata"]["status_type"], "question_id" in decided["metadata"]) == ("info", False)


async def test_a_call_that_a_hook_changed_shows_that() -> None:
    calls = [ToolCall("c1", "work", {"value": "change me"}), ToolCall("c2", "work", {"value": "block me"})]
    scene = await Scenario([asks(*calls)], ErrorPolicy(), 20, []).scene()
    messages = canonical_messages(scene.state)
    changed, blocked = shown(messages, "assistant")[0]["metadata"]["tool_calls"]
    assert (changed["args"], changed["changed_by"]) == ({"value": "changed"}, ["Changer"])
    assert "changed_by" not in blocked
    replaced, refused = shown(messages, "tool")
    assert (replaced["content"], replaced["metadata"]["changed_by"]) == ("replaced", ["Changer"])
    assert refused["metadata"]["tool_error"] == "blocked: blocked </b>"
    assert refused["metadata"]["changed_by"] == ["Changer"]


def with_feedback() -> Any:
    """Return a session whose first step got feedback and is followed by another one."""
    allow = ContinuationDecision.REQUEST_CONTINUATION
    outcome = ContinuationOutcome(
        allow, "Mine", None, (ContinuationEvaluation("Mine", allow, "not yet", feedback="Show your work."),)
    )
    judged = Judged(at(2), outcome=outcome, step=1)
    return judged.apply_to(session(steps=1, text="Four."))


def test_feedback_to_the_model_is_a_status_and_no_question_of_the_user() -> None:
    state = with_feedback()
    assert state.messages[-1].source == ("Mine",)
    user, assistant, feedback, thinking = canonical_messages(state)
    assert (user["role"], assistant["role"], thinking["metadata"]["status_type"]) == (
        "user",
        "assistant",
        "thinking",
    )
    assert (feedback["role"], feedback["content"]) == ("status", "Show your work.")
    assert feedback["metadata"]["status_type"] == "info"
    assert feedback["metadata"]["source"] == ["Mine"]
    assert (feedback["metadata"]["execution_id"], feedback["metadata"]["step_number"]) == ("execution-1", 1)


def test_feedback_stays_with_its_execution_when_another_query_follows() -> None:
    asked = Queried(at(3), execution_id="execution-2", message=Message.user("And now?"))
    messages = canonical_messages(asked.apply_to(with_feedback()))
    feedback, question = messages[2:4]
    assert feedback["metadata"]["execution_id"] == "execution-1"
    assert (question["role"], question["metadata"]["execution_id"]) == ("user", "execution-2")


def test_an_answer_that_was_interrupted_keeps_its_text() -> None:
    half = replace(Message.assistant("It is"), incomplete=True, reasoning="Hm.")
    state = Answered(at(2), started_at=at(1), message=half).apply_to(session())
    state = Closed(at(2)).apply_to(state)
    (answer,) = shown(canonical_messages(state), "assistant")
    assert answer["content"] == "It is"
    assert (answer["metadata"]["incomplete"], answer["metadata"]["reasoning"]) == (True, "Hm.")


def test_a_question_about_the_run_itself_is_shown() -> None:
    state = Recovered(START, question=Question("q", "Continue?")).apply_to(session(steps=1))
    messages = canonical_messages(replace(state, status=AgentStatus.PAUSED))
    assert messages[-1]["id"] == "execution-1:question:q"
    assert (messages[-1]["content"], messages[-1]["metadata"]["question_id"]) == ("Continue?", "q")


async def test_a_session_that_is_read_from_a_checkpoint_shows_the_rest() -> None:
    scene = Scene([asks(ToolCall("c1", "work", {}))], ErrorPolicy(), 20)
    await scene.happens("query", 0)
    before, start = scene.state, len(scene.journal.entries)
    await scene.happens("query", 1)
    state = decode_head(SESSION, encode_head(before))
    for transition in scene.journal.transitions[len(transitions_before(scene, start)) :]:
        state = transition.apply_to(state)
    whole = canonical_messages(scene.state)
    assert canonical_messages(state) == whole[len(canonical_messages(before)) :]
    assert [message["content"] for message in canonical_messages(state)] == ["question 1", "The end."]


def transitions_before(scene: Scene, entries: int) -> list[object]:
    earlier = Scene([], ErrorPolicy(), 20).journal
    earlier.entries = scene.journal.entries[:entries]
    return list(earlier.transitions)


def test_instructions_are_not_shown() -> None:
    messages = [Message.system("rules"), Message.developer("more rules"), Message.user("go")]
    assert [m["content"] for m in canonical_messages(with_messages(session(), messages))] == ["go"]
