"""`whyloop why`: why a session ended, or what every rule said after one of its steps."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from whyloop.cli.session_parts.options import add_json, add_session, add_store

if TYPE_CHECKING:
    from whyloop.stores.records import Summary
    from whyloop.stores.store import Store
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
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Say why and return the exit code."""
    from whyloop.cli.session_parts.carry_out import carry_out

    return carry_out("why", args, lambda store: _why(store, args))


async def _why(store: Store, args: argparse.Namespace) -> int:
    from whyloop.cli.session_parts.find import loaded
    from whyloop.cli.session_parts.screen import write_json

    summary, state = await loaded(store, args.id)
    if args.step is not None:
        _refuse_step(state, args.step)
    if args.json:
        write_json(_document(state, args.step))
    else:
        _tell(state, summary, args)
    return 0


def _refuse_step(state: AgentState, number: int) -> None:
    from whyloop.errors import ConfigurationError
    from whyloop.values.text import counted

    if not 1 <= number <= state.step_count:
        has = counted(state.step_count, "step")
        raise ConfigurationError(f"there is no step {number}: the session has {has}, counted from 1")


def _document(state: AgentState, number: int | None) -> dict[str, Any]:
    from whyloop.wire.document import document, step_document

    if number is not None:
        return {"agent_id": state.agent_id, "step": number, **step_document(state, state.steps[number - 1])}
    wanted = ("agent_id", "status", "stop_reason", "resolved_by", "pending_calls")
    outcome = state.last_continuation_outcome
    return {
        **{key: value for key, value in document(state).items() if key in wanted},
        "outcome": outcome.to_dict() if outcome else None,
        "explanation": state.explain(),
    }


def _tell(state: AgentState, summary: Summary, args: argparse.Namespace) -> None:
    from whyloop.cli.session_parts.advice import advice
    from whyloop.cli.session_parts.reasons import show_reasons, state_reasons, step_reasons

    if args.step is not None:
        show_reasons(step_reasons(state, args.step))
    else:
        show_reasons(state_reasons(state), advice(args, state, args.id, runner=summary.runner))
