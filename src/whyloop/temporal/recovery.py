"""Recovery on Temporal: a watch over the store that wakes workflows and forgets closed ones."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine
from typing import Any

from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy

from whyloop.errors import ConfigurationError, StoreUnavailableError, WhyloopError
from whyloop.logger import Logger
from whyloop.stores.records import OpenWorkflow, Summary
from whyloop.stores.store import Store
from whyloop.temporal.connection import engine_of, is_open, reaching, signal
from whyloop.temporal.payloads import Start, workflow_id
from whyloop.temporal.session import TASK_QUEUE
from whyloop.temporal.workflow import AgentWorkflow

AT_ONCE = 100
EVERY_SECONDS = 1.0
SECONDS_UNTIL_AGAIN = 30.0
SECONDS_TO_START = 20.0
"""A client records a workflow before it starts it, so for this long it may not exist yet."""

_log = Logger()


async def wake(
    client: Client, summary: Summary, *, task_queue: str = TASK_QUEUE, searchable: bool = True
) -> None:
    """Wake the workflow of a session, or start one, so that the session continues.

    Args:
        client: The client, with a `WhyloopPlugin`.
        summary: The session as it is listed.
        task_queue: The task queue of the workers. Default: "whyloop".
        searchable: True to keep status, stop reason and rule in search attributes. Default: True.
    """
    with reaching(client):
        await client.start_workflow(
            AgentWorkflow.run,
            Start(summary.agent_id, summary.agent, searchable),
            id=workflow_id(task_queue, summary.agent_id),
            task_queue=task_queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            start_signal="wake",
        )


class TemporalRecovery:
    """A task that wakes the workflows of sessions changed in the store; use it with `async with`.

    These are sessions without a runner: paused ones whose questions were all decided through the inspector,
    the API or the command line, those in progress that no workflow runs, and those that were stopped during
    a pause, whose workflows end. Once the workflow of a session is closed, even by termination, the session
    can be deleted. Every worker may have one.

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
        if isinstance(agents, str):
            raise ConfigurationError(f"invalid agents {agents!r}: use a collection of names")
        self._client = client
        self._store = store
        self._agents = frozenset(agents)
        self._task_queue = task_queue
        self._searchable = searchable
        self._every_seconds = every_seconds
        self._woken: dict[str, tuple[int, float]] = {}
        self._ending: dict[str, int] = {}
        self._looking: asyncio.Task[None] | None = None

    async def look(self) -> list[str]:
        """Wake what could continue now or was stopped, and return the ids of the sessions.

        A session that has not changed since it was woken is left alone for a while, and so is one that
        Temporal refused to wake. The store forgets the workflows of other sessions that are closed.
        """
        now = asyncio.get_running_loop().time()
        self._woken = {agent_id: known for agent_id, known in self._woken.items() if known[1] > now}
        found = []
        limit = AT_ONCE + len(self._woken)
        for summary in await self._store.unattended(limit=limit, agents=self._agents):
            if self._is_new(summary.agent_id, summary.version, now):
                waking = self._wake(summary)
                found += [summary.agent_id] if await self._tried(summary.agent_id, waking) else []
        limit = AT_ONCE + len(self._woken)
        recorded = await self._store.open_workflows(engine_of(self._client), limit=limit)
        for each in recorded:
            if self._is_new(each.agent_id, -each.token, now):
                ending = self._end(each, now)
                found += [each.agent_id] if await self._tried(each.agent_id, ending) else []
        self._ending = {each.agent_id: each.token for each in recorded if self._is_ending(each)}
        return found

    def _is_new(self, agent_id: str, number: int, now: float) -> bool:
        """Return whether a session has changed since it was last looked at."""
        known = self._woken.get(agent_id)
        if known is not None and known[0] == number:
            return False
        self._woken[agent_id] = number, now + SECONDS_UNTIL_AGAIN
        return True

    async def _tried(self, agent_id: str, work: Coroutine[Any, Any, bool]) -> bool:
        """Return whether a session was woken; log an error, so that others still are.

        The next look finds it again if Temporal or the store did not answer, which is an error.
        """
        try:
            return await work
        except StoreUnavailableError:
            del self._woken[agent_id]
            raise
        except Exception as error:
            _warn(f"session {agent_id!r} cannot be woken", error)
            return False

    async def _wake(self, summary: Summary) -> bool:
        await wake(self._client, summary, task_queue=self._task_queue, searchable=self._searchable)
        return True

    async def _end(self, opened: OpenWorkflow, now: float) -> bool:
        """Wake the workflow of an ended session to end; forget it if it is closed.

        Return whether it was woken, which it is once: a workflow without a worker collects no more signals.
        """
        if await is_open(self._client, opened.workflow):
            if self._is_ending(opened):
                return False
            if await signal(self._client, opened.workflow, "wake"):
                self._ending[opened.agent_id] = opened.token
                return True
        if opened.seconds < SECONDS_TO_START:
            self._woken[opened.agent_id] = -opened.token, now + SECONDS_TO_START
        else:
            await self._store.forget_workflow(opened.agent_id, opened.token)
        return False

    def _is_ending(self, opened: OpenWorkflow) -> bool:
        """Return whether a workflow was woken to end."""
        return self._ending.get(opened.agent_id) == opened.token

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
                _warn("sessions cannot be woken", error)
            await asyncio.sleep(self._every_seconds)


def _warn(text: str, error: Exception) -> None:
    trace = None if isinstance(error, WhyloopError) else error
    _log.warning("%s: %s", text, error, exc_info=trace)
