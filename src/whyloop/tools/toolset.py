"""Toolsets: where the tools of an agent come from, and for how long they are open."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self

from whyloop.errors import ConfigurationError
from whyloop.tools.tool import Tool, ToolContext, ToolDefinition


class Toolset:
    """Tools behind one object: functions, a server of tools, another agent.

    Derive from it and write `list` and `call`. A toolset that wraps another one can rename, filter or guard
    its tools. If it holds a connection, open it in `__aenter__` and close it in `__aexit__`: one task does
    both, and the toolset stays open while a run or an `async with agent` needs it.
    """

    async def list(self) -> Sequence[ToolDefinition]:
        """Return the tools that it offers now. A run asks once, when it begins."""
        raise NotImplementedError

    async def call(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> object:
        """Run one of its tools with arguments that fit its schema, and return the result."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return None


ToolLike = Toolset | Tool | Callable[..., Any]
"""What `tools=` takes: toolsets, tools and plain functions."""


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
    """Return the tools by name; raise a `ConfigurationError` for two of one name."""
    found: dict[str, tuple[ToolDefinition, Toolset]] = {}
    for tool, toolset in tools:
        if tool.name in found:
            raise ConfigurationError(
                f"two tools are named {tool.name!r}, and a model could not tell them apart: "
                "rename one with @tool(name=…)"
            )
        found[tool.name] = (tool, toolset)
    return found


class Lifetime:
    """The time during which resources are open: while anything uses them.

    One task opens and closes them all, since many connections can only be closed by the task that opened
    them, and the uses come from any task.
    """

    def __init__(self, resources: Sequence[Toolset]) -> None:
        self._resources = resources
        self._users = 0
        self._owner: asyncio.Task[None] | None = None
        self._opened: asyncio.Future[None] | None = None
        self._unused: asyncio.Event | None = None

    async def open(self) -> None:
        """Open the resources, unless they are open; an error of theirs is raised here."""
        self._users += 1
        if self._owner is None:
            self._opened, self._unused = asyncio.get_running_loop().create_future(), asyncio.Event()
            self._owner = asyncio.create_task(self._own(self._opened, self._unused))
        try:
            assert self._opened is not None
            await asyncio.shield(self._opened)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End one use; the last one closes the resources."""
        self._users -= 1
        if self._users or self._owner is None or self._unused is None:
            return
        owner, self._owner = self._owner, None
        self._unused.set()
        await asyncio.shield(owner)

    async def _own(self, opened: asyncio.Future[None], unused: asyncio.Event) -> None:
        async with AsyncExitStack() as stack:
            try:
                for resource in self._resources:
                    await stack.enter_async_context(resource)
            except BaseException as error:
                opened.set_exception(error)
                opened.exception()  # It is raised by `open`, if anything still waits there.
                return
            opened.set_result(None)
            await unused.wait()
