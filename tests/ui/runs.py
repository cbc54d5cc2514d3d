"""Random runs, told in envelopes: what a server would send of them, and what it would store."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator
from typing import Any

from msgspec import Struct

from tests.support import START, FixedWorld
from whyloop import (
    Agent,
    AgentState,
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
from whyloop.broadcasting import AgentEventEnvelopeAdapter, BroadcastConfig
from whyloop.errors import ModelError, RateLimitError
from whyloop.events import AgentEvent
from whyloop.testing import FakeClock
from whyloop.wire.ui import canonical_messages

TEXTS = [
    "",
    "",
    "Let me look that up.",
    "Grüße, 世界 👋🏽",
    '{"value": "x"}',
    "```json\n{",
    "<script>alert(1)</script>",
    "[object Object] __proto__",
    " \u0085\ufeff",
    "a\u2028b\u0000c",
]
POLICIES = [
    ErrorPolicy.stop_on_any_error(),
    ErrorPolicy.retry_tool_errors(2),
    ErrorPolicy.ignore_tool_errors(),
    ErrorPolicy.retry_all(3),
]
TOOLS = ["work", "work", "fail", "guarded", "no_such_tool"]


class Leg(Struct):
    """A run from a query or a resume to its end: what was asked, told, and stored after it.

    `begun` is what was stored before the first envelope, `meanwhile` on the way, each time with how many
    envelopes had been told. If its process died there is no end, and it is stored as it was recorded last.
    """

    query: str | None
    begun: list[dict[str, Any]]
    envelopes: list[dict[str, Any]]
    canonical: list[dict[str, Any]]
    state: AgentState
    meanwhile: list[tuple[int, list[dict[str, Any]]]]
    died: bool = False


class Recorder:
    """A journal that keeps what a UI would have been shown at each of its entries."""

    def __init__(self, told: list[dict[str, Any]]) -> None:
        self._told = told
        self.stored: list[tuple[int, list[dict[str, Any]]]] = []
        self.states: list[AgentState] = []

    async def record(self, state: AgentState) -> None:
        self.stored.append((len(self._told), canonical_messages(state)))
        self.states.append(state)

    def cut_off(self, dice: random.Random, leg: Leg) -> Leg:
        """The leg as it is when its process dies somewhere on the way."""
        last = dice.randrange(len(self.states) - 1)
        told, canonical = self.stored[last]
        envelopes = leg.envelopes[: dice.randint(told, self.stored[last + 1][0])]
        meanwhile = self.stored[: last + 1]
        return Leg(leg.query, leg.begun, envelopes, canonical, self.states[last], meanwhile, died=True)


class RandomModel:
    """Streams words in pieces and asks for tools; sometimes it breaks off."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._numbers = itertools.count(1)
        self._same_ids = dice.random() < 0.1

    async def respond(self, request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        dice = self._dice
        words = dice.choice(TEXTS)
        breaks = dice.random() < 0.15
        streamed = words
        while streamed:
            length = dice.randint(1, 12)
            yield TextDelta(streamed[:length])
            streamed = streamed[length:]
            if breaks:
                break
        if breaks:
            raise dice.choice([ModelError("it broke off"), RateLimitError("slow down", retry_after=1)])
        calls = tuple(self._call() for _ in range(dice.choice([0, 0, 1, 1, 2, 4])))
        reason = dice.choice([FinishReason.STOP] * 9 + [FinishReason.LENGTH])
        yield ModelResponse(words, calls, FinishReason.TOOL_CALLS if calls else reason, Usage(100, 10))

    def _call(self) -> ToolCall:
        dice = self._dice
        odd: list[dict[str, Any] | str] = [
            "{not json",
            {"value": 7},
            {"value": "x", "__proto__": {"a": [None]}},
        ]
        arguments: dict[str, Any] | str = {"value": dice.choice(TEXTS)}
        if dice.random() < 0.1:
            arguments = dice.choice(odd)
        call_id = "call_0" if self._same_ids else f"call_{next(self._numbers)}"
        return ToolCall(call_id, dice.choice(TOOLS), arguments)


def random_legs(seed: int, config: BroadcastConfig, deaths: bool = False) -> list[Leg]:
    """A session of several queries, the same for the same seed; of the last of them there is an end."""
    return asyncio.run(_legs(random.Random(seed), config, deaths))


async def _legs(dice: random.Random, config: BroadcastConfig, deaths: bool) -> list[Leg]:
    told: list[dict[str, Any]] = []
    clock = FakeClock(START)
    recorder = Recorder(told)
    agent = _agent(dice, clock)
    if dice.random() < 0.5 or deaths:
        agent = agent.journaled(recorder)
    transport = _Transport(told)
    adapter = AgentEventEnvelopeAdapter(transport, config)
    stop_after = dice.choice([-1, -1, -1, dice.randint(1, 30)])

    def listen(event: AgentEvent) -> None:
        nonlocal stop_after
        adapter(event)
        stop_after -= 1
        if stop_after == 0:
            agent.request_stop("enough")

    agent.subscribe(listen)
    legs: list[Leg] = []
    state = agent.new_session("the session")
    for left in range(dice.randint(1, 5), 0, -1):
        number = len(legs)
        query = None
        if not state.messages or state.status is AgentStatus.COMPLETED or dice.random() < 0.3:
            query = f"question {number}"
            state = agent.start(query, state=state)
        else:
            grant = Budget(steps=2) if dice.random() < 0.5 else None
            state = agent.restart(_decided(dice, state), grant=grant)
            if dice.random() < 0.5 and not legs[-1].died:
                # As another process does, which knows nothing of what was told before.
                adapter = AgentEventEnvelopeAdapter(transport, config)
        begun = canonical_messages(state)
        state = await agent.final_step(state)
        leg = Leg(query, begun, list(told), canonical_messages(state), state, list(recorder.stored))
        if deaths and left > 1 and dice.random() < 0.6:
            leg = recorder.cut_off(dice, leg)
            state = leg.state
        legs.append(leg)
        told.clear()
        recorder.stored.clear()
        recorder.states.clear()
        clock.advance(60)
    return legs


def _decided(dice: random.Random, state: AgentState) -> AgentState:
    """The state after people decided about some of what waits."""
    for pending in state.pending_calls:
        match dice.randint(0, 3):
            case 0:
                state = state.approve(pending.id, by="ada", now=START)
            case 1:
                state = state.deny(pending.id, "no", by="bo", now=START)
            case 2:
                state = state.edit(pending.id, {"value": "edited"}, by="ada", now=START)
    return state


def _agent(dice: random.Random, clock: FakeClock) -> Agent:
    async def work(value: str = "") -> str:
        for _ in range(dice.randint(0, 2)):
            await asyncio.sleep(0)
        clock.advance(0.25)
        return value * 40

    async def fail(value: str = "") -> str:
        raise RuntimeError(f"it broke: {value}")

    tools = [tool(name="work")(work), tool(name="fail")(fail)]
    tools.append(tool(name="guarded", needs_approval=True)(work))
    model = RandomModel(dice)
    return Agent(
        model,
        tools,
        world=FixedWorld(model, clock),
        error_policy=dice.choice(POLICIES),
        backoff=Backoff(jitter=0),
        max_steps=dice.choice([2, 4, 8]),
        max_tokens=dice.choice([None, 400]),
    )


class _Transport:
    def __init__(self, told: list[dict[str, Any]]) -> None:
        self._told = told

    def broadcast(self, event: Any) -> None:
        self._told.append(dict(event))

    def broadcast_batch(self, events: Any) -> None:
        self._told += [dict(event) for event in events]
