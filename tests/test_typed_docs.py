"""The programs in the documentation and the examples pass type checkers, as a newcomer would write them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.real.node_packages import install
from tests.test_docs import PAGES, ROOT, blocks_of

pytestmark = pytest.mark.slow


def module_of(page: Path) -> str | None:
    """Return the python blocks of a page as one module, at their lines; await is allowed as in the page."""
    blocks = [block for block in blocks_of(page) if block.language == "python" and block.title is None]
    if not blocks:
        return None
    lines = ["async def page() -> None:"]
    for block in blocks:
        lines += [""] * (block.line - 1 - len(lines))
        lines += [f"    {line}" if line else "" for line in block.source.splitlines()]
    return "\n".join([*lines, "    return None", ""])


def write_modules(folder: Path) -> None:
    """Write each page as a module, and the python files of the guides; of those with one name, the last."""
    for page in PAGES:
        if source := module_of(page):
            stem = re.sub(r"\W", "_", str(page.relative_to(ROOT).with_suffix("")))
            (folder / f"{stem}.py").write_text(source, encoding="utf-8")
        for block in blocks_of(page):
            if block.language == "python" and block.title is not None:
                (folder / block.title).write_text(f"{block.source}\n", encoding="utf-8")


def test_every_program_in_the_documentation_passes_mypy_in_strict_mode(tmp_path: Path) -> None:
    write_modules(tmp_path)
    (tmp_path / "mypy.ini").write_text(f"[mypy]\nmypy_path = {ROOT / 'src'}\n", encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--python-version", "3.11"]
    command += ["--cache-dir", str(ROOT / ".mypy_cache" / "docs"), "."]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, encoding="utf-8", check=False)
    assert run.stdout + run.stderr == ""


def test_every_program_in_the_documentation_and_the_examples_pass_pyright(tmp_path: Path) -> None:
    packages = install(Path(__file__).parent / "real" / "pyright")
    write_modules(tmp_path)
    others = [*sorted((ROOT / "examples").glob("*.py")), ROOT / "tests" / "test_types.py"]
    settings = {
        # Pyright ignores absolute paths here, and says so only in passing.
        "include": [".", *(os.path.relpath(path, tmp_path.resolve()) for path in others)],
        "extraPaths": [str(ROOT / "src"), str(ROOT)],
        "pythonVersion": "3.11",
    }
    project = tmp_path / "pyrightconfig.json"
    project.write_text(json.dumps(settings), encoding="utf-8")
    pyright = packages / "node_modules" / ".bin" / "pyright"
    command = [str(pyright), "--project", str(project), "--pythonpath", sys.executable, "--outputjson"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, encoding="utf-8", check=False)
    report = json.loads(run.stdout)
    assert [f"{each['file']}: {each['message']}" for each in report["generalDiagnostics"]] == []
    assert report["summary"]["filesAnalyzed"] == len(list(tmp_path.glob("*.py"))) + len(others)
