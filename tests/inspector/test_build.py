"""The files of the inspector that ship are those that its source makes."""

from __future__ import annotations

import gzip
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCE, SHIPPED = ROOT / "inspector", ROOT / "src" / "whyloop" / "inspector" / "static"
INSTALL = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock"]
LARGEST = 250_000

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def source() -> Path:
    """The folder of the source, with its packages."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"this test needs {program}: install Node 20")
    wanted = (SOURCE / "package.json").read_text(encoding="utf-8")
    installed = SOURCE / "node_modules" / "installed.json"
    if not installed.exists() or installed.read_text(encoding="utf-8") != wanted:
        try:
            subprocess.run(INSTALL, cwd=SOURCE, check=True, capture_output=True, timeout=300)
        except (OSError, subprocess.SubprocessError) as error:
            pytest.skip(f"npm could not install what builds the inspector: {error}")
        installed.write_text(wanted, encoding="utf-8")
    return SOURCE


def test_the_types_of_the_source_agree(source: Path) -> None:
    done = subprocess.run(["npx", "tsc", "--noEmit"], cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_files_that_ship_are_current(source: Path, tmp_path: Path) -> None:
    subprocess.run(["node", "build.mjs", str(tmp_path)], cwd=source, check=True, timeout=120)
    built = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    shipped = {path.name: path.read_bytes() for path in SHIPPED.iterdir()}
    assert built.keys() == shipped.keys()
    stale = [name for name in built if built[name] != shipped[name]]
    assert not stale, f"run `make inspector` and commit {', '.join(stale)}"


def test_the_page_is_small_and_asks_no_other_host() -> None:
    files = [path.read_bytes() for path in SHIPPED.iterdir()]
    assert sum(len(gzip.compress(content)) for content in files) <= LARGEST
    page = (SHIPPED / "index.html").read_text(encoding="utf-8")
    assert "http" not in page
    assert "<script>" not in page
    assert "style=" not in page
