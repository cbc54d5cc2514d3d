"""`whyloop why`: why a session ended, or what every rule said after one of its steps."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from whyloop.cli.session_parts.options import add_json, add_session, add_store

if TYPE_CHECKING:
    from whyloop.stores.store import Store
    from whyloop.values.explanation import Explanation
    from whyloop.values.state import AgentState


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Make the command known to the parser; nothing that it needs is loaded yet."""
    words = "read why a session ended, or went on after a step"
    parser = commands.add_parser("why", help=words, description=f"{words[0].upper()}{words[1:]}.")
    add_session(parser)
    add_store(parser)
    parser.add_argument(
        "--step", metavar="N", type=int, help="what every rule said after this step, counted from the first"
    )
    form = parser.add_mutually_exclusive_group()
    add_json(form)
    form.add_argument("--markdown", action="store_true", help="print it as Markdown, to paste into a ticket")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Explain the session and return the exit code."""
    from whyloop.cli.session_parts.carry_out import carry_out

    return carry_out("why", args, lambda store: _why(store, args))


async def _why(store: Store, args: argparse.Namespace) -> int:
    from whyloop.cli.renderer import next_commands, show_explanation
    from whyloop.cli.session_parts.find import loaded
    from whyloop.cli.terminal import write_json, write_lines

    summary, state = await loaded(store, args.id)
    explanation = _explanation(state, args.step)
    if args.json:
        write_json(_document(state, explanation, args.step))
    elif args.markdown:
        write_lines([explanation.to_markdown()])
    elif args.step is not None:
        show_explanation(explanation)
    else:
        show_explanation(explanation, next_commands(args, state, args.id, runner=summary.runner))
    return 0


def _explanation(state: AgentState, step: int | None) -> Explanation:
    from whyloop.values.explanation import explanation_of_step

    return state.explanation if step is None else explanation_of_step(state, step)


def _document(state: AgentState, explanation: Explanation, step: int | None) -> dict[str, Any]:
    from whyloop.wire.document import document, step_document

    if step is not None:
        named = {"agent_id": state.agent_id, "step": step}
        return {
            **named,
            **step_document(state, state.steps[step - 1]),
            "explanation": explanation.to_dict(),
        }
    wanted = ("agent_id", "status", "stop_reason", "resolved_by", "pending_calls")
    outcome = state.last_continuation_outcome
    return {
        **{key: value for key, value in document(state, ()).items() if key in wanted},
        "outcome": outcome.to_dict() if outcome else None,
        "explanation": explanation.to_dict(),
    }
