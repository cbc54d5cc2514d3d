"""Random runs: the envelopes that a server sends of them, and the histories that it returns."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
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
    PendingCall,
    TextDelta,
    ToolCall,
    Usage,
    tool,
)
from whyloop.broadcasting import AgentEventEnvelopeAdapter, BroadcastConfig
from whyloop.broadcasting.places import place_of
from whyloop.errors import ModelError, RateLimitError
from whyloop.events import AgentEvent
from whyloop.server import streams
from whyloop.stores.records import Told
from whyloop.testing import FakeClock
from whyloop.wire.envelope import timestamp
from whyloop.wire.ui import args_summary, canonical_messages

Json = dict[str, Any]

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
REASONING = "hmm"
NUMBERED = {"agent.status", "agent.step.completed", "agent.tool.started", "agent.tool.completed"}
NUMBERED |= {"agent.approval.requested", "agent.approval.decided", "agent.retry"}
TOOLS = ["work", "work", "fail", "guarded", "no_such_tool"]


class Leg(Struct):
    """A run from a query or a resume to its end: the query, its envelopes, and the history after it.

    `begun` is the history before the first envelope. `meanwhile` are those on the way, each with the number
    of envelopes sent by then. If the process died there is no end, and the history is the last recorded one.
    """

    query: str | None
    begun: list[Json]
    envelopes: list[Json]
    canonical: list[Json]
    state: AgentState
    meanwhile: list[tuple[int, list[Json]]]
    died: bool = False


class Transport:
    """Collects the envelopes that the loop sends."""

    def __init__(self, sent: list[Json]) -> None:
        self.sent = sent

    def broadcast(self, event: Any) -> None:
        self.sent.append(dict(event))

    def broadcast_batch(self, events: Any) -> None:
        self.sent += [dict(event) for event in events]


class Recorder:
    """A journal that keeps every state, each with the number of envelopes sent by then."""

    def __init__(self, sent: list[Json]) -> None:
        self._sent = sent
        self.states: list[tuple[int, AgentState]] = []

    async def record(self, state: AgentState) -> None:
        self.states.append((len(self._sent), state))


class NewEnvelopes:
    """STAND-IN for the view of the new core: replace it by the real one.

    The loop still emits the old envelopes and states. This derives the new ones from them: numbers over
    numbered envelopes only, `kind` of chunks, `resolved_by` and `reason` of a status, approvals and retries,
    and the `seq` in a history.
    """

    def __init__(self, dice: random.Random | None = None) -> None:
        self._dice = dice
        self._reasons = False
        self.last: dict[str, int] = {}
        """The last number of each execution."""

    def derived(self, old: list[Json], state: AgentState) -> tuple[list[Json], list[int]]:
        """Return the new envelopes of a leg, and for each number of old ones that of the new ones."""
        new: list[Json] = []
        counts = [0]
        for index, each in enumerate(old):
            is_last = index == len(old) - 1
            for event, data in self._parts(each, state if is_last else None):
                new.append({**each, "event": event, "data": data, "seq": self._seq(each, event)})
            counts.append(len(new))
        return new, counts

    def decided(self, state: AgentState, pending: PendingCall, verdict: str) -> list[Json]:
        """Return the envelopes of a person's decision, and of the result if it is a denial."""
        call = {"tool": pending.name, "tool_call_id": pending.id}
        decision = {"question_id": pending.id, "verdict": verdict, "by": "ada", "reason": None}
        events: list[tuple[str, Json]] = [("agent.approval.decided", {**call, **decision})]
        if verdict == "denied":
            result = {"success": False, "error": "denied by ada", "duration_ms": 0.0}
            events.append(("agent.tool.completed", {**call, **result, "result_summary": "Denied by ada"}))
        ids = {"agent_id": state.agent_id, "session_id": state.agent_id, "execution_id": state.execution.id}
        known = {"v": 1, "timestamp": timestamp(state.state_info.updated_at), **ids}
        return [
            {**known, "event": event, "seq": self._seq(known, event), "data": data} for event, data in events
        ]

    def history(self, state: AgentState, seq: int | None = None) -> list[Json]:
        """Return the canonical messages with the number that they are at."""
        messages, execution_id = canonical_messages(state), state.execution.id
        at = self.last.get(execution_id, 0) if seq is None else seq
        own = [each for each in messages if each.get("metadata", {}).get("execution_id") == execution_id]
        if own and at:
            own[-1]["metadata"]["seq"] = at
        return messages

    def _seq(self, envelope: Json, event: str) -> int:
        execution_id = envelope["execution_id"]
        if event in NUMBERED:
            self.last[execution_id] = self.last.get(execution_id, 0) + 1
        return self.last[execution_id]

    def _parts(self, old: Json, end: AgentState | None) -> Iterator[tuple[str, Json]]:
        """Yield the event and the data of each new envelope that stands for an old one."""
        event, data = old["event"], dict(old["data"])
        retry = data.pop("retry", None)
        if event == "agent.stream.chunk":
            # The loop streams no reasoning, so some answers of random runs get a chunk of it.
            index = data["chunk_index"]
            if index == 0:
                self._reasons = self._dice is not None and self._dice.random() < 0.3
            if self._reasons and index == 0:
                yield event, {**data, "kind": "reasoning", "chunk": REASONING, "is_complete": False}
            data |= {"kind": "text", "chunk_index": index + self._reasons}
        if event == "agent.status" and data["status"] != "in_progress":
            outcome = end.last_continuation_outcome if end is not None else None
            said = outcome.resolving_evaluation if outcome is not None else None
            data |= {"resolved_by": outcome and outcome.resolved_by, "reason": said and said.reason}
        for pending in end.pending_calls if end is not None else ():
            call = {"tool": pending.name, "tool_call_id": pending.id, "question_id": pending.id}
            args = {"args_summary": args_summary(pending.arguments)}
            yield "agent.approval.requested", {**call, "question": pending.question, **args}
        yield event, data
        if retry is not None and not data["has_tool_calls"]:
            yield "agent.retry", {**retry, "wait_seconds": 1.0, "error_type": "model"}


