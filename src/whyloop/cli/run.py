"""`whyloop run`: one question to a real model, from the shell."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whyloop.cli.run_parts.telling import Telling
    from whyloop.loop.agent import Agent
    from whyloop.values.state import AgentState

MODEL_VARIABLE = "WHYLOOP_MODEL"
USAGE_ERROR = 2
CANNOT_WRITE = 74  # EX_IOERR, as other programs have it.
SECONDS_A_REQUEST = 120.0  # Or as long as the whole run may take, if that is longer.
# One code for each stop reason, so that a script can tell them apart.
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
}


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Make the command known to the parser; nothing that it needs is loaded yet."""
    words = "ask a real model, with tools, and read why it ended"
    parser = commands.add_parser(
        "run",
        help=words,
        description=f"{words[0].upper()}{words[1:]}. The answer goes to stdout, everything else to stderr.",
        epilog=_codes(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    # Not required here, since --tools takes the words after it, and the question may be among them.
    parser.add_argument("question", metavar="QUESTION", nargs="?", help="what to ask; - reads it from stdin")
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
    parser.add_argument("--json", action="store_true", help="print the trace for machines, not the answer")
    parser.add_argument("--quiet", action="store_true", help="no words but the answer, unless it went wrong")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Ask what was asked for and return the exit code."""
    import asyncio

    from whyloop.cli.run_parts.telling import CannotWrite, complain
    from whyloop.errors import ConfigurationError

    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (whoever flushes it at the end finds something)
        complain("whyloop run: the answer cannot be written: stdout is closed")
        return CANNOT_WRITE
    try:
        _take_question_back(args)
        agent = _agent(args)
        question = _question(args)
    except ConfigurationError as error:
        complain(f"whyloop run: {error}")
        return USAGE_ERROR
    try:
        state = asyncio.run(_run(agent, question, args))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    except CannotWrite as error:
        complain(f"whyloop run: the answer cannot be written: {error}")
        return CANNOT_WRITE
    return EXIT_CODES[str(state.stop_reason)]


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


def _agent(args: argparse.Namespace) -> Agent:
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


async def _run(agent: Agent, question: str, args: argparse.Namespace) -> AgentState:
    """The run, told as it happens, and the explanation at its end."""
    import asyncio

    from whyloop.cli.run_parts.telling import Telling

    work = asyncio.ensure_future(agent.run(question))
    whole = args.retry and not sys.stdout.isatty()  # What has been piped cannot be taken back.
    telling = Telling(answer=not args.json, quiet=args.quiet, unheard=work.cancel, whole=whole)
    agent.subscribe(telling)
    _listen_to_ctrl_c(agent, work, telling)
    try:
        state = await work
    except asyncio.CancelledError:
        if telling.failure:
            raise telling.failure from None
        raise
    if telling.failure:
        raise telling.failure
    _tell_the_end(state, telling, args)
    return state


def _listen_to_ctrl_c(agent: Agent, work: Any, telling: Telling) -> None:
    """The first one asks the agent to stop where it does no harm, the second one does not ask."""
    import asyncio
    import signal
    from contextlib import suppress

    pressed = 0

    def stop() -> None:
        nonlocal pressed
        pressed += 1
        if pressed == 1 and agent.request_stop("Ctrl-C was pressed"):
            telling.aside("  stopping after this step; Ctrl-C again to end it at once")
        else:
            work.cancel()

    # Where there are no such handlers, Ctrl-C ends the program as it ends any other.
    with suppress(NotImplementedError, RuntimeError, ValueError):
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop)


def _tell_the_end(state: AgentState, telling: Telling, args: argparse.Namespace) -> None:
    from whyloop.cli.demo_parts.words import safe

    if args.json:
        import json

        from whyloop.cli.document import document
        from whyloop.cli.run_parts.telling import write

        write(json.dumps(document(state), indent=2) + "\n")
    explanation = safe(state.explain())
    if not args.quiet:
        telling.aside(f"\n{explanation}")
    elif state.stop_reason != "completed":
        telling.aside(explanation.split("\n", 1)[0])


def _codes() -> str:
    width = max(map(len, EXIT_CODES))
    lines = [f"  {code:>3}  {reason:<{width}}  {_MEANINGS[reason]}" for reason, code in EXIT_CODES.items()]
    others = {
        USAGE_ERROR: "it could not start",
        CANNOT_WRITE: "the answer could not be written, as to a full disk",
    }
    lines += [f"  {code:>3}  {'':<{width}}  {words}" for code, words in others.items()]
    return "\n".join(["exit codes:", *lines])
