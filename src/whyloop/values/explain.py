"""The words for "why did it go on, and why did it stop?"."""

from __future__ import annotations

from whyloop.values.continuation import ContinuationEvaluation, ContinuationOutcome, StopReason
from whyloop.values.state import AgentState, AgentStatus
from whyloop.values.step import Step, ToolRun
from whyloop.values.text import counted, shortened

MOST_STEPS = 60


def explain_outcome(outcome: ContinuationOutcome) -> str:
    """The decision first, then what every criterion said."""
    lines = [f"{headline(outcome)}."]
    lines += evaluation_lines(outcome.evaluations)
    return "\n".join(lines)


def explain_state(state: AgentState) -> str:
    """Where the run stands and why, one line a step, then what every criterion said last."""
    lines = [_verdict(state)]
    steps = state.execution_steps
    if steps:
        lines += ["", "Steps"]
        lines += _step_lines(state, steps)
    outcome = state.last_continuation_outcome or (steps[-1].outcome if steps else None)
    if outcome and outcome.evaluations:
        lines += [
            "",
            f"What each rule said after step {steps[-1].number}" if steps else "What each rule said",
        ]
        lines += evaluation_lines(outcome.evaluations)
    return "\n".join(lines)


def _step_lines(state: AgentState, steps: tuple[Step, ...]) -> list[str]:
    """One line a step; the middle of a long run is left out."""
    hidden = max(0, len(steps) - MOST_STEPS)
    shown = steps if not hidden else (*steps[: MOST_STEPS // 2], *steps[-(MOST_STEPS // 2) :])
    lines = [_step_line(step, said=any(m.content for m in state.messages_of(step))) for step in shown]
    if hidden:
        lines.insert(MOST_STEPS // 2, f"   …  {counted(hidden, 'step')} more, left out here")
    return lines


def headline(outcome: ContinuationOutcome) -> str:
    """One line: continue or stop, who decided, in which words."""
    evaluation = outcome.resolving_evaluation
    words = f": {_reason(evaluation)}" if evaluation else ", since there is no criterion to ask"
    if outcome.should_continue:
        return f"Continued, decided by {outcome.resolved_by}{words}"
    if outcome.pauses:
        return f"Paused, decided by {outcome.resolved_by}{words}"
    return f"Stopped ({outcome.stop_reason}), decided by {outcome.resolved_by}{words}"


def evaluation_lines(evaluations: tuple[ContinuationEvaluation, ...]) -> list[str]:
    width = max((len(said.criterion) for said in evaluations), default=0)
    return [
        f"  {said.decision.value:<8}{said.criterion:<{width}}  {shortened(said.reason, 300)}"
        for said in evaluations
    ]


def describe_tool(run: ToolRun, *, failed: bool) -> str:
    """One tool call and how it went: "search_entities failed: no such index"."""
    name = shortened(run.name, 64)
    decided = "".join(f", {said.verdict} by {shortened(said.by, 40)}" for said in run.approvals)
    if run.success:
        return f"{name} ok{decided}"
    words = shortened(run.error or "no reason given", 80)
    return f"{name} failed: {words}{decided}" if failed else f"{name} {words}{decided}"


def describe_step(step: Step, *, said: bool = True) -> str:
    """What the step did, without its decision; `said` is whether the model used words."""
    notes = step.source.notes if step.source else ()
    return "; ".join([*(shortened(note, 200) for note in notes), _deeds(step, said=said)])


def _deeds(step: Step, *, said: bool) -> str:
    if step.model_failure is not None:
        return f"the model call failed: {shortened(step.model_failure.message, 80)}"
    if step.tool_calls:
        failed = {failure.tool_call_id for failure in step.failures}
        return "; ".join(describe_tool(run, failed=run.id in failed) for run in step.tool_calls)
    if step.interrupted is not None:
        return shortened(step.interrupted, 80)
    return "answered" if said else "gave an empty answer"


def _verdict(state: AgentState) -> str:
    taken = counted(state.execution.step_count, "step")
    match state.status:
        case AgentStatus.PENDING:
            return f"Nothing has been decided yet: the run is to start, after {taken}."
        case AgentStatus.IN_PROGRESS:
            return f"In progress, after {taken}."
        case AgentStatus.PAUSED:
            verb = "Paused"
        case AgentStatus.COMPLETED:
            verb = "Completed"
        case AgentStatus.STOPPED:
            verb = "Stopped"
        case AgentStatus.FAILED:
            verb = "Failed"
    outcome = state.last_continuation_outcome
    if outcome is None:
        return f"{verb} after {taken}."
    evaluation = outcome.resolving_evaluation
    words = f": {_reason(evaluation)}" if evaluation else ""
    named = outcome.stop_reason not in (None, StopReason.COMPLETED)
    why = f" ({outcome.stop_reason})" if named else ""
    return f"{verb} after {taken}{why}. {outcome.resolved_by} decided{words}."


def _step_line(step: Step, *, said: bool) -> str:
    tokens = f"{step.usage.total:,} tokens, " if step.usage.total else ""
    line = f"  {step.number:>3}  {describe_step(step, said=said)}  [{tokens}{_duration(step.duration_ms)}]"
    if step.outcome is None:
        return line
    outcome = step.outcome
    verb = "continue" if outcome.should_continue else f"stop ({outcome.stop_reason})"
    policy = outcome.failure_evaluation
    aside = f"; {_reason(policy)}" if policy and policy.criterion != outcome.resolved_by else ""
    return f"{line}  → {verb}, {outcome.resolved_by}{aside}"


def _reason(evaluation: ContinuationEvaluation) -> str:
    return shortened(evaluation.reason, 300).rstrip(".")


def _duration(milliseconds: float) -> str:
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms"
    return f"{milliseconds / 1000:,.1f} s"
