"""Events of OpenHands' agent SDK, each of which names its class, become sessions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.imports.test_trajectories import read
from whyloop import RepeatedCallCheck, StopReason
from whyloop.imports import guess_format, import_log, read_log
from whyloop.replay import judge
from whyloop.stores import MemoryStore
from whyloop.values.failure import ErrorType


def at(second: int) -> str:
    return f"2026-03-01T10:00:{second:02d}.000000"


def said(source: str, text: str, second: int, **more: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": text}]
    message = {"role": "assistant" if source == "agent" else "user", "content": content}
    return {
        "kind": "MessageEvent",
        "source": source,
        "timestamp": at(second),
        "llm_message": message,
        **more,
    }


def acted(name: str, call_id: str, second: int, response: str, **arguments: Any) -> dict[str, Any]:
    written = {**arguments, "security_risk": "LOW", "summary": f"use {name} in {response}"}
    return {
        "id": f"event-{call_id}",
        "kind": "ActionEvent",
        "source": "agent",
        "timestamp": at(second),
        "thought": [{"type": "text", "text": "Let me see."}],
        "reasoning_content": "It is broken.",
        "tool_name": name,
        "tool_call_id": call_id,
        "tool_call": {"id": call_id, "name": name, "arguments": json.dumps(written), "origin": "completion"},
        "action": {"kind": "SomeAction", **arguments},
        "llm_response_id": response,
        "summary": written["summary"],
        "security_risk": "LOW",
    }


def observed(name: str, call_id: str, second: int, text: str, *, failed: bool = False) -> dict[str, Any]:
    return {
        "kind": "ObservationEvent",
        "source": "environment",
        "timestamp": at(second),
        "tool_name": name,
        "tool_call_id": call_id,
        "action_id": f"event-{call_id}",
        "observation": {
            "kind": "SomeObservation",
            "content": [{"type": "text", "text": text}],
            "is_error": failed,
        },
    }


def updated(status: str, second: int) -> dict[str, Any]:
    return {
        "kind": "ConversationStateUpdateEvent",
        "source": "environment",
        "timestamp": at(second),
        "key": "execution_status",
        "value": status,
    }


SYSTEM = {
    "kind": "SystemPromptEvent",
    "source": "agent",
    "timestamp": at(0),
    "system_prompt": {"type": "text", "text": "You are an agent."},
    "tools": [],
}
EVENTS: list[dict[str, Any]] = [
    SYSTEM,
    said("user", "Fix it", 0),
    updated("running", 0),
    acted("terminal", "c1", 4, "r1", command="ls"),
    acted("file_editor", "c2", 4, "r1", path="a"),
    observed("terminal", "c1", 6, "a.py"),
    observed("file_editor", "c2", 7, "No such file", failed=True),
    {"kind": "CondensationRequest", "source": "agent", "timestamp": at(7)},
    acted("finish", "c3", 10, "r2", message="It works."),
    observed("finish", "c3", 10, "It works."),
    updated("finished", 10),
]
METRICS = {"token_usages": [{"response_id": "r1", "prompt_tokens": 100, "completion_tokens": 10}]}


def test_the_actions_of_one_response_are_one_step() -> None:
    state = read({"instance_id": "repo-1", "history": EVENTS, "metrics": METRICS}, "openhands")
    assert [(m.role, m.text) for m in state.messages] == [
        ("user", "Fix it"),
        ("assistant", "Let me see."),
        ("tool", "a.py"),
        ("tool", "No such file"),
        ("assistant", "Let me see."),
    ]
    both, last = state.steps
    assert [call.arguments for call in state.messages[1].tool_calls] == [{"command": "ls"}, {"path": "a"}]
    assert state.messages[1].reasoning == "It is broken."
    assert [failure.type for failure in both.failures] == [ErrorType.TOOL]
    assert (both.usage.total, last.usage.reported, last.has_tool_calls) == (110, False, False)
    assert [step.duration_ms for step in state.steps] == [7000, 3000]
    assert (state.status, state.outcome.reason) == ("completed", "The log says: the agent is finished")


def test_the_message_of_a_finish_is_the_answer() -> None:
    silent = {**EVENTS[8], "thought": []}
    assert read([*EVENTS[:8], silent], "openhands").last_response == "It works."


@pytest.mark.parametrize(
    ("ends", "reason", "text"),
    [
        ([updated("stuck", 20)], "guard", "the agent is stuck"),
        ([updated("paused", 20)], "user_requested", "the agent is paused"),
        ([updated("error", 20)], "error", "the agent is in the state error"),
        (
            [
                updated("error", 20),
                {
                    "kind": "ConversationErrorEvent",
                    "code": "MaxIterationsReached",
                    "detail": "maximum iterations",
                },
                {
                    "kind": "ConversationStateUpdateEvent",
                    "key": "full_state",
                    "value": {"execution_status": "error"},
                },
            ],
            "steps_limit",
            "MaxIterationsReached: maximum iterations",
        ),
        (
            [{"kind": "ConversationErrorEvent", "code": "LLMError", "detail": "no key"}],
            "error",
            "LLMError: no key",
        ),
    ],
)
def test_the_last_state_or_error_is_the_stop_reason(ends: list[Any], reason: str, text: str) -> None:
    state = read([*EVENTS[:7], *ends], "openhands")
    assert (state.stop_reason, state.outcome.reason) == (reason, f"The log says: {text}")


def test_errors_of_the_agent_and_rejections_are_results() -> None:
    failed = {"kind": "AgentErrorEvent", "tool_call_id": "c1", "error": "no such tool", "timestamp": at(5)}
    refused = {
        "kind": "UserRejectObservation",
        "tool_call_id": "c2",
        "rejection_reason": "too risky",
        "timestamp": at(5),
    }
    state = read([*EVENTS[:5], failed, refused, said("agent", "I stop.", 8)], "openhands")
    assert [m.text for m in state.messages[2:]] == ["no such tool", "too risky", "I stop."]
    assert [failure.type for failure in state.steps[0].failures] == [ErrorType.TOOL]
    assert state.stop_reason is StopReason.COMPLETED


async def test_a_file_with_one_event_in_each_line_is_one_run() -> None:
    lines = [json.dumps(event) for event in EVENTS]
    assert guess_format(lines) == "openhands"
    assert [len(state.steps) for state in read_log(lines, "openhands")] == [2]
    report = await import_log(MemoryStore(), [*lines[:3], "{", *lines[3:]], "openhands")
    assert (len(report.imported), [problem.line for problem in report.problems]) == (1, [4])


def test_a_result_without_its_call_is_reported_with_its_event() -> None:
    problems: list[Any] = []
    assert not list(read_log([json.dumps([*EVENTS[:3], EVENTS[5]])], "openhands", on_problem=problems.append))
    assert "event 4: it has a result of call 'c1'" in problems[0].reason


def test_a_circle_is_found_although_the_model_words_its_summaries_anew() -> None:
    events = [SYSTEM, said("user", "Fix it", 0)]
    for number in range(8):
        events.append(acted("terminal", f"c{number}", number, f"r{number}", command="ls"))
        events.append(observed("terminal", f"c{number}", number, "a.py"))
    replay = judge(read(events, "openhands"), RepeatedCallCheck())
    assert (replay.stopped_at, replay.stop_reason) == (5, StopReason.GUARD_FORBADE)
