"""What many tests need: quick agents, states made by hand, and the proof that a state can be read."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from whyloop import (
    Agent,
    AgentState,
    ErrorType,
    Execution,
    Failure,
    FinishReason,
    Message,
    ModelRequest,
    ModelResponse,
    StateInfo,
    TextDelta,
    Tool,
    ToolCall,
    ToolContext,
    ToolDefinition,
    ToolResult,
    Toolset,
    Usage,
    Verdict,
    tool,
)
from whyloop.broadcasting import BroadcastConfig
from whyloop.loop.executions import creation
from whyloop.loop.local_world import LocalWorld
from whyloop.loop.world import Model
from whyloop.stores import MemoryStore, SqliteStore, Store
from whyloop.testing import FakeClock, Reply, ScriptedModel
from whyloop.values.decisions import decide
from whyloop.values.judgement import JudgedAlike
from whyloop.values.model import Delta
from whyloop.values.step_transitions import Answered, AnyTransition, CallFinished, Closed
from whyloop.values.transitions import Queried
from whyloop.wire.envelope import envelope
from whyloop.wire.journal import decode_entries, encode_entry, state_of
from whyloop.wire.view import read_back

START = datetime(2026, 1, 16, 10, tzinfo=UTC)

ScriptItem = Reply | str | BaseException | type[BaseException]


class NetworkBlockedError(Exception):
    """A test tried to leave this machine."""


def at(seconds: float) -> datetime:
    """A moment, counted from the start of the tests' time."""
    return START + timedelta(seconds=seconds)


QUICK = bool(os.environ.get("WHYLOOP_QUICK"))
"""True in the fast gate, which tries a tenth of the examples of a property."""


