"""Under other rules, a recorded run ends at the step at which a live run with those rules ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, strategies as st
from msgspec import Struct

from tests.loop.processes import TurnClock
from tests.support import MemoryJournal, examples
from whyloop import (
    Agent,
    AgentState,
    Backoff,
    CostLimit,
    CumulativeExecutionTimeLimit,
    ErrorPolicy,
    ExecutionTimeLimit,
    FinishReason,
    FinishReasonCheck,
    ModelRequest,
    ModelResponse,
    StepsLimit,
    TokenUsageLimit,
    ToolCall,
    Usage,
    tool,
)
from whyloop.errors import ModelError, RateLimitError
from whyloop.loop.executions import start_run
from whyloop.replay import judge


class Move(Struct, frozen=True):
    """What a scripted model does in one step, and how long each part takes."""

    thinks: float
    """The seconds until it answers."""
    calls: tuple[tuple[str, float], ...]
    """The tools that it asks for, and how long each runs."""
    tokens: int
    finish_reason: FinishReason
    error: type[Exception] | None


moves = st.builds(
    Move,
    st.sampled_from([0.0, 0.5, 1.0, 3.0]),
    st.lists(
        st.tuples(st.sampled_from(["work", "work", "fail"]), st.sampled_from([0.0, 0.5, 2.0])),
        min_size=1,
        max_size=2,
    ).map(tuple),
    st.sampled_from([0, 10, 100]),
    st.sampled_from([*[FinishReason.TOOL_CALLS] * 8, FinishReason.LENGTH]),
    st.sampled_from([*[None] * 6, ModelError, RateLimitError]),
)
PRICE = Decimal("0.0001")
LENIENT = ErrorPolicy.retry_all(50)
kinds_of_rules = (
    st.integers(1, 9).map(StepsLimit),
    st.integers(1, 700).map(TokenUsageLimit),
    st.sampled_from([0.3, 0.7, 1.2, 2.1, 4.3, 8.9, 15.4]).map(ExecutionTimeLimit),
    st.sampled_from([0.3, 0.7, 1.2, 2.1, 4.3, 8.9, 15.4]).map(CumulativeExecutionTimeLimit),
    st.sampled_from(["0.005", "0.01", "0.05"]).map(CostLimit),
    st.sampled_from([ErrorPolicy(), ErrorPolicy.retry_tool_errors(1), ErrorPolicy.retry_all(2)]),
    st.just(FinishReasonCheck("length")),
)
session_limits = st.integers(1, 9).map(lambda limit: StepsLimit(limit, scope="session"))


def some_of(*kinds: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """Return strategies for up to three rules that an agent can have together."""
    return st.lists(
        st.one_of(*kinds),
        min_size=1,
        max_size=3,
        unique_by=lambda rule: "time" if "Time" in type(rule).__name__ else type(rule).__name__,
    )


rules = some_of(*kinds_of_rules)
# Only on a run without limits: among rules of the developer, the order of the recording stays.
rules_with_session_limits = some_of(*kinds_of_rules, session_limits)


class Scripted:
    """A model and its tools on one clock, on which deadlines pass while they work."""

    def __init__(self, script: list[Move]) -> None:
        self.script, self.clock, self.journal = iter(script), TurnClock(), MemoryJournal()

    async def spend(self, seconds: float) -> None:
        """Let time pass, and give a deadline the chance to interrupt before the work ends."""
        left = seconds
        while left > 0:
            self.clock.advance(min(left, 0.1))
            left = round(left - 0.1, 6)
            for _ in range(3):
                await asyncio.sleep(0)

    async def respond(self, request: ModelRequest) -> AsyncIterator[ModelResponse]:
        move = next(self.script, None)
        if move is None:
            yield ModelResponse("The end.")
            return
        await self.spend(move.thinks)
        if move.error is not None:
            raise move.error("down")
        calls = tuple(
            ToolCall(f"call_{i}", name, {"seconds": seconds}) for i, (name, seconds) in enumerate(move.calls)
        )
        usage = Usage(input=move.tokens, cost=None if not move.tokens else move.tokens * PRICE)
        yield ModelResponse("", calls, move.finish_reason, usage)

    def run(self, **options: Any) -> AgentState:
        async def work(seconds: float) -> str:
            await self.spend(seconds)
            return "done"

        async def fail(seconds: float) -> str:
            await self.spend(seconds)
            raise RuntimeError("broken")

        tools = [tool(name="work")(work), tool(name="fail")(fail)]
        agent = Agent(
            self,
            tools,
            clock=self.clock,
            backoff=Backoff(jitter=0),
            stop_grace=0.0,
            **{"finish_reasons": (), **options},
        )
        self.journal.create(agent)
        return asyncio.run(start_run(agent, "go", self.journal.state, journal=self.journal).finish())


def live(script: list[Move], given_rules: list[Any]) -> AgentState:
    """Run the script with these rules and no others."""
    options: dict[str, Any] = {"max_steps": None, "timeout": None, "error_policy": LENIENT, "criteria": []}
    for rule in given_rules:
        match rule:
            case StepsLimit() if rule.scope == "execution":
                options["max_steps"] = rule.limit
            case TokenUsageLimit():
                options["max_tokens"] = rule.limit
            case ExecutionTimeLimit():
                options["timeout"] = rule.limit
            case CumulativeExecutionTimeLimit():
                options["cumulative_timeout"] = rule.limit
            case FinishReasonCheck():
                options["finish_reasons"] = rule.reasons
            case ErrorPolicy():
                options["error_policy"] = rule
            case _:
                options["criteria"].append(rule)
    return Scripted(script).run(**options)


@examples(300)
@given(st.lists(moves, max_size=8), rules_with_session_limits)
def test_judge_reports_the_step_at_which_a_live_run_with_those_rules_stops(
    script: list[Move], given_rules: list[Any]
) -> None:
    scripted = Scripted(script)
    recorded = scripted.run(error_policy=LENIENT, max_steps=None, timeout=None)
    truth = live(script, given_rules)
    for run in (recorded, recorded.to_dict(), scripted.journal.entries):
        replay = judge(run, *given_rules)
        assert not replay.beyond  # The recording has every step of the script.
        assert replay.stopped_at == truth.execution.step_count
        assert replay.stop_reason == truth.stop_reason
        assert replay.resolved_by == truth.outcome.resolved_by
        assert (
            replay.used.seconds == pytest.approx(truth.execution.active_seconds, abs=0.25) or replay.assumed
        )


def test_a_call_that_failed_before_the_deadline_counts_although_another_ran_past_it() -> None:
    stop = FinishReason.TOOL_CALLS
    slow, mixed = (("fail", 2.0),), (("work", 2.0), ("fail", 0.0))
    script = [Move(0.0, slow, 0, stop, None), Move(0.5, mixed, 0, stop, None)]
    given_rules: list[Any] = [ExecutionTimeLimit(4.3), ErrorPolicy.retry_tool_errors(1)]
    scripted = Scripted(script)
    recorded = scripted.run(error_policy=LENIENT, max_steps=None, timeout=None)
    truth = live(script, given_rules)
    for run in (recorded, recorded.to_dict(), scripted.journal.entries):
        replay = judge(run, *given_rules)
        assert (replay.stopped_at, replay.stop_reason) == (2, truth.stop_reason)


@examples(300)
@given(st.lists(moves, max_size=8), rules, rules)
def test_an_end_that_judge_reports_is_that_of_a_live_run_and_the_rest_is_beyond(
    script: list[Move], recorded_rules: list[Any], given_rules: list[Any]
) -> None:
    times = (ExecutionTimeLimit, CumulativeExecutionTimeLimit)
    kinds = {type(rule) for rule in given_rules}
    kept = [rule for rule in recorded_rules if type(rule) not in kinds]
    if kinds & set(times):  # An agent has one of the two.
        recorded_rules = [r for r in recorded_rules if type(r) in kinds or not isinstance(r, times)]
        kept = [rule for rule in kept if not isinstance(rule, times)]
    recorded = live(script, recorded_rules)
    truth = live(script, [*kept, *given_rules])
    replay = judge(recorded, *given_rules)
    if replay.beyond:
        assert truth.execution.step_count >= recorded.execution.step_count
    elif not replay.assumed:
        assert replay.stopped_at == truth.execution.step_count
        assert replay.stop_reason == truth.stop_reason
        assert replay.resolved_by == truth.outcome.resolved_by
