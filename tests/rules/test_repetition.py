"""A run that goes in circles gets a nudge first, and stops if that did not help."""

from __future__ import annotations

import time
from itertools import count, cycle, islice, repeat
from pathlib import Path
from typing import Any

import pytest
from benchmarks.stuck import RecordedStep, Run, repeated_call_check, take_step
from hypothesis import given, strategies as st
from msgspec.structs import replace

from tests.support import START, examples, transitions_of
from whyloop import (
    Agent,
    AgentState,
    ContinuationCriteria,
    ErrorPolicy,
    Message,
    RepeatedCallCheck,
    Session,
    SlimAgentStateSerializer,
    SlimSerializationConfig,
    Step,
    StopReason,
    ToolCallPresenceCheck,
    tool,
)
from whyloop.errors import ConfigurationError, ToolDefinitionError
from whyloop.events import ContinuationEvaluated
from whyloop.replay import judge
from whyloop.rules.repetition import _same_arguments
from whyloop.stores import MemoryStore, SqliteStore
from whyloop.testing import Reply, ScriptedModel, call, calls, text
from whyloop.values.judgement import Judged
from whyloop.values.log import Log
from whyloop.values.transitions import Queried

SAME = call("search", {"query": "lamp"})


def search(query: str) -> str:
    """Search the catalogue."""
    return f"nothing for {query}"


@tool
def ticket(number: int) -> str:
    """Return another text each time."""
    return f"ticket {number} at {next(_NUMBERS)}"


@tool
def broken(path: str) -> str:
    """Fail with another text each time."""
    raise ValueError(f"no {path}, attempt {next(_NUMBERS)}")


@tool
def closed(path: str) -> str:
    """Fail with the same text each time."""
    raise ValueError("the disk is full")


_NUMBERS = count()


def agent_of(replies: Any, **options: Any) -> Agent[Any, Any]:
    options.setdefault("criteria", [RepeatedCallCheck()])
    return Agent(
        ScriptedModel(replies),
        tools=[search, ticket, broken, closed],
        error_policy=ErrorPolicy.ignore_tool_errors(),
        **options,
    )


def nudges(state: AgentState) -> list[int]:
    """The numbers of the steps after which the model got a nudge."""
    found = []
    for step in state.execution_steps:
        said = step.outcome.evaluation_for(RepeatedCallCheck) if step.outcome else None
        if said is not None and said.feedback is not None:
            found.append(step.number)
    return found


def test_the_same_call_with_the_same_result_is_nudged_and_then_stopped() -> None:
    state = agent_of(repeat(SAME)).run_sync("Find a lamp")
    assert (nudges(state), state.execution.step_count) == ([3, 4], 5)
    assert state.stop_reason is StopReason.GUARD_FORBADE
    assert state.outcome.resolved_by == "RepeatedCallCheck"
    said = "search was called 5 times with the same arguments and returned the same result"
    assert state.outcome.reason == f"{said}, and a nudge did not help"
    assert said in state.explain()
    nudged = (
        "RepeatedCallCheck: search was called 3 times with the same arguments and returned the same result"
    )
    assert state.explanation.steps[2].feedback == (f"{nudged}: nudged",)
    assert f"→ continue, ToolCallPresenceCheck; {nudged}" in state.explain()
    assert state.explanation.steps[4].feedback == ()


def test_a_nudge_at_the_end_of_a_run_is_not_shown_as_one_that_the_model_received() -> None:
    state = agent_of(repeat(SAME), max_steps=4).run_sync("Find a lamp")
    assert [bool(step.feedback) for step in state.explanation.steps] == [False, False, True, False]


def test_the_nudge_reaches_the_model_and_names_its_source() -> None:
    model = ScriptedModel([SAME, SAME, SAME, text("There is none.")])
    state = Agent(model, tools=[search], criteria=[RepeatedCallCheck()]).run_sync("Find a lamp")
    sent = model.requests[-1].messages[-1]
    assert sent.is_developer
    assert sent.source == ("RepeatedCallCheck",)
    assert sent.text.startswith(
        "search was called 3 times with the same arguments and returned the same result."
    )
    assert state.stop_reason is StopReason.COMPLETED


