"""What people decide about tool calls, from the shell."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import msgspec

from whyloop.cli.renderer import next_commands
from whyloop.cli.session_parts.arguments import summary
from whyloop.cli.session_parts.refusal import USAGE_ERROR, Refusal
from whyloop.cli.terminal import write_lines
from whyloop.errors import ConfigurationError
from whyloop.values.approval import PendingCall
from whyloop.values.state import SOMEBODY, AgentState
from whyloop.values.text import clean, shortened


def who(by: str | None) -> str:
    """The name that was given, or that of whoever is logged in."""
    import getpass

    if by is not None:
        if not by.strip():
            raise ConfigurationError("--by names who decides, and is empty")
        return by
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return SOMEBODY


def the_call(state: AgentState, call_id: str | None) -> PendingCall:
    """The pending call of this id; without one, the only call that waits."""
    pending = state.pending_calls
    if call_id is not None:
        return _named(state, clean(call_id))
    if len(pending) == 1:
        return pending[0]
    if not pending:
        raise Refusal("no tool call of this session waits for a decision")
    raise Refusal(f"several tool calls wait, so name one:\n{_listed(pending)}", USAGE_ERROR)


def parse_arguments(text: str) -> Mapping[str, Any]:
    """The arguments that --args gives."""
    try:
        arguments = msgspec.json.decode(clean(text))
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigurationError(f"--args is no JSON: {shortened(str(error), 100)}") from None
    if not isinstance(arguments, dict):
        raise ConfigurationError('--args is a JSON object, such as {"amount": 5}')
    return arguments


def spelled(call: PendingCall) -> str:
    """A call in short."""
    return f"{shortened(call.name)}({summary(call.arguments)})"


def tell(args: argparse.Namespace, words: str, state: AgentState) -> None:
    """What was decided, and how to go on."""
    write_lines([words, *next_commands(args, state, args.id)])


def _named(state: AgentState, call_id: str) -> PendingCall:
    for call in state.pending_calls:
        if call.id == call_id:
            return call
    if state.open_step is not None:
        # Whether there never was such a call or it was decided already, the state knows the words.
        state.approve(call_id)
    raise Refusal("no tool call of this session waits for a decision")


def _listed(pending: tuple[PendingCall, ...]) -> str:
    return "\n".join(f"  {shortened(call.id)}  {spelled(call)}" for call in pending)
