"""The workflow that runs a session: the same loop and rules as anywhere else, through `TemporalWorld`."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace
from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from whyloop.errors import (
    NotResumableError,
    SessionNotFoundError,
    SessionRunningError,
    StoreUnavailableError,
)
from whyloop.loop.agent import Agent
from whyloop.loop.executions import recover_run, resume_run, start_run
from whyloop.loop.run import CANCELLED, Run
from whyloop.stores.records import RequestKey
from whyloop.temporal.claims import too_large
from whyloop.temporal.display import ended, show
from whyloop.temporal.fleet import agent_named, fleet_here, refusal, refused
from whyloop.temporal.payloads import (
    Accepted,
    Decide,
    Decision,
    Ended,
    Open,
    Opened,
    Resume,
    Send,
    Start,
    Stop,
)
from whyloop.temporal.runs import Begin, continue_run, new_run, run_again, run_to_stop
from whyloop.temporal.turns import Turns
from whyloop.temporal.world import LONGEST_WORK, Outbox, WorkerLostError, outcome_of, use_store
from whyloop.values.approval import Verdict
from whyloop.values.state import AgentState, AgentStatus
from whyloop.values.text import clean
from whyloop.wire.journal import state_of

FIRST_LOOK, LOOKS = timedelta(days=1), 5
"""A waiting workflow checks the store after a day, then each time after twice as long, up to a month."""

MOST_EVENTS = 10_000
"""A waiting workflow whose history has this many events continues as a new one."""

NO_REASON = "A stop was requested"
"""The reason of a stop signal that has none."""


@workflow.defn(name="WhyloopAgent", failure_exception_types=[TypeError])  # Such as by any other input.
class AgentWorkflow:
    """The workflow of one session, for as long as an execution lasts, however often workers are replaced.

    The workflow ends when the execution ends, and waits while it is paused. The next query starts it again.

    Only `run` reads and changes the session: it takes the steps of a run and answers the requests of handlers
    in turns. An error of a request is its answer, and any other one ends the workflow. Before either, the
    lease is released. So no workflow task fails, and nobody waits for a lease to lapse.
    """

    def __init__(self) -> None:
        """Have no session yet: handlers may begin before `run` does."""
        self._agent_id = workflow.info().workflow_id.partition(":")[2]
        self._state: AgentState | None = None
        self._version = 0
        self._outbox: Outbox | None = None
        """The journal of a run that begins or is in progress, with the lease of this workflow."""
        self._run: Run | None = None
        self._turns = Turns()
        self._looks = 0
        self._is_woken = False
        """True while a wake-up waits for its turn."""
        self._shown: AgentStatus | None = None

    @workflow.run
    async def run(self, start: Start) -> Ended:
        """Run the executions of the session until one has ended and no other has begun."""
        self._start = start
        if start.lease is not None:
            self._outbox = Outbox(start.agent, start.lease)
        try:
            end = await self._take_turns()
        except asyncio.CancelledError:
            text = f"the workflow of session {start.agent_id!r} was cancelled: try again"
            await self._give_up(refusal(text, StoreUnavailableError.__name__))
            raise
        except Exception as error:
            await self._give_up(failure := refused(error))
            raise failure from (None if failure is error else error)
        if isinstance(end, Start):
            workflow.continue_as_new(end)
        return end

    # Turns

    async def _take_turns(self) -> Ended | Start:
        """Take steps and answer requests; return the end, or how another workflow run continues."""
        start, self._fleet = self._start, fleet_here()
        self._agent = agent_named(start.agent, self._fleet.agents)
        if start.stop is not None:
            self.stop(start.stop)
        if start.version:
            await self._continue()
        while True:
            if self._run is not None:
                if (next_start := await self._finish(self._run)) is not None:
                    return next_start
            elif workflow.cancellation_reason() is not None:
                raise asyncio.CancelledError  # It arrived during work that ended all the same.
            elif self._turns:
                await self._answer()
            elif not self._is_over:
                await self._wait()
            elif self._has_ended:
                return self._end()
            else:
                return replace(start, lease=None, version=self._version, stop=None)

    async def _wait(self) -> None:
        """Wait for work; check the store now and then, in case the session ended."""

        def has_work() -> bool:
            return bool(self._turns) or self._is_over

        at_most = FIRST_LOOK * 2 ** min(self._looks, LOOKS)
        waiting = workflow.wait_condition(has_work, timeout=at_most, timeout_summary="a look at the store")
        try:
            await asyncio.create_task(waiting)  # Its name stays with the timers of its task.
            self._looks = 0
        except TimeoutError:
            self._looks += 1
            await self._read()

    async def _answer(self) -> None:
        """Answer the next request; end the workflow if the session cannot be read."""
        error = await self._turns.answer_next(self._release)
        if error is not None:
            is_gone = error.type == SessionNotFoundError.__name__
            if is_gone or (self._state is None and not self._turns):
                await self._read()

    async def _give_up(self, failure: ApplicationError) -> None:
        """Release the lease and refuse all requests, because the workflow ends with an error."""
        self._run = None
        try:
            await self._release()
        except Exception as error:
            workflow.logger.warning("the lease could not be released: %s", error)
        await self._turns.close(failure)

    # Its runs

    async def _finish(self, run: Run) -> Start | None:
        """Take the steps of a run; return how another workflow run continues it, if one does.

        A run whose worker was lost is recovered.
        """
        outbox = self._outbox
        assert outbox is not None
        # Requests that arrived while the run was prepared: a stop request is one for the run.
        run.stop = self._turns.refuse(self._running_error) or run.stop
        self._is_woken = False
        while True:
            try:
                is_left = await self._take_steps(run)
                break
            except WorkerLostError:
                outbox.waits, lost = True, run
                run, _ = await outcome_of(new_run(recover_run, self._agent, self._fleet, outbox))
                self._run, run.stop = run, lost.stop
        if is_left:
            _, cancelled = await outcome_of(self._leave(outbox))
            stop = run.stop or (None if cancelled is None else CANCELLED)
            return replace(self._start, lease=outbox.lease, version=outbox.version, stop=stop)
        self._run, self._state = None, outbox.state  # From here on, requests wait for their turn.
        await self._release()
        self._show()
        return None

    async def _take_steps(self, run: Run) -> bool:
        """Take steps until the end or a pause.

        Return True if another workflow run takes the next step.
        """
        try:
            await run.begin()
            while run.is_in_progress():
                if workflow.cancellation_reason() is not None:  # As in `_take_turns`.
                    run.stop = run.stop or CANCELLED
                await run.next_step()
                if workflow.info().is_continue_as_new_suggested() and run.is_in_progress():
                    return True
        except asyncio.CancelledError:
            if workflow.cancellation_reason() is None:
                raise
            # The run has recorded it, and `_take_turns` delivers it.
        finally:
            await run.end()
        return False

    async def _leave(self, outbox: Outbox) -> None:
        """Store everything and answer all handlers, for another workflow run to take the next step."""
        await outbox.store()
        await workflow.wait_condition(workflow.all_handlers_finished)

    async def _continue(self) -> None:
        """Continue what an earlier workflow run left: a run, or the wait of a paused session."""
        await self._read()
        if self._version < self._start.version:
            raise refusal(
                f"session {self._start.agent_id!r} is at version {self._version} in the store, and its "
                f"workflow continues from version {self._start.version}: restore the store, or terminate the "
                "workflow",
                "StoreError",
            )
        if self._outbox is not None:
            self._run = await new_run(continue_run, self._agent, self._fleet, self._outbox)

    async def _begin(self, begin: Begin, key: RequestKey | None = None) -> Accepted:
        """Acquire the session, and begin a run of it."""
        await self._read(acquire=True, key=key)
        assert self._outbox is not None
        self._run = await new_run(begin, self._agent, self._fleet, self._outbox)
        self._show()
        return Accepted(self._run.state.execution.id, self._version)

    async def _read(self, *, acquire: bool = False, key: RequestKey | None = None) -> None:
        """Read what is new in the store, also to begin a run: then acquire the lease."""
        given = Open(self._start, self._version, acquire, key)
        opened, _ = await use_store("whyloop_open", given, Opened)
        if opened.lease is not None:
            self._outbox = Outbox(self._agent.name, opened.lease, key)
        if opened.entries:
            known = self._state if self._version else None
            self._state = state_of(self._start.agent_id, opened.entries, known)
            self._version += len(opened.entries)
        if self._outbox is not None and self._state is not None:
            self._outbox.state, self._outbox.version = self._state, self._version

    async def _release(self) -> None:
        """Release the lease of this workflow, if it has one, with everything stored.

        This is the only place; a run that ends stores its end and the release together.
        """
        outbox, self._outbox = self._outbox, None
        if outbox is not None:
            await outcome_of(outbox.release())
            self._version = outbox.version

    async def _recover(self) -> None:
        """Continue a run whose runner died, or a pause whose questions are all decided."""
        self._is_woken = False
        if not self._has_ended:  # If it has, this workflow ends, and would never do so if each wake-up read.
            await self._begin(run_again)

    async def _stop_session(self, reason: str) -> None:
        """Stop a session that this workflow does not run."""
        if self._state is None or self._state.status is AgentStatus.IN_PROGRESS:
            try:  # The workflow that ran it may have been terminated.
                await self._begin(run_to_stop(reason))
                return
            except (NotResumableError, ActivityError):  # It does not run, or another runner has it.
                await self._release()
        await use_store("whyloop_stop", Stop(self._start.agent_id, reason))
        await self._read()
        self._show()

    # From outside

    @workflow.update
    async def send(self, given: Send) -> Accepted:
        """Ask the next question; return once the run has begun."""
        name = given.key.key if given.key else None

        def begin(agent: Agent[Any, Any], state: AgentState, journal: Outbox) -> Run:
            return start_run(agent, given.message, state, journal=journal, key=name)

        accepted: Accepted = await self._turns.ask(partial(self._begin, begin, given.key))
        return accepted

    @workflow.update
    async def resume(self, given: Resume) -> Accepted:
        """Continue a paused, stopped or failed execution; return once it has begun."""
        name = given.key.key if given.key else None

        def begin(agent: Agent[Any, Any], state: AgentState, journal: Outbox) -> Run:
            return resume_run(agent, state, grant=given.grant, journal=journal, key=name)

        accepted: Accepted = await self._turns.ask(partial(self._begin, begin, given.key))
        return accepted

    @workflow.update
    async def approve(self, given: Decision) -> None:
        """Approve a pending tool call; it runs at the next `resume`."""
        await self._turns.ask(partial(self._decide, Verdict.APPROVED, given))

    @workflow.update
    async def deny(self, given: Decision) -> None:
        """Deny a pending tool call; the model gets the reason."""
        await self._turns.ask(partial(self._decide, Verdict.DENIED, given))

    @workflow.update
    async def edit(self, given: Decision) -> None:
        """Approve a pending tool call with other arguments."""
        await self._turns.ask(partial(self._decide, Verdict.EDITED, given))

    @send.validator
    def _check_send(self, given: Send) -> None:
        self._refuse_running()
        if (error := too_large(given, "message")) is not None:
            raise refusal(str(error))

    @resume.validator
    def _check_resume(self, given: Resume) -> None:
        self._refuse_running()

    @approve.validator
    @deny.validator
    def _check_decision(self, given: Decision) -> None:
        self._refuse_running()

    @edit.validator
    def _check_edit(self, given: Decision) -> None:
        self._refuse_running()
        if given.arguments is None:
            raise refusal("an edit needs arguments")

    async def _decide(self, verdict: Verdict, given: Decision) -> None:
        await use_store("whyloop_decide", Decide(self._start.agent_id, self._start.agent, verdict, given))
        await self._read()

    @workflow.signal
    def stop(self, reason: object = None, *_: object) -> None:
        """End the run: an answer at once, running calls within their grace period.

        Args:
            reason: Why.
            *_: Ignored, like anything else that is no reason: a wrong signal must not fail a task.
        """
        reason = clean(reason) if isinstance(reason, str) and reason else NO_REASON
        if self._run is not None:
            self._run.interruptions.stop_now(reason)
        else:
            self._turns.add(partial(self._stop_session, reason), reason)

    @workflow.signal
    def waits(self, seconds: object = None, *_: object) -> None:
        """Take the waits of the model between its attempts out of the active time of the step.

        Args:
            seconds: The seconds that the model has waited.
            *_: Ignored, as by `stop`.
        """
        if not isinstance(seconds, int | float) or not 0 <= seconds <= LONGEST_WORK.total_seconds():
            return
        if self._run is not None:
            self._run.interruptions.model_waits(seconds)

    @workflow.signal
    def wake(self, *_: object) -> None:
        """Continue the session if it has no runner and could continue.

        Args:
            *_: Ignored, as by `stop`.
        """
        # The end of a run may be in the store before the workflow knows it.
        if not self._is_running and not self._is_woken:
            self._is_woken = True
            self._turns.add(self._recover)

    @workflow.query
    def state(self) -> dict[str, Any] | None:
        """Return the session as a snapshot, as far as this workflow knows it."""
        return None if self._newest is None else self._newest.to_dict()

    @workflow.query
    def explain(self) -> str:
        """Return why the last execution continued, step by step, and why it stopped."""
        return "" if self._newest is None else self._newest.explain()

    @workflow.query
    def trace(self) -> list[dict[str, Any]]:
        """Return the outcome of every step of the last execution."""
        state = self._newest
        return [] if state is None else [msgspec.to_builtins(step.outcome) for step in state.execution_steps]

    # What it shows

    @property
    def _newest(self) -> AgentState | None:
        """The session with everything that was recorded, even before the step ends."""
        return self._state if self._outbox is None or self._run is None else self._outbox.state

    @property
    def _is_over(self) -> bool:
        """True if this workflow run can end: with the session, or because its history is long."""
        info = workflow.info()
        is_long = info.is_continue_as_new_suggested() or info.get_current_history_length() >= MOST_EVENTS
        return (self._has_ended or is_long) and workflow.all_handlers_finished()

    @property
    def _has_ended(self) -> bool:
        state = self._state
        return state is not None and (state.status.has_ended or not state.messages)

    @property
    def _is_running(self) -> bool:
        """True if a run is in progress, but not if its end or its pause is being stored."""
        run = self._run
        return run is not None and run.state.status in (AgentStatus.PENDING, AgentStatus.IN_PROGRESS)

    @property
    def _running_error(self) -> ApplicationError:
        return refused(SessionRunningError(self._agent_id, "temporal", 0.0))

    def _refuse_running(self) -> None:
        if self._is_running:
            raise self._running_error

    def _end(self) -> Ended:
        """Return how the last execution ended; show an end that the store recorded."""
        assert self._state is not None
        if self._state.status is not self._shown:
            self._show()
        return ended(self._state)

    def _show(self) -> None:
        """Show the session in Temporal's own pages."""
        state = self._run.state if self._run is not None else self._state
        if state is not None:
            self._shown = state.status
            show(self._start, state, is_running=self._run is not None)
