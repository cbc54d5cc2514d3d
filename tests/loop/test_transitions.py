"""One source of truth: states, events and outcomes follow from the record, wherever a process dies."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import reduce
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tests.loop.processes import LIVE_ONLY, Answer, AskedCall, Processes, ScriptItem
from tests.support import assert_complete_history, examples
from whyloop import AgentState, ErrorPolicy, FinishReason
from whyloop.errors import ModelError, RateLimitError
from whyloop.events import (
    AgentEvent,
    AgentStatusChanged,
    AgentStepCompleted,
    ApprovalDecided,
    ApprovalRequested,
    RetryScheduled,
    ToolCallCompleted,
    ToolCallStarted,
)
from whyloop.values.judgement import Judged
from whyloop.values.step_transitions import Answered, CallFinished, Closed, Left, ModelFailed, Reopened
from whyloop.values.transitions import Queried, Resumed, apply
from whyloop.wire.journal import decode_entries
from whyloop.wire.view import events_of, read_back

NUMBERED = (
    AgentStatusChanged,
    AgentStepCompleted,
    ApprovalDecided,
    ApprovalRequested,
    RetryScheduled,
    ToolCallCompleted,
    ToolCallStarted,
)


def rarely(times: int = 10) -> st.SearchStrategy[bool]:
    return st.integers(0, times).map(lambda number: number == times)


calls = st.builds(
    AskedCall,
    st.sampled_from(["pay", "look_up", "refund", "break", "missing"]),
    st.integers(0, 3),
    stops=rarely(),
    hangs=rarely(20),
    marked=st.booleans(),
    malformed=rarely(),
)
finish_reasons = st.sampled_from([*[FinishReason.TOOL_CALLS] * 6, FinishReason.LENGTH, FinishReason.STOP])
answers = st.builds(
    Answer,
    st.sampled_from(["", "some text"]),
    st.lists(calls, max_size=4).map(tuple),
    finish_reasons,
    stops=rarely(),
    hangs=rarely(20),
)
errors = st.sampled_from([ModelError("down"), RateLimitError("busy", retry_after=7), RateLimitError("busy")])
scripts: st.SearchStrategy[list[ScriptItem]] = st.lists(answers | answers | answers | errors, max_size=7)
policies = st.sampled_from(
    [ErrorPolicy.retry_all(2), ErrorPolicy.ignore_tool_errors(), ErrorPolicy.stop_on_any_error()]
)
limits = st.sampled_from([(6, False), (6, True), (1, True), (2, True)])
crashes = st.lists(
    st.tuples(st.integers(1, 24), st.sampled_from(["before", "after"])), min_size=1, max_size=4
)


def check(processes: Processes) -> None:
    """Check that state, events and outcomes follow from the journal alone, and that nothing ran twice."""
    state, transitions = processes.journal.state, processes.journal.transitions
    base = AgentState.before_creation(processes.journal.agent_id)
    assert reduce(apply, transitions, base) == state
    assert AgentState.from_dict(state.to_dict()) == state
    criteria = processes.agent().criteria
    before, last = base, Counter[str]()
    for transition in transitions:
        events = list(events_of(before, transition))
        numbered = [event for event in events if isinstance(event, NUMBERED)]
        assert len(numbered) == transition.envelope_count()
        for event in events:  # Numbers increase by one; other events carry the last one.
            last[event.execution_id] += isinstance(event, NUMBERED)
            assert event.seq == last[event.execution_id]
        after = apply(before, transition)
        assert after.execution.last_seq == last[after.execution.id]
        if isinstance(transition, Judged):
            for judged in (before, after, *[AgentState.from_dict(s.to_dict()) for s in (before, after)]):
                assert criteria.evaluate(judged) == transition.outcome
        before = after
    for step in state.steps:
        assert step.outcome is not None
        assert [e.criterion for e in step.outcome.evaluations] == [
            type(criterion).__name__ for criterion in criteria.criteria
        ]
    assert_complete_history(state.messages)
    check_events(processes)
    check_calls(processes, state)


def check_events(processes: Processes) -> None:
    """Check that handlers received live what is read back, each event once and in order."""
    live = [event for event in processes.sent if not isinstance(event, LIVE_ONLY)]
    back: list[AgentEvent] = []
    state = AgentState.before_creation(processes.journal.agent_id)
    for number, entry in enumerate(decode_entries(processes.journal.entries)):
        assert entry.seq == state.execution.last_seq + 1
        if number not in processes.decided:  # Those are recorded by another process, and read by followers.
            back += read_back(state, entry.transitions)
        state = reduce(apply, entry.transitions, state)
    if processes.journal.crashes:
        remaining = iter(back)
        assert all(event in remaining for event in live)
    else:
        assert live == back


def check_calls(processes: Processes, state: AgentState) -> None:
    """Check that no call ran twice unless it may, and that what ran is never reported as not run."""
    once = [ticket for name, ticket in processes.ran if name != "look_up"]
    assert len(once) == len(set(once))
    assert len(processes.hooked) == len(set(processes.hooked))
    results = {}
    for step in state.steps:
        assistant, *messages = state.messages_of(step) or (None,)
        for asked, message in zip(assistant.tool_calls if assistant else (), messages, strict=True):
            if not isinstance(asked.arguments, str):
                results[asked.arguments["ticket"]] = message.text
                if asked.arguments["marked"] and asked.changes:
                    assert [change.by for change in asked.changes] == ["MarkingHook"]
    waiting = state.open_step.tool_calls if state.open_step else ()
    open_tickets = {call.arguments["ticket"] for call in waiting if not isinstance(call.arguments, str)}
    for _, ticket in processes.ran:
        assert ticket in results or ticket in open_tickets
        assert not results.get(ticket, "").startswith(("Not run", "Denied"))


@examples(150)
@given(scripts, policies, st.booleans(), st.booleans(), st.booleans(), limits)
def test_state_and_events_follow_from_the_journal(
    script: list[ScriptItem],
    policy: ErrorPolicy,
    approve: bool,
    impatient: bool,
    resume: bool,
    limit: tuple[int, bool],
) -> None:
    async def main() -> None:
        processes = Processes(script, policy=policy, max_steps=limit[0], wrap_up=limit[1])
        await processes.live(approve=approve, impatient=impatient, resume=resume)
        check(processes)
        check_appends(processes)

    asyncio.run(main())


def check_appends(processes: Processes) -> None:
    """Check that a step takes two appends, and one more for each further call that ends before the last."""
    appends, allowed = 0, 0
    for number, entry in enumerate(decode_entries(processes.journal.entries)):
        kinds = {type(transition) for transition in entry.transitions}
        begins = kinds & {Answered, ModelFailed, Queried, Resumed}
        if number in processes.decided or not begins | (kinds & {CallFinished, Closed, Left}):
            continue
        if begins:
            started = [len(t.started) for t in entry.transitions if isinstance(t, Answered | Reopened)]
            appends, allowed = 0, 2 + max(0, sum(started) - 1)
        appends += 1
        assert appends <= allowed


@examples(300)
@given(scripts, crashes, st.booleans(), st.booleans(), st.booleans(), limits)
def test_crashes_repeat_and_lose_nothing(
    script: list[ScriptItem],
    crashes: list[tuple[int, str]],
    approve: bool,
    impatient: bool,
    resume: bool,
    limit: tuple[int, bool],
) -> None:
    async def main() -> None:
        processes = Processes(script, crashes, max_steps=limit[0], wrap_up=limit[1])
        await processes.live(approve=approve, impatient=impatient, resume=resume)
        check(processes)

    asyncio.run(main())


RICH: list[ScriptItem] = [
    RateLimitError("busy", retry_after=7),
    Answer(
        "I pay.",
        (
            AskedCall("pay", 2),
            AskedCall("refund", 1, marked=True),
            AskedCall("look_up", 0),
            AskedCall("break", 3),
        ),
    ),
    Answer("", (AskedCall("look_up", 1), AskedCall("missing"))),
    Answer("", (AskedCall("pay", stops=True),)),
    Answer("Half an ans", stops=True),
    Answer("", (AskedCall("pay", 1), AskedCall("look_up", 2)), FinishReason.LENGTH),
]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("impatient", [False, True])
@pytest.mark.parametrize("limit", [{}, {"max_steps": 3, "wrap_up": True}])
async def test_a_crash_at_any_append_of_a_rich_run_repeats_and_loses_nothing(
    when: str, impatient: bool, limit: dict[str, Any]
) -> None:
    whole = Processes(RICH, **limit)
    await whole.live(impatient=impatient, resume=True)
    check(whole)
    assert whole.journal.appends > 10
    for number in range(1, whole.journal.appends + 1):
        processes = Processes(RICH, [(number, when)], **limit)
        await processes.live(impatient=impatient, resume=True)
        check(processes)
