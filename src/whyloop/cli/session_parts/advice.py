"""What can be done with a session as it is, in commands to copy."""

from __future__ import annotations

import argparse

from whyloop.cli.demo_parts.words import brief
from whyloop.cli.session_parts.exact import exact
from whyloop.cli.session_parts.options import AN_AGENT, command
from whyloop.values.approval import PendingCall
from whyloop.values.continuation import StopReason
from whyloop.values.state import AgentState, AgentStatus
from whyloop.values.text import counted

LONGEST_QUESTION = 600
_GRANTS = {
    StopReason.STEPS_LIMIT_REACHED: ("--grant-steps", "10"),
    StopReason.TOKEN_LIMIT_REACHED: ("--grant-tokens", "10000"),
    StopReason.TIME_LIMIT_REACHED: ("--grant-seconds", "300"),
}


def advice(
    args: argparse.Namespace,
    state: AgentState,
    typed: str,
    *,
    runner: str | None = None,
    agent: tuple[str, ...] = AN_AGENT,
    full: bool = False,
) -> list[str]:
    """What waits for a person, and the commands to go on with; `typed` is how the session was named."""
    if runner is not None:
        return [f"{brief(runner)} runs it. End that: {command(args, 'stop', typed)}"]
    if state.pending_calls:
        return [*_waiting(args, state.pending_calls, typed, full), "", _resume(args, "Then", typed, agent)]
    match state.status:
        case AgentStatus.COMPLETED:
            return []
        case AgentStatus.PENDING if not state.messages:
            ask = command(args, "run", "…", options=("--session", typed, *agent))
            return [f"Nothing was asked yet. Ask: {ask}"]
        case AgentStatus.PENDING:
            return [_resume(args, "Nobody has run it yet. Go on", typed, agent)]
        case AgentStatus.IN_PROGRESS:
            return ["Nobody runs it: the process that did has ended.", _resume(args, "Go on", typed, agent)]
        case AgentStatus.PAUSED:
            return [_resume(args, "Everything is decided. Go on", typed, agent)]
        case AgentStatus.STOPPED | AgentStatus.FAILED:
            grant = _GRANTS.get(state.stop_reason, ()) if state.stop_reason else ()
            return [_resume(args, "Go on", typed, (*agent, *grant))]


def _resume(args: argparse.Namespace, words: str, typed: str, options: tuple[str, ...]) -> str:
    return f"{words}: {command(args, 'resume', typed, options=options)}"


def _waiting(args: argparse.Namespace, calls: tuple[PendingCall, ...], typed: str, full: bool) -> list[str]:
    waits = "waits" if len(calls) == 1 else "wait"
    lines = [f"{counted(len(calls), 'tool call')} {waits} for a person"]
    for call in calls:
        lines += [
            "",
            f"  {brief(call.id)}  {brief(call.question, LONGEST_QUESTION)}",
            *(f"    {line}" for line in exact(call.arguments, full=full)),
            f"    {command(args, 'approve', typed, call.id)}",
            f"    {command(args, 'deny', typed, call.id, 'why not')}",
        ]
    return lines
