"""The metadata of a stored session can be changed between its runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support import echo, pay, scripted, two_stores
from whyloop import RunContext, Session, SyncStore, tool
from whyloop.broadcasting import EventFeed
from whyloop.errors import ConfigurationError, SessionNotFoundError, SessionRunningError
from whyloop.replay import judge
from whyloop.stores import MemoryStore, Store
from whyloop.stores.reading import read_end
from whyloop.testing import FakeClock, call
from whyloop.values.transitions import MetadataSet
from whyloop.wire.journal import STEPS_PER_CHECKPOINT, decode_entries


@pytest.fixture(params=["memory", "sqlite"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Any]:
    """Two store objects on the same sessions, as two processes have them."""
    return two_stores(request.param, tmp_path)


async def found(store: Store, **wanted: Any) -> list[str]:
    return [summary.agent_id for summary in (await store.sessions(**wanted)).sessions]


async def ended(store: Store, *replies: Any, **metadata: object) -> Session[Any, Any]:
    agent = scripted(*(replies or ["done"]), tools=[echo, pay])
    session = await Session.open(store, agent, "a", create=True, metadata=metadata)
    await session.send("go")
    return session


async def test_entries_are_merged_and_none_removes_one(stores: tuple[Any, Any]) -> None:
    store, other = stores
    session = await ended(store, user="ann", old=1, kept=[1, {"x": None}])
    state = await session.set_metadata({"ticket": 42, "old": None, "missing": None, "user": "bob"}, by="eve")
    expected = {"user": "bob", "kept": [1, {"x": None}], "ticket": 42}
    assert state.metadata == session.state.metadata == expected
    assert (await other.load("a")).metadata == expected
    assert (await other.read("a")).summary.metadata == expected
    assert await session.refresh() == await other.load("a")


async def test_lists_and_searches_find_it_at_once(stores: tuple[Any, Any]) -> None:
    store, other = stores
    session = await ended(store, team="sales")
    await session.set_metadata({"team": "support", "note": "Refund promised"})
    assert await found(other, metadata={"team": "support"}) == ["a"]
    assert await found(other, metadata={"team": "sales"}) == []
    assert await found(other, search="refund promised") == ["a"]
    await session.set_metadata({"note": None})
    assert await found(other, search="refund") == []


async def test_who_set_what_is_recorded(stores: tuple[Any, Any]) -> None:
    store, other = stores
    session = await ended(store)
    await session.set_metadata({"ticket": 42, "old": None}, by="eve")
    entry = decode_entries((await other.read("a")).entries)[-1]
    (change,) = entry.transitions
    assert isinstance(change, MetadataSet)
    assert (change.entries, change.by) == ({"ticket": 42, "old": None}, "eve")


async def test_the_same_entries_again_record_nothing(stores: tuple[Any, Any]) -> None:
    session = await ended(stores[0], user="ann")
    version = session.version
    await session.set_metadata({"user": "ann", "missing": None})
    await session.set_metadata({})
    assert session.version == version
    await session.set_metadata({"user": "ann", "count": True})
    await session.set_metadata({"count": 1})
    assert session.version == version + 2


async def test_it_is_no_work_on_the_session() -> None:
    clock = FakeClock()
    store = MemoryStore(clock)
    session = await Session.open(
        store, scripted(call("echo"), "done", tools=[echo], clock=clock), "a", create=True
    )
    before = await session.send("go")
    listed, explained = (await store.read("a")).summary, session.explain()
    events = (await EventFeed(store).page("a")).items
    clock.advance(3600)
    after = await session.set_metadata({"ticket": 42})
    assert msgspec.structs.replace(after, metadata={}) == before
    summary = (await store.read("a")).summary
    assert (summary.updated_at, summary.step_marks, summary.tokens) == (
        listed.updated_at,
        listed.step_marks,
        listed.tokens,
    )
    assert session.explain() == explained
    assert (await EventFeed(store).page("a")).items == events
    assert [outcome.stop_reason for outcome in judge(after).outcomes][-1] == "completed"


async def test_it_is_refused_while_a_runner_has_the_session(stores: tuple[Any, Any]) -> None:
    store, other = stores
    refusals: list[str] = []

    @tool
    async def change() -> str:
        for process in (store, other):
            with pytest.raises(SessionRunningError) as caught:
                await process.set_metadata("a", {"ticket": 42})
            refusals.append(caught.value.owner)
        return "no"

    session = await Session.open(store, scripted(call("change"), "done", tools=[change]), "a", create=True)
    state = await session.send("go")
    assert refusals == [session.owner] * 2
    assert state.metadata == {}


async def test_a_pause_and_a_dead_runner_do_not_prevent_it(stores: tuple[Any, Any]) -> None:
    store, other = stores
    seen: list[object] = []

    @tool(needs_approval=True)
    async def refund(context: RunContext[None]) -> str:
        seen.append(dict(context.metadata))
        return "refunded"

    agent = scripted(call("refund"), "done", tools=[refund])
    session = await Session.open(store, agent, "a", create=True, metadata={"user": "ann"})
    paused = await session.send("go")
    await other.set_metadata("a", {"ticket": 42})
    await other.approve("a", paused.pending_calls[0].id)
    state = await session.resume()
    assert (state.status, seen) == ("completed", [{"user": "ann", "ticket": 42}])
    assert state.metadata == (await other.load("a")).metadata == seen[0]


async def test_a_long_session_that_is_read_from_a_checkpoint_has_it(stores: tuple[Any, Any]) -> None:
    store, other = stores
    steps = STEPS_PER_CHECKPOINT + 4
    agent = scripted(*[call("echo")] * steps, "done", "again", tools=[echo], max_steps=steps + 1)
    session = await Session.open(store, agent, "a", create=True, metadata={"user": "ann", "old": 1})
    await session.send("go")
    await session.set_metadata({"user": "bob", "old": None})
    await session.send("and now?")
    for reading in (await read_end(other, "a"), await read_end(store, "a")):
        assert reading.state.steps.start > 0
        assert reading.state.metadata == {"user": "bob"}
    early = await other.fork("a", step=3, new_agent_id="early")
    assert {key: early.metadata.get(key) for key in ("user", "old")} == {"user": "ann", "old": 1}


@pytest.mark.parametrize(
    "entries", [None, "user", [("user", "ann")], {1: "x"}, {"\ud800": 1}, {"user": float("nan")}], ids=repr
)
async def test_entries_that_cannot_be_kept_are_refused(entries: Any) -> None:
    session = await ended(MemoryStore())
    with pytest.raises(ConfigurationError):
        await session.set_metadata(entries)
    with pytest.raises(ConfigurationError, match="invalid by=5"):
        await session.set_metadata({}, by=5)  # type: ignore[arg-type]
    assert session.state.metadata == {}


async def test_a_missing_session_has_no_metadata(stores: tuple[Any, Any]) -> None:
    with pytest.raises(SessionNotFoundError):
        await stores[0].set_metadata("missing", {"user": "ann"})


def test_programs_without_an_event_loop_have_it_too(tmp_path: Path) -> None:
    with SyncStore(tmp_path / "whyloop.db") as store:
        session = store.session(scripted("done"))
        assert session.set_metadata({"user": "ann"}, by="eve").metadata == {"user": "ann"}
        assert store.set_metadata(session.agent_id, {"user": None}).metadata == {}
        assert session.refresh().metadata == {}
