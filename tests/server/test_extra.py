"""The server needs more than the package does, and says so."""

from __future__ import annotations

import importlib
import sys

import pytest

import whyloop.server
from tests.test_layers import in_a_new_interpreter, loaded_by
from whyloop.errors import ConfigurationError


def test_without_starlette_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "starlette", None)
    for name in [name for name in sys.modules if name.startswith(("starlette.", "whyloop.server."))]:
        monkeypatch.delitem(sys.modules, name)
    module = importlib.import_module("whyloop.server")
    with pytest.raises(ConfigurationError, match=r'pip install "\.\[server\]"'):
        module.AgentServer
    with pytest.raises(ConfigurationError, match="Starlette"):
        importlib.import_module("whyloop.server.app")


def test_without_starlette_everything_else_can_be_imported() -> None:
    code = (
        "import sys; sys.modules['starlette'] = None\n"
        "import whyloop, whyloop.server, whyloop.stores, whyloop.broadcasting\n"
        "whyloop.Session, whyloop.broadcasting.EventFeed\n"
        "try:\n"
        "    from whyloop.server import AgentServer\n"
        "except whyloop.errors.ConfigurationError as error:\n"
        "    print(error)\n"
    )
    assert 'pip install ".[server]"' in in_a_new_interpreter(f"import whyloop.errors\n{code}").stdout


@pytest.mark.parametrize(
    "statement", ["import whyloop", "import whyloop.server", "from whyloop import Session"]
)
def test_starlette_is_loaded_when_a_server_is_made(statement: str) -> None:
    loaded = {name.split(".")[0] for name in loaded_by(statement)}
    assert not loaded & {"starlette", "uvicorn", "websockets", "anyio"}


def test_a_server_needs_no_server_to_run_it() -> None:
    loaded = {name.split(".")[0] for name in loaded_by("from whyloop.server import AgentServer")}
    assert "starlette" in loaded
    assert not loaded & {"uvicorn", "websockets", "aiohttp", "rich", "pydantic"}


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="AgentSever"):
        whyloop.server.AgentSever
