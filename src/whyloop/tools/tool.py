"""Tools: their definitions, the functions behind them, and the text of results."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import functools
import inspect
import re
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from datetime import datetime
from types import UnionType
from typing import Annotated, Any, Generic, TypedDict, Union, Unpack, get_args, get_origin, overload

import msgspec
from msgspec import Struct

from whyloop.errors import ToolDefinitionError, ToolExecutionError
from whyloop.rules.classification import error_text
from whyloop.tools.docstrings import docstring_of
from whyloop.tools.schema import Arguments, SchemaArguments, hints_of, signature_of
from whyloop.values.model import ToolSpec
from whyloop.values.scalars import AnyD_co, P, R_co, T
from whyloop.values.text import clean

# The names that every provider accepts.
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

DEFAULT_MAX_RESULT_CHARS = 200_000


class RunContext(Struct, Generic[AnyD_co], frozen=True):
    """The facts about a run for hooks, tools and instructions; a model never sees them.

    `RunContext[D]` is the context of an agent whose deps are of type D.
    """

    agent_id: str
    """The id of the session."""
    execution_id: str
    """The id of the execution."""
    step_number: int
    """The number of the step within the execution."""
    metadata: Mapping[str, Any]
    """The entries that the application gave to the session."""
    deps: AnyD_co = None  # type: ignore[assignment]
    """The objects that the application passed to this run; never stored."""

    def __repr__(self) -> str:
        """Return the fields without the deps, so that no log contains them."""
        return (
            f"{type(self).__name__}({', '.join([f'{key}={value!r}' for key, value in self.__rich_repr__()])})"
        )

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [(name, getattr(self, name)) for name in self.__struct_fields__ if name != "deps"]


class ToolContext(RunContext[AnyD_co], Generic[AnyD_co], frozen=True, kw_only=True):
    """The facts about a tool call for hooks and tools, besides those of the run."""

    tool_call_id: str
    """The provider's id of the call."""
    tool: str
    """The name of the tool."""
    deadline: datetime | None = None
    """When the time of the execution is up; None if it has no limit."""
    call_index: int = 0
    """The index of the call within its step."""

    @property
    def idempotency_key(self) -> str:
        """The key of this call: the same if the call is made again, and unlike any other."""
        return idempotency_key(self.execution_id, self.step_number, self.call_index, self.tool_call_id)


def idempotency_key(execution_id: str, step_number: int, index: int, call_id: str) -> str:
    """Return the key of a tool call, from its position and the provider's id."""
    return f"{execution_id}:{step_number}:{index}:{call_id}"


NeedsApproval = (
    bool | Callable[[Mapping[str, Any]], bool] | Callable[[Mapping[str, Any], ToolContext[Any]], bool]
)
"""Whether a call waits for a person: always, never, or depending on its arguments and context."""


class ToolOptions(TypedDict, total=False):
    """The options of a tool's calls."""

    timeout: float | None
    """The seconds after which a call is interrupted; None for no limit."""
    max_result_chars: int | None
    """The maximum number of characters of a result for the model; None for no limit."""
    needs_approval: NeedsApproval
    """Whether a person is asked before a call: always, never, or by its arguments and context."""
    idempotent: bool
    """Whether a call may be made again, with the same idempotency key, if its outcome is unknown."""
    polling: bool
    """Whether the tool is meant to be called repeatedly until something has happened."""


