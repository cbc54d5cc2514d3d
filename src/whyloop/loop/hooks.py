"""Hooks: code of the application around model calls and tool calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from inspect import iscoroutinefunction
from typing import Protocol, TypeVar

from msgspec import Struct

from whyloop.errors import ConfigurationError
from whyloop.tools.tool import RunContext, ToolContext
from whyloop.values.messages import ToolCall, ToolResult
from whyloop.values.model import ModelRequest, ModelResponse

T = TypeVar("T")


class AskModel(Protocol):
    """A function that sends a request to the model, or to the next hook around it."""

    def __call__(self, request: ModelRequest, /) -> Awaitable[ModelResponse]: ...


class RunTool(Protocol):
    """A function that runs the tool, or the next hook around it."""

    def __call__(self) -> Awaitable[ToolResult]: ...


AroundModel = Callable[[ModelRequest, RunContext, AskModel], Awaitable[ModelResponse]]
AroundTool = Callable[[ToolCall, ToolContext, RunTool], Awaitable[ToolResult]]


class Block(Struct, frozen=True, gc=False):
    """A hook's refusal to let a call run; the model and the trace get the reason."""

    reason: str
    """Why the call is blocked."""


class Hook:
    """The base class of hooks: override the methods that you need.

    The first hook of an agent is the outermost one. A wrapper (`around_model`, `around_tool`) is a coroutine
    of its own around the call, so its `finally` block runs however the call ends: with a result, an error, a
    stop, a timeout or a cancellation.
    """

    async def around_model(self, request: ModelRequest, context: RunContext, ask: AskModel) -> ModelResponse:
        """Call `ask` with the request or another one, and return a response.

        Args:
            context: The facts about the run.
            ask: A function that sends a request to the model, or to the next hook, and returns the response.
        """
        return await ask(request)

    async def before_tool(self, call: ToolCall, context: ToolContext) -> ToolCall | ToolResult | Block:
        """Return the call, changed or not; a result in its place; or a `Block`.

        It runs once, after the model has answered and before a person is asked, so that what a person
        approves is what runs. It is not repeated after a pause or a crash.

        Args:
            call: The call as the model asked for it.
        """
        return call

    async def around_tool(self, call: ToolCall, context: ToolContext, run: RunTool) -> ToolResult:
        """Call `run` and return its result or another one; the call cannot be changed.

        Args:
            call: The call that runs.
            run: A function that runs the call, or the next hook, and returns the result.
        """
        return await run()


class Hooks:
    """The hooks of an agent, by the method that they override, each with its name."""

    def __init__(self, hooks: Hook | Iterable[Hook] = ()) -> None:
        given = tuple(hooks) if isinstance(hooks, Iterable) else (hooks,)
        for hook in given:
            if not isinstance(hook, Hook):
                raise ConfigurationError(f"{hook!r} is not a hook: derive it from whyloop.Hook")
            for name in ("around_model", "before_tool", "around_tool"):
                if not iscoroutinefunction(getattr(hook, name)):
                    raise ConfigurationError(
                        f"{type(hook).__name__}.{name} is awaited: write `async def {name}`"
                    )
        self.around_model = [(_name(h), h.around_model) for h in given if _overrides(h, "around_model")]
        self.before_tool = [(_name(h), h.before_tool) for h in given if _overrides(h, "before_tool")]
        self.around_tool = [(_name(h), h.around_tool) for h in given if _overrides(h, "around_tool")]


class WrongAnswerError(TypeError):
    """A hook returned a value of another type; the text is for people."""


def expected(kind: type[T], answer: object) -> T:
    """Return the answer of a hook; raise a `WrongAnswerError` if it is of another type."""
    if isinstance(answer, kind):
        return answer
    # Named by its type: the value may hold arguments.
    raise WrongAnswerError(f"a hook returned {type(answer).__name__} instead of {kind.__name__}")


def _name(hook: Hook) -> str:
    return type(hook).__name__


def _overrides(hook: Hook, method: str) -> bool:
    return getattr(type(hook), method) is not getattr(Hook, method)
