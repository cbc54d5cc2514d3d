"""The activities of a worker: storing what a workflow recorded, model calls and tool calls."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from msgspec.structs import replace
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from whyloop.errors import (
    ConflictError,
    KeyUsedError,
    LeaseLostError,
    SessionNotFoundError,
    StoreUnavailableError,
    WhyloopError,
)
from whyloop.logger import Logger
from whyloop.loop.agent import Agent
from whyloop.loop.calls import run_call
from whyloop.loop.executions import refuse_edit
from whyloop.loop.model_call import answer_transitions, failure_transition
from whyloop.loop.nesting import running_inside
from whyloop.loop.run import Run
from whyloop.loop.setup import Handler, Setup, send
from whyloop.loop.step import StepInProgress
from whyloop.rules.classification import error_text, tool_failure
from whyloop.sessions.session import MakeDeps, deps_for, send_live
from whyloop.stores.live import live
from whyloop.stores.reading import Reading, read_end, read_session, read_version
from whyloop.stores.records import Lease
from whyloop.stores.store import Store
from whyloop.temporal.claims import read_opened, too_large
from whyloop.temporal.connection import engine_of, record_open, signal
from whyloop.temporal.fleet import agent_named, refusal, refused
from whyloop.temporal.payloads import (
    WORKER_SHUTDOWN,
    Appendix,
    Ask,
    Call,
    Called,
    Decide,
    ModelAnswer,
    Open,
    Opened,
    Part,
    Repeatable,
    Start,
    Stop,
)
from whyloop.temporal.world import outcome_of
from whyloop.values.failure import ErrorType
from whyloop.values.messages import ToolResult
from whyloop.values.step_transitions import AnyTransition
from whyloop.wire.journal import decode_entries
from whyloop.wire.view import read_back

LEASE_SECONDS = 300.0
BEAT_SECONDS = 1.0
READINGS = 256
LISTINGS = 1024
_FIRST_WAIT, _LONGEST_WAIT = 0.2, 5.0

AnyAgent = Agent[Any, Any]
T = TypeVar("T")

_log = Logger()


@contextmanager
def _explained() -> Iterator[None]:
    """Raise errors so that Temporal only retries while the store is unavailable."""
    try:
        yield
    except (StoreUnavailableError, ApplicationError):
        raise
    except WhyloopError as error:  # Temporal logs no traceback of a benign error.
        same_store = ": give the workers and their clients the same store"
        _log.warning("%s%s", error, same_store if isinstance(error, SessionNotFoundError) else "")
        raise refusal(str(error), type(error).__name__, ApplicationErrorCategory.BENIGN) from None
    except Exception as error:
        raise refused(error) from error


class Activities:
    """The work of a worker on sessions that Temporal runs.

    Each worker reads a session once, and afterwards only what is new, because it remembers recent sessions.

    Args:
        store: The store of the sessions.
        agents: The agents by name.
        deps: A function from a session's summary to the deps for its run. Default: none.
        handlers: Functions that receive the events of the sessions. Default: none.
    """

    def __init__(
        self,
        store: Store,
        agents: Mapping[str, AnyAgent],
        *,
        deps: MakeDeps | None = None,
        handlers: Iterable[Handler] = (),
    ) -> None:
        self.store = store
        self.agents = agents
        self._make_deps = deps
        self._handlers = tuple(handlers)
        self._readings: OrderedDict[str, Reading] = OrderedDict()
        self._listed: OrderedDict[str, Setup] = OrderedDict()
        self._listing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @property
    def all(self) -> list[Callable[..., Any]]:
        """The activities, as a worker takes them."""
        return [self.open, self.append, self.ask, self.call, self.decide, self.stop, self.repeatable]

    @activity.defn(name="whyloop_open")
    async def open(self, given: Open) -> Opened:
        """Acquire the lease of a session, and return what was recorded since a version.

        Every run of a workflow begins with this activity, so it records a workflow that no client recorded.
        """
        start, workflow = given.start, activity.info().workflow_id or ""
        agent_id, lease = start.agent_id, None
        with _explained():
            await record_open(activity.client(), self.store, agent_id, workflow)
            if given.acquire:
                await self._refuse_missing_deps(start)
                key = given.key
                if key is not None and (used := await self.store.key(agent_id, key.key)) is not None:
                    raise KeyUsedError(agent_id, key.key, *used)
                owner = engine_of(activity.client())
                lease = await self.store.acquire(agent_id, owner, LEASE_SECONDS, durable=True)
            try:
                return await read_opened(self.store, Opened(agent_id, "", given.after, (), lease))
            except BaseException:
                if lease is not None:
                    await self.store.release(lease)
                raise

    @activity.defn(name="whyloop_append")
    async def append(self, given: Appendix) -> str | None:
        """Store entries; return the reason of a stop request, if there is one."""
        with _explained():
            return await self._store_entries(given)

    @activity.defn(name="whyloop_ask")
    async def ask(self, given: Ask) -> ModelAnswer:
        """Store entries, then ask the model what to do next."""
        unstored = given.unstored
        async with self._working(unstored.lease) as on_wait:
            stop, reading, setup = await self._prepare(unstored)
            run = Run(setup, reading.state)
            run.stop = stop
            step = StepInProgress(run.world.now(), run.world.monotonic(), setup.request_parts, given.left)
            step.on_wait = on_wait if setup.criteria.deadline_moves else None
            inside = running_inside.set((unstored.lease.agent_id,))
            try:
                transitions = await answer_transitions(run, step)
            except asyncio.CancelledError:
                if not _is_cut_off():
                    raise
                return ModelAnswer(part=_part_of(run, step), stop=stop)
            except Exception as error:
                # Not an error of the model: a script that is too short, or agents nested too deeply.
                transitions = (*run.noted(step), failure_transition(run, step, error))
            finally:
                running_inside.reset(inside)
                await run.end()
                await live(self.store).flush(unstored.lease.agent_id)  # Before the entry that records it.
            self._remember_tools(run)
            answer = ModelAnswer(tuple(transitions), stop=stop)
            if (problem := too_large(answer)) is not None:
                answer = ModelAnswer((failure_transition(run, step, problem),), stop=stop)
            return answer

    @activity.defn(name="whyloop_call")
    async def call(self, given: Call) -> Called:
        """Store entries, then run one tool call."""
        unstored = given.unstored
        async with self._working(unstored.lease):
            stop, reading, setup = await self._prepare(unstored, end_only=True)
            inside = running_inside.set((unstored.lease.agent_id,))
            try:
                setup = await self._with_tools(setup, reading)
                finished = await run_call(setup, reading.state, given.index, given.deadline)
            finally:
                running_inside.reset(inside)
            opened = reading.state.open_step
            assert opened is not None
            # The results of all calls of a step may be stored in one entry.
            if (error := too_large(finished, share=len(opened.calls))) is not None:
                asked = opened.call_to_run(given.index)
                failure = tool_failure(ErrorType.TOOL, asked, str(error))
                finished = replace(finished, result=ToolResult(f"Error: {error}", str(error), failure))
            return Called(finished, stop)

    @activity.defn(name="whyloop_decide")
    async def decide(self, given: Decide) -> None:
        """Record the decision of a person."""
        decision = given.decision
        with _explained():
            if decision.arguments is not None:
                state = (await read_end(self.store, given.agent_id)).state
                refuse_edit(self._agent(given.agent), state, decision.question_id, decision.arguments)
            await self.store.decide(
                given.agent_id,
                decision.question_id,
                given.verdict,
                by=decision.by,
                reason=decision.reason or None,
                arguments=decision.arguments,
                key=decision.key,
            )

    @activity.defn(name="whyloop_stop")
    async def stop(self, given: Stop) -> None:
        """Stop a session that does not run."""
        with _explained():
            name = (await read_end(self.store, given.agent_id)).summary.agent
            criteria = self.agents[name].criteria if name in self.agents else None
            await self.store.request_stop(given.agent_id, given.reason, criteria=criteria)

    @activity.defn(name="whyloop_repeatable")
    async def repeatable(self, given: Repeatable) -> list[str]:
        """Return which tools of toolsets are idempotent; unknown ones are not."""
        with _explained():
            reading = await read_end(self.store, given.agent_id)
            setup = await self._with_tools(await self._setup(given.agent, reading), reading)
        found = [setup.tools[name] for name in given.names if name in setup.tools]
        return [tool.name for tool, _ in found if tool.idempotent]

    # Storing and reading

    async def _prepare(
        self, unstored: Appendix, *, end_only: bool = False
    ) -> tuple[str | None, Reading, Setup]:
        """Store entries; return a stop request, the session and its agent's setup."""
        stop = await _patiently(lambda: self._store_entries(unstored))
        reading = await _patiently(lambda: self._read(unstored, end_only=end_only))
        return stop, reading, await self._setup(unstored.agent, reading)

    async def _store_entries(self, given: Appendix) -> str | None:
        """Append entries, unless an earlier attempt did; return any stop request."""
        if given.entries:
            return await self._append(given)
        if given.release and (reason := await self.store.release(given.lease)) is not None:
            # The request was left for a run that had just ended, so it is meant for the session.
            criteria = self._agent(given.agent).criteria
            await self.store.request_stop(given.lease.agent_id, reason, criteria=criteria)
        return None

    async def _append(self, given: Appendix) -> str | None:
        agent_id = given.lease.agent_id
        storing = self.store.append(
            agent_id,
            given.entries,
            after=given.after,
            lease=given.lease,
            summary=given.summary,
            release=given.release,
            key=given.key,
        )
        try:
            stop, cancelled = await outcome_of(storing)
        except (ConflictError, LeaseLostError, KeyUsedError) as error:
            stored = await self._count_stored(given)
            if not stored:
                raise refused(error) from None
            if stored < len(given.entries):
                rest = given.entries[stored:]
                return await self._append(replace(given, after=given.after + stored, entries=rest, key=None))
            return None
        except SessionNotFoundError as error:
            raise refused(error) from None
        live(self.store).appended(agent_id)
        await self._send_events(given)
        if cancelled is not None:
            raise cancelled
        return stop

    async def _count_stored(self, given: Appendix) -> int:
        """Return how many of the entries an earlier attempt stored."""
        stored = await self.store.read(given.lease.agent_id, after=given.after, limit=len(given.entries))
        expected = [entry.body for entry in given.entries[: len(stored.entries)]]
        same = stored.summary.identity == given.lease.identity and list(stored.entries) == expected
        return len(expected) if same else 0

    async def _read(self, given: Appendix, *, end_only: bool = False) -> Reading:
        """Return the session with the entries that were just stored."""
        agent_id = given.lease.agent_id
        known = self._readings.get(agent_id)
        if known is not None and (
            known.summary.identity != given.lease.identity or known.version > given.version
        ):
            known = None
        if known is None and end_only:
            return await read_end(self.store, agent_id)
        reading = await read_session(self.store, agent_id, known)
        self._readings[agent_id] = reading
        self._readings.move_to_end(agent_id)
        while len(self._readings) > READINGS:
            self._readings.popitem(last=False)
        return reading

    async def _send_events(self, given: Appendix) -> None:
        """Send the events of new entries to the handlers of the agent and of this worker."""
        handlers = (*self._agent(given.agent)._setup.handlers.all(), *self._handlers)
        if not handlers:
            return
        agent_id = given.lease.agent_id
        known = self._readings.get(agent_id)
        if known is None or known.version != given.after:
            known = await read_version(self.store, agent_id, given.after)
        transitions: list[AnyTransition] = []
        for entry in decode_entries([entry.body for entry in given.entries]):
            transitions += entry.transitions
        send(handlers, list(read_back(known.state, transitions)))

    # Agents and their tools

    def _agent(self, name: str) -> AnyAgent:
        return agent_named(name, self.agents)

    async def _setup(self, name: str, reading: Reading) -> Setup:
        deps = await deps_for(reading.summary, self._make_deps)
        agent_setup = self._agent(name)._setup
        listed = self._listed.get(reading.state.execution.id)
        to_followers: Handler = partial(send_live, live(self.store))
        setup = agent_setup.for_run(deps, [*self._handlers, to_followers])
        setup.refuse_missing_deps()
        return setup if listed is None else replace(setup.with_tools(listed.tools), toolsets=())

    async def _refuse_missing_deps(self, start: Start) -> None:
        summary = (await self.store.read(start.agent_id, limit=0)).summary
        setup = self._agent(start.agent)._setup
        setup.for_run(await deps_for(summary, self._make_deps)).refuse_missing_deps()

    def _remember_tools(self, run: Run) -> None:
        """Cache the tools of toolsets; an execution lists them once per worker."""
        if run.setup.toolsets and not run.must_list:
            self._listed[run.state.execution.id] = run.setup
            while len(self._listed) > LISTINGS:
                self._listed.popitem(last=False)

    async def _with_tools(self, setup: Setup, reading: Reading) -> Setup:
        if not setup.toolsets:
            return setup
        name = reading.state.execution.id
        async with self._listing.setdefault(name, asyncio.Lock()):  # The calls of a step begin together.
            listed = self._listed.get(name)
            if listed is not None:
                return replace(setup.with_tools(listed.tools), toolsets=())
            try:
                setup = await setup.with_listed_tools()
                self._listed[name] = setup
            except Exception as error:
                setup = replace(setup, toolset_error=error_text(error))
        return setup

    # Signs of life

    @asynccontextmanager
    async def _working(self, lease: Lease) -> AsyncIterator[Callable[[float], None]]:
        """Send heartbeats while the work runs, and pass on stop requests.

        Yield a function that passes on the waits of a model, which move a deadline of active time.
        """
        client, workflow = activity.client(), activity.info().workflow_id or ""
        signalled: list[asyncio.Task[bool]] = []
        waits: list[asyncio.Task[bool]] = []

        def on_stop(reason: str) -> None:  # It is called until the run has ended.
            if not signalled or _was_unavailable(signalled[-1]):
                signalled.append(asyncio.ensure_future(signal(client, workflow, "stop", reason)))

        def on_wait(seconds: float) -> None:
            waits.append(asyncio.ensure_future(signal(client, workflow, "waits", seconds)))

        beating = asyncio.create_task(self._beat(lease))
        try:
            with live(self.store).running(lease, on_stop):
                yield on_wait
        except asyncio.CancelledError:
            if _is_cut_off():
                raise
            raise refusal("the worker ended before the work", WORKER_SHUTDOWN) from None
        finally:
            beating.cancel()
            if signalled or waits:  # A wait must not reach the workflow after the answer.
                await asyncio.gather(*signalled, *waits, return_exceptions=True)

    async def _beat(self, lease: Lease) -> None:
        renewed, limit = asyncio.get_running_loop().time(), activity.info().heartbeat_timeout
        pause = BEAT_SECONDS if limit is None else min(BEAT_SECONDS, limit.total_seconds() / 4)
        while True:
            activity.heartbeat()
            await asyncio.sleep(pause)
            now = asyncio.get_running_loop().time()
            if now - renewed > lease.seconds / 3:
                try:
                    await self.store.renew(lease)
                    renewed = now
                except WhyloopError as error:
                    _log.warning("the lease of session %s could not be renewed: %s", lease.agent_id, error)


async def _patiently(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Return the result of work on the store; wait while it is unavailable."""
    seconds = _FIRST_WAIT
    while True:
        try:
            return await work()
        except StoreUnavailableError as error:
            _log.warning("the store is unavailable, trying again in %g s: %s", seconds, error)
            await asyncio.sleep(seconds)
            seconds = min(2 * seconds, _LONGEST_WAIT)


def _was_unavailable(signalled: asyncio.Task[bool]) -> bool:
    """Return whether Temporal did not answer a signal."""
    return signalled.done() and isinstance(signalled.exception(), StoreUnavailableError)


def _is_cut_off() -> bool:
    """Return whether the workflow, not the end of the worker, ended this activity."""
    details = activity.cancellation_details()
    return details is not None and (details.cancel_requested or details.not_found)


def _part_of(run: Run, step: StepInProgress) -> Part:
    return Part(
        step.request.record,
        tuple([noted.part for noted in run.noted(step)]),  # type: ignore[union-attr]
        "".join(step.chunks),
        step.sent,
        step.holds_back,
        step.usage,
        step.attempts,
    )
