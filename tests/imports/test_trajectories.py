"""Trajectories of OpenHands and SWE-agent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from whyloop import AgentState, CumulativeExecutionTimeLimit, ErrorType, StopReason
from whyloop.imports import read_log
from whyloop.replay import judge


def read(document: Any, format: str) -> AgentState:
    (state,) = read_log([json.dumps(document)], format)
    return state


def response(response_id: str, *calls: tuple[str, str, str], content: str = "") -> dict[str, Any]:
    functions = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for call_id, name, arguments in calls
    ]
    message = {"role": "assistant", "content": content, "tool_calls": functions}
    return {
        "id": response_id,
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 10},
    }


def metadata(call_id: str, name: str, answer: dict[str, Any]) -> dict[str, Any]:
    return {"tool_call_id": call_id, "function_name": name, "model_response": answer}


BOTH = response("r1", ("c1", "execute_bash", '{"command": "ls"}'), ("c2", "str_replace", '{"path": "a"}'))
HISTORY: list[dict[str, Any]] = [
    {
        "id": 0,
        "timestamp": "2026-01-16T10:00:00",
        "source": "agent",
        "action": "system",
        "args": {"content": "You are an agent.", "agent_class": "CodeActAgent"},
    },
    {
        "id": 1,
        "timestamp": "2026-01-16T10:00:00",
        "source": "user",
        "action": "message",
        "args": {"content": "Fix it"},
    },
    {
        "id": 2,
        "timestamp": "2026-01-16T10:00:01",
        "source": "environment",
        "observation": "agent_state_changed",
        "content": "",
        "extras": {"agent_state": "running"},
    },
    {
        "id": 3,
        "timestamp": "2026-01-16T10:00:05",
        "source": "agent",
        "action": "run",
        "args": {"command": "ls", "thought": ""},
        "tool_call_metadata": metadata("c1", "execute_bash", BOTH),
    },
    {
        "id": 4,
        "timestamp": "2026-01-16T10:00:06",
        "source": "agent",
        "observation": "run",
        "cause": 3,
        "content": "a.py",
        "extras": {"command": "ls"},
        "tool_call_metadata": metadata("c1", "execute_bash", BOTH),
    },
    {
        "id": 5,
        "timestamp": "2026-01-16T10:00:06",
        "source": "agent",
        "action": "edit",
        "args": {"path": "a"},
        "tool_call_metadata": metadata("c2", "str_replace", BOTH),
    },
    {
        "id": 6,
        "timestamp": "2026-01-16T10:00:08",
        "source": "agent",
        "observation": "error",
        "cause": 5,
        "content": "No such file",
        "extras": {},
    },
    {
        "id": 7,
        "timestamp": "2026-01-16T10:00:10",
        "source": "agent",
        "action": "run",
        "args": {"command": "pwd", "thought": "Where am I?"},
    },
    {
        "id": 8,
        "timestamp": "2026-01-16T10:00:11",
        "source": "agent",
        "observation": "run",
        "cause": 7,
        "content": "/",
        "extras": {},
    },
    {
        "id": 9,
        "timestamp": "2026-01-16T10:00:15",
        "source": "agent",
        "action": "finish",
        "args": {"final_thought": "It works."},
    },
]


def test_actions_and_observations_become_steps_with_their_calls() -> None:
    state = read({"instance_id": "repo-1", "history": HISTORY}, "openhands")
    assert (state.agent, state.metadata["imported_run"]) == ("CodeActAgent", "repo-1")
    assert [(m.role, m.text) for m in state.messages] == [
        ("user", "Fix it"),
        ("assistant", ""),
        ("tool", "a.py"),
        ("tool", "No such file"),
        ("assistant", "Where am I?"),
        ("tool", "/"),
        ("assistant", "It works."),
    ]
    both, alone, last = state.steps
    assert [call.arguments for call in state.messages[1].tool_calls] == [{"command": "ls"}, {"path": "a"}]
    assert [failure.type for failure in both.failures] == [ErrorType.TOOL]
    assert (both.usage.total, alone.usage.reported, last.has_tool_calls) == (110, False, False)
    assert state.messages[4].tool_calls[0].name == "run"
    assert (state.status, state.outcome.reason) == ("completed", "The log says: the agent finished")


def test_times_of_events_are_those_of_the_run() -> None:
    state = read(HISTORY, "openhands")
    assert [step.duration_ms for step in state.steps] == [8000, 3000, 4000]
    assert state.execution.wall_seconds == 15
    replay = judge(state, CumulativeExecutionTimeLimit(9))
    assert (replay.stopped_at, replay.stop_reason) == (2, StopReason.TIME_LIMIT_REACHED)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("RuntimeError: Agent reached maximum iteration in headless mode.", "steps_limit"),
        ("AgentStuckInLoopError: Agent got stuck in a loop", "guard"),
        ("LLM authentication failed", "error"),
    ],
)
def test_an_error_of_the_run_is_its_stop_reason(error: str, reason: str) -> None:
    state = read({"history": HISTORY[:-1], "error": error}, "openhands")
    assert (state.stop_reason, state.outcome.reason) == (reason, f"The log says: {error}")


def test_an_end_without_a_state_is_unknown() -> None:
    state = read(HISTORY[:-1], "openhands")
    assert state.outcome.reason == "Why the run ended is unknown: the log ends here"


def test_totals_of_a_run_are_kept_beside_it_and_no_step_has_a_share() -> None:
    metrics = {
        "accumulated_cost": 0.25,
        "accumulated_token_usage": {"prompt_tokens": 900, "completion_tokens": 30},
    }
    state = read({"history": HISTORY[:2] + HISTORY[7:], "metrics": metrics}, "openhands")
    assert state.metadata["totals"] == {"input_tokens": 900, "output_tokens": 30, "cost": 0.25}
    assert not state.usage.reported
    assert state.usage.cost is None


SWE: dict[str, Any] = {
    "environment": "swe_main",
    "trajectory": [
        {
            "action": "ls -F\n",
            "observation": "a.py",
            "response": "I look.\n```\nls -F\n```",
            "thought": "I look.",
            "execution_time": 0.5,
            "state": {},
        },
        {
            "action": "",
            "observation": "Your answer has no command.",
            "response": "Hm.",
            "thought": "",
            "state": {},
        },
        {"action": "submit", "observation": "diff", "response": "Done.", "thought": "Done.", "state": {}},
    ],
    "history": [
        {"role": "system", "content": "You have a shell.", "agent": "main"},
        {"role": "user", "content": "A demonstration", "is_demo": True, "agent": "main"},
        {"role": "user", "content": [{"type": "text", "text": "Solve the issue"}], "agent": "main"},
    ],
    "info": {
        "exit_status": "submitted",
        "model_stats": {"instance_cost": 0.5, "tokens_sent": 9, "tokens_received": 1},
    },
}


def test_steps_of_swe_agent_have_their_thought_command_and_observation() -> None:
    state = read(SWE, "swe-agent")
    assert [(m.role, m.text) for m in state.messages] == [
        ("user", "Solve the issue"),
        ("assistant", "I look."),
        ("tool", "a.py"),
        ("assistant", "Hm."),
        ("developer", "Your answer has no command."),
        ("assistant", "Done."),
        ("tool", "diff"),
    ]
    call = state.messages[1].tool_calls[0]
    assert (call.name, call.arguments) == ("action", {"command": "ls -F"})
    assert state.steps[0].tool_calls[0].duration_ms == 500
    assert (state.agent, state.status, state.execution.untimed) == ("main", "completed", True)
    assert state.metadata["totals"] == {"input_tokens": 9, "output_tokens": 1, "cost": 0.5}


def test_calls_of_a_model_with_function_calling_are_those_of_its_history() -> None:
    function = {"name": "bash", "arguments": '{"command": "ls -F"}'}
    said = {
        "role": "assistant",
        "tool_calls": [{"id": "c1", "function": function}],
        "thinking_blocks": [{"type": "thinking", "thinking": "Look first."}],
    }
    state = read(
        {**SWE, "trajectory": SWE["trajectory"][:1], "history": [*SWE["history"], said]}, "swe-agent"
    )
    call = state.messages[1].tool_calls[0]
    assert (call.id, call.name, call.arguments) == ("c1", "bash", {"command": "ls -F"})
    assert state.messages[1].reasoning == "Look first."


def test_a_run_of_swe_agent_has_the_name_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "django__django-1.traj"
    path.write_text(json.dumps(SWE, indent=2), encoding="utf-8")
    (state,) = read_log(path, "swe-agent")
    assert state.agent_id.startswith("django__django-1-")
    assert state.metadata["imported_run"] == "django__django-1"


@pytest.mark.parametrize(
    ("status", "reason", "ended"),
    [
        ("submitted", "completed", "completed"),
        ("submitted (exit_cost)", "guard", "stopped"),
        ("exit_format", "retry_limit", "failed"),
        ("exit_context", "error", "failed"),
        ("exit_total_execution_time", "time_limit", "stopped"),
    ],
)
def test_the_exit_status_is_the_stop_reason(status: str, reason: str, ended: str) -> None:
    state = read({**SWE, "info": {"exit_status": status}}, "swe-agent")
    assert (state.stop_reason, state.status) == (reason, ended)
    assert state.outcome.reason == f"The log says: exit_status {status!r}"


def test_an_exit_status_that_is_not_known_is_quoted_and_explains_nothing() -> None:
    state = read({**SWE, "info": {"exit_status": "exit_mood"}}, "swe-agent")
    assert state.outcome.reason == "Why the run ended is unknown: the log says exit_status 'exit_mood'"
    state = read({**SWE, "info": {"exit_status": None}}, "swe-agent")
    assert state.outcome.reason == "Why the run ended is unknown: the log ends here"
