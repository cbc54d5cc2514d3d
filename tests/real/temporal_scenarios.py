"""Sessions whose workflow histories are kept: a later version must be able to continue them.

`python -m tests.real.temporal_scenarios` records the histories of this version, on a real Temporal server.
Those of a released version are never recorded again.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.real.temporal import Fleet, TemporalServer, fleet
from whyloop import Agent, AgentStatus, Backoff, ErrorPolicy, Toolset, tool
from whyloop.errors import RateLimitError
from whyloop.stores import SqliteStore
from whyloop.testing import ScriptedModel, call, calls
from whyloop.tools.tool import ToolContext, ToolDefinition

HISTORIES = Path(__file__).parent.parent / "temporal_histories"
VERSION = "0.1"
STEPS_OF_A_LONG_RUN = 12
SHORT_HISTORIES = {"limit.historyCount.suggestContinueAsNew": 40}
"""The configuration of a server on which a run continues in another workflow run every few steps."""


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(needs_approval=True)
def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


async def wait() -> str:
    """Wait for a long time."""
    await asyncio.Event().wait()
    return ""


class Writing:
    """A model that writes one word, and then nothing."""

    async def respond(self, request: Any) -> AsyncIterator[Any]:
        from whyloop.values.model import TextDelta

        yield TextDelta("Once ")
        await asyncio.Event().wait()


class Ledger(Toolset):
    """Tools whose calls wait until a worker has been replaced, and then are counted."""

    def __init__(self) -> None:
        self.begun, self.released = asyncio.Event(), False
        self.calls: list[str] = []
        self.lists = 0

    async def list(self) -> list[ToolDefinition]:
        self.lists += 1
        schema = {"type": "object", "properties": {}}
        return [
            ToolDefinition("count", "Count.", schema, idempotent=True),
            ToolDefinition("charge", "Charge.", schema),
        ]

    async def call(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> object:
        self.calls.append(context.idempotency_key)
        self.begun.set()
        if not self.released:
            await asyncio.Event().wait()
        return name


def agents() -> dict[str, Agent[Any, Any]]:
    """Return the agents of the scenarios, by name."""
    three = calls(call("add", {"a": 1, "b": 2}), call("add", {"a": 3, "b": 4}), call("nothing"))
    many = [call("add", {"a": n, "b": n}) for n in range(STEPS_OF_A_LONG_RUN - 1)]
    patient = {"error_policy": ErrorPolicy.retry_all(), "backoff": Backoff(base=0.01, jitter=0)}
    made = [
        Agent(ScriptedModel([call("add", {"a": 1, "b": 2}), three, "3"]), [add], name="calls"),
        Agent(
            ScriptedModel([calls(call("pay", {"amount": 5}), call("add", {"a": 1, "b": 1})), "Paid."]),
            [add, pay],
            name="approval",
        ),
        Agent(Writing(), name="stop"),
        Agent(ScriptedModel([call("wait")]), [wait], name="deadline", timeout=1, stop_grace=0),
        Agent(ScriptedModel([RateLimitError(), RateLimitError(), "done"]), name="retry", **patient),  # type: ignore[arg-type]
        Agent(ScriptedModel([call("wait", id="w"), "done"]), [wait], name="lost"),
        Agent(ScriptedModel([*many, "done"]), [add], name="continued", show_limits=True),
    ]
    return {agent.name: agent for agent in made}


async def _send(here: Fleet, name: str) -> None:
    await (await here.session(name, name)).send("Go")


async def _approve(here: Fleet, name: str) -> None:
    session = await here.session(name, name)
    state = await session.send("Pay 5")
    await session.edit(state.pending_calls[0].id, {"amount": 6}, by="Ann")
    await session.resume()


async def _stop(here: Fleet, name: str) -> None:
    session = await here.session(name, name)
    await session.begin("Write")
    while (await session.refresh()).status is not AgentStatus.IN_PROGRESS:
        await asyncio.sleep(0.02)
    await session.request_stop("enough")
    await session.handle.result()


async def _lose_worker(here: Fleet, name: str) -> None:
    """Replace the worker during a call of which it is unknown whether it ran, and deny to repeat it."""
    session = await here.session(name, name)
    await session.begin("Go")
    while (await session.refresh()).open_step is None:
        await asyncio.sleep(0.02)
    await here.replace_worker()
    while (state := await session.refresh()).status is not AgentStatus.PAUSED:
        await asyncio.sleep(0.02)
    await session.deny(state.pending_calls[0].id, "it has run")
    await session.resume()


SCENARIOS: dict[str, Callable[[Fleet, str], Awaitable[None]]] = {
    "calls": _send,
    "approval": _approve,
    "stop": _stop,
    "deadline": _send,
    "retry": _send,
    "lost": _lose_worker,
    "continued": _send,
}


async def record(name: str, server: TemporalServer, folder: Path) -> list[str]:
    """Play a scenario on a server, and return the histories of its workflow runs as JSON."""
    async with SqliteStore(folder / f"{name}.db") as store, fleet(server, store, [agents()[name]]) as here:
        await SCENARIOS[name](here, name)
        await here.replay(name)
        return [_anonymous(history.to_json_dict()) for history in await here.histories(name)]


def _anonymous(history: Any) -> str:
    """Return a history without the names of machines and the paths of files."""

    def cleaned(value: Any) -> Any:
        if isinstance(value, dict):
            hidden = {"identity": "worker", "stackTrace": ""}
            if value.get("kind") == "TASK_QUEUE_KIND_STICKY":
                hidden["name"] = "sticky"
            return {key: hidden[key] if key in hidden else cleaned(each) for key, each in value.items()}
        return [cleaned(each) for each in value] if isinstance(value, list) else value

    return json.dumps(cleaned(history), separators=(",", ":"), sort_keys=True) + "\n"


async def record_all() -> None:
    """Record the histories of this version."""
    folder = HISTORIES / VERSION
    folder.mkdir(parents=True, exist_ok=True)
    for recorded in folder.glob("*.json"):
        recorded.unlink()
    server = TemporalServer(SHORT_HISTORIES)
    server.start()
    try:
        with TemporaryDirectory() as data:
            for name in SCENARIOS:
                for number, text in enumerate(await record(name, server, Path(data))):
                    (folder / f"{name}-{number}.json").write_text(text)
                    print(f"{name}-{number}: {len(text):,} bytes", file=sys.stderr)
    finally:
        server.remove()


if __name__ == "__main__":
    asyncio.run(record_all())
