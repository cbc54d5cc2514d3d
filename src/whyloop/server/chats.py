"""Conversations with clients of AG-UI and of the Vercel AI SDK: each is a session under the client's id.

The session has the history, so only the client's last message and its answers to questions are read. A run
does not depend on the connection that began it: a client that reconnects follows it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import ExitStack, aclosing, suppress
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace
from starlette.responses import Response

from whyloop.errors import NotResumableError, SessionExistsError, SessionNotFoundError, StoreError
from whyloop.events import AgentEvent
from whyloop.server import bodies, inputs
from whyloop.server.api import Call
from whyloop.server.inspection import InspectionApi
from whyloop.server.requests import BadRequestError, answer
from whyloop.server.runs import find_run, follow_events, read_runs
from whyloop.server.streams import EventStream, Write
from whyloop.stores.live import Watcher, live
from whyloop.stores.reading import OneSession, Reading, find_execution, read_end
from whyloop.stores.records import RequestKey
from whyloop.values.state import AgentStatus
from whyloop.values.text import counted
from whyloop.wire import ag_ui, vercel
from whyloop.wire.ag_ui import AgUiHistory, AgUiStream
from whyloop.wire.protocol_stream import ProtocolStream
from whyloop.wire.stream_values import query_id
from whyloop.wire.vercel import DONE, HEADERS, VercelHistory, VercelStream

if TYPE_CHECKING:
    from ag_ui.core import BaseEvent

Part = TypeVar("Part")

BROKEN_OFF = "The server cannot follow the run any more. Connect again."
_VERCEL_HEADERS = {name: value for name, value in HEADERS.items() if name.startswith("x-vercel")}


class Decision(Struct, frozen=True):
    """A person's answer to a question, as a client sent it."""

    question_id: str
    is_approved: bool
    reason: str = ""
    arguments: dict[str, Any] | None = None


