"""A directory of its own for every command that looks for a store in the current one."""

from __future__ import annotations

import sys
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
