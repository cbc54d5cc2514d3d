"""The buffer of a delivery: its order, and what it drops when it is full."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from tests.broadcasting.support import NAMES, envelope, seqs
from whyloop.broadcasting.delivery import CHUNKS, ENDING, ENDINGS_TO_CAPACITY, OTHERS, Buffer, worth
from whyloop.broadcasting.transports import Envelope


def filled(capacity: int, *kinds: str) -> tuple[Buffer, list[Envelope]]:
    """A buffer that was given these, numbered from one, and what had to go."""
    buffer = Buffer(capacity)
    gone = [buffer.add(envelope(kind, seq)) for seq, kind in enumerate(kinds, start=1)]
    return buffer, [each for each in gone if each is not None]


def rest(buffer: Buffer) -> list[int]:
    return seqs([each.envelope for each in buffer.take(len(buffer))])


def test_the_oldest_envelopes_are_taken_first() -> None:
    buffer, gone = filled(10, "status", "step", "chunk", "chunk", "step", "status")
    assert seqs([each.envelope for each in buffer.take(4)]) == [1, 2, 3, 4]
    assert rest(buffer) == [5, 6]
    assert not gone
    assert buffer.take(3) == []


def test_the_oldest_chunk_goes_first() -> None:
    buffer, gone = filled(3, "step", "chunk", "chunk", "step")
    assert seqs(gone) == [2]
    assert rest(buffer) == [1, 3, 4]


def test_without_chunks_the_oldest_other_goes() -> None:
    buffer, gone = filled(3, "status", "step", "step", "step")
    assert seqs(gone) == [2]
    assert rest(buffer) == [1, 3, 4]


def test_a_status_never_goes_for_another_event() -> None:
    buffer, gone = filled(2, "status", "status", "status", "step", "chunk")
    assert seqs(gone) == [4, 5]
    assert rest(buffer) == [1, 2, 3]


def test_statuses_alone_do_not_fill_the_memory() -> None:
    most = 2 * ENDINGS_TO_CAPACITY
    buffer, gone = filled(2, *["status"] * (most + 3))
    assert len(buffer) == most
    assert seqs(gone) == [1, 2, 3]


@pytest.mark.parametrize(
    ("kind", "data", "expected"),
    [
        ("chunk", {}, CHUNKS),
        ("status", {}, ENDING),
        ("step", {"stop_reason": "completed"}, OTHERS),
        ("agent.step.completed", {"continuation": {"stop_reason": "error"}}, ENDING),
        ("agent.step.completed", {"continuation": {"stop_reason": None}}, OTHERS),
        ("agent.step.completed", {}, OTHERS),
        ("agent.continuation", {"stop_reason": "budget"}, ENDING),
        ("agent.continuation", {"stop_reason": None}, OTHERS),
    ],
)
def test_an_envelope_with_a_stop_reason_is_an_ending(kind: str, data: dict[str, Any], expected: int) -> None:
    assert worth(envelope(kind, **data)) == expected


def test_an_envelope_of_any_shape_is_worth_something() -> None:
    assert worth({"event": "agent.step.completed", "data": None}) == worth({}) == OTHERS


def test_taken_envelopes_are_put_back_in_their_places() -> None:
    buffer, _ = filled(10, "step", "status", "chunk", "step")
    taken = buffer.take(3)
    assert list(buffer.give_back(taken)) == []
    assert rest(buffer) == [1, 2, 3, 4]


def test_envelopes_put_back_into_a_full_buffer_replace_the_oldest() -> None:
    buffer, _ = filled(3, "chunk", "status", "step")
    taken = buffer.take(2)
    buffer.add(envelope("step", 4))
    buffer.add(envelope("step", 5))
    assert seqs(list(buffer.give_back(taken))) == [1, 3]
    assert rest(buffer) == [2, 4, 5]


@given(st.lists(st.sampled_from(list(NAMES))), st.integers(1, 8))
def test_nothing_is_lost_unseen_and_no_order_is_changed(kinds: list[str], capacity: int) -> None:
    buffer, gone = filled(capacity, *kinds)
    statuses = kinds.count("status")
    assert len(buffer) <= max(capacity, statuses)
    assert len(buffer) + len(gone) == len(kinds)
    if statuses <= capacity * ENDINGS_TO_CAPACITY:
        assert not [each for each in gone if each["event"] == "agent.status"]
    kept = rest(buffer)
    assert kept == sorted(kept)
    assert sorted(kept + seqs(gone)) == list(range(1, len(kinds) + 1))
