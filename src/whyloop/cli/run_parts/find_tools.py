"""From "package.module:name" to tools."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable
from operator import attrgetter
from types import ModuleType
from typing import Any

from whyloop.errors import ConfigurationError
from whyloop.loop.tool import Tool
from whyloop.rules.classify import words_of
from whyloop.values.text import shortened

AnyTool = Tool | Callable[..., Any]


def find_tools(paths: Iterable[str]) -> list[AnyTool]:
    """The tools that these paths name; the current directory is searched too."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    return [found for path in paths for found in _found(path)]


def _found(path: str) -> list[AnyTool]:
    name, _, wanted = path.partition(":")
    if not all(name.split(".")):
        raise ConfigurationError(f"--tools {path}: {name!r} names no module: write package.module:name")
    module = _imported(name)
    if wanted in ("", "*"):
        return _all_of(module)
    try:
        value = attrgetter(wanted)(module)
    except AttributeError:
        others = ", ".join(key for key, value in vars(module).items() if isinstance(value, Tool))
        hint = f"; its tools are {others}" if others else ""
        raise ConfigurationError(f"--tools {path}: there is no {wanted!r} in {name}{hint}") from None
    tools = list(value) if isinstance(value, list | tuple) else [value]
    for candidate in tools:
        if not callable(candidate):
            words = shortened(repr(candidate), 80)
            raise ConfigurationError(f"--tools {path}: {words} is neither a tool nor a function")
    return tools


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigurationError(f"--tools: there is no module {error.name!r}") from None
        raise ConfigurationError(f"--tools: {name} cannot be imported: {error}") from None
    except Exception as error:
        words = shortened(words_of(error), 200)
        raise ConfigurationError(f"--tools: {name!r} cannot be imported: {words}") from None


def _all_of(module: ModuleType) -> list[AnyTool]:
    """Every tool of a module, each once, whatever it is called there."""
    tools = {id(value): value for value in vars(module).values() if isinstance(value, Tool)}
    if not tools:
        raise ConfigurationError(
            f"--tools: {module.__name__} has no tools: decorate its functions with @tool, or name them"
        )
    return list(tools.values())
