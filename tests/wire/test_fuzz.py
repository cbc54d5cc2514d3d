"""Broken snapshots, thousands of them: a `SnapshotError` with a path, or a state, and never anything else."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.golden.fixed_run import snapshot
from tests.wire.fuzz import Tally, broken
from tests.wire.test_slim_golden import golden
from whyloop import AgentState, SlimAgentStateSerializer
from whyloop.errors import SnapshotError

pytestmark = pytest.mark.slow

INPUTS = 6_000


def priced() -> dict[str, Any]:
    """A snapshot in which every amount of money is known, and one is granted."""
    whole = snapshot()
    holders = [whole, whole["execution"], *whole["steps"]]
    for number, holder in enumerate(holders, 1):
        holder["usage"] = {**holder.get("usage", {}), "cost": f"0.{number}"}
    whole["execution"]["granted"] = {"usd": "0.5", "seconds": 5}
    return whole


READERS: dict[str, tuple[Callable[[Any], AgentState], list[dict[str, Any]]]] = {
    "full": (AgentState.from_dict, [snapshot(), priced(), AgentState().to_dict()]),
    "slim": (
        SlimAgentStateSerializer().deserialize,
        [golden("minimal"), golden("standard"), golden("full"), golden("standard_paused")],
    ),
}
each_kind = pytest.mark.parametrize("kind", READERS)


@each_kind
def test_a_broken_snapshot_is_a_snapshot_error_or_a_state(kind: str) -> None:
    read, documents = READERS[kind]
    texts = [json.dumps(document) for document in documents]
    rng = random.Random(7)
    tally = Tally()
    while tally.inputs < INPUTS:
        try:
            document = json.loads(broken(rng, rng.choice(texts)))
        except (ValueError, RecursionError):
            continue  # It is not for a snapshot to say that this is no JSON.
        tally.count(lambda document=document: read(document))  # type: ignore[misc]
    assert tally.inputs == INPUTS
    assert all(path.startswith("$") for path in tally.paths)
    assert len(set(tally.paths)) > 100
    assert tally.accepted > INPUTS / 20


@each_kind
def test_a_large_snapshot_takes_no_longer_than_its_size(kind: str) -> None:
    read, documents = READERS[kind]
    document = json.loads(json.dumps(documents[1]))
    document["messages"] *= 3_000
    document["steps"] *= 300
    started = time.perf_counter()
    assert len(read(document).messages) == len(document["messages"])
    assert time.perf_counter() - started < 5


@each_kind
def test_a_snapshot_without_an_end_is_refused(kind: str) -> None:
    read, documents = READERS[kind]
    deep: dict[str, Any] = {}
    deep["deep"] = deep
    with pytest.raises(SnapshotError):
        read({**documents[0], "execution": {**documents[0]["execution"], "id": deep}})
