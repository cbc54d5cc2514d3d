"""A stage: a scenario is played on it, and everything that engines must do alike is recorded and compared.

Identifiers and hashes become the order of their first appearance. Times are only there or not there, and so
are waits. Other durations are left out, also the numbers of seconds in texts. Calls that run at once may
finish in any order.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack
from functools import wraps
from itertools import groupby, zip_longest
from typing import Any, TypeVar

import msgspec

from whyloop.broadcasting.feed import EventFeed
from whyloop.errors import OutputError
from whyloop.loop.agent import Agent
from whyloop.loop.executions import Query
from whyloop.sessions.session import MakeDeps
from whyloop.stores.store import Store
from whyloop.testing.engine_checks import Check, Engine, EngineSession, OpenEngine, open_local_engine
from whyloop.testing.fakes import Reply, ScriptedModel
from whyloop.values import encoding
from whyloop.values.continuation import Budget
from whyloop.values.model import Delta, ModelRequest, ModelResponse, TextDelta
from whyloop.values.state import AgentState
from whyloop.values.text import shortened
from whyloop.wire.envelope import BroadcastConfig

PATIENCE_SECONDS = 60.0
"""The time that an engine has for one scenario."""
SESSION = "session"
_LOOK_SECONDS = 0.02
_MOST_EVENTS = 10_000

T = TypeVar("T")
Play = Callable[["Stage"], Awaitable[None]]


def scenario(play: Play) -> Check:
    """Make a check that compares a scenario on the local loop and the engine."""

    @wraps(play)
    async def check(open_engine: OpenEngine) -> None:
        local = await _perform(play, open_local_engine)
        if local.error is not None:
            raise AssertionError(f"on the local loop itself, {local.error}") from local.error
        stage = await _perform(play, open_engine)
        # Of a scenario that ended early, the record so far may differ already, and explain that.
        pairs = zip(comparable(local.record), comparable(stage.record), strict=False)
        for index, (expected, found) in enumerate(pairs):
            difference = first_difference(expected, found, f"{expected['after']} ({index + 1}): ")
            if difference is not None:
                refusal = stage.refusals.get(index)
                text = f": {refusal}" if refusal else ""
                raise AssertionError(f"unlike the local loop, after {difference}{text}") from refusal
        if stage.error is not None:
            raise stage.error

    return check


async def _perform(play: Play, open_engine: OpenEngine) -> Stage:
    """Play a scenario to its end, or to the error that ends it early."""
    stage = Stage(open_engine)
    limit = asyncio.timeout(PATIENCE_SECONDS)
    try:
        async with limit, stage:
            await play(stage)
            await stage.record_sessions()
    except AssertionError as error:
        stage.error = error
    except Exception as error:
        after = stage.record[-1]["after"] if stage.record else "the start"
        if isinstance(error, TimeoutError) and limit.expired():
            text = f"the engine should finish within {PATIENCE_SECONDS:g} s, and after {after} it did not"
        else:
            text = f"the engine should not fail, and after {after} it raised {type(error).__name__}: {error}"
        stage.error = AssertionError(text)
        stage.error.__cause__ = error
    return stage


class Gate:
    """A place in a tool or a model at which it waits, so that a scenario can act at that moment."""

    def __init__(self) -> None:
        self._reached, self._opened = asyncio.Event(), asyncio.Event()

    async def wait(self) -> None:
        """Wait until the gate is open."""
        self._reached.set()
        await self._opened.wait()

    async def reached(self) -> None:
        """Wait until something waits at the gate."""
        await self._reached.wait()

    def open(self) -> None:
        """Let pass what waits."""
        self._opened.set()


def script(*replies: Reply | str | BaseException) -> ScriptedModel:
    """Return a model that gives these replies."""
    return ScriptedModel(replies)


class HeldModel(ScriptedModel):
    """A model that waits at a gate after the first word of each text.

    Args:
        replies: The replies of the script.
        gate: The gate.
    """

    def __init__(self, replies: Iterable[Reply | str | BaseException], gate: Gate) -> None:
        super().__init__(replies)
        self._gate = gate

    async def respond(self, request: ModelRequest) -> AsyncIterator[Delta | ModelResponse]:
        """Yield a word, wait, and yield the rest."""
        response = self.reply_to(request)
        word, space, rest = response.text.partition(" ")
        if space:
            yield TextDelta(word + space)
            await self._gate.wait()
            yield TextDelta(rest)
        yield response


class Stage:
    """One performance of a scenario on one engine, and its record."""

    def __init__(self, open_engine: OpenEngine) -> None:
        self.record: list[dict[str, Any]] = []
        self.refusals: dict[int, Exception] = {}
        """The errors in the record, by index."""
        self.error: AssertionError | None = None
        """Why the scenario ended early; None if it did not."""
        self._open_engine = open_engine
        self._engine: Engine | None = None
        self._agents: dict[str, Agent[Any, Any]] = {}
        self._opened: list[str] = []
        self._gates: list[Gate] = []
        self._tasks: list[asyncio.Task[Any]] = []
        self._exit = AsyncExitStack()

    async def __aenter__(self) -> Stage:
        return self

    async def __aexit__(self, *error: Any) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for gate in self._gates:  # An engine may have left a call waiting.
            gate.open()
        await self._exit.__aexit__(*error)

    @property
    def store(self) -> Store:
        """The store of the engine."""
        assert self._engine is not None
        return self._engine.store

    async def start(self, *agents: Agent[Any, Any], deps: MakeDeps | None = None) -> None:
        """Start the engine for these agents."""
        self._agents = {agent.name: agent for agent in agents}
        self._engine = await self._exit.enter_async_context(self._open_engine(agents, deps=deps))

    async def open(
        self,
        agent: Agent[Any, Any],
        agent_id: str = SESSION,
        metadata: Mapping[str, object] | None = None,
        deps: MakeDeps | None = None,
    ) -> StageSession:
        """Return a session of an agent; start the engine for this agent unless it runs."""
        if self._engine is None:
            await self.start(agent, deps=deps)
        assert self._engine is not None
        if agent_id not in self._opened:
            self._opened.append(agent_id)
        return StageSession(self, agent, await self._engine.open(agent.name, agent_id, metadata))

    async def ask(
        self,
        agent: Agent[Any, Any],
        query: Query,
        metadata: Mapping[str, object] | None = None,
        deps: MakeDeps | None = None,
    ) -> tuple[StageSession, AgentState]:
        """Open a session of an agent and send a query; return both the session and its state."""
        session = await self.open(agent, metadata=metadata, deps=deps)
        return session, await session.send(query)

    async def hold(
        self, agent: Agent[Any, Any], query: Query, gate: Gate
    ) -> tuple[StageSession, asyncio.Task[AgentState]]:
        """Open a session and send a query; return the session and its run, which waits at the gate."""
        session = await self.open(agent)
        run = self.background(session.send(query))
        await self._reached(gate, run)
        return session, run

    def gate(self) -> Gate:
        """Return a new gate, which opens at the end of the scenario, if not before."""
        self._gates.append(gate := Gate())
        return gate

    def background(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start some work, to act while it is in progress."""
        self._tasks.append(task := asyncio.create_task(work))
        return task

    async def _reached(self, gate: Gate, run: asyncio.Task[AgentState]) -> None:
        """Wait until a run waits at a gate; raise the error of a run that ended before."""
        reaching = self.background(gate.reached())
        await asyncio.wait({reaching, run}, return_when=asyncio.FIRST_COMPLETED)
        if not reaching.done():
            raise AssertionError(f"the run should wait at a gate, and it ended: {run.result()!r}")

    async def stored(self, condition: Callable[[AgentState], bool], agent_id: str = SESSION) -> AgentState:
        """Return the session once its state in the store meets a condition."""
        while not condition(state := await self.store.load(agent_id)):  # noqa: ASYNC110  It may be remote.
            await asyncio.sleep(_LOOK_SECONDS)
        return state

    async def refused(self, attempt: Awaitable[object]) -> None:
        """Fail unless an attempt raises an error; its class is in the record."""
        try:
            await attempt
        except Exception:
            return
        raise AssertionError(f"{self.record[-1]['after']} should be refused, and it was not")

    def note(self, what: str, value: object) -> None:
        """Add to the record something that engines must do alike."""
        self.record.append({"after": what, "value": value})

    async def record_sessions(self) -> None:
        """Add all stored sessions and all requests to the record."""
        feed = EventFeed(self.store, BroadcastConfig.debug())
        for agent_id in self._opened:
            state = await self.store.load(agent_id)
            summary = encoding.encode((await self.store.read(agent_id, limit=0)).summary)
            for unequal in ("version", "runner", "workflow"):
                summary.pop(unequal, None)
            page = await feed.page(agent_id, limit=_MOST_EVENTS)
            self.record.append(
                {
                    "after": "the end",
                    "stored state": state.to_dict(),
                    "explanation": state.explain().splitlines(),
                    "summary": summary,
                    "events": [msgspec.json.decode(item.body) for item in page.items],
                }
            )
        await feed.close()
        for name, agent in self._agents.items():
            requests = getattr(agent.model, "requests", ())
            self.record.append({"after": "the end", f"requests of {name}": list(map(_request, requests))})


