"""The operations of the server, carried out on the sessions of a store."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from whyloop.broadcasting.feed import EventFeed, FeedItem
from whyloop.broadcasting.transports import AgentEventEnvelopeAdapter, AuthorizesChannels
from whyloop.errors import BroadcastError, ConfigurationError, SessionNotFoundError, SessionRunningError
from whyloop.logger import Logger
from whyloop.loop.agent import Agent
from whyloop.loop.executions import refuse_edit, refuse_missing_deps
from whyloop.rules.criteria import ContinuationCriteria
from whyloop.server import bodies, inputs
from whyloop.server.access import Access
from whyloop.server.inputs import EventQuery
from whyloop.server.metrics import Metrics
from whyloop.server.requests import (
    ANY_VERSION,
    BadRequestError,
    Keys,
    Precondition,
    calling_the_app,
    check_metadata,
    etag_of,
    expecting,
    session_id_of,
)
from whyloop.server.runs import Engine, Runs, ServedSession, StartRun
from whyloop.server.views import Executions, Tagged, messages_page, state_view, trace_page
from whyloop.sessions.creation import create_session
from whyloop.sessions.session import MakeDeps, deps_for
from whyloop.stores.live import live
from whyloop.stores.reading import (
    OneSession,
    Reading,
    Recorded,
    entries_after,
    read_end,
    read_version,
    release,
)
from whyloop.stores.records import RequestKey, Summary, checked_id
from whyloop.stores.store import Store
from whyloop.values.approval import Verdict
from whyloop.values.continuation import Budget
from whyloop.values.decisions import decide
from whyloop.values.redaction import Redaction
from whyloop.values.scalars import new_id
from whyloop.values.state import UNNAMED_PERSON, AgentState, AgentStatus
from whyloop.values.step_transitions import AnyTransition
from whyloop.values.text import shortened
from whyloop.wire.view import read_back

_log = Logger("whyloop.server")

ChooseAgent = Callable[[Summary], Agent[Any, Any] | Awaitable[Agent[Any, Any]]]


class Call(Struct, frozen=True):
    """A parsed request."""

    access: Access
    """The rights of the client."""
    agent_id: str = ""
    query: Any = None
    body: Any = None
    key: RequestKey | None = None
    precondition: Precondition = ANY_VERSION
    index: int = 0
    """The number of a step in the path."""


class Api:
    """The operations, each by its name.

    The answer to a change shows the session as of the version that the change recorded. So a request that is
    repeated under its `Idempotency-Key` gets the same answer, even if the session has changed.
    """

    def __init__(
        self,
        store: Store,
        choose_agent: ChooseAgent | None,
        feed: EventFeed,
        events: AgentEventEnvelopeAdapter | None,
        channels: Sequence[AuthorizesChannels],
        redaction: Redaction | None,
        make_deps: MakeDeps | None,
        metrics: Metrics,
        engine: Engine | None,
        max_runs: int,
    ) -> None:
        self.feed = feed
        standard = feed.config.at_most_standard()
        self._feed_for_all = feed if feed.config == standard else EventFeed(store, standard)
        self.runs = Runs(max_runs)
        self._engine = engine
        self._store = store
        self._choose_agent = choose_agent
        self._make_deps = make_deps
        self._has_transports = events is not None
        self._metrics = metrics
        self.handlers = (metrics,) if events is None else (metrics, events)
        self._channels = channels
        self._redaction = redaction
        self._keys = Keys(store)
        self._executions = Executions(store, redaction)

    async def close(self) -> None:
        """End all streams."""
        await self.feed.close()
        await self._feed_for_all.close()

    def _feed_of(self, access: Access) -> EventFeed:
        """Return the feed whose envelopes a client may see."""
        return self.feed if "inspect" in access.may else self._feed_for_all

    def _view(self, reading: Reading, *, is_running: bool | None = None) -> Tagged:
        return state_view(reading, self._redaction, is_running=is_running)

    # Reading

    async def get_session(self, call: Call) -> Tagged:
        return self._view(await read_end(await self.open(call), call.agent_id))

    async def get_messages(self, call: Call) -> bodies.History:
        session = await self.open(call)
        end = await read_end(session, call.agent_id)
        return await messages_page(session, end, call.query, self._redaction)

    async def get_trace(self, call: Call) -> bodies.Trace:
        session = await self.open(call)
        end = await read_end(session, call.agent_id)
        executions = await self._executions.read(end)
        return await trace_page(session, end, call.query, self._redaction, executions)

    async def get_events(self, call: Call) -> bodies.EventPage:
        query: EventQuery = call.query
        feed, identity = self._feed_of(call.access), (await self.check(call)).identity
        after = await feed.cursor(call.agent_id, query.after, identity=identity)
        page = await feed.page(call.agent_id, after, query.limit, identity=identity)
        return bodies.EventPage(
            [Raw(item.body.encode()) for item in page.items],
            None if page.cursor is None else str(page.cursor),
            page.has_more,
        )

    async def follow(self, call: Call, after: str | None) -> AsyncGenerator[Sequence[FeedItem], None]:
        """Return the envelopes after a cursor, and then new ones as they arrive."""
        feed, identity = self._feed_of(call.access), (await self.check(call)).identity
        cursor = await feed.cursor(call.agent_id, after, identity=identity)
        return feed.follow(call.agent_id, cursor, identity=identity)

    # Creating and deleting

    async def create_session(self, call: Call) -> Tagged:
        body: inputs.NewSession = call.body
        metadata = {**body.metadata, **call.access.within}
        check_metadata(metadata)
        agent_id = self._new_id(call, body.agent_id)

        async def work() -> Tagged:
            if self._engine is not None:
                agent: Agent[Any, Any] | str = self._engine.agent
            else:
                now = self._store.now()
                agent = await self._agent(Summary(agent_id, AgentStatus.PENDING, now, now, metadata=metadata))
            created = await create_session(self._store, agent, agent_id, metadata, call.key)
            return self._view(created, is_running=False)

        return await self._once(replace(call, agent_id=agent_id), work, is_running=False)

    async def fork(self, call: Call) -> Tagged:
        body: inputs.Fork = call.body
        agent_id = self._new_id(call, body.agent_id, call.agent_id)

        async def work() -> Tagged:
            try:
                summary = await self.check(call)
                with expecting(call.precondition, summary) as version:
                    fork = await self._store.fork(
                        call.agent_id,
                        step=body.step,
                        new_agent_id=agent_id,
                        expected_version=version,
                        key=call.key,
                        criteria=await self._criteria(summary),
                    )
                release(fork)
            except ConfigurationError as error:  # The session does not have the step yet.
                raise BadRequestError(str(error), 409, "no_such_step") from None
            reading = await read_end(self._store, agent_id)
            call.access.check(reading.summary)
            await self._send_last_entry(reading)
            return self._view(reading, is_running=False)

        await self.check(call)
        return await self._once(replace(call, agent_id=agent_id), work, is_running=False)

    async def delete_session(self, call: Call) -> None:
        with expecting(call.precondition, await self.check(call)) as version:
            await self._store.delete(call.agent_id, expected_version=version)
        _log.info("session %s was deleted by %s", call.agent_id, call.access.user or UNNAMED_PERSON)

    def _new_id(self, call: Call, given: str | None, *origin: str) -> str:
        if given is not None:
            return checked_id(given)
        return new_id() if call.key is None else session_id_of(call.key, call.access.within, *origin)

    # Running

    async def send_message(self, call: Call) -> Tagged:
        async def work() -> Tagged:
            if self._engine is not None:
                version = await self._engine.send(summary, call.body.text, call.key)
                return await self._view_at(call, version, is_running=True)
            session = await self._session(call)
            return await self._start(session, partial(session.send, call.body.text, key=call.key))

        summary = await self.check(call)
        return await self._once(call, work, is_running=True)

    async def resume(self, call: Call) -> Tagged:
        async def work() -> Tagged:
            if self._engine is not None:
                call.precondition.check(summary.identity, summary.version)
                version = await self._engine.resume(summary, grant, call.key)
                return await self._view_at(call, version, is_running=True)
            session = await self._session(call)
            session.precondition = call.precondition
            return await self._start(session, partial(session.resume, grant=grant, key=call.key))

        grant = call.body.grant and Budget(**msgspec.structs.asdict(call.body.grant))
        if grant is not None:
            call.access.require("manage")
        summary = await self.check(call)
        try:
            return await self._once(call, work, is_running=True)
        except SessionRunningError:
            reading = await read_end(await self.open(call), call.agent_id)
            if grant is not None or not _continues_by_itself(reading.state):
                raise
            call.precondition.check(reading.summary.identity, reading.version)
            return self._view(reading)  # A recovery was faster, and does what the client wants.

    async def _start(self, session: ServedSession, run: StartRun) -> Tagged:
        """Start a run; return the session as of its beginning."""
        await self.runs.start(session, run)
        return self._view(await session.read_beginning(), is_running=True)

    # Deciding

    async def stop(self, call: Call) -> Tagged:
        summary = await self.check(call)

        async def work() -> Tagged:
            criteria = await self._criteria(summary)
            recorded = await self._store.record_stop(call.agent_id, call.body.reason, call.key, criteria)
            if recorded is None:  # A runner was asked.
                return await again(await self._recorded(call) or summary.version)
            if not recorded.transitions and (version := await self._recorded(call)) is not None:
                return await again(version)
            self._send_events(recorded.before, recorded.transitions)
            if self._engine is not None and recorded.transitions:
                await self._engine.wake(summary)
            stopped = bodies.Stopped(bool(recorded.transitions))
            return Tagged(stopped, etag_of(summary.identity, recorded.after.version))

        async def again(version: int) -> Tagged:
            return Tagged(bodies.Stopped(True), etag_of(summary.identity, version))

        return await self._keys.once(call.agent_id, call.key, work, again)

    async def approve(self, call: Call) -> Tagged:
        body: inputs.Approve = call.body
        if body.arguments is None:
            return await self._decide(call, Verdict.APPROVED)
        summary = await self.check(call)
        agent = await self._agent(summary) if self._choose_agent is not None else None
        return await self._decide(call, Verdict.EDITED, arguments=body.arguments, agent=agent)

    async def deny(self, call: Call) -> Tagged:
        return await self._decide(call, Verdict.DENIED, call.body.reason or None)

    async def _decide(
        self,
        call: Call,
        verdict: Verdict,
        reason: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        agent: Agent[Any, Any] | None = None,
    ) -> Tagged:
        await self.check(call)
        by, question_id = call.access.user or call.body.by or UNNAMED_PERSON, call.body.question_id

        def plan(reading: Reading) -> Sequence[AnyTransition]:
            call.access.check(reading.summary)
            now, name = self._store.now(), call.key.key if call.key else None
            decided = decide(reading.state, question_id, verdict, by, now, reason, arguments, name)
            if decided:  # Repeating a decision changes nothing, at whichever version.
                call.precondition.check(reading.summary.identity, reading.version)
            if agent is not None and arguments is not None:
                refuse_edit(agent, reading.state, question_id, arguments)
            return decided

        async def work() -> Tagged:
            if arguments is not None and agent is None and self._engine is not None:
                recorded = await self._edit(call, self._engine, arguments, by)
            else:
                recorded = await self._store.record(call.agent_id, plan, key=call.key)
            return await self._recorded_view(call, recorded)

        return await self._once(call, work, is_running=False)

    async def _recorded_view(self, call: Call, recorded: Recorded) -> Tagged:
        """Send what was recorded to followers; return the session as of its version."""
        self._send_events(recorded.before, recorded.transitions)
        version = recorded.after.version if recorded.transitions else await self._recorded(call)
        return self._view(recorded.after) if version is None else await self._view_at(call, version)

    async def _edit(self, call: Call, engine: Engine, arguments: Mapping[str, Any], by: str) -> Recorded:
        """Record edited arguments through the engine, which checks them."""
        session = await self.open(call)
        before, question_id = await read_end(session, call.agent_id), call.body.question_id
        if decide(before.state, question_id, Verdict.EDITED, by, self._store.now(), arguments=arguments):
            call.precondition.check(before.summary.identity, before.version)
        await engine.edit(before.summary, question_id, arguments, by, call.key)
        async with aclosing(entries_after(session, before)) as entries:
            async for entry, _, after in entries:
                edited = Reading(before.summary, after, before.version + 1)
                return Recorded(before, entry.transitions, edited)
        return Recorded(before, (), before)

    # Channels

    async def authorize_channel(self, call: Call) -> bodies.Authorization:
        body: inputs.Subscription = call.body
        if self.feed is not self._feed_for_all:  # A channel has the envelopes of the server's config.
            call.access.require("inspect")
        user = {"user_id": call.access.user} if call.access.user else None
        for channels in self._channels:
            # A client that may not see a session gets the same answer as for a channel without a session.
            with suppress(BroadcastError, SessionNotFoundError):
                agent_id = channels.session_of(body.channel_name)
                await self.check(replace(call, agent_id=agent_id))
                return bodies.Authorization(
                    **channels.authorize(body.socket_id, body.channel_name, user=user)
                )
        raise BadRequestError(
            "you may not subscribe to this channel: use that of a session that you may see",
            403,
            "not_authorized",
        )

    # Parts of operations

    async def check(self, call: Call) -> Summary:
        """Return the summary of a session; raise unless the client may see it."""
        try:
            checked_id(call.agent_id)
        except ConfigurationError:  # No session has such an id, and some stores cannot look it up.
            raise SessionNotFoundError(call.agent_id) from None
        summary = (await self._store.read(call.agent_id, limit=0)).summary
        call.access.check(summary)
        return summary

    async def open(self, call: Call) -> OneSession:
        """Return the session of a call, if the client may see it.

        Every operation that shows a session reads it with this method: after a separate check, a session of
        another client could get the id before the read.
        """
        return OneSession(self._store, (await self.check(call)).identity)

    async def _once(self, call: Call, work: Callable[[], Awaitable[Tagged]], *, is_running: bool) -> Tagged:
        """Carry out a change once; a repeated request gets the first one's answer."""
        again = partial(self._view_at, call, is_running=is_running)
        return await self._keys.once(call.agent_id, call.key, work, again)

    async def _view_at(self, call: Call, version: int, *, is_running: bool = False) -> Tagged:
        reading = await read_version(await self.open(call), call.agent_id, version)
        return self._view(reading, is_running=is_running)

    async def _recorded(self, call: Call) -> int | None:
        """Return the version that the same request has recorded in another process."""
        return None if call.key is None else await self._keys.version(call.agent_id, call.key)

    def _send_events(self, before: Reading, transitions: Sequence[AnyTransition]) -> None:
        """Send the events of recorded transitions to followers and transports."""
        if not transitions:
            return
        live(self._store).appended(before.state.agent_id)
        for event in read_back(before.state, transitions):
            for handler in self.handlers:
                handler(event)
        release(before.state)

    async def _send_last_entry(self, reading: Reading) -> None:
        """Send the events of the entry that was recorded with a session itself."""
        if self._has_transports:
            before = await read_version(self._store, reading.state.agent_id, reading.version - 1)
            async with aclosing(entries_after(self._store, before, reading.version)) as entries:
                async for entry, earlier, _ in entries:
                    self._send_events(earlier, entry.transitions)

    async def _session(self, call: Call) -> ServedSession:
        summary = await self.check(call)
        agent = await self._agent(summary)
        with calling_the_app():
            deps = await deps_for(summary, self._make_deps)
            refuse_missing_deps(agent, deps)
        session = await ServedSession.open(self._store, agent, call.agent_id, handlers=self.handlers)
        assert isinstance(session, ServedSession)
        if session.state.identity != summary.identity:
            raise SessionNotFoundError(call.agent_id)
        session.deps = deps
        return session

    async def _criteria(self, summary: Summary) -> ContinuationCriteria | None:
        """Return the criteria of a session's agent; None if this process does not have it."""
        if self._choose_agent is None:  # An engine has the agents.
            return None
        try:
            agent = await self._agent(summary)
        except Exception:  # A session can be stopped without its agent.
            return None
        return agent.criteria if agent.name == summary.agent else None

    async def _agent(self, summary: Summary) -> Agent[Any, Any]:
        assert self._choose_agent is not None, "a server without an agent has no such operation"
        with calling_the_app():
            found = self._choose_agent(summary)
            agent = await found if inspect.isawaitable(found) else found
        if not isinstance(agent, Agent):
            raise TypeError(
                f"the function that finds an Agent returned {shortened(repr(agent), 80)} instead of one"
            )
        return agent


def _continues_by_itself(state: AgentState) -> bool:
    """Return whether a runner of this session is continuing its execution."""
    is_decided = state.status is AgentStatus.PAUSED and not state.pending_calls
    return state.status is AgentStatus.IN_PROGRESS or is_decided
