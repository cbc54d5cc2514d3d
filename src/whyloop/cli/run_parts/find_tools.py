"""From "package.module:name" to tools."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from whyloop.cli.module import attribute, imported
from whyloop.errors import ConfigurationError
from whyloop.loop.tool import Tool
from whyloop.values.text import shortened

AnyTool = Tool | Callable[..., Any]


def find_tools(paths: Iterable[str]) -> list[AnyTool]:
    """The tools that these paths name."""
    return [found for path in paths for found in _found(path)]


def _found(path: str) -> list[AnyTool]:
    name, _, wanted = path.partition(":")
    if not all(name.split(".")):
        raise ConfigurationError(f"--tools {path}: {name!r} names no module: write package.module:name")
    module = imported("--tools", name)
    if wanted in ("", "*"):
        return _all_of(module)
    value = attribute(f"--tools {path}", module, wanted, Tool)
    tools = list(value) if isinstance(value, list | tuple) else [value]
    for candidate in tools:
        if not callable(candidate):
            words = shortened(repr(candidate), 80)
            raise ConfigurationError(f"--tools {path}: {words} is neither a tool nor a function")
    return tools


def _all_of(module: ModuleType) -> list[AnyTool]:
    """Every tool of a module, each once, whatever it is called there."""
    tools = {id(value): value for value in vars(module).values() if isinstance(value, Tool)}
    if not tools:
        raise ConfigurationError(
            f"--tools: {module.__name__} has no tools: decorate its functions with @tool, or name them"
        )
    return list(tools.values())