class StageSession:
    """A session whose results are recorded."""

    def __init__(self, stage: Stage, agent: Agent[Any, Any], session: EngineSession) -> None:
        self._stage, self._agent, self._session = stage, agent, session
        self.request_stop = session.request_stop

    async def send(self, query: Query) -> AgentState:
        """Ask the next question."""
        return await self._recorded("send", self._session.send(query))

    async def resume(self, *, grant: Budget | None = None) -> AgentState:
        """Continue the execution."""
        return await self._recorded("resume", self._session.resume(grant=grant))

    async def approve(self, question_id: str, *, by: str = "ann") -> AgentState:
        """Let a pending call run."""
        return await self._recorded("approve", self._session.approve(question_id, by=by))

    async def deny(self, question_id: str, reason: str, *, by: str = "ann") -> AgentState:
        """Do not let a pending call run."""
        return await self._recorded("deny", self._session.deny(question_id, reason, by=by))

    async def edit(self, question_id: str, arguments: Mapping[str, object], *, by: str = "ann") -> AgentState:
        """Let a pending call run with other arguments."""
        return await self._recorded("edit", self._session.edit(question_id, arguments, by=by))

    async def _recorded(self, name: str, work: Awaitable[AgentState]) -> AgentState:
        record = self._stage.record
        try:
            state = await work
        except Exception as error:
            self._stage.refusals[len(record)] = error
            record.append({"after": name, "error": type(error).__name__})
            raise
        try:
            output = repr(self._agent.output(state))
        except OutputError as error:
            output = f"OutputError: {error}"
        explanation = state.explain().splitlines()
        record.append(
            {
                "after": name,
                "error": None,
                "state": state.to_dict(),
                "explanation": explanation,
                "output": output,
            }
        )
        return state


