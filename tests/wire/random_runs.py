"""Sessions of any kind, with hostile texts in them: their events and their journal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support import MemoryJournal, scripted
from whyloop import (
    Agent,
    AgentState,
    AgentStatus,
    Backoff,
    Block,
    Budget,
    ContinuationCriteria,
    ErrorPolicy,
    FinishReason,
    Hook,
    ModelRequest,
    ModelResponse,
    TextDelta,
    ToolCall,
    ToolContext,
    ToolResult,
    Usage,
    Verdict,
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
from whyloop.loop.executions import recover_run, resume_run, start_run
from whyloop.loop.hooks import RunTool
from whyloop.loop.run import Run as LoopRun
from whyloop.rules.criteria import fork_transitions, stop_transitions
from whyloop.testing import FakeClock, call, calls as several
from whyloop.values.approval import Question
from whyloop.values.decisions import decide, fork_questions
from whyloop.values.scalars import new_id
from whyloop.values.step_transitions import AnyTransition
from whyloop.values.text import clean
from whyloop.values.transitions import Forked
from whyloop.wire.view import read_back

Run = list[AgentEvent]

SESSION = "the session"
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
            {"value": "change me"},
            {"value": "block me"},
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
        ["work", "work", "again", "guarded", "guarded", "fail", "no_such_tool", "__proto__", "</b>\ud800"]
    ),
    arguments,
)


class Said(NamedTuple):
    """A reply of a model: in chunks or at once, complete or broken off."""

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
_KINDS = ["query", "resume", "resume", "decide", "decide", "stop"]
happenings = st.tuples(st.sampled_from(_KINDS), st.integers(0, 9))
crashing = st.tuples(st.sampled_from([*_KINDS, "crash", "crash", "recover"]), st.integers(0, 9))


HUGE_USAGE = Usage(input=2**60, output=5)


class CrashError(Exception):
    """The process ends here."""


class Talker:
    """A model that gives these replies one after the other, and then ends every run."""

    def __init__(self, script: Sequence[Said], usage: Usage) -> None:
        self._script, self._usage = iter(script), usage

    async def respond(self, request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        now = next(self._script, Said(["The end."], [], True, False, FinishReason.STOP))
        if now.streamed:
            for piece in now.pieces:
                yield TextDelta(piece)
        if now.breaks:
            raise ModelError("it broke off \ud800")
        yield ModelResponse("".join(now.pieces), tuple(now.calls), now.finish_reason, self._usage)


class Changer(Hook):
    """Changes some calls, blocks some, and replaces some results."""

    async def before_tool(self, call: ToolCall, context: ToolContext) -> ToolCall | Block:
        value = call.arguments.get("value") if isinstance(call.arguments, dict) else None
        if value == "block me":
            return Block("blocked </b>")
        return replace(call, arguments={"value": "changed"}) if value == "change me" else call

    async def around_tool(self, call: ToolCall, context: ToolContext, run: RunTool) -> ToolResult:
        result = await run()
        return ToolResult("replaced") if result.content == "changed" else result


class Recorder(MemoryJournal):
    """A journal in memory that keeps the states after each entry, and whose process may die."""

    def __init__(self) -> None:
        super().__init__(SESSION)
        self.states: list[AgentState] = []
        self._lives: int | None = None
        self._dies_after_write = False

    def create(self, agent: Agent, metadata: Any = None) -> AgentState:
        self.states.append(super().create(agent, metadata))
        return self.states[-1]

    def record(self, transitions: Sequence[AnyTransition], before: AgentState) -> AgentState:
        """Record transitions outside of a run."""
        after = before
        for transition in transitions:
            after = transition.apply_to(after)
        self.write(transitions, before)
        self.states.append(after)
        return after

    def crash(self, number: int) -> None:
        """Let the process die in an append: the first for 0 and 1, the second for 2 and 3, and so on.

        An even number loses the entry; with an odd one it is written, and its events are never sent.
        """
        self._lives, self._dies_after_write = number // 2, bool(number % 2)

    async def append(
        self, transitions: Sequence[AnyTransition], before: AgentState, after: AgentState
    ) -> str | None:
        await asyncio.sleep(0)
        dies, self._lives = self._lives == 0, None if not self._lives else self._lives - 1
        if not dies or self._dies_after_write:
            self.write(transitions, before)
            self.states.append(after)
        if dies:
            raise CrashError
        return None


class Scene:
    """An agent, its session, and the things that can happen to it."""

    def __init__(
        self,
        script: Sequence[Said],
        policy: ErrorPolicy,
        max_steps: int,
        *,
        wrap_up: bool = False,
        usage: Usage = HUGE_USAGE,
        **options: Any,
    ) -> None:
        self.journal = Recorder()
        self.runs: list[Run] = []
        """The events of each run: of a query, a resume, a recovery, or a decision between them."""
        self.crashed = False
        """True if the process of the last run died."""
        self._stop_after = -1
        self.clock = FakeClock()

        async def work(value: Any = "") -> Any:
            self.clock.advance(0.5)
            await asyncio.sleep(0)
            return value

        async def fail(value: Any = "") -> str:
            raise RuntimeError("it broke \ud800 </b>")

        self.agent = Agent(
            Talker(script, usage),
            [
                tool(name="work")(work),
                tool(name="again", idempotent=True)(work),
                tool(name="guarded", needs_approval=True)(work),
                tool(name="fail")(fail),
            ],
            instructions="Be brief.",
            clock=self.clock,
            error_policy=policy,
            backoff=Backoff(jitter=0),
            max_steps=max_steps,
            wrap_up=wrap_up,
            hooks=Changer(),
            event_handler=self._hear,
            **options,
        )
        self.state = self.journal.create(self.agent)

    def _hear(self, event: AgentEvent) -> None:
        self.runs[-1].append(event)
        self._stop_after -= 1
        if self._stop_after == 0:
            self.agent.request_stop("enough \ud800")

    async def happens(self, what: str, number: int) -> None:
        agent, journal, state = self.agent, self.journal, self.state
        match what:
            case "query":
                await self._run(start_run(agent, f"question {number}", state, journal=journal))
            case "resume" if state.messages and state.status is not AgentStatus.COMPLETED:
                grant = Budget(steps=number, seconds=10 * number) if number else None
                await self._run(resume_run(agent, state, grant=grant, journal=journal))
            case "recover" if state.status is AgentStatus.IN_PROGRESS:
                await self._run(recover_run(agent, state, journal))
            case "decide" if state.pending_calls:
                self._decide(number)
            case "stop":
                self._stop_after = number
            case "stop_without_a_runner" if self._waits_for_a_runner:
                criteria = agent.criteria if number % 2 else None
                self._record(stop_transitions(state, "enough", self.clock.now(), criteria=criteria))
            case "fork" if state.messages:
                self._fork(agent.criteria if number % 2 else None)
            case "wait":
                self.clock.advance(10 * number)
            case "crash":
                journal.crash(number)

    async def _run(self, run: LoopRun) -> None:
        self.runs.append([])
        self.crashed = False
        try:
            self.state = await run.finish()
        except CrashError:
            self.crashed, self.state = True, self.journal.state
            await run.end()

    def _decide(self, number: int) -> None:
        """Decide the first question, and send the events of that as a session does."""
        pending = self.state.pending_calls[0]
        verdict = [Verdict.APPROVED, Verdict.DENIED, Verdict.EDITED][number % 3]
        if verdict is Verdict.EDITED and not pending.tool_call_id:
            verdict = Verdict.APPROVED  # A question about the run has no arguments.
        edited = {"value": "edited"} if verdict is Verdict.EDITED else None
        reason = "no \ud800" if verdict is Verdict.DENIED else None
        self._record(decide(self.state, pending.id, verdict, "ada", self.clock.now(), reason, edited))

    @property
    def _waits_for_a_runner(self) -> bool:
        return self.state.status in (AgentStatus.IN_PROGRESS, AgentStatus.PAUSED)

    def _fork(self, criteria: ContinuationCriteria | None) -> None:
        """Let the session go on as its own fork."""
        state, now = self.state, self.clock.now()
        questions = fork_questions(state, new_id)
        asked = state.execution.question if not questions else None
        fork = Forked(
            now,
            identity=new_id(),
            execution_id=new_id(),
            from_agent_id="another session",
            step=len(state.steps),
            questions=questions,
            question=asked and Question(new_id(), asked.text),
        )
        self._record(fork_transitions(state, fork, criteria))

    def _record(self, made: Sequence[AnyTransition]) -> None:
        """Record transitions without a run, and send their events as a session does."""
        self.runs.append(list(read_back(self.state, made)))
        self.state = self.journal.record(made, self.state)


class Scenario(NamedTuple):
    """A session that is yet to happen."""

    script: Sequence[Said]
    policy: ErrorPolicy
    max_steps: int
    happening: Sequence[tuple[str, int]]
    wrap_up: bool = False
    options: Mapping[str, Any] = {}

    async def scene(self) -> Scene:
        """Let it happen."""
        scene = Scene(self.script, self.policy, self.max_steps, wrap_up=self.wrap_up, **self.options)
        for what, number in [("query", 0), *self.happening]:
            await scene.happens(what, number)
        return scene

    def play(self) -> Scene:
        return asyncio.run(self.scene())

    def runs(self) -> list[Run]:
        """Return the events of each run."""
        return [run for run in self.play().runs if any(isinstance(e, AgentExecutionStarted) for e in run)]


scenarios = st.builds(
    Scenario,
    st.lists(said, max_size=6),
    policies,
    st.sampled_from([1, 3, 20]),
    st.lists(happenings, min_size=2, max_size=8),
    st.booleans(),
    st.just({}),
)
crashing_scenarios = st.builds(
    Scenario,
    st.lists(said, max_size=6),
    policies,
    st.sampled_from([1, 3, 20]),
    st.lists(crashing, min_size=2, max_size=10),
    st.booleans(),
    st.just({}),
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


def hand_made(text: str, arguments: Any) -> Run:
    """Return a run in which every text is this one, and whose end is missing."""
    common: dict[str, Any] = {
        "agent_id": text,
        "parent_agent_id": None,
        "execution_id": text,
        "step_number": 1,
        "time": datetime(2026, 1, 16, tzinfo=UTC),
    }
    return [
        AgentExecutionStarted(**common, query=None, resumed=False),
        StreamChunkReceived(**common, chunk=text, chunk_index=0, is_complete=False),
        ToolCallStarted(**common, tool=text, tool_call_id=text, args=arguments, changed_by=(text,)),
        ToolCallCompleted(
            **common,
            tool=text,
            tool_call_id=text,
            success=False,
            error=text,
            duration_ms=1.0,
            result=text,
            changed_by=(text,),
        ),
    ]


def own_run(events: Run) -> Run:
    """Return the events of a run up to its end or pause, without those of an execution that it superseded.

    A stop request that arrives with a pause ends the execution after it.
    """
    started = next(event for event in events if isinstance(event, AgentExecutionStarted))
    own = [event for event in events if event.execution_id == started.execution_id]
    ends = [isinstance(e, AgentStatusChanged) and e.status is not AgentStatus.IN_PROGRESS for e in own]
    return own[: ends.index(True) + 1]


def texts_of(run: Run) -> list[str]:
    """Return the text of each step, and the answer that arrived at once if there was one."""
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


async def two_payments_asked() -> tuple[Agent, AgentState, Run]:
    """An agent that asks about two payments, its state at the pause, and its events."""

    @tool(needs_approval=True)
    async def pay(amount: int) -> str:
        return f"paid {amount}"

    events: Run = []
    asked = several(call("pay", {"amount": 5}, id="pay_1"), call("pay", {"amount": 7}, id="pay_2"))
    agent = scripted(asked, "Done.", tools=[pay], event_handler=events.append)
    return agent, await agent.run("Pay"), events
