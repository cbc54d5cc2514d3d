"""The wheel that is published runs the examples in an environment that has nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the sources."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(
        ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__", "node_modules")
    )
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", str(folder))
    (built,) = (folder / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel and what it depends on."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", str(folder))
    python = folder / "bin" / "python"
    run(str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", str(wheel))
    return python


def run(*command: str, cwd: Path | None = None) -> str:
    # Nothing of the checkout may be found by accident.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_has_the_types_the_schemas_and_the_javascript(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for wanted in (
        "py.typed",
        "wire/schemas/envelope.schema.json",
        "stores/sqlite_0001.sql",
        "ui/index.js",
        "inspector/static/inspector.js",
    ):
        assert f"whyloop/{wanted}" in names
    assert not [name for name in names if "test" in name.split("/")[0] or "node_modules" in name]


def core_examples() -> list[str]:
    """The examples that need no extra."""
    extras = ("aiohttp", "starlette", "fastapi", "uvicorn", "psycopg", "whyloop.server", "whyloop.models")
    paths = sorted((ROOT / "examples").glob("*.py"))
    return [path.name for path in paths if not any(extra in path.read_text() for extra in extras)]


@pytest.mark.parametrize("name", core_examples())
def test_an_example_runs_with_the_wheel_alone(name: str, python: Path, tmp_path: Path) -> None:
    shutil.copy(ROOT / "examples" / name, tmp_path)
    assert run(str(python), "-W", "error", name, cwd=tmp_path)


def test_the_command_explains_a_run_with_the_wheel_alone(python: Path, tmp_path: Path) -> None:
    out = run(str(python.with_name("whyloop")), "demo", "steps-limit", "--fast", cwd=tmp_path)
    assert "StepsLimit" in out
