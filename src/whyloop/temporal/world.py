"""The world of a run inside a workflow: activities do its work, and Temporal keeps its time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace
from temporalio import exceptions, workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

from whyloop.errors import StoreUnavailableError
from whyloop.loop.run import Run
from whyloop.loop.setup import RequestParts, Setup
from whyloop.loop.step import StepInProgress
from whyloop.loop.world import Timer
from whyloop.stores.listing import Counting, summary_of
from whyloop.stores.live import ended
from whyloop.stores.records import Lease, RequestKey, Summary
from whyloop.temporal.payloads import WORKER_SHUTDOWN, Appendix, Ask, Call, Called, ModelAnswer
from whyloop.tools.tool import idempotency_key
from whyloop.values.model import NO_USAGE
from whyloop.values.state import AgentState, AgentStatus
from whyloop.values.step_transitions import Answered, AnyTransition, CallFinished, ModelFailed
from whyloop.wire.journal import Entry, entries_of

HEARTBEAT_SECONDS = 10.0
"""The time without a heartbeat after which a worker counts as lost, unless the plugin says otherwise."""

LONGEST_WORK = timedelta(days=1)
"""The maximum duration of a model call, and of a tool call without a time limit of its own."""

GRACE = timedelta(seconds=30)
"""A worker enforces the time limit of a tool; Temporal waits this much longer."""

ONCE = RetryPolicy(maximum_attempts=1)
"""Retries are decided by the error policy, so that each of them is in the trace."""

UNTIL_STORED = RetryPolicy(
    initial_interval=timedelta(milliseconds=200), maximum_interval=timedelta(seconds=5)
)
"""Reading from the store and writing to it can be repeated without harm."""

STORING = timedelta(seconds=60)
"""The maximum duration of one attempt to read from the store or to write to it."""

_LOST = (WORKER_SHUTDOWN, StoreUnavailableError.__name__)

T = TypeVar("T")


class WorkerLostError(Exception):
    """A worker ended during a model call or a tool call, which may or may not have run."""


async def outcome_of(work: Awaitable[T]) -> tuple[T, asyncio.CancelledError | None]:
    """Return the result of work, and a cancellation that arrived meanwhile.

    The work is not cancelled. Its error is raised instead of a cancellation.

    Args:
        work: What must not be left with an unknown outcome, such as a write.
    """
    future, cancelled = await ended(work)
    return future.result(), cancelled


async def use_store(
    name: str, given: Struct, kind: type[T] | None = None
) -> tuple[T, asyncio.CancelledError | None]:
    """Return the result of an activity that reads from the store or writes to it, like `outcome_of`.

    Args:
        name: The name of the activity.
        given: Its input.
        kind: The type of its result. Default: none.
    """
    work: Awaitable[T] = workflow.execute_activity(
        name, given, result_type=kind, start_to_close_timeout=STORING, retry_policy=UNTIL_STORED
    )
    return await outcome_of(work)


class Outbox:
    """The journal of a run inside a workflow, with the lease under which it is stored.

    A workflow is itself durable, so entries need not be stored at once. The next activity stores them before
    its work, or a separate one does if the run waits, pauses or ends.
    """

    def __init__(self, agent: str, lease: Lease, key: RequestKey | None = None) -> None:
        self.state = AgentState.before_creation(lease.agent_id)
        """The session with all that was recorded."""
        self.version = 0
        """The version of the session in the store."""
        self.lease = lease
        self.running = 0
        """The number of calls that run."""
        self.stop: str | None = None
        """The reason of a stop request that was found in the store."""
        self.key = key
        """The key of the request that caused the next entry."""
        self.waits = False
        """True to store the next entry at once: what comes after it needs the store."""
        self._agent = agent
        self._is_released = False
        self._entries: list[Entry] = []
        self._summary: Summary | None = None
        self._counting = Counting()

    async def append(
        self, transitions: Sequence[AnyTransition], before: AgentState, after: AgentState
    ) -> str | None:
        """Record transitions; store them at once if no activity follows that could."""
        counts = self._counting.counts(before, after)
        self._entries += entries_of(transitions, before, counts)
        self.state = after
        if counts is None:
            self._summary = summary_of(after)
        opened = after.open_step
        starting = 0 if opened is None else sum(call.is_running for call in opened.calls)
        if after.status is not AgentStatus.IN_PROGRESS or self.running or starting > 1 or self.waits:
            self.waits = False
            await self.store()
        return self.stop

    async def store(self) -> None:
        """Store what was recorded, with the end of the run also the release of the lease."""
        if self._entries:
            await self._store(release=self.state.status.has_ended)

    async def release(self) -> None:
        """Store the rest and release the lease, even if the rest is refused, unless the end did both."""
        if self._is_released:
            return
        try:
            await self._store(release=True)
        except ActivityError:
            if self._entries:  # The next runner continues from what is stored.
                self._entries.clear()
                await self._store(release=True)
            raise

    async def _store(self, *, release: bool) -> None:
        given = replace(self.unstored, release=release)
        stop, cancelled = await use_store("whyloop_append", given, str)
        self.stored(given, stop)
        self._is_released = self._is_released or release
        if cancelled is not None:
            raise cancelled

    @property
    def unstored(self) -> Appendix:
        """The entries that are not stored yet."""
        return Appendix(
            self._agent, self.lease, self.version, tuple(self._entries), self._summary, key=self.key
        )

    def stored(self, given: Appendix, stop: str | None) -> None:
        """Forget entries that are already stored."""
        count = given.version - self.version
        if count > 0:
            del self._entries[:count]
            self.version, self.key = given.version, None
            if given.summary is self._summary:
                self._summary = None
        self.stop = self.stop or stop


class TemporalWorld:
    """The world of a run inside a workflow.

    Args:
        outbox: The journal of the run.
        timeouts: The time limits of tools in seconds, by name.
        task_queues: The task queues of tools that other workers run, by name. Default: that of the workflow.
        heartbeat: The seconds without a sign of life after which a worker is lost. Default: 10.
    """

    def __init__(
        self,
        outbox: Outbox,
        timeouts: Mapping[str, float],
        task_queues: Mapping[str, str] | None = None,
        heartbeat: float = HEARTBEAT_SECONDS,
    ) -> None:
        self._outbox = outbox
        self._timeouts = timeouts
        self._task_queues = task_queues or {}
        self._heartbeat = timedelta(seconds=heartbeat)
        self.now = workflow.now
        """Return the time of the workflow."""
        self.monotonic = workflow.time
        """Return the time of the workflow in seconds."""

    @property
    def is_replaying(self) -> bool:
        """True while the workflow is repeated from its history."""
        return workflow.unsafe.is_replaying()

    def new_id(self) -> str:
        """Return the next identifier of this workflow."""
        return workflow.uuid4().hex

    def random(self) -> float:
        """Return the next random number of this workflow."""
        return workflow.random().random()

    async def sleep(self, seconds: float) -> None:
        """Wait with a durable timer; store everything before it first.

        Args:
            seconds: How long.
        """
        await self._outbox.store()
        await workflow.sleep(seconds, summary="a wait before a retry")

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call a function with a durable timer.

        Args:
            seconds: When, from now.
            callback: The function.
        """
        return asyncio.get_running_loop().call_later(seconds, callback)

    async def answer(self, run: Run, step: StepInProgress) -> Sequence[AnyTransition]:
        """Ask the model in an activity.

        Args:
            run: The run.
            step: The step that is in progress.
        """
        unstored = self._outbox.unstored
        given = Ask(unstored, step.left)
        answer = await self._execute("whyloop_ask", given, ModelAnswer, at_most=LONGEST_WORK, summary="model")
        self._outbox.stored(unstored, answer.stop)
        if answer.part is not None:
            part = answer.part
            step.request = RequestParts(part.request, part.parts)
            step.chunks, step.sent, step.holds_back = [part.text], part.sent, part.holds_back
            step.usage = NO_USAGE if part.usage == NO_USAGE else part.usage
            step.attempts = part.attempts
            step.set_waited(sum([attempt.waited for attempt in part.attempts]))
            raise asyncio.CancelledError
        step.interruptible = False
        return [self._stamped(transition, step) for transition in answer.transitions]

    def _stamped(self, transition: AnyTransition, step: StepInProgress) -> AnyTransition:
        """Return a transition with the workflow's time, since workers' clocks differ."""
        if isinstance(transition, Answered | ModelFailed):
            step.set_waited(0.0 if transition.source is None else transition.source.waited)
            seconds = step.lap(self.monotonic())
            return replace(transition, at=self.now(), started_at=step.begun_at, seconds=seconds)
        at = self.now() if isinstance(transition, CallFinished) else step.begun_at
        return replace(transition, at=at)

    async def run_call(
        self, setup: Setup, state: AgentState, index: int, deadline: datetime | None
    ) -> CallFinished:
        """Run one call in an activity of its own.

        Args:
            setup: The setup of the run.
            state: The state with the open step.
            index: The index of the call in its step.
            deadline: The deadline of the step; None if it has none.
        """
        opened, execution, unstored = state.open_step, state.execution, self._outbox.unstored
        assert opened is not None
        call, started = opened.call_to_run(index), self.monotonic()
        limit = self._timeouts.get(call.name)
        self._outbox.running += 1
        try:
            called = await self._execute(
                "whyloop_call",
                Call(unstored, index, deadline),
                Called,
                at_most=LONGEST_WORK if limit is None else timedelta(seconds=limit) + GRACE,
                summary=call.name,
                key=idempotency_key(execution.id, opened.number, index, call.id),
                task_queue=self._task_queues.get(call.name),
            )
        except WorkerLostError:
            # The other calls of the step may still finish, and their results are recorded first.
            self._outbox.running -= 1
            await workflow.wait_condition(lambda: not self._outbox.running)
            self._outbox.running += 1
            raise
        finally:
            self._outbox.running -= 1
        self._outbox.stored(unstored, called.stop)
        seconds = max(0.0, self.monotonic() - started)
        return replace(called.finished, at=self.now(), seconds=seconds)

    async def _execute(
        self,
        name: str,
        given: Struct,
        kind: type[T],
        *,
        at_most: timedelta,
        summary: str,
        key: str | None = None,
        task_queue: str | None = None,
    ) -> T:
        """Return the result of an activity; a cancellation waits for the worker."""
        try:
            result: T = await workflow.execute_activity(
                name,
                given,
                result_type=kind,
                task_queue=task_queue,
                start_to_close_timeout=at_most,
                heartbeat_timeout=self._heartbeat,
                retry_policy=ONCE,
                cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
                activity_id=key,
                summary=summary,
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise asyncio.CancelledError from error
            if _is_lost(error.cause):
                raise WorkerLostError(f"the worker of {summary} was lost") from error
            raise
        return result


def _is_lost(cause: BaseException | None) -> bool:
    """Return whether the outcome of an activity is unknown.

    Its worker was lost, or the store for payloads.
    """
    if isinstance(cause, ApplicationError) and cause.type in _LOST:
        return True
    return isinstance(cause, exceptions.TimeoutError) or (cause is not None and _is_lost(cause.__cause__))
