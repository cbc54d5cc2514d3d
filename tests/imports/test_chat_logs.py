"""Logs of OpenAI's and Anthropic's APIs."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from hypothesis import given, strategies as st

from tests.support import broken, echo, examples
from whyloop import (
    Agent,
    AgentState,
    ErrorPolicy,
    ErrorPolicyCriterion,
    ErrorType,
    ExecutionTimeLimit,
    FinishReason,
    ImagePart,
    Message,
    ModelRequest,
    ModelResponse,
    StepsLimit,
    StopReason,
    TokenUsageLimit,
    ToolCall,
)
from whyloop.imports import read_log
from whyloop.models.openai_chat import message_document
from whyloop.replay import judge
from whyloop.testing import FakeClock


def read(document: Any, format: str = "openai") -> AgentState:
    (state,) = read_log([json.dumps(document)], format)
    return state


def called(call_id: str, name: str = "search", **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": call_id, "type": "function", "function": function}


WEATHER = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Paris or Rome?"},
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "I look both up.",
        "tool_calls": [called("a", q="Paris"), called("b", q="Rome")],
    },
    {"role": "tool", "tool_call_id": "b", "content": "sunny"},
    {"role": "tool", "tool_call_id": "a", "content": "rain"},
    {"role": "assistant", "content": "Rome."},
]


def test_a_conversation_with_parallel_calls_becomes_the_steps_of_one_execution() -> None:
    state = read({"id": "w", "model": "gpt-x", "messages": WEATHER})
    assert [(m.role, m.text) for m in state.messages] == [
        ("user", "Paris or Rome?"),
        ("assistant", ""),
        ("tool", "rain"),
        ("tool", "sunny"),
        ("assistant", "Rome."),
    ]
    assert [call.arguments for call in state.messages[1].tool_calls] == [{"q": "Paris"}, {"q": "Rome"}]
    assert state.messages[1].reasoning == "I look both up."
    assert (state.step_count, state.status, state.last_response) == (2, "completed", "Rome.")
    assert [part.text for part in state.request_parts] == ["Be brief."]
    assert state.steps[0].request is not None
    assert state.steps[0].request.instructions == state.request_parts[0].hash
    assert state.metadata == {"imported_from": "openai", "imported_run": "w", "model": "gpt-x"}
    assert state.agent_id.startswith("w-")


def test_facts_that_a_log_lacks_are_unknown() -> None:
    state = read({"messages": WEATHER})
    step = state.steps[0]
    assert (step.finish_reason, step.source, step.untimed) == (None, None, True)
    assert not step.usage.reported
    assert state.usage.cost is None
    text = state.explain()
    assert "[tokens and time unknown]" in text
    assert "ImportedRun decided: The answer asks for nothing more, and the log ends here." in text
    assert "unknown" in state.explanation.to_markdown()


def test_limits_on_what_is_unknown_do_not_count_it_as_zero() -> None:
    replay = judge(read({"messages": WEATHER}), TokenUsageLimit(10), ExecutionTimeLimit(1), StepsLimit(1))
    assert (replay.stopped_at, replay.stop_reason, replay.resolved_by) == (1, "steps_limit", "StepsLimit")
    outcome = replay.outcomes[0]
    for rule, reason in (
        (TokenUsageLimit, "unknown: no answer reported its tokens"),
        (ExecutionTimeLimit, "unknown: the imported log has no times"),
    ):
        evaluation = outcome.evaluation_for(rule)
        assert evaluation is not None
        assert (evaluation.decision, evaluation.reason) == ("allow", reason)
    assert (replay.saved.steps, replay.saved.tokens, replay.saved.seconds) == (1, None, None)


def test_an_end_that_the_log_does_not_explain_is_unknown() -> None:
    state = read({"messages": WEATHER[:-1]})
    assert (state.status, state.stop_reason) == ("stopped", StopReason.GUARD_FORBADE)
    assert state.outcome.resolved_by == "ImportedRun"
    assert state.outcome.reason == "Why the run ended is unknown: the log ends here"
    assert [action.kind for action in state.explanation.next_actions] == ["resume"]


def test_usage_finish_reason_and_times_are_kept_where_the_log_has_them() -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    state = read(
        {
            "messages": [
                {"role": "user", "content": "Hi", "timestamp": "2026-01-16T10:00:00Z"},
                {
                    "role": "assistant",
                    "content": "Hello",
                    "timestamp": "2026-01-16T10:00:02Z",
                    "usage": usage,
                    "model": "gpt-x",
                    "finish_reason": "stop",
                },
            ]
        }
    )
    step = state.steps[0]
    assert (step.usage.total, step.usage.reported, step.finish_reason) == (15, True, FinishReason.STOP)
    assert (step.untimed, step.duration_ms) == (False, 2000)
    assert state.state_info.started_at.isoformat() == "2026-01-16T10:00:00+00:00"
    assert step.source is not None
    assert step.source.model == "gpt-x"


def test_a_request_with_its_response_is_one_run() -> None:
    choice = {"index": 0, "finish_reason": "length", "message": {"role": "assistant", "content": "One, two"}}
    state = read(
        {
            "request": {"model": "gpt-x", "messages": [{"role": "user", "content": "Count"}]},
            "response": {"choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": 4}},
        }
    )
    assert state.last_response == "One, two"
    assert (state.stop_reason, state.usage.total) == (StopReason.FINISH_REASON_RECEIVED, 7)


def test_each_query_is_an_execution_and_the_application_s_messages_are_feedback() -> None:
    state = read(
        [
            {"role": "user", "content": "One"},
            {"role": "assistant", "tool_calls": [called("a")]},
            {"role": "tool", "tool_call_id": "a", "content": "1"},
            {"role": "developer", "content": "Hurry."},
            {"role": "assistant", "content": "Done"},
            {
                "role": "user",
                "content": [{"type": "image_url", "image_url": {"url": "https://x.example/a.png"}}],
            },
            {"role": "assistant", "content": "A cat"},
        ]
    )
    assert [step.number for step in state.steps] == [1, 2, 1]
    assert state.messages[3] == Message(state.messages[3].role, "Hurry.", source=("ImportedRun",))
    assert state.messages[5].content == (ImagePart("https://x.example/a.png"),)
    assert state.steps[1].outcome is not None
    assert state.steps[1].outcome.reason == "The answer asks for nothing more, and another query follows"


def test_items_of_responses_are_read_too() -> None:
    state = read(
        {
            "id": "resp_1",
            "instructions": "Be brief.",
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "I look."}]},
                {"type": "function_call", "call_id": "c", "name": "search", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "rain"},
            ],
            "output": [
                {
                    "type": "message",
                    "role": "assistant",
                    "content": [{"type": "output_text", "text": "Rain."}],
                }
            ],
            "usage": {"input_tokens": 7, "output_tokens": 2},
            "status": "completed",
        }
    )
    assert [m.text for m in state.messages] == ["Weather?", "", "rain", "Rain."]
    assert state.messages[1].reasoning == "I look."
    assert [step.usage.total for step in state.steps] == [0, 9]


ANTHROPIC: dict[str, Any] = {
    "system": "Be brief.",
    "model": "claude-x",
    "messages": [
        {"role": "user", "content": "Pay the bill"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Which one?", "signature": "s"},
                {"type": "text", "text": "I try."},
                {"type": "tool_use", "id": "t1", "name": "pay", "input": {"amount": 3}},
                {"type": "tool_use", "id": "t2", "name": "mail", "input": {}},
            ],
            "stop_reason": "tool_use",
            "usage": {"input_tokens": 20, "output_tokens": 9},
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "no funds", "is_error": True},
                {"type": "tool_result", "tool_use_id": "t2", "content": [{"type": "text", "text": "sent"}]},
                {"type": "text", "text": "Two steps are left."},
            ],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "Not paid."}]},
    ],
}


def test_anthropic_blocks_become_calls_results_reasoning_and_failures() -> None:
    state = read(ANTHROPIC, "anthropic")
    first, second = state.steps
    assert [(m.role, m.text) for m in state.messages][1:] == [
        ("assistant", "I try."),
        ("tool", "no funds"),
        ("tool", "sent"),
        ("developer", "Two steps are left."),
        ("assistant", "Not paid."),
    ]
    assert state.messages[1].reasoning == "Which one?"
    assert (first.usage.total, first.finish_reason) == (29, FinishReason.TOOL_CALLS)
    assert [(run.name, run.success) for run in first.tool_calls] == [("pay", False), ("mail", True)]
    assert [failure.type for failure in first.failures] == [ErrorType.TOOL]
    assert not second.usage.reported
    assert state.explanation.steps[0].summary == "pay failed: no funds; mail ok"


def test_an_error_policy_can_be_put_on_an_imported_failure() -> None:
    replay = judge(read(ANTHROPIC, "anthropic"), ErrorPolicy.stop_on_any_error())
    assert (replay.stopped_at, replay.stop_reason) == (1, StopReason.ERROR_FORBADE)
    assert replay.resolved_by == ErrorPolicyCriterion.__name__


# Our own runs, as a log


texts = st.sampled_from(["", "Done.", "I look it up.", "{}", "ünïcode 🙂", "line\nline"])
arguments = st.dictionaries(st.sampled_from(["value", "other"]), st.text(max_size=5), max_size=2)
names = st.sampled_from(["echo", "broken", "unknown_tool"])


@st.composite
def replies(draw: st.DrawFn) -> ModelResponse:
    wanted = draw(st.lists(st.tuples(names, arguments), max_size=3))
    calls = tuple(ToolCall(f"call_{i}", name, given) for i, (name, given) in enumerate(wanted))
    reason = FinishReason.TOOL_CALLS if calls else FinishReason.STOP
    return ModelResponse(draw(texts), calls, reason, reasoning=draw(texts))


class Script:
    """Gives one reply after the other, and then the same answer for ever."""

    def __init__(self, replies: list[ModelResponse]) -> None:
        self._replies = iter(replies)

    async def respond(self, request: ModelRequest) -> AsyncIterator[ModelResponse]:
        yield next(self._replies, ModelResponse("The end."))


@examples(100)
@given(st.lists(st.lists(replies(), min_size=1, max_size=4), min_size=1, max_size=3))
def test_one_of_our_runs_written_as_a_log_and_imported_has_the_same_messages(
    queries: list[list[ModelResponse]],
) -> None:
    script = [reply for query in queries for reply in [*query, ModelResponse("The end.")]]
    policy = ErrorPolicy.ignore_tool_errors()
    agent = Agent(Script(script), [echo, broken], clock=FakeClock(), error_policy=policy)
    state = None
    for number in range(len(queries)):
        state = agent.run_sync(f"Query {number}", state=state)
    assert state is not None
    log = [message_document(message) for message in state.messages]
    imported = read({"messages": log})

    def facts(session: AgentState) -> list[Any]:
        return [
            (
                *(message.role, message.model_text, message.tool_call_id),
                [(call.id, call.name, call.arguments) for call in message.tool_calls],
            )
            for message in session.messages
        ]

    assert facts(imported) == facts(state)
    assert [[run.name for run in step.tool_calls] for step in imported.steps] == [
        [run.name for run in step.tool_calls] for step in state.steps if step.message_count
    ]
