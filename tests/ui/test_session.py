"""The live view of a session, `whyloop-ui/session`."""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

import pytest

from tests.ui.runs import Leg, random_legs
from tests.ui.support import HERE, NODE, PACKAGE, as_json, needs_node
from whyloop.broadcasting import BroadcastConfig

RUNS = 150


@needs_node
def test_it_follows_a_session() -> None:
    paths = sorted(map(str, HERE.glob("session*.test.mjs")))
    command = [str(NODE), "--test", "--test-reporter=tap", *paths]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=60, check=False)
    assert done.returncode == 0, done.stdout
    assert len(re.findall(r"^ *ok \d+ - (?!/)", done.stdout, re.MULTILINE)) >= 38


def happening(legs: list[Leg]) -> list[dict[str, Any]]:
    """What happens in a session: a beginning and an end can be read before they are told."""
    happens: list[dict[str, Any]] = []
    for leg in legs:
        stored = {0: leg.begun, **dict(leg.meanwhile)}
        for number, envelope in enumerate(leg.envelopes):
            if number in stored:
                happens.append({"stored": stored[number]})
            if number == len(leg.envelopes) - 1:
                happens.append({"stored": leg.canonical})
            happens.append({"told": envelope})
    return happens


@needs_node
@pytest.mark.slow
def test_whatever_happens_on_the_way_it_shows_what_is_stored_in_the_end() -> None:
    sessions = [random_legs(seed, BroadcastConfig.standard()) for seed in range(RUNS)]
    told = [json.dumps({"seed": seed, "happens": happening(legs)}) for seed, legs in enumerate(sessions)]
    command = [str(NODE), str(HERE / "follow.mjs"), str(PACKAGE / "session.js")]
    done = subprocess.run(
        command, input="\n".join(told), capture_output=True, encoding="utf-8", timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    shown = [json.loads(line) for line in done.stdout.split("\n") if line]
    assert len(shown) == RUNS
    for seed, legs in enumerate(sessions):
        assert shown[seed]["last"] == as_json(legs[-1].canonical), seed
        assert shown[seed]["unseen"] == [], f"{seed}: a question was told of, and not shown"
    assert sum(each["looks"] for each in shown) > RUNS
