"""Packages of npm for tests, installed once inside the virtual environment."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

INSTALLING_SECONDS = 300
_COMMAND = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock"]


def install(source: Path) -> Path:
    """Return the folder with the scripts of this one and its packages; skip the test if they are missing."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"these tests need {program}: install Node 20")
    folder = Path(sys.prefix) / "node" / source.name
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Tests in several processes use the same packages.
        _install_once(source, folder)
    return folder


def _install_once(source: Path, folder: Path) -> None:
    for script in source.glob("*.mjs"):
        shutil.copy(script, folder)
    wanted, installed = (source / "package.json").read_text(encoding="utf-8"), folder / "installed.json"
    if installed.exists() and installed.read_text(encoding="utf-8") == wanted:
        return
    shutil.copy(source / "package.json", folder)
    try:
        subprocess.run(_COMMAND, cwd=folder, check=True, capture_output=True, timeout=INSTALLING_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"npm could not install the packages of {source.name}: {error}")
    installed.write_text(wanted, encoding="utf-8")