class ToolDefinition:
    """A tool as a model sees it, with the options of its calls.

    `parameters` is the JSON schema of its arguments.

    Args:
        name: The name by which the model calls it: 1 to 64 letters, digits, _ or -.
        description: Its purpose, for the model.
        parameters: The JSON schema of its arguments, an object.
        timeout: The seconds that a call may take. Default: no limit.
        max_result_chars: The length at which a result is cut; None for no limit. Default: 200,000.
        needs_approval: True if a person is asked before a call runs, or a function of the arguments that
            returns whether. Default: False.
        idempotent: True if two calls with the same key have the same effect as one, so that an interrupted
            call is repeated without asking a person. Default: False.
        polling: True if the tool is meant to be called repeatedly, with the same arguments and perhaps the
            same result, such as one that asks for the status of a build: no call of it is a repeat for
            `RepeatedCallCheck`. Default: False.
    """

    def __init__(
        self,
        name: str,
        description: str,
        parameters: Mapping[str, Any],
        *,
        timeout: float | None = None,
        max_result_chars: int | None = DEFAULT_MAX_RESULT_CHARS,
        needs_approval: NeedsApproval = False,
        idempotent: bool = False,
        polling: bool = False,
    ) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ToolDefinitionError(
                f"invalid tool name {name!r}: use 1 to 64 letters, digits, _ or -, with @tool(name=…)"
            )
        for option, value in (("timeout", timeout), ("max_result_chars", max_result_chars)):
            if value is not None and (isinstance(value, bool) or not value > 0):
                raise ToolDefinitionError(
                    f"tool {name!r}: invalid {option} {value!r}: use a number greater than zero"
                )
        if not isinstance(needs_approval, bool):
            _refuse_approval(name, needs_approval)
        for option, choice in (("idempotent", idempotent), ("polling", polling)):
            if not isinstance(choice, bool):
                raise ToolDefinitionError(f"tool {name!r}: invalid {option} {choice!r}: use True or False")
        if not isinstance(parameters, Mapping) or parameters.get("type") != "object":
            raise ToolDefinitionError(
                f"tool {name!r}: its parameters are not the JSON schema of an object: "
                'use {"type": "object", "properties": …}'
            )
        self.name = name
        """The name by which the model calls it."""
        self.description = description
        """Its purpose, for the model."""
        self.timeout = timeout
        """The seconds that a call may take; None for no limit."""
        self.needs_approval = needs_approval
        """Whether a person is asked before a call runs."""
        self.idempotent = idempotent
        """True if an interrupted call may be repeated with the same key."""
        self.polling = polling
        """True if the tool is meant to be called repeatedly."""
        self.max_result_chars = max_result_chars
        """The length at which the text of a result is cut; None for no limit."""
        self.arguments: Arguments | SchemaArguments = SchemaArguments(parameters)
        """The check of its arguments."""
        self.spec = ToolSpec(name, description, parameters)
        """The tool as the model sees it."""

    def waits_for_approval(self, arguments: Mapping[str, Any], context: ToolContext) -> bool:
        """Return whether a person is asked before a call with these arguments runs.

        Args:
            arguments: The arguments of the call.
        """
        rule: Any = self.needs_approval
        if isinstance(rule, bool):
            return rule
        return bool(rule(arguments, context) if _takes_context(rule) else rule(arguments))

    def renamed(self, name: str) -> ToolDefinition:
        """Return the tool under another name, for a toolset that wraps another one.

        Args:
            name: The other name.
        """
        return self._changed(name, self.needs_approval)

    def approved(self, rule: NeedsApproval) -> ToolDefinition:
        """Return the tool with another rule about which calls wait for a person.

        Args:
            rule: True, False, or a function of the arguments and, as a second parameter, of the context.
        """
        return self._changed(self.name, rule)

    def _changed(self, name: str, needs_approval: NeedsApproval) -> ToolDefinition:
        changed = copy.copy(self)
        ToolDefinition.__init__(
            changed,
            name,
            self.description,
            self.spec.parameters,
            timeout=self.timeout,
            max_result_chars=self.max_result_chars,
            needs_approval=needs_approval,
            idempotent=self.idempotent,
            polling=self.polling,
        )
        changed.arguments = self.arguments
        return changed

    def __repr__(self) -> str:
        return f"<tool {self.name}>"


