"""`whyloop run`: one question to a real model, from the shell."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from whyloop.cli.session_parts.agents import add_agent
from whyloop.cli.session_parts.options import DEFAULT_STORE, STORE_VARIABLE
from whyloop.cli.session_parts.refusal import CANNOT_WRITE, FAILED, USAGE_ERROR

if TYPE_CHECKING:
    from whyloop.loop.agent import Agent
    from whyloop.sessions.session import Session
    from whyloop.values.state import AgentState

# One code for each stop reason, and one for a pause, so that a script can tell them apart.
EXIT_CODES = {
    "completed": 0,
    "steps_limit": 10,
    "token_limit": 11,
    "time_limit": 12,
    "retry_limit": 13,
    "error": 14,
    "finish_reason": 15,
    "guard": 16,
    "user_requested": 17,
    "paused": 18,
}
_MEANINGS = {
    "completed": "the model answered and asked for nothing more",
    "steps_limit": "--max-steps was reached",
    "token_limit": "--max-tokens was reached",
    "time_limit": "--timeout was reached",
    "retry_limit": "an error, and --retry did not help",
    "error": "an error",
    "finish_reason": "the model was cut off, or its answer filtered",
    "guard": "a rule of your own forbade to go on",
    "user_requested": "Ctrl-C; a second one ends it at once, with 130",
    "paused": "a tool call waits for a person: whyloop approve, or deny",
}


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Make the command known to the parser; nothing that it needs is loaded yet."""
    words = "ask a real model, with tools, and read why it ended"
    parser = commands.add_parser(
        "run",
        help=words,
        description=f"{words[0].upper()}{words[1:]}. The answer goes to stdout, everything else to stderr.",
        epilog=exit_codes(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    # Not required here, since --tools takes the words after it, and the question may be among them.
    parser.add_argument("question", metavar="QUESTION", nargs="?", help="what to ask; - reads it from stdin")
    add_agent(parser)
    parser.add_argument(
        "--store",
        metavar="ADDRESS",
        help=f"record the run as a session, in a file or a database (default: ${STORE_VARIABLE})",
    )
    parser.add_argument(
        "--session", metavar="ID", help=f"go on with a session of the store (or else of {DEFAULT_STORE})"
    )
    parser.add_argument("--json", action="store_true", help="print the trace for machines, not the answer")
    parser.add_argument("--quiet", action="store_true", help="no words but the answer, unless it went wrong")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Ask what was asked for and return the exit code."""
    from whyloop.cli.session_parts.carry_out import ended

    return ended("run", lambda: _run(args))


def _run(args: argparse.Namespace) -> Coroutine[Any, Any, int]:
    from whyloop.cli.session_parts.agents import agent_of

    _take_question_back(args)
    agent = agent_of(args)
    return _ask(agent, _question(args), args)


async def _ask(agent: Agent, question: str, args: argparse.Namespace) -> int:
    from whyloop.cli.session_parts.told import told, told_session
    from whyloop.cli.terminal import complain

    if args.session is None and not args.store and not os.environ.get(STORE_VARIABLE):
        return exit_code(await told(agent, args, agent.run(question), _unrecorded))

    async def send(session: Session) -> AgentState:
        if session.state.pending_calls:
            complain("what waits for a person is given up, since another question is asked")
        return await session.send(question)

    return exit_code(await told_session(agent, args, args.session, send))


def _unrecorded(state: AgentState) -> list[str]:
    if state.pending_calls:
        return ["This run was not recorded, so nobody can approve it. Run it with --store whyloop.db."]
    return []


def _take_question_back(args: argparse.Namespace) -> None:
    """Find a question that stands after --tools, which takes all the words that follow it."""
    from whyloop.errors import ConfigurationError

    if args.question is not None:
        return
    # A single word may as well be a module, and nobody wants to pay for an answer to its name.
    questions = [word for word in args.tools if word == "-" or len(word.split()) > 1]
    if len(questions) != 1:
        raise ConfigurationError("there is no question: write it before the options, or last and after --")
    args.question = questions[0]
    args.tools.remove(questions[0])


def _question(args: argparse.Namespace) -> str:
    from whyloop.errors import ConfigurationError

    question: str = args.question
    if question == "-":
        if sys.stdin is None:
            raise ConfigurationError("there is no question: stdin is closed")
        question = sys.stdin.read().strip()
    if not question.strip():
        raise ConfigurationError("there is no question")
    return question


def exit_code(state: AgentState) -> int:
    return EXIT_CODES[state.stop_reason or state.status]


def exit_codes() -> str:
    """What the codes mean, for the end of a help text."""
    width = max(map(len, EXIT_CODES))
    lines = [f"  {code:>3}  {reason:<{width}}  {_MEANINGS[reason]}" for reason, code in EXIT_CODES.items()]
    others = {
        FAILED: "the session is not there or runs elsewhere, or its store cannot be used",
        USAGE_ERROR: "it could not start",
        CANNOT_WRITE: "the answer could not be written, as to a full disk",
    }
    lines += [f"  {code:>3}  {'':<{width}}  {words}" for code, words in others.items()]
    return "\n".join(["exit codes:", *lines])
