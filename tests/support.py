"""What many tests need: quick agents, states made by hand, and the proof that a state can be read."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

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
    Step,
    TextDelta,
    Tool,
    ToolCall,
    ToolContext,
    ToolRun,
    Usage,
    tool,
)
from whyloop.loop.ports import Model
from whyloop.testing import FakeClock, Reply, ScriptedModel

START = datetime(2026, 1, 16, 10, tzinfo=UTC)

ScriptItem = Reply | str | BaseException | type[BaseException]


class NetworkBlockedError(Exception):
    """A test tried to leave this machine."""


def at(seconds: float) -> datetime:
    """A moment, counted from the start of the tests' time."""
    return START + timedelta(seconds=seconds)


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

    def __init__(self, respond: Callable[[ModelRequest], AsyncIterator[TextDelta | ModelResponse]]) -> None:
        self._respond = respond

    def respond(self, request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
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
    state = empty_session().with_query(Message.user("go"), execution_id="execution-1", now=START)
    for number in range(1, steps + 1):
        calls = [ToolCall(f"call_{number}_{i}", "echo", {}) for i in range(tool_calls)]
        messages = [Message.assistant(text, calls)]
        messages += [Message.tool("ok", tool_call_id=c.id, tool_name=c.name) for c in calls]
        step = Step(
            number=number,
            execution_id="execution-1",
            started_at=at((number - 1) * seconds),
            completed_at=at(number * seconds),
            first_message=len(state.messages),
            message_count=len(messages),
            tool_calls=tuple(ToolRun(c.id, c.name) for c in calls),
            finish_reason=finish_reason,
            usage=Usage(input=tokens),
            duration_ms=seconds * 1000,
            failures=tuple(failures),
        )
        state = state.with_step(step, messages)
    return state


def empty_session() -> AgentState:
    """A session that began at the start of the tests' time."""
    return AgentState(
        agent_id="1a2b3c4d5e6f",
        state_info=StateInfo(started_at=START, updated_at=START),
        execution=Execution(id="execution-0", started_at=START),
    )


def failed_steps(state: AgentState, count: int, *failures: Failure) -> AgentState:
    """The state after this many more failed steps."""
    for _ in range(count):
        step = Step(
            number=state.execution.step_count + 1,
            execution_id=state.execution.id,
            started_at=START,
            completed_at=START,
            first_message=len(state.messages),
            failures=failures or (tool_failure(),),
        )
        state = state.with_step(step)
    return state


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
            assert (message.tool_call_id, message.tool_name) == expected.pop(0)
        else:
            assert not message.is_tool, f"{message.tool_call_id} is a result without a call"
            expected = [(wanted.id, wanted.name) for wanted in message.tool_calls]
    assert not expected


def assert_can_be_read(state: AgentState) -> AgentState:
    """The state can be stored as strict JSON, read back and explained; what is read back."""
    document = state.to_dict()
    stored = json.dumps(document, allow_nan=False, ensure_ascii=False).encode()
    restored = AgentState.from_dict(json.loads(stored))
    assert restored.to_dict() == document
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


class FixedWorld:
    """A world in which nothing is left to chance: numbered ids, no randomness, a clock that one moves."""

    def __init__(self, model: Model, clock: FakeClock) -> None:
        self.respond = model.respond
        self.now = clock.now
        self.monotonic = clock.monotonic
        self.sleep = clock.sleep
        self.timeout = clock.timeout
        self._ids = itertools.count(1)

    def new_id(self) -> str:
        return f"id-{next(self._ids)}"

    def random(self) -> float:
        return 0.5

    def call_tool(
        self, tool: Tool, arguments: Mapping[str, Any], context: ToolContext
    ) -> Coroutine[Any, Any, object]:
        return tool.call(arguments, context)


def fixed_agent(*replies: ScriptItem, clock: FakeClock | None = None, **options: Any) -> Agent:
    """An agent whose runs are the same every time, down to the last byte."""
    model = ScriptedModel(replies)
    return Agent(model, world=FixedWorld(model, clock or FakeClock()), **options)