def test_events_and_the_log_show_the_nudge_and_the_stop(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Any] = []
    with caplog.at_level("INFO", logger="whyloop.runs"):
        agent_of(repeat(SAME), event_handler=seen.append).run_sync("Go")
    judged = [event.outcome for event in seen if isinstance(event, ContinuationEvaluated)]
    said = [outcome.evaluation_for(RepeatedCallCheck) for outcome in judged]
    assert [each.feedback is not None for each in said if each] == [False, False, True, True, False]
    assert "by RepeatedCallCheck: search was called 5 times" in caplog.text


@pytest.mark.parametrize(
    ("replies", "first_nudge", "steps"),
    [
        ([call("broken", {"path": "a"})], 3, 5),
        ([SAME, call("search", {"query": "desk"})], 4, 7),
        ([SAME, call("search", {"query": "desk"}), call("search", {"query": "bed"})], 5, 9),
    ],
    ids=["the same call failing in other ways", "alternation", "a cycle of three"],
)
def test_circles_are_found(replies: list[Reply], first_nudge: int, steps: int) -> None:
    state = agent_of(cycle(replies)).run_sync("Go")
    assert nudges(state)[0] == first_nudge
    assert state.execution.step_count == steps
    assert state.stop_reason is StopReason.GUARD_FORBADE


def test_the_same_error_for_other_arguments_is_not_a_circle() -> None:
    state = agent_of(call("closed", {"path": str(n)}) for n in count()).run_sync("Go")
    assert nudges(state) == []
    assert state.stop_reason is StopReason.STEPS_LIMIT_REACHED


def test_a_circle_that_is_longer_than_the_window_is_nudged_and_stopped_with_a_larger_one() -> None:
    circle = [call("search", {"query": str(n)}) for n in range(5)]
    state = agent_of(cycle(circle), max_steps=14).run_sync("Go")
    assert (nudges(state)[0], state.stop_reason) == (7, StopReason.STEPS_LIMIT_REACHED)
    larger = agent_of(cycle(circle), criteria=[RepeatedCallCheck(window=11)]).run_sync("Go")
    assert (larger.execution.step_count, larger.stop_reason) == (13, StopReason.GUARD_FORBADE)


@pytest.mark.parametrize(
    "reply",
    [call("ticket", {"number": 1}), call("search", {"query": "lamp"})],
    ids=["another result", "an excepted tool"],
)
def test_polling_is_not_a_circle(reply: Reply) -> None:
    state = agent_of(repeat(reply), criteria=[RepeatedCallCheck(except_tools=["search"])]).run_sync("Go")
    assert nudges(state) == []
    assert state.stop_reason is StopReason.STEPS_LIMIT_REACHED


def test_a_tool_that_polls_by_its_own_declaration_is_not_a_circle() -> None:
    @tool(polling=True)
    def build(number: int) -> str:
        return "running"

    waiting = call("build", {"number": 7})
    agent = Agent(ScriptedModel(repeat(waiting)), [build], criteria=[RepeatedCallCheck()], max_steps=15)
    state = agent.run_sync("Wait for the build")
    assert (state.stop_reason, nudges(state)) == ("steps_limit", [])
    restored = AgentState.from_dict(state.to_dict())
    assert judge(restored, RepeatedCallCheck()).stop_reason == "steps_limit"
    assert restored.steps[0].tool_calls[0].polling


def test_a_wrapped_tool_keeps_that_it_polls() -> None:
    @tool(polling=True)
    def build() -> str:
        return "running"

    assert build.renamed("ci_build").polling
    assert build.approved(True).polling
    with pytest.raises(ToolDefinitionError, match="invalid polling 1"):
        tool(polling=1)(search)  # type: ignore[call-overload]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7])
