"""The agents that a command line names: from a module, or a model with tools."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from inspect import signature
from operator import attrgetter
from types import FunctionType, ModuleType
from typing import Any

from whyloop.cli.command import (
    AGENT,
    DEFAULT_ERROR_POLICY,
    DEPS,
    ERROR_POLICIES,
    MODEL,
    MODEL_VARIABLE,
    TEMPORAL,
    Option,
)
from whyloop.errors import ConfigurationError
from whyloop.loop.agent import Agent
from whyloop.models.presets import LOCAL, load
from whyloop.replay.judge import Rule
from whyloop.rules.classification import error_text
from whyloop.rules.criteria import ContinuationCriteria
from whyloop.rules.criterion import Criterion, as_criterion
from whyloop.rules.error_policy import ErrorPolicy
from whyloop.sessions.session import MakeDeps
from whyloop.tools.tool import Tool
from whyloop.values.text import shortened

SECONDS_PER_REQUEST = 120.0  # Or as long as the whole run may take, if that is longer.

AnyTool = Tool | Callable[..., Any]
DEFAULT_NAME = signature(Agent).parameters["name"].default


def agent_of(args: argparse.Namespace) -> Agent[Any, Any]:
    """Return the agent that the options describe."""
    if args.agent is None:
        return _agent_with_model(args)
    given = _given(args, MODEL)
    if given:
        raise ConfigurationError(f"--agent names a complete agent: leave out {', '.join(given)}")
    return find_agent(args.agent)


def agent_or_name(args: argparse.Namespace) -> Agent[Any, Any] | str:
    """Return the agent of the options, or the name of one of Temporal's workers."""
    if args.temporal is None:
        refuse_without_temporal(args, TEMPORAL)
        return agent_of(args)
    given = _given(args, (DEPS, *MODEL))
    if given:
        raise ConfigurationError(f"the workers have the agents and their deps: leave out {', '.join(given)}")
    if args.agent is None:
        raise ConfigurationError("name an agent of the workers: --agent NAME, or the path of its code")
    path: str = args.agent
    return find_agent(path).name if ":" in path else path


def refuse_without_temporal(args: argparse.Namespace, options: Iterable[Option]) -> None:
    """Refuse options that only have an effect with --temporal."""
    given = _given(args, options)
    if given:
        verb = "needs" if len(given) == 1 else "need"
        raise ConfigurationError(f"{', '.join(given)} {verb} --temporal ADDRESS")


def agent_options(args: argparse.Namespace) -> tuple[str, ...]:
    """Return the options that describe this agent, for another command; may be empty."""
    given: list[str] = []
    for option in (*AGENT, *TEMPORAL):
        if (value := option.given(args)) is not None:
            given += [option.name, *value] if isinstance(value, list) else [option.name, str(value)]
    return tuple(given)


def find_agent(path: str) -> Agent[Any, Any]:
    """Return the agent at a path, or the one that the function there makes.

    An agent without a name is named after its path, so that it never continues the sessions of another agent.
    """
    option = f"--agent {path}"
    value = _find(option, path)
    if not isinstance(value, Agent):
        raise _refusal(option, value, "an agent: use an Agent, or a function that makes one")
    return _named(value, path)


def find_agents(path: str) -> Mapping[str, Agent[Any, Any]]:
    """Return the agents at a path by name: those of a dict, or a single one."""
    option = f"--agents {path}"
    value = _find(option, path)
    agents = {_named(value, path).name: value} if isinstance(value, Agent) else value
    if (
        not isinstance(agents, Mapping)
        or not agents
        or not all(isinstance(a, Agent) for a in agents.values())
    ):
        wanted = "an agent: use an Agent, a dict of agents by name, or a function that makes one of these"
        raise _refusal(option, value, wanted)
    for key, agent in agents.items():
        if _named(agent, key).name not in agents:  # No worker would know its sessions' agent.
            raise ConfigurationError(
                f"{option}: the agent under {key!r} is named {agent.name!r}: "
                f"create it with Agent(…, name={key!r})"
            )
    return agents


def _named(agent: Agent[Any, Any], name: str) -> Agent[Any, Any]:
    if agent.name == DEFAULT_NAME:
        agent.name = name
    return agent


def find_deps(path: str | None) -> MakeDeps | None:
    """Return the function at a path that returns the deps for a session's run."""
    if path is None:
        return None
    option = f"--deps {path}"
    make = _at(option, path, FunctionType)
    if not callable(make):
        raise _refusal(option, make, "a function: use one that takes the summary of a session")
    found: MakeDeps = make
    return found


def find_rules(path: str) -> list[Rule]:
    """Return the rules at "package.module:name".

    It names a criterion, an error policy, an agent, or a list of them.
    """
    value = _at(f"--criteria {path}", path, Criterion)
    if isinstance(value, Agent):
        return [value.criteria]
    rules = list(value) if isinstance(value, list | tuple) else [value]
    for rule in rules:
        if not isinstance(rule, ErrorPolicy | ContinuationCriteria):
            try:
                as_criterion(rule)
            except ConfigurationError as error:
                raise ConfigurationError(f"--criteria {path}: {error}") from None
    return rules


