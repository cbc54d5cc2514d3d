"""Models that repeat a request: what is repeated, how long they wait, and who learns of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.models.faulty_server import (
    KEY,
    Behaviour,
    FaultyServer,
    chat_answer,
    chat_call,
    chat_events,
    chunked,
    cut,
    event,
    hang,
    head,
    reset,
    say,
    whole,
)
from tests.support import FixedWorld, MemoryJournal, RespondingModel, assert_readable, echo
from whyloop import (
    Agent,
    AgentState,
    AskModel,
    CumulativeExecutionTimeLimit,
    ErrorPolicy,
    ExecutionTimeLimit,
    Hook,
    Message,
    ModelAttempt,
    ModelRequest,
    ModelResponse,
    ModelSource,
    RunContext,
    TextDelta,
)
from whyloop.errors import ConfigurationError, RateLimitError
from whyloop.events import AgentEvent, RetryScheduled
from whyloop.loop.executions import start_run
from whyloop.models import FallbackModel, RecordingModel, ReplayModel, load, wait_to_repeat
from whyloop.models.http import HttpModel
from whyloop.replay import judge
from whyloop.testing import FakeClock
from whyloop.values.model import Delta

REQUEST = ModelRequest((Message.user("Hi"),))
BUSY = say(whole({"error": {"message": "slow down"}}, 429))
ANSWER = say(chat_answer("Hello."))
SECOND_WAITS = [0.375, 0.75]
"""The waits of a world whose random numbers are one half: half of the jitter is taken off."""


def model_at(server: FaultyServer, **options: Any) -> HttpModel:
    return load("openai:gpt-test", base_url=server.base_url, api_key=KEY, **{"timeout": 5.0, **options})


def agent_on(model: Any, clock: FakeClock | None = None, **options: Any) -> Agent:
    return Agent(model, world=FixedWorld(model, clock or FakeClock()), **options)


async def run_on(*behaviours: Behaviour, clock: FakeClock | None = None, **options: Any) -> AgentState:
    """One run on a server that behaves like this; it is asked once for each behaviour."""
    retries = {"retries": options.pop("retries")} if "retries" in options else {}
    async with FaultyServer(*behaviours, hang()) as server:
        state = await agent_on(model_at(server, **retries), clock, **options).run("Hi")
        assert len(server.requests) == len(behaviours)
        assert len({request.body for request in server.requests}) == 1
    assert_readable(state)
    return state


def attempts_of(state: AgentState) -> tuple[ModelAttempt, ...]:
    source = state.steps[-1].source
    return () if source is None else source.attempts


# What is repeated


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 522, 529])
async def test_a_retryable_status_is_repeated_until_the_model_answers(status: int) -> None:
    busy = say(whole(b"<html>not now</html>", status, content_type="text/html"))
    clock = FakeClock()
    state = await run_on(busy, busy, ANSWER, clock=clock)
    assert (state.status, state.last_response, state.step_count) == ("completed", "Hello.", 1)
    assert clock.sleeps == SECOND_WAITS
    assert [attempt.failure for attempt in attempts_of(state)] == [str(status)] * 2


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422, 501])
async def test_any_other_status_is_not_repeated(status: int) -> None:
    state = await run_on(say(whole({"error": {"message": "no"}}, status)))
    assert (state.status, attempts_of(state)) == ("failed", ())


async def test_an_exhausted_quota_is_not_repeated() -> None:
    spent = {"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}}
    state = await run_on(say(whole(spent, 429)))
    assert state.steps[0].failures[0].retryable is False


BROKEN = {
    "before the head": cut(),
    "in the head": cut(b"HTTP/1.1 200 OK\r\ncontent-"),
    "a reset": reset(),
    "after the head": cut(head(transfer_encoding="chunked")),
    "in the first event": cut(chunked(chat_events("Hello."))[:120]),
    "a reset after the head": reset(head(transfer_encoding="chunked")),
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN.keys())
async def test_a_connection_that_breaks_before_the_first_piece_is_repeated(broken: Behaviour) -> None:
    state = await run_on(broken, ANSWER)
    assert state.last_response == "Hello."
    assert [attempt.failure for attempt in attempts_of(state)] == ["connection lost"]


async def test_a_host_that_cannot_be_reached_is_asked_again() -> None:
    async with FaultyServer(ANSWER) as server:
        model = model_at(server)
    clock = FakeClock()
    state = await agent_on(model, clock).run("Hi")
    assert (state.status, clock.sleeps) == ("failed", SECOND_WAITS)
    assert [attempt.failure for attempt in attempts_of(state)] == ["no connection"] * 2


REPORTED = {
    "anthropic": event({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}),
    "openai": event({"error": {"message": "Rate limit reached", "code": 429}}),
}


@pytest.mark.parametrize(("provider", "reported"), REPORTED.items(), ids=REPORTED.keys())
async def test_an_overload_that_a_stream_begins_with_is_repeated(provider: str, reported: bytes) -> None:
    async with FaultyServer(say(chunked(reported))) as server:
        model = load(f"{provider}:m", base_url=server.base_url, api_key=KEY)
        state = await agent_on(model).run("Hi")
        assert len(server.requests) == 3
    assert state.steps[0].failures[0].type == "rate_limit"


@pytest.mark.parametrize("ending", [cut, reset])
async def test_nothing_is_repeated_after_the_first_piece(ending: Callable[[bytes], Behaviour]) -> None:
    begun = chunked(chat_events("Hel", "lo."))[:-40]
    state = await run_on(ending(begun))
    assert (state.status, attempts_of(state)) == ("failed", ())
    assert state.steps[0].failures[0].type == "validation"


UNREADABLE = {
    "no JSON": say(whole(b"rubbish")),
    "no answer": say(whole({"choices": []})),
    "a web page": say(whole(b"<!doctype html>", content_type="text/html")),
    "an answer that ended in an error": say(chunked(chat_events(finish="error") + event("[DONE]"))),
}


@pytest.mark.parametrize("answer", UNREADABLE.values(), ids=UNREADABLE.keys())
async def test_an_answer_that_arrived_but_is_wrong_is_not_repeated(answer: Behaviour) -> None:
    state = await run_on(answer)
    assert (state.status, attempts_of(state)) == ("failed", ())


async def test_a_request_that_ran_out_of_its_own_time_is_not_repeated() -> None:
    async with FaultyServer(hang()) as server:
        state = await agent_on(model_at(server, timeout=0.05)).run("Hi")
        assert len(server.requests) == 1
    assert (state.steps[0].failures[0].type, attempts_of(state)) == ("timeout", ())


# How often, and how long it waits


@pytest.mark.parametrize(("retries", "requests"), [(0, 1), (1, 2), (4, 5)])
async def test_retries_says_how_often(retries: int, requests: int) -> None:
    state = await run_on(*[BUSY] * requests, retries=retries)
    assert (state.status, len(attempts_of(state))) == ("failed", retries)


@pytest.mark.parametrize("retries", [-1, True, 1.5, "2"])
def test_retries_that_are_no_number_of_times(retries: Any) -> None:
    with pytest.raises(ConfigurationError, match="invalid retries"):
        load("openai:gpt-test", api_key=KEY, retries=retries)


async def test_the_wait_that_the_provider_asks_for_is_kept() -> None:
    clock = FakeClock()
    busy = [say(whole(b"", 429, retry_after=seconds)) for seconds in (2, "0.25")]
    state = await run_on(*busy, ANSWER, clock=clock)
    assert clock.sleeps == [2, 0.25]
    assert "answered at the 3rd attempt after 429, 429; waited 2.2 s" in state.explain()


async def test_a_wait_of_more_than_eight_seconds_in_all_is_left_to_the_policy() -> None:
    clock = FakeClock()
    state = await run_on(say(whole(b"", 429, retry_after=9)), clock=clock)
    assert (state.status, clock.sleeps) == ("failed", [])
    assert state.steps[0].failures[0].retry_after == 9
    in_all = [say(whole(b"", 429, retry_after=seconds)) for seconds in (5, 4)]
    state = await run_on(*in_all, clock=clock)
    assert (state.status, clock.sleeps) == ("failed", [5])
    just = [say(whole(b"", 429, retry_after=seconds)) for seconds in (5, 3)]
    state = await run_on(*just, ANSWER, clock=clock)
    assert (state.status, clock.sleeps) == ("completed", [5, 5, 3])


async def test_without_a_wish_the_waits_double_with_jitter_up_to_eight_seconds_in_all() -> None:
    clock = FakeClock()
    async with FaultyServer(BUSY) as server:
        await agent_on(model_at(server, retries=10), clock).run("Hi")
        assert clock.sleeps == [0.375, 0.75, 1.5, 3.0]  # 0.5, 1, 2, 4 s, less a half of the jitter.
        assert len(server.requests) == 5
    for _ in range(20):
        clock = FakeClock()
        async with FaultyServer(BUSY) as server:
            await Agent(model_at(server), clock=clock).run("Hi")
        assert 0.25 <= clock.sleeps[0] <= 0.5 <= clock.sleeps[1] <= 1.0


async def test_a_turn_is_given_back_while_a_model_waits() -> None:
    other: list[str] = []

    class Clock(FakeClock):
        async def sleep(self, seconds: float) -> None:
            other.append((await agent_on(model).run("Other")).last_response)
            await super().sleep(seconds)

    async with FaultyServer(BUSY, ANSWER, say(chat_answer("Late."))) as server:
        model = model_at(server, max_concurrency=1)
        state = await agent_on(model, Clock()).run("Hi")
    assert (other, state.last_response) == (["Hello."], "Late.")


# Who learns of it


async def test_the_step_and_the_explanation_have_the_attempts_and_no_event_is_sent() -> None:
    events: list[AgentEvent] = []
    state = await run_on(BUSY, cut(), ANSWER, event_handler=events.append)
    quiet: list[AgentEvent] = []
    await run_on(ANSWER, event_handler=quiet.append)
    assert [type(each) for each in events] == [type(each) for each in quiet]
    assert attempts_of(state) == (
        ModelAttempt("429", waited=0.375),
        ModelAttempt("connection lost", waited=0.75),
    )
    told = "answered at the 3rd attempt after 429, connection lost; waited 1.1 s"
    assert state.explanation.steps[0].notes == (told,)
    assert f"  1  {told}  [" in state.explain()


async def test_a_step_with_calls_tells_of_its_attempts_too() -> None:
    call, answer = say(chat_call("echo", "{}")), say(chat_answer("Done."))
    async with FaultyServer(BUSY, call, answer) as server:
        state = await agent_on(model_at(server), tools=[echo]).run("Hi")
    assert "answered at the 2nd attempt after 429; waited 0.4 s; echo ok" in state.explain()


async def test_what_still_fails_is_one_failure_and_each_of_its_retries_has_repeats_of_its_own() -> None:
    events: list[AgentEvent] = []
    clock, policy = FakeClock(), ErrorPolicy.retry_tool_errors(max_retries=1)
    async with FaultyServer(*[BUSY] * 5, ANSWER) as server:
        agent = agent_on(model_at(server), clock, error_policy=policy, event_handler=events.append)
        state = await agent.run("Hi")
        assert len(server.requests) == 6
    assert [len(step.failures) for step in state.steps] == [1, 0]
    assert state.execution.failures.total == 1
    assert clock.sleeps == [*SECOND_WAITS, 0.75, *SECOND_WAITS]
    assert [each.attempt for each in events if isinstance(each, RetryScheduled)] == [1]
    failed, answered = state.explanation.steps
    told = "the model call failed at the 3rd attempt after 429, 429; waited 1.1 s: HTTP 429: slow down"
    assert failed.summary == told
    assert answered.summary == "answered at the 3rd attempt after 429, 429; waited 1.1 s"
    assert state.execution.backoff_seconds == pytest.approx(2 * sum(SECOND_WAITS) + 0.75)


async def test_the_document_of_a_step_has_the_attempts() -> None:
    async with FaultyServer(BUSY, ANSWER) as server:
        state = await agent_on(model_at(server)).run("Hi")
    stored = AgentState.from_dict(json.loads(json.dumps(state.to_dict())))
    assert attempts_of(stored) == attempts_of(state) == (ModelAttempt("429", waited=0.375),)


# Clocks


def working(model: HttpModel, clock: FakeClock, seconds: float) -> RespondingModel:
    """The model, which takes this long to answer after its waits."""

    async def respond(request: ModelRequest) -> AsyncIterator[Delta | ModelResponse]:
        async for item in model.respond(request):
            if isinstance(item, ModelResponse):
                clock.advance(seconds)
            yield item

    return RespondingModel(respond)


async def recorded(
    *behaviours: Behaviour, seconds: float = 1.0, **options: Any
) -> tuple[AgentState, MemoryJournal]:
    """A run whose every answer takes this long, and its journal."""
    clock, journal = FakeClock(), MemoryJournal()
    async with FaultyServer(*behaviours) as server:
        agent = agent_on(working(model_at(server), clock, seconds), clock, tools=[echo], **options)
        state = await start_run(agent, "Hi", journal.create(agent), journal=journal).finish()
    assert journal.state == state
    return state, journal


LATE = say(whole(b"", 429, retry_after=6))


async def test_a_wait_is_backoff_and_in_no_active_clock() -> None:
    call = say(chat_call("echo", "{}"))
    state, _ = await recorded(LATE, call, LATE, ANSWER, cumulative_timeout=3)
    execution = state.execution
    assert state.status == "completed"
    assert (execution.active_seconds, execution.backoff_seconds) == pytest.approx((2, 12))
    assert state.state_info.cumulative_execution_seconds == pytest.approx(2)
    assert execution.wall_seconds == pytest.approx(14)
    assert [step.duration_ms for step in state.steps] == pytest.approx([1000, 1000])


async def test_the_wall_clock_counts_a_wait() -> None:
    state, _ = await recorded(LATE, ANSWER, timeout=300)
    assert ExecutionTimeLimit(300).used(state) == pytest.approx(7)


async def test_a_recorded_run_is_judged_by_the_same_clocks() -> None:
    call = say(chat_call("echo", "{}"))
    state, journal = await recorded(LATE, call, LATE, ANSWER)
    kept = AgentState.from_dict(state.to_dict())
    for limit, stopped_at, active, reason in (
        (3, 2, 2, "completed"),
        (1.5, 2, 1.5, "time_limit"),
        (0.5, 1, 0.5, "time_limit"),
    ):
        for run in (journal.state, kept):
            replay = judge(run, CumulativeExecutionTimeLimit(limit))
            assert (replay.stopped_at, replay.stop_reason) == (stopped_at, reason)
            used = replay.executions[-1].state.execution
            assert used.active_seconds == pytest.approx(active, abs=0.01)
    wall = judge(kept, ExecutionTimeLimit(10))
    assert wall.stopped_at == 2
    execution = wall.executions[-1].state.execution
    assert (execution.active_seconds, execution.backoff_seconds) == pytest.approx((1, 9), abs=0.01)


class Waking(FakeClock):
    """A clock that does something in its first sleep."""

    def __init__(self, wake: Callable[[], object]) -> None:
        super().__init__()
        self.wake = wake

    async def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.advance(seconds / 2)
        self.wake()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        self.advance(seconds / 2)


async def test_a_stop_interrupts_a_wait() -> None:
    clock = Waking(lambda: agent.request_stop("enough"))
    async with FaultyServer(say(whole(b"", 429, retry_after=4))) as server:
        agent = agent_on(model_at(server), clock)
        state = await agent.run("Hi")
        assert len(server.requests) == 1
    assert (state.status, state.stop_reason) == ("stopped", "user_requested")
    assert attempts_of(state) == (ModelAttempt("429", waited=2),)
    assert (state.execution.active_seconds, state.execution.backoff_seconds) == (0, 2)
    assert state.usage.reported  # A request that was refused used nothing.
    # Nothing was asked again: the stop came first.
    assert "failed with 429; waited 2.0 s; cut off: a stop was requested" in state.explain()


def look_at_the_clock(agent: Agent) -> None:
    """What the timer of a deadline does when it fires."""
    for run in agent._setup.runs:
        run.interruptions.watch_deadline()


async def test_a_deadline_interrupts_a_wait() -> None:
    async with FaultyServer(say(whole(b"", 429, retry_after=4))) as server:
        agent = agent_on(model_at(server), Waking(lambda: look_at_the_clock(agent)), timeout=1.5)
        state = await agent.run("Hi")
        assert len(server.requests) == 1
    assert (state.status, state.stop_reason) == ("stopped", "time_limit")
    assert state.execution.active_seconds == pytest.approx(0, abs=1e-5)


async def test_a_limit_on_active_time_does_not_interrupt_a_wait() -> None:
    async with FaultyServer(say(whole(b"", 429, retry_after=4)), ANSWER) as server:
        clock = Waking(lambda: look_at_the_clock(agent))
        agent = agent_on(model_at(server), clock, cumulative_timeout=1.5)
        state = await agent.run("Hi")
    assert (state.status, state.execution.backoff_seconds) == ("completed", 4)


async def test_a_cancelled_task_leaves_the_attempt_behind() -> None:
    journal, tasks = MemoryJournal(), list[asyncio.Task[AgentState]]()
    async with FaultyServer(say(whole(b"", 429, retry_after=4))) as server:
        agent = agent_on(model_at(server), Waking(lambda: [task.cancel() for task in tasks]))
        run = start_run(agent, "Hi", journal.create(agent), journal=journal)
        tasks.append(asyncio.create_task(run.finish()))
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
    assert attempts_of(journal.state) == (ModelAttempt("429", waited=2),)


# Fallbacks, recordings, other models


async def test_in_a_fallback_only_the_last_model_repeats() -> None:
    clock = FakeClock()
    async with FaultyServer(BUSY) as first, FaultyServer(BUSY, ANSWER) as last:
        state = await agent_on(FallbackModel(model_at(first), model_at(last)), clock).run("Hi")
        assert (len(first.requests), len(last.requests)) == (1, 2)
    assert clock.sleeps == SECOND_WAITS[:1]
    assert "was asked; answered at the 2nd attempt after 429; waited 0.4 s" in state.explain()


async def test_a_model_of_a_fallback_repeats_if_it_says_so() -> None:
    async with FaultyServer(BUSY) as first, FaultyServer(ANSWER) as last:
        told = model_at(first, retries=1)
        await agent_on(FallbackModel(told, model_at(last))).run("Hi")
        assert (len(first.requests), told.retries) == (2, 1)


async def test_a_model_that_is_used_alone_too_keeps_its_repeats() -> None:
    async with FaultyServer(BUSY, BUSY, ANSWER) as server:
        model = model_at(server)
        FallbackModel(model, model)
        state = await agent_on(model).run("Hi")
    assert state.status == "completed"


async def test_a_fallback_inside_a_fallback_and_a_recording_do_not_repeat_either(tmp_path: Path) -> None:
    async with FaultyServer(BUSY) as busy, FaultyServer(ANSWER) as last:
        inner = FallbackModel(model_at(busy), RecordingModel(model_at(busy), tmp_path / "run.jsonl"))
        state = await agent_on(FallbackModel(inner, model_at(last))).run("Hi")
        assert (state.last_response, len(busy.requests)) == ("Hello.", 2)


async def test_a_recording_has_the_attempts_and_its_replay_waits_for_nobody(tmp_path: Path) -> None:
    path, clock = tmp_path / "run.jsonl", FakeClock()
    async with FaultyServer(BUSY, ANSWER) as server:
        first = await agent_on(RecordingModel(model_at(server), path)).run("Hi")
    second = await agent_on(ReplayModel(path), clock).run("Hi")
    assert (second.last_response, clock.sleeps, second.execution.backoff_seconds) == ("Hello.", [], 0)
    assert [each.failure for each in attempts_of(second)] == [each.failure for each in attempts_of(first)]
    assert "answered at the 2nd attempt after 429  [" in second.explain()


async def test_a_model_of_ones_own_waits_in_the_same_way() -> None:
    async def respond(request: ModelRequest) -> AsyncIterator[Delta | ModelResponse]:
        clock.advance(1)
        await wait_to_repeat("busy", 3)
        clock.advance(1)
        yield TextDelta("Hello.")
        yield ModelResponse("Hello.")

    clock = FakeClock()
    state = await agent_on(RespondingModel(respond), clock).run("Hi")
    assert clock.sleeps == [3]
    assert attempts_of(state) == (ModelAttempt("busy", 1, 3),)
    assert (state.execution.active_seconds, state.execution.backoff_seconds) == (2, 3)


async def test_attempts_that_a_model_only_reports_are_no_backoff() -> None:
    reported = ModelSource("m", attempts=(ModelAttempt("429", 1, 5),))

    async def respond(request: ModelRequest) -> AsyncIterator[Delta | ModelResponse]:
        yield ModelResponse("Hello.", source=reported)

    state = await agent_on(RespondingModel(respond)).run("Hi")
    assert (attempts_of(state), state.execution.backoff_seconds) == ((ModelAttempt("429", 1),), 0)


async def test_two_models_that_a_hook_asks_at_once_leave_no_clock_below_zero() -> None:
    async def respond(request: ModelRequest) -> AsyncIterator[Delta | ModelResponse]:
        await wait_to_repeat("busy", 3)
        yield ModelResponse("Hello.")

    class Both(Hook):
        async def around_model(
            self, request: ModelRequest, context: RunContext, ask: AskModel
        ) -> ModelResponse:
            first, _ = await asyncio.gather(ask(request), ask(request))
            return first

    state = await agent_on(RespondingModel(respond), hooks=[Both()]).run("Hi")
    assert state.execution.active_seconds == 0
    assert len(attempts_of(state)) == 2


async def test_without_a_run_the_attempts_are_in_the_response(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("whyloop.loop.attempts.asyncio.sleep", sleep)
    async with FaultyServer(say(whole(b"", 429, retry_after=2)), ANSWER) as server:
        items = [item async for item in model_at(server).respond(REQUEST)]
    response = items[-1]
    assert isinstance(response, ModelResponse)
    assert response.source is not None
    assert (slept, response.source.attempts) == ([2], (ModelAttempt("429", waited=2),))


async def test_an_error_raised_by_ones_own_model_is_not_repeated() -> None:
    asked: list[ModelRequest] = []

    async def respond(request: ModelRequest) -> AsyncIterator[Delta | ModelResponse]:
        asked.append(request)
        if asked:
            raise RateLimitError("busy")
        yield ModelResponse("never")

    await agent_on(RespondingModel(respond)).run("Hi")
    assert len(asked) == 1
