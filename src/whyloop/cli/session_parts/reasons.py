"""Why a session stands where it does, or why it went on after a step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from whyloop.cli.demo_parts.words import brief, safe
from whyloop.cli.session_parts.conversation import approval_words
from whyloop.cli.session_parts.listing import STYLES
from whyloop.cli.session_parts.screen import print_notes, terminal, watched, write_lines
from whyloop.values.approval import Approval
from whyloop.values.continuation import ContinuationOutcome
from whyloop.values.explain import describe_step, evaluation_lines, headline
from whyloop.values.state import AgentState, AgentStatus

A_NUMBER = 7  # So wide is the number of a step, as an explanation has it.


class Reasons(NamedTuple):
    """The verdict, the steps that led to it, what people decided on the way, and what the rules said."""

    verdict: str
    style: str
    steps: list[str]
    people: list[str]
    rules_after: str
    outcome: ContinuationOutcome | None


def state_reasons(state: AgentState) -> Reasons:
    """Why the last execution stands where it does."""
    lines = safe(state.explain()).split("\n")
    steps = lines[lines.index("Steps") + 1 :] if "Steps" in lines else []
    if "" in steps:
        steps = steps[: steps.index("")]
    runs = [(run.name, run.id, run.approvals) for step in state.execution_steps for run in step.tool_calls]
    if state.open_step is not None:
        asked = state.open_step.message.tool_calls
        opened = zip(asked, state.open_step.calls, strict=True)
        runs += [(call.name, call.id, how.approvals) for call, how in opened]
    after = next((line for line in lines if line.startswith("What each rule said")), "")
    outcome = state.last_continuation_outcome
    if outcome is None and state.execution_steps:
        outcome = state.execution_steps[-1].outcome
    return Reasons(lines[0], STYLES[state.status], steps, _people(runs), after, outcome)


def step_reasons(state: AgentState, number: int) -> Reasons:
    """Why it went on after a step of the session, or did not."""
    step = state.steps[number - 1]
    said = any(message.content for message in state.messages_of(step))
    outcome = step.outcome
    verdict = f"{headline(outcome)}." if outcome else "Nothing was decided after this step."
    style = STYLES[AgentStatus.after(outcome)] if outcome else ""
    deeds = f"  {number:>3}  {describe_step(step, said=said)}"
    people = _people((run.name, run.id, run.approvals) for run in step.tool_calls)
    return Reasons(
        safe(verdict), style, [safe(deeds)], people, f"What each rule said after step {number}", outcome
    )


def show_reasons(reasons: Reasons, notes: Sequence[str] = ()) -> None:
    """A table for whoever watches, plain lines for a pipe."""
    if watched():
        _draw(reasons, notes)
        return
    lines = [reasons.verdict]
    lines += ["", "Steps", *reasons.steps] if reasons.steps else []
    lines += ["", "Decided by people", *(f"  {line}" for line in reasons.people)] if reasons.people else []
    if reasons.outcome and reasons.outcome.evaluations:
        lines += ["", reasons.rules_after, *map(safe, evaluation_lines(reasons.outcome.evaluations))]
    write_lines([*lines, *(["", *notes] if notes else [])])


def _people(calls: Iterable[tuple[str, str, tuple[Approval, ...]]]) -> list[str]:
    return [
        f"{brief(name)} ({brief(call_id)}) {approval_words(approval)}"
        for name, call_id, approvals in calls
        for approval in approvals
    ]


def _draw(reasons: Reasons, notes: Sequence[str]) -> None:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    from whyloop.cli.session_parts.rules_table import rules_table

    console = terminal()
    console.print(Text(reasons.verdict, style=f"bold {reasons.style}"))
    if reasons.steps:
        grid = Table.grid()
        grid.add_column(width=A_NUMBER, no_wrap=True)
        grid.add_column(overflow="fold")
        for line in reasons.steps:
            grid.add_row(Text(line[:A_NUMBER], style="dim"), Text(line[A_NUMBER:]))
        console.print(Padding(Text("Steps", style="bold"), (1, 0, 0, 0)), grid, sep="\n")
    if reasons.people:
        console.print(Padding(Text("Decided by people", style="bold"), (1, 0, 0, 0)))
        for line in reasons.people:
            console.print(Padding(Text(line), (0, 0, 0, 2)))
    if reasons.outcome and reasons.outcome.evaluations:
        console.print(Padding(Text(reasons.rules_after, style="bold"), (1, 0, 0, 0)))
        console.print(Padding(rules_table(reasons.outcome), (0, 0, 0, 2)))
    print_notes(console, notes)
