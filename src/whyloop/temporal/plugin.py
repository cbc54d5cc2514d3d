"""The plugin with which a Temporal client and its workers run sessions."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.common import VersioningBehavior
from temporalio.converter import (
    DataConverter,
    DefaultFailureConverterWithEncodedAttributes,
    ExternalStorage,
    PayloadCodec,
)
from temporalio.plugin import SimplePlugin
from temporalio.runtime import Runtime
from temporalio.service import ConnectConfig, RPCError, RPCStatusCode, ServiceClient
from temporalio.worker import ReplayerConfig, Worker, WorkerConfig, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from whyloop.errors import ConfigurationError
from whyloop.logger import Logger
from whyloop.loop.setup import Handler
from whyloop.sessions.session import MakeDeps, refuse_make_deps
from whyloop.stores.store import Store
from whyloop.temporal.activities import Activities, AnyAgent
from whyloop.temporal.claims import LARGEST_PAYLOAD, StoreDriver
from whyloop.temporal.connection import connection_error
from whyloop.temporal.display import SEARCH_ATTRIBUTES
from whyloop.temporal.fleet import REPLAYS, Fleet, fleets
from whyloop.temporal.payloads import StructConverter
from whyloop.temporal.workflow import AgentWorkflow
from whyloop.temporal.world import HEARTBEAT_SECONDS

PASSED_THROUGH = ("whyloop", "msgspec")

_log = Logger()


class WhyloopPlugin(SimplePlugin):
    """A plugin with which a Temporal client and its workers run sessions of agents.

    Pass it to `Client.connect(…, plugins=[plugin])`; a worker of that client has it too. A client that only
    starts and reads sessions needs no agents.

    Args:
        store: The store of the sessions: the same for every client and worker.
        agents: The agents of the workers, by name or as a list. Default: none.
        deps: A function from a session's summary to the deps for its run. Default: none.
        handlers: Functions that receive the events of the sessions, at the workers. Default: none.
        task_queues: The task queues of tools that other workers run, by name. Default: that of the workflow.
        codec: A codec that encrypts payloads, including those in the store. Default: none.
        heartbeat: The seconds without a heartbeat after which a worker counts as lost. Default: 10.
    """

    def __init__(
        self,
        store: Store,
        agents: Mapping[str, AnyAgent] | Iterable[AnyAgent] = (),
        *,
        deps: MakeDeps | None = None,
        handlers: Iterable[Handler] = (),
        task_queues: Mapping[str, str] | None = None,
        codec: PayloadCodec | None = None,
        heartbeat: float = HEARTBEAT_SECONDS,
    ) -> None:
        refuse_make_deps(deps)
        if isinstance(heartbeat, bool) or not isinstance(heartbeat, int | float) or not heartbeat > 0:
            raise ConfigurationError(f"invalid heartbeat {heartbeat!r}: use seconds, more than zero")
        self.store = store
        self.agents = _by_name(agents)
        self._codec = codec
        self._fleet = Fleet(self.agents, dict(task_queues or {}), heartbeat)
        activities = Activities(store, self.agents, deps=deps, handlers=handlers)
        super().__init__(
            "whyloop",
            data_converter=self._converter,
            activities=activities.all if self.agents else None,
            workflows=[AgentWorkflow] if self.agents else None,
            workflow_runner=_passing_whyloop,
            run_context=self._open_toolsets,
        )

    async def connect_service_client(
        self, config: ConnectConfig, next: Callable[[ConnectConfig], Awaitable[ServiceClient]]
    ) -> ServiceClient:
        """Connect a client, and let the process exit at any time.

        Args:
            config: The settings of the connection.
            next: The function that connects.
        """
        _never_free(config.runtime or Runtime.default())
        return await super().connect_service_client(config, next)

    def configure_worker(self, config: WorkerConfig) -> WorkerConfig:
        """Provide the workflows of this worker with the agents.

        With Worker Deployment Versioning, a session stays with the version that began its workflow, unless
        the configuration of the worker says otherwise.
        """
        if self.agents:
            namespace = config["client"].namespace
            fleets[namespace, config["task_queue"]] = self._fleet
        versions = config.get("deployment_config")
        if versions is not None and versions.default_versioning_behavior is VersioningBehavior.UNSPECIFIED:
            pinned = dataclasses.replace(versions, default_versioning_behavior=VersioningBehavior.PINNED)
            config["deployment_config"] = pinned
        return super().configure_worker(config)

    async def run_worker(self, worker: Worker, next: Callable[[Worker], Awaitable[None]]) -> None:
        """Run a worker; define the search attributes first, without which sessions could not begin.

        Args:
            worker: The worker.
            next: The function that runs it.
        """
        if self.agents:
            try:
                await add_search_attributes(worker.client)
            except (ConfigurationError, RPCError) as error:
                known = connection_error(worker.client, error) or error
                _log.warning("sessions wait if their search attributes are missing: %s", known)
        await super().run_worker(worker, next)

    def configure_replayer(self, config: ReplayerConfig) -> ReplayerConfig:
        """Provide workflows that are replayed from their histories with the agents."""
        fleets[REPLAYS] = self._fleet
        return super().configure_replayer(config)

    def _converter(self, given: DataConverter | None) -> DataConverter:
        given = given or DataConverter.default
        if self._codec is not None:
            errors = DefaultFailureConverterWithEncodedAttributes  # The texts of errors are encrypted too.
            given = dataclasses.replace(given, payload_codec=self._codec, failure_converter_class=errors)
        return dataclasses.replace(
            given,
            payload_converter_class=StructConverter,
            external_storage=ExternalStorage(
                [StoreDriver(self.store)], payload_size_threshold=LARGEST_PAYLOAD
            ),
        )

    @asynccontextmanager
    async def _open_toolsets(self) -> AsyncIterator[None]:
        """Keep the toolsets of the agents open while a worker runs."""
        async with AsyncExitStack() as stack:
            for agent in self.agents.values():
                await stack.enter_async_context(agent)
            yield


def _never_free(runtime: Runtime) -> None:
    """Keep the core of Temporal's SDK, also while the interpreter ends.

    Freeing it waits for its threads. One with the end of a call that was just cancelled waits for the
    interpreter: the process would never exit.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(runtime))


