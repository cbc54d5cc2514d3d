"""The end of a delivery, also across threads and event loops: every lost envelope is counted."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import threading
from collections.abc import Iterator, Sequence

import pytest

from tests.broadcasting.support import Target, envelope, hang, seqs, until
from tests.broadcasting.test_delivery import delivery
from whyloop.broadcasting import (
    BroadcastError,
)
from whyloop.broadcasting.delivery import _Worker
from whyloop.broadcasting.transports import Envelope


async def test_envelopes_left_when_the_time_is_up_are_counted() -> None:
    sending = delivery(hang, batch=2)
    sending.broadcast_batch([envelope(seq=seq) for seq in range(5)])
    await sending.close(timeout=0)
    assert sending.dropped == {"agent.step.started": 5}
    assert sending.waiting == 0


async def test_after_closing_nothing_is_taken_any_more(caplog: pytest.LogCaptureFixture) -> None:
    target = Target()
    sending = delivery(target)
    await sending.close()
    sending.broadcast(envelope())
    sending.broadcast(envelope())
    await sending.close()
    assert target.attempts == 0
    assert sending.dropped == {"agent.step.started": 2}
    assert [record.getMessage() for record in caplog.records] == [
        "envelopes are dropped: the delivery is closed"
    ]


def test_without_an_event_loop_envelopes_are_counted_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "whyloop")
    sending = delivery(Target())
    sending.broadcast(envelope())
    sending.broadcast_batch([envelope(), envelope("status")])
    assert sending.dropped == {"agent.step.started": 2, "agent.status": 1}
    assert [record.getMessage() for record in caplog.records] == [
        "envelopes are dropped: no event loop is running that could send them"
    ]


async def test_another_thread_may_broadcast_too() -> None:
    target = Target()
    async with delivery(target) as sending:
        sending.broadcast(envelope(seq=1))
        await asyncio.to_thread(sending.broadcast_batch, [envelope(seq=2), envelope(seq=3)])
    assert seqs(target.received) == [1, 2, 3]


async def test_another_thread_alone_wakes_the_sender() -> None:
    target = Target()
    async with delivery(target) as sending:
        sending.broadcast(envelope(seq=1))
        await until(lambda: len(target.received) == 1)
        thread = threading.Thread(target=sending.broadcast, args=[envelope(seq=2)])
        thread.start()
        await until(lambda: len(target.received) == 2)
        thread.join()
        assert seqs(target.received) == [1, 2], "before closing, which would send what is left"


def test_many_threads_lose_nothing() -> None:
    target = Target()

    async def main() -> None:
        async with delivery(target, capacity=10_000) as sending:
            sending.broadcast(envelope(seq=0, session="first"))

            def tell(session: str) -> None:
                for seq in range(500):
                    sending.broadcast(envelope(seq=seq, session=session))

            await asyncio.gather(*(asyncio.to_thread(tell, name) for name in "abcd"))

    asyncio.run(main())
    for name in "abcd":
        assert seqs([e for e in target.received if e["session_id"] == name]) == list(range(500))


def test_envelopes_of_one_event_loop_are_sent_by_the_next() -> None:
    gate = [False]
    received: list[Envelope] = []

    async def send(batch: Sequence[Envelope]) -> None:
        if not gate[0]:
            await asyncio.Event().wait()
        received.extend(batch)

    sending = delivery(send, batch=2)

    async def tell(seq: int) -> None:
        sending.broadcast(envelope(seq=seq))
        await asyncio.sleep(0)

    asyncio.run(tell(1))
    asyncio.run(tell(2))
    gate[0] = True
    asyncio.run(sending.close())
    assert seqs(received) == [1, 2]
    assert sending.dropped == {}


class ClearingAway(list[Envelope]):
    """Envelopes during whose adding Python happens to clear away what nobody needs."""

    def __iter__(self) -> Iterator[Envelope]:
        gc.collect()
        return super().__iter__()


def test_envelopes_in_flight_on_an_abandoned_event_loop_are_sent_by_the_next() -> None:
    target = Target()
    stuck = [True]

    async def send(batch: Sequence[Envelope]) -> None:
        if stuck[0]:
            await asyncio.Event().wait()
        await target(batch)

    sending = delivery(send)

    async def tell(seq: int) -> None:
        sending.broadcast_batch(ClearingAway([envelope(seq=seq)]))
        await until(lambda: not sending.waiting)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(tell(1))
    loop.close()
    del loop
    stuck[0] = False

    async def go_on() -> None:
        await tell(2)
        await sending.close()

    thread = threading.Thread(target=lambda: asyncio.run(go_on()), daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert sorted(seqs(target.received)) == [1, 2]
    assert sending.dropped == {}


def test_it_can_be_closed_from_another_event_loop() -> None:
    target = Target()
    sending = delivery(target)
    started, done = threading.Event(), threading.Event()

    async def elsewhere() -> None:
        sending.broadcast(envelope(seq=1))
        started.set()
        await asyncio.to_thread(done.wait, 10)

    thread = threading.Thread(target=lambda: asyncio.run(elsewhere()))
    thread.start()
    assert started.wait(10)
    asyncio.run(sending.close())
    done.set()
    thread.join(10)
    assert seqs(target.received) == [1]


def test_an_event_loop_that_is_stuck_elsewhere_does_not_hold_up_closing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("whyloop.broadcasting.delivery._SECONDS_TO_CANCEL", 0)
    sending = delivery(hang, batch=1)
    stuck, done = threading.Event(), threading.Event()

    async def elsewhere() -> None:
        sending.broadcast_batch([envelope(seq=1), envelope("status", 2)])
        await until(lambda: sending.waiting == 1)
        stuck.set()
        done.wait(10)
        await until(lambda: len(asyncio.all_tasks()) == 1)

    thread = threading.Thread(target=lambda: asyncio.run(elsewhere()))
    thread.start()
    assert stuck.wait(10)
    asyncio.run(sending.close(timeout=0))
    assert not done.is_set()
    assert sending.dropped == {"agent.status": 1}
    done.set()
    thread.join(10)
    # What was on its way is counted as soon as it is known not to arrive.
    assert sending.dropped == {"agent.status": 1, "agent.step.started": 1}
    assert sending.waiting == 0


async def test_envelopes_during_closing_arrive_or_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target()
    sending = delivery(target)
    sending.broadcast(envelope(seq=1))
    await until(lambda: target.received)
    amid, closed = threading.Event(), threading.Event()
    is_alive = _Worker.is_alive

    def slow(worker: _Worker) -> bool:
        alive = is_alive(worker)
        if threading.current_thread() is telling:
            amid.set()
            closed.wait(0.05)  # In vain, unless closing overtakes.
        return alive

    monkeypatch.setattr(_Worker, "is_alive", slow)
    telling = threading.Thread(target=sending.broadcast, args=[envelope(seq=2)])
    telling.start()
    assert amid.wait(10)
    await sending.close()
    closed.set()
    telling.join(10)
    assert sending.waiting == 0
    assert len(target.received) + sum(sending.dropped.values()) == 2


async def test_a_target_that_cannot_be_cancelled_does_not_hold_up_closing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("whyloop.broadcasting.delivery._SECONDS_TO_CANCEL", 0)
    let_go = asyncio.Event()

    async def stubborn(batch: Sequence[Envelope]) -> None:
        while not let_go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await let_go.wait()

    sending = delivery(stubborn)
    sending.broadcast(envelope())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(sending.close(timeout=0))
    await until(closing.done)
    assert not let_go.is_set()
    let_go.set()


class Collapse(BaseException):
    pass


async def test_envelopes_survive_an_error_that_ends_the_sender() -> None:
    target = Target(Collapse())
    async with delivery(target) as sending:
        sending.broadcast(envelope(seq=1))
        await until(lambda: target.attempts)
        sending.broadcast(envelope(seq=2))
    assert seqs(target.received) == [1, 2]
    assert sending.dropped == {}


async def test_envelopes_that_arrived_before_the_close_are_not_counted() -> None:
    async def send(batch: Sequence[Envelope]) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise BroadcastError("cut short", sent=2) from None

    sending = delivery(send)
    sending.broadcast_batch([envelope("status", seq) for seq in (1, 2, 3)])
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await sending.close(timeout=0)
    assert sending.dropped == {"agent.status": 1}


async def test_a_target_that_keeps_being_cancelled_to_itself_is_sent_no_more() -> None:
    attempts = []

    async def send(batch: Sequence[Envelope]) -> None:
        attempts.append(batch)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    sending = delivery(send, batch=1)
    sending.broadcast_batch([envelope(seq=1), envelope(seq=2)])
    await until(lambda: attempts)
    await sending.close(timeout=0)
    assert len(attempts) == 1
    assert sending.dropped == {"agent.step.started": 1}
    assert len(asyncio.all_tasks()) == 1