class OldServer:
    """STAND-IN for the new server: remove it together with the old one.

    It numbers the envelopes that the old server streams by the new rule, and turns the `question_id` of a
    decision into the old `call_id`.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._numbers: dict[tuple[str, int], int] = {}
        self._last: dict[str, int] = {}
        original = AgentEventEnvelopeAdapter.envelope

        def envelope(adapter: AgentEventEnvelopeAdapter, event: AgentEvent) -> Json | None:
            made = original(adapter, event)
            if made is not None:
                execution_id = made["execution_id"]
                last = self._last.get(execution_id, 0) + (made["event"] in NUMBERED)
                self._last[execution_id] = self._numbers[execution_id, made["seq"]] = last
            return made

        monkeypatch.setattr(AgentEventEnvelopeAdapter, "envelope", envelope)
        monkeypatch.setattr(streams, "frame", self._frame)

    def _frame(self, told: Told) -> bytes:
        body = json.loads(told.body)
        body["seq"] = self._numbers[told.execution_id, told.seq]
        return f"id: {place_of(told)}\ndata: {json.dumps(body)}\n\n".encode()

    @staticmethod
    async def decide_by_call(page: Any) -> None:
        async def renamed(route: Any) -> None:
            body = json.loads(route.request.post_data)
            await route.continue_(post_data=json.dumps({"call_id": body["question_id"]}))

        for verdict in ("approve", "deny"):
            await page.route(f"**/{verdict}", renamed)


class RandomModel:
    """Streams text in pieces and asks for tools; sometimes it breaks off."""

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
    """Return a session of several queries, the same for the same seed; the last of them has an end."""
    return asyncio.run(_legs(random.Random(seed), config, deaths))


async def _legs(dice: random.Random, config: BroadcastConfig, deaths: bool) -> list[Leg]:
    sent: list[Json] = []
    clock = FakeClock(START)
    recorder = Recorder(sent)
    agent = _agent(dice, clock)
    if dice.random() < 0.5 or deaths:
        agent = agent.journaled(recorder)
    adapter = AgentEventEnvelopeAdapter(Transport(sent), config)
    stop_after = dice.choice([-1, -1, -1, dice.randint(1, 30)])

    def listen(event: AgentEvent) -> None:
        nonlocal stop_after
        adapter(event)
        stop_after -= 1
        if stop_after == 0:
            agent.request_stop("enough")

    agent.subscribe(listen)
    legs: list[Leg] = []
    envelopes = NewEnvelopes(dice)
    state = agent.new_session("the session")
    for left in range(dice.randint(1, 5), 0, -1):
        query, before = None, list[Json]()
        if not state.messages or state.status is AgentStatus.COMPLETED or dice.random() < 0.3:
            query = f"question {len(legs)}"
            state = agent.start(query, state=state)
        else:
            grant = Budget(steps=2) if dice.random() < 0.5 else None
            state, before = _decided(dice, state, envelopes)
            state = agent.restart(state, grant=grant)
        begun = envelopes.history(state)
        state = await agent.final_step(state)
        dies = deaths and left > 1 and dice.random() < 0.6
        leg = _leg(dice, Leg(query, begun, before, [], state, []), sent, recorder.states, envelopes, dies)
        state = leg.state
        legs.append(leg)
        sent.clear()
        recorder.states.clear()
        clock.advance(60)
    return legs


def _leg(
    dice: random.Random,
    leg: Leg,
    sent: list[Json],
    states: list[tuple[int, AgentState]],
    new: NewEnvelopes,
    dies: bool,
) -> Leg:
    """Return the leg with its envelopes and histories, cut off somewhere if its process dies."""
    count, state = len(sent), leg.state
    if dies:
        last = dice.randrange(len(states) - 1)
        count = dice.randint(states[last][0], states[last + 1][0])
        state, states = states[last][1], states[: last + 1]
    first, before = new.last.get(state.execution.id, 0), len(leg.envelopes)
    envelopes, counts = new.derived(sent[:count], state)
    numbers = [first, *(each["seq"] for each in envelopes)]
    meanwhile = [(before + counts[at], new.history(each, numbers[counts[at]])) for at, each in states]
    canonical = new.history(state)
    return Leg(leg.query, leg.begun, leg.envelopes + envelopes, canonical, state, meanwhile, dies)


def _decided(
    dice: random.Random, state: AgentState, envelopes: NewEnvelopes
) -> tuple[AgentState, list[Json]]:
    """Return the state after people decided about some of the calls that wait, and the envelopes."""
    sent: list[Json] = []
    for pending in state.pending_calls:
        match dice.randint(0, 3):
            case 0:
                state = state.approve(pending.id, by="ada", now=START)
                sent += envelopes.decided(state, pending, "approved")
            case 1:
                state = state.deny(pending.id, by="ada", now=START)
                sent += envelopes.decided(state, pending, "denied")
            case 2:
                state = state.edit(pending.id, {"value": "edited"}, by="ada", now=START)
                sent += envelopes.decided(state, pending, "edited")
    return state, sent


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