def _request(request: ModelRequest) -> Any:
    fields = {name: getattr(request, name) for name in request.__struct_fields__}
    return encoding.encode({**fields, "messages": tuple(request.messages)})


_IDS = frozenset({"identity", "execution_id", "question_id", "hash"})
_WITH_ID = frozenset({"execution", "question"})
_TIMES = frozenset({"at", "timestamp", "wait_until"})
_DURATIONS = frozenset(
    {"active_seconds", "cumulative_execution_seconds", "duration_ms", "seconds", "waiting_seconds"}
)
_WAITS = frozenset({"backoff_seconds", "wait_seconds", "waited"})
_GRANTS = frozenset({"grant", "granted"})
_TIME_LIMITS = frozenset({"ExecutionTimeLimit", "CumulativeExecutionTimeLimit"})
_NUMBER = r"\d[\d,]*(?:\.\d+)?"
_SECONDS = re.compile(rf"\b{_NUMBER}(?= of {_NUMBER} s\b)|\b{_NUMBER} (?:ms|s)\b")
_COMPLETED = "agent.tool.completed"
_BRIEF, _BEFORE = 300, 60
_MISSING = object()


def comparable(record: Any) -> Any:
    """Return a record without the differences between any two runs of a scenario."""
    names = {found: f"id {number}" for number, found in enumerate(dict.fromkeys(_ids_in(record)), 1)}
    longest_first = sorted(names, key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    def text_of(text: str) -> str:
        return _SECONDS.sub("… s", pattern.sub(lambda found: names[found[0]], text))

    def value_of(value: Any, key: str) -> Any:
        if isinstance(value, Mapping):
            return {name: value_of(each, name) for name, each in _kept(value, key)}
        if isinstance(value, list | tuple):
            return [value_of(each, key) for each in _in_call_order(value)]
        if isinstance(value, str):
            return "a time" if key in _TIMES or key.endswith("_at") else text_of(value)
        return value > 0 if key in _WAITS else value

    return value_of(record, "")


def _ids_in(value: Any, key: str = "") -> Iterator[str]:
    """Yield the identifiers that an engine makes, in the order in which they appear."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            if (name in _IDS or (name == "id" and key in _WITH_ID)) and isinstance(each, str) and each:
                yield each
            else:
                yield from _ids_in(each, name)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _ids_in(each, key)


def _kept(value: Mapping[str, Any], key: str) -> Iterator[tuple[str, Any]]:
    """Yield the items of an object without durations; a grant keeps its seconds."""
    for name, each in value.items():
        if name in _DURATIONS and key not in _GRANTS:
            continue
        if name == "context" and value.get("criterion") in _TIME_LIMITS:
            yield name, {field: each[field] for field in each if field not in ("used", "remaining")}
        else:
            yield name, each


def _in_call_order(values: Sequence[Any]) -> Iterator[Any]:
    """Yield values, with the events of finished calls in call order."""
    for name, group in groupby(values, lambda each: each.get("event") if isinstance(each, Mapping) else None):
        if name != _COMPLETED:
            yield from group
            continue
        events = list(group)
        numbers = [event["seq"] for event in events]
        ordered = sorted(events, key=lambda event: str(event["data"]["tool_call_id"]))
        for number, event in zip(numbers, ordered, strict=True):
            yield {**event, "seq": number}


def first_difference(expected: Any, found: Any, path: str = "") -> str | None:
    """Return where two values differ first, and how; None if they are equal."""
    pairs: list[tuple[str, Any, Any]]
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        keys = dict.fromkeys([*expected, *found])
        dot = "." if path[-1:].strip() else ""
        pairs = [(f"{path}{dot}{key}", expected.get(key, _MISSING), found.get(key, _MISSING)) for key in keys]
    elif isinstance(expected, list) and isinstance(found, list):
        both = zip_longest(expected, found, fillvalue=_MISSING)
        pairs = [(f"{path}[{index}]", *pair) for index, pair in enumerate(both)]
    elif type(expected) is type(found) and expected == found:
        return None
    else:
        start = _first_different_character(expected, found)
        return f"{path} should be {_brief(expected, start)}, and it is {_brief(found, start)}"
    differences = (first_difference(one, other, place) for place, one, other in pairs)
    return next((difference for difference in differences if difference), None)


def _first_different_character(expected: object, found: object) -> int:
    if not isinstance(expected, str) or not isinstance(found, str):
        return 0
    pairs = enumerate(zip(expected, found, strict=False))
    return next((index for index, (one, other) in pairs if one != other), min(len(expected), len(found)))


def _brief(value: object, start: int) -> str:
    """Return a value for a message, cut around the first difference."""
    if value is _MISSING:
        return "missing"
    if isinstance(value, str) and start > _BEFORE:
        return f"…{shortened(repr(value[start - _BEFORE :]), _BRIEF)}"
    return shortened(repr(value), _BRIEF)
