"""Sessions on Temporal, from the command line: the connection, and a worker."""

from __future__ import annotations

import argparse
import asyncio
import shlex
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from datetime import timedelta
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

from whyloop.broadcasting.channel import Cursor
from whyloop.broadcasting.feed import EventFeed, cursor_of
from whyloop.cli.command import TASK_QUEUE
from whyloop.cli.formats import PlainValue, program
from whyloop.cli.narration import FollowedEvents
from whyloop.cli.services import freeze_startup, on_signals
from whyloop.cli.terminal import CommandError, write_error
from whyloop.errors import (
    ConfigurationError,
    NotResumableError,
    SessionRunningError,
    StoreUnavailableError,
    WhyloopError,
    how_to_install,
)
from whyloop.events import AgentEvent
from whyloop.loop.agent import Agent
from whyloop.sessions.session import MakeDeps
from whyloop.stores.records import Summary
from whyloop.stores.store import Store
from whyloop.values.continuation import Budget
from whyloop.values.state import AgentState, AgentStatus
from whyloop.values.text import shortened
from whyloop.wire.envelope import BroadcastConfig

if TYPE_CHECKING:
    from temporalio.client import Client
    from temporalio.runtime import Runtime
    from temporalio.service import RPCError
    from temporalio.worker import WorkerDeploymentConfig

    from whyloop.temporal import Accepted, TemporalEngine, TemporalSession, WhyloopPlugin

AT_ONCE = 100
SECONDS_WITHOUT_WORKER = 5.0
SECONDS_TO_END = 5.0  # For a workflow that refused a request.
SECONDS_UNTIL_AGAIN = 1.0
# Temporal delivers a cancellation with the answer to a sign of life, so this bounds how late it arrives.
SECONDS_BETWEEN_SIGNS = 1.0


async def connect(args: argparse.Namespace, plugin: WhyloopPlugin, runtime: Runtime | None = None) -> Client:
    """Return a client of the Temporal server and the namespace that the options name."""
    from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
    from temporalio.client import Client
    from temporalio.envconfig import ClientConfig
    from temporalio.service import RPCError, RPCStatusCode

    from whyloop.temporal.connection import connection_problem

    try:
        config: dict[str, Any] = dict(ClientConfig.load_client_connect_config())
    except (RuntimeError, ValueError) as error:
        raise ConfigurationError(f"cannot read the settings of Temporal: {error}") from None
    config["target_host"] = args.temporal
    if args.namespace is not None:
        config["namespace"] = args.namespace
    try:
        client = await Client.connect(**config, plugins=[plugin], runtime=runtime)
        await client.service_client.check_health()
    except (RuntimeError, ValueError, RPCError) as error:
        raise CommandError(
            f"Temporal could not be reached at {shortened(args.temporal)}: {connection_problem(str(error))}. "
            "Start it, or correct --temporal"
        ) from None
    try:
        await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=client.namespace))
    except RPCError as error:
        if error.status is not RPCStatusCode.PERMISSION_DENIED:  # It may only run workflows.
            raise _unusable_namespace(client, error) from None
    return client


def _unusable_namespace(client: Client, error: RPCError) -> CommandError:
    return CommandError(f"namespace {client.namespace!r} cannot be used: {shortened(error.message, 200)}")


def refuse_missing_sdk() -> None:
    """Refuse `--temporal` without Temporal's SDK."""
    if find_spec("temporalio") is None:
        raise ConfigurationError(f"--temporal needs Temporal's SDK: {how_to_install('temporal')}")


# Workers


