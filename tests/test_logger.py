"""No record of whyloop's loggers has a secret in it, and no text in one passes for another record."""

from __future__ import annotations

from pathlib import Path

import pytest

import whyloop
from whyloop import Agent
from whyloop.errors import StoreUnavailableError
from whyloop.events import AgentEvent
from whyloop.logger import Logger
from whyloop.server.requests import problem_of
from whyloop.testing import ScriptedModel

KEY = "sk-proj-abcdefghijklmnop1234"
FORGED = "a\nERROR root: all is lost\r\n\x1b[31m"


def test_an_argument_is_on_one_line_and_without_secrets(caplog: pytest.LogCaptureFixture) -> None:
    Logger().warning("session %s: %s, %d times", FORGED, OSError(f"no {KEY}"), 3)
    [record] = caplog.records
    assert record.getMessage() == "session a ERROR root: all is lost �[31m: no [removed], 3 times"
    assert (record.name, record.filename) == ("whyloop", "test_logger.py")


def test_a_long_argument_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    Logger().warning("%s", "x" * 100_000)
    assert len(caplog.records[0].getMessage()) == 1000


def test_a_traceback_has_no_secret_and_no_line_that_passes_for_a_record(
    caplog: pytest.LogCaptureFixture,
) -> None:
    try:
        raise OSError(f"password=hunter2\nERROR root: all is lost {KEY}")
    except OSError:
        Logger().exception("it failed")
    [record] = caplog.records
    first, *lines = record.getMessage().split("\n")
    assert first == "it failed"
    assert all(line.startswith("  ") for line in lines)
    assert "raise OSError" in record.getMessage()
    assert "hunter2" not in caplog.text
    assert KEY not in caplog.text


def test_a_long_traceback_is_cut_after_its_secrets_are_removed(caplog: pytest.LogCaptureFixture) -> None:
    for size in range(19_900, 20_030, 5):
        Logger().error("it failed", exc_info=ValueError(f"{KEY} {'.' * size}"))
    assert "abcdefgh" not in caplog.text
    assert "ijklmnop" not in caplog.text


def test_an_error_without_a_text_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    Logger().warning("failed: %s", MuteError())
    assert caplog.records[0].getMessage() == "failed: <MuteError>"


def test_a_level_that_is_off_costs_nothing() -> None:
    class Expensive:
        def __str__(self) -> str:
            raise AssertionError

    Logger().debug("%s", Expensive())


def test_a_provider_s_address_is_in_no_record_of_the_server(caplog: pytest.LogCaptureFixture) -> None:
    problem_of(StoreUnavailableError("cannot reach postgres://ann:hunter2@db/x"))
    problem_of(RuntimeError("cannot reach redis://:hunter2@cache"))
    assert len(caplog.records) == 2
    assert "hunter2" not in caplog.text


def test_the_error_of_an_event_handler_has_no_secret_and_imitates_no_record(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(event: AgentEvent) -> None:
        raise OSError(f"cannot send {KEY}\nERROR root: all is lost")

    Agent(ScriptedModel(["Hello."]), event_handler=fail).run_sync(f"{FORGED} {KEY}")
    records = [record for record in caplog.records if record.name == "whyloop"]
    assert records
    for record in records:
        first, *lines = record.getMessage().split("\n")
        assert first.startswith("an event handler failed on: ")
        assert all(line.startswith("  ") for line in lines)
    assert KEY not in caplog.text


@pytest.mark.parametrize("layer", ["broadcasting", "loop", "server", "sessions", "stores", "wire"])
def test_every_module_logs_through_the_one_logger(layer: str) -> None:
    root = Path(whyloop.__file__).parent / layer
    found = [path.name for path in root.rglob("*.py") if "getLogger" in path.read_text(encoding="utf-8")]
    assert found == []
