"""The journal of a session: what any run writes, from any entry on, is the session again."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from tests.golden.fixed_run import AGENT_ID, Recording, fixed_run, journal, snapshot
from tests.support import ScriptItem
from tests.values.test_snapshot import json_values, policies
from whyloop import Agent, AgentState, AgentStatus, Backoff, Budget, ErrorPolicy, tool
from whyloop.errors import ModelError, RateLimitError
from whyloop.testing import ScriptedModel, call, calls, text
from whyloop.wire.journal import entries_of, entry_between, folded


class CrashError(Exception):
    """The process ends here."""


class Crashing(Recording):
    """A journal whose process dies after so many entries."""

    left: int | None = None

    async def record(self, state: AgentState) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                self.left = None
                raise CrashError
        await super().record(state)


class Scene:
    """An agent, its session, and the things that can happen to it."""

    def __init__(self, script: Sequence[ScriptItem], policy: ErrorPolicy, max_steps: int) -> None:
        self.journal = Crashing()
        self._results = itertools.count()
        self._events_till_stop = -1
        clock = self.journal.clock

        async def work(value: str = "") -> str:
            number = next(self._results)
            for _ in range(number % 3):
                await asyncio.sleep(0)
            clock.advance(0.5)
            return f"<result {number}>"

        async def fail(value: str = "") -> str:
            raise RuntimeError("it broke")

        tools = [
            tool(name="work")(work),
            tool(name="again", idempotent=True)(work),
            tool(name="guarded", needs_approval=True)(work),
            tool(name="sometimes", needs_approval=lambda arguments: len(arguments["value"]) % 2 == 0)(work),
            tool(name="fail")(fail),
        ]
        agent = Agent(
            ScriptedModel([*script, *itertools.repeat("the end", 30)]),
            tools,
            clock=clock,
            error_policy=policy,
            backoff=Backoff(jitter=0),
            max_steps=max_steps,
            max_tokens=3_000,
        )
        agent.subscribe(self._count_down)
        self._agent = agent.journaled(self.journal)
        self.state = self._agent.new_session("the session")

    def _count_down(self, _: object) -> None:
        self._events_till_stop -= 1
        if self._events_till_stop == 0:
            self._agent.request_stop("enough")

    async def happens(self, what: str, number: int, note: Any) -> None:
        state = self.state
        match what:
            case "query":
                await self._runs(self._agent.start(f"question {number}", state=state))
            case "resume" if state.messages and state.status is not AgentStatus.COMPLETED:
                grant = Budget(steps=number, tokens=100) if number % 2 else None
                await self._runs(self._agent.restart(state, grant=grant))
            case "decide" if state.pending_calls:
                await self._decides(number)
            case "note":
                self.state = state.with_metadata(note=note)
            case "stop":
                self._events_till_stop = number
            case "crash":
                self.journal.left = number

    async def _runs(self, state: AgentState) -> None:
        try:
            self.state = await self._agent.final_step(state)
        except CrashError:
            if self.journal.states:
                self.state = folded("the session", entries_of(self.journal.entries))
                self.journal.states[-1] = self.state

    async def _decides(self, number: int) -> None:
        state, call_id = self.state, self.state.pending_calls[0].id
        match number % 3:
            case 0:
                self.state = state.approve(call_id, by="ada")
            case 1:
                self.state = state.deny(call_id, "no" * (number % 2), by="bo")
            case _:
                self.state = state.edit(call_id, {"value": "edited"}, by="ada")
        self.journal.left = None
        await self.journal.record(self.state)


def scripts(items: list[list[str]]) -> list[ScriptItem]:
    """A model's replies, in which the arguments of every call are its own."""
    numbers = itertools.count()
    script: list[ScriptItem] = []
    for item in items:
        if item == ["answer"]:
            script.append(text("fine", usage=50))
        elif item == ["limit"]:
            script.append(RateLimitError("slow down", retry_after=1))
        elif item == ["error"]:
            script.append(ModelError("no"))
        else:
            asked = [call(name, {"value": f"<argument {next(numbers)}>"}) for name in item]
            script.append(calls(*asked, text="I see." * (len(item) % 2), usage=100))
    return script


tool_names = st.sampled_from(["work", "again", "guarded", "sometimes", "fail", "no_such_tool"])
items = st.sampled_from([["answer"], ["limit"], ["error"]]) | st.lists(tool_names, min_size=1, max_size=4)
happenings = st.tuples(
    st.sampled_from(["query", "query", "resume", "resume", "decide", "decide", "note", "stop", "crash"]),
    st.integers(0, 12),
    json_values,
)


