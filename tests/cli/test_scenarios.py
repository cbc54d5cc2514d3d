"""Every scenario of the demo ends as it says, and the same way each time."""

from __future__ import annotations

import json

import pytest

from whyloop import AgentState, AgentStatus, StopReason
from whyloop.cli.demo import trace
from whyloop.cli.demo.scenarios import SCENARIOS, Scenario, play
from whyloop.events import AgentEvent, ApprovalDecided, ApprovalRequested, ToolCallStarted
from whyloop.testing import CapturedEvents, assert_continued
from whyloop.values.step import Interruption

ENDINGS = {
    "natural-end": (AgentStatus.COMPLETED, StopReason.COMPLETED, "ToolCallPresenceCheck"),
    "last-step": (AgentStatus.COMPLETED, StopReason.COMPLETED, "ToolCallPresenceCheck"),
    "steps-limit": (AgentStatus.STOPPED, StopReason.STEPS_LIMIT_REACHED, "StepsLimit"),
    "token-limit": (AgentStatus.STOPPED, StopReason.TOKEN_LIMIT_REACHED, "TokenUsageLimit"),
    "time-limit": (AgentStatus.STOPPED, StopReason.TIME_LIMIT_REACHED, "ExecutionTimeLimit"),
    "tool-retry": (AgentStatus.COMPLETED, StopReason.COMPLETED, "ToolCallPresenceCheck"),
    "retries-exhausted": (AgentStatus.FAILED, StopReason.RETRY_LIMIT_REACHED, "ErrorPolicyCriterion"),
    "rate-limit": (AgentStatus.COMPLETED, StopReason.COMPLETED, "ToolCallPresenceCheck"),
    "unknown-tool": (AgentStatus.FAILED, StopReason.ERROR_FORBADE, "ErrorPolicyCriterion"),
    "truncated": (AgentStatus.STOPPED, StopReason.FINISH_REASON_RECEIVED, "FinishReasonCheck"),
    "stop-request": (AgentStatus.STOPPED, StopReason.USER_REQUESTED, "StopRequestedCheck"),
    "approval": (AgentStatus.COMPLETED, StopReason.COMPLETED, "ToolCallPresenceCheck"),
    "guard": (AgentStatus.STOPPED, StopReason.GUARD_FORBADE, "DeletionBudget"),
    "three-days": (AgentStatus.COMPLETED, StopReason.COMPLETED, "ToolCallPresenceCheck"),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_ends_in_its_own_way(name: str) -> None:
    state = play(SCENARIOS[name])
    outcome = state.last_continuation_outcome
    assert outcome is not None
    assert (state.status, state.stop_reason, outcome.resolved_by) == ENDINGS[name], state.explain()


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_leaves_the_same_trace_each_time(name: str) -> None:
    first, second = (trace(SCENARIOS[name], play(SCENARIOS[name])) for _ in range(2))
    assert json.dumps(first) == json.dumps(second)


def test_together_they_show_every_way_to_end() -> None:
    assert {stop_reason for _, stop_reason, _ in ENDINGS.values()} == set(StopReason)
    assert {status for status, _, _ in ENDINGS.values()} == {
        AgentStatus.COMPLETED,
        AgentStatus.STOPPED,
        AgentStatus.FAILED,
    }


def test_the_names_are_these() -> None:
    assert list(SCENARIOS) == list(ENDINGS)


def test_the_steps_run_out_while_a_tool_call_asks_for_more() -> None:
    said = _last_words(play(SCENARIOS["steps-limit"]))
    assert said["StepsLimit"] == "forbid"
    assert said["ToolCallPresenceCheck"] == "request"


def test_a_tool_that_is_too_slow_is_cut_off_at_the_limit() -> None:
    state = play(SCENARIOS["time-limit"])
    assert state.execution.wall_seconds == pytest.approx(30.01)
    assert [step.interrupted is None for step in state.steps] == [True, False]


def test_a_tool_that_failed_once_is_forgiven() -> None:
    state = play(SCENARIOS["tool-retry"])
    assert [step.error_count for step in state.steps] == [1, 0, 0]
    assert_continued(state, step=1, by="ToolCallPresenceCheck")


def test_the_provider_is_given_the_time_that_it_asked_for() -> None:
    state = play(SCENARIOS["rate-limit"])
    assert state.execution.backoff_seconds == pytest.approx(20 + 1.5)
    assert state.execution.active_seconds < 4
    assert [message.role.value for message in state.messages] == ["user", "assistant", "tool", "assistant"]


def test_the_name_that_the_model_made_up_is_in_the_trace() -> None:
    assert "'enrol_partner'" in play(SCENARIOS["unknown-tool"]).explain()


def test_an_answer_ends_when_a_person_presses_stop() -> None:
    events = CapturedEvents()
    state = play(SCENARIOS["stop-request"], events.append)
    assert [event.step_number for event in events.of(ToolCallStarted)] == [1, 2]
    assert state.steps[-1].interrupted is Interruption.STOPPED
    last = state.messages[-1]
    assert (last.text, last.incomplete, last.tool_calls) == ("Now I enter Polar ", True, ())


def test_an_answer_on_the_last_allowed_step_completes_the_run() -> None:
    state = play(SCENARIOS["last-step"])
    assert _last_words(state)["StepsLimit"] == "forbid"
    assert state.stop_reason is StopReason.COMPLETED


def test_an_approved_call_runs_after_a_pause_that_no_limit_counts() -> None:
    events = CapturedEvents()
    state = play(SCENARIOS["approval"], events.append)
    (asked,) = events.of(ApprovalRequested)
    (decided,) = events.of(ApprovalDecided)
    assert (decided.question_id, decided.by) == (asked.question_id, "Kim")
    (approval,) = state.steps[1].tool_calls[0].approvals
    assert approval.question_id == asked.question_id
    assert state.execution.waiting_seconds == 7_200
    assert state.execution.active_seconds < 60


def test_the_guard_lets_one_deletion_through() -> None:
    state = play(SCENARIOS["guard"])
    first = state.steps[0].outcome
    assert first is not None
    evaluation = first.evaluation_for("DeletionBudget")
    assert evaluation is not None
    assert evaluation.context == {"used": 0, "limit": 1, "remaining": 1}
    assert _last_words(state)["DeletionBudget"] == "forbid"


def test_three_days_count_for_the_session_and_not_for_the_query() -> None:
    state = play(SCENARIOS["three-days"])
    age = state.execution.started_at - state.state_info.started_at
    assert age.days == 3
    assert state.execution.wall_seconds < 30
    assert state.step_count == 4
    assert state.execution.step_count == 2


def test_calls_of_one_step_take_their_time_side_by_side() -> None:
    step = play(SCENARIOS["natural-end"]).steps[0]
    assert [round(run.duration_ms) for run in step.tool_calls] == [420, 420]


def test_a_run_that_is_paced_goes_exactly_like_a_fast_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MODEL_PAUSE", "WORD_PAUSE", "TOOL_PAUSE", "BACKOFF_PAUSE"):
        monkeypatch.setattr(f"whyloop.cli.demo.assistant.{name}", 1e-6)
    for scenario in SCENARIOS.values():
        assert _told(scenario, paced=True) == _told(scenario, paced=False)


def test_the_settings_are_written_as_code() -> None:
    assert SCENARIOS["natural-end"].settings == ""
    assert SCENARIOS["guard"].settings == "criteria=[DeletionBudget(1)]"
    assert SCENARIOS["rate-limit"].settings == ("error_policy=ErrorPolicy.retry_tool_errors(3), timeout=60")


def _told(scenario: Scenario, *, paced: bool) -> list[AgentEvent]:
    events: list[AgentEvent] = []
    play(scenario, events.append, paced=paced)
    return events


def _last_words(state: AgentState) -> dict[str, str]:
    outcome = state.last_continuation_outcome
    assert outcome is not None
    return {said.criterion: said.decision.value for said in outcome.evaluations}
