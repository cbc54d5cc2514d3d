"""Ways to break a document, and what reading a broken one must come to."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

from tests.wire.support import read as read_slim
from whyloop import AgentState, SlimAgentStateSerializer, SlimSerializationConfig
from whyloop.cli.formats import View
from whyloop.cli.renderer import conversation
from whyloop.errors import SnapshotError
from whyloop.stores.listing import summary_of
from whyloop.wire.document import document
from whyloop.wire.ui import canonical_messages

ODD: list[Any] = [
    *(None, True, False, 0, -1, 1.5, -0.0, 2**53, 2**64, -(2**70), 10**300),
    *(1e10, 1e15, 1e308, float("inf"), float("nan")),
    *("1E+30", "-1", "NaN", "-Infinity", "1E-999999", "9" * 40, "0.1"),
    *("", "x", "\ud800", "\x00", "🙂" * 50, "9999-12-31T23:59:59Z", "0001-01-01T00:00:00+23:59", "stop"),
    *("assistant", "tool", "approved", "paused", "x" * 20_000),
    *([], {}, [[]], [None], {"": ""}, {"version": 1}, {"type": "image"}, {"\ud800": 1}, [0] * 2_000),
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


def cut_short(rng: random.Random, text: str) -> str:
    return text[: rng.randrange(len(text))]


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


def rename(rng: random.Random, data: Any, holder: Any, key: Any) -> None:
    if isinstance(holder, dict):
        holder[rng.choice(["", "0", "-1", "99", "x", key + key])] = holder.pop(key)


def double(rng: random.Random, data: Any, holder: Any, key: Any) -> None:
    if isinstance(holder, list):
        holder.insert(rng.randint(0, len(holder)), copy.deepcopy(holder[key]))


def nest(rng: random.Random, data: Any, holder: Any, key: Any) -> None:
    inner = holder[key]
    for _ in range(rng.choice([1, 50, 300])):
        inner = [inner] if rng.random() < 0.5 else {"metadata": inner}
    holder[key] = inner


def duplicated_keys(rng: random.Random, text: str) -> str:
    text = json.dumps(json.loads(text))
    keys = [key for holder, key in spots(json.loads(text)) if isinstance(holder, dict)]
    key = json.dumps(rng.choice(keys or ["x"]))
    return text.replace(f"{key}: ", f"{key}: {json.dumps(rng.choice(ODD))}, {key}: ", rng.randint(1, 3))


def huge_numbers(rng: random.Random, text: str) -> str:
    digit = rng.choice("0123456789")
    return text.replace(digit, digit * rng.choice([20, 400, 4000, 5000]), rng.randint(1, 3))


def very_deep(rng: random.Random, text: str) -> str:
    depth = rng.choice([500, 100_000])
    opened, closed = rng.choice([("[", "]"), ('{"metadata":', "}")])
    return text.replace("{}", f"{opened * depth}1{closed * depth}", 1)


MUTATIONS: list[Mutation] = [
    flipped_bytes,
    cut_short,
    *map(changed_values, (drop, swap, transplant, rename, double, nest)),
    duplicated_keys,
    huge_numbers,
    very_deep,
]


def broken(rng: random.Random, text: str) -> str:
    """The text of a document, broken in one of many ways."""
    return rng.choice(MUTATIONS)(rng, text)


class Tally:
    """The results of the inputs: the paths of the errors, and the states that could be read."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.accepted = 0

    @property
    def inputs(self) -> int:
        return len(self.paths) + self.accepted

    def count(self, read: Callable[[], AgentState | Sequence[AgentState]]) -> None:
        """Read an input; whatever is raised but a `SnapshotError` fails the test."""
        try:
            found = read()
        except SnapshotError as error:
            self.paths.append(error.path)
            return
        self.accepted += 1
        if self.accepted % 3 == 0:
            for state in [found] if isinstance(found, AgentState) else found:
                check_use(state)


def check_use(state: AgentState) -> None:
    """A state that was read can be explained, shown and written, in full and slim."""
    explanation = state.explanation
    for text in (explanation.to_markdown(), explanation._repr_html_(), state.explain(), repr(state)):
        assert text
    json.dumps(explanation.to_dict())
    assert isinstance(state.pending_calls, tuple)
    json.dumps(document(state))
    json.dumps(canonical_messages(state))
    assert summary_of(state).agent_id == state.agent_id
    for line in conversation(state, View(full=True)):
        line.plain()
    restored = AgentState.from_dict(json.loads(json.dumps(state.to_dict())))
    assert restored == state
    assert (restored != state) is False
    for config in (SlimSerializationConfig.minimal(), SlimSerializationConfig.full()):
        read_slim(SlimAgentStateSerializer(config).serialize(state))
