"""Test an agent with a model that follows a script, a clock that you move, and assertions."""

from whyloop.testing.assertions import (
    CapturedEvents,
    assert_continued,
    assert_stopped,
    assert_would_stop,
    capture_events,
)
from whyloop.testing.clock import FakeClock
from whyloop.testing.evals import Attempt, CaseResult, EvalReport, case, compare_reports, run_cases
from whyloop.testing.scripted import Reply, ScriptedModel, call, calls, text

__all__ = [
    "Attempt",
    "CapturedEvents",
    "CaseResult",
    "EvalReport",
    "FakeClock",
    "Reply",
    "ScriptedModel",
    "assert_continued",
    "assert_stopped",
    "assert_would_stop",
    "call",
    "calls",
    "capture_events",
    "case",
    "compare_reports",
    "run_cases",
    "text",
]
