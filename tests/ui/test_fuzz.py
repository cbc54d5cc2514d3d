"""Random runs: Python and JavaScript see the same, and what was streamed becomes what is stored."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import pytest

from tests.ui.runs import Leg, random_legs
from tests.ui.support import JavaScript, as_json, assert_valid, javascript, needs_node
from whyloop.broadcasting import BroadcastConfig
from whyloop.wire import ui

pytestmark = pytest.mark.slow

# More of them: WHYLOOP_UI_RUNS=20000 pytest tests/ui
RUNS = int(os.environ.get("WHYLOOP_UI_RUNS", "200"))
PRESETS = {
    "minimal": BroadcastConfig.minimal(),
    "standard": BroadcastConfig.standard(),
    "debug": BroadcastConfig.debug(),
}

Messages = list[dict[str, Any]]
legs_of = lru_cache(maxsize=4_000)(random_legs)
presets = pytest.mark.parametrize("config", PRESETS.values(), ids=PRESETS)


@pytest.fixture(scope="module")
def js() -> Iterator[JavaScript]:
    with javascript() as process:
        yield process


def sent(leg: Leg, number: int) -> Messages:
    """What the client shows of a question before anybody answers."""
    if leg.query is None:
        return []
    at = "2026-01-16T09:00:00.000Z"
    return [{"id": f"local-{number}", "role": "user", "content": leg.query, "timestamp": at}]


def reduced(messages: Messages, envelopes: Messages, in_order: bool = False) -> Messages:
    for envelope in envelopes:
        messages = ui.reduce(messages, envelope, in_order=in_order)
    return messages


def heard(messages: Messages, leg: Leg) -> int:
    """How far the envelopes of a leg have been heard."""
    own_id = f"{leg.envelopes[-1]['execution_id']}:status"
    return next(message["metadata"]["seq"] for message in messages if message["id"] == own_id)  # type: ignore[no-any-return]


def in_python(
    messages: Messages, envelopes: Messages, canonical: Messages, in_order: bool = False
) -> dict[str, Any]:
    """What `client` of the other implementation's runner does."""
    streamed = reduced(messages, envelopes, in_order)
    return {
        "streamed": streamed,
        "reconciled": ui.reconcile(streamed, canonical),
        "grouped": ui.group(streamed),
        "rendered": [ui.should_render_content(message) for message in [*streamed, *canonical]],
        "running": ui.is_running(streamed),
        "missing": ui.missing(streamed),
    }


def disturbed(dice: random.Random, envelopes: Messages) -> Messages:
    """As a bad line delivers them: cut short, some lost, some twice, some late."""
    kept = envelopes[: dice.randint(0, len(envelopes))] if dice.random() < 0.3 else list(envelopes)
    kept = [envelope for envelope in kept if dice.random() < 0.9]
    kept += [envelope for envelope in kept if dice.random() < 0.1]
    late = [(index + dice.choice([0, 0, 0, 2, 40]), envelope) for index, envelope in enumerate(kept)]
    return [envelope for _, envelope in sorted(late, key=lambda pair: pair[0])]


def is_chunk(envelope: dict[str, Any]) -> bool:
    return bool(envelope["event"] == "agent.stream.chunk")


def replayed(leg: Leg) -> Messages:
    """What a store tells of a leg: everything but chunks."""
    return [envelope for envelope in leg.envelopes if not is_chunk(envelope)]


@presets
def test_what_was_streamed_becomes_what_is_stored(config: BroadcastConfig) -> None:
    for seed in range(RUNS):
        at_ends: Messages = []
        only_once: Messages = []
        for number, leg in enumerate(legs_of(seed, config)):
            at_ends = reduced([*at_ends, *sent(leg, number)], leg.envelopes)
            assert not ui.is_running(at_ends), seed
            at_ends = ui.reconcile(at_ends, leg.canonical)
            assert at_ends == leg.canonical, seed
            only_once = reduced([*only_once, *sent(leg, number)], leg.envelopes)
            assert not ui.is_running(only_once), seed
            assert heard(only_once, leg) == leg.envelopes[-1]["seq"], seed
            assert ui.reconcile(only_once, leg.canonical) == leg.canonical, seed


