"""Tokens, texts and clocks as values."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from tests.support import START, at
from whyloop import Execution, Usage
from whyloop.values.text import clean, counted, printable, short_id, shortened

usages = st.builds(Usage, *[st.integers(0, 10**9)] * 4)


@given(usages, usages)
def test_usage_adds_up_in_every_part(a: Usage, b: Usage) -> None:
    both = a + b
    assert (both.input, both.output) == (a.input + b.input, a.output + b.output)
    assert (both.cached, both.reasoning) == (a.cached + b.cached, a.reasoning + b.reasoning)
    assert both.total == a.total + b.total
    assert a + Usage() == a


@given(st.text())
def test_clean_text_can_always_be_encoded_and_good_text_stays_as_it_is(text: str) -> None:
    cleaned = clean(text)
    cleaned.encode()
    if not any("\ud800" <= character <= "\udfff" for character in text):
        assert cleaned == text


def test_halves_of_one_character_are_put_together_and_lone_ones_are_replaced() -> None:
    assert clean("\ud83c\udf89") == "🎉"
    assert "\ud800" not in clean("a\ud800b")
    assert clean("a\ud800b").startswith("a")


@given(st.text(), st.integers(1, 50))
def test_shortened_text_is_one_line_and_never_longer_than_its_limit(text: str, limit: int) -> None:
    short = shortened(text, limit)
    assert len(short) <= limit
    assert len(short.splitlines()) <= 1


@given(st.text())
def test_nothing_in_a_printable_text_steers_a_terminal(text: str) -> None:
    shown = printable(text)
    assert len(shown) == len(text)
    assert all(char.isprintable() or char in "\n\u200c\u200d" for char in shown)
    assert printable(shown) == shown


@pytest.mark.parametrize(
    "steering", ["\x1b[31m", "\x1b]0;title\x07", "\r", "\x9b2J", "\u202e", "\x00", "\u200f"]
)
def test_steering_characters_are_replaced(steering: str) -> None:
    assert steering[0] not in printable(f"a{steering}b")
    assert steering[0] not in shortened(f"a{steering}b", 50)


def test_spaces_and_joined_characters_stay_readable() -> None:
    assert printable("a\tb\u00a0c\nd") == "a b c\nd"
    assert shortened("one\ntwo") == "one two"
    assert printable("👩\u200d🚀 می\u200cخواهم") == "👩\u200d🚀 می\u200cخواهم"


@pytest.mark.parametrize(
    ("number", "expected"), [(0, "0 steps"), (1, "1 step"), (2, "2 steps"), (1200, "1,200 steps")]
)
def test_a_number_goes_with_its_noun(number: int, expected: str) -> None:
    assert counted(number, "step") == expected


@pytest.mark.parametrize(
    ("identifier", "short"),
    [
        ("1a2b3c4d5e6f", "1a2b3c4d"),
        ("1a2b3c4d5e6f1a2b3c4d5e6f1a2b3c4d", "1a2b3c4d"),
        ("1a2b3c4d-5e6f-1a2b-3c4d-5e6f1a2b3c4d", "1a2b3c4d"),
        ("customer-42", "customer-42"),
        ("2026-11-19-0001", "2026-11-19-0001"),
        ("491701234567", "491701234567"),
        ("decade-42", "decade-42"),
    ],
)
def test_only_generated_ids_are_shortened(identifier: str, short: str) -> None:
    assert short_id(identifier) == short


def test_the_wall_time_of_an_execution_runs_from_its_start_to_the_last_that_happened() -> None:
    assert Execution(started_at=START).wall_seconds == 0
    assert Execution(started_at=START, updated_at=at(12.5)).wall_seconds == 12.5
    assert Execution(started_at=START, updated_at=at(-5)).wall_seconds == 0
