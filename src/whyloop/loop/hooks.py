"""Where people add their own: around the model call and around each tool call."""

from __future__ import annotations

from collections.abc import Iterable
from inspect import iscoroutinefunction
from typing import TypeVar

from msgspec import Struct

from whyloop.errors import ConfigurationError
from whyloop.tools.tool import ToolContext
from whyloop.values.messages import ToolCall, ToolResult
from whyloop.values.model import ModelRequest, ModelResponse

T = TypeVar("T")


class Block(Struct, frozen=True, gc=False):
    """A hook's refusal to let a call run; the reason goes to the model and into the trace."""

    reason: str


class Hook:
    """Override what you need; what you do not override costs nothing.

    "Before" hooks run in the order they were given, "after" hooks in the reverse order.
    """

    async def before_model(self, request: ModelRequest) -> ModelRequest | ModelResponse:
        """Change the request, or answer it at once: then no model is called."""
        return request

    async def after_model(self, request: ModelRequest, response: ModelResponse) -> ModelResponse:
        """Change the response before anything is made of it."""
        return response

    async def before_tool(self, call: ToolCall, context: ToolContext) -> ToolCall | ToolResult | Block:
        """Change the call, answer it at once, or block it.

        It runs once, when the model has answered and before a person is asked: what a person approves is
        what runs. It is not repeated after a pause or a crash.
        """
        return call

    async def after_tool(self, call: ToolCall, result: ToolResult, context: ToolContext) -> ToolResult:
        """Replace the result before the model sees it; the call itself cannot be changed any more."""
        return result


def expected(kind: type[T], answer: object) -> T:
    """What a hook answered, if it is what a hook may answer."""
    if isinstance(answer, kind):
        return answer
    # Named by its type: what it holds may be arguments, and this text is for people.
    raise TypeError(f"a hook answered {type(answer).__name__} where a {kind.__name__} was expected")


class Hooks:
    """The hooks of an agent, sorted by what they override, each with the name that is recorded."""

    def __init__(self, hooks: Hook | Iterable[Hook] = ()) -> None:
        given = tuple(hooks) if isinstance(hooks, Iterable) else (hooks,)
        for hook in given:
            if not isinstance(hook, Hook):
                raise ConfigurationError(f"{hook!r} is no hook: derive it from whyloop.Hook")
            for name in ("before_model", "after_model", "before_tool", "after_tool"):
                if not iscoroutinefunction(getattr(hook, name)):
                    raise ConfigurationError(
                        f"{type(hook).__name__}.{name} is awaited: write `async def {name}`"
                    )
        back = given[::-1]
        self.before_model = [(_name(h), h.before_model) for h in given if _overrides(h, "before_model")]
        self.after_model = [(_name(h), h.after_model) for h in back if _overrides(h, "after_model")]
        self.before_tool = [(_name(h), h.before_tool) for h in given if _overrides(h, "before_tool")]
        self.after_tool = [(_name(h), h.after_tool) for h in back if _overrides(h, "after_tool")]
        self.around_model = bool(self.before_model or self.after_model)


def _name(hook: Hook) -> str:
    return type(hook).__name__


def _overrides(hook: Hook, method: str) -> bool:
    return getattr(type(hook), method) is not getattr(Hook, method)
