"""Random runs: the streamed messages become the stored ones, whatever happens to the envelopes."""

from __future__ import annotations

import os
import random
import re
from functools import lru_cache
from typing import Any

import pytest

from tests.ui.runs import Leg, is_numbered, random_legs
from tests.ui.support import JavaScript, as_json, assert_valid
from whyloop.broadcasting import BroadcastConfig
from whyloop.wire.envelope import NUMBERED

pytestmark = pytest.mark.slow

# For more of them: WHYLOOP_UI_RUNS=20000 pytest tests/ui
RUNS = int(os.environ.get("WHYLOOP_UI_RUNS", "200"))
ANY = "(?s:.*)"
REASONING = "I should say so."
UNNUMBERED = {"agent.step.started", "agent.stream.chunk", "agent.continuation", "agent.event"}
PRESETS = {
    "minimal": BroadcastConfig.minimal(),
    "standard": BroadcastConfig.standard(),
    "debug": BroadcastConfig.debug(),
}

Messages = list[dict[str, Any]]
legs_of = lru_cache(maxsize=4_000)(random_legs)
presets = pytest.mark.parametrize("config", PRESETS.values(), ids=PRESETS)


def sent(leg: Leg, number: int) -> Messages:
    """Return the question as the client shows it before there is an answer."""
    if leg.query is None:
        return []
    at = "2026-01-16T09:00:00.000Z"
    return [{"id": f"local-{number}", "role": "user", "content": leg.query, "timestamp": at}]


def disturbed(dice: random.Random, envelopes: Messages) -> Messages:
    """Return the envelopes as a bad connection delivers them: cut short, some lost, repeated or late."""
    kept = envelopes[: dice.randint(0, len(envelopes))] if dice.random() < 0.3 else list(envelopes)
    kept = [envelope for envelope in kept if dice.random() < 0.9]
    kept += [envelope for envelope in kept if dice.random() < 0.1]
    late = [(index + dice.choice([0, 0, 0, 2, 40]), envelope) for index, envelope in enumerate(kept)]
    return [envelope for _, envelope in sorted(late, key=lambda pair: pair[0])]


def recorded(leg: Leg) -> Messages:
    """Return the envelopes of a leg that a server can send again."""
    return [envelope for envelope in leg.envelopes if is_numbered(envelope)]


def with_reasoning_chunks(envelopes: Messages) -> Messages:
    """Return the envelopes with a chunk of reasoning before the text of each answer."""
    changed: Messages = []
    for each in envelopes:
        data = each["data"]
        if each["event"] != "agent.stream.chunk":
            changed.append(each)
            continue
        index = data["chunk_index"]
        if index == 0:
            changed.append({**each, "data": {**data, "kind": "reasoning", "chunk": REASONING}})
        changed.append({**each, "data": {**data, "chunk_index": index + 1}})
    return changed


def reached(messages: Messages, leg: Leg) -> int:
    """Return the number of the last envelope of a leg that was applied."""
    own_id = f"{leg.envelopes[-1]['execution_id']}:status"
    return next(message["metadata"]["seq"] for message in messages if message["id"] == own_id)  # type: ignore[no-any-return]


@presets
@pytest.mark.parametrize("envelopes_of", [lambda leg: leg.envelopes, recorded], ids=["live", "recorded"])
def test_the_streamed_messages_become_the_stored_ones(
    config: BroadcastConfig, envelopes_of: Any, js: JavaScript
) -> None:
    for seed in range(RUNS):
        at_each_end: Messages = []
        only_once: Messages = []
        for number, leg in enumerate(legs_of(seed, config)):
            for messages in (at_each_end, only_once):
                given = [*messages, *sent(leg, number)], envelopes_of(leg), leg.canonical
                shown = js.call("client", *given)
                assert not shown["running"], seed
                assert not shown["missing"], seed
                assert reached(shown["streamed"], leg) == leg.envelopes[-1]["seq"], seed
                assert shown["reconciled"] == as_json(leg.canonical), seed
                messages[:] = shown["reconciled"] if messages is at_each_end else shown["streamed"]


