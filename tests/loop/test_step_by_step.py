"""One step at a time: the same path as a whole run."""

from __future__ import annotations

from collections.abc import AsyncIterator

from tests.support import echo, scripted
from whyloop import Agent, AgentState, AgentStatus
from whyloop.testing import call, capture_events


def three_steps() -> Agent:
    return scripted(call("echo"), call("echo"), "done", tools=[echo])


async def test_iterate_yields_the_state_after_every_step() -> None:
    agent = three_steps()
    seen = [state async for state in agent.iterate(agent.start("go"))]
    assert [state.step_count for state in seen] == [1, 2, 3]
    assert [state.status for state in seen] == [
        AgentStatus.IN_PROGRESS,
        AgentStatus.IN_PROGRESS,
        AgentStatus.COMPLETED,
    ]
    assert all(state.current_step is not None and state.current_step.outcome for state in seen)


async def test_iterate_is_an_async_iterator() -> None:
    agent = three_steps()
    assert isinstance(agent.iterate(agent.start("go")), AsyncIterator)


async def test_a_run_in_progress_has_no_stop_reason() -> None:
    agent = three_steps()
    async for state in agent.iterate(agent.start("go")):
        assert (state.stop_reason is None) is agent.has_next_step(state)


async def test_next_step_by_hand_ends_where_run_ends() -> None:
    agent = three_steps()
    state = agent.start("go")
    assert state.status is AgentStatus.PENDING
    taken = 0
    while agent.has_next_step(state):
        state = await agent.next_step(state)
        taken += 1
    assert taken == 3
    assert state.last_response == "done"
    assert state.status is AgentStatus.COMPLETED


async def test_final_step_only_folds_iterate() -> None:
    class Counting(Agent):
        folded = 0

        async def iterate(self, state: AgentState, *, deps: None = None) -> AsyncIterator[AgentState]:
            async for latest in super().iterate(state, deps=deps):
                self.folded += 1
                yield latest

    plain = three_steps()
    agent = Counting(plain.model, [echo])
    state = await agent.final_step(agent.start("go"))
    assert agent.folded == 3
    assert state.last_response == "done"


async def test_final_step_of_an_ended_run_is_that_run() -> None:
    agent = scripted("done")
    state = await agent.run("go")
    assert not agent.has_next_step(state)
    assert await agent.final_step(state) is state


async def test_a_run_that_was_left_in_the_middle_can_be_continued() -> None:
    agent = three_steps()
    iteration = agent.iterate(agent.start("go"))
    state = await anext(iteration)
    await iteration.aclose()  # type: ignore[attr-defined]
    assert state.status is AgentStatus.IN_PROGRESS
    state = await agent.final_step(state)
    assert state.last_response == "done"
    assert state.step_count == 3


async def test_a_run_that_was_saved_in_the_middle_can_be_continued_by_another_process() -> None:
    agent = three_steps()
    state = await agent.next_step(agent.start("go"))
    restored = AgentState.from_dict(state.to_dict())
    assert agent.has_next_step(restored)
    done = await agent.final_step(restored)
    assert done.last_response == "done"
    assert done.execution.step_count == 3


async def test_each_step_is_evaluated_once_and_sent_once() -> None:
    asked: list[int] = []

    def count(state: AgentState) -> bool:
        asked.append(state.step_count)
        return True

    agent = scripted(call("echo"), call("echo"), "done", tools=[echo], criteria=count)
    events = capture_events(agent)
    await agent.run("go")
    assert asked == [1, 2, 3]
    assert events.kinds().count("ContinuationEvaluated") == 3
    assert events.kinds().count("AgentStepCompleted") == 3
