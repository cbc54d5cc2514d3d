"""A snapshot within a number of bytes, and what that costs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support import assert_complete_history, session
from tests.wire.support import read, slim, with_messages
from whyloop import AgentState, Message, SlimAgentStateSerializer, SlimSerializationConfig
from whyloop.errors import ConfigurationError


def conversation() -> AgentState:
    """Ten queries with long answers, after the steps of an eleventh."""
    said = [
        message
        for number in range(10)
        for message in (Message.user(f"question {number}"), Message.assistant("é" * 900))
    ]
    state = session(steps=4, tool_calls=2)
    return with_messages(state, [*said, *state.messages]).with_metadata(note="n" * 100)


def fitted(most: int, **options: Any) -> dict[str, Any]:
    document = slim(conversation(), max_bytes=most, **options)
    for written in (json.dumps(document), json.dumps(document, ensure_ascii=False)):
        assert len(written.encode()) <= most
    restored = read(document)
    assert_complete_history(restored.messages)
    assert restored.status == conversation().status
    assert any(message.text[:1] in ("g", "…") for message in restored.messages if message.is_user)
    return document


WHOLE = len(json.dumps(slim(conversation(), include_all_steps=True)))


def test_what_fits_is_not_touched() -> None:
    assert fitted(WHOLE, include_all_steps=True) == slim(conversation(), include_all_steps=True)


def test_what_goes_first_and_what_goes_last() -> None:
    smallest = least(include_all_steps=True)
    sizes = [*range(WHOLE, 6000, -2000), *range(6000, smallest, -50), smallest]
    costs = [fitted(most, include_all_steps=True)["truncated"] for most in sizes]
    first = [
        next(index for index, cost in enumerate(costs) if cost.get(name))
        for name in ("contents", "steps", "args", "messages", "metadata")
    ]
    assert first == sorted(first)


def test_as_much_is_kept_as_there_is_room_for() -> None:
    assert len(json.dumps(fitted(40_000))) > 35_000
    assert len(json.dumps(fitted(6_000))) > 4_500


def test_contents_are_shortened_before_a_message_is_dropped() -> None:
    document = fitted(40_000)
    assert document["truncated"]["messages"] == 0
    assert document["truncated"]["contents"] == 10


def least(**options: Any) -> int:
    """The size of the smallest snapshot of the conversation."""
    with pytest.raises(ConfigurationError, match=r"max_bytes=100 is too small .* has \d+ bytes") as caught:
        slim(conversation(), max_bytes=100, **options)
    return int(str(caught.value).split()[-2])


def test_a_size_that_nothing_fits_is_an_error_with_the_size_that_it_takes() -> None:
    assert [message["content"] for message in fitted(least())["messages"]] == ["…"]
    with pytest.raises(ConfigurationError):
        slim(conversation(), max_bytes=least() - 1)


def test_no_limits_but_the_size() -> None:
    config = SlimSerializationConfig.full()
    state = with_messages(session(), [Message.user("x" * 100_000)] * 20)
    document = SlimAgentStateSerializer(
        SlimSerializationConfig(None, None, config.include_tool_args, True, True, max_bytes=20_000)
    ).serialize(state)
    assert 15_000 < len(json.dumps(document)) <= 20_000
    assert document["truncated"]["contents"] == 20
