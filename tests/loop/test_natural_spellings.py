"""Natural spellings of options work, or are refused with a clear error."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from tests.support import assert_readable
from whyloop import Agent, AgentState, ContinuationCriteria, Hook, StepsLimit, interrupted_state, tool
from whyloop.errors import ConfigurationError, ScriptError
from whyloop.events import TokenUsageReported
from whyloop.testing import FakeClock, ScriptedModel, capture_events, text


def test_modules_are_attributes_of_the_package() -> None:
    code = "import whyloop as w; print(w.models.load.__name__, w.events.__name__, w.errors.__name__)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "load whyloop.events whyloop.errors\n"


def test_the_package_can_be_run() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "whyloop", "--version"], capture_output=True, text=True, check=True
    )
    assert run.stdout.startswith("whyloop ")


async def test_the_state_may_be_given_by_position() -> None:
    agent = Agent(ScriptedModel(["one", "two"]), clock=FakeClock())
    state = await agent.run("a")
    assert (await agent.run("b", state)).agent_id == state.agent_id


def test_metadata_may_be_a_mapping() -> None:
    assert AgentState().with_metadata({"a": 1}, b=2).metadata == {"a": 1, "b": 2}


def test_a_lambda_can_be_given_a_name() -> None:
    criterion = ContinuationCriteria.when(lambda state: True, name="budget")
    (said,) = ContinuationCriteria(criterion).evaluate(AgentState()).evaluations
    assert said.criterion == "budget"


def test_a_hook_that_is_not_async_is_refused_when_the_agent_is_built() -> None:
    class Plain(Hook):
        def around_model(self, request: Any, context: Any, ask: Any) -> Any:
            return ask(request)

    with pytest.raises(ConfigurationError, match=r"Plain\.around_model is awaited"):
        Agent(ScriptedModel([]), hooks=Plain())


async def test_usage_is_reported_for_every_answer_even_if_nothing_was_counted() -> None:
    agent = Agent(ScriptedModel(["hello"]), clock=FakeClock())
    events = capture_events(agent)
    await agent.run("hi")
    assert len(events.of(TokenUsageReported)) == 1


def test_usage_of_another_kind_is_refused_where_it_is_written() -> None:
    with pytest.raises(ScriptError, match="usage"):
        text("x", usage=(1, 2))  # type: ignore[arg-type]


async def test_an_interrupt_inside_a_tool_leaves_its_state_behind() -> None:
    @tool
    async def interrupt() -> str:
        raise KeyboardInterrupt

    from whyloop.testing import call

    agent = Agent(ScriptedModel([call("interrupt")]), [interrupt], clock=FakeClock())
    with pytest.raises(KeyboardInterrupt) as caught:
        await agent.run("go")
    state = interrupted_state(caught.value)
    assert state is not None
    assert state.stop_reason == "user_requested"
    assert_readable(state)


def test_a_criterion_may_be_asked_for_by_instance() -> None:
    outcome = ContinuationCriteria(StepsLimit(2)).evaluate(AgentState())
    assert outcome.evaluation_for(StepsLimit(9)) == outcome.evaluation_for("StepsLimit")
