"""By what sessions are found, whatever the store: each where it is looked for, and nowhere else."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from whyloop.stores.labels import MOST_PAIRED, SHELVES, Start, numbers, starts
from whyloop.stores.records import SessionFilter
from whyloop.values.continuation import StopReason
from whyloop.values.state import AgentStatus

FEW, MORE, MANY = (3, MOST_PAIRED, MOST_PAIRED + 1)
entries = pytest.mark.parametrize("entries", [0, 1, FEW, FEW + 1, MORE, MANY, 40])


def metadata(entries: int) -> dict[str, Any]:
    return {f"key{number}": number for number in range(entries)}


def session(entries: int) -> set[int]:
    """The numbers of a session that has failed."""
    return numbers("failed", "error", metadata(entries), agent="helper", resolved_by="ErrorPolicy")


def found(own: set[int], start: Start) -> bool:
    return start.number in own and own.issuperset(start.others)


def times_found(own: set[int], wanted: SessionFilter) -> set[int]:
    """How many of the starts lead to a session, one for each choice of them; all are to agree."""
    choices = list(starts(wanted))
    first = sum(found(own, some[0]) for some in choices)
    last = sum(found(own, some[-1]) for some in choices)
    return {first, last}


@entries
@pytest.mark.parametrize("status", [None, AgentStatus.FAILED])
@pytest.mark.parametrize("reason", [None, StopReason.ERROR_FORBADE])
@pytest.mark.parametrize("agent", [None, "helper"])
@pytest.mark.parametrize("rule", [None, "ErrorPolicy"])
def test_a_session_is_found_once_by_whatever_it_has(
    entries: int, status: AgentStatus | None, reason: StopReason | None, agent: str | None, rule: str | None
) -> None:
    own, plain = session(entries), metadata(min(entries, 5))
    for size in range(len(plain) + 1):
        for some in combinations(plain.items(), size):
            wanted = SessionFilter(
                status=status, stop_reason=reason, metadata=dict(some), agent=agent, resolved_by=rule
            )
            assert times_found(own, wanted) == {1}, wanted


@entries
@pytest.mark.parametrize(
    "wanted",
    [
        {"status": AgentStatus.STOPPED},
        {"stop_reason": StopReason.COMPLETED},
        {"status": AgentStatus.STOPPED, "stop_reason": StopReason.ERROR_FORBADE},
        {"resolved_by": "StepsLimit"},
        {"status": AgentStatus.STOPPED, "resolved_by": "ErrorPolicy"},
        {"stop_reason": StopReason.COMPLETED, "resolved_by": "ErrorPolicy"},
        {"agent": "writer"},
        {"agent": "writer", "resolved_by": "ErrorPolicy"},
        {"agent": "helper", "resolved_by": "StepsLimit"},
        {"agent": "helper", "status": AgentStatus.STOPPED},
        {"agent": "ErrorPolicy"},
        {"resolved_by": "helper"},
    ],
    ids=str,
)
def test_a_session_that_ended_in_another_way_is_not_found(entries: int, wanted: dict[str, Any]) -> None:
    own = session(entries)
    for size in range(min(entries, 4) + 1):
        assert times_found(own, SessionFilter(**wanted, metadata=metadata(size))) == {0}


@entries
@pytest.mark.parametrize("other", [{"key0": "0"}, {"key0": None}, {"key0": []}, {"unknown": 0}], ids=str)
def test_a_session_that_lacks_one_entry_is_not_found(entries: int, other: dict[str, Any]) -> None:
    own = session(entries)
    for size in range(min(entries, 4) + 1):
        assert times_found(own, SessionFilter(metadata={**metadata(size), **other})) == {0}


def test_metadata_is_not_mistaken_for_a_status() -> None:
    own = numbers("pending", None, {"status": "failed"}, agent="", resolved_by=None)
    assert times_found(own, SessionFilter(status=AgentStatus.FAILED)) == {0}
    assert times_found(own, SessionFilter(metadata={"status": "failed"})) == {1}
    assert times_found(own, SessionFilter(metadata={"status": "pending"})) == {0}


@pytest.mark.parametrize("entries", range(FEW + 1))
def test_nothing_is_looked_up_for_a_session_with_few_entries(entries: int) -> None:
    for some in starts(SessionFilter(status=AgentStatus.FAILED, metadata=metadata(entries))):
        lead_there = [start for start in some if found(session(entries), start)]
        assert all(start.others == () for start in lead_there)


@pytest.mark.parametrize("entries", range(FEW + 1, MORE + 1))
@pytest.mark.parametrize(
    "wanted",
    [
        SessionFilter(metadata=metadata(2)),
        SessionFilter(status=AgentStatus.FAILED, metadata=metadata(1)),
        SessionFilter(stop_reason=StopReason.ERROR_FORBADE, metadata=metadata(1)),
    ],
    ids=["entries", "status", "stop reason"],
)
def test_two_traits_are_found_together_where_there_are_more_entries(
    entries: int, wanted: SessionFilter
) -> None:
    (there,) = [some for some in starts(wanted) if found(session(entries), some[0])]
    assert [start.others for start in there] == [()]


def test_an_agent_is_found_together_with_how_its_sessions_stand() -> None:
    for wanted in (
        SessionFilter(agent="helper", status=AgentStatus.FAILED),
        SessionFilter(agent="helper", stop_reason=StopReason.ERROR_FORBADE),
        SessionFilter(agent="helper", resolved_by="ErrorPolicy"),
        SessionFilter(resolved_by="ErrorPolicy"),
    ):
        assert all(start.others == () for some in starts(wanted) for start in some)


def test_what_is_beyond_is_looked_up_with_each_choice() -> None:
    for wanted in (
        SessionFilter(metadata=metadata(3)),
        SessionFilter(status=AgentStatus.FAILED, metadata=metadata(2)),
    ):
        others = [[len(start.others) for start in some] for some in starts(wanted)]
        assert others == [[0], [1, 1, 1], [2, 2, 2]]


def test_where_nothing_can_be_nothing_is_looked_for() -> None:
    asked = [len(list(starts(SessionFilter(metadata=metadata(size))))) for size in (FEW, FEW + 1, MANY)]
    assert asked == [len(SHELVES), len(SHELVES) - 1, 1]


@pytest.mark.parametrize(
    ("entries", "expected"), [(0, 8), (1, 11), (2, 17), (3, 29), (4, 26), (10, 83), (11, 19), (40, 48)]
)
def test_a_session_has_no_more_numbers_than_it_needs(entries: int, expected: int) -> None:
    assert len(session(entries)) == expected


def test_the_numbers_stay_what_they_are() -> None:
    """They are stored: a change of them needs a migration, once there has been a release."""
    assert numbers("failed", "error", {"a": 1}, agent="x", resolved_by="y") == {
        -7988071359552575345,
        -6056382808926610786,
        -4812226732645901736,
        -1451026543470997364,
        -977000255634817544,
        -2465455863475683,
        647329370286327407,
        747267243215015958,
        4079067302617839385,
        7266770337934080821,
        7352331290739450765,
    }
    assert all(-(2**63) <= number < 2**63 for number in session(MANY))
