"""Random runs: the envelopes that a server sends of them, and the histories that it returns."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Sequence
from typing import Any

from msgspec import Struct

from tests.support import START, FixedWorld, MemoryJournal, envelopes_of
from tests.wire.random_runs import Changer
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
    Verdict,
    tool,
)
from whyloop.broadcasting import AgentEventEnvelopeAdapter, BroadcastConfig
from whyloop.errors import ModelError, RateLimitError
from whyloop.events import AgentEvent
from whyloop.loop.executions import recover_run, resume_run, start_run
from whyloop.loop.run import Run
from whyloop.testing import FakeClock
from whyloop.values.decisions import decide
from whyloop.values.step_transitions import AnyTransition
from whyloop.wire.envelope import NUMBERED
from whyloop.wire.ui import canonical_messages

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
TOOLS = ["work", "work", "again", "fail", "guarded", "no_such_tool"]
VERDICTS = [Verdict.APPROVED, Verdict.DENIED, Verdict.EDITED, None]


class Leg(Struct):
    """A part of a session: a run from a query, a resume or a recovery to its end, or some decisions.

    `envelopes` are all that a client can receive of it, `canonical` is the history after them. `meanwhile`
    are the recorded histories, each with the number of envelopes sent by then. The last one is `canonical`,
    and a history is recorded before its envelopes are sent. If the process died, the run has no end.
    """

    query: str | None
    envelopes: list[Json]
    canonical: list[Json]
    state: AgentState
    meanwhile: list[tuple[int, list[Json]]]

    @property
    def died(self) -> bool:
        return self.state.status is AgentStatus.IN_PROGRESS


class Transport:
    """Collects the envelopes that the loop sends."""

    def __init__(self, sent: list[Json]) -> None:
        self.sent = sent

    def broadcast(self, event: Any) -> None:
        self.sent.append(dict(event))

    def broadcast_batch(self, events: Any) -> None:
        self.sent += [dict(event) for event in events]


class ProcessDiedError(Exception):
    """The process ends here."""


class Recorder(MemoryJournal):
    """A journal that keeps every state, each with the number of envelopes sent by then.

    With `lives`, the process dies in the append of that number. The entry may be written even so: then a
    server reads its envelopes from the journal.
    """

    def __init__(self, agent_id: str, sent: list[Json], config: BroadcastConfig, dice: random.Random) -> None:
        super().__init__(agent_id)
        self.states: list[tuple[int, AgentState]] = []
        self.lives: int | None = None
        self._sent, self._config, self._dice = sent, config, dice

    def record(self, transitions: Sequence[AnyTransition], before: AgentState) -> AgentState:
        """Record transitions outside of a run, send their envelopes, and return the state after them."""
        after = before
        for transition in transitions:
            after = transition.apply_to(after)
        self.write(transitions, before)
        self.states.append((len(self._sent), after))
        self._sent += envelopes_of(before, transitions, self._config)
        return after

    async def append(
        self, transitions: Sequence[AnyTransition], before: AgentState, after: AgentState
    ) -> str | None:
        if self.lives is not None:
            self.lives -= 1
            if self.lives == 0:
                self._die(transitions, before)
        self.write(transitions, before)
        self.states.append((len(self._sent), after))
        return None

    def _die(self, transitions: Sequence[AnyTransition], before: AgentState) -> None:
        if self._dice.random() < 0.5:
            self.record(transitions, before)
        else:
            # It may have died before this append, while text was streaming.
            first = self.states[-1][0] if self.states else 0
            while len(self._sent) > first and not is_numbered(self._sent[-1]) and self._dice.random() < 0.8:
                self._sent.pop()
        raise ProcessDiedError


def is_numbered(envelope: Json) -> bool:
    return envelope["event"] in NUMBERED


class RandomModel:
    """Streams text in pieces and asks for tools; sometimes it breaks off."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._numbers = itertools.count(1)
        self._same_ids = dice.random() < 0.1

    async def respond(self, request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        dice = self._dice
        text = dice.choice(TEXTS)
        breaks = dice.random() < 0.15
        streamed = text
        while streamed:
            length = dice.randint(1, 12)
            yield TextDelta(streamed[:length])
            streamed = streamed[length:]
            await asyncio.sleep(0)  # A stop request interrupts it here.
            if breaks:
                break
        if breaks:
            raise dice.choice([ModelError("it broke off"), RateLimitError("slow down", retry_after=1)])
        calls = tuple(self._call() for _ in range(dice.choice([0, 0, 1, 1, 2, 4])))
        reason = dice.choice([FinishReason.STOP] * 9 + [FinishReason.LENGTH])
        yield ModelResponse(
            text,
            calls,
            FinishReason.TOOL_CALLS if calls else reason,
            Usage(100, 10),
            reasoning=dice.choice(["", "", "hmm"]),
        )

    def _call(self) -> ToolCall:
        dice = self._dice
        odd: list[dict[str, Any] | str] = [
            "{not json",
            {"value": 7},
            {"value": "x", "__proto__": {"a": [None]}},
        ]
        arguments: dict[str, Any] | str = {"value": dice.choice([*TEXTS, "change me", "block me"])}
        if dice.random() < 0.1:
            arguments = dice.choice(odd)
        call_id = "call_0" if self._same_ids else f"call_{next(self._numbers)}"
        return ToolCall(call_id, dice.choice(TOOLS), arguments)


def random_legs(seed: int, config: BroadcastConfig, deaths: bool = False) -> list[Leg]:
    """Return a session of several queries, the same for the same seed; the last of them has an end."""
    return asyncio.run(RandomSession(random.Random(seed), config).legs(deaths))


class RandomSession:
    """A session to which random things happen."""

    def __init__(self, dice: random.Random, config: BroadcastConfig) -> None:
        self._dice = dice
        self._sent: list[Json] = []
        self._legs: list[Leg] = []
        self._adapter = AgentEventEnvelopeAdapter(Transport(self._sent), config)
        self._stop_after = dice.choice([-1, -1, -1, dice.randint(1, 30)])
        self._dies_early = dice.random() < 0.2
        self._clock = FakeClock(START)
        self._agent = _agent(dice, self._clock)
        self._agent.subscribe(self._listen)
        self._journal = Recorder("the session", self._sent, config, dice)
        self._state = self._journal.create(self._agent)

    async def legs(self, deaths: bool) -> list[Leg]:
        dice = self._dice
        for left in range(dice.randint(1, 8 if deaths else 5), 0, -1):
            self._decide_some()
            query, run = self._next_run()
            dies = deaths and left > 1 and (self._dies_early or dice.random() < 0.6)
            lives = dice.randint(1, 2) if self._dies_early else dice.randint(1, 6)
            self._journal.lives = lives if dies else None
            try:
                self._state = await run.finish()
            except ProcessDiedError:
                self._state = self._journal.state
            self._end_leg(query)
        return self._legs

    def _listen(self, event: AgentEvent) -> None:
        self._adapter(event)
        self._stop_after -= 1
        if self._stop_after == 0:
            self._agent.request_stop("enough")

    def _next_run(self) -> tuple[str | None, Run]:
        dice, agent, state, journal = self._dice, self._agent, self._state, self._journal
        is_recovered = state.status is AgentStatus.IN_PROGRESS and (self._dies_early or dice.random() < 0.5)
        if is_recovered:
            return None, recover_run(agent, state, journal)
        if not state.messages or state.status is AgentStatus.COMPLETED or dice.random() < 0.3:
            query = f"question {len(self._legs)}"
            return query, start_run(agent, query, state, journal=journal)
        grant = Budget(steps=2) if dice.random() < 0.5 else None
        return None, resume_run(agent, state, grant=grant, journal=journal)

    def _decide_some(self) -> None:
        for pending in self._state.pending_calls:
            verdict = self._dice.choice(VERDICTS)
            if verdict is Verdict.EDITED and not pending.tool_call_id:
                verdict = Verdict.APPROVED  # A question about the run has no arguments.
            if verdict is not None:
                edited = {"value": "edited"} if verdict is Verdict.EDITED else None
                now = self._clock.now()
                decided = decide(self._state, pending.id, verdict, "ada", now, None, edited)
                self._state = self._journal.record(decided, self._state)
        self._end_leg(None)

    def _end_leg(self, query: str | None) -> None:
        """Add what happened to the legs. A process that died before its first append left nothing."""
        if self._journal.states:
            meanwhile = [(count, canonical_messages(state)) for count, state in self._journal.states]
            leg = Leg(query, list(self._sent), canonical_messages(self._state), self._state, meanwhile)
            self._legs.append(leg)
        self._sent.clear()
        self._journal.states.clear()
        self._clock.advance(60)


def _agent(dice: random.Random, clock: FakeClock) -> Agent:
    async def work(value: str = "") -> str:
        for _ in range(dice.randint(0, 2)):
            await asyncio.sleep(0)
        clock.advance(0.25)
        return value * 40

    async def fail(value: str = "") -> str:
        raise RuntimeError(f"it broke: {value}")

    tools = [tool(name="work")(work), tool(name="fail")(fail)]
    tools.append(tool(name="again", idempotent=True)(work))
    tools.append(tool(name="guarded", needs_approval=True)(work))
    model = RandomModel(dice)
    return Agent(
        model,
        tools,
        world=FixedWorld(model, clock),
        error_policy=dice.choice(POLICIES),
        backoff=Backoff(jitter=0),
        hooks=Changer(),
        max_steps=dice.choice([2, 4, 8]),
        max_tokens=dice.choice([None, 400]),
        wrap_up=dice.choice([True, False]),
    )
