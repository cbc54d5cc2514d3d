"""Classification: each way in which a step can fail, and its type of error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import (
    RespondingModel,
    assert_can_be_read,
    assert_readable,
    broken,
    echo,
    requests_of,
    scripted,
)
from whyloop import (
    Agent,
    AgentState,
    AgentStatus,
    ErrorPolicy,
    ErrorPolicyCriterion,
    ErrorType,
    Failure,
    ModelRequest,
    ModelResponse,
    TextDelta,
    ToolCall,
    Usage,
    tool,
)
from whyloop.errors import (
    ModelError,
    RateLimitError,
    RequestTimeoutError,
    ResponseValidationError,
    ToolExecutionError,
    ToolTimeoutError,
)
from whyloop.testing import assert_stopped, call, calls


@tool
async def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def failure_of(state: AgentState) -> Failure:
    """The failure of a run that stopped at its first error."""
    assert state.status is AgentStatus.FAILED
    assert_stopped(state, reason="error", by=ErrorPolicyCriterion)
    outcome = state.last_continuation_outcome
    assert outcome is not None
    said = outcome.evaluation_for(ErrorPolicyCriterion)
    assert said is not None
    failure = state.steps[-1].failures[0]
    assert said.context["error_type"] == failure.type.value
    assert_readable(state)
    return failure


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ModelError("down"), "model"),
        (ModelError("I will not answer that"), "model"),
        (ModelError("bad gateway", status=502), "model"),
        (ModelError("slow down", status=429), "rate_limit"),
        (ModelError("slow down", status=529), "rate_limit"),
        (ModelError("we are overloaded", status=503), "rate_limit"),
        (ModelError("down for maintenance", status=503), "model"),
        (ModelError("too slow", status=408), "timeout"),
        (ModelError("too slow", status=504), "timeout"),
        (RateLimitError("slow down"), "rate_limit"),
        (RateLimitError("overloaded", status=529), "rate_limit"),
        (RequestTimeoutError("no answer in 60 s"), "timeout"),
        (TimeoutError("no answer"), "timeout"),
        (ResponseValidationError("half a JSON"), "validation"),
        (RuntimeError("a bug in the driver"), "unknown"),
        (OSError("no route to host"), "unknown"),
    ],
    ids=repr,
)
async def test_errors_of_models_are_classified(error: Exception, kind: str) -> None:
    state = await scripted(error).run("go")
    failure = failure_of(state)
    assert failure.type == kind
    assert failure.is_model_call
    assert str(error) in failure.message
    assert str(error) in state.explain()
    assert [m.role.value for m in state.messages] == ["user"]


class StatusError(Exception):
    """As HTTP clients and the SDKs of providers raise it."""

    def __init__(self, status: int, *, nested: bool = False) -> None:
        super().__init__(f"HTTP {status}")
        if nested:
            self.response = SimpleNamespace(status_code=status)
        else:
            self.status_code = status


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(
    ("status", "kind", "retryable"),
    [(401, "model", False), (404, "model", False), (429, "rate_limit", True), (503, "model", True)],
)
async def test_an_error_of_another_library_is_classified_by_its_status(
    status: int, kind: str, retryable: bool, nested: bool
) -> None:
    failure = failure_of(await scripted(StatusError(status, nested=nested)).run("go"))
    assert (failure.type, failure.retryable, failure.details["status"]) == (kind, retryable, status)


async def test_a_stream_without_a_complete_response_is_a_validation_error() -> None:
    async def respond(request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        yield TextDelta("Hel")

    assert failure_of(await Agent(RespondingModel(respond)).run("go")).type is ErrorType.VALIDATION


@pytest.mark.parametrize("garbage", ["words", None, 42, {"text": "hello"}], ids=repr)
async def test_a_response_that_is_none_is_a_validation_error(garbage: Any) -> None:
    async def respond(request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        yield garbage

    assert failure_of(await Agent(RespondingModel(respond)).run("go")).type is ErrorType.VALIDATION


NO_USAGE = Usage()


def odd_response(
    text: Any = "x", calls: Any = (), reason: Any = "stop", usage: Any = NO_USAGE
) -> ModelResponse:
    return ModelResponse(text, calls, reason, usage)


def odd_call(id: Any = "c1", name: Any = "echo", arguments: Any = None) -> ModelResponse:
    return odd_response(calls=(ToolCall(id, name, arguments),))


@pytest.mark.parametrize(
    "garbage",
    [
        pytest.param(odd_response(text=None), id="no text"),
        pytest.param(odd_response(text=["x"]), id="text in parts"),
        pytest.param(odd_response(usage=None), id="no usage"),
        pytest.param(odd_response(usage=Usage(-5)), id="negative usage"),
        pytest.param(odd_response(usage=Usage("5")), id="usage in words"),  # type: ignore[arg-type]
        pytest.param(odd_response(usage=Usage(1.5)), id="broken usage"),  # type: ignore[arg-type]
        pytest.param(odd_response(reason="who knows"), id="unknown finish reason"),
        pytest.param(odd_response(reason=None), id="no finish reason"),
        pytest.param(odd_response(calls=None), id="no calls"),
        pytest.param(odd_response(calls=("echo",)), id="a name for a call"),
        pytest.param(odd_response(calls=[ToolCall("c1", "echo", {})]), id="calls in a list"),
        pytest.param(ModelResponse("x", reasoning=5), id="a number for reasoning"),  # type: ignore[arg-type]
        pytest.param(ModelResponse("x", reasoning=None), id="no reasoning"),  # type: ignore[arg-type]
        pytest.param(odd_call(), id="no arguments"),
        pytest.param(odd_call(arguments=[1]), id="arguments in a list"),
        pytest.param(odd_call(arguments={1: 2}), id="arguments by number"),
        pytest.param(odd_call(name=None, arguments={}), id="no name"),
        pytest.param(odd_call(id=None, arguments={}), id="no id"),
        pytest.param(odd_call(id=7, arguments={}), id="a number for an id"),
    ],
)
async def test_a_response_with_wrong_fields_crashes_neither_the_run_nor_its_reader(
    garbage: ModelResponse,
) -> None:
    async def respond(request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        yield garbage

    state = await Agent(RespondingModel(respond), [echo], max_steps=1).run("go")
    assert state.status.has_ended
    assert_can_be_read(state)


async def test_a_model_that_times_out_while_it_waits_is_a_request_timeout() -> None:
    async def respond(request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        yield TextDelta("a")
        await asyncio.sleep(0)
        raise TimeoutError("the socket timed out")

    failure = failure_of(await Agent(RespondingModel(respond)).run("go"))
    assert failure.type is ErrorType.TIMEOUT
    assert "the socket timed out" in failure.message


async def test_a_model_that_breaks_in_the_middle_of_an_answer_leaves_nothing_broken() -> None:
    async def respond(request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        yield TextDelta("I was about to s")
        raise ModelError("connection lost")

    state = await Agent(RespondingModel(respond)).run("go")
    assert failure_of(state).type is ErrorType.MODEL
    assert len(state.messages) == 1


@pytest.mark.parametrize(
    ("error", "kind", "expected", "told"),
    [
        (RuntimeError("disk full"), "tool", "RuntimeError in fail", "RuntimeError: disk full"),
        (ToolExecutionError("no such partner"), "tool", "no such partner", "no such partner"),
        (ToolTimeoutError("the search took too long"), "timeout", *["the search took too long"] * 2),
        (ValueError(), "tool", "ValueError in fail", "ValueError"),
    ],
    ids=repr,
)
async def test_errors_of_tools_are_classified(error: Exception, kind: str, expected: str, told: str) -> None:
    @tool
    async def fail() -> str:
        raise error

    state = await scripted(call("fail"), tools=[fail]).run("go")
    failure = failure_of(state)
    assert (failure.type, failure.message) == (kind, expected)
    assert (failure.tool, failure.tool_call_id) == ("fail", "call_1")
    assert state.messages[-1].text == f"Error: {told}"


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ('{"a": 1, "b":', "not a JSON object"),
        ("not json", "not a JSON object"),
        ("[1, 2]", "not a JSON object"),
        ("null", "not a JSON object"),
        ('"a"', "not a JSON object"),
        ('{"a": 1, "b": NaN}', "not a JSON object"),
        ({"a": 1, "b": "two"}, 'b: Expected `int`, got `str`. Schema: {"type": "integer"}'),
        ({"a": 1}, "b is missing. Schema:"),
        ({"a": 1, "b": [], "c": 3}, "there is no argument 'c'; the arguments are: a, b"),
        ({"a": 1, "b": None}, "b: Expected `int`, got `null`"),
        ({"a": 1.5, "b": 2}, "a: Expected `int`, got `float`"),
        ({"a": True, "b": 2}, "a: Expected `int`, got `bool`"),
    ],
    ids=str,
)
async def test_arguments_that_do_not_fit_are_a_validation_error_that_the_model_can_act_on(
    arguments: Any, hint: str
) -> None:
    agent = scripted(
        call("add", arguments), "sorry", tools=[add], error_policy=ErrorPolicy.retry_tool_errors()
    )
    state = await agent.run("go")
    (failure,) = state.steps[0].failures
    assert failure.type is ErrorType.VALIDATION
    sent = requests_of(agent)[1].messages[-1]
    assert hint in sent.text
    assert "add" in sent.text
    assert len(sent.text) < 300
    assert sent.tool_call_id == "call_1"
    assert_readable(state)


async def test_the_tool_is_not_called_with_arguments_that_do_not_fit() -> None:
    ran: list[int] = []

    @tool
    async def spend(amount: int) -> str:
        ran.append(amount)
        return "spent"

    await scripted(call("spend", {"amount": "all"}), tools=[spend]).run("go")
    assert ran == []


@pytest.mark.parametrize("name", ["ad", "Add", "", "no such tool"])
async def test_a_tool_name_that_does_not_exist_is_a_validation_error_with_the_names_there_are(
    name: str,
) -> None:
    state = await scripted(call(name), tools=[add, echo]).run("go")
    failure = failure_of(state)
    assert failure.type is ErrorType.VALIDATION
    assert repr(name) in failure.message
    assert "add, echo" in failure.message


async def test_a_tool_call_without_any_tools_is_a_validation_error() -> None:
    assert failure_of(await scripted(call("add")).run("go")).type is ErrorType.VALIDATION


async def test_the_first_of_several_failed_calls_decides_and_all_are_listed() -> None:
    agent = scripted(calls(call("echo"), call("add", "oops"), call("broken")), tools=[echo, add, broken])
    state = await agent.run("go")
    assert failure_of(state).type is ErrorType.VALIDATION
    outcome = state.last_continuation_outcome
    assert outcome is not None
    said = outcome.evaluation_for(ErrorPolicyCriterion)
    assert said is not None
    assert said.context["tool_name"] == "add"
    assert said.context["consecutive_failures"] == 1
    assert [(f["tool_name"], f["type"]) for f in said.context["failures"]] == [
        ("add", "validation"),
        ("broken", "tool"),
    ]


async def test_a_response_may_ask_for_a_call_with_arguments_as_text() -> None:
    async def respond(request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        yield ModelResponse("", (ToolCall("c1", "add", "a=1, b=2"),))

    state = await Agent(RespondingModel(respond), [add]).run("go")
    assert failure_of(state).type is ErrorType.VALIDATION
    assert state.messages[1].tool_calls[0].arguments == "a=1, b=2"
