"""From "package.module:name" to an agent."""

from __future__ import annotations

from typing import Any

from whyloop.cli.module import attribute, imported
from whyloop.errors import ConfigurationError
from whyloop.loop.agent import Agent
from whyloop.rules.classify import words_of
from whyloop.values.text import shortened


def find_agent(path: str) -> Agent:
    """The agent that this path names, or that the function makes which it names."""
    option = f"--agent {path}"
    name, _, wanted = path.partition(":")
    if not all(name.split(".")) or not wanted:
        raise ConfigurationError(f"{option}: write package.module:name")
    value = attribute(option, imported(option, name), wanted, Agent)
    if not isinstance(value, Agent) and callable(value):
        value = _called(option, value)
    if not isinstance(value, Agent):
        words = shortened(repr(value), 80)
        raise ConfigurationError(f"{option}: {words} is neither an agent nor a function that makes one")
    return value


def _called(option: str, function: Any) -> object:
    try:
        return function()
    except Exception as error:
        words = shortened(words_of(error), 200)
        raise ConfigurationError(f"{option}: the agent could not be made: {words}") from None
