"""Skipped tests are failures where every real part must be there: WHYLOOP_REQUIRE_ALL=1."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import TypeVar

import pytest

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)
Reports = Generator[None, Report, Report]

VARIABLE = "WHYLOOP_REQUIRE_ALL"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Reports[pytest.TestReport]:
    return _failed_if_skipped((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Reports[pytest.CollectReport]:
    return _failed_if_skipped((yield))


def _failed_if_skipped(report: Report) -> Report:
    if os.environ.get(VARIABLE) and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
        report.outcome = "failed"
        report.longrepr = f"{reason}\nA skipped test is a failure here, because {VARIABLE} is set."
    return report
