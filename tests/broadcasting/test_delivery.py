"""Delivery in the background: a run never waits, and dropped envelopes are counted."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Sequence
from typing import Any

import pytest

from tests.broadcasting.support import Gate, Naps, Target, envelope, hang, numbers, seqs, statuses, until
from tests.support import echo, scripted
from whyloop import Agent, AgentStatus
from whyloop.broadcasting import (
    AgentEventEnvelopeAdapter,
    BroadcastConfig,
    BroadcastError,
    CanBroadcastAgentEvents,
    Delivery,
)
from whyloop.broadcasting.transports import Envelope
from whyloop.errors import ConfigurationError
from whyloop.rules.error_policy import Backoff
from whyloop.testing import call

USER: contextvars.ContextVar[str] = contextvars.ContextVar("user")
PLAIN = Backoff(base=1, factor=2, cap=60, jitter=0)


def delivery(send: Any, **options: Any) -> Delivery:
    return Delivery(send, **{"sleep": Naps(), "backoff": PLAIN, **options})


def agent_telling(transport: CanBroadcastAgentEvents) -> Agent:
    agent = scripted(call("echo", {"value": "x"}), "done", tools=[echo])
    agent.subscribe(AgentEventEnvelopeAdapter(transport, BroadcastConfig.debug()))
    return agent


async def test_everything_arrives_in_order_and_in_batches() -> None:
    target = Target()
    async with delivery(target, batch=4) as sending:
        sending.broadcast_batch([envelope(seq=seq) for seq in range(1, 10)])
        sending.broadcast(envelope(seq=10))
    assert [len(batch) for batch in target.batches] == [4, 4, 2]
    assert seqs(target.received) == list(range(1, 11))
    assert sending.dropped == {}
    assert sending.waiting == 0


async def test_sessions_side_by_side_keep_their_order() -> None:
    target = Target(OSError("down"))
    async with delivery(target, batch=3) as sending:
        for seq in range(1, 8):
            for session in ("a", "b"):
                sending.broadcast(envelope(seq=seq, session=session))
    for session in ("a", "b"):
        assert seqs([e for e in target.received if e["session_id"] == session]) == list(range(1, 8))


async def test_a_run_is_sent_to_its_last_envelope() -> None:
    target = Target()
    async with delivery(target) as sending:
        state = await agent_telling(sending).run("go")
    assert (found := numbers(target.received)) == list(range(1, len(found) + 1))
    assert statuses(target.received)[-1] == state.status == AgentStatus.COMPLETED


@pytest.mark.parametrize(
    "error", [OSError("down"), RuntimeError("odd"), SystemExit(1), asyncio.CancelledError()]
)
async def test_a_failed_batch_is_sent_again_later(error: BaseException) -> None:
    target, naps = Target(error, error), Naps()
    async with delivery(target, sleep=naps) as sending:
        sending.broadcast_batch([envelope(seq=1), envelope(seq=2)])
    assert seqs(target.received) == [1, 2]
    assert naps.seconds == [1, 2]
    assert sending.dropped == {}


async def test_waiting_times_vary_so_that_not_all_come_back_at_once() -> None:
    naps = Naps()
    async with Delivery(Target(*[OSError()] * 5), sleep=naps, backoff=Backoff(base=1, jitter=0.5)) as sending:
        sending.broadcast(envelope())
    assert all(half <= nap <= 2 * half for half, nap in zip([0.5, 1, 2, 4, 8], naps.seconds, strict=True))
    assert naps.seconds != [1, 2, 4, 8, 16]


async def test_the_targets_own_wish_for_patience_is_heard() -> None:
    naps = Naps()
    async with delivery(Target(BroadcastError("busy", retry_after=7)), sleep=naps) as sending:
        sending.broadcast(envelope())
    assert naps.seconds == [7]


async def test_envelopes_that_arrived_before_a_failure_are_not_sent_again() -> None:
    target = Target(BroadcastError("cut off", sent=2))
    async with delivery(target) as sending:
        sending.broadcast_batch([envelope(seq=seq) for seq in (1, 2, 3)])
    assert seqs(target.received) == [3]


async def test_if_nothing_is_left_to_be_sent_the_next_batch_is() -> None:
    target = Target(BroadcastError("it took long", sent=2))
    async with delivery(target, batch=2) as sending:
        sending.broadcast_batch([envelope(seq=seq) for seq in (1, 2, 3)])
    assert seqs(target.received) == [3]
    assert sending.dropped == {}


async def test_only_envelopes_that_did_not_arrive_are_dropped() -> None:
    told = [envelope("status", 1), envelope("step", 2), envelope("status", 3), envelope("chunk", 4)]
    target = Target(BroadcastError("in parts", sent=1, retry=False))
    async with delivery(target) as sending:
        sending.broadcast_batch(told)
    assert seqs(target.received) == [3]
    assert sending.dropped == {"agent.step.started": 1, "agent.stream.chunk": 1}


async def test_envelopes_that_always_fail_are_dropped_counted_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    target = Target(*[OSError("down")] * 6)
    async with delivery(target, retries=2, batch=2) as sending:
        sending.broadcast_batch([envelope("step", 1), envelope("chunk", 2), envelope("step", 3)])
        sending.broadcast_batch([envelope("step", 4), envelope("step", 5)])
    assert sending.dropped == {"agent.step.started": 3, "agent.stream.chunk": 1}
    assert seqs(target.received) == [5]
    assert [record.getMessage() for record in caplog.records] == ["envelopes are dropped: OSError: down"]


async def test_a_status_outlives_a_target_that_was_down_for_long() -> None:
    target = Target(*[OSError("down")] * 20)
    async with delivery(target, retries=2) as sending:
        sending.broadcast_batch([envelope("step", 1), envelope("status", 2), envelope("step", 3)])
    assert seqs(target.received) == [2]
    assert sending.dropped == {"agent.step.started": 2}


async def test_a_permanent_refusal_is_not_retried() -> None:
    target, naps = Target(BroadcastError("wrong key", retry=False)), Naps()
    async with delivery(target, sleep=naps) as sending:
        sending.broadcast_batch([envelope("step", 1), envelope("chunk", 2)])
    assert (target.attempts, naps.seconds) == (1, [])
    assert sending.dropped == {"agent.step.started": 1, "agent.stream.chunk": 1}


async def test_how_a_run_ended_outlives_a_target_that_refuses_everything_for_a_while() -> None:
    target, naps = Target(*[BroadcastError("no such app", retry=False, status=404)] * 3), Naps()
    stop: dict[str, Any] = {"continuation": {"should_continue": False, "stop_reason": "completed"}}
    async with delivery(target, sleep=naps) as sending:
        sending.broadcast_batch([envelope("step", 1), envelope("agent.step.completed", 2, **stop)])
        sending.broadcast(envelope("status", 3))
    assert seqs(target.received) == [2, 3]
    assert naps.seconds == [1, 2, 4]
    assert sending.dropped == {"agent.step.started": 1}


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_a_status_that_is_refused_for_its_content_is_dropped(status: int) -> None:
    target = Target(BroadcastError("odd", retry=False, status=status))
    async with delivery(target, batch=1) as sending:
        sending.broadcast_batch([envelope("status", 1), envelope("status", 2)])
    assert seqs(target.received) == [2]
    assert sending.dropped == {"agent.status": 1}


async def test_when_the_target_is_too_slow_chunks_go_first_and_statuses_stay() -> None:
    gate = Gate()
    async with delivery(gate, capacity=3, batch=1) as sending:
        sending.broadcast(envelope("step", 1))
        await gate.reached.wait()
        for seq, kind in enumerate(["chunk", "step", "chunk", "status", "step", "status", "chunk"], start=2):
            sending.broadcast(envelope(kind, seq))
        assert sending.dropped == {"agent.stream.chunk": 3, "agent.step.started": 1}
        assert sending.waiting == 3
        gate.open.set()
    assert seqs(gate.received) == [1, 5, 6, 7]


async def test_a_target_that_hangs_does_not_hold_up_a_run() -> None:
    sending = delivery(hang, capacity=5)
    state = await agent_telling(sending).run("go")
    assert state.status is AgentStatus.COMPLETED
    await sending.close(timeout=0)
    assert sending.dropped["agent.status"] == 2


async def test_a_target_that_raises_does_not_break_a_run(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(batch: Sequence[Envelope]) -> None:
        raise BroadcastError("never", retry=False)

    sending = delivery(fail)
    state = await agent_telling(sending).run("go")
    assert state.status is AgentStatus.COMPLETED
    await until(lambda: sending.dropped)
    assert len(caplog.records) == 1
    await sending.close(timeout=0)
    assert sending.dropped["agent.status"] == 2


async def test_envelopes_are_sent_outside_of_the_context_of_the_first_run() -> None:
    seen: list[str | None] = []

    async def send(batch: Sequence[Envelope]) -> None:
        seen.append(USER.get(None))

    USER.set("ada")
    async with delivery(send) as sending:
        sending.broadcast(envelope())
    assert seen == [None]


class WordlessError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


async def test_an_error_without_a_message_is_handled_like_any_other() -> None:
    target = Target(WordlessError(), WordlessError())
    async with delivery(target, retries=0) as sending:
        sending.broadcast_batch([envelope("step", 1), envelope("status", 2)])
    assert seqs(target.received) == [2]
    assert sending.dropped == {"agent.step.started": 1}


async def test_the_log_says_what_went_wrong_without_the_secrets_in_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    words = "no answer from https://ann:hunter2@hooks.example, Bearer abcdefghijklmnopqrstuvwxyz"
    async with delivery(Target(OSError("x" * 250 + words)), retries=0) as sending:
        sending.broadcast(envelope())
    assert "https://[removed]@" in caplog.text
    assert "hunter2" not in caplog.text
    assert "abcdefgh" not in caplog.text


async def test_the_next_outage_is_logged_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    down = [OSError("down")] * 2
    target = Target(*down)
    async with delivery(target, retries=0, batch=1) as sending:
        for seq in (1, 2, 3):
            sending.broadcast(envelope(seq=seq))
        await until(lambda: target.received)
        target.failures = list(down)
        sending.broadcast(envelope(seq=4))
    assert [record.getMessage() for record in caplog.records] == ["envelopes are dropped: OSError: down"] * 2


@pytest.mark.parametrize("options", [{"capacity": 0}, {"batch": 0}, {"retries": -1}])
def test_numbers_that_make_no_sense_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match="at least"):
        Delivery(Target(), **options)  # type: ignore[arg-type]
