"""The vectors: what the JavaScript module does with messages and envelopes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.ui.case import Case, line
from tests.ui.cases import FOLDER, REDUCE
from tests.ui.display_cases import DISPLAY
from tests.ui.support import HERE, NODE, as_json, assert_valid, needs_node
from whyloop.wire import ui

Vector = dict[str, Any]

EVENTS = {"agent.status", "agent.step.started", "agent.step.completed", "agent.tool.started"}
EVENTS |= {"agent.tool.completed", "agent.stream.chunk", "agent.approval.requested"}
EVENTS |= {"agent.approval.decided", "agent.retry", "agent.continuation", "agent.event"}


def vectors_of(function: str) -> list[Vector]:
    vectors: list[Vector] = json.loads((FOLDER / f"{function}.json").read_text(encoding="utf-8"))
    return vectors


@needs_node
def test_the_module_passes_the_vectors() -> None:
    assert NODE is not None
    command = [NODE, "--test", "--test-reporter=tap", str(HERE / "vectors.test.mjs")]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=60, check=False)
    assert done.returncode == 0, done.stdout
    assert f"# pass {len(REDUCE) + sum(map(len, DISPLAY.values()))}\n" in done.stdout


@pytest.mark.parametrize(
    ("case", "vector"),
    list(zip(REDUCE, vectors_of("reduce"), strict=True)),
    ids=[case.name for case in REDUCE],
)
def test_reduce_shows_the_expected_view(case: Case, vector: Vector) -> None:
    assert vector["name"] == case.name
    assert vector["envelopes"] == as_json(case.envelopes)
    assert vector["messages"] == case.messages
    assert [line(message) for message in vector["expected"]["messages"]] == as_json(case.lines)


def test_the_other_vectors_are_those_of_the_cases() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == {"reduce", *DISPLAY}
    for function, cases in DISPLAY.items():
        vectors = [(vector["name"], vector["arguments"]) for vector in vectors_of(function)]
        assert vectors == [(name, as_json(given)) for name, given in cases]


def test_names_are_unique() -> None:
    for names in ([case.name for case in REDUCE], *([name for name, _ in each] for each in DISPLAY.values())):
        assert len(set(names)) == len(names)


@pytest.mark.parametrize("function", ["args_summary", "status_text"])
def test_the_server_writes_the_same_texts(function: str) -> None:
    for vector in vectors_of(function):
        assert as_json(getattr(ui, function)(*vector["arguments"])) == vector["expected"], vector["name"]


def test_every_event_is_in_a_vector() -> None:
    assert {str(each.get("event")) for case in REDUCE for each in case.envelopes} >= EVENTS


def messages_in_vectors() -> Iterator[list[dict[str, Any]]]:
    """Yield the lists of messages in the vectors."""
    for vector in vectors_of("reduce"):
        yield from [vector["messages"], vector["expected"]["messages"]]
    for vector in vectors_of("reconcile"):
        yield from [*vector["arguments"], vector["expected"]["messages"]]


def test_every_message_of_the_vectors_fits_the_schema() -> None:
    for messages in messages_in_vectors():
        assert_valid(messages)
