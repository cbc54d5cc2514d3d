"""Several transports in the place of one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.broadcasting.support import envelope, numbers
from tests.support import scripted
from whyloop.broadcasting import AgentEventEnvelopeAdapter, CanBroadcastAgentEvents, FanOut
from whyloop.broadcasting.transports import Envelope


class Heard:
    """A transport that remembers what it was given."""

    def __init__(self) -> None:
        self.told: list[Envelope] = []

    def broadcast(self, event: Envelope) -> None:
        self.told.append(event)

    def broadcast_batch(self, events: Sequence[Envelope]) -> None:
        self.told += events


class Broken(Heard):
    def broadcast_batch(self, events: Sequence[Envelope]) -> None:
        raise OSError("the line is cut")


async def test_each_transport_gets_the_same_numbers() -> None:
    first, second = Heard(), Heard()
    await scripted("hi", event_handler=AgentEventEnvelopeAdapter(FanOut(first, second))).run("go")
    assert numbers(first.told) == [1, 2, 3]
    assert first.told == second.told
    assert len(first.told) > 3


def test_one_that_fails_is_in_the_log_and_the_others_get_theirs(caplog: pytest.LogCaptureFixture) -> None:
    last = Heard()
    both = FanOut(Broken(), last)
    both.broadcast(envelope("step", 1))
    both.broadcast_batch([envelope("step", 2), envelope("step", 3)])
    assert [each["seq"] for each in last.told] == [1, 2, 3]
    assert ["OSError: the line is cut" in each.getMessage() for each in caplog.records] == [True] * 2


def test_several_are_a_transport_themselves() -> None:
    inner = Heard()
    nested = FanOut(FanOut(inner))
    assert isinstance(nested, CanBroadcastAgentEvents)
    nested.broadcast(envelope("step", 1))
    assert len(inner.told) == 1
