"""A run that is told as it happens."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from whyloop.broadcasting.adapter import AgentEventEnvelopeAdapter
from whyloop.broadcasting.event_log import EventLog
from whyloop.cli.renderer import explanation_lines, next_commands
from whyloop.cli.run_parts.telling import Telling
from whyloop.cli.session_parts.agents import described
from whyloop.cli.session_parts.find import found
from whyloop.cli.session_parts.opening import opened
from whyloop.cli.session_parts.options import short
from whyloop.cli.terminal import complain, write_json
from whyloop.loop.agent import Agent
from whyloop.sessions.session import Session
from whyloop.values.state import AgentState, AgentStatus
from whyloop.values.text import printable
from whyloop.wire.document import document


async def told_session(
    agent: Agent,
    args: argparse.Namespace,
    typed: str | None,
    work: Callable[[Session], Coroutine[Any, Any, AgentState]],
) -> AgentState:
    """The run of a session of the store, or of a new one if none was named.

    What is told of it is kept, so that `whyloop serve` can show it in another process as it happens.
    """
    async with opened(args.store, create=typed is None) as store, EventLog(store) as log:
        agent_id = None if typed is None else (await found(store, typed)).summary.agent_id
        session = await Session.open(store, agent, agent_id, events=AgentEventEnvelopeAdapter(log))
        named = typed or short(session.agent_id)
        if typed is None and not args.quiet:
            complain(f"session {printable(session.agent_id)}")
        return await told(
            agent,
            args,
            work(session),
            lambda state: next_commands(args, state, named, agent=described(args)),
        )


async def told(
    agent: Agent,
    args: argparse.Namespace,
    work: Coroutine[Any, Any, AgentState],
    next_steps: Callable[[AgentState], list[str]],
) -> AgentState:
    """The run, told as it happens, the explanation at its end, and what can be done now."""
    doing = asyncio.ensure_future(work)
    # What has been piped cannot be taken back, and an agent of somebody else may try again.
    whole = bool(args.retry or args.agent) and not sys.stdout.isatty()
    telling = Telling(answer=not args.json, quiet=args.quiet, unheard=doing.cancel, whole=whole)
    agent.subscribe(telling)
    _listen_to_ctrl_c(agent, doing, telling)
    try:
        state = await doing
    except asyncio.CancelledError:
        if telling.failure:
            raise telling.failure from None
        raise
    if telling.failure:
        raise telling.failure
    if args.json:
        write_json(document(state))
    _tell_the_end(state, telling, args.quiet, next_steps)
    return state


def _listen_to_ctrl_c(agent: Agent, doing: asyncio.Task[AgentState], telling: Telling) -> None:
    """The first one asks the agent to stop where it does no harm, the second one does not ask."""
    pressed = 0

    def stop() -> None:
        nonlocal pressed
        pressed += 1
        if pressed == 1 and agent.request_stop("Ctrl-C was pressed"):
            telling.aside("  stopping after this step; Ctrl-C again to end it at once")
        else:
            doing.cancel()

    # Where there are no such handlers, Ctrl-C ends the program as it ends any other.
    with suppress(NotImplementedError, RuntimeError, ValueError):
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop)


def _tell_the_end(
    state: AgentState, telling: Telling, quiet: bool, next_steps: Callable[[AgentState], list[str]]
) -> None:
    explanation = state.explanation
    if not quiet:
        telling.aside("\n".join(["", *explanation_lines(explanation)]))
    elif state.status is not AgentStatus.COMPLETED:
        telling.aside(explanation.headline)
    if not quiet or state.status is AgentStatus.PAUSED:
        telling.aside("\n".join(["", *lines] if (lines := next_steps(state)) else []))
