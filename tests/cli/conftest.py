"""A directory of its own for every command that looks for a store in the current one."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def in_the_shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty directory, and nobody's store or model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("LOGNAME", "ada")
    for variable in ("WHYLOOP_STORE", "WHYLOOP_MODEL"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture(autouse=True)
def logs_as_they_were() -> Iterator[None]:
    """A command that logs its runs does so for this test only."""
    log = logging.getLogger("whyloop.runs")
    handlers, level = list(log.handlers), log.level
    yield
    log.handlers[:] = handlers
    log.setLevel(level)
