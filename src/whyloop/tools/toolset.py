"""Toolsets: the sources of an agent's tools, and their lifetimes."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import Any, Self

from msgspec.structs import replace

from whyloop.errors import ConfigurationError
from whyloop.tools.tool import NeedsApproval, Tool, ToolContext, ToolDefinition


class Toolset(ABC):
    """Tools behind one object: functions, a server of tools, another agent.

    Derive from it and write `list` and `call`. If it holds a connection, open it in `__aenter__` and close it
    in `__aexit__`: one task does both. The toolset stays open while a run or an `async with agent` of any of
    its agents needs it.
    """

    @abstractmethod
    async def list(self) -> Sequence[ToolDefinition]:
        """Return the tools that are available now; called once, before a run's first step."""

    @abstractmethod
    async def call(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> object:
        """Run one of its tools with arguments that fit its schema, and return the result.

        Args:
            name: The name of the tool.
            arguments: The arguments.
        """

    def prefixed(self, text: str) -> Toolset:
        """Return the same tools with a text before their names.

        Args:
            text: The text, such as `"git_"`.
        """
        return ChangedToolset(
            self, lambda tool: tool.renamed(text + tool.name), lambda name: name.removeprefix(text)
        )

    def filtered(self, predicate: Callable[[ToolDefinition], bool]) -> Toolset:
        """Return those of the tools for which a function returns True.

        Args:
            predicate: A function of the `ToolDefinition`.
        """
        return ChangedToolset(self, lambda tool: tool if predicate(tool) else None)

    def renamed(self, names: Mapping[str, str]) -> Toolset:
        """Return the same tools, some of them under other names.

        Args:
            names: The new names by the old ones.
        """
        originals = {new: old for old, new in names.items()}
        if len(originals) < len(names):
            raise ConfigurationError(f"two tools get the same name in renamed({dict(names)!r}): use another")
        return ChangedToolset(
            self,
            lambda tool: tool.renamed(names.get(tool.name, tool.name)),
            lambda name: originals.get(name, name),
        )

    def approved(self, rule: NeedsApproval = True) -> Toolset:
        """Return the same tools with another rule about which calls wait for a person.

        Args:
            rule: As `needs_approval` of a tool: True, False, or a function of the arguments and the context.
        """
        return ChangedToolset(self, lambda tool: tool.approved(rule))

    @property
    def source(self) -> Toolset:
        """The toolset that is opened to use this one: itself, unless it changes another one."""
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return None


class ChangedToolset(Toolset):
    """The tools of another toolset, changed or left out; both share one connection.

    Args:
        toolset: The other toolset.
        change: A function that returns a tool as it is offered, None to leave it out.
        original: A function that returns the name of a tool in the other toolset. Default: the same name.
    """

    def __init__(
        self,
        toolset: Toolset,
        change: Callable[[ToolDefinition], ToolDefinition | None],
        original: Callable[[str], str] = str,
    ) -> None:
        self._toolset = toolset
        self._change = change
        self._original = original

    @property
    def source(self) -> Toolset:
        """The toolset that is opened to use this one."""
        return self._toolset.source

    async def list(self) -> Sequence[ToolDefinition]:
        """Return the tools that the change leaves."""
        changed = [self._change(tool) for tool in await self._toolset.list()]
        return [tool for tool in changed if tool is not None]

    async def call(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> object:
        """Run a tool of the other toolset, under the name that it has there."""
        original = self._original(name)
        return await self._toolset.call(original, arguments, replace(context, tool=original))

    async def __aenter__(self) -> Self:
        await self._toolset.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._toolset.__aexit__(kind, error, traceback)


ToolLike = Toolset | Tool | Callable[..., Any]
"""The values that `tools=` takes: toolsets, tools and plain functions."""


class Functions(Toolset):
    """The Python functions that a model may call."""

    def __init__(self, functions: Iterable[Tool | Callable[..., Any]]) -> None:
        self.tools = tuple([each if isinstance(each, Tool) else Tool(each) for each in functions])
        self.table = tools_by_name([(tool, self) for tool in self.tools])
        self._functions = {tool.name: tool for tool in self.tools}

    async def list(self) -> Sequence[ToolDefinition]:
        """Return the functions as tools."""
        return self.tools

    def call(
        self, name: str, arguments: Mapping[str, Any], context: ToolContext
    ) -> Coroutine[Any, Any, object]:
        """Run one of the functions."""
        return self._functions[name].call(arguments, context)


ToolTable = Mapping[str, tuple[ToolDefinition, Toolset]]
"""The tools of a run by name, each with the toolset that runs it."""


def tools_by_name(tools: Iterable[tuple[ToolDefinition, Toolset]]) -> ToolTable:
    """Return the tools by name; raise a `ConfigurationError` if two share one."""
    found: dict[str, tuple[ToolDefinition, Toolset]] = {}
    for tool, toolset in tools:
        if tool.name in found:
            raise ConfigurationError(
                f"two tools are named {tool.name!r}, and a model could not tell them apart: "
                "rename one with @tool(name=…), toolset.prefixed(…) or toolset.renamed(…)"
            )
        found[tool.name] = (tool, toolset)
    return found


class Lifetime:
    """One opening of a toolset, used by any number of runs and agents.

    A separate task opens and closes it, since many connections can only be closed by the task that opened
    them, while any task may use it.
    """

    def __init__(self, toolset: Toolset, previous: Lifetime | None) -> None:
        self.loop = asyncio.get_running_loop()
        self.users = 0
        self.opened: asyncio.Future[None] = self.loop.create_future()
        self._unused = asyncio.Event()
        self.owner = self.loop.create_task(self._own(toolset, previous))

    async def close(self) -> None:
        """End one use; the last use closes the toolset."""
        with _lock:
            self.users -= 1
            if self.users:
                return
        if self.opened.done():
            self._unused.set()
        else:
            self.owner.cancel()
        await asyncio.wait([self.owner])
        if not self.owner.cancelled():
            self.owner.result()  # An error of the toolset is raised here.

    async def _own(self, toolset: Toolset, previous: Lifetime | None) -> None:
        try:
            if previous is not None:
                await asyncio.wait([previous.owner])
            async with toolset:
                self.opened.set_result(None)
                await self._unused.wait()
        except BaseException as error:
            if self.opened.done():
                raise
            if isinstance(error, asyncio.CancelledError):  # This does not cancel the tasks that use it.
                error = ConnectionError(f"the opening of {type(toolset).__name__} was cancelled")
            self.opened.set_exception(error)
            self.opened.exception()  # It is raised in each task that still waits.
        finally:
            if previous is not None and not previous.owner.done():
                await asyncio.wait([previous.owner])
            with _lock:
                if _in_use.get(id(toolset)) is self:
                    del _in_use[id(toolset)]


# The toolsets that are open, by id: the same one may serve several agents. The lock is for their threads.
_in_use: dict[int, Lifetime] = {}
_lock = threading.RLock()  # Reentrant, since a task may start as soon as it is created.


@asynccontextmanager
async def keep_open(toolsets: Iterable[Toolset]) -> AsyncIterator[None]:
    """Keep toolsets open during a block; open those that are not open yet."""
    async with AsyncExitStack() as stack:
        for toolset in [each.source for each in toolsets]:
            if _has_lifetime(toolset):
                lifetime = _use(toolset)
                stack.push_async_callback(lifetime.close)
                await asyncio.shield(lifetime.opened)
        yield


def _use(toolset: Toolset) -> Lifetime:
    """Return the lifetime of a toolset, and count one more use of it.

    If it is closing, another lifetime follows it.
    """
    with _lock:
        lifetime = _in_use.get(id(toolset))
        if lifetime is not None and (lifetime.owner.done() or lifetime.loop.is_closed()):
            lifetime = None
        if lifetime is not None and lifetime.loop is not asyncio.get_running_loop():
            raise ConfigurationError(
                f"{type(toolset).__name__} is open on another event loop, which cannot share it: "
                "give each event loop its own toolset"
            )
        if lifetime is None or not lifetime.users:
            lifetime = _in_use[id(toolset)] = Lifetime(toolset, lifetime)
        lifetime.users += 1
        return lifetime


def _has_lifetime(toolset: Toolset) -> bool:
    """Return whether a toolset has anything to open or to close."""
    kind = type(toolset)
    return kind.__aenter__ is not Toolset.__aenter__ or kind.__aexit__ is not Toolset.__aexit__
