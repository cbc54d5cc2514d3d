"""The vectors: both implementations do exactly this."""

from __future__ import annotations

import copy
import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.ui import cases
from tests.ui.cases import FOLDER
from tests.ui.support import HERE, NODE, as_json, assert_valid, needs_node
from whyloop.wire import ui
from whyloop.wire.envelope import EVENTS

Vector = dict[str, Any]


def vectors_of(function: str) -> list[Vector]:
    vectors: list[Vector] = json.loads((FOLDER / f"{function}.json").read_text(encoding="utf-8"))
    return vectors


OTHERS = [(function, vector) for function in cases.OTHERS for vector in vectors_of(function)]
REDUCE = vectors_of("reduce")


@pytest.mark.parametrize("vector", REDUCE, ids=lambda vector: vector["name"])
def test_reduce(vector: Vector) -> None:
    messages = given = vector["messages"]
    before = copy.deepcopy(vector)
    for envelope in vector["envelopes"]:
        messages = ui.reduce(messages, envelope)
    for envelope in vector.get("in_order", []):
        messages = ui.reduce(messages, envelope, in_order=True)
    # Halves of a character that meet are one character, once they have gone over the wire.
    assert as_json(messages) == before["expected"]
    assert (given, vector) == (before["messages"], before)


@pytest.mark.parametrize(
    ("function", "vector"), OTHERS, ids=[f"{name}: {vector['name']}" for name, vector in OTHERS]
)
def test_function(function: str, vector: Vector) -> None:
    before = copy.deepcopy(vector["arguments"])
    assert getattr(ui, function)(*vector["arguments"]) == vector["expected"]
    assert vector["arguments"] == before


@needs_node
def test_the_other_implementation_passes_the_same_vectors() -> None:
    assert NODE is not None
    command = [NODE, "--test", "--test-reporter=tap", str(HERE / "vectors.test.mjs")]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=60, check=False)
    assert done.returncode == 0, done.stdout
    assert f"# pass {len(REDUCE) + len(OTHERS)}\n" in done.stdout


def test_the_files_are_what_the_cases_say() -> None:
    names = {function: [name for name, _ in found] for function, found in cases.OTHERS.items()}
    names["reduce"] = [name for name, _, _ in cases.REDUCE] + [name for name, _, _, _ in cases.IN_ORDER]
    assert {path.stem for path in FOLDER.glob("*.json")} == set(names)
    for function, expected in names.items():
        assert [vector["name"] for vector in vectors_of(function)] == expected
        assert len(set(expected)) == len(expected)


def test_every_event_is_in_a_vector() -> None:
    told = [envelope.get("event") for vector in REDUCE for envelope in vector["envelopes"]]
    assert all(event in told for event in EVENTS)


def messages_in_vectors() -> Iterator[list[dict[str, Any]]]:
    """The lists of messages in the vectors."""
    for vector in REDUCE:
        yield vector["messages"]
        yield vector["expected"]
    for vector in vectors_of("reconcile"):
        yield from [*vector["arguments"], vector["expected"]]


def test_every_message_of_the_vectors_is_as_the_schema_says() -> None:
    for messages in messages_in_vectors():
        assert_valid(messages)
