"""Judging a recorded run under other rules: where it ends, what it saves, and what is not known."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from whyloop import (
    Agent,
    AgentState,
    Budget,
    ContinuationDecision,
    ContinuationEvaluation,
    CostLimit,
    CumulativeExecutionTimeLimit,
    ErrorPolicy,
    ExecutionTimeLimit,
    FinishReason,
    FinishReasonCheck,
    Session,
    SlimAgentStateSerializer,
    SlimSerializationConfig,
    StepsLimit,
    TokenUsageLimit,
    Usage,
    tool,
)
from whyloop.errors import ConfigurationError, RateLimitError
from whyloop.events import AgentEvent, AgentStepCompleted
from whyloop.replay import Amounts, Recording, judge
from whyloop.stores import MemoryStore
from whyloop.testing import FakeClock, Reply, ScriptedModel, call, text

STEP = Usage(input=90, output=10, cost=Decimal("0.02"))


def agent(*replies: Reply | str | Exception, clock: FakeClock | None = None, **options: Any) -> Agent:
    """An agent with one tool, which takes a second, and one that fails."""
    clock = clock or FakeClock()

    @tool
    def look(at: str) -> str:
        clock.advance(1)
        return f"saw {at}"

    @tool
    def break_it() -> str:
        raise RuntimeError("broken")

    return Agent(ScriptedModel(replies), [look, break_it], clock=clock, **options)


def look(usage: Usage = STEP) -> Reply:
    return call("look", {"at": "it"}, usage=usage)


def six_steps(**options: Any) -> AgentState:
    return agent(*[look()] * 5, text("done", usage=STEP), **options).run_sync("go")


def test_a_lower_limit_ends_the_run_earlier_and_says_what_that_saves() -> None:
    replay = judge(six_steps(), StepsLimit(4))
    assert (replay.stopped_at, replay.stop_reason, replay.resolved_by) == (4, "steps_limit", "StepsLimit")
    assert replay.used == Amounts(4, 400, 4.0, Decimal("0.08"))
    assert replay.saved == Amounts(2, 200, 1.0, Decimal("0.04"))
    assert replay.differs
    assert not replay.assumed
    assert not replay.beyond
    assert len(replay.outcomes) == 4
    assert [outcome.should_continue for outcome in replay.outcomes] == [True, True, True, False]
    assert "Stopped after 4 steps (steps_limit)" in replay.explain()


def test_an_answer_on_the_last_allowed_step_completes_the_run() -> None:
    replay = judge(six_steps(), StepsLimit(6), TokenUsageLimit(600))
    assert (replay.stopped_at, replay.stop_reason) == (6, "completed")
    assert not replay.differs
    assert replay.saved == Amounts()


def test_rules_that_are_not_named_keep_their_recorded_evaluations() -> None:
    state = six_steps()
    replay = judge(state, TokenUsageLimit(350))
    assert [e.criterion for e in replay.outcomes[-1].evaluations] == [
        "ErrorPolicyCriterion",
        "StopRequestedCheck",
        "StepsLimit",
        "TokenUsageLimit",
        "ExecutionTimeLimit",
        "FinishReasonCheck",
        "ApprovalRequired",
        "ToolCallPresenceCheck",
    ]
    kept = state.steps[3].outcome
    assert kept is not None
    assert replay.outcomes[3].evaluation_for("StepsLimit") is kept.evaluation_for("StepsLimit")


def test_replace_all_judges_as_an_agent_with_these_rules_alone() -> None:
    stopped = agent(*[look()] * 3, max_steps=3).run_sync("go")
    assert judge(stopped, TokenUsageLimit(10_000)).stop_reason == "steps_limit"
    assert judge(stopped, TokenUsageLimit(10_000), replace_all=True).beyond
    assert judge(stopped, TokenUsageLimit(200), replace_all=True).stopped_at == 2


def test_a_run_that_would_have_continued_past_its_recording_is_beyond() -> None:
    stopped = agent(*[look()] * 3, max_steps=3).run_sync("go")
    replay = judge(stopped, StepsLimit(10))
    assert replay.beyond
    assert replay.differs
    assert (replay.stopped_at, replay.stop_reason, replay.resolved_by) == (None, None, None)
    assert replay.saved == Amounts()


def test_a_policy_that_would_have_retried_is_beyond_the_recording() -> None:
    failed = agent(RateLimitError("busy")).run_sync("go")
    assert judge(failed, ErrorPolicy.retry_all(3)).beyond


def test_counters_follow_the_new_policy() -> None:
    # Ignored failures are forgotten, retried ones add up.
    broken = [call("break_it", {})] * 4
    ignored = agent(*broken, "done", error_policy=ErrorPolicy.ignore_tool_errors()).run_sync("go")
    assert ignored.status == "completed"
    replay = judge(ignored, ErrorPolicy.retry_tool_errors(2))
    assert (replay.stopped_at, replay.stop_reason) == (3, "retry_limit")
    reason = replay.outcomes[-1].reason
    assert reason == "Tool error after 3 consecutive failures (max: 2)"
    assert not replay.assumed


def test_a_step_that_crosses_a_new_deadline_is_interrupted_there() -> None:
    state = six_steps()  # Each of the five calls takes a second.
    replay = judge(state, ExecutionTimeLimit(2.5))
    assert (replay.stopped_at, replay.stop_reason) == (3, "time_limit")
    step = replay.state.steps[-1]
    assert step.interrupted == "out_of_time"
    assert replay.used.seconds == pytest.approx(2.5, abs=0.001)
    assert replay.saved.seconds == pytest.approx(2.5, abs=0.001)
    assert replay.saved.steps == 3
    assert "outcome unknown: the time for this execution was up" in (step.tool_calls[0].error or "")


def test_a_recorded_limit_on_steps_still_counts_for_a_step_that_is_interrupted() -> None:
    stopped = agent(*[look()] * 3, max_steps=3).run_sync("go")
    replay = judge(stopped, ExecutionTimeLimit(2.5))
    assert replay.state.steps[-1].interrupted == "out_of_time"
    assert (replay.stopped_at, replay.resolved_by) == (3, "StepsLimit")  # It comes first, as in an agent.


def test_a_rule_that_is_new_to_the_run_has_the_place_that_an_agent_gives_it() -> None:
    state = agent(*[look()] * 3, criteria=CostLimit("0.04")).run_sync("go")
    replay = judge(state, CostLimit("0.02"), CumulativeExecutionTimeLimit(0.5))
    assert replay.resolved_by == "CumulativeExecutionTimeLimit"


def test_limits_of_the_run_and_of_the_session_each_have_their_own_place() -> None:
    cut_off = text("It is", finish_reason=FinishReason.LENGTH)
    built = agent(cut_off, max_steps=1, criteria=[StepsLimit(9, scope="session")])
    state = built.run_sync("go")
    assert state.outcome.resolved_by == "StepsLimit"
    replay = judge(state, built.criteria)
    assert [each.criterion for each in replay.outcomes[0].evaluations] == [
        each.criterion for each in state.outcome.evaluations
    ]
    assert (replay.resolved_by, replay.differs) == ("StepsLimit", False)


def test_a_stop_that_was_requested_before_the_wrap_up_leaves_the_end_to_the_limit() -> None:
    built = agent(look(), max_steps=1, wrap_up=True)

    @built.subscribe
    def stop(event: AgentEvent) -> None:
        if isinstance(event, AgentStepCompleted):
            built.request_stop("enough")

    state = built.run_sync("go")
    assert (state.stop_reason, state.outcome.resolved_by) == ("steps_limit", "StepsLimit")
    assert (judge(state).resolved_by, judge(state).differs) == ("StepsLimit", False)


@pytest.mark.parametrize("context", [{}, {"limit": "ten"}])
def test_a_rule_with_the_name_of_a_limit_may_show_what_it_likes(context: dict[str, object]) -> None:
    def decide(state: AgentState) -> ContinuationEvaluation:
        return ContinuationEvaluation("CostLimit", ContinuationDecision.ALLOW_CONTINUATION, "mine", context)

    built = agent(*[look()] * 3, max_steps=2, max_tokens=250, wrap_up=True, criteria=decide)
    state = built.run_sync("go")
    assert state.stop_reason == "steps_limit"
    state = built.resume_sync(state, grant=Budget(steps=5))
    assert (state.stop_reason, state.step_count) == ("token_limit", 2)
    assert judge(state, StepsLimit(1)).stopped_at == 1


def test_a_longer_time_limit_does_not_invent_the_rest_of_an_interrupted_step() -> None:
    recorded = six_steps()
    cut = judge(recorded, ExecutionTimeLimit(2.5)).state  # A run that a deadline interrupted.
    assert judge(cut, ExecutionTimeLimit(2.5)).stop_reason == "time_limit"
    assert judge(cut, ExecutionTimeLimit(100)).beyond
    assert judge(cut, StepsLimit(100)).stop_reason == "time_limit"


def test_recorded_grants_apply_unless_they_are_left_out() -> None:
    clock = FakeClock()
    limited = agent(*[look()] * 5, "done", clock=clock, max_steps=3)
    stopped = limited.run_sync("go")
    clock.advance(60)
    state = limited.resume_sync(stopped, grant=Budget(steps=5))
    assert state.stop_reason == "completed"
    assert judge(state, StepsLimit(3)).stop_reason == "completed"
    without = judge(state, StepsLimit(3), grants=False)
    assert (without.stopped_at, without.stop_reason) == (3, "steps_limit")
    assert without.saved.steps == 3
    assert judge(state, StepsLimit(2)).stopped_at == 2  # It had not been granted anything by then.


def test_a_run_that_a_person_resumed_is_assumed_where_the_rules_would_have_continued() -> None:
    clock = FakeClock()
    limited = agent(*[look()] * 5, "done", clock=clock, max_steps=3)
    stopped = limited.run_sync("go")
    clock.advance(60)
    state = limited.resume_sync(stopped, grant=Budget(steps=5))
    replay = judge(state, StepsLimit(20))
    assert (replay.stop_reason, replay.stopped_at, replay.assumed) == ("completed", 6, True)
    assert replay.latest.assumed_from == 4


def test_feedback_that_the_recording_lacks_makes_the_rest_assumed() -> None:
    def nudge(state: AgentState) -> ContinuationEvaluation:
        said = state.execution.step_count == 2
        decision = ContinuationDecision.ALLOW_CONTINUATION
        return ContinuationEvaluation("nudge", decision, "a nudge", feedback="Hurry up." if said else None)

    exact = judge(six_steps(), nudge, StepsLimit(2))
    assert not exact.assumed
    replay = judge(six_steps(), nudge, StepsLimit(4))
    assert (replay.stopped_at, replay.assumed, replay.latest.assumed_from) == (4, True, 3)
    assert [message.text for message in replay.state.messages if message.is_developer] == ["Hurry up."]
    assert str(replay) == (
        "It would have been stopped at step 4 (steps_limit) by StepsLimit, assuming that the model had "
        "answered the same from step 3 on."
    )


@pytest.mark.parametrize("rule", [StepsLimit(2), TokenUsageLimit(150), ExecutionTimeLimit(1.5)])
def test_a_wrap_up_at_an_earlier_end_is_not_recorded_so_what_follows_is_assumed(rule: Any) -> None:
    replies = [*[look()] * 3, text("what is known", usage=STEP)]
    wrapped_up = agent(*replies, max_steps=3, wrap_up=True).run_sync("go")
    replay = judge(wrapped_up, rule)
    assert (replay.stopped_at, replay.assumed, replay.latest.assumed_from) == (2, False, 3)
    assert (replay.saved.tokens, replay.saved.cost) == (100, Decimal("0.02"))  # The third step alone.
    assert judge(wrapped_up).latest.assumed_from is None
    assert judge(agent(*replies, max_steps=3).run_sync("go"), rule).latest.assumed_from is None


def test_the_text_says_that_a_run_would_have_failed_or_completed() -> None:
    failing = agent(call("break_it", {}), "done", error_policy=ErrorPolicy.retry_all()).run_sync("go")
    assert str(judge(failing)).startswith("It would have completed at step 2")
    stopped = judge(failing, ErrorPolicy.stop_on_any_error())
    assert str(stopped) == "It would have failed at step 1 (error) by ErrorPolicyCriterion."


def test_executions_are_judged_one_by_one() -> None:
    asked = agent(*[look()] * 4, "first", look(), "second")
    state = asked.run_sync("again", state=asked.run_sync("go"))
    replay = judge(state, StepsLimit(3))
    first, second = replay.executions
    assert (first.ending.stopped_at, second.ending.stopped_at) == (3, 2)
    assert (replay.stopped_at, replay.stop_reason) == (2, "completed")
    assert replay.saved.steps == 2
    # A limit of the session counts what was recorded before the query.
    whole = judge(state, StepsLimit(5, scope="session"))
    assert whole.executions[0].ending.stop_reason == "completed"
    assert (whole.stopped_at, whole.stop_reason) == (0, "steps_limit")


def test_unknown_usage_and_cost_stay_unknown() -> None:
    state = agent(look(), look(Usage(reported=False)), look(), "done").run_sync("go")
    replay = judge(state, StepsLimit(1))
    assert replay.used == Amounts(1, 100, 1.0, Decimal("0.02"))
    assert replay.saved == Amounts(3, None, 2.0, None)
    assert judge(state, StepsLimit(2)).used.tokens is None
    assert judge(state, StepsLimit(2)).saved.tokens == 100


def test_a_rule_that_raises_ends_the_run_with_its_error_as_it_would_live() -> None:
    def picky(state: AgentState) -> bool:
        return 1 // (state.execution.step_count - 3) < 5

    replay = judge(six_steps(), picky)
    assert (replay.stopped_at, replay.stop_reason, replay.resolved_by) == (3, "error", "picky")
    assert "could not be evaluated" in replay.outcomes[-1].reason


def test_several_rules_and_all_criteria_of_an_agent_can_be_given() -> None:
    other = agent(max_steps=2, criteria=CostLimit(1))
    assert judge(six_steps(), other.criteria).stopped_at == 2
    assert judge(six_steps(), CumulativeExecutionTimeLimit(3.5), CostLimit("0.03")).resolved_by == "CostLimit"
    assert judge(six_steps(), FinishReasonCheck("tool_calls")).stopped_at == 1


async def test_a_stored_session_is_read_and_judged() -> None:
    store = MemoryStore()
    session = await Session.open(store, agent(*[look()] * 5, "done"), "s", create=True)
    await session.send("go")
    recording = await Recording.read(store, "s")
    replay = judge(recording, StepsLimit(2))
    assert (replay.agent_id, replay.stopped_at) == ("s", 2)
    lines = [line async for line in store.export()]
    assert judge(lines, StepsLimit(2)).to_dict() == replay.to_dict()


async def test_a_denial_after_a_long_pause_does_not_cross_a_new_deadline() -> None:
    clock = FakeClock()

    @tool(needs_approval=True)
    def pay() -> str:
        return "paid"

    store = MemoryStore(clock=clock)
    model = ScriptedModel([call("pay"), "done"])
    session = await Session.open(store, Agent(model, [pay], clock=clock), "a", create=True)
    await session.send("go")
    clock.advance(3600)
    await session.deny(session.state.pending_calls[0].id, "no")
    await session.resume()
    replay = judge(await Recording.read(store, "a"), ExecutionTimeLimit(60))
    assert not replay.differs
    assert (replay.stop_reason, replay.stopped_at) == ("completed", 2)


async def test_a_wait_that_a_deadline_cut_off_and_a_person_resumed_is_judged_as_recorded() -> None:
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    model = ScriptedModel([RateLimitError("busy", retry_after=60), "done"])
    built = Agent(model, clock=clock, timeout=5, error_policy=ErrorPolicy.retry_all())
    session = await Session.open(store, built, "a", create=True)
    assert (await session.send("go")).stop_reason == "time_limit"
    assert (await session.resume()).stop_reason == "completed"
    recording = await Recording.read(store, "a")
    replay = judge(recording, built.criteria, replace_all=True)
    assert (replay.stop_reason, replay.differs) == ("completed", False)
    assert judge(recording, ExecutionTimeLimit(3)).stop_reason == "time_limit"


def test_a_step_that_does_not_say_when_its_leg_began_belongs_to_the_same_leg() -> None:
    snapshot = six_steps().to_dict()
    for step in snapshot["steps"]:
        del step["leg_started_at"]
    assert judge(snapshot, ExecutionTimeLimit(3.5)).stopped_at == 4


def test_a_slim_snapshot_is_judged_if_nothing_is_missing() -> None:
    state = six_steps()
    full = SlimAgentStateSerializer(SlimSerializationConfig.full())
    assert judge(full.deserialize(full.serialize(state)), StepsLimit(3)).stopped_at == 3
    for config in (SlimSerializationConfig.minimal(), SlimSerializationConfig(max_messages=4)):
        slim = SlimAgentStateSerializer(config)
        with pytest.raises(ConfigurationError, match="use its journal or a full snapshot"):
            judge(slim.deserialize(slim.serialize(state)), StepsLimit(3))


@pytest.mark.parametrize(
    ("run", "text"),
    [
        ("session-1", "await Recording.read"),
        (7, "use a state, a snapshot, a journal"),
        (AgentState(), "has no step to judge"),
    ],
)
def test_a_run_that_cannot_be_judged_is_refused(run: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        judge(run, StepsLimit(3))


def test_rules_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="can never matter"):
        judge(six_steps(), StepsLimit(3), StepsLimit(5))
    with pytest.raises(ConfigurationError, match="is a class"):
        judge(six_steps(), StepsLimit)  # type: ignore[arg-type]


def test_a_rule_may_give_its_evaluations_a_name_of_their_own() -> None:
    class Curfew:
        def explain(self, state: AgentState) -> ContinuationEvaluation:
            late = state.execution.step_count >= 2
            forbid, allow = (
                ContinuationDecision.FORBID_CONTINUATION,
                ContinuationDecision.ALLOW_CONTINUATION,
            )
            return ContinuationEvaluation("night", forbid if late else allow, "It is late")

    replay = judge(six_steps(), Curfew())
    assert (replay.stopped_at, replay.resolved_by) == (2, "night")