def examples(count: int) -> settings:
    """Try a property on so many examples, or on a tenth of them in the fast gate."""
    return settings(max_examples=max(10, count // 10) if QUICK else count)


def seeds(count: int) -> pytest.MarkDecorator:
    """Run a test with so many seeds, or with a tenth of them in the fast gate."""
    return pytest.mark.parametrize("seed", range(max(2, count // 10) if QUICK else count))


def scripted(*replies: ScriptItem, **options: Any) -> Agent:
    """An agent that follows a script, on a clock of its own unless one is given."""
    options.setdefault("clock", FakeClock())
    return Agent(ScriptedModel(replies), **options)


def requests_of(agent: Agent) -> list[ModelRequest]:
    """What the agent's scripted model was asked."""
    assert isinstance(agent.model, ScriptedModel)
    return agent.model.requests


class RespondingModel:
    """A model made of a function that yields pieces, awaits, or raises as it likes."""

    def __init__(self, respond: Callable[[ModelRequest], AsyncIterator[Delta | ModelResponse]]) -> None:
        self._respond = respond

    def respond(self, request: ModelRequest) -> AsyncIterator[Delta | ModelResponse]:
        return self._respond(request)


def hanging_model() -> RespondingModel:
    """A model that never answers."""

    async def respond(request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        await asyncio.Event().wait()
        yield ModelResponse("too late")

    return RespondingModel(respond)


@tool
async def echo(value: str = "") -> str:
    """Says it back."""
    return value


@tool(needs_approval=True)
async def pay(amount: int) -> str:
    return f"paid {amount}"


@tool
async def broken(value: str = "") -> str:
    """Always fails."""
    raise RuntimeError(f"broken {value}".strip())


def flaky(*outcomes: BaseException | str, name: str = "flaky") -> Tool:
    """A tool that gives these outcomes one after the other."""
    left = iter(outcomes)

    async def flaky_tool() -> str:
        outcome = next(left)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    return tool(name=name)(flaky_tool)


def session(
    *,
    steps: int = 0,
    tokens: int = 0,
    seconds: float = 0.0,
    finish_reason: FinishReason | None = FinishReason.TOOL_CALLS,
    tool_calls: int = 0,
    failures: Iterable[Failure] = (),
    text: str = "",
) -> AgentState:
    """A state made by hand: one query and some steps alike, each using these tokens and seconds."""
    queried = Queried(START, execution_id="execution-1", message=Message.user("go"))
    state = queried.apply_to(empty_session())
    for number in range(1, steps + 1):
        calls = [ToolCall(f"call_{number}_{i}", "echo", {}) for i in range(tool_calls)]
        state = after_step(
            state,
            calls,
            failures,
            text=text,
            finish_reason=finish_reason,
            tokens=tokens,
            seconds=seconds,
            now=at(number * seconds),
        )
    return state


def empty_session() -> AgentState:
    """A session that began at the start of the tests' time."""
    return AgentState(
        agent_id="1a2b3c4d5e6f",
        identity="identity-1",
        state_info=StateInfo(started_at=START, updated_at=START),
        execution=Execution(id="execution-0", started_at=START),
    )


def after_step(
    state: AgentState,
    calls: Iterable[ToolCall] = (),
    failures: Iterable[Failure] = (),
    *,
    text: str = "",
    finish_reason: FinishReason | None = FinishReason.TOOL_CALLS,
    tokens: int = 0,
    seconds: float = 0.0,
    now: datetime = START,
) -> AgentState:
    """The state after one more step that is not judged yet; every failure of a call has its own call."""
    failures = list(failures)
    broken = {f.tool_call_id: f for f in failures if f.tool_call_id is not None}
    of_model = [f for f in failures if f.tool_call_id is None]
    wanted = [*calls, *[ToolCall(key, f.tool or "search", {}) for key, f in broken.items()]]
    answered = Answered(
        now,
        started_at=now - timedelta(seconds=seconds),
        message=None if of_model else Message.assistant(text, wanted),
        finish_reason=finish_reason,
        usage=Usage(input=tokens),
        started=() if of_model else tuple(range(len(wanted))),
        failure=of_model[0] if of_model else None,
    )
    state = answered.apply_to(state)
    for index, call in enumerate(() if of_model else wanted):
        failure = broken.get(call.id)
        result = ToolResult("ok") if failure is None else ToolResult("Error", failure.message, failure)
        state = CallFinished(now, index=index, result=result).apply_to(state)
    return Closed(now, seconds=seconds).apply_to(state)


def failed_steps(state: AgentState, count: int, *failures: Failure) -> AgentState:
    """The state after this many more failed steps."""
    for _ in range(count):
        state = after_step(state, (), failures or (tool_failure(),), finish_reason=None)
    return state


class MemoryJournal:
    """A session that is recorded in memory, as the texts that a store would keep."""

    def __init__(self, agent_id: str = "session-1") -> None:
        self.agent_id = agent_id
        self.entries: list[str] = []

    @property
    def state(self) -> AgentState:
        """The state that the entries lead to."""
        return state_of(self.agent_id, self.entries)

    @property
    def transitions(self) -> list[AnyTransition]:
        """Everything that was recorded, in order."""
        return transitions_of(self.agent_id, self.entries)

    def transitions_after(self, count: int) -> list[AnyTransition]:
        """What the entries after the first ones recorded."""
        return self.transitions[len(transitions_of(self.agent_id, self.entries[:count])) :]

    def create(self, agent: Agent, metadata: Mapping[str, object] | None = None) -> AgentState:
        """Record a new session of the agent."""
        self.write([creation(agent, metadata)], AgentState(agent_id=self.agent_id))
        return self.state

    def decide(self, question_id: str, verdict: Verdict, by: str, now: datetime, *more: Any) -> AgentState:
        """Record what a person decided about a question."""
        state = self.state
        if transitions := decide(state, question_id, verdict, by, now, *more):
            self.write(transitions, state)
        return self.state

    def write(self, transitions: Sequence[AnyTransition], before: AgentState) -> None:
        self.entries.append(encode_entry(transitions, before))

    async def append(
        self, transitions: Sequence[AnyTransition], before: AgentState, after: AgentState
    ) -> str | None:
        self.write(transitions, before)
        return None


def tool_failure(
    kind: ErrorType = ErrorType.TOOL, message: str = "it broke", name: str = "search"
) -> Failure:
    return Failure(kind, message, name, "call_1")


def assert_complete_history(messages: Sequence[Message]) -> None:
    """Every tool call has its result right after it, in call order, and no result is without its call."""
    expected: list[tuple[str, str]] = []
    for message in messages:
        if expected:
            assert message.is_tool, f"{expected[0]} has no result"
            assert (message.tool_call_id, message.tool) == expected.pop(0)
        else:
            assert not message.is_tool, f"{message.tool_call_id} is a result without a call"
            expected = [(wanted.id, wanted.name) for wanted in message.tool_calls]
    assert not expected


def assert_can_be_read(state: AgentState) -> AgentState:
    """The state can be stored as strict JSON, read back and explained; what is read back."""
    document = state.to_dict()
    stored = json.dumps(document, allow_nan=False, ensure_ascii=False).encode()
    restored = AgentState.from_dict(json.loads(stored))
    assert restored.to_dict() == {**document, "execution_started_at": None}
    assert restored.explanation.headline.split(":")[0] == state.explanation.headline.split(":")[0]
    assert_complete_history(restored.messages)
    return restored


def assert_readable(state: AgentState) -> str:
    """The state survives a round trip unchanged and explains itself the same; its explanation."""
    restored = assert_can_be_read(state)
    assert restored == state
    explanation = state.explain()
    assert restored.explain() == explanation
    return explanation


class FixedWorld(LocalWorld):
    """A world in which nothing is left to chance: numbered ids, no randomness, a clock that one moves."""

    def __init__(self, model: Model, clock: FakeClock) -> None:
        super().__init__(model, clock)
        self._ids = itertools.count(1)
        del self.new_id, self.random  # The methods below.

    def new_id(self) -> str:
        return f"id-{next(self._ids)}"

    def random(self) -> float:
        return 0.5

    def call_tool(
        self, toolset: Toolset, tool: ToolDefinition, arguments: Mapping[str, Any], context: ToolContext
    ) -> Coroutine[Any, Any, object]:
        return toolset.call(tool.name, arguments, context)


def fixed_agent(*replies: ScriptItem, clock: FakeClock | None = None, **options: Any) -> Agent:
    """An agent whose runs are the same every time, down to the last byte."""
    model = ScriptedModel(replies)
    return Agent(model, world=FixedWorld(model, clock or FakeClock()), **options)


def transitions_of(agent_id: str, texts: Sequence[str]) -> list[AnyTransition]:
    """Return all transitions of a journal, each as it happened."""
    state, found = AgentState(agent_id=agent_id), list[AnyTransition]()
    for entry in decode_entries(texts):
        for transition in entry.transitions:
            if isinstance(transition, JudgedAlike):
                transition = transition.judged(state.last_continuation_outcome)  # noqa: PLW2901
            found.append(transition)
            state = transition.apply_to(state)
    return found


def envelopes_of(
    state: AgentState,
    transitions: Iterable[AnyTransition],
    config: BroadcastConfig,
    session_id: str | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the envelopes of recorded transitions, from the state before the first.

    They equal the ones that were sent live, but for step starts and chunks, which are never recorded.
    """
    for event in read_back(state, transitions):
        if (written := envelope(event, config, session_id)) is not None:
            yield written


def two_stores(kind: str, folder: Path) -> tuple[Store, Store]:
    """Two store objects on the same sessions, as two processes have them."""
    if kind == "memory":
        first = MemoryStore()
        return first, MemoryStore(beside=first)
    return SqliteStore(folder / "whyloop.db"), SqliteStore(folder / "whyloop.db")
