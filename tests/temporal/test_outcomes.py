"""The real outcome of a write comes first, a cancellation of what waits for it afterwards."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("temporalio", reason='these tests need Temporal\'s SDK: pip install "whyloop[temporal]"')

from datetime import UTC, datetime

from temporalio.exceptions import ActivityError, ApplicationError, RetryState

from whyloop import Agent, AgentState
from whyloop.errors import StoreError
from whyloop.stores import MemoryStore
from whyloop.stores.listing import summary_of
from whyloop.stores.records import Lease
from whyloop.temporal.activities import Activities
from whyloop.temporal.payloads import Appendix
from whyloop.temporal.world import Outbox, outcome_of
from whyloop.testing import ScriptedModel
from whyloop.values.messages import Message
from whyloop.values.transitions import Begun, Created, Queried
from whyloop.wire.journal import entries_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)
BEFORE = AgentState.before_creation("s")
CREATED = Created(NOW, identity="i", agent="clerk")
QUERIED = Queried(NOW, execution_id="e", message=Message.user("Hi"), agent="clerk")


class Write:
    """A write that takes as long as a test wants, and then succeeds or fails."""

    def __init__(self, error: Exception | None = None) -> None:
        self.begun, self.ends, self.is_done = asyncio.Event(), asyncio.Event(), False
        self._error = error

    async def __call__(self) -> str:
        self.begun.set()
        await self.ends.wait()
        self.is_done = True
        if self._error is not None:
            raise self._error
        return "stopped"

    async def is_cancelled_within(self, work: Any) -> asyncio.Task[Any]:
        """Begin work, cancel it during the write, let the write end; return the work when it has ended."""
        task: asyncio.Task[Any] = asyncio.ensure_future(work)
        await self.begun.wait()
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
        assert not task.done()
        self.ends.set()
        await asyncio.wait([task])
        return task


async def test_a_cancellation_is_returned_beside_the_result() -> None:
    write = Write()
    task = await write.is_cancelled_within(outcome_of(write()))
    result, cancelled = task.result()
    assert (result, type(cancelled)) == ("stopped", asyncio.CancelledError)


async def test_an_error_of_the_write_is_raised_instead_of_a_cancellation() -> None:
    write = Write(StoreError("the disk is full"))
    task = await write.is_cancelled_within(outcome_of(write()))
    with pytest.raises(StoreError, match="the disk is full"):
        task.result()


# The outbox of a workflow


def _outbox(write: Write, monkeypatch: pytest.MonkeyPatch) -> Outbox:
    async def execute_activity(name: str, given: Appendix, **_: Any) -> str:
        assert name == "whyloop_append"
        return await write()

    monkeypatch.setattr("whyloop.temporal.world.workflow.execute_activity", execute_activity)
    outbox = Outbox("clerk", Lease("s", "temporal:default", 1, 300.0, "i", 1, True))
    outbox.waits = True  # The next entry is stored at once.
    return outbox


async def test_an_outbox_knows_what_was_stored_before_it_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write = Write()
    outbox = _outbox(write, monkeypatch)
    task = await write.is_cancelled_within(outbox.append([CREATED], BEFORE, CREATED.apply_to(BEFORE)))
    assert task.cancelled()
    assert (outbox.version, outbox.unstored.entries, outbox.stop) == (1, (), "stopped")


async def test_an_outbox_whose_entry_was_refused_raises_that_and_not_its_cancellation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run takes a cancellation for one that was delivered after the append, and sends the events."""
    refused = ApplicationError("another runner has the session", type="LeaseLostError")
    error = ActivityError(
        "failed",
        scheduled_event_id=1,
        started_event_id=2,
        identity="worker",
        activity_type="whyloop_append",
        activity_id="1",
        retry_state=RetryState.NON_RETRYABLE_FAILURE,
    )
    error.__cause__ = refused
    write = Write(error)
    outbox = _outbox(write, monkeypatch)
    task = await write.is_cancelled_within(outbox.append([CREATED], BEFORE, CREATED.apply_to(BEFORE)))
    with pytest.raises(ActivityError):
        task.result()
    assert outbox.version == 0
    assert len(outbox.unstored.entries) == 1


# The activities of a worker


class Slow(MemoryStore):
    """A store whose appends end after a test wants it, also if they are cancelled."""

    inline = False

    def __init__(self, write: Write) -> None:
        super().__init__()
        self._write = write

    async def append(self, *args: Any, **options: Any) -> str | None:
        async def whole() -> str | None:
            await self._write()
            return await super(Slow, self).append(*args, **options)

        doing, cancelled = asyncio.ensure_future(whole()), None
        while not doing.done():
            try:
                await asyncio.wait([doing])
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            doing.exception()
            raise cancelled
        return doing.result()


async def _appending(store: Slow, events: list[str]) -> Any:
    """Return an activity that appends a query to a new session."""
    state = CREATED.apply_to(BEFORE)
    await store.create(summary_of(state), entries_of([CREATED], BEFORE))
    lease = await store.acquire("s", "temporal:default", 300.0, durable=True)
    activities = Activities(
        store,
        {"clerk": Agent(ScriptedModel(["Hi"]), name="clerk")},
        handlers=[lambda event: events.append(type(event).__name__)],
    )
    entries = tuple(entries_of([QUERIED, Begun(NOW)], state))
    return activities._append(Appendix("clerk", lease, 1, entries))


async def test_a_worker_that_ends_while_it_stores_an_entry_sends_the_events_of_it() -> None:
    write, events = Write(), list[str]()
    store = Slow(write)
    task = await write.is_cancelled_within(await _appending(store, events))
    assert task.cancelled()
    assert (await store.read("s")).summary.version == 2
    assert events == ["AgentExecutionStarted", "AgentStatusChanged"]


async def test_a_worker_that_ends_while_an_entry_is_refused_sends_no_events_and_says_why() -> None:
    write, events = Write(StoreError("the disk is full")), list[str]()
    store = Slow(write)
    task = await write.is_cancelled_within(await _appending(store, events))
    with pytest.raises(StoreError, match="the disk is full"):
        task.result()
    assert (await store.read("s")).summary.version == 1
    assert events == []
