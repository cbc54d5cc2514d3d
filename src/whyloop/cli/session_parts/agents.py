"""The agent that a command line describes: one that a module has, or a model with tools."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whyloop.loop.agent import Agent

MODEL_VARIABLE = "WHYLOOP_MODEL"
SECONDS_A_REQUEST = 120.0  # Or as long as the whole run may take, if that is longer.
# By what a model is described, and so what has no place beside an agent that is complete.
_OF_A_MODEL = ("model", "tools", "instructions", "base_url", "max_steps", "max_tokens", "timeout", "retry")


def add_agent(parser: argparse.ArgumentParser) -> None:
    """Make the options known to the parser; nothing that they need is loaded yet."""
    parser.add_argument(
        "--agent", metavar="PATH", help="instead of a model: package.module:name of an agent that is there"
    )
    parser.add_argument(
        "--model", metavar="NAME", help=f"such as openai:gpt-5 or ollama:qwen3 (default: ${MODEL_VARIABLE})"
    )
    parser.add_argument(
        "--tools",
        metavar="PATH",
        nargs="+",
        action="extend",
        default=[],
        help="tools or functions: package.module:name; a module alone stands for all its tools",
    )
    parser.add_argument("--instructions", metavar="TEXT", help="what the model is told before the question")
    parser.add_argument("--base-url", metavar="URL", help="another address of the model")
    parser.add_argument("--max-steps", metavar="N", type=int, help="stop after so many steps (default: 20)")
    parser.add_argument("--max-tokens", metavar="N", type=int, help="stop after so many tokens")
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=float, help="stop after so much time (default: 300)"
    )
    parser.add_argument(
        "--retry", action="store_true", help="try again when a tool fails or the provider is busy"
    )


def agent_of(args: argparse.Namespace) -> Agent:
    """The agent that was described; a `ConfigurationError` says what is missing."""
    if args.agent is not None:
        from whyloop.cli.session_parts.find_agent import find_agent

        _refuse_both(args)
        return find_agent(args.agent)
    return _agent_with_model(args)


def described(args: argparse.Namespace) -> tuple[str, ...]:
    """The options that describe this agent once more."""
    words: list[str] = []
    for name in ("agent", *_OF_A_MODEL):
        value = getattr(args, name)
        if value is True:
            words.append(f"--{name}")
        elif value not in (None, False, []):
            option = f"--{name.replace('_', '-')}"
            words += [option, *value] if isinstance(value, list) else [option, str(value)]
    return tuple(words)


def _refuse_both(args: argparse.Namespace) -> None:
    from whyloop.errors import ConfigurationError

    given = [
        f"--{name.replace('_', '-')}" for name in _OF_A_MODEL if getattr(args, name) not in (None, False, [])
    ]
    if given:
        raise ConfigurationError(f"--agent names an agent that is complete: leave out {', '.join(given)}")


def _agent_with_model(args: argparse.Namespace) -> Agent:
    from whyloop.cli.run_parts.find_tools import find_tools
    from whyloop.errors import ConfigurationError
    from whyloop.loop.agent import Agent
    from whyloop.models.load import load
    from whyloop.rules.error_policy import ErrorPolicy

    name = args.model or os.environ.get(MODEL_VARIABLE)
    if not name:
        raise ConfigurationError(
            f"name a model: --model openai:gpt-5, or one for all runs in {MODEL_VARIABLE}"
        )
    limits: dict[str, Any] = {"max_steps": args.max_steps, "timeout": args.timeout}
    return Agent(
        load(name, base_url=args.base_url, timeout=max(SECONDS_A_REQUEST, args.timeout or 0)),
        find_tools(args.tools),
        instructions=args.instructions,
        max_tokens=args.max_tokens,
        error_policy=ErrorPolicy.retry_tool_errors() if args.retry else None,
        **{key: value for key, value in limits.items() if value is not None},
    )