async def played(
    script: list[list[str]], policy: ErrorPolicy, max_steps: int, happening: Sequence[tuple[str, int, Any]]
) -> Recording:
    scene = Scene(scripts(script), policy, max_steps)
    for what, number, note in [("query", 0, None), *happening]:
        await scene.happens(what, number, note)
    return scene.journal


def check_folding(recorded: Recording) -> None:
    entries = entries_of(recorded.entries)
    whole = recorded.states[-1]
    for index, state in enumerate(recorded.states, 1):
        assert folded("the session", entries[:index]) == state
        assert folded("the session", entries[index:], state) == whole


def check_beginnings(recorded: Recording) -> None:
    """Any state can be the first of a journal."""
    for state in recorded.states:
        assert folded("the session", entries_of([entry_between(None, state)])) == state


def check_nothing_is_written_twice(recorded: Recording) -> None:
    state, written = recorded.states[-1], "".join(recorded.entries)
    opened = [earlier.open_step for earlier in recorded.states if earlier.open_step is not None]
    # A question shows the arguments to a person.
    asked = {pending.id for step in opened for pending in step.pending}
    runs = {run.id: run for step in state.steps for run in step.tool_calls if run.success}
    for message in state.messages:
        if message.tool_call_id in runs:
            assert written.count(message.text.splitlines()[-1]) == 1
        for wanted in message.tool_calls:
            if wanted.id in runs and wanted.id not in asked:
                assert not isinstance(wanted.arguments, str)
                assert written.count(wanted.arguments["value"]) == 1


@settings(max_examples=300)
@given(st.lists(items, max_size=8), policies, st.sampled_from([2, 5, 20]), st.lists(happenings, max_size=10))
def test_any_run_can_be_read_from_any_entry_on(
    script: list[list[str]], policy: ErrorPolicy, max_steps: int, happening: list[tuple[str, int, Any]]
) -> None:
    recorded = asyncio.run(played(script, policy, max_steps, happening))
    assert recorded.states
    check_folding(recorded)
    check_beginnings(recorded)
    check_nothing_is_written_twice(recorded)


@pytest.mark.parametrize(
    ("script", "happening", "words"),
    [
        ([["guarded"]], [("decide", 0, None), ("resume", 0, None)], "approved by ada"),
        ([["work", "guarded"]], [("decide", 1, None), ("resume", 0, None)], "denied by bo"),
        ([["guarded", "guarded"]], [("decide", 2, None), ("decide", 2, None), ("resume", 0, None)], "edited"),
        ([["guarded", "work"]], [("query", 1, None)], "Another question was asked"),
        ([["work", "again"]], [("crash", 2, None), ("query", 1, None), ("resume", 0, None)], "ok"),
        ([["limit"], ["limit"], ["answer"]], [], "slow down"),
    ],
)
async def test_what_the_random_runs_are_made_of_does_happen(
    script: list[list[str]], happening: list[tuple[str, int, Any]], words: str
) -> None:
    recorded = await played(script, ErrorPolicy.retry_all(3), 20, happening)
    check_folding(recorded)
    check_beginnings(recorded)
    check_nothing_is_written_twice(recorded)
    state = recorded.states[-1]
    assert words in state.explain() + str([step.interrupted for step in state.steps])


async def test_a_call_that_was_running_when_its_process_died_is_asked_about() -> None:
    scene = Scene(scripts([["work"]]), ErrorPolicy(), 20)
    await scene.happens("crash", 2, None)
    await scene.happens("query", 0, None)
    assert scene.state.open_step is not None
    await scene.happens("resume", 0, None)
    assert "It is not known whether" in scene.state.pending_calls[0].question
    await scene.happens("decide", 0, None)
    await scene.happens("resume", 0, None)
    assert scene.state.status is AgentStatus.COMPLETED
    check_folding(scene.journal)
    check_beginnings(scene.journal)


# Golden


def test_a_journal_of_version_1_can_be_read() -> None:
    assert folded(AGENT_ID, entries_of(journal())) == AgentState.from_dict(snapshot(2))


async def test_the_same_run_gives_a_journal_of_the_same_session_today() -> None:
    recording = Recording()
    assert await fixed_run(recording) == folded(AGENT_ID, entries_of(journal()))
    assert folded(AGENT_ID, entries_of(recording.entries)) == recording.states[-1]


def test_a_session_that_was_read_elsewhere_can_begin_a_journal() -> None:
    for version in (1, 2):
        state = AgentState.from_dict(snapshot(version))
        assert folded(AGENT_ID, entries_of([entry_between(None, state)])) == state
