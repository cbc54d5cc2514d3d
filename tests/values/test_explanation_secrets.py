"""An explanation shows no secret, unless it is asked to."""

from __future__ import annotations

import json

import pytest

from tests.support import echo
from whyloop import Agent, AgentState, ErrorPolicy, tool
from whyloop.errors import ModelError, ToolExecutionError
from whyloop.testing import ScriptedModel, call

KEY = "sk-proj-abcdefghijklmnop1234"
FORMS = [f"refused with {KEY}", "refused: PASSWORD 'hunter2Xy'", 'login(password: "hunter2Xy")']


@tool
async def pay(token: str) -> str:
    """Pay."""
    raise ToolExecutionError(token)


async def failed(text: str) -> AgentState:
    agent = Agent(ScriptedModel([call("pay", {"token": text})]), [pay])
    return await agent.run("Pay")


@pytest.mark.parametrize("text", FORMS)
async def test_explain_removes_secrets_by_default(text: str) -> None:
    state = await failed(text)
    secret = KEY if KEY in text else "hunter2Xy"
    assert secret not in state.explain()
    assert "[removed]" in state.explain()
    assert secret in state.explain(redact=False)
    shown = state.explanation.without_secrets()
    assert secret not in shown.to_markdown() + shown._repr_html_() + json.dumps(shown.to_dict())
    assert state.explanation.without_secrets(None) == state.explanation


async def test_a_secret_that_is_cut_off_is_not_shown() -> None:
    for before in range(60, 300, 7):
        state = await failed("word " * (before // 5) + "." * (before % 5) + KEY)
        assert "sk-proj-a" not in state.explain()


async def test_an_explanation_without_secrets_is_the_same_value() -> None:
    agent = Agent(
        ScriptedModel([call("echo", {"value": "a"}), "done"]), [echo], error_policy=ErrorPolicy.retry_all()
    )
    state = await agent.run("go")
    assert state.explanation.without_secrets() == state.explanation
    assert state.explain() == state.explain(redact=False)


async def test_the_error_of_a_model_is_shown_without_secrets() -> None:
    state = await Agent(ScriptedModel([ModelError(f"no access with {KEY}", status=401)]), [echo]).run("go")
    assert KEY not in state.explain()
    assert KEY in state.explain(redact=False)
