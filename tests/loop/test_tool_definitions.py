"""Functions that can be tools, and those that are refused with a reason."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import scripted
from whyloop import Agent, Tool, ToolContext, tool
from whyloop.errors import ToolDefinitionError, WhyloopError
from whyloop.testing import FakeClock, ScriptedModel, call


async def result_of(candidate: Tool | Callable[..., Any], arguments: dict[str, Any] | None = None) -> str:
    """Return the text that the model reads after it called the tool."""
    made = candidate if isinstance(candidate, Tool) else tool(candidate)
    state = await scripted(call(made.name, arguments), "done", tools=[made]).run("go")
    assert state.steps[0].failures == ()
    return state.messages[2].text


def test_a_tool_has_the_name_and_the_docstring_of_its_function() -> None:
    @tool
    def search(query: str) -> str:
        """Finds things."""
        return query

    assert isinstance(search, Tool)
    assert (search.name, search.description) == ("search", "Finds things.")
    assert search.spec.name == "search"
    assert search.spec.description == "Finds things."
    assert "search" in repr(search)


def test_name_description_and_limits_can_be_given() -> None:
    @tool(name="find", description="Looks it up.", timeout=5, max_result_chars=10)
    def search(query: str) -> str:
        """Finds things."""
        return query

    assert (search.name, search.description) == ("find", "Looks it up.")
    assert (search.timeout, search.max_result_chars) == (5, 10)


def test_a_decorated_function_can_still_be_called() -> None:
    @tool
    def double(x: int) -> int:
        """Doubles."""
        return 2 * x

    assert double(4) == 8
    assert double.__doc__ == "Doubles."


async def test_a_plain_and_an_async_function_may_be_passed_undecorated() -> None:
    def plain() -> str:
        return "plain"

    async def asynchronous() -> str:
        return "async"

    agent = Agent(
        ScriptedModel([call("plain"), call("asynchronous"), "done"]), [plain, asynchronous], clock=FakeClock()
    )
    state = await agent.run("go")
    assert [m.text for m in state.messages if m.is_tool] == ["plain", "async"]


def test_a_single_tool_need_not_be_in_a_list() -> None:
    def plain() -> str:
        return "plain"

    assert [made.name for made in scripted(tools=plain).tools] == ["plain"]
    assert [made.name for made in scripted(tools=tool(plain)).tools] == ["plain"]


class Register:
    def __init__(self) -> None:
        self.names = ["a"]

    def search(self, query: str) -> list[str]:
        """Finds names."""
        return [*self.names, query]

    async def count(self) -> int:
        return len(self.names)


async def test_bound_methods_are_tools_without_self() -> None:
    register = Register()
    search = tool(register.search)
    assert search.name == "search"
    assert list(search.spec.parameters["properties"]) == ["query"]
    assert await result_of(search, {"query": "b"}) == '["a","b"]'
    assert await result_of(register.count) == "1"


def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


async def add_async(a: int, b: int) -> int:
    return a + b


@pytest.mark.parametrize("function", [add, add_async], ids=["plain", "async"])
async def test_a_partial_is_a_tool_of_the_remaining_parameters(function: Callable[..., Any]) -> None:
    made = tool(name="add_ten")(functools.partial(function, 10))
    assert list(made.spec.parameters["properties"]) == ["b"]
    assert await result_of(made, {"b": 5}) == "15"


async def test_a_partial_by_keyword_keeps_its_value() -> None:
    made = tool(name="add_ten")(functools.partial(add, b=10))
    assert "a" in made.spec.parameters["required"]
    assert await result_of(made, {"a": 5}) == "15"


class Greeter:
    def __call__(self, name: str) -> str:
        """Greets."""
        return f"hello {name}"


@dataclasses.dataclass
class Adder:
    base: int

    def __call__(self, a: int) -> int:
        """Adds the base."""
        return a + self.base


@pytest.mark.parametrize(
    ("candidate", "arguments", "result"),
    [(Greeter(), {"name": "you"}, "hello you"), (Adder(10), {"a": 5}, "15")],
    ids=["plain", "dataclass"],
)
async def test_an_object_that_can_be_called_is_a_tool(
    candidate: Any, arguments: dict[str, Any], result: str
) -> None:
    made = tool(name="it")(candidate)
    assert list(made.spec.parameters["properties"]) == list(arguments)
    assert await result_of(made, arguments) == result


def untyped(x, y: int) -> None: ...  # type: ignore[no-untyped-def]
def positional_only(x: int, /) -> None: ...
def many(*x: int) -> None: ...
def keywords(**x: int) -> None: ...
def unresolved(x: NoSuchType) -> None: ...  # type: ignore[name-defined]  # noqa: F821


class Opaque: ...


def opaque(x: Opaque) -> None: ...
def nested_opaque(x: list[Opaque]) -> None: ...
def function_argument(x: Callable[[int], int]) -> None: ...


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (untyped, "'x' has no type"),
        (positional_only, "by name"),
        (many, "by name"),
        (keywords, "by name"),
        (unresolved, "NoSuchType"),
        (opaque, "Opaque"),
        (nested_opaque, "Opaque"),
        (function_argument, "Callable"),
        (print, "print"),
        (max, "no signature"),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_a_function_that_no_model_could_call_is_refused_by_name(function: Any, expected: str) -> None:
    for make in (tool, lambda f: scripted(tools=[f])):
        with pytest.raises(ToolDefinitionError, match=expected) as caught:
            make(function)
        assert isinstance(caught.value, ValueError)
        assert isinstance(caught.value, WhyloopError)
        assert function.__name__ in str(caught.value)


@pytest.mark.parametrize("candidate", [42, "search", None])
def test_an_object_that_is_not_a_function_is_refused(candidate: Any) -> None:
    with pytest.raises(ToolDefinitionError, match="not a function"):
        scripted(tools=[candidate])


@pytest.mark.parametrize("name", ["has space", "dotted.name", "ü", "x" * 65, "a\n"])
def test_a_name_that_no_provider_accepts_is_refused(name: str) -> None:
    with pytest.raises(ToolDefinitionError, match="name"):
        tool(name=name)(add)


def test_a_lambda_needs_a_name() -> None:
    with pytest.raises(ToolDefinitionError, match="name="):
        tool(lambda: 1)
    assert tool(name="one")(lambda: 1).name == "one"


@pytest.mark.parametrize("bad", [0, -1, float("nan"), True])
@pytest.mark.parametrize("option", ["timeout", "max_result_chars"])
def test_a_limit_of_a_tool_is_greater_than_zero(option: str, bad: Any) -> None:
    with pytest.raises(ToolDefinitionError, match=option):
        tool(**{option: bad})(add)


def test_the_context_is_not_in_the_schema() -> None:
    @tool
    def search(query: str, *, context: ToolContext) -> str:
        return query

    assert list(search.spec.parameters["properties"]) == ["query"]
    assert "ToolContext" not in str(search.spec.parameters)


def test_a_context_that_may_be_missing_is_not_in_the_schema_either() -> None:
    @tool
    def search(query: str, context: ToolContext | None = None) -> str:
        return query

    assert "ToolContext" not in str(search.spec.parameters)
