"""A state is judged like its journal, or says what it lacks, also if a later decision replaced another."""

from __future__ import annotations

from typing import Any

import pytest

from tests.wire.random_runs import Said, Scenario
from whyloop import AgentState, ErrorPolicy, FinishReason, StepsLimit, StopReason, TokenUsageLimit, ToolCall
from whyloop.replay import ExecutionReplay, judge
from whyloop.values.model import Usage

RETRY = ErrorPolicy.retry_all(2)
ASKS = Said([], [ToolCall("", "guarded", {})], False, False, FinishReason.STOP)
WORK = Said([], [ToolCall("", "work", {})], False, False, FinishReason.STOP)
YES = Said(["Yes."], [], False, False, FinishReason.STOP)
BREAKS = Said([], [], False, True, FinishReason.STOP)


async def judged(
    script: list[Said],
    happening: list[tuple[str, int]],
    *rules: Any,
    max_steps: int = 3,
    wrap_up: bool = False,
    **options: Any,
) -> tuple[ExecutionReplay, ExecutionReplay]:
    """Judge the latest execution of a session, from its state and from its journal.

    Each answer has 15 tokens. Without rules, it is judged under its own.
    """
    options = {"usage": Usage(10, 5), **options}
    scene = await Scenario(script, RETRY, max_steps, happening, wrap_up, options).scene()
    given = rules or (scene.agent.criteria,)
    state = AgentState.from_dict(scene.state.to_dict())
    return judge(state, *given).latest, judge(scene.journal.entries, *given).latest


@pytest.mark.parametrize(
    "happening",
    [[("fork", 0), ("stop_without_a_runner", 0)], [("resume", 1)]],
    ids=["stopped without its agent", "resumed"],
)
async def test_a_state_lacks_what_was_decided_in_the_middle_of_a_step(
    happening: list[tuple[str, int]],
) -> None:
    state, journal = await judged([ASKS], happening, TokenUsageLimit(40), max_tokens=15)
    assert journal.beyond
    assert journal.missing is None
    assert state.beyond
    assert state.missing is not None
    assert "in the middle of step 1" in state.missing


@pytest.mark.parametrize("happening", [[("stop_without_a_runner", 1)], [("query", 1)]], ids=["stop", "query"])
async def test_a_state_has_what_was_decided_if_no_rule_forbade_later(
    happening: list[tuple[str, int]],
) -> None:
    for replay in await judged([ASKS], happening, TokenUsageLimit(40), max_tokens=30):
        assert (replay.beyond, replay.differs, replay.ending) == (False, False, replay.recorded_ending)


async def test_a_run_in_progress_may_have_ended_while_it_waited() -> None:
    happening = [("stop_without_a_runner", 1), ("crash", 2), ("resume", 6)]
    state, journal = await judged([ASKS], happening, TokenUsageLimit(1))
    assert journal.ending.stop_reason is StopReason.TOKEN_LIMIT_REACHED
    assert state.missing is not None


async def test_a_step_that_is_tried_again_ends_at_an_earlier_limit_although_it_was_stopped() -> None:
    for replay in await judged([YES, BREAKS], [("stop", 5), ("query", 1)], StepsLimit(1)):
        assert replay.recorded_ending.stop_reason is StopReason.USER_REQUESTED
        assert (replay.ending.stopped_at, replay.ending.resolved_by) == (1, "StepsLimit")


async def test_the_end_that_a_person_overruled_does_not_count_when_a_process_recovers() -> None:
    happening = [("crash", 4), ("resume", 3), ("recover", 0)]
    for replay in await judged([WORK, WORK], happening, TokenUsageLimit(29), max_steps=1):
        assert (replay.ending.stopped_at, replay.ending.resolved_by) == (2, "TokenUsageLimit")


async def test_a_state_shows_that_a_wrap_up_was_stopped_before_a_resume() -> None:
    script, happening = [YES, WORK, WORK], [("stop", 5), ("query", 1), ("resume", 1)]
    for replay in await judged(script, happening, max_steps=1, wrap_up=True):
        assert (replay.beyond, replay.differs, replay.assumed) == (False, False, False)
    for replay in await judged(script, happening, StepsLimit(2), max_steps=1, wrap_up=True):
        assert replay.beyond