@pytest.mark.parametrize("window", [8, 12])
def test_a_nudge_says_what_will_happen(size: int, window: int) -> None:
    """In every circle: if the nudge says that the run ends, it does, and otherwise it never does."""
    circle = [call("search", {"query": str(n)}) for n in range(size)]
    guard = RepeatedCallCheck(window=window)
    state = agent_of(cycle(circle), criteria=[guard], max_steps=60).run_sync("Go")
    told = {message.text.split(". ")[-1] for message in state.messages if message.is_developer}
    if state.stop_reason == "guard":
        assert told == {"The run ends if this continues."}
    else:
        assert (state.stop_reason, told) == ("steps_limit", {"You will be told again if this continues."})


def test_a_new_call_between_repeats_ends_the_streak() -> None:
    script = (reply for n in count() for reply in (SAME, call("search", {"query": f"desk {n}"})))
    state = agent_of(script).run_sync("Go")
    assert nudges(state) == []


def test_a_step_with_one_new_call_among_parallel_ones_is_not_a_repeat() -> None:
    fresh = (calls(SAME, call("search", {"query": str(n)})) for n in count())
    assert nudges(agent_of(fresh).run_sync("Go")) == []
    alike = repeat(calls(SAME, call("search", {"query": "desk"})))
    assert nudges(agent_of(alike).run_sync("Go")) == [3, 4]


def test_the_same_calls_in_another_order_are_the_same_step() -> None:
    one, other = SAME, call("search", {"query": "desk"})
    state = agent_of(cycle([calls(one, other), calls(other, one)])).run_sync("Go")
    assert state.execution.step_count == 5


def test_a_new_query_starts_afresh() -> None:
    agent = agent_of([SAME, SAME, text("None."), SAME, SAME, text("None.")])
    state = agent.run_sync("Go")
    state = agent.run_sync("Again", state=state)
    assert state.stop_reason is StopReason.COMPLETED
    assert not any(message.is_developer for message in state.messages)


def test_a_rule_that_is_added_on_resume_nudges_before_it_stops() -> None:
    stopped = agent_of(repeat(SAME), criteria=[], max_steps=10).run_sync("Go")
    state = agent_of(repeat(SAME), max_steps=30).resume_sync(stopped)
    assert nudges(state) == [11]
    assert (state.execution.step_count, state.stop_reason) == (12, StopReason.GUARD_FORBADE)


def test_a_failed_model_call_is_not_a_repeat() -> None:
    script: list[Reply | BaseException] = [SAME, SAME, SAME, ConnectionError("lost"), text("None.")]
    agent = Agent(
        ScriptedModel(script),
        tools=[search],
        error_policy=ErrorPolicy.retry_all(),
        criteria=[RepeatedCallCheck()],
    )
    state = agent.run_sync("Go")
    assert nudges(state) == [3]


def test_large_results_are_compared_whole() -> None:
    @tool
    def dump(end: str) -> str:
        """Return two megabytes."""
        return "x" * 2_000_000 + end

    script = [call("dump", {"end": "a"})] * 3 + [text("Done.")]
    state = Agent(ScriptedModel(script), tools=[dump], criteria=[RepeatedCallCheck()]).run_sync("Go")
    assert nudges(state) == [3]


async def test_a_stored_session_is_judged_the_same_after_resume_and_fork(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "sessions.db")
    session = await Session.open(store, agent_of(repeat(SAME), max_steps=4), "one", create=True)
    await session.send("Find a lamp")
    await store.fork("one", new_agent_id="two")
    for name in ("one", "two"):
        reopened = await Session.open(store, agent_of(repeat(SAME), max_steps=20), name)
        state = await reopened.resume()
        assert (nudges(state), state.execution.step_count) == ([3, 4], 5)
        assert state.stop_reason is StopReason.GUARD_FORBADE
    await store.close()


