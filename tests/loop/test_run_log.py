"""The standard logger `whyloop.runs`: one line for the end of a run, and the tracebacks of tools."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import pytest

from tests.support import scripted
from whyloop import Agent, AgentState, Hook, ToolCall, ToolContext, tool
from whyloop.errors import ModelError
from whyloop.loop.executions import start_run
from whyloop.testing import FakeClock, ScriptedModel, call
from whyloop.values.step_transitions import AnyTransition


@tool
async def pay(amount: int) -> str:
    """Pay an amount."""
    raise ValueError("the account is closed")


@tool(needs_approval=True)
async def refund(amount: int) -> str:
    """Pay an amount back."""
    return "done"


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    found = [each for each in caplog.records if each.name == "whyloop.runs" and each.levelno == level]
    return [each.getMessage() for each in found]


@pytest.fixture(autouse=True)
def everything_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "whyloop.runs")


async def test_the_end_of_a_run_is_one_line_with_the_rule_and_its_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    state = await scripted("Hello.").run("Hi")
    assert lines(caplog, logging.INFO) == [
        f"Agent [{state.agent_id[:8]}] step 1: completed (completed) by ToolCallPresenceCheck: "
        "The model answered and asked for no tools"
    ]


async def test_lines_of_sessions_with_names_can_be_told_apart(caplog: pytest.LogCaptureFixture) -> None:
    for name in ("customer-42", "customer-43"):
        agent = scripted("Hello.")
        await agent.run("Hi", state=agent.new_session(name))
    assert [line.partition(" step")[0] for line in lines(caplog, logging.INFO)] == [
        "Agent [customer-42]",
        "Agent [customer-43]",
    ]


async def test_a_failed_run_is_logged_with_its_failure(caplog: pytest.LogCaptureFixture) -> None:
    await scripted(ModelError("the model is gone", status=404)).run("Hi")
    (line,) = lines(caplog, logging.INFO)
    assert "failed (error) by ErrorPolicyCriterion: " in line
    assert line.endswith("the model is gone")


async def test_a_pause_is_logged_with_the_question(caplog: pytest.LogCaptureFixture) -> None:
    await scripted(call("refund", {"amount": 5}), tools=[refund]).run("Hi")
    (line,) = lines(caplog, logging.INFO)
    assert line.endswith("step 0: paused by ApprovalRequired: refund waits for approval")


async def test_an_execution_that_another_query_ends_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    agent = scripted(call("refund", {"amount": 5}), "Hello.", tools=[refund])
    await agent.run("Something else", state=await agent.run("Hi"))
    paused, superseded, completed = lines(caplog, logging.INFO)
    assert "paused by ApprovalRequired" in paused
    assert "stopped (user_requested) by StopRequestedCheck: Another query arrived" in superseded
    assert "completed (completed)" in completed


async def test_an_end_is_logged_though_its_task_is_cancelled_meanwhile(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Cancelled:
        async def append(self, new: Sequence[AnyTransition], before: AgentState, after: AgentState) -> None:
            if after.status.has_ended:
                raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await start_run(scripted("Hello."), "Hi", journal=Cancelled()).finish()
    (line,) = lines(caplog, logging.INFO)
    assert "completed (completed)" in line


async def test_the_traceback_of_a_tool_is_an_error_without_its_arguments(
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent = scripted(call("pay", {"amount": 987654}), tools=[pay])
    await agent.run("Hi", state=agent.new_session("customer-42"))
    (text,) = lines(caplog, logging.ERROR)
    assert text.startswith(
        "Agent [customer-42] step 1: tool pay failed\n  Traceback (most recent call last):"
    )
    assert 'raise ValueError("the account is closed")' in text
    assert text.endswith("ValueError: the account is closed")
    assert "987654" not in caplog.text


async def test_a_failing_hook_is_logged_too(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Hook):
        async def before_tool(self, call: ToolCall, context: ToolContext) -> ToolCall:
            raise RuntimeError("no rule for this")

    await scripted(call("pay", {"amount": 1}), tools=[pay], hooks=Broken()).run("Hi")
    (text,) = lines(caplog, logging.ERROR)
    assert "step 1: a hook around tool pay failed\n" in text
    assert text.endswith("RuntimeError: no rule for this")


async def test_a_session_id_cannot_forge_a_line(caplog: pytest.LogCaptureFixture) -> None:
    agent = Agent(ScriptedModel(["Hello."]), clock=FakeClock())
    await agent.run("Hi", state=agent.new_session("a\nERROR"))
    (line,) = lines(caplog, logging.INFO)
    assert "\n" not in line


async def test_no_secret_reaches_the_log(caplog: pytest.LogCaptureFixture) -> None:
    @tool
    async def connect() -> str:
        """Connect."""
        raise RuntimeError("Authorization: Bearer sk-live-abcdefghijklmnopqrstuvwxyz")

    await scripted(call("connect"), tools=[connect]).run("Hi")
    assert "RuntimeError" in caplog.text
    assert "sk-live" not in caplog.text