def _by_name(agents: Mapping[str, AnyAgent] | Iterable[AnyAgent]) -> dict[str, AnyAgent]:
    if isinstance(agents, Mapping):
        return dict(agents)
    found: dict[str, AnyAgent] = {}
    for agent in agents:
        if agent.name in found:
            raise ConfigurationError(f"two agents are named {agent.name!r}: rename one of them")
        found[agent.name] = agent
    return found


def _passing_whyloop(runner: WorkflowRunner | None) -> WorkflowRunner:
    """Return a runner whose sandbox passes through the modules of whyloop."""
    if not isinstance(runner, SandboxedWorkflowRunner):
        return runner or SandboxedWorkflowRunner()
    restrictions = runner.restrictions.with_passthrough_modules(*PASSED_THROUGH)
    return dataclasses.replace(runner, restrictions=restrictions)


async def add_search_attributes(client: Client) -> None:
    """Define the search attributes of sessions in a namespace, if missing.

    A `ConfigurationError` says what to do if the server does not allow it.

    Args:
        client: The client of the namespace.
    """
    listed = await client.operator_service.list_search_attributes(
        ListSearchAttributesRequest(namespace=client.namespace)
    )
    missing = [key.name for key in SEARCH_ATTRIBUTES if key.name not in listed.custom_attributes]
    if not missing:
        return
    kinds = dict.fromkeys(missing, IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD)
    try:
        await client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(namespace=client.namespace, search_attributes=kinds)
        )
    except RPCError as error:
        if error.status is RPCStatusCode.ALREADY_EXISTS:
            return
        commands = "; ".join(
            f"temporal operator search-attribute create --name {name} --type Keyword" for name in missing
        )
        raise ConfigurationError(
            f"the search attributes {', '.join(missing)} are not defined in namespace {client.namespace!r}, "
            f"and could not be defined ({error.message}): define them with `{commands}`"
        ) from None
