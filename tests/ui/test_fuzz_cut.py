"""Random runs that are cut: a client joins anywhere, or a process dies anywhere."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Any

import pytest

from tests.ui.runs import Leg, random_legs
from tests.ui.support import JavaScript, as_json, assert_valid
from tests.ui.test_fuzz import (
    RUNS,
    Messages,
    View,
    asked,
    disturbed,
    is_running,
    legs_of,
    presets,
    recorded,
)
from whyloop.broadcasting import BroadcastConfig

pytestmark = pytest.mark.slow

dying_legs_of = lru_cache(maxsize=4_000)(random_legs)


def cuts(leg: Leg) -> Iterator[tuple[int, Messages]]:
    """Yield every place in the envelopes of a leg, each with the history that is recorded by then."""
    records = [*leg.meanwhile, (len(leg.envelopes), leg.canonical)]
    for (first, stored), (last, _) in pairwise(records):
        for place in range(first, last + 1):
            yield place, stored


def running(view: View) -> list[str]:
    """Return the runs that are in progress."""
    return [run["execution_id"] for run in view["runs"] if run["status"] == "in_progress"]


@presets
def test_a_page_that_is_loaded_anywhere_shows_that_a_run_is_in_progress(
    config: BroadcastConfig, js: JavaScript
) -> None:
    loaded = 0
    for seed in range(RUNS):
        for leg in legs_of(seed, config):
            running = js.each("isRunning", [[stored] for _, stored in leg.meanwhile])
            for runs, (_, stored) in zip(running, leg.meanwhile, strict=True):
                assert runs == stored[-1]["id"].endswith(":status"), seed
                loaded += runs
            assert not running[-1], seed
    assert loaded > RUNS


@presets
def test_a_client_continues_from_the_history_of_any_moment(config: BroadcastConfig, js: JavaScript) -> None:
    joined = 0
    for seed in range(RUNS // 2):
        for leg in legs_of(seed, config):
            places = list(cuts(leg))
            loaded = js.each("isRunning", [[stored] for _, stored in places])
            rest = [leg.envelopes[place:] for place, _ in places]
            clients = js.each(
                "client",
                [[stored, left, leg.canonical] for (_, stored), left in zip(places, rest, strict=True)],
            )
            for was_running, left, client in zip(loaded, rest, clients, strict=True):
                streamed = client["streamed"]["messages"]
                assert len({message["id"] for message in streamed}) == len(streamed), seed
                assert is_running(client["streamed"]) == (was_running and not left), seed
                assert client["reconciled"]["messages"] == as_json(leg.canonical), seed
                joined += bool(left)
    assert joined > RUNS


@presets
def test_a_history_that_is_ahead_of_the_envelopes_is_right_in_the_end(
    config: BroadcastConfig, js: JavaScript
) -> None:
    for seed in range(RUNS):
        for leg in legs_of(seed, config):
            given = [
                [stored, leg.envelopes[place:], leg.canonical]
                for count, stored in leg.meanwhile
                for place in range(max(0, count - 4), count)
            ]
            for client in js.each("client", given):
                assert not is_running(client["streamed"]), seed
                assert not any(run["gap"] for run in client["streamed"]["runs"]), seed
                assert client["reconciled"]["messages"] == as_json(leg.canonical), seed


@presets
def test_only_the_latest_run_is_in_progress_whichever_died(config: BroadcastConfig, js: JavaScript) -> None:
    deaths = 0
    for seed in range(RUNS):
        view: Any = []
        for number, leg in enumerate(dying_legs_of(seed, config, True)):
            streamed = asked(js, view, leg, number)
            screens = js.call("screens", streamed, recorded(leg))
            assert all(len(running(screen)) < 2 for screen in screens), seed
            streamed = screens[-1] if screens else streamed
            reconciled = js.call("reconciled", streamed, leg.canonical)
            expected = [leg.state.execution.id] if leg.died else []
            assert running(streamed) == running(reconciled) == expected, seed
            assert reconciled["messages"] == as_json(leg.canonical), seed
            deaths += leg.died
            view = reconciled if seed % 2 else streamed
    assert deaths > RUNS // 2


@presets
def test_a_bad_connection_and_runs_that_die_change_nothing_once_the_history_has_arrived(
    config: BroadcastConfig, js: JavaScript
) -> None:
    for seed in range(RUNS):
        dice = random.Random(seed)
        view: Any = []
        for number, leg in enumerate(dying_legs_of(seed, config, True)):
            given = asked(js, view, leg, number), disturbed(dice, leg.envelopes), leg.canonical
            client = js.call("client", *given)
            assert_valid(client["streamed"]["messages"][-4:])
            view = client["reconciled"]
            assert view["messages"] == as_json(leg.canonical), seed