def find_cases(path: str) -> list[Callable[[], Any]]:
    """Return the cases at a path: a function, a list, or those of a module."""
    name, _, wanted = path.partition(":")
    if not all(name.split(".")):
        raise ConfigurationError(f"{path}: invalid module {name!r}: write package.module:name")
    module = _import(path, name)
    if wanted:
        value = _attribute(path, module, wanted, FunctionType)
        cases = [value] if callable(value) else list(value) if isinstance(value, Iterable) else []
    else:
        cases = [
            value
            for key, value in vars(module).items()
            if key.startswith(("test_", "case_")) and isinstance(value, FunctionType | partial)
        ]
    if not cases:
        raise ConfigurationError(
            f"{path}: no cases found: name a function, a list of them, or a module with functions whose "
            "names begin with test_ or case_"
        )
    return cases


def model_name(args: argparse.Namespace) -> str | None:
    """Return the name of the model that the options or the environment give."""
    name: str | None = args.model or os.environ.get(MODEL_VARIABLE)
    return name


def error_policy_of(args: argparse.Namespace) -> str:
    """Return the name of the error policy of an agent that the options describe."""
    name: str = args.error_policy or DEFAULT_ERROR_POLICY
    return name


def introduction(args: argparse.Namespace, agent: Agent[Any, Any] | str) -> str:
    """Return the line that introduces the model, its tools and its error policy."""
    if isinstance(agent, str):
        return f"{shortened(agent)}, run by the workers of Temporal at {shortened(args.temporal)}"
    tools = ", ".join(shortened(tool.name, 40) for tool in agent.tools)
    policy, with_tools = error_policy_of(args), f" with {tools}" if tools else ""
    if args.agent is not None:
        return f"{shortened(args.agent)}{with_tools}"
    effect = f"{ERROR_POLICIES[policy]} (--error-policy {policy})"
    return f"{shortened(model_name(args) or '')}{with_tools}; {effect}"


def _agent_with_model(args: argparse.Namespace) -> Agent[Any, Any]:
    name = model_name(args)
    if not name:
        raise ConfigurationError(
            "missing model: use --model openai:gpt-5, --agent package.module:name for an agent in your "
            f"code, or set {MODEL_VARIABLE}"
        )
    model = load(
        name,
        base_url=args.base_url,
        timeout=max(SECONDS_PER_REQUEST, args.timeout or 0),
        temperature=0.0 if name == LOCAL else None,
    )
    limits: dict[str, Any] = {"max_steps": args.max_steps, "timeout": args.timeout}
    return Agent(
        model,
        [found for path in args.tools for found in _tools_at(path)],
        name="cli",
        instructions=args.instructions,
        max_tokens=args.max_tokens,
        error_policy=getattr(ErrorPolicy, error_policy_of(args))(),
        **{key: value for key, value in limits.items() if value is not None},
    )


def _given(args: argparse.Namespace, options: Iterable[Option]) -> list[str]:
    """Return the names of those options that the command line has."""
    return [option.name for option in options if option.given(args) is not None]


# Modules


def _find(option: str, path: str) -> object:
    """Return the agents at "package.module:name"; a function there is called."""
    value, wanted = _at(option, path, Agent), path.partition(":")[2]
    if isinstance(value, Agent | Mapping) or not callable(value):
        return value
    try:
        return value()
    except Exception as error:
        reason = shortened(error_text(error), 200)
        raise ConfigurationError(f"{option}: {wanted}() failed: {reason}") from None


def _at(option: str, path: str, kind: type) -> Any:
    """Return the value at "package.module:name"."""
    name, _, wanted = path.partition(":")
    if not all(name.split(".")) or not wanted:
        raise ConfigurationError(f"{option}: invalid path: write package.module:name")
    return _attribute(option, _import(option, name), wanted, kind)


def _tools_at(path: str) -> list[AnyTool]:
    name, _, wanted = path.partition(":")
    if not all(name.split(".")):
        raise ConfigurationError(f"--tools {path}: invalid module {name!r}: write package.module:name")
    module = _import("--tools", name)
    if wanted in ("", "*"):
        return _all_tools(module)
    value = _attribute(f"--tools {path}", module, wanted, Tool)
    tools = list(value) if isinstance(value, list | tuple) else [value]
    for candidate in tools:
        if not callable(candidate):
            raise _refusal(f"--tools {path}", candidate, "a tool: use a function")
    return tools


def _all_tools(module: ModuleType) -> list[AnyTool]:
    """Return every tool of a module once, even if it has several names there."""
    tools = {id(value): value for value in vars(module).values() if isinstance(value, Tool)}
    if not tools:
        raise ConfigurationError(
            f"--tools: {module.__name__} has no tools: decorate its functions with @tool, or name them"
        )
    return list(tools.values())


def _refusal(option: str, value: object, wanted: str) -> ConfigurationError:
    return ConfigurationError(f"{option}: {shortened(repr(value), 80)} is not {wanted}")


def _import(option: str, name: str) -> ModuleType:
    """Return a module, even one in the current directory."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigurationError(f"{option}: module {error.name!r} not found") from None
        raise ConfigurationError(f"{option}: {name} cannot be imported: {error}") from None
    except Exception as error:
        reason = shortened(error_text(error), 200)
        raise ConfigurationError(f"{option}: {name} cannot be imported: {reason}") from None


def _attribute(option: str, module: ModuleType, wanted: str, kind: type) -> Any:
    """Return an attribute of a module; the error lists similar ones."""
    try:
        return attrgetter(wanted)(module)
    except AttributeError:
        found = {key: value for key, value in vars(module).items() if isinstance(value, kind)}
        if kind is FunctionType:
            found = {key: value for key, value in found.items() if value.__module__ == module.__name__}
        others = ", ".join(found)
        hint = f"; its {kind.__name__.lower()}s are {others}" if others else ""
        raise ConfigurationError(f"{option}: {module.__name__} has no {wanted!r}{hint}") from None