@pytest.mark.parametrize(
    ("script", "steps"),
    [
        (cycle([SAME, call("broken", {"path": "a"})]), 7),
        (repeat(call("closed", {"path": "a"})), 5),
    ],
    ids=["alternation", "the same error"],
)
async def test_every_step_judged_again_yields_its_outcome(script: Any, steps: int) -> None:
    agent = agent_of(script)
    states = [state async for state in agent.iterate(agent.start("Go"))]
    assert [state.execution.step_count for state in states] == list(range(1, steps + 1))
    for state in states:
        for again in (state, AgentState.from_dict(state.to_dict())):
            assert agent.criteria.evaluate(again) == state.steps[-1].outcome


SCRIPTS = st.lists(
    st.sampled_from(
        [
            SAME,
            call("search", {"query": "desk"}, "Let me look again."),
            call("broken", {"path": "a"}),
            call("closed", {"path": "b"}),
            call("missing"),
            call("search", "{broken"),
            calls(SAME, call("broken", {"path": "a"})),
        ]
    ),
    min_size=1,
    max_size=4,
)


@examples(30)
@given(SCRIPTS)
async def test_every_step_of_a_stored_journal_judged_again_yields_its_outcome(script: list[Reply]) -> None:
    store, agent = MemoryStore(), agent_of(cycle(script))
    session = await Session.open(store, agent, "one", create=True)
    final = await session.send("Go")
    state, judged = AgentState(agent_id="one"), 0
    for transition in transitions_of("one", (await store.read("one")).entries):
        if isinstance(transition, Judged):
            assert agent.criteria.evaluate(state) == transition.outcome
            judged += 1
        state = transition.apply_to(state)
    assert judged == final.execution.step_count
    said = nudges(final)
    if final.outcome.resolved_by == "RepeatedCallCheck":
        assert said
        assert said[-1] < final.execution.step_count


@examples(30)
@given(SCRIPTS)
async def test_a_replay_stops_where_a_live_run_stops(script: list[Reply]) -> None:
    live = await agent_of(cycle(script)).run("Go")
    recorded = await agent_of(cycle(script), criteria=[]).run("Go")
    replayed = judge(recorded, RepeatedCallCheck())
    assert replayed.stopped_at == live.execution.step_count
    assert replayed.resolved_by == live.outcome.resolved_by


def test_a_slim_snapshot_that_lacks_steps_and_results_is_judged_without_an_error() -> None:
    state = agent_of(repeat(SAME)).run_sync("Go")
    for config in (SlimSerializationConfig.minimal(), SlimSerializationConfig(max_messages=4)):
        slim = SlimAgentStateSerializer(config)
        read = slim.deserialize(slim.serialize(state))
        assert RepeatedCallCheck().explain(read).decision is not None


def test_calls_without_a_result_are_not_the_same() -> None:
    state = agent_of([SAME, SAME, SAME, text("None.")]).run_sync("Go")
    lost = [m for m in state.messages if not m.is_tool]
    broken_state = replace(state, messages=Log(lost), steps=Log(_without_results(state)))
    assert RepeatedCallCheck().explain(broken_state).feedback is None


def _without_results(state: AgentState) -> list[Step]:
    """The steps that called a tool, as if their results had never been stored."""
    called = [step for step in state.steps if step.tool_calls]
    return [replace(step, first_message=n, message_count=1) for n, step in enumerate(called, 1)]


def test_two_of_them_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="two RepeatedCallCheck may contradict"):
        agent_of([], criteria=[RepeatedCallCheck(), RepeatedCallCheck(window=5)])


# Replies


def replay(steps: list[RecordedStep]) -> tuple[int | None, int | None]:
    return tuple(repeated_call_check(Run("m", False, tuple(steps))))  # type: ignore[return-value]


def test_replies_without_a_call_are_nudged_and_then_stopped_in_a_recorded_run() -> None:
    assert replay([RecordedStep(None, None, "r", False, str(n)) for n in range(9)]) == (3, 4)


