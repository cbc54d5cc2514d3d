"""The programs in the guides and the examples pass type checkers, as a newcomer would write them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.real.node_packages import install
from tests.test_docs import PAGES, ROOT, blocks_of

pytestmark = pytest.mark.slow

# Pages whose snippets are complete programs: they pass mypy in strict mode, and pyright.
STRICT = ("README.md", "docs/getting-started.md", "docs/deps.md")
# Pages that use one name for several things, or show code that a checker refuses.
UNCHECKED = (
    "docs/interoperability.md",
    "docs/models.md",
    "docs/tutorial/1-the-agent.md",
    "docs/tutorial/2-money-and-people.md",
    "docs/typed-output.md",
)


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


def write_modules(folder: Path, names: tuple[str, ...]) -> None:
    for name in names:
        source = module_of(ROOT / name)
        assert source is not None, name
        stem = re.sub(r"\W", "_", name.removesuffix(".md"))
        (folder / f"{stem}.py").write_text(source, encoding="utf-8")


def write_files(folder: Path) -> None:
    """Write the python files of the guides; of those with one name, as the tutorial grows, the last."""
    for page in PAGES:
        for block in blocks_of(page):
            if block.language == "python" and block.title is not None:
                (folder / block.title).write_text(f"{block.source}\n", encoding="utf-8")


def mypy(folder: Path, *options: str) -> str:
    """Check the modules in a folder against this checkout; return the errors."""
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--python-version", "3.11"]
    (folder / "mypy.ini").write_text(f"[mypy]\nmypy_path = {ROOT / 'src'}\n", encoding="utf-8")
    cache = ["--cache-dir", str(ROOT / ".mypy_cache" / "docs")]
    run = subprocess.run(
        [*command, *cache, *options, "."], cwd=folder, capture_output=True, encoding="utf-8", check=False
    )
    return run.stdout + run.stderr


def test_the_programs_of_a_newcomer_pass_mypy_in_strict_mode(tmp_path: Path) -> None:
    write_modules(tmp_path, STRICT)
    assert mypy(tmp_path) == ""


def test_every_guide_has_the_types_that_it_shows(tmp_path: Path) -> None:
    """Guides leave annotations of their own functions out, and look into values that are optional."""
    names = [str(page.relative_to(ROOT)) for page in PAGES]
    checked = [name for name in names if name not in (*STRICT, *UNCHECKED)]
    write_modules(tmp_path, tuple(name for name in checked if module_of(ROOT / name) is not None))
    write_files(tmp_path)
    options = ["--allow-untyped-defs", "--allow-incomplete-defs", "--allow-untyped-calls"]
    for code in ("union-attr", "no-any-return", "var-annotated"):
        options += ["--disable-error-code", code]
    assert mypy(tmp_path, *options) == ""


def test_the_programs_of_a_newcomer_the_examples_and_the_inferred_types_pass_pyright(tmp_path: Path) -> None:
    packages = install(Path(__file__).parent / "real" / "pyright")
    write_modules(tmp_path, STRICT)
    settings = {
        "include": [str(tmp_path), str(ROOT / "examples"), str(ROOT / "tests" / "test_types.py")],
        "extraPaths": [str(ROOT / "src")],
        "pythonVersion": "3.11",
    }
    project = tmp_path / "pyrightconfig.json"
    project.write_text(json.dumps(settings), encoding="utf-8")
    pyright = packages / "node_modules" / ".bin" / "pyright"
    command = [str(pyright), "--project", str(project), "--pythonpath", sys.executable]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, encoding="utf-8", check=False)
    assert run.returncode == 0, run.stdout + run.stderr
