"""Random agents, what happens to their sessions, and what must hold for each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from random import Random
from typing import Any, TypeVar

import msgspec

from tests.loop.processes import LIVE_ONLY
from tests.wire.fuzz import check_use
from tests.wire.random_runs import SESSION, Said, Scenario, Scene
from whyloop import (
    Agent,
    AgentState,
    CostLimit,
    CumulativeExecutionTimeLimit,
    ErrorPolicy,
    FinishReason,
    RepeatedCallCheck,
    StepsLimit,
    TokenUsageLimit,
    ToolCall,
    Usage,
)
from whyloop.events import AgentEvent
from whyloop.replay import ExecutionReplay, Recording, judge
from whyloop.replay.judge import Rule
from whyloop.rules.checks import ApprovalRequired, StopRequestedCheck
from whyloop.values.judgement import Judged, JudgedAlike
from whyloop.values.transitions import apply
from whyloop.wire.view import read_back

T = TypeVar("T")

_KINDS = ("query", "resume", "decide", "decide", "stop", "crash", "recover", "recover")
_MORE_KINDS = ("stop_without_a_runner", "fork", "wait")


class Dice(Random):
    """Random values that are mostly ordinary."""

    def maybe(self, one_in: int) -> bool:
        return self.randrange(one_in) == 0

    def several(self, most: int, make: Callable[[], T]) -> list[T]:
        return [make() for _ in range(self.randint(0, most))]

    def call(self) -> ToolCall:
        name = self.choice(["work", "work", "again", "guarded", "guarded", "fail", "missing"])
        objects: list[dict[str, Any]] = [
            {"value": "x"},
            {"value": "x"},
            {},
            {"value": 1.5},
            {"value": "block me"},
        ]
        value: dict[str, Any] | str = "{not json" if self.maybe(8) else self.choice(objects)
        return ToolCall(f"call_{self.randrange(3)}", name, value)

    def said(self) -> Said:
        finish = FinishReason.LENGTH if self.maybe(8) else FinishReason.STOP
        return Said(
            self.several(2, lambda: self.choice(["There are four.", " and more", ""])),
            self.several(3, self.call),
            self.maybe(2),
            self.maybe(6),
            finish,
        )

    def policy(self) -> ErrorPolicy:
        return self.choice(
            [
                ErrorPolicy.stop_on_any_error(),
                ErrorPolicy.retry_all(2),
                ErrorPolicy.ignore_tool_errors(),
                ErrorPolicy.retry_tool_errors(1),
            ]
        )

    def options(self) -> dict[str, Any]:
        """The limits of an agent."""
        options: dict[str, Any] = {"usage": Usage(10, 5)}
        clocks: list[dict[str, Any]] = [{}, {"timeout": 45}, {"timeout": 2}, {"cumulative_timeout": 3}]
        options |= self.choice(clocks)
        if self.maybe(5):
            options["max_tokens"] = self.choice([15, 60])
        own: list[Any] = [RepeatedCallCheck(), StepsLimit(7, scope="session"), at_most_nine_messages]
        own.append(CumulativeExecutionTimeLimit(6, scope="session"))
        options["criteria"] = self.sample(own, self.choice([0, 0, 1, 2]))
        return options

    def scenario(self) -> Scenario:
        kinds = _KINDS + _MORE_KINDS
        return Scenario(
            self.several(7, self.said),
            self.policy(),
            self.choice([1, 2, 3, 6]),
            [(self.choice(kinds), self.randrange(10)) for _ in range(self.randint(1, 12))],
            self.maybe(3),
            self.options(),
        )

    def other_rules(self) -> list[Rule]:
        """Rules that the agent did not have.

        No deadlines: a state does not hold in which order calls were recorded that ended in the same turn.
        """
        rules: list[Rule] = [
            StepsLimit(self.choice([1, 2, 4])),
            TokenUsageLimit(self.choice([1, 40])),
            CostLimit(1, unknown="allow"),
            self.policy(),
        ]
        return self.sample(rules, self.randint(1, 2))


def at_most_nine_messages(state: AgentState) -> bool:
    return len(state.messages) < 10


async def check_random_agent(seed: int) -> Scene:
    """Let a random session happen, and check everything that must hold for it."""
    dice = Dice(seed)
    scenario = dice.scenario()
    scene = Scene(
        scenario.script, scenario.policy, scenario.max_steps, wrap_up=scenario.wrap_up, **scenario.options
    )
    for what, number in [("query", 0), *scenario.happening]:
        known, before, heard = len(scene.journal.entries), scene.journal.state, len(scene.runs)
        await scene.happens(what, number)
        state = scene.journal.state
        assert same_bytes(state.to_dict(), {**scene.state.to_dict(), **started_at(state)})
        check_use(state)
        check_events(scene, before, known, heard)
    agent, entries = scene.agent, scene.journal.entries
    check_outcomes(agent, AgentState.before_creation(SESSION), scene.journal.transitions)
    check_judged(dice, agent, entries, scene.state)
    await check_stored_between_steps(agent, scene.state)
    return scene


def started_at(state: AgentState) -> dict[str, Any]:
    return {"execution_started_at": state.to_dict()["execution_started_at"]}


def same_bytes(one: object, other: object) -> bool:
    """Return whether two values are the same JSON, where 5 is not 5.0."""
    return msgspec.json.encode(one) == msgspec.json.encode(other)


def check_events(scene: Scene, before: AgentState, known: int, heard: int) -> None:
    """Check that the events that were sent are those of the new entries; after a crash, some are missing."""
    new: list[AgentEvent] = []
    state = before
    for transition in scene.journal.transitions_after(known):
        new += read_back(state, [transition])
        state = apply(state, transition)
    sent = [event for run in scene.runs[heard:] for event in run if not isinstance(event, LIVE_ONLY)]
    if len(sent) < len(new):
        assert scene.crashed
        new = new[: len(sent)]
    assert same_bytes(sent, new)


def check_outcomes(agent: Agent, state: AgentState, transitions: Sequence[Any]) -> None:
    """Check that evaluating the journal up to each judgement yields the recorded outcome."""
    for transition in transitions:
        assert not isinstance(transition, JudgedAlike)
        if isinstance(transition, Judged):
            outcome = transition.outcome
            if outcome.partial:
                alone = (StopRequestedCheck(), ApprovalRequired())
                assert outcome.evaluations in [(check.explain(state),) for check in alone]
            else:
                assert agent.criteria.evaluate(state) == outcome
        state = apply(state, transition)


def check_judged(dice: Dice, agent: Agent, entries: list[str], state: AgentState) -> None:
    """Check that a run is judged as it was recorded, and its state like its journal, or not at all."""
    recording = Recording.of(entries)
    if not recording.executions:
        return
    for execution in recording.executions:
        assert reduce(apply, execution.transitions, execution.before) == execution.after
    own, others = agent.criteria, dice.other_rules()
    own_alone: list[Rule] = [own]
    half: list[Rule] = list(own.criteria[::2])
    for rules, replace_all in ((own_alone, False), (own_alone, True), (half, False)):
        for replay in judge(recording, *rules, replace_all=replace_all).executions:
            assert replay.state == replay.recorded or rules is not own_alone  # The order may differ.
            assert (replay.assumed_from, replay.differs, replay.missing) == (None, False, None)
    if not Recording.of(state).executions:
        return
    restored = AgentState.from_dict(state.to_dict())
    for rules in (own_alone, half, others):
        check_like_the_journal(judge(restored, *rules).executions, judge(recording, *rules).executions)


def check_like_the_journal(states: Sequence[ExecutionReplay], journals: Sequence[ExecutionReplay]) -> None:
    """Check that a state is judged like the journal, or says what it lacks."""
    known = {replay.execution_id: replay for replay in journals}
    for replay in states:
        journal = known.get(replay.execution_id)
        if journal is None or replay.missing is not None:
            assert replay.beyond or journal is None
            continue
        assert replay.beyond == journal.beyond
        assert replay.ending == journal.ending


async def check_stored_between_steps(agent: Agent, state: AgentState) -> None:
    """Go on with a session that is stored and restored after each step."""
    for _ in range(4):
        if not agent.has_next_step(state):
            return
        state = AgentState.from_dict((await agent.next_step(AgentState.from_dict(state.to_dict()))).to_dict())
        check_use(state)
        last = state.last_continuation_outcome
        assert last is not None
        assert agent.criteria.evaluate(state) == last or state.current_step is None