@presets
def test_the_ids_and_the_words_are_the_same_before_the_history_comes(config: BroadcastConfig) -> None:
    compared = 0
    for seed in range(RUNS // 4):
        streamed: Messages = []
        for number, leg in enumerate(legs_of(seed, config)):
            streamed = reduced([*streamed, *sent(leg, number)], leg.envelopes)
            stored = {message["id"]: message for message in leg.canonical}
            for message in streamed:
                if message["role"] == "user" or ui.is_ephemeral(message):
                    continue
                same = stored[message["id"]]
                assert same["role"] == message["role"]
                if message["role"] == "tool":
                    assert ("tool_error" in same["metadata"]) == ("tool_error" in message["metadata"])
                elif message["role"] == "assistant" and not config.include_stream_chunks:
                    assert message["content"] == ""
                # This model writes arguments into its text, which are not kept, and not shown either.
                elif ui.should_render_content(message) or same["content"]:
                    assert same["content"] == message["content"]
                compared += 1
    assert compared > RUNS


@presets
def test_a_bad_line_changes_nothing_once_the_history_has_come(config: BroadcastConfig) -> None:
    for seed in range(RUNS):
        dice = random.Random(seed)
        messages: Messages = []
        for number, leg in enumerate(legs_of(seed, config)):
            received = disturbed(dice, leg.envelopes)
            messages = reduced([*messages, *sent(leg, number)], received)
            messages = ui.reconcile(messages, leg.canonical)
            assert messages == leg.canonical, seed
            messages = reduced(messages, received)
            if leg.state.status == "completed":
                assert messages == leg.canonical, "what comes late changes nothing"


@presets
def test_a_client_that_joins_late_has_the_same_in_the_end(config: BroadcastConfig) -> None:
    joined = 0
    for seed in range(RUNS):
        for leg in legs_of(seed, config):
            for told, stored in leg.meanwhile:
                messages = reduced(stored, leg.envelopes[told:])
                assert not ui.is_running(messages), seed
                assert ui.reconcile(messages, leg.canonical) == leg.canonical, seed
                joined += 1
    assert joined > RUNS


@presets
def test_a_replay_without_chunks_becomes_what_is_stored(config: BroadcastConfig) -> None:
    for seed in range(RUNS):
        at_ends: Messages = []
        only_once: Messages = []
        for number, leg in enumerate(legs_of(seed, config)):
            at_ends = reduced([*at_ends, *sent(leg, number)], replayed(leg), in_order=True)
            assert not ui.is_running(at_ends), seed
            at_ends = ui.reconcile(at_ends, leg.canonical)
            assert at_ends == leg.canonical, seed
            only_once = reduced([*only_once, *sent(leg, number)], replayed(leg), in_order=True)
            assert not ui.missing(only_once), "nothing is waited for"
            assert heard(only_once, leg) == leg.envelopes[-1]["seq"], seed
            assert ui.reconcile(only_once, leg.canonical) == leg.canonical, seed


@presets
def test_in_order_is_the_same_where_nothing_is_missing(config: BroadcastConfig) -> None:
    for seed in range(RUNS // 4):
        streamed: Messages = []
        for number, leg in enumerate(legs_of(seed, config)):
            before = [*streamed, *sent(leg, number)]
            streamed = reduced(before, leg.envelopes)
            assert reduced(before, leg.envelopes, in_order=True) == streamed, seed


def test_text_of_which_pieces_are_missing_has_a_gap_where_they_were() -> None:
    whole, torn = 0, 0
    for seed in range(RUNS):
        dice = random.Random(seed)
        for leg in legs_of(seed, PRESETS["standard"]):
            kept = [told for told in leg.envelopes if not is_chunk(told) or dice.random() < 0.7]
            complete = {message["id"]: message["content"] for message in reduced([], leg.envelopes)}
            for message in reduced([], kept, in_order=True):
                if message["role"] != "assistant" or not message["content"]:
                    continue
                said = complete[message["id"]]
                pieces = message["content"].split("…")
                pattern = "(?s:.*)".join(map(re.escape, pieces))
                assert re.fullmatch(pattern, said), (seed, message["content"], said)
                whole, torn = whole + (len(pieces) == 1), torn + (len(pieces) > 1)
    assert whole > RUNS // 4
    assert torn > RUNS // 4


@needs_node
@presets
def test_python_and_javascript_see_the_same_in_order(config: BroadcastConfig, js: JavaScript) -> None:
    for seed in range(RUNS):
        dice = random.Random(seed)
        messages: Messages = []
        for number, leg in enumerate(legs_of(seed, config)):
            messages = [*messages, *sent(leg, number)]
            told = replayed(leg) if dice.random() < 0.5 else disturbed(dice, leg.envelopes)
            python = in_python(messages, told, leg.canonical, in_order=True)
            assert js.call("client", messages, told, leg.canonical, True) == as_json(python), seed
            messages = python["streamed"] if dice.random() < 0.5 else python["reconciled"]


@needs_node
@presets
def test_python_and_javascript_see_the_same_from_the_middle(config: BroadcastConfig, js: JavaScript) -> None:
    for seed in range(RUNS // 3):
        for leg in legs_of(seed, config):
            for told, stored in leg.meanwhile:
                left = leg.envelopes[told:]
                python = in_python(stored, left, leg.canonical)
                assert js.call("client", stored, left, leg.canonical) == as_json(python), seed


@needs_node
@presets
def test_python_and_javascript_see_the_same(config: BroadcastConfig, js: JavaScript) -> None:
    for seed in range(RUNS):
        dice = random.Random(seed)
        for mess in (False, True):
            messages: Messages = []
            for number, leg in enumerate(legs_of(seed, config)):
                messages = [*messages, *sent(leg, number)]
                received = disturbed(dice, leg.envelopes) if mess else leg.envelopes
                python = in_python(messages, received, leg.canonical)
                assert js.call("client", messages, received, leg.canonical) == as_json(python), seed
                messages = python["streamed"] if dice.random() < 0.5 else python["reconciled"]


@presets
def test_every_message_is_as_the_schema_says(config: BroadcastConfig) -> None:
    for seed in range(RUNS // 10):
        dice = random.Random(seed)
        messages: Messages = []
        for number, leg in enumerate(legs_of(seed, config)):
            for stored in [leg.canonical, *(stored for _, stored in leg.meanwhile)]:
                assert_valid(stored)
            messages += sent(leg, number)
            for envelope in disturbed(dice, leg.envelopes):
                messages = reduced(messages, [envelope])
                assert_valid(messages[-6:])
            assert_valid(messages)
            messages = ui.reconcile(messages, leg.canonical)


def test_the_random_runs_have_everything_in_them() -> None:
    legs = [leg for seed in range(300) for leg in legs_of(seed, PRESETS["debug"])]
    assert {leg.state.status.value for leg in legs} == {"completed", "stopped", "failed", "paused"}
    reasons = {leg.state.stop_reason and leg.state.stop_reason.value for leg in legs}
    assert reasons >= {None, "completed", "steps_limit", "token_limit", "error", "retry_limit"}
    assert reasons >= {"finish_reason", "user_requested"}
    events = {envelope["event"] for leg in legs for envelope in leg.envelopes}
    assert len(events) == 7
    shown = [message["content"] for leg in legs for message in reduced([], leg.envelopes[:-3])]
    assert any(words == "Retrying (2/3)" for words in shown)
    assert any(message["metadata"].get("waiting") for leg in legs for message in leg.canonical)
    resumed = [leg.envelopes[0]["seq"] for leg in legs if leg.query is None]
    assert 1 in resumed, "some are counted from one again"
    assert any(seq > 1 for seq in resumed)
