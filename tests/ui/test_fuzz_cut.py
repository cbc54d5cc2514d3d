"""Random runs that are cut: a client joins anywhere, or a process dies anywhere."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise

import pytest

from tests.ui.runs import Leg, random_legs
from tests.ui.support import JavaScript, as_json, assert_valid, javascript, needs_node
from tests.ui.test_fuzz import RUNS, Messages, disturbed, in_python, legs_of, presets, reduced, replayed, sent
from whyloop import AgentStatus
from whyloop.broadcasting import BroadcastConfig
from whyloop.wire import ui

pytestmark = pytest.mark.slow

dying_legs_of = lru_cache(maxsize=4_000)(random_legs)


@pytest.fixture(scope="module")
def js() -> Iterator[JavaScript]:
    with javascript() as process:
        yield process


def cuts(leg: Leg) -> Iterator[tuple[int, Messages]]:
    """Every place in the envelopes of a leg, each with the history that is recorded by then."""
    records = [*leg.meanwhile, (len(leg.envelopes), leg.canonical)]
    for (first, stored), (last, _) in pairwise(records):
        for place in range(first, last + 1):
            yield place, stored


def under_way(stored: Messages) -> list[str]:
    """The executions that a history shows to be under way."""
    return [message["id"] for message in stored if ui.is_running([message])]


@presets
def test_a_page_that_is_loaded_anywhere_shows_that_something_runs(config: BroadcastConfig) -> None:
    loaded = 0
    for seed in range(RUNS):
        for leg in legs_of(seed, config):
            own = f"{leg.state.execution.id}:status"
            for _, stored in leg.meanwhile[:-1]:
                assert under_way(stored) == [own], seed
                assert stored[-1]["id"] == own
                loaded += 1
            assert not ui.is_running(leg.begun), seed
            assert not ui.is_running(leg.canonical), seed
    assert loaded > RUNS


@presets
@pytest.mark.parametrize("in_order", [False, True], ids=["a bad line", "a line that keeps the order"])
def test_whoever_begins_with_the_history_of_any_moment_goes_on_from_there(
    config: BroadcastConfig, in_order: bool
) -> None:
    taken_over = 0
    for seed in range(RUNS // 2):
        for leg in legs_of(seed, config):
            for place, stored in cuts(leg):
                left = leg.envelopes[place:]
                first = reduced(stored, left[:1], in_order)
                if left and ui.is_running(stored):
                    assert first[-1]["metadata"]["seq"] == left[0]["seq"], "nothing is waited for"
                    taken_over += 1
                assert_valid(first[-4:])
                messages = reduced(stored, left, in_order)
                assert len({message["id"] for message in messages}) == len(messages), seed
                assert ui.is_running(messages) == (ui.is_running(stored) and not left), seed
                assert ui.reconcile(messages, leg.canonical) == leg.canonical, seed
    assert taken_over > RUNS


@presets
def test_a_history_that_is_ahead_of_the_envelopes_is_right_in_the_end(config: BroadcastConfig) -> None:
    for seed in range(RUNS):
        for leg in legs_of(seed, config):
            for told, stored in leg.meanwhile:
                for place in range(max(0, told - 4), told):
                    messages = reduced(stored, leg.envelopes[place:], in_order=True)
                    assert not ui.is_running(messages), seed
                    assert ui.reconcile(messages, leg.canonical) == leg.canonical, seed


@presets
def test_only_the_latest_run_is_under_way_whichever_have_died(config: BroadcastConfig) -> None:
    deaths = 0
    for seed in range(RUNS):
        streamed: Messages = []
        for number, leg in enumerate(dying_legs_of(seed, config, True)):
            streamed = [*streamed, *sent(leg, number)]
            for envelope in replayed(leg):
                streamed = ui.reduce(streamed, envelope, in_order=True)
                assert set(under_way(streamed)) <= {f"{envelope['execution_id']}:status"}, seed
            if leg.envelopes:
                assert ui.is_running(streamed) == leg.died, seed
            assert ui.is_running(leg.canonical) == leg.died == (leg.state.status is AgentStatus.IN_PROGRESS)
            assert ui.reconcile(streamed, leg.canonical) == leg.canonical, seed
            deaths += leg.died
            if seed % 2:
                streamed = ui.reconcile(streamed, leg.canonical)
    assert deaths > RUNS // 2


@presets
def test_a_bad_line_and_runs_that_die_change_nothing_once_the_history_has_come(
    config: BroadcastConfig,
) -> None:
    for seed in range(RUNS):
        dice = random.Random(seed)
        messages: Messages = []
        for number, leg in enumerate(dying_legs_of(seed, config, True)):
            messages = reduced([*messages, *sent(leg, number)], disturbed(dice, leg.envelopes))
            assert_valid(messages)
            messages = ui.reconcile(messages, leg.canonical)
            assert messages == leg.canonical, seed


@needs_node
@presets
def test_python_and_javascript_see_the_same_of_runs_that_die(config: BroadcastConfig, js: JavaScript) -> None:
    for seed in range(RUNS):
        dice = random.Random(seed)
        messages: Messages = []
        for number, leg in enumerate(dying_legs_of(seed, config, True)):
            messages = [*messages, *sent(leg, number)]
            in_order = dice.random() < 0.5
            told = leg.envelopes if dice.random() < 0.5 else disturbed(dice, leg.envelopes)
            python = in_python(messages, told, leg.canonical, in_order)
            assert js.call("client", messages, told, leg.canonical, in_order) == as_json(python), seed
            messages = python["streamed"] if dice.random() < 0.5 else python["reconciled"]
