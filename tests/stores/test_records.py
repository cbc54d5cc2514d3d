"""The labels by which sessions are found, whatever the store."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import combinations
from typing import Any

import pytest

from whyloop.stores import SessionFilter, Summary
from whyloop.stores.listing import labels_of, wanted_labels
from whyloop.values.continuation import StopReason
from whyloop.values.state import AgentStatus

START = datetime(2026, 1, 1, tzinfo=UTC)


def summary(status: AgentStatus = AgentStatus.FAILED, **fields: Any) -> Summary:
    return Summary("a", status, START, START, **fields)


FAILED = summary(
    stop_reason=StopReason.ERROR_FORBADE,
    resolved_by="ErrorPolicy",
    agent="helper",
    metadata={"a": 1, "b": "2", "c": None, "list": [1]},
)


def found(own: Summary, wanted: SessionFilter) -> bool:
    return set(wanted_labels(wanted)) <= set(labels_of(own))


def test_a_session_is_found_by_any_of_its_conditions_together() -> None:
    conditions: dict[str, Any] = {
        "status": AgentStatus.FAILED,
        "stop_reason": StopReason.ERROR_FORBADE,
        "resolved_by": "ErrorPolicy",
        "agent": "helper",
        "metadata": {"a": 1, "b": "2", "c": None},
    }
    for size in range(len(conditions) + 1):
        for some in combinations(conditions, size):
            assert found(FAILED, SessionFilter(**{name: conditions[name] for name in some})), some


@pytest.mark.parametrize(
    "wanted",
    [
        {"status": AgentStatus.STOPPED},
        {"stop_reason": StopReason.COMPLETED},
        {"resolved_by": "StepsLimit"},
        {"resolved_by": "helper"},
        {"agent": "ErrorPolicy"},
        {"agent": ""},
        {"metadata": {"a": "1"}},
        {"metadata": {"a": None}},
        {"metadata": {"b": 2}},
        {"metadata": {"list": [1]}},
        {"metadata": {"unknown": 1}},
        {"metadata": {"a": 1, "b": "3"}},
        {"status": AgentStatus.FAILED, "metadata": {"a": 2}},
    ],
    ids=str,
)
def test_a_session_that_lacks_one_condition_is_not_found(wanted: dict[str, Any]) -> None:
    assert not found(FAILED, SessionFilter(**wanted))


def test_metadata_is_not_mistaken_for_a_status() -> None:
    own = summary(AgentStatus.PENDING, metadata={"status": "failed"})
    assert not found(own, SessionFilter(status=AgentStatus.FAILED))
    assert found(own, SessionFilter(metadata={"status": "failed"}))
    assert not found(own, SessionFilter(metadata={"status": "pending"}))


def test_a_session_has_one_label_for_each_condition() -> None:
    assert len(labels_of(summary())) == 3, "the status, the agent, and that it is a session"
    assert len(labels_of(FAILED)) == 8


def test_labels_stay_what_they_are() -> None:
    """Stores keep them, so another way to compute them would lose every session that is stored."""
    assert wanted_labels(SessionFilter()) == [-8676378143329243387]
    assert wanted_labels(SessionFilter(metadata={"user": "ann"})) == [3951020926214889084]
