"""Broken journals and files of exported sessions: a `SnapshotError` with a path, or states, nothing else."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest

from tests.golden.fixed_run import AGENT_ID, journal
from tests.support import envelopes_of, transitions_of
from tests.wire.fuzz import Tally, broken
from tests.wire.test_fuzz import INPUTS as SNAPSHOTS, READERS
from whyloop import AgentState
from whyloop.broadcasting import BroadcastConfig
from whyloop.errors import SnapshotError
from whyloop.stores.reading import HEADER, imported
from whyloop.wire.document import document
from whyloop.wire.journal import decode_entries, decode_head, encode_head, state_of
from whyloop.wire.ui import canonical_messages

pytestmark = pytest.mark.slow

JOURNALS = 6_000
FILES = 3_000

Lines = list[str]


def test_there_are_enough_inputs() -> None:
    assert SNAPSHOTS * len(READERS) + JOURNALS + FILES > 20_000


def dropped(rng: random.Random, lines: Lines) -> None:
    del lines[rng.randrange(len(lines))]


def doubled(rng: random.Random, lines: Lines) -> None:
    lines.insert(rng.randint(0, len(lines)), rng.choice(lines))


def swapped(rng: random.Random, lines: Lines) -> None:
    one, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[one], lines[other] = lines[other], lines[one]


def cut_off(rng: random.Random, lines: Lines) -> None:
    del lines[rng.randrange(1, len(lines)) :]


def begun_late(rng: random.Random, lines: Lines) -> None:
    del lines[: rng.randrange(1, len(lines))]


def joined(rng: random.Random, lines: Lines) -> None:
    at = rng.randrange(len(lines) - 1)
    lines[at : at + 2] = [f"{lines[at]},{lines[at + 1]}"]


def split(rng: random.Random, lines: Lines) -> None:
    at = rng.randrange(len(lines))
    line = lines[at]
    middle = rng.randrange(len(line) + 1)
    lines[at : at + 1] = [line[:middle], line[middle:]]


def replaced(rng: random.Random, lines: Lines) -> None:
    lines[rng.randrange(len(lines))] = rng.choice(
        [
            *("", "{}", "[]", "null", " ", "\ud800", '{"v":1}', '{"v":1,"seq":1,"transitions":[]}'),
            *('{"v":2,"seq":1,"transitions":[]}', '{"v":-1,"seq":1,"transitions":[]}'),
            '{"v":1,"seq":1,"transitions":[{"is":"closed","at":"2026-01-16T10:00:00Z"}]}',
            '{"v":1,"seq":1,"transitions":[{"is":"unheard_of","at":"2026-01-16T10:00:00Z"}]}',
        ]
    )


def broken_inside(rng: random.Random, lines: Lines) -> None:
    at = rng.randrange(len(lines))
    lines[at] = broken(rng, lines[at])


CHANGES: list[Callable[[random.Random, Lines], None]] = [
    *(dropped, doubled, swapped, cut_off, begun_late, joined, split, replaced),
    *[broken_inside] * 12,
]


def read(lines: Lines) -> AgentState:
    """Return the state of a journal, after all views of it were made."""
    state = state_of(AGENT_ID, lines)
    transitions = [t for entry in decode_entries(lines) for t in entry.transitions]
    for _ in envelopes_of(AgentState(agent_id=AGENT_ID), transitions, BroadcastConfig.debug()):
        pass
    assert len(transitions_of(AGENT_ID, lines)) == len(transitions)
    canonical_messages(state)
    document(state)
    return state


def test_a_broken_journal_is_a_snapshot_error_or_a_state() -> None:
    rng, tally, whole = random.Random(7), Tally(), journal()
    for _ in range(JOURNALS):
        lines = list(whole)
        rng.choice(CHANGES)(rng, lines)
        tally.count(lambda lines=lines: read(lines))  # type: ignore[misc]
    assert tally.inputs == JOURNALS
    assert all(path.startswith("$") for path in tally.paths)
    assert len(set(tally.paths)) > 100
    assert tally.accepted > JOURNALS / 20


def test_a_broken_file_of_sessions_is_a_snapshot_error_or_states() -> None:
    entries = journal()
    sessions = {"one": entries, "two": entries[:5]}
    whole = [HEADER]
    for agent_id, texts in sessions.items():
        whole.append(f'{{"session":"{agent_id}","entries":{len(texts)}}}')
        whole += [f'{{"entry":{text}}}' for text in texts]
    assert [state.agent_id for state, _ in imported(whole)] == ["one", "two"]
    rng, tally = random.Random(7), Tally()
    for _ in range(FILES):
        lines = list(whole)
        if rng.random() < 0.3:  # The few lines that are no entries.
            at = rng.choice([0, 1, len(entries) + 2])
            lines[at] = broken(rng, lines[at])
        else:
            rng.choice(CHANGES)(rng, lines)
        tally.count(lambda lines=lines: [state for state, _ in imported(lines)])  # type: ignore[misc]
    assert tally.inputs == FILES
    assert all(path.startswith(("$", "line ")) for path in tally.paths)
    assert len(set(tally.paths)) > 50
    assert tally.accepted > FILES / 20


@pytest.mark.parametrize("first", [1, 2, 8, 20])
def test_a_journal_without_its_beginning_is_refused(first: int) -> None:
    with pytest.raises(SnapshotError):
        state_of(AGENT_ID, journal()[first:])


@pytest.mark.parametrize("at", [0, 3, 10])
@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "\ud800", "{} {}", "{},{}", '{"v":1}x', "nul", '{"v":1.5}'),
        '{"v":7,"seq":1,"transitions":[]}',
    ],
)
def test_an_entry_that_cannot_be_read_is_named(text: str, at: int) -> None:
    lines = journal()
    lines[at] = text
    with pytest.raises(SnapshotError) as caught:
        decode_entries(lines)
    assert caught.value.path.startswith(f"$[{at}]")


def test_a_large_journal_takes_no_longer_than_its_size() -> None:
    many = 2_000
    calls = ",".join(f'{{"id":"{index}","name":"x","arguments":{{}}}}' for index in range(many))
    message = f'{{"role":"assistant","tool_calls":[{calls}]}}'
    at = '"at":"2026-01-16T10:00:00Z"'
    created = f'{{"is":"created",{at},"identity":"i"}}'
    answered = f'{{"is":"answered",{at},"started_at":"2026-01-16T10:00:00Z","message":{message}}}'
    done = [f'{{"is":"call_finished",{at},"index":{i},"result":{{"content":"x"}}}}' for i in range(many)]
    line = f'{{"v":1,"seq":1,"transitions":[{",".join([created, answered, *done])}]}}'
    started = time.perf_counter()
    state = state_of(AGENT_ID, [line])
    assert state.open_step is not None
    assert all(call.is_done for call in state.open_step.calls)
    assert time.perf_counter() - started < 5


def test_a_broken_checkpoint_is_a_snapshot_error_or_a_state() -> None:
    rng, errors = random.Random(7), 0
    whole = encode_head(state_of(AGENT_ID, journal()))
    for _ in range(2_000):
        try:
            decode_head(AGENT_ID, broken(rng, whole))
        except SnapshotError:
            errors += 1
    assert 500 < errors < 2_000
