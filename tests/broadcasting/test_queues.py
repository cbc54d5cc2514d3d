"""Envelopes in the application's own queue."""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.broadcasting.support import envelope, seqs
from whyloop.broadcasting import QueueBroadcaster
from whyloop.errors import ConfigurationError

both_kinds = pytest.mark.parametrize("make", [asyncio.Queue, queue.Queue])


@pytest.fixture
def quick_switches() -> Iterator[None]:
    """Threads that take turns so often that they meet wherever they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def content(holding: Any) -> list[int]:
    return [holding.get_nowait()["seq"] for _ in range(holding.qsize())]


def tell(broadcaster: QueueBroadcaster, *kinds: str) -> None:
    broadcaster.broadcast_batch([envelope(kind, seq) for seq, kind in enumerate(kinds, start=1)])


@both_kinds
def test_envelopes_come_out_as_they_went_in(make: Any) -> None:
    broadcaster = QueueBroadcaster(holding := make())
    broadcaster.broadcast(envelope(seq=1))
    broadcaster.broadcast_batch([envelope(seq=2), envelope("status", 3)])
    assert content(holding) == [1, 2, 3]
    assert broadcaster.dropped == {}


@both_kinds
def test_a_full_queue_takes_no_chunks_and_replaces_the_oldest_for_others(make: Any) -> None:
    broadcaster = QueueBroadcaster(holding := make(maxsize=3))
    tell(broadcaster, "step", "chunk", "chunk", "chunk", "step", "status")
    assert content(holding) == [3, 5, 6]
    assert broadcaster.dropped == {"agent.stream.chunk": 2, "agent.step.started": 1}


@both_kinds
def test_a_queue_without_a_size_gets_one(make: Any) -> None:
    broadcaster = QueueBroadcaster(holding := make(), capacity=2)
    tell(broadcaster, "status", "status", "step", "chunk")
    assert content(holding) == [2, 3]
    assert broadcaster.dropped == {"agent.status": 1, "agent.stream.chunk": 1}


@both_kinds
def test_a_queue_that_is_never_read_stays_small(make: Any) -> None:
    broadcaster = QueueBroadcaster(holding := make())
    tell(broadcaster, *["chunk", "step"] * 1500)
    assert holding.qsize() == 1000
    assert sum(broadcaster.dropped.values()) == 2000


@both_kinds
def test_a_queue_that_is_read_again_takes_everything_again(make: Any) -> None:
    broadcaster = QueueBroadcaster(holding := make(), capacity=20)
    tell(broadcaster, *["status"] * 20, "chunk")
    for _ in range(15):
        holding.get_nowait()
    tell(broadcaster, "chunk", "step")
    assert content(holding) == [*range(16, 21), 1, 2]
    assert broadcaster.dropped == {"agent.stream.chunk": 1}


def test_an_envelope_that_finds_the_queue_filled_by_another_thread_is_counted() -> None:
    class Filled(queue.Queue[Any]):
        def qsize(self) -> int:
            return 0

    broadcaster = QueueBroadcaster(Filled(maxsize=1))
    tell(broadcaster, "step", "status")
    assert broadcaster.dropped == {"agent.status": 1}


async def test_join_waits_for_everything_in_the_queue() -> None:
    holding: asyncio.Queue[Any] = asyncio.Queue(maxsize=2)
    tell(QueueBroadcaster(holding), "chunk", "chunk", "step", "status")
    waiting = asyncio.create_task(holding.join())
    for _ in range(2):
        assert not waiting.done()
        holding.get_nowait()
        holding.task_done()
        await asyncio.sleep(0)
    await waiting


def test_join_in_another_thread_returns() -> None:
    holding: queue.Queue[Any] = queue.Queue(maxsize=2)
    tell(QueueBroadcaster(holding), "chunk", "chunk", "step", "status", "status", "status")
    waiting = threading.Thread(target=holding.join, daemon=True)
    waiting.start()
    for _ in range(2):
        assert waiting.is_alive()
        holding.get_nowait()
        holding.task_done()
    waiting.join(10)
    assert not waiting.is_alive()


async def test_a_reader_gets_everything_as_it_is_sent() -> None:
    holding: asyncio.Queue[Any] = asyncio.Queue(maxsize=5)
    broadcaster = QueueBroadcaster(holding)

    async def read() -> list[int]:
        return seqs([await holding.get() for _ in range(20)])

    reading = asyncio.create_task(read())
    for seq in range(20):
        broadcaster.broadcast(envelope(seq=seq))
        await asyncio.sleep(0)
    assert await reading == list(range(20))


def test_a_reader_in_another_thread_sees_every_envelope_once_or_it_is_counted(quick_switches: None) -> None:
    holding: queue.Queue[Any] = queue.Queue(maxsize=10)
    broadcaster = QueueBroadcaster(holding)
    received: list[int] = []

    def read() -> None:
        while (each := holding.get(timeout=10))["event"] != "agent.status":
            received.append(each["seq"])

    reader = threading.Thread(target=read)
    reader.start()
    for seq in range(5000):
        broadcaster.broadcast(envelope(seq=seq))
    broadcaster.broadcast(envelope("status", 5000))
    reader.join(10)
    assert received == sorted(set(received))
    assert len(received) + broadcaster.dropped.get("agent.step.started", 0) == 5000
    assert "agent.status" not in broadcaster.dropped


def test_a_queue_for_nothing_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="use 1 or more"):
        QueueBroadcaster(queue.Queue(), capacity=0)
