"""A session that lives over several processes, each of which may crash before or after any append."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from tests.support import MemoryJournal
from whyloop import (
    Agent,
    AgentState,
    AgentStatus,
    Backoff,
    ErrorPolicy,
    FinishReason,
    Hook,
    ModelRequest,
    ModelResponse,
    TextDelta,
    Tool,
    ToolCall,
    ToolContext,
    Usage,
    Verdict,
    WrapUp,
)
from whyloop.events import AgentEvent, AgentStepStarted, StreamChunkReceived
from whyloop.loop.executions import recover_run, resume_run, start_run
from whyloop.loop.run import Run
from whyloop.loop.world import Timer
from whyloop.testing import FakeClock
from whyloop.values.approval import PendingCall
from whyloop.values.step_transitions import AnyTransition

LIVE_ONLY = (AgentStepStarted, StreamChunkReceived)
TIMEOUT = 300.0
GRACE = 5.0


class CrashError(Exception):
    """The process dies here."""


class AskedCall(Struct, frozen=True):
    """A tool call that a script asks for: what its tool does while it runs."""

    name: str
    turns: int = 0
    stops: bool = False
    hangs: bool = False
    marked: bool = False
    malformed: bool = False


class Answer(Struct, frozen=True):
    """An answer that a script gives."""

    text: str = ""
    calls: tuple[AskedCall, ...] = ()
    finish_reason: FinishReason = FinishReason.TOOL_CALLS
    stops: bool = False
    hangs: bool = False


ScriptItem = Answer | Exception


class TurnClock(FakeClock):
    """A clock whose timers fire in the next turn of the event loop once it is moved past them."""

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        return _TurnTimer(self, seconds, callback)


class _TurnTimer:
    def __init__(self, clock: FakeClock, seconds: float, callback: Callable[[], None]) -> None:
        self._clock, self._callback = clock, callback
        self._deadline = clock.monotonic() + seconds
        self._loop = asyncio.get_running_loop()
        clock.watch(self)  # type: ignore[arg-type]
        self.notice(clock.monotonic())

    def cancel(self) -> None:
        self._clock.forget(self)  # type: ignore[arg-type]

    def notice(self, elapsed: float) -> None:
        if elapsed >= self._deadline:
            self._clock.forget(self)  # type: ignore[arg-type]
            self._loop.call_soon_threadsafe(self._callback)


class CrashingJournal(MemoryJournal):
    """A journal that crashes before or after some of its appends, counted from 1."""

    def __init__(self, crashes: Iterable[tuple[int, str]] = ()) -> None:
        super().__init__()
        self.crashes = dict(crashes)
        self.appends = 0

    async def append(
        self, transitions: Sequence[AnyTransition], before: AgentState, after: AgentState
    ) -> str | None:
        self.appends += 1
        crash = self.crashes.get(self.appends)
        if crash == "before":
            raise CrashError
        self.write(transitions, before)
        if crash == "after":
            raise CrashError
        return None


class MarkingHook(Hook):
    """Changes the calls that ask for it, and counts how often it was asked."""

    def __init__(self, seen: list[str]) -> None:
        self.seen = seen

    async def before_tool(self, call: ToolCall, context: ToolContext) -> ToolCall:
        if not isinstance(call.arguments, str):
            self.seen.append(call.arguments["ticket"])
            if call.arguments["marked"]:
                return replace(call, arguments={**call.arguments, "turns": 1})
        return call


class Processes:
    """Everything that outlives a process: the script, what tools did, what handlers received."""

    def __init__(
        self,
        script: Sequence[ScriptItem],
        crashes: Iterable[tuple[int, str]] = (),
        policy: ErrorPolicy | None = None,
        max_steps: int = 6,
        *,
        wrap_up: bool = False,
    ) -> None:
        self.wrap_up: dict[str, Any] = {"wrap_up": WrapUp(seconds=TIMEOUT / 2)} if wrap_up else {}
        self.script, self.policy, self.max_steps = iter(script), policy or ErrorPolicy.retry_all(2), max_steps
        self.journal, self.clock = CrashingJournal(crashes), TurnClock()
        self.ran: list[tuple[str, str]] = []
        self.hooked: list[str] = []
        self.sent: list[AgentEvent] = []
        self.decided: set[int] = set()
        self.run: Run | None = None
        self.tickets = 0
        self.state = self.journal.create(self.agent())

    def agent(self) -> Agent:
        """The agent of a new process."""
        tools = [
            Tool(self._function("pay"), name="pay"),
            Tool(self._function("look_up"), name="look_up", idempotent=True),
            Tool(self._function("refund"), name="refund", needs_approval=True),
            Tool(self._function("break"), name="break"),
        ]
        return Agent(
            self,
            tools,
            clock=self.clock,
            max_steps=self.max_steps,
            max_tokens=10_000,
            timeout=TIMEOUT,
            stop_grace=GRACE,
            **self.wrap_up,
            error_policy=self.policy,
            backoff=Backoff(jitter=0),
            hooks=MarkingHook(self.hooked),
        )

    def _function(self, name: str) -> Callable[..., Any]:
        async def function(ticket: str, turns: int, stops: bool, hangs: bool, marked: bool) -> str:
            for _ in range(turns):
                await asyncio.sleep(0)
            self.clock.advance(0.25)
            self.ran.append((name, ticket))
            if stops:
                self.request_stop("enough, says a tool")
            if hangs:
                await self._hang()
            if name == "break":
                raise RuntimeError(f"broken {ticket}")
            return f"ok {ticket}"

        return function

    async def respond(self, request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        item = next(self.script, Answer("The end.", finish_reason=FinishReason.STOP))
        self.clock.advance(0.5)
        if isinstance(item, Exception):
            raise item
        if item.text:
            yield TextDelta(item.text[:2])
        if item.stops:
            self.request_stop("enough, says the user")
            await asyncio.Event().wait()
        if item.hangs:
            await self._hang()
        if item.text[2:]:
            yield TextDelta(item.text[2:])
        calls = tuple(self._call(asked) for asked in item.calls)
        yield ModelResponse(item.text, calls, item.finish_reason, Usage(5, 2))

    def _call(self, asked: AskedCall) -> ToolCall:
        self.tickets += 1
        ticket = f"t{self.tickets}"
        if asked.malformed:
            return ToolCall(f"call_{asked.turns}", asked.name, f"{{{ticket}")
        arguments = {
            "ticket": ticket,
            "turns": asked.turns,
            "stops": asked.stops,
            "hangs": asked.hangs,
            "marked": asked.marked,
        }
        return ToolCall(f"call_{asked.turns}", asked.name, arguments)

    async def _hang(self) -> None:
        """Wait for ever, past the time limit and the grace period."""
        self.clock.advance(TIMEOUT)
        for _ in range(4):
            await asyncio.sleep(0)
        self.clock.advance(GRACE)
        await asyncio.Event().wait()

    def request_stop(self, reason: str) -> None:
        assert self.run is not None
        self.run.request_stop(reason)

    def decide(self, pending: PendingCall, approve: bool) -> None:
        """Answer a question; whether a call ran is seen from the work of the tools."""
        state = self.journal.state
        if state.open_step is not None and pending.tool_call_id:
            index = [c.question.id if c.question else None for c in state.open_step.calls].index(pending.id)
            question = state.open_step.calls[index].question
            if question is not None and question.uncertain:
                approve = pending.arguments["ticket"] not in [ticket for _, ticket in self.ran]
        verdict = Verdict.APPROVED if approve or not pending.tool_call_id else Verdict.DENIED
        self.decided.add(len(self.journal.entries))
        self.journal.decide(pending.id, verdict, "ada", self.clock.now())
        count = len(self.journal.entries)
        self.journal.decide(pending.id, verdict, "ada", self.clock.now())
        assert len(self.journal.entries) == count  # To decide the same again changes nothing.

    async def live(
        self, queries: int = 2, *, approve: bool = True, impatient: bool = False, resume: bool = False
    ) -> AgentState:
        """Ask every query and drive it to its end, over as many processes as it takes.

        An impatient user asks the next query instead of deciding; another one resumes once what was stopped.
        """
        asked, resumed = 0, not resume
        for _ in range(80):
            self.clock.advance(1)
            state, agent, run = self.journal.state, self.agent(), None
            if state.status is AgentStatus.IN_PROGRESS:
                run = recover_run(agent, state, self.journal, [self.sent.append])
            elif state.status is AgentStatus.PAUSED and not (impatient and asked < queries):
                for pending in state.pending_calls:
                    self.decide(pending, approve)
                run = resume_run(agent, self.journal.state, journal=self.journal, handlers=[self.sent.append])
            elif state.status is AgentStatus.STOPPED and not resumed:
                resumed = True
                run = resume_run(agent, state, journal=self.journal, handlers=[self.sent.append])
            elif asked < queries:
                asked = sum(message.is_user for message in state.messages) + 1
                query = f"query {asked}"
                run = start_run(agent, query, state, journal=self.journal, handlers=[self.sent.append])
            if run is None:
                return state
            await self._finish(agent, run)
            asked = sum(message.is_user for message in self.journal.state.messages)
        raise AssertionError(f"the run does not end: {state.explain()}")

    async def _finish(self, agent: Agent, run: Run) -> None:
        self.run = run
        try:
            self.state = await run.finish()
        except CrashError:
            await run.end()
        else:
            assert self.journal.state == self.state
