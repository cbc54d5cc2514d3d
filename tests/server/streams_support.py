"""A real uvicorn for the tests, and a session to follow."""

from __future__ import annotations

import asyncio
import inspect
import logging
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import uvicorn

from tests.broadcasting.support import until
from tests.server.recorded import Recorder, new_session
from tests.server.streams_clients import LONG_ENOUGH, Clients, clients
from whyloop import Agent
from whyloop.errors import SessionExistsError
from whyloop.server import AgentServer
from whyloop.stores import MemoryStore, Store
from whyloop.wire.envelope import BroadcastConfig


class _Uvicorn(uvicorn.Server):
    """Says when it takes connections. With `close_first` streams end before they are waited for."""

    def __init__(self, config: uvicorn.Config, close_first: AgentServer | None) -> None:
        super().__init__(config)
        self.is_up = threading.Event()
        self._close_first = close_first

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_up.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._close_first is not None:
            await self._close_first.close()
        await super().shutdown(sockets)


class Serving:
    """An app behind uvicorn, on an event loop in a thread of its own."""

    def __init__(
        self,
        app: Any,
        *,
        port: int = 0,
        send_buffer: int | None = None,
        seconds: int = 0,
        close_first: bool = False,
    ) -> None:
        self._listening = socket.create_server(("127.0.0.1", port))
        # Without it each answer waits for the client to acknowledge its head, which takes 40 ms.
        self._listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if send_buffer is not None:  # Those that it accepts have it from this one.
            self._listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        self.port: int = self._listening.getsockname()[1]
        config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=seconds)
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        self.uvicorn = _Uvicorn(config, app if close_first else None)
        self._thread = threading.Thread(target=self._run, name="uvicorn")

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._thread.start()
        assert await asyncio.to_thread(self.uvicorn.is_up.wait, LONG_ENOUGH)

    async def stop(self) -> None:
        """As at a SIGTERM."""
        self.uvicorn.should_exit = True
        await asyncio.to_thread(self._thread.join, LONG_ENOUGH)
        assert not self._thread.is_alive(), "it does not come to its end"

    async def do(self, work: Callable[[], Any]) -> Any:
        """What a function gives that is called on the event loop of the server."""

        async def done() -> Any:
            result = work()
            return await result if inspect.isawaitable(result) else result

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(done(), self._loop))

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for something that holds on the event loop of the server soon, or fail."""
        await self.do(lambda: until(condition))

    async def cut_connections(self) -> None:
        """Take away the line of everybody who is connected."""

        def cut() -> None:
            for connection in list(self.uvicorn.server_state.connections):
                connection.transport.abort()

        await self.do(cut)

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self.uvicorn.serve(sockets=[self._listening])


@asynccontextmanager
async def serving(app: Any, **options: Any) -> AsyncIterator[Serving]:
    server = Serving(app, **options)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


class Stage:
    """A server with one session, `a`, to which entries are appended by hand, and clients of it."""

    def __init__(self, agents: AgentServer, server: Serving, to: Clients) -> None:
        self.agents, self.server, self.to = agents, server, to
        self.url = server.address
        self.recorder = Recorder(agents.events.store)

    async def record(self, *kinds: str, execution: str = "e1") -> None:
        """Append what stands for envelopes of these kinds: see `Recorder`."""
        await self.server.do(lambda: self.recorder.record(*kinds, execution=execution))

    async def ask(self, text: str) -> None:
        """Have the agent of the server work on a question."""
        asked = f"{self.url}/sessions/a/messages"
        async with self.to.http.post(asked, json={"text": text}) as response:
            assert response.status == 202, await response.text()

    async def finished(self) -> None:
        """Wait until nothing runs."""
        await self.server.until(lambda: not self.agents._api.runs._running)

    def unsent(self) -> list[int]:
        """How many bytes wait for each of those who are connected, the most first."""
        connections = self.server.uvicorn.server_state.connections
        return sorted([each.transport.get_write_buffer_size() for each in connections], reverse=True)

    def remembered(self) -> int:
        """How many sessions are remembered for those who follow them."""
        return len(self.agents.events._channels)

    async def left(self) -> None:
        """Wait until nobody follows."""
        await self.server.until(lambda: not self.remembered() and not followed())


def followed() -> list[str]:
    """What runs on this event loop for the sake of those who follow."""
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name() == "whyloop feed"]


@asynccontextmanager
async def stage(
    store: Store | None = None,
    agent: Agent | None = None,
    *,
    config: BroadcastConfig | None = None,
    receive_buffer: int | None = None,
    linger: float = 0.0,
    **options: Any,
) -> AsyncIterator[Stage]:
    """A server over a store, which gets the session if it is not there yet."""
    store = store or MemoryStore()
    agents = AgentServer(store, agent, public=True, config=config)
    agents.events._linger_seconds = linger
    async with store, serving(agents, **options) as server, clients(receive_buffer) as to:
        with suppress(SessionExistsError):
            await server.do(lambda: new_session(store))
        yield Stage(agents, server, to)
