"""Broken snapshots, thousands of them: a `SnapshotError` with a path, or a state, and never anything else."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.golden.fixed_run import GOLDEN
from tests.wire.test_slim_golden import golden
from whyloop import AgentState, SlimAgentStateSerializer
from whyloop.errors import SnapshotError

INPUTS = 5_000
ODD: list[Any] = [
    *(None, True, False, 0, -1, 1.5, -0.0, 2**53, 2**64, -(2**70), 10**300),
    *(1e10, 1e15, 1e308, float("inf"), float("nan")),
    *("", "x", "\ud800", "\x00", "🙂" * 50, "9999-12-31T23:59:59Z", "0001-01-01T00:00:00+23:59", "stop"),
    *([], {}, [[]], [None], {"": ""}, {"version": 1}, {"type": "image"}, {"\ud800": 1}),
]

Mutation = Callable[[random.Random, str], str]


def spots(data: Any) -> list[tuple[Any, Any]]:
    """Every place in the data, as its holder and its key there."""
    found = []
    waiting = [data]
    while waiting:
        holder = waiting.pop()
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        for key in keys:
            found.append((holder, key))
            if isinstance(holder[key], dict | list):
                waiting.append(holder[key])
    return found


def flipped_bytes(rng: random.Random, text: str) -> str:
    raw = bytearray(text.encode())
    for _ in range(rng.randint(1, 4)):
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    return raw.decode(errors="replace")


def changed_values(change: Callable[[random.Random, Any, Any, Any], None]) -> Mutation:
    def mutate(rng: random.Random, text: str) -> str:
        data = json.loads(text)
        for _ in range(rng.randint(1, 3)):
            holder, key = rng.choice(spots(data) or [({"x": 1}, "x")])
            change(rng, data, holder, key)
        return json.dumps(data)

    return mutate


def drop(rng: random.Random, data: Any, holder: Any, key: Any) -> None:
    del holder[key]


def swap(rng: random.Random, data: Any, holder: Any, key: Any) -> None:
    holder[key] = copy.deepcopy(rng.choice(ODD))


def transplant(rng: random.Random, data: Any, holder: Any, key: Any) -> None:
    other, there = rng.choice(spots(data))
    holder[key] = json.loads(json.dumps(other[there]))


def nest(rng: random.Random, data: Any, holder: Any, key: Any) -> None:
    inner = holder[key]
    for _ in range(rng.choice([1, 50, 300])):
        inner = [inner] if rng.random() < 0.5 else {"metadata": inner}
    holder[key] = inner


def duplicated_keys(rng: random.Random, text: str) -> str:
    keys = [key for holder, key in spots(json.loads(text)) if isinstance(holder, dict)]
    key = json.dumps(rng.choice(keys))
    return text.replace(f"{key}: ", f"{key}: {json.dumps(rng.choice(ODD))}, {key}: ", rng.randint(1, 3))


def huge_numbers(rng: random.Random, text: str) -> str:
    digit = rng.choice("0123456789")
    return text.replace(digit, digit * rng.choice([20, 400, 4000]), rng.randint(1, 3))


MUTATIONS: list[Mutation] = [
    flipped_bytes,
    changed_values(drop),
    changed_values(swap),
    changed_values(transplant),
    changed_values(nest),
    duplicated_keys,
    huge_numbers,
]


def read_full(document: Any) -> AgentState:
    return AgentState.from_dict(document)


def read_slim(document: Any) -> AgentState:
    return SlimAgentStateSerializer().deserialize(document)


SEEDS = {
    "full": (read_full, [json.loads(GOLDEN.read_text(encoding="utf-8")), AgentState().to_dict()]),
    "slim": (read_slim, [golden("minimal"), golden("standard"), golden("full")]),
}


@pytest.mark.parametrize("kind", SEEDS)
def test_a_broken_snapshot_is_a_snapshot_error_or_a_state(kind: str) -> None:
    read, documents = SEEDS[kind]
    texts = [json.dumps(document) for document in documents]
    rng = random.Random(7)
    paths: list[str] = []
    accepted = 0
    while len(paths) + accepted < INPUTS:
        broken = rng.choice(MUTATIONS)(rng, rng.choice(texts))
        try:
            document = json.loads(broken)
        except (ValueError, RecursionError):
            continue
        try:
            state = read(document)
        except SnapshotError as error:
            paths.append(error.path)
        else:
            accepted += 1
            if accepted % 10 == 0:
                state.explain()
                state.to_dict()
                read_slim(SlimAgentStateSerializer().serialize(state))
    assert all(path.startswith("$") for path in paths)
    assert len(set(paths)) > 50
    assert accepted > INPUTS / 20
