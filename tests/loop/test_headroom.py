"""Headroom: lines in a request about the rest of the limits, sent at thresholds and recorded."""

from __future__ import annotations

from collections.abc import AsyncIterator
from decimal import Decimal
from itertools import repeat
from typing import Any

import pytest

from tests.support import RespondingModel, echo, requests_of, scripted
from whyloop import (
    Agent,
    AgentBuilder,
    AgentState,
    Budget,
    CostLimit,
    ErrorPolicy,
    Hook,
    ModelRequest,
    ModelResponse,
    TokenUsageLimit,
    Usage,
)
from whyloop.errors import ConfigurationError, RateLimitError
from whyloop.testing import FakeClock, ScriptedModel, call, calls, text


def lines_of(requests: list[ModelRequest]) -> list[str | None]:
    """Return the line of each request; None for one without."""
    last = [request.messages[-1] for request in requests]
    return [message.text if message.source == ("show_limits",) else None for message in last]


def looping(**options: Any) -> Agent:
    options = {"timeout": None, "show_limits": True} | options
    return Agent(ScriptedModel(repeat(call("echo", usage=100))), [echo], clock=FakeClock(), **options)


def line(left: str) -> str:
    return f"Left for this run: {left}. Answer before it is used up."


async def test_the_model_learns_what_is_left_when_half_a_quarter_and_a_tenth_of_a_limit_is() -> None:
    agent = looping(max_steps=20)
    await agent.run("go")
    sent = {index: text for index, text in enumerate(lines_of(requests_of(agent))) if text}
    assert sent == {
        10: line("10 of 20 steps"),
        15: line("5 of 20 steps"),
        18: line("2 of 20 steps"),
    }


async def test_every_limit_is_in_the_line_when_one_reaches_a_threshold() -> None:
    agent = looping(max_steps=20, max_tokens=450)
    await agent.run("go")
    assert lines_of(requests_of(agent)) == [
        None,
        None,
        None,
        line("17 of 20 steps, 33 % of tokens"),
        line("16 of 20 steps, 11 % of tokens"),
    ]


async def test_time_and_money_and_a_session_have_lines_too() -> None:
    clock = FakeClock()

    async def respond(request: ModelRequest) -> AsyncIterator[ModelResponse]:
        requests.append(request)
        clock.advance(6)
        usage = Usage(input=5, output=5, cost=Decimal("0.10"))
        yield ModelResponse("", calls(call("echo")).tool_calls, usage=usage)

    requests: list[ModelRequest] = []
    limits = [CostLimit(1), TokenUsageLimit(1000, scope="session")]
    options: dict[str, Any] = {"timeout": 10, "clock": clock, "criteria": limits, "show_limits": True}
    await Agent(RespondingModel(respond), [echo], max_steps=None, **options).run("go")
    assert lines_of(requests)[1] == line(
        "40 % of the time, 90 % of the money, 99 % of tokens of this session"
    )


async def test_the_line_is_recorded_with_the_request_and_is_not_in_the_history() -> None:
    agent = looping(max_steps=2)
    state = await agent.run("go")
    assert not [message for message in state.messages if message.source]
    record = state.steps[1].request
    assert record is not None
    assert record.messages is not None
    assert record.messages[0] == (0, 3)
    texts = {part.hash: part.text for part in state.request_parts}
    assert line("1 of 2 steps") in texts[str(record.messages[1])]
    assert state.steps[0].request is not None
    assert state.steps[0].request.messages is None
    assert AgentState.from_dict(state.to_dict()) == state


async def test_a_hook_that_changes_the_instructions_keeps_the_line_in_the_record() -> None:
    class Shout(Hook):
        async def around_model(self, request: Any, context: Any, ask: Any) -> Any:
            from msgspec.structs import replace

            return await ask(replace(request, instructions="LOUD"))

    state = await looping(max_steps=2, hooks=Shout()).run("go")
    record = state.steps[1].request
    assert record is not None
    assert record.messages is not None
    assert len(record.messages) == 2


async def test_a_request_that_failed_is_made_again_with_the_line() -> None:
    script: list[Any] = [call("echo", usage=60), RateLimitError("busy"), call("echo", usage=1), text("done")]
    policy = ErrorPolicy.retry_all(5)
    agent = scripted(
        *script, tools=[echo], max_steps=None, max_tokens=100, show_limits=True, error_policy=policy
    )
    await agent.run("go")
    left = line("40 % of tokens, 100 % of the time")
    assert lines_of(requests_of(agent)) == [None, left, left, None]


async def test_a_grant_makes_room_and_the_thresholds_apply_again() -> None:
    agent = looping(max_steps=2)
    state = await agent.run("go")
    await agent.resume(state, grant=Budget(steps=8))
    assert lines_of(requests_of(agent))[2:] == [
        None,
        None,
        None,
        line("5 of 10 steps"),
        None,
        None,
        line("2 of 10 steps"),
        line("1 of 10 steps"),
    ]


async def test_a_wrap_up_has_its_own_message_instead() -> None:
    script: list[Any] = [call("echo"), "Known."]
    agent = Agent(ScriptedModel(script), [echo], max_steps=1, wrap_up=True, show_limits=True)
    state = await agent.run("go")
    assert state.output == "Known."
    assert lines_of(requests_of(agent)) == [None, None]


async def test_without_the_option_or_without_limits_nothing_is_sent() -> None:
    agent = looping(max_steps=4, show_limits=False)
    await agent.run("go")
    assert lines_of(requests_of(agent)) == [None] * 4
    agent = Agent(
        ScriptedModel([call("echo"), "done"]), [echo], max_steps=None, timeout=None, show_limits=True
    )
    await agent.run("go")
    assert lines_of(requests_of(agent)) == [None] * 2


def test_the_builder_takes_it_and_an_invalid_value_is_refused() -> None:
    agent = AgentBuilder.base().with_model(ScriptedModel([])).with_show_limits().build()
    assert agent._setup.show_limits
    with pytest.raises(ConfigurationError, match="invalid show_limits 'yes'"):
        looping(show_limits="yes")
