"""From "package.module:name" to an agent."""

from __future__ import annotations

import importlib
import os
import sys
from operator import attrgetter
from types import ModuleType
from typing import Any

from whyloop.errors import ConfigurationError
from whyloop.loop.agent import Agent
from whyloop.rules.classify import words_of
from whyloop.values.text import shortened


def find_agent(path: str) -> Agent:
    """The agent that this path names, or that the function makes which it names."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    name, _, wanted = path.partition(":")
    if not all(name.split(".")) or not wanted:
        raise ConfigurationError(f"--agent {path}: write package.module:name")
    value = _attribute(path, _imported(path, name), wanted)
    if not isinstance(value, Agent) and callable(value):
        value = _called(path, value)
    if not isinstance(value, Agent):
        words = shortened(repr(value), 80)
        raise ConfigurationError(f"--agent {path}: {words} is neither an agent nor a function that makes one")
    return value


def _imported(path: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigurationError(f"--agent {path}: there is no module {error.name!r}") from None
        raise ConfigurationError(f"--agent {path}: {name} cannot be imported: {error}") from None
    except Exception as error:
        words = shortened(words_of(error), 200)
        raise ConfigurationError(f"--agent {path}: {name} cannot be imported: {words}") from None


def _attribute(path: str, module: ModuleType, wanted: str) -> Any:
    try:
        return attrgetter(wanted)(module)
    except AttributeError:
        others = ", ".join(key for key, value in vars(module).items() if isinstance(value, Agent))
        hint = f"; its agents are {others}" if others else ""
        raise ConfigurationError(
            f"--agent {path}: there is no {wanted!r} in {module.__name__}{hint}"
        ) from None


def _called(path: str, function: Any) -> object:
    try:
        return function()
    except Exception as error:
        words = shortened(words_of(error), 200)
        raise ConfigurationError(f"--agent {path}: the agent could not be made: {words}") from None
