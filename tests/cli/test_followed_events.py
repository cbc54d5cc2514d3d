"""The events of a session that another process runs: no text is lost, and none is shown twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import pytest

from tests.support import START, echo
from whyloop import Agent, Model, ModelRequest, Session, TextDelta
from whyloop.broadcasting.feed import EventFeed, FeedItem
from whyloop.cli.fleet import FleetSession
from whyloop.cli.narration import FollowedEvents, Narrator, live_event
from whyloop.cli.renderer import Kind
from whyloop.errors import StoreUnavailableError
from whyloop.events import AgentEvent, AgentStepCompleted, AgentStepStarted, StreamChunkReceived
from whyloop.stores import MemoryStore
from whyloop.testing import ScriptedModel, call
from whyloop.wire.envelope import BroadcastConfig, envelope


async def recorded(store: MemoryStore, model: Model | None = None) -> list[FeedItem]:
    """Store a session whose model answers "All is done.", and return its recorded events."""
    agent = Agent(model or ScriptedModel(["All is done."]))
    session = await Session.open(store, agent, "one", create=True)
    await asyncio.gather(session.send("Work"), return_exceptions=True)
    async with EventFeed(store, BroadcastConfig.debug(), keep_events=True) as feed:
        return [item async for items in feed.recorded("one", None) for item in items]


def completed_step(items: Sequence[FeedItem]) -> AgentStepCompleted:
    return next(item.event for item in items if isinstance(item.event, AgentStepCompleted))


def chunk_before(event: AgentEvent, text: str, index: int = 0, *, is_complete: bool = False) -> FeedItem:
    """Return streaming text of the step that the event completes."""
    chunk = StreamChunkReceived(
        agent_id=event.agent_id,
        parent_agent_id=None,
        execution_id=event.execution_id,
        step_number=event.step_number,
        time=START,
        seq=event.seq - 1,
        chunk=text,
        chunk_index=index,
        is_complete=is_complete,
    )
    return FeedItem(chunk.execution_id, chunk.seq, is_numbered=False, body="", event=chunk)


async def shown(store: MemoryStore, items: Sequence[FeedItem]) -> list[str | AgentEvent]:
    """Return the texts and the completed steps, in the order in which they are shown."""
    followed = FollowedEvents(store, "one")
    events = [event for item in items for event in await followed.of(item)]
    kinds = (StreamChunkReceived, AgentStepCompleted)
    return [
        each.chunk if isinstance(each, StreamChunkReceived) else each
        for each in events
        if isinstance(each, kinds)
    ]


@pytest.mark.parametrize(
    ("arrived", "rest"),
    [
        ([], ["All is done."]),
        ([(0, "All ")], ["All ", "is done."]),
        ([(0, "All is done."), (1, "")], ["All is done.", ""]),
        ([(0, "All is done.")], ["All is done.", ""]),
        ([(1, "is done."), (2, "")], ["All is done."]),
        ([(0, "All "), (2, "done."), (3, "")], ["All ", "is done."]),
        ([(0, "done.")], ["done.", "\nAll is done."]),
    ],
)
async def test_text_that_did_not_arrive_is_read_from_the_store(
    arrived: list[tuple[int, str]], rest: list[str]
) -> None:
    store = MemoryStore()
    items = await recorded(store)
    completed = completed_step(items)
    chunks = [chunk_before(completed, text, index, is_complete=not text) for index, text in arrived]
    assert await shown(store, [*chunks, *items]) == [*rest, completed]


async def test_text_that_arrives_after_its_step_is_not_shown_again() -> None:
    store = MemoryStore()
    items = await recorded(store)
    completed = completed_step(items)
    late = chunk_before(completed, "All is done.", is_complete=True)
    assert await shown(store, [*items, late]) == ["All is done.", completed]


class CutOff:
    """A model whose answer ends in the middle of a sentence: by an error, or because the run stops."""

    def __init__(self, *, fails: bool) -> None:
        self._fails = fails

    async def respond(self, request: ModelRequest) -> AsyncIterator[TextDelta]:
        yield TextDelta("All ")
        yield TextDelta("is ")
        if self._fails:
            raise ConnectionError("the connection broke")
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)


@pytest.mark.parametrize(("fails", "shown"), [(True, "All"), (False, "All is")])
async def test_an_answer_that_was_cut_off_is_shown_as_cut_off(fails: bool, shown: str) -> None:
    store = MemoryStore()
    items = await recorded(store, CutOff(fails=fails))
    followed, narrator = FollowedEvents(store, "one"), Narrator()
    arrived = [chunk_before(completed_step(items), "All "), *items]
    events = [event for item in arrived for event in await followed.of(item)]
    answers = [line for event in events for line in narrator.lines(event) if line.kind is Kind.ANSWER]
    assert [(line.text, line.note) for line in answers] == [(shown, "cut off")]


@pytest.mark.parametrize("wrap_up", [None, "StepsLimit"])
def test_the_start_of_a_step_arrives_as_it_was_sent(wrap_up: str | None) -> None:
    started = AgentStepStarted(
        agent_id="one",
        parent_agent_id=None,
        execution_id="first",
        step_number=2,
        time=START,
        seq=3,
        message_count=4,
        available_tools=("search",),
        wrap_up=wrap_up,
    )
    sent = msgspec.json.encode(envelope(started, BroadcastConfig.debug())).decode()
    assert live_event(sent) == started


async def test_a_run_of_a_worker_is_not_awaited_for_ever_if_its_events_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fail(*_: object) -> None:
        raise StoreUnavailableError("the store cannot be reached")

    class Begun(Session):
        begin = Session.send

        async def wait(self, state: Any) -> Any:
            return state

    monkeypatch.setattr("whyloop.cli.narration.read_end", fail)
    agent = Agent(ScriptedModel([call("echo"), "All is done."]), [echo])
    session: Any = await Begun.open(MemoryStore(), agent, "one", create=True)
    with pytest.raises(StoreUnavailableError):
        await asyncio.wait_for(FleetSession(session, "127.0.0.1:7233").send("Work"), 20)
