"""Sessions and stores for programs without an event loop: the same methods, which block until the result."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from functools import wraps
from pathlib import Path
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from whyloop.errors import StoreError
from whyloop.loop.agent import Agent
from whyloop.loop.executions import Query
from whyloop.loop.local_world import is_inside_event_loop
from whyloop.loop.setup import Handler
from whyloop.sessions.session import Session
from whyloop.stores import open_store
from whyloop.stores.records import Summary
from whyloop.stores.store import Store
from whyloop.values.continuation import Budget
from whyloop.values.messages import Message
from whyloop.values.scalars import D, D_contra, T, T_co
from whyloop.values.state import UNNAMED_PERSON, AgentState

P = ParamSpec("P")
R = TypeVar("R")


class EventLoop:
    """An event loop in a background thread, which any number of threads can share."""

    def __init__(self) -> None:
        started = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._live(started)), name="whyloop-sync", daemon=True
        )
        self._thread.start()
        started.wait()

    async def _live(self, started: threading.Event) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        started.set()
        await self._end.wait()

    def wait_for(self, work: Coroutine[Any, Any, R]) -> R:
        """Return the result of a coroutine; Ctrl-C cancels it and waits for its end."""
        try:
            self._refuse_misuse()
        except Exception:
            work.close()
            raise
        tasks: list[asyncio.Task[R]] = []
        ended = threading.Event()

        def start() -> None:
            tasks.append(self._loop.create_task(work))
            tasks[0].add_done_callback(lambda _: ended.set())

        def cancel() -> None:
            if tasks:
                tasks[0].cancel()
            else:  # Interrupted before it was started.
                work.close()
                ended.set()

        try:
            self._loop.call_soon_threadsafe(start)
            self._wait(ended)
        except BaseException:
            self._loop.call_soon_threadsafe(cancel)
            self._wait(ended)
            raise
        return tasks[0].result()

    def _wait(self, ended: threading.Event) -> None:
        while not ended.wait(1.0):
            if self.is_closed:  # Another thread closed it at the same moment.
                raise StoreError("the store was closed before the work began")

    def _refuse_misuse(self) -> None:
        if is_inside_event_loop():
            raise RuntimeError(
                "SyncStore was used inside a running event loop: use Session and Store with `await` there"
            )
        if self.is_closed:  # It may also be a fork: threads stay in the parent.
            raise StoreError("the store is closed, or was opened before a fork: open another")

    @property
    def is_closed(self) -> bool:
        return not self._thread.is_alive()

    def close(self) -> None:
        """End the loop; work that is not done is cancelled."""
        if not self.is_closed:
            self._loop.call_soon_threadsafe(self._end.set)
            self._thread.join()


def _waiting(
    method: Callable[Concatenate[Store, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[SyncStore, P], R]:
    """Return a blocking version of a method of `Store`."""

    @wraps(method)
    def call(store: SyncStore, /, *args: P.args, **options: P.kwargs) -> R:
        # By name, since a store may override the method.
        asynchronous: Callable[P, Coroutine[Any, Any, R]] = getattr(store.asynchronous, method.__name__)
        return store.loop.wait_for(asynchronous(*args, **options))

    return call


class SyncStore:
    """A store for programs without an event loop, such as scripts and Flask or Django applications.

    It has the methods of a `Store` that applications use. Any number of threads may share one. `asynchronous`
    is the store behind it; event handlers and asynchronous tools run in the thread of its event loop.

    Args:
        store: The store, or the address of one. Default: as in `open_store`.
    """

    def __init__(self, store: Store | str | Path | None = None) -> None:
        self.asynchronous = store if isinstance(store, Store) else open_store(store)
        """The store behind it."""
        self.loop = EventLoop()
        """The event loop in which it works."""

    def session(
        self,
        agent: Agent[D, T],
        agent_id: str | None = None,
        *,
        create: bool = False,
        metadata: Mapping[str, object] | None = None,
        owner: str | None = None,
        handlers: Iterable[Handler] = (),
    ) -> SyncSession[D, T]:
        """Return a session of the store, or a new one; see `Session.open`.

        Args:
            create: True to create a session if the id is unknown. Default: False.
            owner: The name of this runner in errors and lists. Default: its host and process.
        """
        opened = Session.open(
            self.asynchronous,
            agent,
            agent_id,
            create=create,
            metadata=metadata,
            owner=owner,
            handlers=handlers,
        )
        return SyncSession(self.loop.wait_for(opened), self.loop)

    sessions = _waiting(Store.sessions)
    load = _waiting(Store.load)
    add = _waiting(Store.add)
    request_stop = _waiting(Store.request_stop)
    approve = _waiting(Store.approve)
    deny = _waiting(Store.deny)
    edit = _waiting(Store.edit)
    set_metadata = _waiting(Store.set_metadata)
    fork = _waiting(Store.fork)
    delete = _waiting(Store.delete)

    def import_lines(self, lines: Iterable[str], *, skip_existing: bool = False) -> list[str]:
        """Import the sessions of an exported file, and return their ids.

        Each session is stored completely or not at all.

        Args:
            lines: The lines of the file.
            skip_existing: True to skip sessions that already exist. Default: False.
        """
        # Read here, because lines from another `SyncStore` cannot be read inside an event loop.
        return self.loop.wait_for(self.asynchronous.import_lines(list(lines), skip_existing=skip_existing))

    def export(self, *agent_ids: str) -> Iterator[str]:
        """Yield these sessions, or all of them, as the lines of a JSON lines file."""
        lines = self.asynchronous.export(*agent_ids)
        while (line := self.loop.wait_for(_next(lines))) is not None:
            yield line

    def close(self) -> None:
        """Close the store and end its event loop; runs that are not done are cancelled."""
        if not self.loop.is_closed:
            self.loop.wait_for(self.asynchronous.close())
            self.loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SyncSession(Generic[D_contra, T_co]):
    """A session for programs without an event loop; `SyncStore.session` opens it.

    Its methods are those of `Session`; `asynchronous` is the session behind it.

    Args:
        session: The session behind it.
        loop: The event loop of its store.
    """

    if not TYPE_CHECKING:  # At run time the type variables have no defaults.
        __class_getitem__ = classmethod(GenericAlias)

    def __init__(self, session: Session[D_contra, T_co], loop: EventLoop) -> None:
        self.asynchronous = session
        """The session behind it."""
        self._loop = loop

    @property
    def agent_id(self) -> str:
        """The name of the session."""
        return self.asynchronous.agent_id

    @property
    def state(self) -> AgentState[T_co]:
        """The session as this process last saw it; `refresh` reads it again."""
        return self.asynchronous.state

    @property
    def summary(self) -> Summary:
        """The summary of the session as this process last saw it."""
        return self.asynchronous.summary

    def history(self) -> tuple[Message, ...]:
        """Return all messages."""
        return self.asynchronous.history()

    def explain(self, *, debug: bool = False, redact: bool = True) -> str:
        """Return why the last execution continued, step by step, and why it stopped.

        Args:
            debug: True to show the messages of tools' own exceptions. Default: False.
            redact: False to show secrets. Default: True, which removes them.
        """
        return self.asynchronous.explain(debug=debug, redact=redact)

    def refresh(self) -> AgentState[T_co]:
        """Return the session as it is in the store now, whichever process continued it."""
        return self._loop.wait_for(self.asynchronous.refresh())

    def send(
        self, query: Query, *, deps: D_contra | None = None, on_event: Handler | None = None
    ) -> AgentState[T_co]:
        """Ask the next question, and work on it until the criteria say stop."""
        return self._loop.wait_for(self.asynchronous.send(query, deps=deps, on_event=on_event))

    def resume(
        self, *, grant: Budget | None = None, deps: D_contra | None = None, on_event: Handler | None = None
    ) -> AgentState[T_co]:
        """Continue an execution that was paused, stopped, failed or cut off by a crash."""
        return self._loop.wait_for(self.asynchronous.resume(grant=grant, deps=deps, on_event=on_event))

    def request_stop(self, reason: str) -> bool:
        """Stop the session's run in any process; return False if there was none."""
        return self._loop.wait_for(self.asynchronous.request_stop(reason))

    def approve(self, question_id: str, *, by: str = UNNAMED_PERSON) -> AgentState[T_co]:
        """Approve a pending tool call; it runs at the next `resume`."""
        return self._loop.wait_for(self.asynchronous.approve(question_id, by=by))

    def deny(self, question_id: str, reason: str = "", *, by: str = UNNAMED_PERSON) -> AgentState[T_co]:
        """Deny a pending tool call; the model gets the reason."""
        return self._loop.wait_for(self.asynchronous.deny(question_id, reason, by=by))

    def edit(
        self, question_id: str, arguments: Mapping[str, object], *, by: str = UNNAMED_PERSON
    ) -> AgentState[T_co]:
        """Approve a pending tool call with other arguments."""
        return self._loop.wait_for(self.asynchronous.edit(question_id, arguments, by=by))

    def set_metadata(self, entries: Mapping[str, object], *, by: str | None = None) -> AgentState[T_co]:
        """Merge entries into the metadata of the session, between its runs.

        Args:
            entries: The entries; None removes one.
            by: The person or program that sets them, for the record. Default: unknown.
        """
        return self._loop.wait_for(self.asynchronous.set_metadata(entries, by=by))


async def _next(lines: AsyncIterator[str]) -> str | None:
    return await anext(lines, None)
