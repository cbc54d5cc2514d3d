"""The cost of an envelope in the JavaScript module."""

from __future__ import annotations

import subprocess

import pytest

from tests.ui.support import HERE, NODE, needs_node

pytestmark = pytest.mark.slow


@needs_node
def test_an_envelope_costs_as_much_after_a_long_history_as_after_none() -> None:
    command = [str(NODE), "--test", "--test-reporter=tap", str(HERE / "cost.test.mjs")]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=120, check=False)
    assert done.returncode == 0, done.stdout
    assert "# pass 6\n" in done.stdout