async def work_for_temporal(
    store: Store, args: argparse.Namespace, agents: Mapping[str, Agent[Any, Any]], make_deps: MakeDeps | None
) -> int:
    """Run sessions of Temporal until a signal."""
    refuse_missing_sdk()
    from temporalio.worker import Worker

    from whyloop.temporal import TemporalRecovery, WhyloopPlugin, workflow_id

    if not args.drain >= 0:
        raise ConfigurationError(f"invalid --drain {args.drain}: use a number of seconds, 0 or more")
    queue = args.task_queue or TASK_QUEUE
    workflow_id(queue, "")  # Raises for an invalid name.
    deployment = _deployment(args.deployment)
    plugin = WhyloopPlugin(store, agents, deps=make_deps, task_queues=_tool_queues(args, agents))
    client = await connect(args, plugin)
    await _define_search_attributes(client)
    stopping = asyncio.Event()
    on_signals(stopping)
    freeze_startup()
    worker = Worker(
        client,
        task_queue=queue,
        max_concurrent_activities=args.at_once or AT_ONCE,
        graceful_shutdown_timeout=timedelta(seconds=args.drain),
        max_heartbeat_throttle_interval=timedelta(seconds=SECONDS_BETWEEN_SIGNS),
        deployment_config=deployment,
    )
    async with worker:
        async with AsyncExitStack() as stack:
            if not args.tools_only:
                recovery = TemporalRecovery(client, store, agents, task_queue=queue)
                await stack.enter_async_context(recovery)
            names = ", ".join(shortened(name, 64) for name in agents)
            write_error(
                f"Running sessions of {names} from Temporal at {args.temporal}, "
                f"namespace {client.namespace}, task queue {queue}."
            )
            await stopping.wait()
        write_error(
            f"Stopping: calls have {args.drain:g} s to end, and the sessions continue at other workers."
        )
    return 0


def _deployment(given: str | None) -> WorkerDeploymentConfig | None:
    """Return the deployment version of a worker from the options."""
    if given is None:
        return None
    from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
    from temporalio.worker import WorkerDeploymentConfig

    name, _, build = given.partition(":")
    if not name or not build:
        raise ConfigurationError(f"invalid --deployment {given!r}: use NAME:BUILD, such as shop:2026-11-16")
    return WorkerDeploymentConfig(
        version=WorkerDeploymentVersion(deployment_name=name, build_id=build),
        use_worker_versioning=True,
        default_versioning_behavior=VersioningBehavior.PINNED,
    )


async def _define_search_attributes(client: Client) -> None:
    """Define the search attributes of sessions, unless they are defined."""
    from temporalio.service import RPCError

    from whyloop.temporal import add_search_attributes

    try:
        await add_search_attributes(client)
    except RPCError as error:
        raise _unusable_namespace(client, error) from None


def _tool_queues(args: argparse.Namespace, agents: Mapping[str, Agent[Any, Any]]) -> dict[str, str]:
    """Return the task queues of tools that other workers run, by name."""
    known = {tool.name for agent in agents.values() for tool in agent.tools}
    found = {}
    for entry in args.tool_queue:
        name, _, queue = entry.partition("=")
        if not name or not queue:
            raise ConfigurationError(f"invalid --tool-queue {entry!r}: use TOOL=QUEUE")
        if name not in known and not any(agent._setup.toolsets for agent in agents.values()):
            raise ConfigurationError(
                f"invalid --tool-queue {entry!r}: the tools of the agents are {', '.join(sorted(known))}"
            )
        found[name] = queue
    return found


# Clients


async def connect_client(store: Store, args: argparse.Namespace) -> Client:
    """Return a client of the sessions of a store, which runs none itself."""
    refuse_missing_sdk()
    from whyloop.temporal import WhyloopPlugin

    return await connect(args, WhyloopPlugin(store), _quiet_runtime())


@cache
def _quiet_runtime() -> Runtime:
    """Return the core of Temporal's SDK without its warnings about connections."""
    from temporalio.runtime import LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter

    only_errors = TelemetryFilter(core_level="ERROR", other_level="ERROR")
    return Runtime(telemetry=TelemetryConfig(logging=LoggingConfig(filter=only_errors)))