class ChatApi(InspectionApi):
    """The operations, with those for clients of other protocols."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._watchers: set[Watcher] = set()
        self._is_closed = False

    async def close(self) -> None:
        """End all streams."""
        self._is_closed = True
        for watcher in self._watchers:
            watcher.changed.set()
        await super().close()

    # AG-UI

    async def run_ag_ui(self, call: Call) -> Response:
        """Run a thread with a new message or with decisions; without them, connect to it."""
        body: inputs.AgUiInput = call.body
        stream = AgUiStream(
            thread_id=body.thread_id,
            run_id=body.run_id,
            protocol_version=body.protocol_version,
            redaction=self._redaction,
        )
        call = replace(call, agent_id=body.thread_id, key=None)
        last = body.messages[-1] if body.messages and body.messages[-1].role == "user" else None
        text = "" if last is None else _text_of(last.content)
        decisions = [_ag_ui_decision(each) for each in body.resume or ()]
        session = await self._open_chat(call, decisions)
        with ExitStack() as held:
            watcher = self._watch(held, call, session)
            respond = partial(self._respond, held, watcher, stream, ag_ui.sse)
            if decisions:
                return respond(await self._decide_all(call, session, decisions))
            if last is not None and not await self._knows(call, session, last.id):
                return respond(await self._ask(call, session, last.id, text))
            reading = await read_end(session, call.agent_id)
            start = await find_run(session, reading)
            is_running = reading.state.status is AgentStatus.IN_PROGRESS
            history = AgUiHistory(self._redaction)
            until = start.version if is_running else reading.version
            async for run in read_runs(session, call.agent_id, until=until):
                history.add_run(run)
            if is_running:
                history.add_query(await _first_events(session, start))
                snapshot = history.snapshot()
                return respond(start, lambda parts: [parts[0], snapshot, *parts[1:]])
            return _finished(stream.at_rest(reading.state, history.snapshot()))

    # The AI SDK

    async def run_chat(self, call: Call) -> Response:
        """Answer the last message of a chat, or continue it."""
        body: inputs.Chat = call.body
        last, version = body.messages[-1], call.query.sdk_version
        call = replace(call, agent_id=body.id, key=None)
        is_again, is_query = body.trigger == "regenerate-message", last.role == "user"
        decisions = [] if is_again or is_query else _vercel_decisions(last)
        if is_query and not is_again:
            begin = partial(self._ask, message_id=last.id, text=_text_of(last.parts))
        else:
            begin = partial(self._decide_all, decisions=decisions)
        session = await self._open_chat(call, decisions)
        with ExitStack() as held:
            watcher = self._watch(held, call, session)
            start = await begin(call, session)
            return self._respond(
                held, watcher, VercelStream(sdk_version=version, redaction=self._redaction), vercel.sse, start
            )

    async def get_chat(self, call: Call) -> bodies.ChatHistory:
        """Return the messages of a chat, without an answer in progress, which is a stream."""
        session = await self.open(call)
        history = VercelHistory(call.query.sdk_version, self._redaction)
        reading = await read_end(session, call.agent_id)
        state, until = reading.state, reading.version
        is_running = state.status is AgentStatus.IN_PROGRESS
        if is_running:
            start, _ = await find_execution(session, call.agent_id, state.execution.id)
            until = start.version
        async for run in read_runs(session, call.agent_id, until=until):
            history.add_run(run)
        if is_running:
            history.add_query(await _first_events(session, start))
        return bodies.ChatHistory(history.messages)

    async def get_chat_stream(self, call: Call) -> Response:
        """Return the answer in progress from its beginning; clients replace theirs."""
        try:
            session = await self.open(call)
        except SessionNotFoundError:  # A chat without any messages yet.
            return answer(None, 204)
        version = call.query.sdk_version
        with ExitStack() as held:
            watcher = self._watch(held, call, session)
            reading = await read_end(session, call.agent_id)
            if reading.state.status is not AgentStatus.IN_PROGRESS:
                return answer(None, 204)
            start = await find_run(session, reading)
            first: list[vercel.Data] = []
            begun, _ = await find_execution(session, call.agent_id, reading.state.execution.id)
            async for run in read_runs(session, call.agent_id, begun, start.version):
                parts = VercelStream(sdk_version=version, redaction=self._redaction).all_parts(run)
                first += [part for part in parts[bool(first) :] if not vercel.is_end(part)]
            stream = VercelStream(sdk_version=version, redaction=self._redaction)
            return self._respond(
                held, watcher, stream, vercel.sse, start, lambda parts: [*first, *parts[bool(first) :]]
            )

    # Parts of both

    async def _open_chat(self, call: Call, decisions: Sequence[Decision]) -> OneSession:
        """Return the session, and create it if necessary.

        Raise 403 for decisions of a client that may not decide, and a `SessionNotFoundError` if another
        client has the id.
        """
        if decisions:
            call.access.require("decide")
        try:
            return await self.open(call)
        except SessionNotFoundError:
            new = inputs.NewSession(agent_id=call.agent_id)
            with suppress(SessionExistsError):
                await self.create_session(replace(call, body=new))
        return await self.open(call)

    def _watch(self, held: ExitStack, call: Call, session: OneSession) -> Watcher:
        """Receive streaming text from now on, before the run is followed."""
        here = live(self._store)
        watcher = held.enter_context(here.watching(call.agent_id, session.identity, 0))
        self._watchers.add(watcher)
        held.callback(self._watchers.discard, watcher)
        return watcher

    async def _ask(self, call: Call, session: OneSession, message_id: str, text: str) -> Reading:
        """Ask a question, once, and return the session before it."""
        asked = replace(call, body=inputs.NewMessage(text), key=_key_of(message_id, text))
        begun: bodies.SessionState = (await self.send_message(asked)).body
        start, _ = await find_execution(session, call.agent_id, begun.execution_id)
        return start

    async def _knows(self, call: Call, session: OneSession, message_id: str) -> bool:
        """Return whether a user's message is in the session."""
        execution_id = (await read_end(session, call.agent_id)).state.execution.id
        key = _key_of(message_id, "").key
        return message_id == query_id(execution_id) or bool(await self._store.key(call.agent_id, key))

    async def _decide_all(self, call: Call, session: OneSession, decisions: Sequence[Decision]) -> Reading:
        """Record decisions, continue, and return the session before the first of them."""
        reading = await read_end(session, call.agent_id)
        start = await find_run(session, reading)
        waiting: Sequence[object] = ()
        for each in decisions:
            question_id = each.question_id
            if each.is_approved:
                approve = inputs.Approve(question_id, each.arguments)
                decided = await self.approve(replace(call, body=approve))
            else:
                decided = await self.deny(replace(call, body=inputs.Deny(question_id, each.reason)))
            waiting = decided.body.pending_calls
        if waiting:
            missing = counted(len(waiting), "more decision")
            raise BadRequestError(f"the run waits for {missing}: send all of them", 409, "not_decided")
        try:
            await self.resume(replace(call, body=inputs.Resume()))
        except NotResumableError:  # A recovery may have been faster, up to the end.
            if reading.state.status is not AgentStatus.PAUSED:
                raise
        return start

    def _respond(
        self,
        held: ExitStack,
        watcher: Watcher,
        stream: ProtocolStream[Part],
        line: Callable[[Part], str],
        start: Reading,
        begin: Callable[[list[Part]], list[Part]] = list,
    ) -> Response:
        """Return a run from a reading on.

        `begin` changes the first parts of the stream.
        """

        async def parts() -> AsyncGenerator[Part, None]:
            has_begun = False
            following = follow_events(self._store, watcher, start, lambda: self._is_closed)
            with suppress(StoreError):  # The session was deleted, or cannot be read.
                async with aclosing(following) as events:
                    async for event in events:
                        found = stream.parts(event)
                        if found and not has_begun:
                            has_begun, found = True, begin(found)
                        for part in found:
                            yield part
                        if stream.ended:
                            return
            for part in stream.break_off(BROKEN_OFF):
                yield part

        is_vercel = isinstance(stream, VercelStream)

        async def pump(write: Write) -> None:
            async with aclosing(parts()) as sent:
                async for part in sent:
                    await write(line(part).encode())
            if is_vercel:
                await write(DONE.encode())

        return EventStream(pump, _VERCEL_HEADERS if is_vercel else None, held.pop_all())