def test_an_answer_that_ends_the_run_is_not_stopped() -> None:
    reply = RecordedStep(None, None, "r", False, "t")
    state = Queried(START, execution_id="e", message=Message.user("Go")).apply_to(AgentState())
    rule = ContinuationCriteria(RepeatedCallCheck())
    for number in range(1, 5):
        state = take_step(state, number, reply)
        if number < 4:
            state = Judged(START, outcome=rule.evaluate(state), step=number).apply_to(state)
    assert rule.evaluate(state).stop_reason is StopReason.GUARD_FORBADE
    ended = ContinuationCriteria(RepeatedCallCheck(), ToolCallPresenceCheck()).evaluate(state)
    assert ended.stop_reason is StopReason.COMPLETED


# Properties

HASHES = st.sampled_from("abc")
STEPS = st.one_of(
    st.builds(RecordedStep, HASHES, HASHES, HASHES, st.booleans(), HASHES),
    st.builds(RecordedStep, st.none(), st.none(), HASHES, st.just(False), HASHES),
)


@given(st.lists(STEPS, max_size=30), st.text())
def test_the_wording_of_the_model_does_not_matter(steps: list[RecordedStep], wording: str) -> None:
    assert replay(steps) == replay([step._replace(text=wording) for step in steps])


@given(st.lists(STEPS, max_size=30))
def test_the_nudge_comes_before_the_stop(steps: list[RecordedStep]) -> None:
    nudged, cut = replay(steps)
    assert cut is None or (nudged is not None and nudged < cut)


@given(st.lists(st.booleans(), max_size=30))
def test_a_run_without_repetition_is_never_touched(failures: list[bool]) -> None:
    steps = [RecordedStep("t", str(n), str(n), failed, "") for n, failed in enumerate(failures)]
    assert replay(steps) == (None, None)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=3), JSON, max_size=4))
def test_the_order_of_keys_does_not_matter(arguments: dict[str, Any]) -> None:
    assert _same_arguments(arguments, dict(reversed(arguments.items())))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"n": 1}, {"n": 1.0}, True),
        ({"n": 1}, {"n": True}, False),
        ({"n": [0]}, {"n": [False]}, False),
        ({"n": 1}, {"n": "1"}, False),
        ({"q": "a"}, {"q": "a "}, False),
        ("{broken", " {broken\n", True),
        ("{broken", {}, False),
    ],
)
def test_arguments_are_compared_as_json_values(one: Any, other: Any, same: bool) -> None:
    assert _same_arguments(one, other) is same


def test_arguments_that_are_nested_too_deeply_are_not_the_same() -> None:
    def nested() -> dict[str, Any]:
        value: dict[str, Any] = {}
        for _ in range(200_000):
            value = {"a": value}
        return value

    one, other = nested(), nested()
    assert not _same_arguments(one, other)
    while one:  # Freeing it at once would recurse as deeply.
        one, other = one.pop("a"), other.pop("a")


# Cost and parameters


def test_the_work_is_the_same_at_step_10_and_at_step_1000() -> None:
    rule, steps, spent = RepeatedCallCheck(), {}, {}
    state = Queried(START, execution_id="e", message=Message.user("Go")).apply_to(AgentState())
    script = cycle([RecordedStep("t", c, c, False, "") for c in "abcdefgh"])
    for number, step in enumerate(islice(script, 1000), 1):
        state = take_step(state, number, step)
        if number in (20, 1000):
            steps[number] = len(rule._recent_steps(state))
            spent[number] = min(_seconds(rule, state) for _ in range(50))
    assert steps[20] == steps[1000] == rule.window + 2
    assert spent[1000] < 3 * spent[20]


def _seconds(rule: RepeatedCallCheck, state: AgentState) -> float:
    started = time.perf_counter()
    rule.explain(state)
    return time.perf_counter() - started


@pytest.mark.parametrize(
    "options",
    [
        {"window": 0},
        {"window": True},
        {"nudge_times": 1},
        {"stop_times": 2.5},
        {"nudge_times": 4},
        {"stop_times": 9},
        {"except_tools": [""]},
        {"except_tools": [1]},
    ],
)
def test_invalid_parameters_are_refused_with_their_value(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="invalid"):
        RepeatedCallCheck(**options)
