"""Random schedules of what arrives at one session on Temporal, with a store that takes its time.

A schedule is made from its number alone: what arrives when, and how long the store takes for each call.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any, NamedTuple

from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.client import WorkflowExecutionStatus

from tests.real.temporal import Fleet, TemporalServer, fleet
from whyloop import Agent, AgentStatus, tool
from whyloop.errors import ApprovalError, KeyUsedError, NotResumableError, SessionRunningError
from whyloop.stores import MemoryStore
from whyloop.stores.records import RequestKey
from whyloop.temporal import TemporalRecovery, TemporalSession, wake
from whyloop.tools.tool import ToolContext
from whyloop.values.approval import PendingCall, Verdict
from whyloop.values.messages import MessageRole, ToolCall
from whyloop.values.model import ModelRequest, ModelResponse

SLOWEST_STORE = 0.5
ARRIVALS = (3, 8)
SECONDS_OF_ARRIVALS = 3.0
SECONDS_UNTIL_STUCK = 300.0
AT_ONCE = 10
REFUSALS = (ApprovalError, KeyUsedError, NotResumableError, SessionRunningError)
"""What a client may be told when another one was faster."""

SLOW = (
    "append",
    "read",
    "checkpoint",
    "key",
    "acquire",
    "renew",
    "release",
    "ask_to_stop",
    "record_workflow",
)


class SlowStore(MemoryStore):
    """A store in which a call takes up to half a second before its work, and after it."""

    inline = False

    def __init__(self) -> None:
        super().__init__()
        self.chances: dict[str, random.Random] = {}
        """What decides how long the store takes, by session; for others it takes no time."""


def _slowly(name: str) -> Callable[..., Awaitable[Any]]:
    work = getattr(MemoryStore, name)

    async def slowly(self: SlowStore, session: Any, *args: Any, **options: Any) -> Any:
        """Do it whole, even if the caller is cancelled: that is the contract of a store."""
        agent_id = session if isinstance(session, str) else session.agent_id
        before, after = _pauses(self.chances.get(agent_id))

        async def whole() -> Any:
            await asyncio.sleep(before)
            done = await work(self, session, *args, **options)
            await asyncio.sleep(after)
            return done

        doing, cancelled = asyncio.ensure_future(whole()), None
        while not doing.done():
            try:
                await asyncio.wait([doing])
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None and doing.exception() is None:
            raise cancelled
        return doing.result()

    return slowly


def _pauses(chance: random.Random | None) -> tuple[float, float]:
    """Return how long the store takes before its work, and after it: together at most its slowest."""
    if chance is None or chance.random() < 0.5:
        return 0.0, 0.0
    seconds = chance.uniform(0, SLOWEST_STORE)
    before = seconds * chance.random()
    return before, seconds - before


for name in SLOW:
    setattr(SlowStore, name, _slowly(name))


class Clerk:
    """A model that asks for one or two payments in each query, counts them, and then is done."""

    async def respond(self, request: ModelRequest) -> AsyncIterator[ModelResponse]:
        since = [message.role for message in request.messages]
        last = len(since) - since[::-1].index(MessageRole.USER)
        done = sum(role is MessageRole.TOOL for role in since[last:])
        asked = 2 if request.messages[last - 1].text.endswith("twice") else 1
        if done < asked:
            pays = [ToolCall(f"p{last}-{n}", "pay", {"amount": n}) for n in range(asked)]
            yield ModelResponse(tool_calls=tuple(pays))
        elif done == asked:
            yield ModelResponse(tool_calls=(ToolCall(f"c{last}", "count", {}),))
        else:
            yield ModelResponse("done")


def clerk(paid: Counter[str]) -> Agent[Any, Any]:
    """Return an agent whose payments need an approval and are counted."""

    @tool(needs_approval=True)
    async def pay(amount: int, context: ToolContext) -> str:
        """Pay an amount."""
        paid[f"{context.idempotency_key} of {context.agent_id}"] += 1
        await asyncio.sleep(0.05)
        return f"paid {amount}"

    @tool(idempotent=True)
    async def count() -> str:
        """Count the payments."""
        return "counted"

    return Agent(Clerk(), [pay, count], name="clerk", timeout=None, max_steps=20, stop_grace=0.1)


class Arrival(NamedTuple):
    """What arrives at a session, and when."""

    seconds: float
    kind: str
    choice: float


class Schedule:
    """What arrives at one session, all of it chosen by a number."""

    def __init__(self, number: int, here: Fleet) -> None:
        chance = random.Random(f"schedule {number}")
        count = chance.randint(*ARRIVALS)
        self.number, self._here, self.agent_id = number, here, f"s{number}"
        self.arrivals = sorted(
            Arrival(chance.uniform(0, SECONDS_OF_ARRIVALS), chance.choice(list(KINDS)), chance.random())
            for _ in range(count)
        )
        self.session: TemporalSession
        self._keys = 0

    async def play(self) -> None:
        """Let everything arrive, then bring the session to an end; an error says what went wrong."""
        here, store = self._here, self._here.store
        assert isinstance(store, SlowStore)
        self.session = await here.session("clerk", self.agent_id)
        store.chances[self.agent_id] = random.Random(f"store of schedule {self.number}")
        await self._send("Go")
        async with asyncio.TaskGroup() as tasks:
            for arrival in self.arrivals:
                tasks.create_task(self._arrive(arrival))
        await self._come_to_an_end()
        await self._check()

    async def _arrive(self, arrival: Arrival) -> None:
        await asyncio.sleep(arrival.seconds)
        client = await self._here.session("clerk", self.agent_id)
        await _allowed(KINDS[arrival.kind](self, client, arrival.choice))

    async def _send(self, text: str) -> None:
        self._keys += 1
        key = RequestKey(f"key {self._keys}", "digest")
        await _allowed(self.session.begin(text, key=key))

    async def _come_to_an_end(self) -> None:
        """Answer all questions and resume, until the session and its workflow have ended."""
        while not await self._has_ended():
            for question in self.session.state.pending_calls:
                decide = self.session.deny if _may_have_run(question) else self.session.approve
                await _allowed(decide(question.id))
            if self.session.state.status is AgentStatus.PAUSED:
                await _allowed(self.session.resume())
            await asyncio.sleep(0.1)

    async def _has_ended(self) -> bool:
        found = await self.session.handle.describe()
        state = (
            await self.session.refresh()
        )  # A run that began before the workflow ended is in the store now.
        runner = (await self._here.store.read(self.agent_id, limit=0)).summary.runner
        is_running = found.status is WorkflowExecutionStatus.RUNNING
        return state.status.has_ended and runner is None and not is_running

    async def _check(self) -> None:
        """The workflow has not failed, no task of it failed, it replays, and no query ran twice."""
        found = await self.session.handle.describe()
        assert found.status is WorkflowExecutionStatus.COMPLETED, f"its workflow is {found.status}"
        failed = await failed_tasks(self._here, self.agent_id)
        assert not failed, f"workflow tasks failed: {failed}"
        await self._here.replay(self.agent_id)
        queries = [each.text for each in self.session.state.messages if each.is_user]
        assert len(queries) == len(set(queries)), f"a query ran twice: {queries}"

    async def now(self) -> str:
        """Return where the session is, its workflow, and what arrived at it."""
        summary = (await self._here.store.read(self.agent_id, limit=0)).summary
        found = await self.session.handle.describe()
        ends = [EventType.Name(history.events[-1].event_type) for history in await self._histories()]
        return (
            f"the session is {summary.status}, run by {summary.runner}; its workflow is {found.status!r}, "
            f"and its runs end with {ends}; what arrived: {self.arrivals}"
        )

    async def _histories(self) -> Any:
        return await self._here.histories(self.agent_id)


async def _allowed(work: Awaitable[Any]) -> None:
    with suppress(*REFUSALS):
        await work


# What arrives


def _may_have_run(question: PendingCall) -> bool:
    """Return whether a call was interrupted: nobody approves it, so no call runs twice."""
    return question.question.startswith("It is unknown whether")


async def _decide(schedule: Schedule, client: TemporalSession, choice: float) -> None:
    """Decide a question, and often once more."""
    for question in client.state.pending_calls:
        if choice < 0.2 or _may_have_run(question):
            await client.deny(question.id, "no", by="Ann")
        elif choice < 0.6:
            await client.approve(question.id, by="Ann")
        else:
            await client.edit(question.id, {"amount": 9}, by="Ann")


async def _decide_twice(schedule: Schedule, client: TemporalSession, choice: float) -> None:
    await asyncio.gather(*[_allowed(_decide(schedule, client, choice)) for _ in range(2)])


async def _decide_in_store(schedule: Schedule, client: TemporalSession, choice: float) -> None:
    """Decide like the inspector and the command line do, which do not know of the workflow."""
    for question in client.state.pending_calls:
        is_denied = choice > 0.6 or _may_have_run(question)
        verdict = Verdict.DENIED if is_denied else Verdict.APPROVED
        await client.store.decide(client.agent_id, question.id, verdict)


async def _decide_all(schedule: Schedule, client: TemporalSession, choice: float) -> None:
    """Wait for questions, and decide them in any of these ways."""
    while not (state := await client.refresh()).pending_calls and not state.status.has_ended:
        await asyncio.sleep(0.05)
    decide = _decide_in_store if choice < 0.5 else _decide_twice
    await decide(schedule, client, random.Random(choice).random())


async def _wake(schedule: Schedule, client: TemporalSession, choice: float) -> None:
    here = schedule._here
    for _ in range(1 + int(2 * choice)):
        await wake(
            here.client, (await here.store.read(client.agent_id, limit=0)).summary, task_queue=here.task_queue
        )


async def _send(schedule: Schedule, client: TemporalSession, choice: float) -> None:
    await client.begin(f"Go {choice}{' twice' if choice < 0.3 else ''}")


async def _send_again(schedule: Schedule, client: TemporalSession, choice: float) -> None:
    """Send a query with a key, and again at once and later."""
    key, text = RequestKey(f"again {choice}", "digest"), f"Go again {choice}"
    await asyncio.gather(*[_allowed(client.begin(text, key=key)) for _ in range(2)])
    await asyncio.sleep(choice)
    await client.begin(text, key=key)


async def _resume(schedule: Schedule, client: TemporalSession, choice: float) -> None:
    key = RequestKey(f"resume {choice}", "digest") if choice < 0.5 else None
    await client.begin_resume(key=key)
    await client.begin_resume(key=key)


async def _stop(schedule: Schedule, client: TemporalSession, choice: float) -> None:
    await client.request_stop(f"stop {choice}")


async def _stop_in_store(schedule: Schedule, client: TemporalSession, choice: float) -> None:
    await client.store.request_stop(client.agent_id, f"stop {choice}")


KINDS: dict[str, Callable[[Schedule, TemporalSession, float], Awaitable[None]]] = {
    "decide": _decide,
    "decide again": _decide_twice,
    "decide in the store": _decide_in_store,
    "wait and decide": _decide_all,
    "wake": _wake,
    "send": _send,
    "send again": _send_again,
    "resume": _resume,
    "stop": _stop,
    "stop in the store": _stop_in_store,
}


async def failed_tasks(here: Fleet, agent_id: str) -> list[str]:
    """Return why workflow tasks of a session failed; one that ends too early for a signal is none of them."""
    too_early = WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND
    found = []
    for history in await here.histories(agent_id):
        for event in history.events:
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED:
                given = event.workflow_task_failed_event_attributes
                if given.cause != too_early:
                    found.append(given.failure.message)
    return found


async def play(server: TemporalServer, numbers: list[int]) -> list[str]:
    """Play the schedules of these numbers, some at once; return what went wrong, by number."""
    paid: Counter[str] = Counter()
    wrong: list[str] = []
    at_once = asyncio.Semaphore(AT_ONCE)
    async with fleet(server, SlowStore(), [clerk(paid)]) as here:

        async def play_one(number: int) -> None:
            schedule = Schedule(number, here)
            async with at_once:
                try:
                    await asyncio.wait_for(schedule.play(), SECONDS_UNTIL_STUCK)
                except BaseException as error:
                    wrong.append(f"schedule {number}: {_why(error)}\n  {await schedule.now()}")

        recovery = TemporalRecovery(
            here.client, here.store, ["clerk"], task_queue=here.task_queue, every_seconds=0.2
        )
        async with recovery:
            await asyncio.gather(*[play_one(number) for number in numbers])
    wrong += [f"the call {key} ran {count} times" for key, count in paid.items() if count > 1]
    return wrong


def _why(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return f"it was stuck after {SECONDS_UNTIL_STUCK:g} s"
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(_why(each) for each in error.exceptions)
    return f"{type(error).__name__}: {error}"