@presets
def test_ids_and_texts_are_the_same_before_the_history_arrives(
    config: BroadcastConfig, js: JavaScript
) -> None:
    compared = 0
    for seed in range(RUNS // 4):
        streamed: Messages = []
        for number, leg in enumerate(legs_of(seed, config)):
            streamed = js.call("reduced", [*streamed, *sent(leg, number)], leg.envelopes)
            stored = {message["id"]: message for message in leg.canonical}
            rendered = js.each("shouldRenderContent", [[message] for message in streamed])
            ephemeral = js.each("isEphemeral", [[message] for message in streamed])
            for index, message in enumerate(streamed):
                if message["role"] == "user" or ephemeral[index]:
                    continue
                same = stored[message["id"]]
                assert same["role"] == message["role"]
                known, shown = same["metadata"], message["metadata"]
                assert known.get("incomplete") == shown.get("incomplete")
                assert known.get("changed_by") == shown.get("changed_by")
                if message["role"] == "tool":
                    assert ("tool_error" in known) == ("tool_error" in shown)
                elif message["role"] == "assistant" and not config.include_stream_chunks:
                    assert message["content"] == ""
                # This model writes arguments into its text, which are neither stored nor shown.
                elif rendered[index] or same["content"]:
                    assert same["content"] == message["content"]
                compared += 1
    assert compared > RUNS


@presets
def test_a_bad_connection_changes_nothing_once_the_history_has_arrived(
    config: BroadcastConfig, js: JavaScript
) -> None:
    for seed in range(RUNS):
        dice = random.Random(seed)
        messages: Messages = []
        for number, leg in enumerate(legs_of(seed, config)):
            received = disturbed(dice, leg.envelopes)
            messages = js.call("client", [*messages, *sent(leg, number)], received, leg.canonical)[
                "reconciled"
            ]
            assert messages == as_json(leg.canonical), seed
            assert js.call("reduced", messages, received) == messages, "late envelopes change nothing"


@presets
def test_a_gap_is_filled_by_the_envelopes_after_the_last_one(config: BroadcastConfig, js: JavaScript) -> None:
    filled = 0
    for seed in range(RUNS):
        dice = random.Random(seed)
        history: Messages = []
        for number, leg in enumerate(legs_of(seed, config)):
            history, start = leg.canonical, [*history, *sent(leg, number)]
            own_id = leg.state.execution.id
            envelopes = [each for each in recorded(leg) if each["execution_id"] == own_id]
            if len(envelopes) < 4:
                continue
            lost = dice.randrange(1, len(envelopes) - 2)
            if envelopes[lost + 1]["event"] == "agent.status":
                continue  # A pause or an end is shown at once.
            before = js.call("reduced", start, [*envelopes[:lost], envelopes[lost + 1]])
            (gap,) = js.call("missing", before)
            seq = envelopes[lost]["seq"]
            assert gap == {"execution_id": own_id, "first": seq, "last": seq}
            # A server sends all of them from there on, also those that are held.
            after = [each for each in envelopes if each["seq"] >= gap["first"]]
            assert js.call("reduced", before, after) == js.call("reduced", start, envelopes), seed
            filled += 1
    assert filled > RUNS // 4


def test_a_text_of_which_chunks_are_missing_has_a_mark_where_they_were(js: JavaScript) -> None:
    whole, torn = 0, 0
    for seed in range(RUNS):
        dice = random.Random(seed)
        for leg in legs_of(seed, PRESETS["standard"]):
            kept = [each for each in leg.envelopes if is_numbered(each) or dice.random() < 0.7]
            complete = {each["id"]: each["content"] for each in js.call("reduced", [], leg.envelopes)}
            for message in js.call("reduced", [], kept):
                if message["role"] != "assistant" or not message["content"]:
                    continue
                text = complete[message["id"]]
                pieces = message["content"].split("…")
                pattern = ANY.join(map(re.escape, pieces))
                if "incomplete" in message["metadata"]:
                    pattern += ANY  # The end of an interrupted answer is missing anyway.
                assert re.fullmatch(pattern, text), (seed, message["content"], text)
                whole, torn = whole + (len(pieces) == 1), torn + (len(pieces) > 1)
    assert whole > RUNS // 4
    assert torn > RUNS // 4


def test_chunks_that_arrive_twice_or_late_add_nothing(js: JavaScript) -> None:
    for seed in range(RUNS // 2):
        dice = random.Random(seed)
        for leg in legs_of(seed, PRESETS["standard"]):
            received: Messages = []
            for envelope in leg.envelopes:
                received.append(envelope)
                chunks = [each for each in received if each["event"] == "agent.stream.chunk"]
                if chunks and dice.random() < 0.3:
                    received.append(dice.choice(chunks))
            assert js.call("reduced", [], received) == js.call("reduced", [], leg.envelopes), seed


def test_chunks_of_reasoning_are_shown_beside_the_text(js: JavaScript) -> None:
    reasoned = 0
    for seed in range(RUNS // 2):
        for leg in legs_of(seed, PRESETS["standard"]):
            shown = js.call("reduced", [], with_reasoning_chunks(leg.envelopes))
            as_it_was = js.call("reduced", [], leg.envelopes)
            for message, before in zip(shown, as_it_was, strict=True):
                reasoning = message["metadata"].pop("reasoning", None)
                own = before["metadata"].pop("reasoning", "")
                has_any = message["role"] == "assistant" and (message["content"] or own)
                assert reasoning == (f"{REASONING}{own}" if has_any else None), seed
                reasoned += reasoning is not None
            assert shown == as_it_was, seed
    assert reasoned > RUNS // 4


@presets
def test_every_message_fits_the_schema(config: BroadcastConfig, js: JavaScript) -> None:
    for seed in range(RUNS // 10):
        dice = random.Random(seed)
        messages: Messages = []
        for number, leg in enumerate(legs_of(seed, config)):
            for stored in [leg.canonical, *(stored for _, stored in leg.meanwhile)]:
                assert_valid(stored)
            for screen in js.call("screens", [*messages, *sent(leg, number)], disturbed(dice, leg.envelopes)):
                assert_valid(screen[-6:])
                messages = screen
            assert_valid(messages)
            messages = js.call("reconcile", messages, leg.canonical)


def test_the_random_runs_have_everything_in_them(js: JavaScript) -> None:
    sessions = [legs_of(seed, PRESETS["debug"]) for seed in range(300)]
    legs = [leg for session in sessions for leg in session]
    assert {leg.state.status.value for leg in legs} == {"completed", "stopped", "failed", "paused"}
    reasons = {leg.state.stop_reason and leg.state.stop_reason.value for leg in legs}
    assert reasons >= {None, "completed", "steps_limit", "token_limit", "error", "retry_limit"}
    assert reasons >= {"finish_reason", "user_requested"}
    events = {envelope["event"] for leg in legs for envelope in leg.envelopes}
    assert events == NUMBERED | UNNUMBERED
    shown = [m for s in js.each("reduced", [[[], leg.envelopes[:-3]] for leg in legs]) for m in s]
    assert any(message["content"] == "Retrying (2/3)" for message in shown)
    assert any("question_id" in message["metadata"] for message in shown)
    stored = [message.get("metadata", {}) for leg in legs for message in leg.canonical]
    for entry in ("question_id", "reasoning", "incomplete", "changed_by"):
        assert any(entry in metadata for metadata in stored), entry


def test_the_random_envelopes_are_numbered_by_the_rule() -> None:
    for seed in range(100):
        last: dict[str, int] = {}
        for leg in legs_of(seed, PRESETS["debug"]):
            for envelope in leg.envelopes:
                expected = last.get(envelope["execution_id"], 0) + is_numbered(envelope)
                assert envelope["seq"] == expected, seed
                last[envelope["execution_id"]] = expected
