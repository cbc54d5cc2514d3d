"""The watch over the store: it wakes the workflows of sessions that were changed there."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from datetime import timedelta

from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode

from whyloop.errors import WhyloopError
from whyloop.logger import Logger
from whyloop.stores.records import SessionFilter, Summary
from whyloop.stores.store import Store
from whyloop.temporal.payloads import Start, workflow_id
from whyloop.temporal.session import TASK_QUEUE
from whyloop.temporal.workflow import AgentWorkflow
from whyloop.values.continuation import StopReason
from whyloop.values.state import AgentStatus

AT_ONCE = 100
EVERY_SECONDS = 1.0
SECONDS_UNTIL_AGAIN = 30.0
LONGEST_BREAK = timedelta(days=7)
"""The first look finds sessions that were stopped while no worker ran, for so long."""

_log = Logger()


async def wake(
    client: Client, summary: Summary, *, task_queue: str = TASK_QUEUE, searchable: bool = True
) -> None:
    """Wake the workflow of a session, or start one, to continue if it can.

    Args:
        client: The client, with a `WhyloopPlugin`.
        summary: The session as it is listed.
        task_queue: The task queue of the workers. Default: "whyloop".
        searchable: True to keep status, stop reason and rule in search attributes. Default: True.
    """
    await client.start_workflow(
        AgentWorkflow.run,
        Start(summary.agent_id, summary.agent, searchable),
        id=workflow_id(task_queue, summary.agent_id),
        task_queue=task_queue,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        start_signal="wake",
    )


class TemporalRecovery:
    """Wake the workflows of sessions that were changed in the store; use it with `async with`.

    These are sessions without a runner: paused ones whose questions were all decided through the inspector,
    the API or the command line, those in progress that no workflow runs, and those that were stopped during
    a pause, whose workflows end. Every worker may have one.

    Args:
        client: The client, with a `WhyloopPlugin`.
        store: The store.
        agents: The names of the agents whose sessions are woken.
        task_queue: The task queue of the workers. Default: "whyloop".
        searchable: True to keep status, stop reason and rule in search attributes. Default: True.
        every_seconds: The seconds between two looks at the store.
    """

    def __init__(
        self,
        client: Client,
        store: Store,
        agents: Collection[str],
        *,
        task_queue: str = TASK_QUEUE,
        searchable: bool = True,
        every_seconds: float = EVERY_SECONDS,
    ) -> None:
        self._client = client
        self._store = store
        self._agents = frozenset(agents)
        self._task_queue = task_queue
        self._searchable = searchable
        self._every_seconds = every_seconds
        self._looked_at = store.now() - LONGEST_BREAK
        self._woken: dict[str, tuple[int, float]] = {}
        self._looking: asyncio.Task[None] | None = None

    async def look(self) -> list[str]:
        """Wake what could continue now or was stopped, and return the ids of the sessions.

        A session that did not change since it was woken is left alone for a while.
        """
        now = asyncio.get_running_loop().time()
        self._woken = {agent_id: known for agent_id, known in self._woken.items() if known[1] > now}
        found = []
        for summary in await self._store.unattended(limit=AT_ONCE + len(self._woken)):
            if self._is_new(summary, now):
                await wake(self._client, summary, task_queue=self._task_queue, searchable=self._searchable)
                found.append(summary.agent_id)
        looked_at = self._store.now()
        stopped = await self._stopped()
        found += [each.agent_id for each in stopped if self._is_new(each, now) and await self._end(each)]
        self._looked_at = looked_at  # After an error, the next look finds the same sessions again.
        return found

    def _is_new(self, summary: Summary, now: float) -> bool:
        """Return whether a session of the agents has changed since it was woken."""
        known = self._woken.get(summary.agent_id)
        if known is not None and known[0] == summary.version:
            return False
        self._woken[summary.agent_id] = summary.version, now + SECONDS_UNTIL_AGAIN
        return summary.agent in self._agents

    async def _stopped(self) -> list[Summary]:
        """Return the sessions that were stopped since the last look, or just before."""
        wanted = SessionFilter(
            status=AgentStatus.STOPPED,
            stop_reason=StopReason.USER_REQUESTED,
            updated_after=self._looked_at - timedelta(seconds=SECONDS_UNTIL_AGAIN),  # Clocks differ.
        )
        found: list[Summary] = []
        cursor: str | None = None
        while True:
            page = await self._store.find(wanted, limit=AT_ONCE, after=cursor)
            found += page.sessions
            cursor = page.next
            if cursor is None:
                return found

    async def _end(self, summary: Summary) -> bool:
        """Let the workflow of a stopped session end; return False if it has ended."""
        handle = self._client.get_workflow_handle(workflow_id(self._task_queue, summary.agent_id))
        try:
            await handle.signal("wake")
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return False
            del self._woken[summary.agent_id]
            raise
        return True

    async def __aenter__(self) -> TemporalRecovery:
        self._looking = asyncio.create_task(self._look_again(), name="whyloop recovery")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def _look_again(self) -> None:
        while True:
            try:
                await self.look()
            except Exception as error:
                is_expected = isinstance(error, WhyloopError | RPCError)
                trace = None if is_expected else error
                _log.warning("sessions cannot be woken: %s", error, exc_info=trace)
            await asyncio.sleep(self._every_seconds)
