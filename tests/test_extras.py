"""Without extras all can be imported and read about; using a missing one says what to install."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]

# Each package of an extra, under the name by which it is imported; those that it brings along, too.
BLOCKED = (
    *("ag_ui", "aiohttp", "genai_prices", "httpx2", "psycopg", "pydantic", "starlette"),
    *("temporalio", "uvicorn", "websockets", "xllamacpp"),
)
WITHOUT_EXTRAS = f"""
import sys
for name in {BLOCKED!r}:
    sys.modules[name] = None
"""
MODULES = (
    "whyloop",
    *(
        f"whyloop.{name}"
        for name in ("broadcasting", "errors", "events", "models", "server", "stores", "temporal", "testing")
    ),
)


def without_extras(code: str) -> str:
    """Return what the code prints in a process in which no extra is installed."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT_EXTRAS + code],
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("module", MODULES)
def test_help_and_import_of_every_name_need_no_extra(module: str) -> None:
    code = f"""
import pydoc, {module} as module
from {module} import *
assert len(pydoc.render_doc(module)) > 500
for name in getattr(module, "__all__", ()):
    pydoc.render_doc(getattr(module, name))
print("PostgresStore" in globals(), "AgentServer" in globals(), "PusherBroadcaster" in globals())
"""
    assert without_extras(code) == "False False False\n"


@pytest.mark.parametrize(
    ("use", "extra"),
    [
        ("from whyloop.stores import PostgresStore", "postgres"),
        ("from whyloop.server import AgentServer", "server"),
        ("from whyloop.broadcasting import PusherBroadcaster", "pusher"),
        ("from whyloop.temporal import TemporalSession", "temporal"),
        ("from whyloop.models import load; load('ollama:qwen3')", "models"),
        ("from whyloop.broadcasting import AgUiStream; AgUiStream()", "ag-ui"),
    ],
)
def test_using_an_extra_that_is_missing_says_what_to_install(use: str, extra: str) -> None:
    code = f"""
from whyloop.errors import ConfigurationError
try:
    {use}
except ConfigurationError as error:
    print(error)
"""
    assert f'pip install ".[{extra}]" in the checkout' in without_extras(code)


def test_all_is_every_extra() -> None:
    (everything,) = EXTRAS["all"]
    assert everything == f"whyloop[{','.join(sorted(EXTRAS.keys() - {'all'}))}]"


@pytest.mark.parametrize(
    "page", ["README.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]
)
def test_no_page_installs_from_an_index_what_has_not_been_released(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert not re.search(r"pip install [^`\n]*\bwhyloop\b|git clone", text)
