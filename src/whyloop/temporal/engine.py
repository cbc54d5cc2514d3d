"""The engine of a server whose sessions Temporal runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any

from temporalio.client import Client

from whyloop.errors import NoWorkerError, SessionRunningError, StoreUnavailableError
from whyloop.logger import Logger
from whyloop.stores.live import live
from whyloop.stores.records import RequestKey, Summary
from whyloop.stores.store import Store
from whyloop.temporal.payloads import Accepted
from whyloop.temporal.recovery import wake
from whyloop.temporal.session import TASK_QUEUE, TemporalSession
from whyloop.values.continuation import Budget
from whyloop.values.state import AgentStatus

SECONDS_FOR_A_WORKER = 30.0

_log = Logger()


class TemporalEngine:
    """An engine with which Temporal's workers run the sessions of an `AgentServer`.

    Pass it as `AgentServer(store, engine=…)`. Existing sessions keep the agent that they have.

    Args:
        client: The client, with a `WhyloopPlugin`.
        store: The store of the sessions.
        agent: The name of the agent of new sessions, which the workers know.
        task_queue: The task queue of the workers. Default: "whyloop".
        searchable: True to keep status, stop reason and rule in search attributes. Default: True.
    """

    def __init__(
        self,
        client: Client,
        store: Store,
        agent: str,
        *,
        task_queue: str = TASK_QUEUE,
        searchable: bool = True,
    ) -> None:
        self.agent = agent
        """The name of the agent of new sessions."""
        self._client = client
        self._store = store
        self._task_queue = task_queue
        self._searchable = searchable

    async def send(self, summary: Summary, text: str, key: RequestKey | None = None) -> int:
        """Ask a question in a session; return the version that recorded it.

        Args:
            summary: The session as it is listed.
            text: The question.
        """
        session = await self._session(summary)
        return await self._begin(session, session.begin(text, key=key), key)

    async def resume(
        self, summary: Summary, grant: Budget | None = None, key: RequestKey | None = None
    ) -> int:
        """Continue a session; return the version that recorded it.

        Args:
            summary: The session as it is listed.
        """
        session = await self._session(summary)
        return await self._begin(session, session.begin_resume(grant=grant, key=key), key)

    async def edit(
        self,
        summary: Summary,
        question_id: str,
        arguments: Mapping[str, Any],
        by: str,
        key: RequestKey | None = None,
    ) -> None:
        """Approve a pending tool call with other arguments, which a worker checks.

        Args:
            summary: The session as it is listed.
            question_id: The id of the question.
            arguments: The other arguments.
            by: The name of the person.
        """
        session = await self._session(summary)
        async with self._in_time("The same decision can be repeated"):
            await session.edit(question_id, arguments, by=by, key=key)

    async def wake(self, summary: Summary) -> None:
        """Wake the workflow of a session that was changed in the store.

        If Temporal is unavailable, this is only logged: the change is recorded, and `TemporalRecovery` wakes
        the workflow later.

        Args:
            summary: The session as it is listed.
        """
        try:
            await wake(self._client, summary, task_queue=self._task_queue, searchable=self._searchable)
        except StoreUnavailableError as error:
            _log.warning("session %s is woken later: %s", summary.agent_id, error)

    async def _session(self, summary: Summary) -> TemporalSession:
        return await TemporalSession.open(
            self._client,
            self._store,
            summary.agent or self.agent,
            summary.agent_id,
            task_queue=self._task_queue,
            searchable=self._searchable,
        )

    async def _begin(
        self, session: TemporalSession, beginning: Coroutine[Any, Any, Accepted], key: RequestKey | None
    ) -> int:
        """Return the first version of an execution, as soon as it is in the store."""
        async with self._in_time(_advice(key)):
            try:
                accepted = await beginning
            except SessionRunningError:
                if key is not None and session.state.status is not AgentStatus.IN_PROGRESS:
                    # The execution may belong to the same request, which is known once it is recorded.
                    await self._recorded(session, session.version)
                raise
            return await self._recorded(session, accepted.version)

    async def _recorded(self, session: TemporalSession, before: int) -> int:
        """Return the version after another, as soon as it is in the store."""
        with live(self._store).watching(session.agent_id, session.state.identity, before) as watcher:
            while True:
                watcher.changed.clear()
                if (await self._store.read(session.agent_id, limit=0)).summary.version > before:
                    return before + 1
                await watcher.changed.wait()

    @asynccontextmanager
    async def _in_time(self, advice: str) -> AsyncIterator[None]:
        """Raise an error if no worker has begun in time."""
        try:
            async with asyncio.timeout(SECONDS_FOR_A_WORKER):
                yield
        except TimeoutError:
            raise NoWorkerError(
                f"no worker of task queue {self._task_queue!r} began within {SECONDS_FOR_A_WORKER:g} s: "
                "start one with `whyloop worker --temporal`. The request is queued, and runs when a worker "
                f"starts. {advice}"
            ) from None


def _advice(key: RequestKey | None) -> str:
    """Return whether a request that begins a run can be repeated while it is queued."""
    if key is not None:
        return "It can be repeated under the same Idempotency-Key, and runs once"
    return "Repeated, it may run twice: look at the session first, or use an Idempotency-Key for each request"
