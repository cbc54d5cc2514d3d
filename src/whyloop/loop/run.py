"""The life of a run: begin, wait, take a step, settle, end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from whyloop.errors import NestingError, ResponseValidationError, ScriptError, leave_state
from whyloop.events import AgentEvent
from whyloop.loop.calls import CallPlan, answer, plan_calls, reopen, run_call, unfinished_calls
from whyloop.loop.hooks import ask_with_hooks
from whyloop.loop.nesting import running_inside
from whyloop.loop.ports import Journal, Timer
from whyloop.loop.readable import readable
from whyloop.loop.setup import Setup, send
from whyloop.loop.step_in_progress import StepInProgress
from whyloop.rules.classify import model_failure
from whyloop.rules.continuation.checks import TRUNCATING
from whyloop.values.execution import AgentStatus
from whyloop.values.failure import ErrorHandlingDecision
from whyloop.values.messages import Message, MessageRole
from whyloop.values.model import ModelRequest, ModelResponse, ReasoningDelta, TextDelta
from whyloop.values.state import AgentState
from whyloop.values.step import Interruption, OpenStep
from whyloop.values.text import clean
from whyloop.values.transitions import (
    Answered,
    AnyTransition,
    Begun,
    CallFinished,
    Closed,
    Judged,
    Left,
    ModelFailed,
    Noted,
    RetryPlanned,
    StopRequested,
    Waited,
)
from whyloop.values.usage import NO_USAGE, Usage
from whyloop.wire.view import chunk_received, events_of, step_started

CANCELLED = "The task that ran it was cancelled"
SUPERSEDED = "Another query arrived before this one had ended"

# A model and tools that never wait would keep everything else on the event loop from running, so
# every so many steps other tasks get a turn.
STEPS_PER_TURN = 16
LATE_LOOK_SECONDS = 0.05

# Timers and clocks differ by microseconds, and a limit must see that its time is up.
JUST_AFTER = timedelta(microseconds=1)

_IN_PROGRESS, _PENDING = AgentStatus.IN_PROGRESS, AgentStatus.PENDING
_RETRY = ErrorHandlingDecision.RETRY
_UNKNOWN_USAGE = Usage(reported=False)


class Run:
    """The work of this process on one session, from a query or a resume to its end or a pause.

    `add` applies a transition; `record` appends all new ones to the journal as one entry and then sends
    their events, so nothing is announced that is not recorded.
    """

    def __init__(self, setup: Setup, state: AgentState, journal: Journal | None = None) -> None:
        self.setup, self.world, self.state, self.journal = setup, setup.world, state, journal
        self.handlers = setup.handlers.all
        self.recorded = state
        """The state that the journal leads to."""
        self.unrecorded: list[AnyTransition] = []
        self.unsent: list[AgentEvent] = []
        self.step = self._new_step()
        self.stop: str | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[object] | None = None  # While it does what may be interrupted.
        self._leaving = False
        self._blocked = False  # By a limit that is exhausted, or a question about the run itself.
        self._timer: Timer | None = None
        self._grace: Timer | None = None
        self._known_parts: set[str] | None = None
        self._reopened: tuple[int, ...] = ()  # The calls of a step that was left open, to run in it.
        self._unlaunched: tuple[int, ...] = ()

    async def iterate(self) -> AsyncIterator[AgentState]:
        """Yield the recorded state after every step, to the end of the execution, a pause or `leave`."""
        try:
            await self.begin()
            while self.state.status is _IN_PROGRESS and not self._leaving:
                await self.next_step()
                yield self.state
        finally:
            self.end()

    async def begin(self) -> None:
        """Take the execution up; a step that was left open continues where it was."""
        self._loop, now = asyncio.get_running_loop(), self.world.now()
        self.setup.runs.add(self)
        if self.state.status is _PENDING:
            self.add(Begun(now))
        opened, execution = self.state.open_step, self.state.execution
        # A limit may be exhausted before the first step of a leg: after a resume, or for the whole session.
        self._blocked = execution.question is not None or self.setup.criteria.exhausted(self.state)
        may_continue = self.state.status is _IN_PROGRESS and not self._blocked
        if opened is not None and may_continue and execution.stop_request is None:
            reopened = reopen(self.setup, opened, now)
            if reopened is not None:
                self._reopened = reopened.started
                self._unlaunched = tuple([i for i in reopened.started if not opened.calls[i].started])
                self.add(reopened)
        try:
            await self.record()
        except asyncio.CancelledError as error:
            await self.end_cancelled(error)
            raise
        self._watch_deadline()

    async def end_cancelled(self, error: BaseException) -> None:
        """Record that the task was cancelled, unless the run has ended; leave the state with the error."""
        if self.state.status is _IN_PROGRESS:
            self.stop = self.stop or CANCELLED
            await self.conclude()
        leave_state(error, self.state)

    def end(self) -> None:
        """Let go of the run: it can no longer be stopped, and no timer waits for it."""
        self.setup.runs.discard(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def next_step(self) -> None:
        """Wait, then take a step, unless the run must end before it."""
        self.handlers = self.setup.handlers.all
        inside = running_inside.set((*running_inside.get(), self.state.agent_id))
        try:
            execution = self.state.execution
            if execution.step_count % STEPS_PER_TURN == STEPS_PER_TURN - 1 or execution.failures.consecutive:
                await asyncio.sleep(0)
            if execution.wait_until is not None:
                await self.wait(execution.wait_until)
            if self._may_take_step():
                await self.take_step()
            else:
                await self.conclude()
        except (asyncio.CancelledError, KeyboardInterrupt) as error:
            await self.end_cancelled(error)
            raise
        finally:
            running_inside.reset(inside)

    async def wait(self, until: datetime) -> None:
        """Wait out a provider's backoff, unless a stop or a deadline ends the wait before."""
        if self.stop is not None or self.state.execution.stop_request is not None:
            return
        started, deadline = self.world.monotonic(), self.setup.criteria.deadline(self.state, until)
        if deadline is not None and deadline <= until:
            until, self._blocked = deadline + JUST_AFTER, True
        self.step = step = self._new_step()
        seconds = max(0.0, (until - self.world.now()).total_seconds())
        cancelled = await self.until_interrupted(step, self.world.sleep(seconds))
        now = self.world.now() if cancelled or step.interrupted else max(until, self.world.now())
        self.add(Waited(now, seconds=max(0.0, self.world.monotonic() - started)))
        if cancelled is not None:
            raise cancelled

    def _may_take_step(self) -> bool:
        """Return whether there is a step to take; one that is open is closed in it after a stop request."""
        if self._blocked:
            return False
        stopped = self.stop is not None or self.state.execution.stop_request is not None
        return self.state.open_step is not None or not stopped

    async def take_step(self) -> None:
        """Do the work of one step and settle it, also if a deadline, a stop or the task cuts it off."""
        self.step = step = self._new_step()
        if self._reopened:
            step.to_run, step.unlaunched = self._reopened, self._unlaunched
            self._reopened = self._unlaunched = ()
        cancelled = await self.until_interrupted(step, self.work(step))
        if cancelled is not None:
            # A deploy that cuts a run off is like a crash: the next runner finds the calls as they were.
            step.interrupted = Interruption.CANCELLED
            self.stop = self.stop or CANCELLED
        await self.conclude(*self.settle(step))
        if cancelled is not None:
            raise cancelled

    async def work(self, step: StepInProgress) -> None:
        """Ask the model, unless it has answered already, and run its calls."""
        if self.state.open_step is None:
            started_at = step.taken_up_at
            try:
                response = readable(await self.ask_model(step))
            except (ScriptError, NestingError):
                raise
            except (Exception, SystemExit) as error:
                self.note_request(step)
                self.add(
                    ModelFailed(
                        self.world.now(),
                        started_at=started_at,
                        failure=model_failure(error),
                        usage=_UNKNOWN_USAGE if step.chunks else NO_USAGE,
                        seconds=step.lap(self.world.monotonic()),
                        request=step.request.record,
                    )
                )
                return
            step.interruptible, calls = False, response.tool_calls
            if calls and (self.setup.plans_calls or response.finish_reason in TRUNCATING):
                plan = await plan_calls(self.setup, self.state, response)
            else:
                plan = CallPlan(calls, tuple(range(len(calls))))
            self.open_step(step, response, plan)
        step.interruptible = False
        opened = self.state.open_step
        if opened is not None and opened.calls:
            await self.record()  # Before any call runs.
            await self.run_calls(step)

    def ask_model(self, step: StepInProgress) -> Coroutine[Any, Any, ModelResponse]:
        """Return the model's response, to be awaited; its text is sent in chunks as it arrives."""
        setup, state = self.setup, self.state
        if self.handlers:
            send(self.handlers, [step_started(state, step.taken_up_at, setup.tool_names)])
        request = ModelRequest(state.messages, setup.tool_specs, setup.instructions)
        if setup.hooks.around_model:
            return ask_with_hooks(setup.hooks, request, lambda sent: self.stream(step, sent), step)
        return self.stream(step, request)

    async def stream(self, step: StepInProgress, request: ModelRequest) -> ModelResponse:
        """Read the model's stream to its end and return the complete response."""
        response = None
        async for item in self.world.respond(request):
            if isinstance(item, TextDelta):
                self.send_chunk(step, clean(item.text))
                step.chunks.append(item.text)
            elif isinstance(item, ModelResponse):
                response = item
            elif not isinstance(item, ReasoningDelta):
                raise ResponseValidationError(f"the model yielded {item!r} instead of a ModelResponse")
        if response is None:
            raise ResponseValidationError("the model's stream ended without a complete response")
        if step.chunks:
            self.send_chunk(step, "", is_complete=True)
        return response

    def send_chunk(self, step: StepInProgress, text: str, *, is_complete: bool = False) -> None:
        if self.handlers:
            now, index = self.world.now(), len(step.chunks)
            send(self.handlers, [chunk_received(self.state, now, text, index, is_complete=is_complete)])

    def open_step(self, step: StepInProgress, response: ModelResponse, plan: CallPlan) -> None:
        """Open the step with the model's response and what is planned for its calls."""
        self.note_request(step)
        answered = answer(self.setup, self.state, response, plan, step)
        step.to_run = step.unlaunched = answered.started
        self.add(answered)
        for index, result in plan.results.items():
            self.add(CallFinished(answered.at, index=index, result=result))

    async def run_calls(self, step: StepInProgress) -> None:
        """Run the started calls at once. A result is recorded while others run, else with the step."""
        if self.stop is not None or self.state.execution.stop_request is not None:
            step.interrupted = Interruption.STOPPED
            return
        deadline = self.setup.criteria.deadline(self.state, step.taken_up_at, step.counted)
        step.unlaunched = ()
        if len(step.to_run) == 1:  # A task costs 15 µs more.
            self.add(await run_call(self.setup, self.state, step.to_run[0], deadline))
            return
        calls = [run_call(self.setup, self.state, index, deadline) for index in step.to_run]
        running = {asyncio.create_task(call) for call in calls}
        try:
            while running:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                self._add_results(done)
                if running:
                    await self.record()
        finally:  # A call may finish although it is being cancelled.
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            self._add_results({task for task in running if not task.cancelled()})

    def _add_results(self, tasks: set[asyncio.Task[CallFinished]]) -> None:
        errors = [error for task in tasks if (error := task.exception()) is not None]
        for result in sorted([t.result() for t in tasks if t.exception() is None], key=lambda r: r.index):
            self.add(result)
        if errors:
            raise errors[0]

    def settle(self, step: StepInProgress) -> tuple[int | None, datetime]:
        """Close the step or leave it open; return its number, None if it stays open, and the time."""
        now, until = self.world.now(), None
        if step.interrupted is Interruption.OUT_OF_TIME:
            deadline = self.setup.criteria.deadline(self.state, step.taken_up_at, step.counted)
            if deadline is not None:
                now = until = max(now, deadline + JUST_AFTER)
        if self.state.open_step is None and step.interrupted is not None:
            self.note_request(step)
            self.add(self._partial_answer(step, now, step.lap(self.world.monotonic(), until)))
        number = None
        if self.state.open_step is not None:
            seconds = step.lap(self.world.monotonic(), until)
            number = self.close(self.state.open_step, step, now, seconds)
        return number, now

    def _partial_answer(self, step: StepInProgress, now: datetime, seconds: float) -> Answered:
        """Return the answer as far as it had arrived; without text there is no message."""
        text = clean("".join(step.chunks))
        return Answered(
            now,
            started_at=step.taken_up_at,
            message=Message(MessageRole.ASSISTANT, text, incomplete=True) if text else None,
            usage=_UNKNOWN_USAGE,
            seconds=seconds,
            interrupted=step.interrupted,
            request=step.request.record,
        )

    def close(self, opened: OpenStep, step: StepInProgress, now: datetime, seconds: float) -> int | None:
        """Close the open step and return its number, or leave it open and return None."""
        interrupted = step.interrupted
        if not opened.is_done:
            stays_open = opened.stays_open(interrupted)
            if interrupted is not Interruption.CANCELLED or not stays_open:
                waiting, unlaunched = not stays_open, step.unlaunched
                for result in unfinished_calls(opened, now, interrupted, unlaunched, waiting=waiting):
                    self.add(result)
            if stays_open:
                self.add(Left(now, seconds=seconds))
                return None
        self.add(Closed(now, seconds=seconds, interrupted=interrupted))
        return opened.number

    async def conclude(self, number: int | None = None, now: datetime | None = None) -> None:
        """Evaluate every criterion on the state as it is, and record the outcome."""
        now = now or self.world.now()
        if self.stop is not None and self.state.execution.stop_request is None:
            self.add(StopRequested(now, reason=self.stop))
        outcome = self.setup.criteria.evaluate(self.state)
        self.add(Judged(now, outcome=outcome, step=number))
        failed = self.state.execution.failures.consecutive
        if failed and number is not None and outcome.decision.continues and outcome.handling is _RETRY:
            self.add(self._planned_retry())
        await self.record()
        if self.stop is not None and outcome.pauses and self.state.execution.stop_request is None:
            await self.conclude()  # A stop was requested meanwhile.

    def _planned_retry(self) -> RetryPlanned:
        step, failures = self.state.steps[-1], self.state.execution.failures.consecutive
        failure, seconds = step.model_failure, 0.0
        if failure is not None:
            seconds = self.setup.backoff.delay(failures, self.world.random(), failure.retry_after)
        return RetryPlanned(
            step.completed_at,
            seconds=seconds,
            attempt=failures,
            max_retries=self.setup.criteria.max_retries,
            error_type=step.failures[0].type,
        )

    def supersede(self) -> None:
        """End an execution that another query replaces; what it left open is closed as it is."""
        now, number = self.world.now(), None
        if not self.state.status.has_ended:
            self.add(StopRequested(now, reason=SUPERSEDED))
        if self.state.open_step is not None:
            self.step.interrupted = Interruption.SUPERSEDED
            number = self.close(self.state.open_step, self.step, now, 0.0)
        outcome = self.setup.criteria.evaluate(self.state)
        if outcome.should_continue:  # It had ended under other rules.
            self.add(StopRequested(now, reason=SUPERSEDED))
            outcome = self.setup.criteria.evaluate(self.state)
        self.add(Judged(now, outcome=outcome, step=number))

    # Recording

    def add(self, transition: AnyTransition) -> None:
        """Apply a transition. Readers and handlers see it after the next `record`."""
        state = self.state
        self.unrecorded.append(transition)
        if self.handlers:
            self.unsent += events_of(state, transition)
        self.state = transition.apply_to(state)

    async def record(self) -> None:
        """Append all new transitions as one entry, then send their events."""
        new, self.unrecorded = self.unrecorded, []
        if new and self.journal is not None:
            before, self.recorded = self.recorded, self.state
            try:
                stop = await self.journal.append(new, before, self.state)
            except asyncio.CancelledError:  # Delivered after the append: see `Journal`.
                self.send_events()
                raise
            self.stop = self.stop or stop
        self.send_events()

    def send_events(self) -> None:
        if self.unsent:
            events, self.unsent = self.unsent, []
            send(self.handlers, events)

    def note_request(self, step: StepInProgress) -> None:
        """Add the texts of a request that this session has not recorded yet."""
        known = self._known_parts
        if known is None:
            held = self.state.request_parts
            known = self._known_parts = {part.hash for part in held[held.start :]}
        for part in step.request.parts:
            if part.hash not in known:
                known.add(part.hash)
                self.add(Noted(self.world.now(), part=part))

    # Interruptions

    def request_stop(self, reason: str) -> None:
        """End the run, from any thread: an answer and a wait end at once, running calls within the grace."""
        self.stop = reason
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._interrupt, Interruption.STOPPED)

    def leave(self) -> None:
        """End the run after its step; the execution stays in progress, for another runner to continue."""
        self._leaving = True

    async def until_interrupted(
        self, step: StepInProgress, work: Coroutine[Any, Any, None]
    ) -> BaseException | None:
        """Await some work. A stop or a deadline ends it; a cancellation from outside is returned.

        One timer for the whole run serves all its steps: `asyncio.timeout` costs 6 µs for each.
        """
        self._task = task = asyncio.current_task(self._loop)
        assert task is not None
        cancelling = task.cancelling()
        try:
            await work
        except asyncio.CancelledError as error:
            if step.cut_off_by is None or task.uncancel() > cancelling:
                return error
            step.interrupted = step.cut_off_by
        except KeyboardInterrupt as error:
            return error
        else:
            if step.cut_off_by is not None:  # It finished although it was being cancelled.
                task.uncancel()
        finally:
            self._task = None
            if self._grace is not None:
                self._grace.cancel()
                self._grace = None
        return None

    def _interrupt(self, why: Interruption) -> None:
        """Cut the step off now, or when its running calls have had their grace period."""
        if self._task is None:
            return
        if self.step.interruptible:
            self._cut_off(self.step, why)
        else:
            cut_off = partial(self._cut_off, self.step, why)
            self._grace = self.world.call_later(self.setup.stop_grace, cut_off)

    def _cut_off(self, step: StepInProgress, why: Interruption) -> None:
        if self._task is not None and step is self.step and step.cut_off_by is None:
            step.cut_off_by = why
            self._task.cancel()

    def _watch_deadline(self) -> None:
        """Interrupt the step at its deadline. A limit on active time may move it, so look again then."""
        step = self.step
        deadline = self.setup.criteria.deadline(self.state, step.taken_up_at, step.counted)
        if deadline is None:
            return
        left = (deadline - self.world.now()).total_seconds()
        if left > 0:
            self._timer = self.world.call_later(left, self._watch_deadline)
        elif self._task is not None:
            self._interrupt(Interruption.OUT_OF_TIME)
        else:  # Between two steps: the next one starts with its own reading of the clock.
            self._timer = self.world.call_later(LATE_LOOK_SECONDS, self._watch_deadline)

    def _new_step(self) -> StepInProgress:
        return StepInProgress(self.world.now(), self.world.monotonic(), self.setup.request_parts)
