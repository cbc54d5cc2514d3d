"""A session that Temporal runs, as a client sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, NoReturn

from temporalio.client import (
    Client,
    WithStartWorkflowOperation,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.exceptions import ApplicationError, FailureError
from temporalio.service import RPCError, RPCStatusCode

from whyloop import errors
from whyloop.errors import (
    ApprovalError,
    ConfigurationError,
    KeyUsedError,
    SessionNotFoundError,
    SessionRunningError,
    StoreError,
    StoreUnavailableError,
    WhyloopError,
)
from whyloop.loop.executions import Query, as_message
from whyloop.sessions.creation import create_session, read_or_create
from whyloop.stores.listing import summary_of
from whyloop.stores.live import live
from whyloop.stores.reading import Reading, entries_after, read_session
from whyloop.stores.records import RequestKey, Summary, checked_id
from whyloop.stores.store import Store
from whyloop.temporal.connection import connection_error, engine_of, reaching, record_open, signal
from whyloop.temporal.payloads import Accepted, Decision, Resume, Send, Start, workflow_id
from whyloop.temporal.workflow import AgentWorkflow
from whyloop.values.continuation import Budget
from whyloop.values.state import UNNAMED_PERSON, AgentState, AgentStatus

TASK_QUEUE = "whyloop"
GIVING_BACK_SECONDS = 0.02
MOST_ATTEMPTS = 10
SECONDS_UNTIL_AGAIN = 1.0
"""The seconds after which a client asks again whether a session still runs."""


class TemporalSession:
    """A session that the workers of a Temporal namespace run; like any other, its history is in the store.

    Args:
        client: The client, with a `WhyloopPlugin`.
        store: The store of the sessions.
        agent: The name of the agent.
        reading: The session as it was read.
        task_queue: The task queue of the workers. Default: "whyloop".
        searchable: True to keep status, stop reason and rule in search attributes. Default: True.
    """

    def __init__(
        self,
        client: Client,
        store: Store,
        agent: str,
        reading: Reading,
        *,
        task_queue: str = TASK_QUEUE,
        searchable: bool = True,
    ) -> None:
        """Use `TemporalSession.open`, which creates or reads the session."""
        self.client = client
        """The client."""
        self.store = store
        """The store that holds the session."""
        self._reading = reading
        self._task_queue = task_queue
        self._start = Start(self.agent_id, agent, searchable)

    @classmethod
    async def open(
        cls,
        client: Client,
        store: Store,
        agent: str,
        agent_id: str | None = None,
        *,
        create: bool = False,
        metadata: Mapping[str, object] | None = None,
        task_queue: str = TASK_QUEUE,
        searchable: bool = True,
    ) -> TemporalSession:
        """Return a session of the store, or a new one if no id is given.

        Args:
            client: The client, with a `WhyloopPlugin`.
            agent: The name of the agent, which the workers know.
            agent_id: The id of the session. Default: a new one.
            create: True to create a session if the id is unknown. Default: False.
            metadata: The metadata of a new session. Default: none.
            task_queue: The task queue of the workers. Default: "whyloop".
            searchable: True to keep status, stop reason and rule in search attributes. Default: True.
        """
        if agent_id is not None:
            checked_id(agent_id)
        new = partial(create_session, store, agent, agent_id, metadata)
        reading = await read_or_create(store, agent_id, new, create=create)
        return cls(client, store, agent, reading, task_queue=task_queue, searchable=searchable)

    @property
    def agent_id(self) -> str:
        """The id of the session."""
        return self._reading.state.agent_id

    @property
    def summary(self) -> Summary:
        """The summary of the session as this process last read it."""
        return summary_of(self.state)

    @property
    def version(self) -> int:
        """The version of `state`: the number of entries in its journal."""
        return self._reading.version

    @property
    def state(self) -> AgentState:
        """The session as this process last read it; `refresh` reads it again."""
        return self._reading.state

    def explain(self, *, debug: bool = False, redact: bool = True) -> str:
        """Return why the last execution continued, step by step, and why it stopped.

        Args:
            debug: True to show the messages of tools' own exceptions. Default: False.
            redact: False to show secrets. Default: True, which removes them.
        """
        return self.state.explain(debug=debug, redact=redact)

    @property
    def handle(self) -> Any:
        """The handle of the workflow, which raises Temporal's own errors."""
        return self.client.get_workflow_handle_for(
            AgentWorkflow.run, workflow_id(self._task_queue, self.agent_id)
        )

    async def refresh(self) -> AgentState:
        """Return the session as it is in the store now."""
        self._reading = await read_session(self.store, self.agent_id, self._reading)
        return self._reading.state

    async def send(self, query: Query, *, key: RequestKey | None = None) -> AgentState:
        """Send the next query, and return the state when the run ends or pauses."""
        return await self.wait(await self.begin(query, key=key))

    async def begin(self, query: Query, *, key: RequestKey | None = None) -> Accepted:
        """Ask the next question, and return once the run has begun."""
        accepted: Accepted = await self._update(AgentWorkflow.send, Send(as_message(query), key))
        return accepted

    async def resume(self, *, grant: Budget | None = None, key: RequestKey | None = None) -> AgentState:
        """Continue a paused, stopped or failed execution; wait until it ends or pauses."""
        return await self.wait(await self.begin_resume(grant=grant, key=key))

    async def begin_resume(self, *, grant: Budget | None = None, key: RequestKey | None = None) -> Accepted:
        """Continue a paused, stopped or failed execution; return once it has begun."""
        accepted: Accepted = await self._update(AgentWorkflow.resume, Resume(grant, key))
        return accepted

    async def approve(
        self, question_id: str, *, by: str = UNNAMED_PERSON, key: RequestKey | None = None
    ) -> AgentState:
        """Approve a pending tool call; it runs at the next `resume`."""
        await self._update(AgentWorkflow.approve, Decision(question_id, by, key=key))
        return await self.refresh()

    async def deny(
        self, question_id: str, reason: str = "", *, by: str = UNNAMED_PERSON, key: RequestKey | None = None
    ) -> AgentState:
        """Deny a pending tool call; the model gets the reason."""
        await self._update(AgentWorkflow.deny, Decision(question_id, by, reason, key=key))
        return await self.refresh()

    async def edit(
        self,
        question_id: str,
        arguments: Mapping[str, object],
        *,
        by: str = UNNAMED_PERSON,
        key: RequestKey | None = None,
    ) -> AgentState:
        """Approve a pending tool call with other arguments, which must fit its tool."""
        await self._update(AgentWorkflow.edit, Decision(question_id, by, arguments=arguments, key=key))
        return await self.refresh()

    async def set_metadata(self, entries: Mapping[str, object], *, by: str | None = None) -> AgentState:
        """Merge entries into the metadata of the session, between its runs; no worker is needed.

        Args:
            entries: The entries; None removes one.
            by: The person or program that sets them, for the record. Default: unknown.
        """
        await self.store.set_metadata(self.agent_id, entries, by=by)
        return await self.refresh()

    async def request_stop(self, reason: str) -> None:
        """Stop the session's run or its pause, if there is one.

        If Temporal is unavailable, the stop request is recorded in the store, and a worker passes it on.
        """
        if not isinstance(reason, str):
            raise ConfigurationError(f"invalid reason {reason!r}: the reason to stop must be text")
        away = None
        try:
            if await signal(self.client, self.handle.id, "stop", reason) or await self._stop_orphan(reason):
                return
        except StoreUnavailableError as error:
            away = error
        if not await self.store.request_stop(self.agent_id, reason) and away is not None:
            raise away  # A request may be queued that no worker has begun.

    async def _stop_orphan(self, reason: str) -> bool:
        """Stop a run whose workflow was terminated, with another workflow, which may take its lease.

        Return False if no such run is left.
        """
        summary = (await self.store.read(self.agent_id, limit=0)).summary
        if summary.runner != engine_of(self.client):
            return False
        name = workflow_id(self._task_queue, self.agent_id)
        await record_open(self.client, self.store, self.agent_id, name)
        with reaching(self.client):
            await self.client.start_workflow(
                AgentWorkflow.run,
                self._start,
                id=name,
                task_queue=self._task_queue,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                start_signal="stop",
                start_signal_args=[reason],
            )
        return True

    async def _update(self, update: Any, given: Any) -> Any:
        """Send an update to the workflow of the session, which starts if it does not run."""
        name = workflow_id(self._task_queue, self.agent_id)
        await record_open(self.client, self.store, self.agent_id, name)
        for attempt in range(MOST_ATTEMPTS):
            start = WithStartWorkflowOperation(
                AgentWorkflow.run,
                self._start,
                id=name,
                task_queue=self._task_queue,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            )
            with reaching(self.client):
                try:
                    return await self.client.execute_update_with_start_workflow(
                        update, given, start_workflow_operation=start
                    )
                except WorkflowUpdateFailedError as error:
                    await self._raise(error.cause, given.key)
                except WorkflowUpdateRPCTimeoutOrCancelledError:
                    await _look_at(start)
                    task = asyncio.current_task()
                    if task is not None and task.cancelling():
                        raise asyncio.CancelledError from None  # Temporal's client hides the cancellation.
                    raise
                except RPCError as error:
                    await _look_at(start)
                    if error.status is not RPCStatusCode.NOT_FOUND or attempt == MOST_ATTEMPTS - 1:
                        raise
                await self._raise_failure()  # It ended before it took the update; the next one takes it.
        raise AssertionError

    async def _raise_failure(self) -> None:
        """Raise the error of the workflow, if it has failed."""
        found = await self.handle.describe()
        if found.status is WorkflowExecutionStatus.FAILED:
            try:
                await self.handle.result()
            except WorkflowFailureError as error:
                await self._raise(_root(error))

    async def _raise(self, error: BaseException, key: RequestKey | None = None) -> NoReturn:
        """Raise the error that a local session would have raised, or that of the workflow."""
        kind = getattr(errors, error.type or "", None) if isinstance(error, ApplicationError) else None
        if kind is SessionNotFoundError:
            await self.store.read(self.agent_id, limit=0)  # It raises this error if the session was deleted.
            raise StoreError(
                f"the workers of task queue {self._task_queue!r} use another store, which has no session "
                f"{self.agent_id!r}: give them and their clients the same store (--store, $WHYLOOP_STORE)"
            ) from None
        if not (isinstance(kind, type) and issubclass(kind, WhyloopError)):
            raise self._failure(error) from error
        assert isinstance(error, ApplicationError)
        used = await self.store.key(self.agent_id, key.key) if key and kind is KeyUsedError else None
        if key is not None and used is not None:
            raise KeyUsedError(self.agent_id, key.key, *used) from None
        known = kind.__new__(kind)
        Exception.__init__(known, error.message)
        if isinstance(known, ApprovalError):
            known.pending = self.state.pending_calls
        elif isinstance(known, SessionRunningError):
            known.agent_id, known.owner, known.seconds = self.agent_id, "temporal", SECONDS_UNTIL_AGAIN
        raise known from None

    def _failure(self, error: BaseException) -> WhyloopError:
        """Return the error of a call that awaited the workflow."""
        if isinstance(error, RPCError) and error.status is RPCStatusCode.NOT_FOUND:
            return StoreError(
                f"Temporal has no workflow of session {self.agent_id!r} any more: resume the session, which "
                "starts another one"
            )
        return connection_error(self.client, error) or WhyloopError(
            f"the workflow of session {self.agent_id!r} failed: {_root(error)}"
        )

    async def wait(self, accepted: Accepted) -> AgentState:
        """Return the state when an execution has ended or paused.

        Raise the error of a failed workflow. After a `StoreUnavailableError` the execution may continue: wait
        for it again.

        Args:
            accepted: The execution, as `begin` returned it.
        """
        following = asyncio.create_task(self._follow(accepted))
        ending = asyncio.create_task(self.handle.result())
        try:
            await asyncio.wait([following, ending], return_when=asyncio.FIRST_COMPLETED)
            if ending.done() and (error := ending.exception()) is not None and not following.done():
                state = await self.refresh()  # The end may be in the store, and its workflow gone.
                if state.execution.id != accepted.execution_id and (past := await self._past(accepted)):
                    return past
                if not self._has_settled(accepted) or self._reading.summary.runner is not None:
                    raise self._failure(error) from error
            return await following
        finally:
            for task in (following, ending):
                task.cancel()
            await asyncio.gather(following, ending, return_exceptions=True)

    async def _follow(self, accepted: Accepted) -> AgentState:
        """Read the session in the store until the execution has ended or paused."""
        state, identity = await self.refresh(), self._reading.summary.identity
        with live(self.store).watching(self.agent_id, identity, self._reading.version) as watcher:
            while True:
                if state.execution.id != accepted.execution_id and (past := await self._past(accepted)):
                    return past
                if not self._has_settled(accepted):
                    await watcher.changed.wait()
                elif self._reading.summary.runner is None:
                    return state
                else:
                    await asyncio.sleep(GIVING_BACK_SECONDS)
                watcher.changed.clear()
                state = await self.refresh()
                watcher.version = self._reading.version

    async def _past(self, accepted: Accepted) -> AgentState | None:
        """Return the last state of an execution that another followed, or None."""
        found = None
        first = Reading(self._reading.summary, AgentState(agent_id=self.agent_id), 0)
        async with aclosing(entries_after(self.store, first)) as entries:
            async for _, before, after in entries:
                if before.version >= accepted.version and after.execution.id == accepted.execution_id:
                    found = after
                elif found is not None:
                    return found
        return None

    def _has_settled(self, accepted: Accepted) -> bool:
        """Return whether an execution has ended or paused, as the store was last read."""
        state, has_begun = self.state, self._reading.version > accepted.version
        is_running = state.status in (AgentStatus.PENDING, AgentStatus.IN_PROGRESS)
        return has_begun and not is_running and state.execution.id == accepted.execution_id


async def _look_at(start: WithStartWorkflowOperation[Any, Any]) -> None:
    """Retrieve the second copy of an error, which would otherwise be logged."""
    await asyncio.gather(start.workflow_handle(), return_exceptions=True)


def _root(error: BaseException) -> BaseException:
    """Return the error that caused the others: Temporal wraps what an activity raised."""
    while isinstance(error, WorkflowFailureError | FailureError) and error.cause is not None:
        error = error.cause
    return error
