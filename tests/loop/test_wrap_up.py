"""The wrap-up: one last answer from what is known, when a limit ends a run with work left to do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.support import (
    MemoryJournal,
    RespondingModel,
    assert_complete_history,
    assert_readable,
    echo,
    requests_of,
    scripted,
)
from whyloop import (
    Agent,
    AgentBuilder,
    AgentState,
    AgentStatus,
    Budget,
    ContinuationDecision,
    ContinuationEvaluation,
    CostLimit,
    ErrorPolicy,
    ExecutionTimeLimit,
    Hook,
    ModelRequest,
    ModelResponse,
    SlimAgentStateSerializer,
    SlimSerializationConfig,
    StepsLimit,
    TextDelta,
    TokenUsageLimit,
    Usage,
    WrapUp,
    tool,
)
from whyloop.broadcasting import BroadcastConfig, envelope_schema
from whyloop.cli.formats import View
from whyloop.cli.narration import Narrator
from whyloop.cli.renderer import conversation
from whyloop.errors import ConfigurationError, ModelError, OutputError, UnfinishedRunError
from whyloop.events import AgentExecutionFinished, AgentStatusChanged, AgentStepCompleted, AgentStepStarted
from whyloop.loop.executions import recover_run, start_run
from whyloop.loop.run import MAX_RECOVERIES
from whyloop.replay import judge
from whyloop.sessions.session import Session
from whyloop.stores import MemoryStore, SqliteStore
from whyloop.testing import FakeClock, ScriptedModel, assert_stopped, call, calls, capture_events, text
from whyloop.values.judgement import Judged
from whyloop.values.messages import MessageRole
from whyloop.values.model import OUTPUT_TOOL, OutputMode
from whyloop.values.step import Interruption
from whyloop.values.transitions import RESUMED, apply
from whyloop.wire.document import document
from whyloop.wire.envelope import NUMBERED, envelope

ANSWER = "Four lamps are known; the price is missing."


def limited(*replies: Any, **options: Any) -> Agent:
    """Return an agent that wraps up after one step."""
    return scripted(*replies, tools=[echo], **({"max_steps": 1, "wrap_up": True} | options))


async def wrapped_up(*more: Any, **options: Any) -> AgentState:
    return await limited(call("echo"), *(more or [ANSWER]), **options).run("go")


# When


@dataclass
class Slow:
    """A model whose first answer takes too long, after a piece of text."""

    clock: FakeClock
    requests: list[ModelRequest]

    async def respond(self, request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        self.requests.append(request)
        if request.tool_choice is None:
            yield TextDelta("It is")
            self.clock.advance(11)
            await asyncio.Event().wait()
        yield ModelResponse(ANSWER)


PRICED = Usage(input=5, output=5, cost=Decimal("0.10"))


@pytest.mark.parametrize(
    ("limit", "reason", "by"),
    [
        ({"max_steps": 1}, "steps_limit", "StepsLimit"),
        ({"max_steps": None, "max_tokens": 10}, "token_limit", "TokenUsageLimit"),
        ({"max_steps": None, "criteria": CostLimit("0.10")}, "guard", "CostLimit"),
        ({"max_steps": None, "criteria": StepsLimit(1, scope="session")}, "steps_limit", "StepsLimit"),
    ],
)
async def test_a_limit_that_leaves_work_gets_one_last_answer(
    limit: dict[str, Any], reason: str, by: str
) -> None:
    agent = limited(call("echo", usage=PRICED), text(ANSWER, usage=PRICED), **limit)
    state = await agent.run("go")
    assert_stopped(state, reason=reason, by=by)
    assert state.status is AgentStatus.STOPPED
    assert (state.last_response, state.output) == (ANSWER, ANSWER)
    assert [step.wrap_up for step in state.steps] == [None, by]
    assert (state.step_count, state.execution.step_count) == (1, 1)
    assert state.usage.total == 20  # It is counted as used.
    assert_complete_history(state.messages)
    assert_readable(state)


@pytest.mark.parametrize("limit", [{"timeout": 10}, {"timeout": None, "cumulative_timeout": 10}])
async def test_an_answer_that_ran_out_of_time_is_followed_by_one_from_what_is_known(
    limit: dict[str, Any],
) -> None:
    clock = FakeClock()
    model = Slow(clock, [])
    state = await Agent(model, [echo], clock=clock, wrap_up=True, **limit).run("go")
    assert_stopped(state, reason="time_limit")
    assert [message.text for message in state.messages] == ["go", "It is", ANSWER]
    assert state.messages[1].incomplete
    assert state.last_response == ANSWER
    assert len(model.requests) == 2


def forbid_by_guard(state: AgentState) -> bool:
    return state.execution.step_count < 1


@pytest.mark.parametrize(
    ("replies", "options", "reason"),
    [
        ([text("done")], {}, "completed"),
        ([call("echo")], {"max_steps": 5, "criteria": forbid_by_guard}, "guard"),
        ([call("echo")], {"criteria": forbid_by_guard}, "steps_limit"),  # And a guard beside the limit.
        ([call("nothing")], {}, "error"),
        ([ModelError("no", status=500)], {}, "error"),
        ([text("cut", finish_reason="length")], {}, "steps_limit"),  # A finish reason beside it.
        ([call("echo", usage=Usage(input=5, output=5))], {"max_steps": 5, "criteria": CostLimit(1)}, "guard"),
    ],
)
async def test_no_other_end_gets_one(replies: list[Any], options: dict[str, Any], reason: str) -> None:
    agent = limited(*replies, **options)
    state = await agent.run("go")
    assert state.stop_reason == reason
    assert len(requests_of(agent)) == 1
    assert [step.wrap_up for step in state.steps] == [None]


async def test_a_stop_request_gets_none() -> None:
    @tool
    async def ask_to_stop() -> str:
        agent.request_stop("enough")
        return "asked"

    agent = scripted(call("ask_to_stop"), tools=[ask_to_stop], max_steps=1, wrap_up=True)
    state = await agent.run("go")
    assert state.stop_reason == "user_requested"
    assert len(requests_of(agent)) == 1


async def test_a_call_that_waits_for_a_person_does_not_cause_a_wrap_up() -> None:
    @tool(needs_approval=True)
    async def pay() -> str:
        return "paid"

    agent = scripted(call("pay", usage=10), tools=[pay], max_tokens=5, wrap_up=True)
    state = await agent.run("go")
    assert state.stop_reason == "token_limit"
    assert len(requests_of(agent)) == 1


async def test_a_limit_of_the_session_that_was_exhausted_before_ends_a_query_without_a_call() -> None:
    agent = limited("one", max_steps=None, criteria=StepsLimit(1, scope="session"))
    state = await agent.run("go")
    state = await agent.run("again", state=state)
    assert_stopped(state, reason="steps_limit", by=StepsLimit)
    assert len(requests_of(agent)) == 1


async def test_without_wrap_up_nothing_follows() -> None:
    agent = limited(call("echo"), wrap_up=False)
    state = await agent.run("go")
    assert_stopped(state, reason="steps_limit", by=StepsLimit)
    assert state.execution.wrap_up is None
    with pytest.raises(OutputError, match="steps_limit"):
        _ = state.output


# The request


async def test_the_tools_stay_declared_and_none_may_be_called() -> None:
    agent = limited(call("echo"), ANSWER, instructions="Be brief.", wrap_up=WrapUp(tokens=70))
    state = await agent.run("go")
    first, last = requests_of(agent)
    assert (first.tool_choice, first.max_tokens) == (None, None)
    assert (last.tool_choice, last.max_tokens) == ("none", 70)
    assert (last.tools, last.instructions) == (first.tools, first.instructions)
    asked = last.messages[-1]
    assert asked.role is MessageRole.DEVELOPER
    assert asked.text.startswith("Limit reached: 1 of 1 steps used. ")
    assert asked not in state.messages  # It is part of the request alone.


async def test_the_request_is_recorded_by_hash() -> None:
    state = await wrapped_up()
    record = state.steps[-1].request
    assert record is not None
    assert (record.tool_choice, record.max_tokens) == ("none", 1000)
    assert record.messages is not None
    *ranges, added = record.messages
    assert ranges == [(0, 3)]
    texts = {part.hash: part.text for part in state.request_parts}
    assert "Answer now with what is known" in texts[str(added)]


async def test_a_hook_that_changes_the_request_is_recorded_with_the_message_that_asks() -> None:
    class Shout(Hook):
        async def around_model(self, request: Any, context: Any, ask: Any) -> Any:
            from msgspec.structs import replace

            return await ask(replace(request, instructions="LOUD"))

    state = await wrapped_up(hooks=Shout())
    record = state.steps[-1].request
    assert record is not None
    assert record.changed_by == ("Shout",)
    assert record.tool_choice == "none"
    assert record.messages is not None
    assert record.messages[0] == (0, 3)
    assert len(record.messages) == 2


async def test_feedback_that_the_model_has_not_seen_is_in_the_request() -> None:
    def nudge(state: AgentState) -> ContinuationEvaluation:
        return ContinuationEvaluation(
            "nudge", ContinuationDecision.ALLOW_CONTINUATION, "why", feedback="Look at the price list."
        )

    agent = limited(call("echo"), ANSWER, criteria=nudge)
    await agent.run("go")
    assert requests_of(agent)[-1].messages[-1].text.startswith("Look at the price list.\n\nLimit reached")


# Failures


@pytest.mark.parametrize(
    ("reply", "note"),
    [
        (ModelError("overloaded", status=503), "the wrap-up failed: overloaded"),
        (call("echo", usage=10), "the wrap-up failed: the model asked for tools instead of answering: echo"),
        (calls(call("a"), call("b"), call("a")), "the model asked for tools instead of answering: a, b"),
        (text(" "), "the wrap-up failed: the answer was empty"),
        (
            text("", finish_reason="length"),
            "the wrap-up failed: the answer was empty before it was truncated",
        ),
    ],
)
@pytest.mark.parametrize("policy", [ErrorPolicy.stop_on_any_error(), ErrorPolicy.retry_all(3)])
async def test_a_wrap_up_that_fails_leaves_the_end_as_it_was_with_a_note(
    reply: Any, note: str, policy: ErrorPolicy
) -> None:
    before = await limited(call("echo", text="Looking."), wrap_up=False, error_policy=policy).run("go")
    agent = limited(call("echo", text="Looking."), reply, error_policy=policy)
    state = await agent.run("go")
    assert len(requests_of(agent)) == 2
    assert (state.status, state.stop_reason) == (before.status, before.stop_reason)
    assert [m.text for m in state.messages] == [m.text for m in before.messages]
    assert (state.last_response, state.step_count) == (before.last_response, before.step_count)
    assert state.execution.failures.total == 0
    assert note in (state.steps[-1].wrap_up_note or "")
    assert note.removeprefix("the ") in state.explanation.headline
    policy_said = state.outcome.evaluation_for("ErrorPolicyCriterion")
    assert policy_said is not None
    assert note.removeprefix("the wrap-up failed: ") in policy_said.reason
    with pytest.raises(OutputError, match="steps_limit"):
        _ = state.output
    assert_readable(state)


async def test_the_tokens_of_a_failed_wrap_up_are_counted() -> None:
    state = await wrapped_up(call("echo", usage=30))
    assert state.usage.total == 30
    assert state.steps[-1].usage.total == 30


async def test_an_answer_that_is_too_long_is_kept_as_far_as_it_goes() -> None:
    state = await wrapped_up(text("Four lamps", finish_reason="length"))
    assert_stopped(state, reason="steps_limit", by=StepsLimit)
    assert state.last_response == "Four lamps"
    assert state.steps[-1].wrap_up_note == "the wrap-up was cut off: the answer was truncated"
    assert [action.kind for action in state.explanation.next_actions] == ["grant"]


async def test_a_wrap_up_has_its_own_time() -> None:
    clock, still_there = FakeClock(), []

    async def respond(request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        if request.tool_choice is None:
            yield ModelResponse("", calls(call("echo")).tool_calls)
            return
        yield TextDelta("Four")
        await clock.sleep(6)
        await asyncio.sleep(0)
        still_there.append(clock.monotonic())
        clock.advance(1)
        await asyncio.Event().wait()

    options: dict[str, Any] = {"max_steps": 1, "wrap_up": WrapUp(seconds=7)}
    state = await Agent(RespondingModel(respond), [echo], clock=clock, **options).run("go")
    assert_stopped(state, reason="steps_limit", by=StepsLimit)
    assert still_there == [6]
    assert state.steps[-1].interrupted is Interruption.OUT_OF_TIME
    assert state.messages[-1].incomplete
    assert state.last_response == "Four"
    assert "The wrap-up was cut off" in state.explanation.headline


async def test_a_stop_request_interrupts_it_and_the_reason_stays_that_of_the_limit() -> None:
    async def respond(request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        if request.tool_choice is None:
            yield ModelResponse("", calls(call("echo")).tool_calls)
            return
        yield TextDelta("Four")
        agent.request_stop("enough")
        await asyncio.Event().wait()

    agent = Agent(RespondingModel(respond), [echo], max_steps=1, wrap_up=True)
    state = await agent.run("go")
    assert_stopped(state, reason="steps_limit", by=StepsLimit)
    assert state.steps[-1].interrupted is Interruption.STOPPED
    assert (state.messages[-1].text, state.messages[-1].incomplete) == ("Four", True)
    assert "Also forbidden by StopRequestedCheck (enough)" in state.explanation.headline
    assert agent.criteria.evaluate(state) == state.outcome


async def test_the_limit_that_ended_the_run_is_the_one_that_is_named() -> None:
    # The wrap-up itself uses up the tokens, whose limit comes first.
    agent = limited(
        call("echo", usage=5), text(ANSWER, usage=50), max_steps=None, criteria=StepsLimit(1), max_tokens=20
    )
    state = await agent.run("go")
    assert_stopped(state, reason="steps_limit", by=StepsLimit)
    tokens = state.outcome.evaluation_for(TokenUsageLimit)
    assert tokens is not None
    assert tokens.exhausted


# Typed answers


@dataclass
class Lamps:
    count: int


@pytest.mark.parametrize("mode", [OutputMode.TOOL, OutputMode.NATIVE, OutputMode.PROMPT])
async def test_a_wrap_up_gives_the_typed_output(mode: OutputMode) -> None:
    model = ScriptedModel([call("echo"), '{"count": 4}'], output_mode=mode)
    agent = Agent(model, [echo], max_steps=1, wrap_up=True, output_type=Lamps)
    state = await agent.run("go")
    assert state.status is AgentStatus.STOPPED
    assert state.output == Lamps(4)
    assert agent.output(AgentState.from_dict(state.to_dict())) == Lamps(4)
    request = model.requests[-1]
    asked = f"{request.instructions} {request.messages[-1].text} {request.output}"
    assert "count" in asked  # The schema is in the instructions, in the message or in the request.
    assert request.tool_choice == "none"


async def test_a_model_that_still_calls_the_output_tool_has_answered() -> None:
    agent = limited(call("echo"), call(OUTPUT_TOOL, {"count": 4}), output_type=Lamps)
    state: AgentState[Any] = await agent.run("go")
    assert state.output == Lamps(4)


async def test_a_typed_wrap_up_that_does_not_fit_is_not_corrected() -> None:
    agent = limited(call("echo"), '{"count": "many"}', output_type=Lamps, output_retries=3)
    state = await agent.run("go")
    assert_stopped(state, reason="steps_limit", by=StepsLimit)
    assert len(requests_of(agent)) == 2
    assert "does not fit the output type" in (state.steps[-1].wrap_up_note or "")
    with pytest.raises(OutputError, match="steps_limit"):
        _ = state.output


# Records


async def recorded(*replies: Any, **options: Any) -> tuple[Agent, MemoryJournal, AgentState]:
    agent, journal = limited(*replies, **options), MemoryJournal()
    run = start_run(agent, "go", journal.create(agent), journal=journal)
    return agent, journal, await run.finish()


async def test_every_step_is_judged_again_from_the_journal_as_it_was() -> None:
    agent, journal, state = await recorded(call("echo"), ANSWER)
    folded, judged = AgentState.before_creation("session-1"), 0
    for transition in journal.transitions:
        if isinstance(transition, Judged):
            assert agent.criteria.evaluate(folded) == transition.outcome
            judged += 1
        folded = apply(folded, transition)
    assert judged == 2
    assert folded == state
    assert agent.criteria.evaluate(state) == state.outcome
    assert [t.wraps_up for t in journal.transitions if isinstance(t, Judged)] == [True, False]


async def test_snapshots_keep_it() -> None:
    state = await wrapped_up()
    assert AgentState.from_dict(state.to_dict()) == state
    for config in (SlimSerializationConfig.full(), SlimSerializationConfig.standard()):
        serializer = SlimAgentStateSerializer(config)
        again = serializer.deserialize(serializer.serialize(state))
        assert again.current_step is not None
        assert again.current_step.wrap_up == "StepsLimit"
        assert again.wrap_up == "StepsLimit"
        assert again.execution.step_number == 2
        agent = limited("and more")
        assert (await agent.resume(again, grant=Budget(steps=1))).last_response == "and more"


async def test_a_run_that_is_resumed_continues_after_the_answer() -> None:
    agent = limited(call("echo"), ANSWER, call("echo"), "It costs 5.")
    state = await agent.run("go")
    state = await agent.resume(state, grant=Budget(steps=2))
    assert state.status is AgentStatus.COMPLETED
    assert state.last_response == "It costs 5."
    assert [(step.number, step.wrap_up) for step in state.steps] == [
        (1, None),
        (2, "StepsLimit"),
        (3, None),
        (4, None),
    ]
    assert (state.step_count, state.execution.step_count) == (3, 3)
    texts = [(m.role.value, m.text) for m in requests_of(agent)[2].messages[-2:]]
    assert texts == [("assistant", ANSWER), ("developer", RESUMED)]
    assert requests_of(agent)[2].tool_choice is None


async def test_each_leg_may_wrap_up_and_a_resume_without_a_grant_may_not_again() -> None:
    agent = limited(call("echo"), ANSWER, call("echo"), "Five lamps.")
    state = await agent.run("go")
    again = await agent.resume(await agent.resume(state))
    assert_stopped(again, reason="steps_limit", by=StepsLimit)
    assert len(requests_of(agent)) == 2
    assert [m.text for m in again.messages].count(RESUMED) == 1
    state = await agent.resume(again, grant=Budget(steps=1))
    assert_stopped(state, reason="steps_limit", by=StepsLimit)
    assert [step.wrap_up is not None for step in state.steps] == [False, True, False, True]
    assert state.output == "Five lamps."


async def test_a_run_that_ended_without_one_gets_it_when_it_is_resumed() -> None:
    state = await limited(call("echo"), wrap_up=False).run("go")
    state = await limited(ANSWER).resume(state)
    assert_stopped(state, reason="steps_limit", by=StepsLimit)
    assert state.output == ANSWER


async def test_the_next_query_is_an_ordinary_one() -> None:
    agent = limited(call("echo"), ANSWER, "Five.")
    state = await agent.run("again", state=await agent.run("go"))
    assert (state.status, state.last_response, state.step_count) == (AgentStatus.COMPLETED, "Five.", 2)
    assert state.steps[-1].number == 1
    assert [m.text for m in requests_of(agent)[2].messages[-2:]] == [ANSWER, "again"]


# Crashes


class Dying(MemoryJournal):
    """A journal whose process dies after so many entries."""

    lives = 10**9

    async def append(self, *arguments: Any) -> str | None:
        if self.lives == 0:
            raise RuntimeError("the process died")
        self.lives -= 1
        return await super().append(*arguments)


async def crashed_in_wrap_up(agent: Agent, journal: Dying) -> None:
    """Run until the wrap-up has begun and its answer was not recorded."""
    journal.lives = 3
    with pytest.raises(RuntimeError, match="died"):
        await start_run(agent, "go", journal.create(agent), journal=journal).finish()
    assert journal.state.execution.wrap_up == "StepsLimit"
    assert journal.state.status is AgentStatus.IN_PROGRESS
    assert journal.state.stop_reason is None
    assert "wrapping up" in journal.state.explanation.headline
    with pytest.raises(UnfinishedRunError):
        _ = journal.state.outcome


async def test_a_crash_in_the_wrap_up_repeats_the_call_and_nothing_else() -> None:
    agent, journal = limited(call("echo"), "lost", ANSWER), Dying()
    await crashed_in_wrap_up(agent, journal)
    journal.lives = 10
    state = await recover_run(agent, journal.state, journal).finish()
    assert_stopped(state, reason="steps_limit", by=StepsLimit)
    assert state.output == ANSWER
    assert [step.wrap_up for step in state.steps] == [None, "StepsLimit"]
    assert [request.tool_choice for request in requests_of(agent)] == [None, "none", "none"]
    assert journal.state == state


async def test_a_wrap_up_that_keeps_crashing_is_abandoned() -> None:
    agent, journal = limited(call("echo"), *["lost"] * 10), Dying()
    await crashed_in_wrap_up(agent, journal)
    for _ in range(MAX_RECOVERIES):
        journal.lives = 1
        with pytest.raises(RuntimeError, match="died"):
            await recover_run(agent, journal.state, journal).finish()
    journal.lives = 10
    state = await recover_run(agent, journal.state, journal).finish()
    assert_stopped(state, reason="steps_limit", by=StepsLimit)
    assert not state.pending_calls
    assert len(state.steps) == 1
    assert len(requests_of(agent)) == 2 + MAX_RECOVERIES
    assert agent.criteria.evaluate(state) == state.outcome


async def test_an_agent_without_wrap_up_that_recovers_the_run_ends_it() -> None:
    agent, journal = limited(call("echo"), "lost"), Dying()
    await crashed_in_wrap_up(agent, journal)
    journal.lives = 10
    state = await recover_run(limited(wrap_up=False), journal.state, journal).finish()
    assert_stopped(state, reason="steps_limit", by=StepsLimit)
    assert len(state.steps) == 1


async def test_a_new_query_supersedes_a_wrap_up_that_crashed() -> None:
    agent, journal = limited(call("echo"), "lost", "Five."), Dying()
    await crashed_in_wrap_up(agent, journal)
    journal.lives = 10
    state = await start_run(agent, "again", journal.state, journal=journal).finish()
    assert (state.status, state.last_response) == (AgentStatus.COMPLETED, "Five.")
    assert state.steps[0].outcome is not None
    assert state.steps[0].outcome.stop_reason == "steps_limit"


async def test_step_by_step_it_is_one_more_step() -> None:
    agent = limited(call("echo"), ANSWER)
    state, seen = agent.start("go"), []
    while agent.has_next_step(state):
        state = await agent.next_step(state)
        seen.append((state.status.value, len(state.steps)))
    assert seen == [("in_progress", 1), ("stopped", 2)]
    assert state.output == ANSWER


async def test_sessions_in_sqlite_export_import_and_fork_keep_it(tmp_path: Path) -> None:
    agent = limited(call("echo"), ANSWER, call("echo"), "It costs 5.", "Other.", "And another.")
    store, other = SqliteStore(tmp_path / "sessions.db"), MemoryStore()
    session = await Session.open(store, agent, "s", create=True)
    assert (await session.send("go")).output == ANSWER
    loaded = (await Session.open(store, agent, "s")).state
    assert loaded.wrap_up == "StepsLimit"
    assert (loaded.status, loaded.last_response, loaded.step_count) == (AgentStatus.STOPPED, ANSWER, 1)
    await other.import_lines([line async for line in store.export()])
    imported = await Session.open(other, agent, "s")
    assert imported.state.steps == loaded.steps
    state = await imported.resume(grant=Budget(steps=2))
    assert (state.last_response, state.step_count) == ("It costs 5.", 3)
    # A fork before the wrap-up may take another one, and one after it goes on from its answer.
    for step, answer in ((1, "Other."), (2, "And another.")):
        name = (await store.fork("s", step=step)).agent_id
        fork = await Session.open(store, agent, name)
        assert fork.state.status is (AgentStatus.PENDING if step == 1 else AgentStatus.STOPPED)
        state = await fork.resume(grant=Budget(steps=1) if step == 2 else None)
        assert state.last_response == answer
    await store.close()


# What others see


async def test_events_mark_it_and_the_run_ends_once() -> None:
    agent = limited(call("echo"), ANSWER)
    with capture_events(agent) as events:
        await agent.run("go")
    assert [e.wrap_up for e in events.of(AgentStepStarted)] == [None, "StepsLimit"]
    assert [e.wrap_up for e in events.of(AgentStepCompleted)] == [None, "StepsLimit"]
    assert [e.status for e in events.of(AgentStatusChanged)] == ["in_progress", "stopped"]
    finished = events.of(AgentExecutionFinished)
    assert [(e.stop_reason, e.resolved_by) for e in finished] == [("steps_limit", "StepsLimit")]
    assert "wrap-up started" in str(events.of(AgentStepStarted)[1])


async def test_the_explanation_and_the_log_say_how_it_ended(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="whyloop.runs"):
        state = await wrapped_up()
    assert state.explanation.headline == (
        "Stopped after 1 step (steps_limit). StepsLimit decided: Limit reached: 1 of 1 steps used. "
        "The wrap-up answered."
    )
    assert "  2  wrap-up: answered" in state.explain()
    assert state.explanation.steps[1].wrap_up == "StepsLimit"
    assert [step["wrap_up"] for step in document(state)["steps"]] == [None, "StepsLimit"]
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.endswith("by StepsLimit: Limit reached: 1 of 1 steps used; the wrap-up answered")


# Options


def test_the_builder_takes_the_same() -> None:
    agent = AgentBuilder.base().with_model(limited().model).with_wrap_up(WrapUp(seconds=5, tokens=50)).build()
    assert agent._setup.wrap_up is not None
    assert (agent._setup.wrap_up.seconds, agent._setup.wrap_up.tokens) == (5, 50)


def test_anything_but_a_bool_or_an_allowance_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="invalid wrap_up 'yes'"):
        limited(wrap_up="yes")


@pytest.mark.parametrize(
    ("allowance", "problem"),
    [
        ({"seconds": 0}, "invalid WrapUp seconds 0: use a number"),
        ({"seconds": True}, "invalid WrapUp seconds True"),
        ({"tokens": 1.5}, "invalid WrapUp tokens 1.5: use a whole number"),
        ({"tokens": -1}, "invalid WrapUp tokens -1"),
    ],
)
def test_an_invalid_allowance_is_refused(allowance: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        WrapUp(**allowance)


async def test_envelopes_mark_it_and_fit_the_schema() -> None:
    sent: list[dict[str, Any]] = []
    agent = limited(call("echo"), ANSWER)
    agent.subscribe(lambda event: sent.append(envelope(event, BroadcastConfig.standard(), None) or {}))
    await agent.run("go")
    validator = Draft202012Validator(envelope_schema())
    envelopes = [each for each in sent if each]
    for each in envelopes:
        validator.validate(each)
    marked = [each["event"] for each in envelopes if "wrap_up" in each["data"]]
    assert marked == ["agent.step.started", "agent.step.completed"]
    numbered = [each["seq"] for each in envelopes if each["event"] in NUMBERED]
    assert numbered == list(range(1, len(numbered) + 1))
    *_, status = [each["data"] for each in envelopes if each["event"] == "agent.status"]
    assert (status["status"], status["stop_reason"], status["step_count"]) == ("stopped", "steps_limit", 1)
    assert status["last_response"] == ANSWER


async def test_the_terminal_shows_it() -> None:
    narrator, agent = Narrator(), limited(call("echo"), ANSWER)
    lines: list[str] = []
    agent.subscribe(lambda event: lines.extend(line.text for line in narrator.lines(event)))
    state = await agent.run("go")
    assert [line for line in lines if line in ("step 1", "wrap-up", ANSWER)] == ["step 1", "wrap-up", ANSWER]
    assert "step 2, the wrap-up" in [line.text for line in conversation(state, View())]
    failing = limited(call("echo"), ModelError("overloaded", status=503))
    failing.subscribe(lambda event: lines.extend(line.text for line in narrator.lines(event)))
    await failing.run("go")
    assert "overloaded" in lines


# Other rules


async def test_other_rules_judge_a_run_with_a_wrap_up() -> None:
    agent, journal, state = await recorded(call("echo"), call("echo"), ANSWER, max_steps=2)
    for run in (journal.entries, state, state.to_dict()):
        same = judge(run, StepsLimit(2)).latest
        assert (same.differs, same.ending.stopped_at, len(same.outcomes)) == (False, 2, 3)
        earlier = judge(run, StepsLimit(1)).latest
        assert (earlier.ending.stopped_at, earlier.ending.stop_reason) == (1, "steps_limit")
        assert earlier.saved.steps == 1
        # It would have continued where it wrapped up: what follows is not in the recording.
        assert judge(run, StepsLimit(3)).latest.beyond
        # The wrap-up has time of its own, whatever the limit.
        assert not judge(run, ExecutionTimeLimit(100)).latest.differs
    assert judge(state, agent.criteria, replace_all=True).state.outcome == state.outcome
