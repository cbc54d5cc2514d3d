"""A run that is judged under its own rules ends as recorded, in any of its forms."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import reduce

import pytest
from hypothesis import given, strategies as st

from tests.loop.processes import Processes, ScriptItem
from tests.loop.test_transitions import crashes, limits, policies, scripts
from tests.support import examples
from tests.wire.random_runs import Said, Scenario, crashing_scenarios
from whyloop import Agent, AgentState, ContinuationOutcome, ErrorPolicy, FinishReason, ToolCall
from whyloop.replay import ExecutionReplay, Recording, judge
from whyloop.stores import MemoryStore
from whyloop.values.transitions import apply


def shown(outcome: ContinuationOutcome | None) -> list[object]:
    """Return what a person sees of an outcome: not the last digit of a number of seconds."""
    assert outcome is not None
    decided = [(e.criterion, e.decision, e.reason, e.stop_reason, e.handling) for e in outcome.evaluations]
    return [outcome.decision, outcome.resolved_by, outcome.stop_reason, decided]


def assert_as_recorded(replayed: Sequence[ExecutionReplay]) -> None:
    for execution in replayed:
        assert execution.state == execution.recorded
        assert execution.assumed_from is None
        assert not execution.differs
        assert execution.saved.steps == 0
        assert execution.beyond == (execution.recorded.status in ("in_progress", "pending"))


async def check(agent: Agent, entries: list[str], state: AgentState) -> None:
    recording = Recording.of(entries)
    if not recording.executions:
        return
    for execution in recording.executions:
        folded = reduce(apply, execution.transitions, execution.before)
        assert folded == execution.after
    rules = agent.criteria
    assert_as_recorded(judge(recording).executions)
    assert_as_recorded(judge(recording, rules).executions)
    assert_as_recorded(judge(recording, rules, replace_all=True).executions)
    assert_as_recorded(judge(recording, *rules.criteria[::2]).executions)
    store = MemoryStore()
    exported = ['{"format":"whyloop-sessions","version":1}']
    exported.append(f'{{"session":"s","entries":{len(entries)}}}')
    exported += [f'{{"entry":{entry}}}' for entry in entries]
    assert_as_recorded(judge(exported, rules).executions)
    await store.import_lines(exported)
    assert_as_recorded(judge(await Recording.read(store, "s"), rules).executions)
    again = [line async for line in store.export()]
    assert_as_recorded(judge(again, rules, replace_all=True).executions)
    check_state(state, recording, agent)
    check_state(AgentState.from_dict(state.to_dict()), recording, agent)


def check_state(state: AgentState, recording: Recording, agent: Agent) -> None:
    """Check that a state alone yields the recorded outcome of every step, or says what it lacks."""
    if not state.steps:
        return
    for replay in (judge(state, agent.criteria), judge(state.to_dict(), agent.criteria, replace_all=True)):
        for execution in replay.executions:
            if execution.missing is not None:
                assert execution.beyond
                assert execution.missing in str(execution.to_dict())
                continue
            assert not execution.differs
            steps = zip(execution.state.execution_steps, execution.recorded.execution_steps, strict=True)
            for new, old in steps:
                assert (new.outcome is None) == (old.outcome is None)
                if old.outcome is not None:
                    assert shown(new.outcome) == shown(old.outcome)


@examples(150)
@given(crashing_scenarios)
def test_a_random_session_is_judged_as_it_was_recorded(scenario: Scenario) -> None:
    async def main() -> None:
        scene = await scenario.scene()
        await check(scene.agent, scene.journal.entries, scene.journal.state)

    asyncio.run(main())


@examples(150)
@given(scripts, policies, crashes | st.just([]), st.booleans(), st.booleans(), st.booleans(), limits)
def test_a_session_of_several_processes_is_judged_as_it_was_recorded(
    script: list[ScriptItem],
    policy: ErrorPolicy,
    crashes: list[tuple[int, str]],
    approve: bool,
    impatient: bool,
    resume: bool,
    limit: tuple[int, bool],
) -> None:
    async def main() -> None:
        processes = Processes(script, crashes, policy, limit[0], wrap_up=limit[1])
        await processes.live(approve=approve, impatient=impatient, resume=resume)
        await check(processes.agent(), processes.journal.entries, processes.journal.state)

    asyncio.run(main())


WORK = Said([], [ToolCall("", "work", {})], False, False, FinishReason.STOP)
SILENT = Said([], [], False, False, FinishReason.STOP)
CUT_SHORT = Said([], [ToolCall("", "work", {})], False, False, FinishReason.LENGTH)


@pytest.mark.parametrize(
    "scenario",
    [
        Scenario([WORK], ErrorPolicy(), 1, [("stop", 1), ("resume", 1), ("query", 0)], True),
        Scenario([SILENT, WORK, CUT_SHORT, SILENT], ErrorPolicy(), 3, [("crash", 7), ("query", 0)], False),
    ],
    ids=["a wrap-up, a grant and a stop before the next step", "a crash in the middle of a truncated step"],
)
async def test_a_session_that_random_ones_rarely_are_is_judged_as_it_was_recorded(scenario: Scenario) -> None:
    scene = await scenario.scene()
    await check(scene.agent, scene.journal.entries, scene.journal.state)
