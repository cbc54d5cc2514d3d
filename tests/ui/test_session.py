"""The live view of a session, `whyloop-ui/session`."""

from __future__ import annotations

import json
import re
import subprocess
from itertools import pairwise
from typing import Any

import pytest

from tests.ui.runs import Leg, is_numbered, random_legs
from tests.ui.support import HERE, NODE, PACKAGE, as_json, needs_node
from whyloop.broadcasting import BroadcastConfig

RUNS = 150


@needs_node
def test_it_follows_a_session() -> None:
    paths = sorted(map(str, HERE.glob("session*.test.mjs")))
    command = [str(NODE), "--test", "--test-reporter=tap", *paths]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=60, check=False)
    assert done.returncode == 0, done.stdout
    assert len(re.findall(r"^ *ok \d+ - (?!/)", done.stdout, re.MULTILINE)) >= 61


def happening(legs: list[Leg]) -> list[dict[str, Any]]:
    """Return what happens in a session: a history can be read before its envelopes are sent."""
    happens: list[dict[str, Any]] = []
    for leg in legs:
        places = [*(count for count, _ in leg.meanwhile), len(leg.envelopes)]
        for (_, stored), (first, last) in zip(leg.meanwhile, pairwise(places), strict=True):
            envelopes = leg.envelopes[first:last]
            happens.append({"stored": stored, "recorded": [each for each in envelopes if is_numbered(each)]})
            happens += [{"sent": each} for each in envelopes]
    return happens


@needs_node
@pytest.mark.slow
@pytest.mark.parametrize("deaths", [False, True], ids=["runs that end", "runs that die"])
def test_a_bad_connection_shows_the_history_in_the_end(deaths: bool) -> None:
    sessions = [random_legs(seed, BroadcastConfig.standard(), deaths) for seed in range(RUNS)]
    assert any(leg.died for legs in sessions for leg in legs) == deaths
    given = [json.dumps({"seed": seed, "happens": happening(legs)}) for seed, legs in enumerate(sessions)]
    command = [str(NODE), str(HERE / "follow.mjs"), str(PACKAGE / "session.js")]
    done = subprocess.run(
        command, input="\n".join(given), capture_output=True, encoding="utf-8", timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    shown = [json.loads(line) for line in done.stdout.split("\n") if line]
    assert len(shown) == RUNS
    for seed, legs in enumerate(sessions):
        assert shown[seed]["last"] == as_json(legs[-1].canonical), seed
        assert shown[seed]["unseen"] == [], f"{seed}: a question was not shown"
        assert shown[seed]["misled"] == [], f"{seed}: a run was shown in progress and was not, or the reverse"
    assert sum(each["looks"] for each in shown) > RUNS
    assert sum(each["known"] for each in shown) > RUNS // 4
    assert sum(each["filled"] for each in shown) > RUNS // 4
