"""Runs of any kind, with words in them that nobody would want to show, as the events that they tell."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from hypothesis import strategies as st

from whyloop import (
    Agent,
    AgentStatus,
    Backoff,
    Budget,
    ErrorPolicy,
    FinishReason,
    ModelRequest,
    ModelResponse,
    TextDelta,
    ToolCall,
    Usage,
    tool,
)
from whyloop.errors import ModelError
from whyloop.events import (
    AgentEvent,
    AgentExecutionStarted,
    AgentStatusChanged,
    AgentStepCompleted,
    StreamChunkReceived,
    ToolCallCompleted,
    ToolCallStarted,
)
from whyloop.testing import FakeClock
from whyloop.values.text import clean

Run = list[AgentEvent]

HOSTILE = [
    "\ud800 alone",
    "data: [DONE]\n\ndata: {}\r\rretry: 1",
    "</script><img src=x onerror=alert(1)>",
    "\x00\x1b[2J\u2028\u2029\ufeff\u202e",
    '{"type":"finish"}',
    "__proto__",
    "constructor",
    "🙂" * 20,
]
words = st.sampled_from([*HOSTILE, "", "There are four.", " and more"]) | st.text(max_size=8)
arguments: st.SearchStrategy[dict[str, Any] | str] = st.one_of(
    st.builds(lambda value: {"value": clean(value)}, words),
    st.sampled_from(
        [
            {},
            {"value": {"__proto__": {"admin": True}}},
            {"__proto__": 1, "value": 2},
            {"value": [{"constructor": {"prototype": {}}}]},
            {"value": [1.5, None, True, -(2**53)]},
            "{not json",
        ]
    ),
)
calls = st.builds(
    ToolCall,
    st.sampled_from(["", "call_0", "call_1", "__proto__", "\ud800"]),
    st.sampled_from(
        ["work", "work", "guarded", "guarded", "fail", "no_such_tool", "__proto__", "</b>\ud800"]
    ),
    arguments,
)


class Said(NamedTuple):
    """What a model says: in pieces or at once, to its end or not."""

    pieces: Sequence[str]
    calls: Sequence[ToolCall]
    streamed: bool
    breaks: bool
    finish_reason: FinishReason


said = st.builds(
    Said,
    st.lists(words, max_size=3),
    st.lists(calls, max_size=3),
    st.booleans(),
    st.sampled_from([False, False, False, True]),
    st.sampled_from([FinishReason.STOP, FinishReason.STOP, FinishReason.LENGTH]),
)
policies = st.sampled_from(
    [ErrorPolicy.stop_on_any_error(), ErrorPolicy.retry_all(2), ErrorPolicy.ignore_tool_errors()]
)
happenings = st.tuples(
    st.sampled_from(["query", "resume", "resume", "decide", "decide", "stop"]), st.integers(0, 9)
)


class Talker:
    """A model that says these things one after the other, and is then at an end."""

    def __init__(self, script: Sequence[Said]) -> None:
        self._script = iter(script)

    async def respond(self, request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        now = next(self._script, Said(["The end."], [], True, False, FinishReason.STOP))
        if now.streamed:
            for piece in now.pieces:
                yield TextDelta(piece)
        if now.breaks:
            raise ModelError("it broke off \ud800")
        yield ModelResponse(
            "".join(now.pieces), tuple(now.calls), now.finish_reason, Usage(input=2**60, output=5)
        )


async def runs(
    script: Sequence[Said], policy: ErrorPolicy, max_steps: int, happening: Sequence[tuple[str, int]]
) -> list[Run]:
    """The events of a session, a list for each time that it was taken up."""
    told: list[Run] = []
    stop_after = -1

    async def work(value: Any = "") -> Any:
        await asyncio.sleep(0)
        return value

    async def fail(value: Any = "") -> str:
        raise RuntimeError("it broke \ud800 </b>")

    def hear(event: AgentEvent) -> None:
        nonlocal stop_after
        told[-1].append(event)
        stop_after -= 1
        if stop_after == 0:
            agent.request_stop("enough \ud800")

    agent = Agent(
        Talker(script),
        [
            tool(name="work")(work),
            tool(name="guarded", needs_approval=True)(work),
            tool(name="fail")(fail),
        ],
        clock=FakeClock(),
        error_policy=policy,
        backoff=Backoff(jitter=0),
        max_steps=max_steps,
        event_handler=hear,
    )
    state = agent.new_session("the session")
    for what, number in [("query", 0), *happening]:
        match what:
            case "query":
                told.append([])
                state = await agent.run(f"question {number}", state=state)
            case "resume" if state.status is not AgentStatus.COMPLETED:
                told.append([])
                state = await agent.resume(state, grant=Budget(steps=number) if number else None)
            case "decide" if state.pending_calls:
                pending = state.pending_calls[0].id
                match number % 3:
                    case 0:
                        state = state.approve(pending)
                    case 1:
                        state = state.deny(pending, "no \ud800")
                    case _:
                        state = state.edit(pending, {"value": "edited"})
            case "stop":
                stop_after = number
    return [run for run in told if run]


class Scenario(NamedTuple):
    """A session that is yet to happen."""

    script: Sequence[Said]
    policy: ErrorPolicy
    max_steps: int
    happening: Sequence[tuple[str, int]]

    def runs(self) -> list[Run]:
        return asyncio.run(runs(*self))


scenarios = st.builds(
    Scenario,
    st.lists(said, max_size=6),
    policies,
    st.sampled_from([1, 3, 20]),
    st.lists(happenings, min_size=2, max_size=8),
)

ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)
ODD_ARGUMENTS: list[Any] = [
    {"a": ENDLESS},
    {"a": 2**200},
    {"a": float("nan")},
    {"a": object()},
    {"\ud800": "\ud800"},
    {"__proto__": {"constructor": {"prototype": 1}}},
    "\ud800",
]


def hand_made(words: str, arguments: Any) -> Run:
    """A run in which everything is said in these words, and of which the end is not heard."""
    whose = (words, None, words, 1, datetime(2026, 1, 16, tzinfo=UTC))
    return [
        AgentExecutionStarted(*whose, None, False),
        StreamChunkReceived(*whose, words, 0, False),
        ToolCallStarted(*whose, words, words, arguments),
        ToolCallCompleted(*whose, words, words, False, words, 1.0, words),
    ]


def texts_of(run: Run) -> list[str]:
    """What was said in each step, and the answer that came at once if there was one."""
    steps: dict[int, str] = {}
    last: AgentStepCompleted | None = None
    for event in run:
        match event:
            case StreamChunkReceived() if event.chunk:
                steps[event.step_number] = steps.get(event.step_number, "") + event.chunk
            case AgentStepCompleted():
                last = event
    answer = run_end(run).last_response
    if answer and last and last.step_number not in steps and not last.has_tool_calls and not last.error_count:
        steps[last.step_number] = clean(answer)
    return list(steps.values())


def run_end(run: Run) -> AgentStatusChanged:
    return [event for event in run if isinstance(event, AgentStatusChanged)][-1]