async def _first_events(session: OneSession, start: Reading) -> list[AgentEvent]:
    """Return the events of the entry after a reading."""
    found: list[AgentEvent] = []
    async for run in read_runs(session, start.summary.agent_id, start, start.version + 1):
        found += run
    return found


def _finished(parts: Iterable[BaseEvent]) -> Response:
    """Return the parts of a stream that is complete."""

    async def pump(write: Write) -> None:
        for part in parts:
            await write(ag_ui.sse(part).encode())

    return EventStream(pump)


def _ag_ui_decision(entry: inputs.AgUiDecision) -> Decision:
    """Return a decision; anything but an explicit approval is a denial."""
    payload = entry.payload if isinstance(entry.payload, dict) else {}
    reason, arguments = payload.get("reason"), payload.get("arguments")
    return Decision(
        entry.interrupt_id,
        entry.status == "resolved" and payload.get("approved") is True,
        reason if isinstance(reason, str) else "",
        arguments if isinstance(arguments, dict) else None,
    )


def _vercel_decisions(message: inputs.ChatMessage) -> list[Decision]:
    """Return the answers in the last message that the server does not have yet."""
    found = []
    for part in message.parts:
        approval = part.get("approval")
        if part.get("state") == "approval-responded" and isinstance(approval, dict):
            reason = approval.get("reason")
            question_id, is_approved = str(approval.get("id")), approval.get("approved") is True
            found.append(Decision(question_id, is_approved, reason if isinstance(reason, str) else ""))
    if not found:
        raise _unanswerable("it is not a user's, and has no answers to questions")
    return found


def _text_of(content: object) -> str:
    """Return the text of a message: a text, or parts that are all text."""
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    texts = []
    for part in parts if isinstance(parts, list) else ():
        if not isinstance(part, dict) or not isinstance(part.get("text"), str):
            raise _unanswerable("it has content other than text")
        texts.append(part["text"])
    if not any(texts):
        raise _unanswerable("it has no text")
    return "".join(texts)


def _unanswerable(why: str) -> BadRequestError:
    return BadRequestError(f"the last message cannot be answered: {why}", 422, "unanswerable")


def _key_of(message_id: str, text: str) -> RequestKey:
    """Return the key of a message, by which a repeated one is recognized."""
    return RequestKey(f"message:{_digest(message_id)}", _digest(text))


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "replace")).hexdigest()