async def open_engine(store: Store, agent: str, args: argparse.Namespace) -> TemporalEngine:
    """Return the engine with which a server lets the workers run its sessions."""
    client = await connect_client(store, args)
    from whyloop.temporal import TemporalEngine

    return TemporalEngine(client, store, agent, task_queue=args.task_queue or TASK_QUEUE)


class View(Protocol):
    """A view of a run: it receives the events, and shows notes below them."""

    def __call__(self, event: AgentEvent, /) -> object: ...

    def note(self, text: str, /) -> object:
        """Show something that is not part of the run."""


class FleetSession:
    """A session that the workers of Temporal run, as `run` and `chat` use one; the store shows what happens.

    Args:
        session: The session as a client of Temporal sees it.
        address: The address of Temporal, for the person.
    """

    def __init__(self, session: TemporalSession, address: str) -> None:
        self._session = session
        self._address = address
        self._views: list[Any] = []
        self._shown: _Shown | None = None
        self._has_begun = False
        self._stopping: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        store: Store,
        agent: str,
        args: argparse.Namespace,
        agent_id: str | None,
        metadata: Mapping[str, PlainValue] | None,
    ) -> FleetSession:
        """Return a session of the store, or a new one if no id is given."""
        client = await connect_client(store, args)
        from whyloop.temporal import TemporalSession

        queue = args.task_queue or TASK_QUEUE
        session = await TemporalSession.open(
            client, store, agent, agent_id, metadata=metadata, task_queue=queue
        )
        return cls(session, args.temporal)

    @property
    def agent_id(self) -> str:
        """The id of the session."""
        return self._session.agent_id

    @property
    def state(self) -> AgentState:
        """The session as this process last read it."""
        return self._session.state

    @property
    def summary(self) -> Summary:
        """The summary of the session as this process last read it."""
        return self._session.summary

    async def refresh(self) -> AgentState:
        """Return the session as it is in the store now."""
        return await self._session.refresh()

    async def send(self, query: str, *, deps: object = None, on_event: View | None = None) -> AgentState:
        """Ask the next question, and show the run until its end or a pause."""
        return await self._show(self._finish(self._session.begin(query)), on_event)

    async def resume(
        self, *, grant: Budget | None = None, deps: object = None, on_event: View | None = None
    ) -> AgentState:
        """Continue the session, and show the run until its end or a pause."""
        return await self._show(self._resume(grant), on_event)

    async def _resume(self, grant: Budget | None) -> AgentState:
        session = self._session
        state, version = session.state, session.version
        try:
            return await self._finish(session.begin_resume(grant=grant))
        except (SessionRunningError, NotResumableError):
            if grant is not None or state.status is not AgentStatus.PAUSED or state.pending_calls:
                raise
            # A worker looks for sessions whose questions are all decided, and was faster.
            from whyloop.temporal import Accepted

            self._has_begun = True
            return await self._wait(Accepted(state.execution.id, version))

    async def _finish(self, beginning: Coroutine[Any, Any, Accepted]) -> AgentState:
        self._has_begun = False
        accepted = await beginning
        self._has_begun = True
        return await self._wait(accepted)

    async def _wait(self, accepted: Accepted) -> AgentState:
        """Return the state at the end or a pause, even if Temporal is down for a while."""
        is_noted = False
        while True:
            try:
                return await self._session.wait(accepted)
            except StoreUnavailableError:
                if self._shown is None or self._shown._has_ended:
                    raise  # The store is down, too.
                if not is_noted:
                    self._note(f"no answer: the run continues when Temporal at {self._address} is back")
                is_noted = True
                await asyncio.sleep(SECONDS_UNTIL_AGAIN)

    async def withdraw(self) -> bool:
        """Delete the session if its request was refused; nothing is recorded then."""
        from temporalio.client import WorkflowFailureError
        from temporalio.service import RPCError

        from whyloop.temporal.connection import record_open

        session, store = self._session, self._session.store
        if self._has_begun:
            return False
        try:
            with suppress(WorkflowFailureError):
                await asyncio.wait_for(session.handle.result(), SECONDS_TO_END)
            opened = await record_open(session.client, store, self.agent_id, session.handle.id)
            await store.forget_workflow(self.agent_id, opened.token)
            await store.delete(self.agent_id, expected_version=session.version)
        except (TimeoutError, RPCError, WhyloopError):
            return False
        return True

    # What runs it

    def subscribe(self, view: Any) -> None:
        """Send the events of the runs to a view."""
        self._views.append(view)

    def request_stop(self, reason: str) -> bool:
        """Stop the run in any process; return False if no worker has begun it."""
        if not self._has_begun:
            self._note(f"no worker has begun: {self._how_to_drop()}")
            return False
        self._stopping = asyncio.ensure_future(self._stop(reason))
        return True

    async def _stop(self, reason: str) -> None:
        try:
            await self._session.request_stop(reason)
        except WhyloopError as error:
            self._note(f"the stop request failed: {error}")

    def _note(self, text: str) -> None:
        if self._shown is not None:
            self._shown.note(f"  {text}")

    def _how_to_drop(self) -> str:
        client, name = self._session.client, self._session.handle.id
        command = ["temporal", "workflow", "terminate", "--workflow-id", name, "--address", self._address]
        command += ["--namespace", client.namespace]
        return f"the request is queued, and runs when a worker starts. To drop it: {shlex.join(command)}"

    async def _show(self, work: Coroutine[Any, Any, AgentState], view: View | None) -> AgentState:
        """Pass the events of a run to the views as they arrive in the store."""
        views = [*self._views, *([view] if view else [])]
        start = cursor_of(self.state.execution)
        async with EventFeed(self._session.store, BroadcastConfig.debug(), keep_events=True) as feed:
            self._shown = shown = _Shown(views, start)
            followed = FollowedEvents(self._session.store, self.agent_id)
            showing = asyncio.create_task(shown.follow(feed, self.agent_id, followed))
            waiting = asyncio.get_running_loop().call_later(
                SECONDS_WITHOUT_WORKER, shown.note_waiting, self._address
            )
            try:
                state = await work
                await shown.reach(cursor_of(state.execution))
                if showing.done():  # With the error that ended it.
                    await showing
            finally:
                waiting.cancel()
                showing.cancel()
                await asyncio.gather(showing, return_exceptions=True)
        return state


