"""What the server does for each operation."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Protocol, runtime_checkable

import msgspec
from msgspec import Meta, Raw, Struct
from starlette.requests import HTTPConnection

from whyloop.broadcasting.adapter import AgentEventEnvelopeAdapter
from whyloop.broadcasting.event_log import EventLog
from whyloop.broadcasting.places import place_of
from whyloop.errors import BroadcastError, ConfigurationError, SessionNotFoundError
from whyloop.loop.agent import Agent
from whyloop.server import bodies
from whyloop.server.access import Label, agree, refuse_outside
from whyloop.server.operations import EventQuery, ListQuery, TraceQuery
from whyloop.server.problems import BadRequestError, asking_the_app
from whyloop.server.runs import Runs
from whyloop.server.views import messages_view, state_view, summary_view, trace_view
from whyloop.sessions.session import Session
from whyloop.stores.records import Stored, Summary, Told, checked_id
from whyloop.stores.store import Store
from whyloop.values.budget import Budget
from whyloop.values.state import SOMEBODY, AgentState, AgentStatus
from whyloop.values.text import shortened
from whyloop.wire.journal import state_of

ChooseAgent = Callable[[Summary], Agent | Awaitable[Agent]]
Who = Callable[[HTTPConnection], str | Awaitable[str]]


@runtime_checkable
class AuthorizesChannels(Protocol):
    """A transport with channels to which not everybody may subscribe, such as a `PusherBroadcaster`."""

    def session_of(self, channel_name: str) -> str: ...

    def authorize(
        self, socket_id: str, channel_name: str, *, user: Mapping[str, Any] | None = None
    ) -> dict[str, str]: ...


class Call(Struct, frozen=True):
    """A request that was understood: whose session, within what its client may see, what was sent."""

    connection: HTTPConnection
    within: Mapping[str, Label]
    agent_id: str = ""
    query: Any = None
    body: Any = None


class Api:
    """Each operation by its name."""

    def __init__(
        self,
        store: Store,
        choose_agent: ChooseAgent | None,
        log: EventLog,
        events: AgentEventEnvelopeAdapter,
        who: Who | None,
        channels: Sequence[AuthorizesChannels] = (),
    ) -> None:
        self.log = log
        self.runs = Runs()
        self._store = store
        self._choose_agent = choose_agent
        self._events = events
        self._who = who
        self._channels = channels

    # Reading

    async def list_sessions(self, call: Call) -> bodies.SessionPage:
        query: ListQuery = call.query
        wanted = _labels(query.metadata)
        if not agree(wanted, call.within):
            return bodies.SessionPage([], None)
        page = await self._store.sessions(
            status=query.status,
            stop_reason=query.stop_reason,
            started_after=query.started_after,
            started_before=query.started_before,
            metadata={**wanted, **call.within},
            limit=query.limit,
            after=query.after,
        )
        return bodies.SessionPage([summary_view(summary) for summary in page.sessions], page.next)

    async def get_session(self, call: Call) -> bodies.SessionState:
        return state_view(*await self._read(call))

    async def get_messages(self, call: Call) -> bodies.History:
        await self.check(call)
        # Asked first: what is told while the history is read is heard after it, and not missed.
        after = await self.log.latest(call.agent_id)
        _, state = await self._read(call)
        return bodies.History(await asyncio.to_thread(messages_view, state), after)

    async def get_trace(self, call: Call) -> bodies.Trace:
        _, state = await self._read(call)
        query: TraceQuery = call.query
        return await asyncio.to_thread(trace_view, state, query.after, query.limit)

    async def get_events(self, call: Call) -> bodies.EventPage:
        await self.check(call)
        query: EventQuery = call.query
        seen = await self.log.seen(call.agent_id, query.after)
        told = await self._store.events(call.agent_id, after=seen.position, limit=query.limit + 1)
        page = told[: query.limit]
        # Never as it was asked for: "latest", or a number that nothing has, is another place a moment later.
        last = page[-1] if page else await self._event(call.agent_id, seen.position)
        return bodies.EventPage(
            [Raw(each.body.encode()) for each in page],
            None if last is None else place_of(last),
            len(told) > query.limit,
        )

    # Running

    async def create_session(self, call: Call) -> bodies.SessionState:
        body: bodies.NewSession = call.body
        metadata = {**body.metadata, **call.within}
        if len(msgspec.json.encode(metadata)) > bodies.LARGEST_METADATA:
            raise BadRequestError(f"metadata has at most {bodies.LARGEST_METADATA:,} bytes", 413, "too_large")
        now = self._store.now()
        asked = Summary(body.agent_id or "", AgentStatus.PENDING, now, now, metadata=metadata)
        state = (await self._agent(asked)).new_session(body.agent_id, metadata)
        await self._store.add(state)
        return await self.get_session(msgspec.structs.replace(call, agent_id=state.agent_id))

    async def send_message(self, call: Call) -> bodies.SessionState:
        session = await self._session(call)
        await self.runs.start(
            lambda on_event: session.send(call.body.text, on_event=on_event), session.stop_here
        )
        return await self.get_session(call)

    async def resume(self, call: Call) -> bodies.SessionState:
        session = await self._session(call)
        grant = call.body.grant and Budget(**msgspec.structs.asdict(call.body.grant))
        await self.runs.start(
            lambda on_event: session.resume(grant=grant, on_event=on_event), session.stop_here
        )
        return await self.get_session(call)

    # Deciding

    async def stop(self, call: Call) -> bodies.Stopped:
        await self.check(call)
        return bodies.Stopped(await self._store.request_stop(call.agent_id, call.body.reason))

    async def approve(self, call: Call) -> bodies.SessionState:
        await self.check(call)
        body: bodies.Approve = call.body
        decide = partial(self._store.approve, call.agent_id, body.call_id)
        if body.arguments is not None:
            decide = partial(self._store.edit, call.agent_id, body.call_id, body.arguments)
        await decide(by=await self._by(call))
        return await self.get_session(call)

    async def deny(self, call: Call) -> bodies.SessionState:
        await self.check(call)
        body: bodies.Deny = call.body
        await self._store.deny(call.agent_id, body.call_id, body.reason, by=await self._by(call))
        return await self.get_session(call)

    async def authorize_channel(self, call: Call) -> bodies.Authorization:
        body: bodies.Subscription = call.body
        user = {"user_id": await self._known(call, self._who)} if self._who else None
        for channels in self._channels:
            # Who may not see a session is told no more than who asks for a channel that is none.
            with suppress(BroadcastError, SessionNotFoundError):
                agent_id = channels.session_of(body.channel_name)
                await self.check(msgspec.structs.replace(call, agent_id=agent_id))
                return bodies.Authorization(
                    **channels.authorize(body.socket_id, body.channel_name, user=user)
                )
        raise BadRequestError("this is no channel that you may subscribe to", 403, "not_authorized")

    # Their parts

    async def check(self, call: Call) -> Summary:
        """How the session is listed; a `SessionNotFoundError` if there is none that the client may see."""
        return (await self._stored(call, after=sys.maxsize)).summary

    async def _read(self, call: Call) -> tuple[Summary, AgentState]:
        stored = await self._stored(call)
        return stored.summary, state_of(call.agent_id, stored.entries)

    async def _stored(self, call: Call, after: int = 0) -> Stored:
        try:
            checked_id(call.agent_id)
        except ConfigurationError:  # There is none of such an id, and not every store can look for it.
            raise SessionNotFoundError(call.agent_id) from None
        stored = await self._store.read(call.agent_id, after=after)
        refuse_outside(stored.summary, call.within)
        return stored

    async def _event(self, agent_id: str, position: int) -> Told | None:
        """What was kept at a position; None before the first."""
        found = await self._store.events(agent_id, after=position - 1, limit=1) if position else ()
        return found[0] if found else None

    async def _session(self, call: Call) -> Session:
        agent = await self._agent(await self.check(call))
        return await Session.open(self._store, agent, call.agent_id, events=self._events)

    async def _agent(self, summary: Summary) -> Agent:
        assert self._choose_agent is not None, "a server without an agent has no such operation"
        with asking_the_app():
            found = self._choose_agent(summary)
            agent = await found if inspect.isawaitable(found) else found
        if not isinstance(agent, Agent):
            raise TypeError(f"the function that finds an Agent returned {shortened(repr(agent), 80)}")
        return agent

    async def _by(self, call: Call) -> str:
        """Who decides: whom the server knows it to be, or who says so."""
        return await self._known(call, self._who) if self._who else call.body.by or SOMEBODY

    async def _known(self, call: Call, who: Who) -> str:
        with asking_the_app():
            found = who(call.connection)
            name = await found if inspect.isawaitable(found) else found
        if not isinstance(name, str):
            raise TypeError(f"`who` names a person in words, and not as {shortened(repr(name), 80)}")
        return name


_Wanted = Annotated[dict[str, Label], Meta(max_length=bodies.MOST_WANTED)]


def _labels(metadata: str | None) -> Mapping[str, Label]:
    if metadata is None:
        return {}
    try:
        wanted: Mapping[str, Label] = msgspec.json.decode(metadata, type=_Wanted)
    except msgspec.DecodeError as error:
        raise ConfigurationError(
            f"metadata is a JSON object of up to {bodies.MOST_WANTED} plain values, such as "
            f'{{"user": "ann"}}: {error}'
        ) from None
    return wanted