class Tool(ToolDefinition, Generic[P, R_co]):
    """A Python function that a model may call; the program can still call it too.

    Args:
        function: The function, plain or async. A parameter of the type `ToolContext` receives the context,
            and the model does not see it.
        name: The name for the model. Default: that of the function.
        description: The purpose of the tool, for the model. Default: the docstring of the function.
        scope: Names that annotations of the function use and its module does not have. Default: none.
        **options: `timeout`, `max_result_chars`, `needs_approval`, `idempotent` and `polling`, as in
            `ToolDefinition`.
    """

    def __init__(
        self,
        function: Callable[P, R_co],
        *,
        name: str | None = None,
        description: str | None = None,
        scope: Mapping[str, Any] | None = None,
        **options: Unpack[ToolOptions],
    ) -> None:
        if not callable(function):
            raise ToolDefinitionError(f"invalid tool {function!r}: not a function")
        name = name or str(getattr(function, "__name__", type(function).__name__))
        signature = signature_of(function, name)
        hints = hints_of(function, name, scope or {})
        text, documented = docstring_of(function)
        contexts = [key for key in signature.parameters if _is_context(hints[key])]
        visible = {key: value for key, value in signature.parameters.items() if key not in contexts}
        arguments = Arguments(name, visible, hints, documented)
        super().__init__(name, description or text, arguments.schema, **options)
        self.arguments = arguments
        """The check of its arguments."""
        self.function = function
        """The function."""
        self.is_async = _is_async(function)
        """True if the function is async; a sync function runs in a thread."""
        self._context_parameter = contexts[0] if contexts else None
        functools.update_wrapper(self, function, updated=())

    def call(self, arguments: Mapping[str, Any], context: ToolContext) -> Coroutine[Any, Any, Any]:
        """Run the function with checked arguments; a sync function runs in a thread.

        Args:
            arguments: The arguments, as the check of the tool returns them.
        """
        if self._context_parameter is not None:
            arguments = {**arguments, self._context_parameter: context}
        if not self.is_async:
            return self._run_in_thread(arguments)
        function: Callable[..., Coroutine[Any, Any, Any]] = self.function  # type: ignore[assignment]
        return function(**arguments)

    async def _run_in_thread(self, arguments: Mapping[str, Any]) -> Any:
        result = await run_in_thread(functools.partial(self.function, **arguments))
        return await result if inspect.isawaitable(result) else result

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call the function itself, as the rest of the program does."""
        return self.function(*args, **kwargs)


@overload
def tool(function: Callable[P, R_co], /) -> Tool[P, R_co]:
    """Make a function a tool; the schema comes from its signature and docstring."""


@overload
def tool(
    *, name: str | None = None, description: str | None = None, **options: Unpack[ToolOptions]
) -> Callable[[Callable[P, R_co]], Tool[P, R_co]]:
    """Make a function a tool; the schema comes from its signature and docstring."""


def tool(function: Callable[..., Any] | None = None, /, **options: Any) -> Tool | Callable[..., Tool]:
    """Make a function a tool; the schema comes from its signature and docstring.

    Args:
        function: The function, plain or async, if the decorator is used without parentheses.
        **options: `name`, `description`, `timeout`, `max_result_chars`, `needs_approval`, `idempotent` and
            `polling`, as in `Tool`.
    """
    # Types that are written as strings may use names that only the caller's function knows.
    scope = sys._getframe(1).f_locals
    if function is not None:
        return Tool(function, scope=scope, **options)
    return lambda decorated: Tool(decorated, scope=scope, **options)


def _refuse_approval(name: str, rule: object) -> None:
    """Refuse an approval rule that is not a plain function of one or two parameters."""
    if not callable(rule) or _is_async(rule) or not (_takes(rule, 1) or _takes(rule, 2)):
        raise ToolDefinitionError(
            f"tool {name!r}: invalid needs_approval {rule!r}: use True, False or a function of the arguments "
            "and, as a second parameter, of the ToolContext"
        )


def _takes_context(rule: Callable[..., Any]) -> bool:
    """Return whether an approval rule has a second parameter without a default."""
    return not _takes(rule, 1)


def _takes(rule: Callable[..., Any], count: int) -> bool:
    """Return whether a function can be called with this number of arguments."""
    try:
        inspect.signature(rule).bind(*[None] * count)
    except ValueError:  # A function in C may have no signature.
        return True
    except TypeError:
        return False
    return True


def _is_context(hint: object) -> bool:
    """Return whether a type is a context, or a union with one."""
    kind = get_origin(hint) or hint
    if kind is ToolContext or kind is RunContext:
        return True
    return kind in (Union, UnionType, Annotated) and any(_is_context(each) for each in get_args(hint))


def _is_async(function: Callable[..., Any]) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004  (its kind is asked for, not whether it is there)
    )


def encoded(value: object, most: int | None) -> str:
    """Return a text, or a value as JSON; if it is too long, cut it and mark the cut."""
    text = clean(value) if isinstance(value, str) else _json(value)
    if most is not None and len(text) > most:
        return f"{text[:most]}\n[cut here: {len(text):,} characters in all, the first {most:,} are shown]"
    return text


def _json(value: object) -> str:
    try:
        return msgspec.json.encode(value, enc_hook=_plain).decode()
    except Exception as error:
        kind = type(value).__name__
        raise ToolExecutionError(
            f"it returned a value of type {kind} that cannot be encoded: {error_text(error)}"
        ) from error


def _plain(value: Any) -> Any:
    """Return the JSON form of a pydantic model, recognized by its method."""
    if hasattr(value, "model_dump"):
        try:
            return value.model_dump(mode="json")
        except Exception as error:  # Its message may quote the value.
            name = f"{type(value).__name__}.model_dump"
            raise TypeError(f"{name} raised {type(error).__name__}") from error
    raise TypeError(f"{type(value).__name__} has no JSON form")


async def run_in_thread(function: Callable[[], T]) -> T:
    """Run a function in a separate thread and return its result.

    The thread is a daemon, unlike those of `asyncio.to_thread`: a function that never returns must not keep
    the event loop or the interpreter from ending.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def work() -> None:
        try:
            result = context.run(function)
        except BaseException as error:
            _hand_over(loop, future, None, error)
        else:
            _hand_over(loop, future, result, None)

    threading.Thread(target=work, daemon=True, name="whyloop-tool").start()
    return await future


def _hand_over(
    loop: asyncio.AbstractEventLoop, future: asyncio.Future[T], result: T | None, error: BaseException | None
) -> None:
    def settle() -> None:
        if future.done():  # The caller gave up waiting.
            return
        if error is None:
            future.set_result(result)  # type: ignore[arg-type]
        else:
            future.set_exception(_carried(error))

    with suppress(RuntimeError):  # The event loop was closed while the function was still running.
        loop.call_soon_threadsafe(settle)


class CarriedError(RuntimeError):
    """The exception of a thread that a future cannot carry, as its cause."""


def _carried(error: BaseException) -> BaseException:
    """Return the error, or another one if a future cannot carry it."""
    if isinstance(
        error, StopIteration | GeneratorExit | asyncio.CancelledError | KeyboardInterrupt | SystemExit
    ):
        carried = CarriedError(type(error).__name__)
        carried.__cause__ = error
        return carried
    return error