class _Shown:
    """The position of the views in the events of a session."""

    def __init__(self, views: Sequence[View], start: Cursor | None) -> None:
        self._views = views
        self._cursor = self._start = start
        self._changed = asyncio.Event()
        self._has_begun = self._has_ended = False

    async def follow(self, feed: EventFeed, agent_id: str, followed: FollowedEvents) -> None:
        """Pass the events of a session to the views, until an error of the store."""
        try:
            async with aclosing(feed.follow(agent_id, self._start)) as batches:
                async for items in batches:
                    for item in items:
                        for event in await followed.of(item):
                            for view in self._views:
                                view(event)
                    self._cursor, self._has_begun = items[-1].cursor, True
                    self._changed.set()
        finally:
            self._has_ended = True
            self._changed.set()

    async def reach(self, end: Cursor | None) -> None:
        """Wait until the views have received the events up to a cursor, or no more arrive."""
        while not self._has_come_to(end) and not self._has_ended:
            self._changed.clear()
            await self._changed.wait()

    def _has_come_to(self, end: Cursor | None) -> bool:
        now = self._cursor
        return end is None or (
            now is not None and now.execution_id == end.execution_id and now.seq >= end.seq
        )

    def note_waiting(self, address: str) -> None:
        """Print what may be missing if nothing has happened yet."""
        if not self._has_begun:
            self.note(
                f"  no worker has begun yet: start one with {shlex.join(program())} worker "
                f"--temporal {address} --agents package.module:agents"
            )

    def note(self, text: str) -> None:
        """Show something that is not part of the run."""
        for view in self._views:
            view.note(text)
