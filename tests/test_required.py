"""Tests of `tests.required`: on a machine that must have every real part, no test is skipped."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.required import VARIABLE

ROOT = Path(__file__).parents[1]
SKIPS = "import pytest\n\ndef test_it():\n    pytest.skip('there is no such server')\n"
SKIPS_THE_FILE = "import pytest\n\npytest.importorskip('no_such_module')\n\ndef test_it():\n    assert True\n"
FAILS_AS_EXPECTED = "import pytest\n\n@pytest.mark.xfail\ndef test_it():\n    assert False\n"


def result_of(folder: Path, text: str, *, required: bool) -> tuple[int, str]:
    """Run pytest on a file with this text, and return its exit code and what it printed."""
    file = folder / "test_one.py"
    file.write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "tests.required", "--rootdir", str(folder), str(file)]
    variables = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    variables |= {VARIABLE: "1" if required else "", "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    return ran.returncode, ran.stdout


@pytest.mark.parametrize(
    ("text", "reason"),
    [(SKIPS, "there is no such server"), (SKIPS_THE_FILE, "could not import 'no_such_module'")],
)
def test_a_skipped_test_fails_if_every_part_is_required(tmp_path: Path, text: str, reason: str) -> None:
    code, printed = result_of(tmp_path, text, required=True)
    assert code in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED)
    assert reason in printed
    assert f"A skipped test is a failure here, because {VARIABLE} is set." in printed


@pytest.mark.parametrize("text", [SKIPS, SKIPS_THE_FILE])
def test_a_skipped_test_is_no_failure_elsewhere(tmp_path: Path, text: str) -> None:
    code, printed = result_of(tmp_path, text, required=False)
    assert code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    assert "1 skipped" in printed


def test_a_test_that_fails_as_expected_is_no_failure(tmp_path: Path) -> None:
    assert result_of(tmp_path, FAILS_AS_EXPECTED, required=True)[0] == pytest.ExitCode.OK
