"""What a person decides about is shown as it is: nothing reverses, hides or imitates text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from whyloop.cli.formats import arguments_summary, exact_arguments
from whyloop.cli.renderer import pending_text
from whyloop.values.approval import PendingCall
from whyloop.values.redaction import Redaction
from whyloop.values.summaries import args_summary
from whyloop.values.text import revealed

# The JavaScript module passes the same table.
CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "ui" / "vectors" / "reveal.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_a_text_is_shown_as_the_table_says(case: dict[str, Any]) -> None:
    assert revealed(*case["arguments"]) == case["expected"]


@given(
    st.text(
        alphabet=st.characters(categories=["Cf", "Cc", "Zl", "Zp", "Lu", "Ll"], exclude_characters="\n\t")
    )
)
def test_no_character_that_steers_the_display_is_left(text: str) -> None:
    shown = revealed(text)
    assert revealed(shown) == shown
    assert not set(shown) & set(
        "\u202a\u202b\u202d\u202e\u2066\u2067\u2068\u200b\u200d\u200e\u200f\u061c\ufeff\u00ad"
    )


TRICK = "pay \u202e05.2 RUE\u202c to p\u0430ypal"
SHOWN = "pay \\u202e05.2 RUE\\u202c to p\u0430ypal⟦mixes Latin and Cyrillic⟧"


def test_the_terminal_shows_arguments_as_they_are() -> None:
    assert SHOWN in "\n".join(exact_arguments({"text": TRICK}, full=True))
    assert SHOWN in "\n".join(exact_arguments({TRICK: 1}, full=True))
    for each in ({"text": TRICK}, {"nested": [TRICK]}, {TRICK: 1}, TRICK):
        assert "pay \\u202e05.2 RUE" in arguments_summary(each)
    assert "⟦mixes Latin and Cyrillic⟧" in arguments_summary({"to": "\u0430b"})
    assert "\\u202e05" in pending_text(PendingCall("q", "pay", "call_1", {"a": TRICK}, "pay waits"))


def test_the_summary_of_arguments_shows_what_they_are_to_every_ui() -> None:
    for redaction in (None, Redaction()):
        assert args_summary({"text": TRICK}, redaction=redaction) == f"text: '{SHOWN}'"
        assert args_summary(TRICK, redaction=redaction) == SHOWN
