"""Random runs: at each moment that is recorded, the live view shows what the history shows."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ui.runs import Leg, is_numbered
from tests.ui.support import JavaScript
from tests.ui.test_fuzz import PRESETS, RUNS, Messages, View, asked, legs_of, run_of

pytestmark = pytest.mark.slow

COMPARED = ("status_type", "question_id", "question", "changed_by", "incomplete")


def lines(messages: Messages, js: JavaScript) -> dict[str, Any]:
    """Return what is compared of each message by its id.

    Questions of users come from the history alone. The status of an execution is the live view's own, unless
    it is about a retry.
    Envelopes have the calls of a step in the order in which they start, and results that are cut.
    """
    rendered = js.each("shouldRenderContent", [[message] for message in messages])
    shown: dict[str, Any] = {}
    for message, has_text in zip(messages, rendered, strict=True):
        metadata, role = message.get("metadata", {}), message["role"]
        calls = sorted((call["id"], call["name"]) for call in metadata.get("tool_calls", ()))
        if "retry" in metadata:
            shown[message["id"]] = (role, message["content"], metadata["status_type"], metadata["retry"])
            continue
        if role == "user" or message["id"].endswith(":status") or not (has_text or calls or role == "tool"):
            continue
        text = message["content"] if has_text else ""
        shown[message["id"]] = (role, text, calls, *(metadata.get(name) for name in COMPARED))
    return shown


def known(view: View, loaded: View) -> dict[str, Any]:
    """Return what is compared of the run that is the last one in a history.

    Of a run that is not in progress, the history shows the last step that has a message. The next start has
    the number.
    """
    run = run_of(view, loaded["runs"][-1]["execution_id"])
    calls = sorted(run["calls"], key=lambda call: str(call["message_id"]))
    shared = {name: run[name] for name in ("status", "seq", "question_id", "retry")}
    step = run["step_number"] if run["status"] == "in_progress" else None
    return {**shared, "calls": calls, "step_number": step}


def recorded_moments(leg: Leg) -> list[tuple[int, Messages]]:
    """Return each recorded history with the number of envelopes at which a client knows as much."""
    ends = [*(count for count, _ in leg.meanwhile[1:]), len(leg.envelopes)]
    moments = []
    for (first, stored), end in zip(leg.meanwhile, ends, strict=True):
        numbered = [index + 1 for index in range(first, end) if is_numbered(leg.envelopes[index])]
        moments.append((numbered[-1] if numbered else first, stored))
    return moments


def is_short_lived(own_id: str, line: Any) -> bool:
    """Return whether a line is in the live view alone.

    These are a decision about the run itself, and the error of a run that was resumed and ended otherwise.
    """
    if own_id.endswith(":status"):
        return False
    _, _, _, status_type, *_ = line
    return status_type == "error" or (status_type == "info" and ":question:" in own_id)


def wraps_up(history: Messages) -> bool:
    return bool(history[-1]["content"] == "Wrapping up…")


@pytest.mark.parametrize("deaths", [False, True], ids=["runs that end", "runs that die"])
def test_the_live_view_shows_what_the_history_shows(deaths: bool, js: JavaScript) -> None:
    compared = 0
    for seed in range(RUNS):
        history: Messages = []
        for number, leg in enumerate(legs_of(seed, PRESETS["standard"], deaths)):
            start = asked(js, history, leg, number)
            screens = [start, *js.call("screens", start, leg.envelopes)]
            for place, stored in recorded_moments(leg):
                expected = lines(stored, js)
                shown = lines(screens[place]["messages"], js)
                if (
                    wraps_up(stored)
                    and run_of(screens[place], stored[-1]["metadata"]["execution_id"])["retry"]
                ):
                    continue  # A retry was given up; the start of the wrap-up shows it, and has no number.
                for own_id in [each for each in shown if each not in expected]:
                    if is_short_lived(own_id, shown[own_id]):
                        del shown[own_id]
                assert shown == expected, (seed, number, place)
                compared += len(expected)
                loaded = js.call("view", stored)
                assert known(screens[place], loaded) == known(loaded, loaded), (seed, number, place)
            history = leg.canonical
    assert compared > RUNS * 10
