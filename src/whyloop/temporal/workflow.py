"""The workflow that runs a session: the same loop and rules as anywhere else, through `TemporalWorld`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from copy import copy
from datetime import timedelta
from types import NoneType
from typing import Any, NoReturn

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from temporalio import workflow
from temporalio.common import SearchAttributeKey
from temporalio.exceptions import ActivityError, ApplicationError

from whyloop.errors import NotResumableError, SessionRunningError, WhyloopError
from whyloop.loop.agent import Agent
from whyloop.loop.executions import recover_run, resume_run, start_run
from whyloop.loop.run import Run
from whyloop.loop.setup import Handlers
from whyloop.stores.records import Lease, RequestKey
from whyloop.temporal.claims import too_large
from whyloop.temporal.fleet import agent_named, fleet_here, refusal
from whyloop.temporal.payloads import (
    Accepted,
    Decide,
    Decision,
    Ended,
    Open,
    Opened,
    Repeatable,
    Resume,
    Send,
    Start,
    Stop,
)
from whyloop.temporal.world import STORING, UNTIL_STORED, Outbox, TemporalWorld, WorkerLostError
from whyloop.tools.tool import ToolDefinition
from whyloop.tools.toolset import ToolTable
from whyloop.values.approval import Verdict
from whyloop.values.state import AgentState, AgentStatus
from whyloop.wire.journal import state_of

STATUS = SearchAttributeKey.for_keyword("WhyloopStatus")
STOP_REASON = SearchAttributeKey.for_keyword("WhyloopStopReason")
RULE = SearchAttributeKey.for_keyword("WhyloopRule")
AGENT = SearchAttributeKey.for_keyword("WhyloopAgent")
SEARCH_ATTRIBUTES = (STATUS, STOP_REASON, RULE, AGENT)

FIRST_LOOK, LOOKS = timedelta(days=1), 5
"""A waiting workflow checks the store after a day, then each time after twice as long, up to a month."""

MOST_EVENTS = 10_000
"""A waiting workflow whose history has this many events continues as a new one."""

Begin = Callable[[Agent[Any, Any], AgentState, Outbox], Run]
"""A function that begins a run of a session."""


@workflow.defn(name="WhyloopAgent")
class AgentWorkflow:
    """The workflow of one session, for as long as an execution lasts, however often workers are replaced.

    The workflow ends when the execution ends, and waits while it is paused. The next query starts it again.
    """

    @workflow.init
    def __init__(self, start: Start) -> None:
        """Find the agent of the session."""
        self._fleet = fleet_here()
        self._start = start
        self._agent = agent_named(start.agent, self._fleet.agents)
        self._state: AgentState | None = None
        self._version = 0
        self._outbox: Outbox | None = None
        self._run: Run | None = None
        self._is_busy = start.lease is not None
        """True while a run is prepared, in progress, or being stored."""
        self._is_settling = False
        self._is_unreadable = False
        """True if a request was refused before the session was read."""
        self._reading = asyncio.Lock()
        self._looks, self._wakes = 0, False
        self._stop = start.stop
        self._shown: AgentStatus | None = None

    @workflow.run
    async def run(self, start: Start) -> Ended:
        """Run the executions of the session until one has ended and no other has begun."""
        if start.version:
            await self._read(lease=start.lease)
            if self._version < start.version:
                behind = (
                    f"is at version {self._version} in the store, and its workflow continues from version"
                )
                advice = "restore the store, or terminate the workflow"
                raise refusal(f"session {start.agent_id!r} {behind} {start.version}: {advice}", "StoreError")
        if start.lease is not None:
            self._run = await self._new_run(lambda agent, state, journal: Run(agent._setup, state, journal))
        while True:
            await self._wait()
            if self._run is not None:
                await self._finish()
            elif self._wakes:
                await self._recover()
            elif self._stop is not None:
                await self._stop_paused()
            else:
                await self._read()
            if self._is_busy or not workflow.all_handlers_finished():
                continue
            if self._has_ended:
                return self._end()
            if self._is_over or workflow.info().is_continue_as_new_suggested():
                self._continue_as_new()

    async def _wait(self) -> None:
        """Wait for work; check the store now and then, in case the session ended."""

        def has_work() -> bool:
            is_woken = self._wakes or self._stop is not None or self._is_over
            return self._run is not None or (not self._is_busy and is_woken)

        at_most = FIRST_LOOK * 2 ** min(self._looks, LOOKS)
        waiting = workflow.wait_condition(has_work, timeout=at_most, timeout_summary="a look at the store")
        try:
            await asyncio.create_task(waiting)  # Its name stays with the timers of its task.
            self._looks = 0
        except TimeoutError:
            self._looks += 1

    # Its runs

    async def _finish(self) -> None:
        """Take the steps of a run; recover a run whose worker was lost."""
        run, outbox = self._run, self._outbox
        assert run is not None
        assert outbox is not None
        while True:
            try:
                is_left = await self._take_steps(run)
                break
            except WorkerLostError:
                lost, outbox.waits = run, True
                self._run = run = await self._new_run(recover_run)
                run.stop = lost.stop
        self._run, self._state, self._is_settling = None, outbox.state, not is_left
        await outbox.store(release=not is_left and not outbox.state.status.has_ended)
        self._version, self._is_busy, self._is_settling = outbox.version, is_left, False
        if is_left:
            await workflow.wait_condition(workflow.all_handlers_finished)
            self._continue_as_new(outbox.lease)
        self._show()

    def _continue_as_new(self, lease: Lease | None = None) -> NoReturn:
        """Continue in another workflow run, with a short history."""
        workflow.continue_as_new(replace(self._start, lease=lease, version=self._version, stop=self._stop))

    async def _take_steps(self, run: Run) -> bool:
        """Take steps until the end or a pause.

        Return True if another workflow run takes the next step.
        """
        if self._stop is not None:
            run.stop, self._stop = self._stop, None
        try:
            await run.begin()
            while run.is_in_progress():
                await run.next_step()
                self._state = run.state
                if workflow.info().is_continue_as_new_suggested() and run.is_in_progress():
                    return True
        finally:
            await run.end()
        return False

    async def _new_run(self, begin: Begin) -> Run:
        """Return a run of the agent whose work activities do."""
        outbox = self._outbox
        assert outbox is not None
        tools = {**self._agent._setup.tools, **await self._repeatable(outbox.state)}
        timeouts = {name: tool.timeout for name, (tool, _) in tools.items() if tool.timeout is not None}
        world = TemporalWorld(outbox, timeouts, self._fleet.task_queues, self._fleet.heartbeat)
        agent = copy(self._agent)
        agent._setup = replace(
            agent._setup,
            world=world,
            tools=tools,
            handlers=Handlers(),
            toolsets=(),
            runs=set(),
            deps_type=NoneType,
        )
        return begin(agent, outbox.state, outbox)

    async def _repeatable(self, state: AgentState) -> ToolTable:
        """Return the idempotent tools among those whose calls may have run."""
        setup, opened = self._agent._setup, state.open_step
        if not setup.toolsets or opened is None:
            return {}
        asked = zip(opened.tool_calls, opened.calls, strict=True)
        names = dict.fromkeys([call.name for call, at in asked if at.is_running])
        unknown = tuple([name for name in names if name not in setup.tools])
        if not unknown:
            return {}
        found: list[str] = await self._execute(
            "whyloop_repeatable", Repeatable(state.agent_id, self._agent.name, unknown), list[str]
        )
        schema = {"type": "object"}
        tools = [ToolDefinition(name, "", schema, idempotent=True) for name in found]
        return {tool.name: (tool, setup.toolsets[0]) for tool in tools}

    async def _begin(self, begin: Begin, key: RequestKey | None = None) -> Accepted:
        """Acquire the session, and begin a run of it."""
        await workflow.wait_condition(lambda: not self._is_busy or self._is_running)
        self._refuse_running()
        self._is_busy = True
        try:
            lease = await self._read(acquire=True)
            outbox = self._outbox
            assert outbox is not None
            assert lease is not None
            outbox.key = key
            try:
                run = await self._new_run(begin)
            except WhyloopError as error:
                await outbox.store(release=True)
                raise refusal(str(error), type(error).__name__) from None
            self._run = run
            self._show()
            return Accepted(run.state.execution.id, self._version)
        except BaseException:
            self._is_busy, self._is_unreadable = False, self._state is None
            raise

    async def _read(self, *, acquire: bool = False, lease: Lease | None = None) -> Lease | None:
        """Read what is new in the store; with a lease, the session can be run."""
        async with self._reading:
            given = Open(self._start, self._version, acquire)
            opened: Opened = await self._execute("whyloop_open", given, Opened)
            if opened.entries:
                known = self._state if self._version else None
                self._state = state_of(self._start.agent_id, opened.entries, known)
                self._version += len(opened.entries)
            lease = lease or opened.lease
            if lease is not None and self._state is not None:
                self._outbox = Outbox(self._agent.name, lease, self._state, self._version)
        return lease

    async def _recover(self) -> None:
        """Continue a run whose runner died, or a pause whose questions are all decided."""
        self._wakes = False

        def begin(agent: Agent[Any, Any], state: AgentState, journal: Outbox) -> Run:
            if state.status is AgentStatus.PAUSED and not state.pending_calls:
                return resume_run(agent, state, journal=journal)
            if state.status is not AgentStatus.IN_PROGRESS:
                raise NotResumableError(f"session {state.agent_id!r} is {state.status}: nothing to recover")
            return recover_run(agent, state, journal)

        try:
            await self._begin(begin)
        except ApplicationError as error:
            if error.type == "SessionNotFoundError":
                raise
            workflow.logger.info("nothing to recover: %s", error)

    async def _stop_paused(self) -> None:
        """Stop a session that does not run."""
        reason, self._stop = self._stop, None
        try:
            await self._execute("whyloop_stop", Stop(self._start.agent_id, reason or ""))
        except ApplicationError as error:
            workflow.logger.warning("the session could not be stopped: %s", error)
        await self._read()
        self._show()

    async def _execute(self, name: str, given: Struct, kind: type | None = None) -> Any:
        try:
            return await workflow.execute_activity(
                name, given, result_type=kind, start_to_close_timeout=STORING, retry_policy=UNTIL_STORED
            )
        except ActivityError as error:
            raise error.cause or error from None

    # From outside

    @workflow.update
    async def send(self, given: Send) -> Accepted:
        """Ask the next question; return once the run has begun."""
        name = given.key.key if given.key else None
        return await self._begin(
            lambda agent, state, journal: start_run(agent, given.message, state, journal=journal, key=name),
            given.key,
        )

    @workflow.update
    async def resume(self, given: Resume) -> Accepted:
        """Continue a paused, stopped or failed execution; return once it has begun."""
        name = given.key.key if given.key else None
        return await self._begin(
            lambda agent, state, journal: resume_run(
                agent, state, grant=given.grant, journal=journal, key=name
            ),
            given.key,
        )

    @workflow.update
    async def approve(self, given: Decision) -> None:
        """Approve a pending tool call; it runs at the next `resume`."""
        await self._decide(Verdict.APPROVED, given)

    @workflow.update
    async def deny(self, given: Decision) -> None:
        """Deny a pending tool call; the model gets the reason."""
        await self._decide(Verdict.DENIED, given)

    @workflow.update
    async def edit(self, given: Decision) -> None:
        """Approve a pending tool call with other arguments."""
        await self._decide(Verdict.EDITED, given)

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
        await workflow.wait_condition(lambda: not self._is_busy or self._is_running)
        self._refuse_running()
        await self._execute("whyloop_decide", Decide(self._start.agent_id, self._start.agent, verdict, given))
        await self._read()

    @workflow.signal
    def stop(self, reason: str) -> None:
        """End the run: an answer at once, running calls within their grace period."""
        self._stop = reason
        if self._run is not None:
            self._stop = None
            self._run.interruptions.stop_now(reason)

    @workflow.signal
    def waits(self, seconds: float) -> None:
        """Take the waits of the model between its attempts out of the active time of the step.

        Args:
            seconds: The seconds that the model has waited.
        """
        if self._run is not None:
            self._run.interruptions.model_waits(seconds)

    @workflow.signal
    def wake(self) -> None:
        """Continue the session if it has no runner and could continue."""
        if not self._is_running:  # The end of a run may be in the store before the workflow knows it.
            self._wakes = True

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
        return self._state if self._run is None or self._outbox is None else self._outbox.state

    @property
    def _is_over(self) -> bool:
        """True if this workflow run can end: with the session, or because its history is long."""
        is_long = workflow.info().get_current_history_length() >= MOST_EVENTS
        return (self._has_ended or is_long) and workflow.all_handlers_finished()

    @property
    def _has_ended(self) -> bool:
        if self._state is None:
            return self._is_unreadable  # The next look at the store says why.
        return self._state.status.has_ended or not self._state.messages

    @property
    def _is_running(self) -> bool:
        """True if a run is prepared or in progress, but not if its end is being stored."""
        run = self._run
        return (
            self._is_busy
            and not self._is_settling
            and (run is None or run.state.status in (AgentStatus.PENDING, AgentStatus.IN_PROGRESS))
        )

    def _refuse_running(self) -> None:
        if self._is_running:
            error = SessionRunningError(self._start.agent_id, "temporal", 0.0)
            raise refusal(str(error), type(error).__name__)

    def _end(self) -> Ended:
        """Return how the last execution ended; show an end that the store recorded."""
        assert self._state is not None
        if self._state.status is not self._shown:
            self._show()
        outcome = self._state.last_continuation_outcome
        return Ended(
            self._start.agent_id,
            self._state.status,
            outcome.stop_reason if outcome else None,
            outcome.resolved_by if outcome else None,
            outcome.reason if outcome else "",
            self._state.execution.step_number,
        )

    def _show(self) -> None:
        """Show the status, the stop reason and the rule in Temporal's own pages."""
        state = self._run.state if self._run is not None else self._state
        if state is None:
            return
        self._shown = state.status
        outcome = None if self._run is not None else state.last_continuation_outcome
        reason = str(outcome.stop_reason or "") if outcome else ""
        rule = outcome.resolved_by or "" if outcome else ""
        if self._start.searchable:
            shown = [
                STATUS.value_set(str(state.status)),
                STOP_REASON.value_set(reason) if reason else STOP_REASON.value_unset(),
                RULE.value_set(rule) if rule else RULE.value_unset(),
                AGENT.value_set(self._start.agent),
            ]
            workflow.upsert_search_attributes(shown)
        if outcome is not None:
            workflow.set_current_details(f"**{state.status}** by {rule}: {outcome.reason}")
