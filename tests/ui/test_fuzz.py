"""Random runs: the streamed messages become the stored ones, also over a bad connection."""

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
View = dict[str, Any]
legs_of = lru_cache(maxsize=4_000)(random_legs)
presets = pytest.mark.parametrize("config", PRESETS.values(), ids=PRESETS)


def asked(js: JavaScript, view: View | Messages, leg: Leg, number: int) -> View:
    """Return the view with the question of a leg, as the client shows it before there is an answer."""
    at = "2026-01-16T09:00:00.000Z"
    question = {"id": f"local-{number}", "role": "user", "content": leg.query, "timestamp": at}
    shown: View = js.call("added", view, [] if leg.query is None else [question])
    return shown


def is_running(view: View) -> bool:
    return any(run["status"] == "in_progress" for run in view["runs"])


def run_of(view: View, execution_id: str) -> dict[str, Any]:
    """Return what is known of a run."""
    runs: list[dict[str, Any]] = [run for run in view["runs"] if run["execution_id"] == execution_id]
    (run,) = runs
    return run


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


@presets
@pytest.mark.parametrize("envelopes_of", [lambda leg: leg.envelopes, recorded], ids=["live", "recorded"])
def test_the_streamed_messages_become_the_stored_ones(
    config: BroadcastConfig, envelopes_of: Any, js: JavaScript
) -> None:
    for seed in range(RUNS):
        views: dict[str, Any] = {"reconciled": [], "streamed": []}
        for number, leg in enumerate(legs_of(seed, config)):
            last = leg.envelopes[-1]
            for kept, view in views.items():
                shown = js.call("client", asked(js, view, leg, number), envelopes_of(leg), leg.canonical)
                run = run_of(shown["streamed"], last["execution_id"])
                assert not is_running(shown["streamed"]), seed
                assert not is_running(shown["reconciled"]), seed
                assert (run["seq"], run["gap"], run["held"]) == (last["seq"], None, []), seed
                assert run["status"] == leg.state.status, seed
                assert shown["reconciled"]["messages"] == as_json(leg.canonical), seed
                assert run_of(shown["reconciled"], leg.state.execution.id)["status"] == leg.state.status, seed
                views[kept] = shown[kept]


@presets
def test_ids_and_texts_are_the_same_before_the_history_arrives(
    config: BroadcastConfig, js: JavaScript
) -> None:
    compared = 0
    for seed in range(RUNS // 4):
        view: Any = []
        for number, leg in enumerate(legs_of(seed, config)):
            view = js.call("reduced", asked(js, view, leg, number), leg.envelopes)
            streamed = view["messages"]
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
        view: Any = []
        for number, leg in enumerate(legs_of(seed, config)):
            received = disturbed(dice, leg.envelopes)
            view = js.call("client", asked(js, view, leg, number), received, leg.canonical)["reconciled"]
            assert view["messages"] == as_json(leg.canonical), seed
            again = js.call("reduced", view, received)
            assert again["messages"] == view["messages"], "late envelopes change nothing"


@presets
def test_a_gap_is_filled_by_the_envelopes_after_the_last_one(config: BroadcastConfig, js: JavaScript) -> None:
    filled = 0
    for seed in range(RUNS):
        dice = random.Random(seed)
        history: Messages = []
        for number, leg in enumerate(legs_of(seed, config)):
            history, start = leg.canonical, asked(js, history, leg, number)
            own_id = leg.state.execution.id
            envelopes = [each for each in recorded(leg) if each["execution_id"] == own_id]
            if len(envelopes) < 4:
                continue
            lost = dice.randrange(1, len(envelopes) - 2)
            if envelopes[lost + 1]["event"] == "agent.status":
                continue  # A pause or an end is shown at once.
            before = js.call("reduced", start, [*envelopes[:lost], envelopes[lost + 1]])
            seq = envelopes[lost]["seq"]
            assert run_of(before, own_id)["gap"] == {"first": seq, "last": seq}
            # A server sends all of them from there on, also those that are held.
            after = [each for each in envelopes if each["seq"] >= seq]
            filled_up, whole = js.call("reduced", before, after), js.call("reduced", start, envelopes)
            assert filled_up["messages"] == whole["messages"], seed
            assert filled_up["runs"] == whole["runs"], seed
            filled += 1
    assert filled > RUNS // 4


def test_a_text_of_which_chunks_are_missing_has_a_mark_where_they_were(js: JavaScript) -> None:
    whole, torn = 0, 0
    for seed in range(RUNS):
        dice = random.Random(seed)
        for leg in legs_of(seed, PRESETS["standard"]):
            kept = [each for each in leg.envelopes if is_numbered(each) or dice.random() < 0.7]
            everything = js.call("reduced", [], leg.envelopes)["messages"]
            complete = {each["id"]: each["content"] for each in everything}
            for message in js.call("reduced", [], kept)["messages"]:
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
            shown, once = js.call("reduced", [], received), js.call("reduced", [], leg.envelopes)
            assert (shown["messages"], shown["runs"]) == (once["messages"], once["runs"]), seed


def test_chunks_of_reasoning_are_shown_beside_the_text(js: JavaScript) -> None:
    reasoned = 0
    for seed in range(RUNS // 2):
        for leg in legs_of(seed, PRESETS["standard"]):
            shown = js.call("reduced", [], with_reasoning_chunks(leg.envelopes))["messages"]
            as_it_was = js.call("reduced", [], leg.envelopes)["messages"]
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
        view: Any = []
        for number, leg in enumerate(legs_of(seed, config)):
            for stored in [leg.canonical, *(stored for _, stored in leg.meanwhile)]:
                assert_valid(stored)
            view = asked(js, view, leg, number)
            for screen in js.call("screens", view, disturbed(dice, leg.envelopes)):
                assert_valid(screen["messages"][-6:])
                view = screen
            assert_valid(view["messages"])
            view = js.call("reconciled", view, leg.canonical)


def test_the_random_runs_have_everything_in_them(js: JavaScript) -> None:
    sessions = [legs_of(seed, PRESETS["debug"]) for seed in range(300)]
    legs = [leg for session in sessions for leg in session]
    assert {leg.state.status.value for leg in legs} == {"completed", "stopped", "failed", "paused"}
    reasons = {leg.state.stop_reason and leg.state.stop_reason.value for leg in legs}
    assert reasons >= {None, "completed", "steps_limit", "token_limit", "error", "retry_limit"}
    assert reasons >= {"finish_reason", "user_requested"}
    events = {envelope["event"] for leg in legs for envelope in leg.envelopes}
    assert events == NUMBERED | UNNUMBERED
    views = js.each("reduced", [[[], leg.envelopes[:-3]] for leg in legs])
    shown = [message for view in views for message in view["messages"]]
    runs = [run for view in views for run in view["runs"]]
    assert any(message["content"] == "Retrying (2/3)" for message in shown)
    assert any("question_id" in message["metadata"] for message in shown)
    assert any(run["retry"] for run in runs)
    assert any(call["question_id"] for run in runs for call in run["calls"])
    assert any(run["evaluations"] for run in runs)
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
