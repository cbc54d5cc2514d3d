"""Random arguments: Python and JavaScript sum them up alike."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.ui.support import as_json, javascript, needs_node
from tests.ui.test_fuzz import RUNS
from whyloop.wire import ui

pytestmark = pytest.mark.slow


def random_value(dice: random.Random, depth: int = 0) -> Any:
    """A value as a model may send it, but for the numbers that the two languages write differently."""
    match dice.randint(0, 7 if depth < 3 else 4):
        case 0:
            return dice.choice([None, True, False])
        case 1:
            return dice.choice([dice.randint(-(2**53), 2**53), dice.randint(-9, 9)])
        case 2:
            return dice.choice([dice.uniform(-1000, 1000), 1e21, -1.5e300, 1e-7, 0.001])
        case 3 | 4:
            return random_text(dice)
        case 5 | 6:
            return [random_value(dice, depth + 1) for _ in range(dice.randint(0, 4))]
    # Names that differ only in halves of characters would be one in Python.
    return {
        f"{number} {random_text(dice)}": random_value(dice, depth + 1) for number in range(dice.randint(0, 4))
    }


def random_text(dice: random.Random) -> str:
    signs = ["a", "Z", " ", "'", '"', "\\", "\\ud800", "e+", "\n", "\0", "\x7f", "é", "世", "👋", "\u2028"]
    signs += ["\ud83d", "\udc4b", "/", "__proto__"]
    return "x" + "".join(dice.choices(signs, k=dice.choice([0, 1, 3, 12, 40])))


@needs_node
def test_python_and_javascript_sum_arguments_up_alike() -> None:
    dice = random.Random(7)
    with javascript() as js:
        for _ in range(RUNS * 10):
            arguments = as_json({random_text(dice): random_value(dice) for _ in range(dice.randint(0, 5))})
            longest = dice.choice([0, 1, 5, 30, 100])
            there = js.call("argsSummary", arguments, longest)
            assert there == as_json(ui.args_summary(arguments, longest)), ascii(arguments)
