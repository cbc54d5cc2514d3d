"""Sessions that are told of in turn, and kept each by itself."""

from __future__ import annotations

import asyncio

import pytest

from tests.broadcasting.shaky import AWAY, ShakyStore, SlowStore
from tests.broadcasting.support import until
from tests.broadcasting.watching import Follower, Teller, add_session, seqs, settled
from whyloop.broadcasting import EventLog

SESSIONS = [f"session {n}" for n in range(12)]


def tell_in_turn(log: EventLog, *sessions: str) -> None:
    """Tell three things of each session, and chunks in between."""
    tellers = [Teller(log, session) for session in sessions]
    for kind in ("begin", "chunk", "step", "chunk", "end"):
        for teller in tellers:
            teller.tell(kind)


@pytest.mark.parametrize("inline", [True, False])
async def test_sessions_that_are_told_of_in_turn_are_kept_with_one_call_each(inline: bool) -> None:
    store = SlowStore(inline=inline)
    await add_session(store, *SESSIONS)
    async with EventLog(store) as log:
        tell_in_turn(log, *SESSIONS)
        await settled(log)
    assert store.calls == [(session, [1, 3, 5]) for session in SESSIONS]
    assert log.dropped == {}


@pytest.mark.parametrize(("inline", "at_once"), [(True, 1), (False, 5)])
async def test_some_sessions_are_kept_at_once_where_the_store_has_to_be_waited_for(
    inline: bool, at_once: int
) -> None:
    store = SlowStore(inline=inline)
    await add_session(store, *SESSIONS)
    store.slow_before.update(SESSIONS)
    async with EventLog(store) as log:
        tell_in_turn(log, *SESSIONS)
        await until(lambda: len(store.under_way) == at_once)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(store.under_way) == at_once
        store.go_on.set()
        await settled(log)
    assert [seqs(await store.events(session)) for session in SESSIONS] == [[1, 3, 5]] * len(SESSIONS)


@pytest.mark.parametrize("inline", [True, False])
async def test_only_what_could_not_be_kept_is_tried_again(
    store: ShakyStore, log: EventLog, inline: bool
) -> None:
    store.inline = inline  # type: ignore[misc]
    await add_session(store, "b", "c", "d")
    for session in ("b", "d"):
        store.before[f"add_events {session}"] = [AWAY, AWAY]
    followers = [Follower(log, session) for session in "abcd"]
    await until(lambda: len(log._channels) == 4)
    tell_in_turn(log, "a", "b", "c", "d")
    for follower in followers:
        await follower.hears(1, 2, 3, 4, 5)
    await settled(log)
    assert [seqs(await store.events(session)) for session in "abcd"] == [[1, 3, 5]] * 4
    assert log.dropped == {}
    for follower in followers:
        await follower.leave()


@pytest.mark.parametrize("inline", [True, False])
async def test_what_is_wrong_with_one_session_of_many_is_no_harm_to_one_that_has_to_wait(
    store: ShakyStore, log: EventLog, inline: bool
) -> None:
    store.inline = inline  # type: ignore[misc]
    await add_session(store, "b", "c")
    store.before["add_events a"] = [RuntimeError("a bug")]
    store.before["add_events b"] = [AWAY]
    tell_in_turn(log, "a", "b", "c")
    await settled(log)
    assert [seqs(await store.events(session)) for session in "abc"] == [[], [1, 3, 5], [1, 3, 5]]
    assert log.dropped == {"agent.status": 2, "agent.step.started": 1, "agent.stream.chunk": 2}
