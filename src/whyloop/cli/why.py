"""`whyloop why`: why a session ended, or continued after one of its steps."""

from __future__ import annotations

import argparse
from typing import Any

from whyloop.cli.renderer import next_commands, show_explanation
from whyloop.cli.store_access import load_session
from whyloop.cli.terminal import write_json, write_lines
from whyloop.stores.store import Store
from whyloop.values.explanation import Explanation, explanation_of_step
from whyloop.values.state import AgentState
from whyloop.wire.document import document, step_document


async def why(store: Store, args: argparse.Namespace) -> int:
    """Explain a session, or one of its steps."""
    summary, state = await load_session(store, args.id)
    explanation = state.explanation if args.step is None else explanation_of_step(state, args.step)
    if args.json:
        write_json(_document(state, explanation, args.step))
    elif args.markdown:
        write_lines([explanation.to_markdown()])
    elif args.step is not None:
        show_explanation(explanation)
    else:
        show_explanation(explanation, next_commands(args, state, args.id, runner=summary.runner))
    return 0


def _document(state: AgentState, explanation: Explanation, step: int | None) -> dict[str, Any]:
    if step is not None:
        return {
            "agent_id": state.agent_id,
            "step": step,
            **step_document(state, state.steps[step - 1]),
            "explanation": explanation.to_dict(),
        }
    wanted = ("agent_id", "status", "stop_reason", "resolved_by", "reason", "pending_calls")
    outcome = state.last_continuation_outcome
    return {
        **{key: value for key, value in document(state, ()).items() if key in wanted},
        "outcome": outcome.to_dict() if outcome else None,
        "explanation": explanation.to_dict(),
    }
