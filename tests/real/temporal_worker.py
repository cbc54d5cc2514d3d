"""A worker in a process of its own, to be killed, and its agents, which decide by the conversation alone."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio.client import Client
from temporalio.worker import Worker

from whyloop import Agent, tool
from whyloop.stores import PostgresStore, SqliteStore, Store
from whyloop.temporal import WhyloopPlugin
from whyloop.tools.tool import ToolContext
from whyloop.values.messages import MessageRole, ToolCall
from whyloop.values.model import ModelRequest, ModelResponse

HEARTBEAT = 1.5
CALLS = 6


class Ledger:
    """What happened outside: a file to which tools of all processes append."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def note(self, what: str, key: str) -> None:
        with self.path.open("a") as file:
            file.write(f"{what} {key}\n")  # One write, which no other one can split.

    def counts(self) -> Counter[str]:
        return Counter(self.path.read_text().splitlines()) if self.path.exists() else Counter()


class Clerk:
    """A model that books and charges in turn, and then is done."""

    def __init__(self, calls: int) -> None:
        self._calls = calls

    async def respond(self, request: ModelRequest) -> AsyncIterator[ModelResponse]:
        done = sum(message.role is MessageRole.TOOL for message in request.messages)
        if done < self._calls:
            name = "charge" if done % 3 == 2 else "book"
            yield ModelResponse(tool_calls=(ToolCall(f"c{done}", name, {"number": done}),))
        else:
            yield ModelResponse(f"{done} calls")


class Caller:
    """A model that calls one tool, and then says its result."""

    def __init__(self, name: str) -> None:
        self._name = name

    async def respond(self, request: ModelRequest) -> AsyncIterator[ModelResponse]:
        last = request.messages[-1]
        if last.role is MessageRole.TOOL:
            yield ModelResponse(last.text)
        else:
            yield ModelResponse(tool_calls=(ToolCall("c", self._name, {}),))


def agents(ledger: Ledger, seconds: float = 0.05, calls: int = CALLS) -> list[Agent[Any, Any]]:
    """Return the agents of the tests."""

    async def work(key: str) -> None:
        ledger.note("start", key)
        await asyncio.sleep(seconds)
        ledger.note("end", key)

    @tool(idempotent=True)
    async def book(number: int, context: ToolContext) -> str:
        """Book a number."""
        await work(context.idempotency_key)
        return f"booked {number}"

    async def charge(number: int, context: ToolContext) -> str:
        """Charge a number."""
        await work(context.idempotency_key)
        return f"charged {number}"

    @tool(needs_approval=True)
    async def pay(context: ToolContext) -> str:
        """Pay."""
        ledger.note("pay", str(os.getpid()))
        return "paid"

    async def wait(context: ToolContext) -> str:
        """Wait for ever."""
        ledger.note("wait", context.idempotency_key)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ledger.note("cancelled", context.idempotency_key)
            raise
        return ""

    limits: dict[str, Any] = {"max_steps": None, "timeout": None}
    return [
        Agent(Clerk(calls), [book, charge], name="clerk", **limits),
        Agent(Caller("pay"), [pay], name="cashier", **limits),
        Agent(Caller("wait"), [wait], name="waiter", stop_grace=0, **limits),
    ]


def open_store(address: str) -> Store:
    """Return the store at an address, a file or a PostgreSQL server."""
    return PostgresStore(address) if address.startswith("postgres") else SqliteStore(address)


class WorkerProcess:
    """A worker in a process of its own."""

    def __init__(self, server: str, task_queue: str, store: str, ledger: Path, *options: str) -> None:
        command = [sys.executable, "-m", "tests.real.temporal_worker", server, task_queue, store, str(ledger)]
        self._process = subprocess.Popen([*command, *options])

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """End it at once, without any chance to clean up."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it after the work that it has begun."""
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        if self._process.poll() is None:
            self._process.send_signal(how)
        self._process.wait(60)


async def _connected(server: str, plugin: WhyloopPlugin) -> Client:
    """Return a client, also if the server is just being restarted."""
    while True:
        try:
            return await Client.connect(server, plugins=[plugin])
        except RuntimeError:  # It has no class of its own.
            await asyncio.sleep(0.2)


async def main(
    server: str,
    task_queue: str,
    store: str,
    ledger: str,
    seconds: str = "0.05",
    calls: str = str(CALLS),
    heartbeat: str = str(HEARTBEAT),
) -> None:
    """Run a worker until the process is asked to end."""
    made = agents(Ledger(Path(ledger)), float(seconds), int(calls))
    async with open_store(store) as opened:
        plugin = WhyloopPlugin(opened, made, heartbeat=float(heartbeat))
        ending = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ending.set)
        worker = Worker(
            await _connected(server, plugin),
            task_queue=task_queue,
            max_heartbeat_throttle_interval=timedelta(seconds=float(heartbeat) / 4),
            sticky_queue_schedule_to_start_timeout=timedelta(seconds=2),
        )
        async with worker:
            await ending.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
