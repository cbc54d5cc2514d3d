"""`whyloop show` and `whyloop why` remove secrets, unless they are asked to show them."""

from __future__ import annotations

import json

import pytest

from tests.cli.shop import asked, run
from whyloop import Agent, tool
from whyloop.errors import ToolExecutionError
from whyloop.testing import ScriptedModel, call

KEY = "sk-proj-abcdefghijklmnop1234"


@tool
async def pay(password: str | int, note: str) -> str:
    """Pay."""
    raise ToolExecutionError(f"refused: {note}")


@pytest.fixture
def session() -> str:
    agent = Agent(ScriptedModel([call("pay", {"password": 71717171, "note": KEY})]), [pay])
    return asked(agent, f"Pay with {KEY}", db={"password": "hunter2Xy"})


@pytest.mark.parametrize(
    "command",
    [("show",), ("show", "--full"), ("show", "--json"), ("why",), ("why", "--json"), ("why", "--markdown")],
)
def test_secrets_are_shown_only_when_they_are_asked_for(
    session: str, command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    name, *options = command
    _, shown, _ = run(capsys, name, session, *options)
    assert KEY not in shown
    assert "71717171" not in shown
    assert "hunter2Xy" not in shown
    assert "[removed]" in shown.replace("\\", "")
    _, everything, _ = run(capsys, name, session, *options, "--show-secrets")
    assert KEY in everything
    if "--json" in options:
        assert json.loads(shown).keys() == json.loads(everything).keys()
    if name == "show":
        assert "71717171" in everything
        assert "hunter2Xy" in everything
