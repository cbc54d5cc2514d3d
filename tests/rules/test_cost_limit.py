"""A limit on money: it reads recorded costs, and an unknown cost is not zero."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from tests.support import MemoryJournal, assert_readable
from whyloop import (
    Agent,
    AgentState,
    Budget,
    ContinuationEvaluation,
    CostLimit,
    ErrorPolicy,
    FinishReason,
    ModelRequest,
    ModelResponse,
    ModelSource,
    Price,
    SlimAgentStateSerializer,
    SlimSerializationConfig,
    TextDelta,
    ToolCall,
    Usage,
    tool,
)
from whyloop.errors import ConfigurationError, ModelError
from whyloop.loop.executions import resume_run, start_run
from whyloop.testing import FakeClock, assert_stopped
from whyloop.values.judgement import Judged, JudgedAlike

PRICE = Price(input=1, output=1)


@tool
async def work() -> str:
    return "done"


class Scripted:
    """A model that asks for a tool with every reply; each spends an amount.

    None is an unknown price, "silent" reports no usage, "broken" breaks off, and "end" is an answer.
    """

    def __init__(self, script: Sequence[Any]) -> None:
        self._script = iter(script)

    async def respond(self, request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        spent = next(self._script, "end")
        if spent == "broken":
            yield TextDelta("I was about to")
            raise ModelError("the connection was lost")
        usage = Usage(1000, 500, cost=None if isinstance(spent, str | None) else Decimal(str(spent)))
        if spent == "silent":
            usage = Usage(reported=False)
        if spent == "end":
            yield ModelResponse("Done.", usage=PRICE.priced(Usage(10)), source=ModelSource("priced"))
            return
        calls = (ToolCall("call_1", "work", {}),)
        source = ModelSource("home-made")
        yield ModelResponse("", calls, FinishReason.TOOL_CALLS, usage, source=source)


def spending(*script: Any, limit: CostLimit, **options: Any) -> Agent:
    return Agent(Scripted(script), [work], clock=FakeClock(), criteria=[limit], **options)


def said_by_limit(state: AgentState) -> ContinuationEvaluation:
    outcome = state.last_continuation_outcome
    assert outcome is not None
    said = outcome.evaluation_for(CostLimit)
    assert said is not None
    return said


async def test_it_stops_once_the_money_is_spent() -> None:
    state = await spending(0.2, 0.2, 0.2, limit=CostLimit(0.4)).run("go")
    assert_stopped(state, reason="guard", by=CostLimit)
    said = said_by_limit(state)
    assert said.reason == "Limit reached: $0.40 of $0.40 used"
    assert said.context == {"used": 0.4, "limit": 0.4, "remaining": 0.0}
    assert said.exhausted
    assert state.execution.usage.cost == Decimal("0.4")


async def test_below_the_limit_it_allows_with_its_numbers() -> None:
    state = await spending(0.125, limit=CostLimit("0.5")).run("go")
    assert state.status == "completed"
    said = said_by_limit(state)
    assert said.reason == "$0.125 of $0.50 used"
    assert said.context == {"used": 0.12501, "limit": 0.5, "remaining": 0.37499}


async def test_an_answer_on_the_last_cent_completes_the_run() -> None:
    state = await spending(0.4, limit=CostLimit(0.4)).run("go")
    assert_stopped(state, reason="guard", by=CostLimit)
    state = await spending(0.39999, limit=CostLimit(0.4)).run("go")
    assert state.status == "completed"
    assert said_by_limit(state).exhausted


async def test_granted_money_lets_it_continue_and_is_in_the_trace() -> None:
    agent = spending(0.3, 0.3, 0.3, 0.3, limit=CostLimit(0.25))
    state = await agent.run("go")
    assert [str(action) for action in state.explanation.next_actions] == [
        "grant more money: resume(state, grant=Budget(usd=1))"
    ]
    assert state.explanation.next_actions[0].grant == Budget(usd=1)
    state = AgentState.from_dict((await agent.resume(state, grant=Budget(usd=0.3))).to_dict())
    assert said_by_limit(state).reason == "Limit reached: $0.60 of $0.25 used, $0.30 more was granted"
    assert state.execution.granted == Budget(usd=Decimal("0.3"))
    state = await agent.resume(state, grant=Budget(usd=1))
    assert state.status == "completed"
    assert "$1.30 more was granted" in assert_readable(state)


async def test_a_model_without_a_price_stops_the_run() -> None:
    state = await spending(0.1, None, 0.1, limit=CostLimit(1)).run("go")
    assert_stopped(state, reason="guard", by=CostLimit)
    said = said_by_limit(state)
    assert said.reason == "no price for model home-made: pass prices=…"
    assert said.context["used"] == 0.1
    assert not said.exhausted
    assert state.execution.usage.cost is None
    assert [str(action) for action in state.explanation.next_actions] == [
        'count known costs only, and pass prices=… for the next query: CostLimit(…, unknown="allow")',
        "then resume the run: resume(state)",
    ]


async def test_a_host_that_reports_no_usage_stops_the_run() -> None:
    state = await spending("silent", limit=CostLimit(1)).run("go")
    assert_stopped(state, reason="guard", by=CostLimit)
    assert said_by_limit(state).reason == "model home-made reported no usage, so its cost is unknown"


async def test_unknown_costs_can_be_allowed_and_the_known_ones_still_count() -> None:
    state = await spending(None, 0.1, limit=CostLimit(1, unknown="allow")).run("go")
    assert state.status == "completed"
    said = said_by_limit(state)
    assert said.reason == "at least $0.10 of $1.00 used: no price for model home-made: pass prices=…"
    state = await spending(None, 0.6, 0.6, limit=CostLimit(1, "allow")).run("go")
    assert_stopped(state, reason="guard", by=CostLimit)
    assert said_by_limit(state).reason.startswith("Limit reached: at least $1.20 of $1.00 used: no price")


@pytest.mark.parametrize("preset", ["minimal", "standard", "full"])
async def test_known_costs_count_in_a_slim_snapshot_without_their_steps(preset: str) -> None:
    agent = spending(0.4, None, 0.4, limit=CostLimit(1, unknown="allow"), max_steps=2)
    config = getattr(SlimSerializationConfig, preset)()
    serializer = SlimAgentStateSerializer(config)
    state = serializer.deserialize(serializer.serialize(await agent.run("go")))
    assert state.explanation.known_cost == Decimal("0.4")
    state = await agent.resume(state, grant=Budget(steps=5))
    assert said_by_limit(state).reason.startswith("at least $0.80 of $1.00 used")


async def test_an_answer_that_was_cut_off_does_not_end_the_run() -> None:
    policy = ErrorPolicy.retry_all(2)
    state = await spending(0.1, "broken", 0.1, limit=CostLimit(1), error_policy=policy).run("go")
    assert state.status == "completed"
    assert state.execution.usage.cost is None
    assert said_by_limit(state).reason == (
        "at least $0.20 of $1.00 used: step 2 was cut off before it reported its usage"
    )


async def test_a_session_limit_counts_every_query() -> None:
    agent = spending("end", 0.3, 0.3, 0.3, limit=CostLimit(0.5, scope="session"))
    state = await agent.run("one")
    assert said_by_limit(state).reason == "$0.00001 of $0.50 used in this session"
    state = await agent.run("two", state=state)
    assert_stopped(state, reason="guard", by=CostLimit)
    again = await agent.run("three", state=state)
    assert again.step_count == state.step_count
    assert said_by_limit(again).reason == "Limit reached: $0.60 of $0.50 used in this session"


async def test_a_slim_snapshot_without_the_unpriced_step_still_forbids() -> None:
    state = await spending(None, 0.1, limit=CostLimit(1, "allow")).run("go")
    slim = SlimAgentStateSerializer(SlimSerializationConfig.minimal())
    read = slim.deserialize(slim.serialize(state))
    said = CostLimit(1).explain(read)
    assert said.reason == "no price for a model of an earlier step: pass prices=…"


@pytest.mark.parametrize("bad", [0, -1, float("nan"), "much", True, None])
def test_a_limit_that_is_not_an_amount_is_refused(bad: Any) -> None:
    with pytest.raises(ConfigurationError, match="CostLimit"):
        CostLimit(bad)


def test_other_options_are_refused() -> None:
    with pytest.raises(ConfigurationError, match='invalid unknown 1 of CostLimit: use "forbid" or "allow"'):
        CostLimit(1, unknown=1)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"CostLimit\(2\) can never matter"):
        Agent(Scripted([]), criteria=[CostLimit(1), CostLimit(2)])


def test_it_is_shown_as_it_is_written() -> None:
    limit = CostLimit("0.5", "allow", scope="session")
    assert repr(limit) == 'CostLimit(0.5, unknown="allow", scope="session")'


spent = st.sampled_from([0.1, 0.25, 1, None, "silent", "broken"])


@settings(max_examples=60)
@given(
    st.lists(spent, max_size=5),
    st.sampled_from(["forbid", "allow"]),
    st.sampled_from(["execution", "session"]),
    st.lists(st.sampled_from(["query", "resume", "grant"]), max_size=3),
)
def test_a_recorded_run_is_judged_the_same_way_again(
    script: list[Any], unknown: Any, scope: Any, happening: list[str]
) -> None:
    limit = CostLimit(0.5, unknown, scope=scope)
    policy = ErrorPolicy.retry_all(1)
    agent = spending(*script, limit=limit, error_policy=policy)
    journal = MemoryJournal()

    async def happen() -> None:
        state = await start_run(agent, "go", journal.create(agent), journal=journal).finish()
        for what in happening:
            if what == "query":
                state = await start_run(agent, "more", state, journal=journal).finish()
            elif state.status != "completed":
                grant = Budget(usd=0.3) if what == "grant" else None
                state = await resume_run(agent, state, grant=grant, journal=journal).finish()

    asyncio.run(happen())
    state, judged = AgentState.before_creation(journal.agent_id), 0
    for transition in journal.transitions:
        before, state = state, transition.apply_to(state)
        if isinstance(transition, Judged | JudgedAlike):
            judged += 1
            assert agent.criteria.evaluate(before) == state.last_continuation_outcome
    assert judged


def test_a_subclass_explains_as_its_parent_does() -> None:
    class Allowance(CostLimit):
        """The same limit under another name."""

    evaluation = Allowance("0.50").explain(AgentState())
    assert (evaluation.criterion, evaluation.reason) == ("Allowance", "$0.00 of $0.50 used")
