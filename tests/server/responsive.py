"""A long session, all that a client asks of it, and how late the event loop is meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import NamedTuple, Self

from starlette.types import Message

from tests.server.support import Lab
from tests.support import RespondingModel, echo
from whyloop import Agent, FinishReason, ModelRequest, ModelResponse, Session, TextDelta, ToolCall, Usage
from whyloop.stores import Store
from whyloop.stores.reading import release

BEAT_SECONDS = 0.001
SHORT_SESSIONS = 200
LONGEST_SECONDS = 600.0  # An answer that takes longer never comes, however busy the machine is.


class Lag(NamedTuple):
    """How late each beat came, in seconds."""

    beats: list[float]

    @property
    def worst(self) -> float:
        return max(self.beats)

    @property
    def p99(self) -> float:
        return sorted(self.beats)[int(len(self.beats) * 0.99)]

    def __str__(self) -> str:
        return f"p99 {self.p99 * 1000:.1f} ms, max {self.worst * 1000:.1f} ms"


class Heartbeat:
    """Beats every millisecond; a beat is late for as long as the event loop does something else.

    With `only_own`, time that other processes took from this one does not count.
    """

    def __init__(self, *, only_own: bool) -> None:
        self._only_own = only_own
        self._late: list[float] = []

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._beat())
        await asyncio.sleep(0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.sleep(2 * BEAT_SECONDS)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    @property
    def lag(self) -> Lag:
        return Lag(self._late)

    async def _beat(self) -> None:
        while True:
            used, now = time.thread_time(), time.perf_counter()
            await asyncio.sleep(BEAT_SECONDS)
            late = time.perf_counter() - now - BEAT_SECONDS
            self._late.append(min(late, time.thread_time() - used) if self._only_own else late)


class LongModel:
    """A model that asks for a tool in every step but the last."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    async def respond(self, request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        self._left -= 1
        usage = Usage(input=900, output=100)
        if not self._left:
            yield ModelResponse("It is done.", usage=usage)
            return
        call = ToolCall(f"call_{self._left}", "echo", {"value": f"value {self._left} " + "x" * 60})
        yield ModelResponse("Let me look at that.", (call,), FinishReason.TOOL_CALLS, usage)


async def fill(store: Store, steps: int) -> None:
    """Store a session of so many steps, "long", among many short ones."""
    for agent_id, count in ((f"s{n}", 1) for n in range(SHORT_SESSIONS)):
        await (await Session.open(store, _agent(count), agent_id, create=True)).send("go")
    await (await Session.open(store, _agent(steps), "long", create=True)).send("go")


def _agent(steps: int) -> Agent:
    model = RespondingModel(LongModel(steps).respond)
    return Agent(model, [echo], max_steps=steps + 1, timeout=None)


@asynccontextmanager
async def watched(name: str, lags: dict[str, Lag], *, only_own: bool) -> AsyncIterator[None]:
    async with Heartbeat(only_own=only_own) as heart:
        yield
    lags[name] = heart.lag


async def follow_to_the_end(lab: Lab) -> None:
    """Receive all envelopes of the long session as server-sent events, and keep none of them."""
    over = asyncio.Event()

    async def receive() -> Message:
        await over.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if b'"status":"completed"' in message.get("body", b""):
            over.set()

    scope = lab.client.scope("/sessions/long/events", "", {"accept": "text/event-stream"})
    async with asyncio.timeout(LONGEST_SECONDS):
        await lab.server({**scope, "type": "http", "method": "GET"}, receive, send)


async def status_of(lab: Lab, path: str, query: dict[str, object]) -> int:
    """Ask, and keep nothing of the answer but its status: to join its pieces would take long, too."""
    found, asked = 0, False

    async def receive() -> Message:
        nonlocal asked
        if asked:
            await asyncio.Event().wait()
        asked = True
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        nonlocal found
        found = message.get("status", found)

    scope = lab.client.scope(path, query, {})
    async with asyncio.timeout(LONGEST_SECONDS):
        await lab.server({**scope, "type": "http", "method": "GET"}, receive, send)
    return found


async def measure(store: Store, steps: int, *, only_own: bool) -> dict[str, Lag]:
    """Open, list, page and copy the long session in every way; return the lag of each."""
    lab, lags = Lab(store, _agent(2)), dict[str, Lag]()
    messages = 2 * steps
    paths: list[tuple[str, dict[str, object]]] = [
        ("/sessions/long", {}),
        ("/sessions", {"limit": 200}),
        ("/sessions/long/messages", {}),
        ("/sessions/long/messages", {"after": messages // 2, "limit": 1000}),
        ("/sessions/long/messages", {"before": messages // 3, "limit": 50}),
        ("/sessions/long/trace", {}),
        ("/sessions/long/trace", {"after": steps // 2, "limit": 1000}),
        ("/sessions/long/trace", {"after": steps // 2, "limit": 250, "brief": "true"}),
        (f"/sessions/long/steps/{steps}", {}),
        ("/sessions/long/executions", {}),
        (f"/sessions/long/steps/{steps}", {"messages": 10_000}),
        ("/sessions/long/snapshot", {}),
        ("/sessions/long/saved.html", {}),
        ("/sessions/long/what-if", {"max_steps": steps // 2}),
        ("/what-if", {"limit": "max_steps"}),
        ("/sessions/long/events", {"limit": 1000}),
        ("/sessions/long/events", {"after": str(3 * steps // 2), "limit": 1000}),
    ]
    for path, query in paths:
        async with watched(f"{path} {query}", lags, only_own=only_own):
            assert await status_of(lab, path, query) == 200
    async with watched("a stream of everything", lags, only_own=only_own):
        await follow_to_the_end(lab)
    async with watched("Session.open", lags, only_own=only_own):
        session = await Session.open(store, _agent(2), "long")
    release(session.state)
    del session
    async with watched("a fork", lags, only_own=only_own):
        assert (await lab.post("/sessions/long/fork", {"agent_id": "fork"})).status == 201
    async with watched("an export", lags, only_own=only_own):
        async for _ in store.export("long"):
            pass
    async with watched("a deletion", lags, only_own=only_own):
        assert (await lab.delete("/sessions/fork")).status == 204
    await lab.server.close()
    return lags
