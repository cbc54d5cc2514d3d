"""The life of a run: begin, wait, take a step, settle, end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from contextvars import ContextVar
from datetime import datetime, timedelta

from msgspec.structs import replace

from whyloop.errors import attach_state
from whyloop.events import AgentEvent
from whyloop.logger import log_end, log_error
from whyloop.loop.calls import reopen, run_calls, unfinished_calls
from whyloop.loop.interruptions import JUST_AFTER, Interruptions
from whyloop.loop.model_call import partial_answer_transition
from whyloop.loop.nesting import left_session, running_inside
from whyloop.loop.setup import RequestParts, Setup, send
from whyloop.loop.step import StepInProgress
from whyloop.loop.world import Journal
from whyloop.loop.wrap_up import Headroom
from whyloop.rules.classification import error_text
from whyloop.rules.criteria import leaves_work
from whyloop.tools.toolset import keep_open
from whyloop.values.failure import ErrorHandlingDecision
from whyloop.values.judgement import Judged
from whyloop.values.model import DecodedOutput
from whyloop.values.state import AgentState, AgentStatus
from whyloop.values.step import Interruption, OpenStep
from whyloop.values.step_transitions import Answered, AnyTransition, Closed, Left
from whyloop.values.transitions import Begun, Noted, RetryPlanned, StopRequested, Waited
from whyloop.wire.view import VIEWS

CANCELLED = "The task that ran it was cancelled"
MAX_RECOVERIES = 3
"""A run that was recovered this often without finishing a step only continues if a person agrees."""

SUPERSEDED = "Another query arrived before this one had ended"

# A model and tools that never wait would keep everything else on the event loop from running. So other tasks
# get a turn after this many steps, which take about 2 ms.
STEPS_PER_TURN = 64

on_end: ContextVar[Callable[[AgentState], object] | None] = ContextVar("on_end", default=None)
"""A function that receives the state of every run that ends in this context, for evals."""

_IN_PROGRESS, _PENDING = AgentStatus.IN_PROGRESS, AgentStatus.PENDING
_OUT_OF_TIME = Interruption.OUT_OF_TIME
_RETRY = ErrorHandlingDecision.RETRY


class Run:
    """The work of this process on one session, up to its end or a pause.

    `add` applies a transition; `record` appends all new ones to the journal as one entry and then sends their
    events, so nothing is announced that is not recorded.
    """

    def __init__(self, setup: Setup, state: AgentState, journal: Journal | None = None) -> None:
        self.setup, self.world, self.journal, self.state = setup, setup.world, journal, state
        self.handlers = setup.handlers.all()
        self.stop: str | None = None
        """Why the run was asked to stop, by this process or, through the journal, by another one."""
        self.interruptions = Interruptions(self)
        self.headroom = Headroom(setup.criteria.limits) if setup.show_limits else None
        """The rest of the limits, if the model is informed about it."""
        self.must_list = bool(setup.toolsets)
        """True until the toolsets are open and their tools are known."""
        self._leaving = False
        self._blocked = False  # By a limit that is exhausted, or a question about the run itself.
        self._reopened: StepInProgress | None = None
        self._toolsets: AsyncExitStack | None = None  # Those that are open, until the run ends.
        self._recorded = state
        self._unrecorded: list[AnyTransition] = []
        self._unsent: list[AgentEvent] = []
        self._unlogged: list[AgentState] = []
        self._noted: RequestParts | None = None
        self._known_parts: set[str] | None = None

    # From outside

    def request_stop(self, reason: str) -> None:
        """End the run, from any thread.

        An answer and a wait end at once, running calls within the grace period.
        """
        self.interruptions.request_stop(reason)

    def leave(self) -> None:
        """End the run after its step, for another runner to continue the execution."""
        self._leaving = True

    # Its life

    async def finish(self) -> AgentState:
        """Return the state at the end of the execution, at a pause or after `leave`."""
        inside = running_inside.set((*running_inside.get(), self.state.agent_id))
        try:
            await self.begin()
            while self.is_in_progress():
                await self.take_step()
        finally:
            left_session(inside)
            await self.end()
        return self.state

    async def iterate(self) -> AsyncIterator[AgentState]:
        """Yield the recorded state after every step, up to the end, a pause or `leave`."""
        try:
            await self.begin()
            while self.is_in_progress():
                await self.next_step()
                yield self.state
        finally:
            await self.end()

    async def next_step(self) -> None:
        """Take one more step, or end the run."""
        inside = running_inside.set((*running_inside.get(), self.state.agent_id))
        self.interruptions.attach()  # Each step may be taken in another task.
        try:
            await self.take_step()
        finally:
            left_session(inside)

    def is_in_progress(self) -> bool:
        """Return whether the run has not ended, paused or been left."""
        return self.state.status is _IN_PROGRESS and not self._leaving

    async def begin(self) -> None:
        """Begin to work on the execution; a step that was left open continues."""
        self.setup.refuse_missing_deps()
        self.interruptions.attach()
        self.setup.runs.add(self)
        if begun := Begun.of(self.state, self.world.now(), is_recorded=self.journal is not None):
            self.add(begun)
        state, execution = self.state, self.state.execution
        self.stop = self.stop or execution.stop_request
        # A limit may be exhausted before the first step of a leg: after a resume, or for the whole session.
        self._blocked = execution.question is not None or self.setup.criteria.exhausted(state)
        is_ready = self.is_in_progress() and not self._blocked and not self.must_list
        if state.open_step is not None and is_ready:
            self._reopened = self._reopen(state.open_step, self._new_step())
        try:
            await self.record()
        except asyncio.CancelledError as error:
            await self._end_cancelled(error)
            raise
        self.interruptions.watch_deadline()

    def _reopen(self, opened: OpenStep, step: StepInProgress) -> StepInProgress | None:
        """Continue an open step; return None if there is none.

        Some calls start, and a person is asked about others.
        """
        reopened = reopen(self.setup, opened, self.world.now())
        if reopened is None or self.stop is not None:
            return None
        step.to_run = reopened.started
        step.repeated = tuple([i for i in reopened.started if opened.calls[i].started])
        self.add(reopened)
        return step

    async def list_tools(self, step: StepInProgress) -> None:
        """Open the toolsets and list their tools; after an error the next step retries."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(keep_open(self.setup.toolsets))
            self.setup = await self.setup.with_listed_tools()
            self._toolsets = stack.pop_all()
        self.must_list, step.request = False, self.setup.request_parts

    async def _reopen_with_toolsets(self, opened: OpenStep, step: StepInProgress) -> None:
        """List the tools, then reopen the step, even if some cannot be listed."""
        try:
            await self.list_tools(step)
        except (Exception, SystemExit) as error:
            self.setup = replace(self.setup, toolset_error=error_text(error))
        self._reopen(opened, step)

    async def take_step(self) -> None:
        """Wait, then do the work of one step and settle it, even if it is interrupted.

        If the run must end before the step, it is judged instead.
        """
        execution, self.handlers = self.state.execution, self.setup.handlers.all()
        try:
            if execution.step_count % STEPS_PER_TURN == STEPS_PER_TURN - 1 or execution.failures.consecutive:
                await asyncio.sleep(0)
            if execution.wait_until is not None:
                await self.wait(execution.wait_until)
            must_end = self._blocked if execution.wrap_up is None else not self._may_wrap_up
            if must_end or (self.state.open_step is None and self.stop is not None):
                self.judge(None, self.world.now())
                return await self.record()
            step, self._reopened = self._reopened or self._new_step(), None
            cancelled = await self.interruptions.run_until_interrupted(step, self.work(step))
            if cancelled is not None:
                # A deploy that interrupts a run is like a crash: the next runner finds the calls as they
                # were.
                step.interrupted = Interruption.CANCELLED
                self.stop = self.stop or CANCELLED
            self.settle(step)
            if self.journal is None and self.state.status is _IN_PROGRESS:
                self._send_events()  # Without a coroutine, as in `work`.
            else:
                await self.record()
            if cancelled is not None:
                try:
                    raise cancelled
                finally:
                    del cancelled  # Not a cycle: the error has this frame in its traceback.
        except (asyncio.CancelledError, KeyboardInterrupt) as error:
            await self._end_cancelled(error)
            raise

    async def wait(self, until: datetime) -> None:
        """Wait out a provider's backoff, unless a stop or a deadline ends the wait before."""
        if self.stop is not None:
            return
        started, deadline = self.world.monotonic(), self.setup.criteria.deadline(self.state, until)
        if deadline is not None and deadline <= until:
            until, self._blocked = deadline + JUST_AFTER, True
        step = self._new_step()
        step.is_wait = True
        seconds = max(0.0, (until - self.world.now()).total_seconds())
        cancelled = await self.interruptions.run_until_interrupted(step, self.world.sleep(seconds))
        now = self.world.now() if cancelled or step.interrupted else max(until, self.world.now())
        self.add(Waited(now, seconds=max(0.0, float(self.world.monotonic() - started))))
        if cancelled is not None:
            try:
                raise cancelled
            finally:
                del cancelled  # As in `take_step`.

    async def work(self, step: StepInProgress) -> None:
        """Ask the model, unless it has answered already, and run its calls."""
        if self.state.open_step is None:
            if self.headroom is not None and self.state.execution.wrap_up is None:
                step.left = self.headroom.message(self.state)
            if not self._add_answer(step, await self.world.answer(self, step)):
                return
        elif self.must_list:
            await self._reopen_with_toolsets(self.state.open_step, step)
        step.interruptible = False
        if self.journal is None:
            self._send_events()
        else:
            await self.record()  # Before any call runs.
        if self.stop is not None:
            step.interrupted = Interruption.STOPPED
            return
        step.launched, deadline = True, self.interruptions.deadline
        if self.setup.criteria.deadline_moves:
            deadline = self.setup.criteria.deadline(self.state, step.begun_at, step.settled_seconds)
        if len(step.to_run) == 1:  # Without a task, which costs 15 µs more.
            self.add(await self.world.run_call(self.setup, self.state, step.to_run[0], deadline))
        else:
            await run_calls(self, step.to_run, deadline)

    def _add_answer(self, step: StepInProgress, transitions: Sequence[AnyTransition]) -> bool:
        """Add the transitions of an answer, and return whether it has calls."""
        for transition in transitions:
            self.add(transition)
            if isinstance(transition, Answered):
                step.to_run = transition.started
        if step.answer is not None and step.answer.output is not None:
            self.state = replace(self.state, decoded_output=DecodedOutput(step.answer.value))
        opened = self.state.open_step
        return opened is not None and bool(opened.calls)

    def settle(self, step: StepInProgress) -> None:
        """Close the step or leave it open, and judge it."""
        now, until = self.world.now(), None
        if step.interrupted is _OUT_OF_TIME:
            deadline = self.deadline(step.begun_at, step.settled_seconds)
            if deadline is not None:
                now = until = max(now, deadline + JUST_AFTER)
        seconds = step.lap(self.world.monotonic(), until)
        if self.state.open_step is None and step.interrupted is not None:
            for transition in (*self.noted(step), partial_answer_transition(step, now, seconds)):
                self.add(transition)
            seconds = 0.0
        self.judge(self._close(step, now, seconds), now)

    def _close(self, step: StepInProgress, now: datetime, seconds: float) -> int | None:
        """Close the open step and return its number, or leave it open and return None."""
        opened, interrupted = self.state.open_step, step.interrupted
        if opened is None:
            return None
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

    def judge(self, number: int | None, now: datetime) -> None:
        """Evaluate every criterion on the state; `number` is that of a closed step."""
        if self.stop is not None and self.state.execution.stop_request is None:
            self.add(StopRequested(now, reason=self.stop))
        outcome = self.setup.criteria.evaluate(self.state)
        wraps_up = self.setup.wrap_up is not None and leaves_work(self.state, outcome)
        self.add(Judged(now, outcome=outcome, step=number, wraps_up=wraps_up))
        failures = self.state.execution.failures
        is_retry = failures.total and outcome.decision.continues and outcome.handling is _RETRY
        if is_retry and number is not None:
            self.add(self._plan_retry(failures.consecutive))
        if wraps_up:
            self.interruptions.watch_deadline()
        elif self.state.status is not _IN_PROGRESS:
            self._unlogged.append(self.state)

    def _plan_retry(self, failures: int) -> RetryPlanned:
        step = self.state.steps[-1]
        failure, seconds, most = step.model_failure, 0.0, self.setup.criteria.max_retries
        correction = step.failures[0].correction
        if correction is not None and correction.is_free:
            failures, most = correction.attempt, correction.limit
        if failure is not None:
            seconds = self.setup.backoff.delay(failures, self.world.random(), failure.retry_after)
        return RetryPlanned(
            step.completed_at,
            seconds=seconds,
            attempt=failures,
            max_retries=most,
            error_type=step.failures[0].type,
        )

    def supersede(self) -> None:
        """End an execution that another query replaces, and close its open step."""
        now, number = self.world.now(), None
        had_ended = self.state.status.has_ended
        if not had_ended:
            self.add(StopRequested(now, reason=SUPERSEDED))
        if self.state.open_step is not None:
            step = self._new_step()
            step.interrupted = Interruption.SUPERSEDED
            number = self._close(step, now, 0.0)
        outcome = self.setup.criteria.evaluate(self.state)
        if outcome.should_continue:  # It had ended under other rules.
            self.add(StopRequested(now, reason=SUPERSEDED))
            outcome = self.setup.criteria.evaluate(self.state)
        self.add(Judged(now, outcome=outcome, step=number))
        if not had_ended:
            self._unlogged.append(self.state)

    async def _end_cancelled(self, error: BaseException) -> None:
        """Record the cancellation, unless the run has ended; give the error the state."""
        if self.state.status is _IN_PROGRESS:
            self.stop = self.stop or CANCELLED
            self.judge(None, self.world.now())
            await self.record()
        attach_state(error, self.state)

    async def end(self) -> None:
        """Release the run: no request or timer can end it, and its toolsets may close."""
        self.setup.runs.discard(self)
        self.interruptions.end()
        if (watch := on_end.get()) is not None:
            watch(self.state)
        toolsets, self._toolsets = self._toolsets, None
        if toolsets is not None:
            try:
                await toolsets.aclose()
            except asyncio.CancelledError as error:
                attach_state(error, self.state)
                raise
            except Exception as error:  # The run has ended all the same.
                log_error(
                    self.state.agent_id,
                    self.state.execution.step_number,
                    "closing the toolsets failed",
                    error,
                )

    def _new_step(self) -> StepInProgress:
        return StepInProgress(self.world.now(), self.world.monotonic(), self.setup.request_parts)

    def deadline(self, started_at: datetime, counted: float = 0.0) -> datetime | None:
        """Return the deadline of a step that began then, or None.

        A wrap-up has its own time.
        """
        if self.state.execution.wrap_up is not None and self.setup.wrap_up is not None:
            return started_at + timedelta(seconds=self.setup.wrap_up.seconds)
        return self.setup.criteria.deadline(self.state, started_at, counted)

    @property
    def _may_wrap_up(self) -> bool:
        """True if the agent wraps up, and its processes did not keep dying during the wrap-up."""
        return self.setup.wrap_up is not None and self.state.execution.recoveries <= MAX_RECOVERIES

    # Its state

    def add(self, transition: AnyTransition) -> None:
        """Apply a transition. Readers and handlers see it after the next `record`."""
        state = self.state
        if self.journal is not None:
            self._unrecorded.append(transition)
        if self.handlers and (view := VIEWS.get(type(transition))) is not None:
            self._unsent += view(state, transition)
        self.state = transition.apply_to(state)

    async def record(self) -> None:
        """Append all new transitions as one entry, then send their events."""
        if self._unrecorded and self.journal is not None:
            new, self._unrecorded = self._unrecorded, []
            before, self._recorded = self._recorded, self.state
            try:
                stop = await self.journal.append(new, before, self.state)
            except asyncio.CancelledError:  # Delivered after the append: see `Journal`.
                self._send_events()
                raise
            except BaseException:  # Not recorded: an entry after this one would lack it.
                self._unrecorded, self._recorded = [*new, *self._unrecorded], before
                raise
            self.stop = self.stop or stop
        self._send_events()
        is_stopped = self.state.execution.stop_request is not None
        if self.stop is not None and self.state.status is AgentStatus.PAUSED and not is_stopped:
            self.judge(None, self.world.now())  # The request came while the pause was being recorded.
            await self.record()

    def _send_events(self) -> None:
        if events := self._unsent:
            self._unsent = []
            send(self.handlers, events)
        if self._unlogged:
            ended, self._unlogged = self._unlogged, []
            for state in () if self.world.is_replaying else ended:
                log_end(state)

    def noted(self, step: StepInProgress) -> list[AnyTransition]:
        """Return the texts of a request that this session has not recorded yet."""
        if step.request is self._noted:
            return []
        self._noted = step.request
        if self._known_parts is None:
            held = self.state.request_parts
            self._known_parts = {part.hash for part in held[held.start :]}
        new = [part for part in step.request.parts if part.hash not in self._known_parts]
        self._known_parts.update([part.hash for part in new])
        return [Noted(step.begun_at, part=part) for part in new]
