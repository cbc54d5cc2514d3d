"""The words for "why did it go on, and why did it stop?"."""

from __future__ import annotations

from whyloop.values.approval import Verdict
from whyloop.values.continuation import ContinuationEvaluation, ContinuationOutcome, StopReason
from whyloop.values.execution import AgentStatus
from whyloop.values.state import AgentState
from whyloop.values.step import OpenStep, Step, ToolRun
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
    if steps or state.open_step:
        lines += ["", "Steps"]
        lines += _step_lines(state, steps)
    if state.open_step:
        lines.append(f"  {state.open_step.number:>3}  {describe_open_step(state.open_step)}")
    outcome = state.last_continuation_outcome or (steps[-1].outcome if steps else None)
    if outcome and outcome.evaluations:
        lines += ["", _when_asked(state, steps)]
        lines += evaluation_lines(outcome.evaluations)
    return "\n".join(lines)


def _when_asked(state: AgentState, steps: tuple[Step, ...]) -> str:
    if state.open_step:
        return f"What each rule said in the middle of step {state.open_step.number}"
    return f"What each rule said after step {steps[-1].number}" if steps else "What each rule said"


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
    let_run = [said for said in run.approvals if said.verdict is not Verdict.DENIED]
    decided = "".join(f", {said.verdict} by {shortened(said.by, 40)}" for said in let_run)
    if run.success:
        return f"{name} ok{decided}"
    words = shortened(run.error or "no reason given", 80)
    return f"{name} failed: {words}{decided}" if failed else f"{name} {words}{decided}"


def describe_open_step(step: OpenStep) -> str:
    """What a step has done that is not at its end, and what it waits for."""
    parts = []
    for asked, call in zip(step.tool_calls, step.calls, strict=True):
        name = shortened(asked.name, 64)
        if call.result is not None:
            run = ToolRun(asked.id, asked.name, call.result.error is None, call.result.error)
            parts.append(describe_tool(run, failed=call.result.failure is not None))
        elif call.question is not None:
            parts.append(f"{name} waits for a person")
        elif call.approvals:
            parts.append(f"{name} {call.approvals[-1].verdict} by {shortened(call.approvals[-1].by, 40)}")
        else:
            parts.append(f"{name} started")
    return "; ".join(parts)


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
        return step.interrupted.text
    return "answered" if said else "gave an empty answer"


def _verdict(state: AgentState) -> str:
    taken = counted(state.execution.step_count, "step")
    if state.open_step is not None and state.status is AgentStatus.PAUSED and not state.pending_calls:
        return f"Paused in step {state.open_step.number}. All that waited is decided: resume goes on."
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
    where = f"in step {state.open_step.number}" if state.open_step else f"after {taken}"
    return f"{verb} {where}{why}. {outcome.resolved_by} decided{words}."


def _step_line(step: Step, *, said: bool) -> str:
    tokens = f"{step.usage.total:,} tokens, " if step.usage.total else ""
    line = f"  {step.number:>3}  {describe_step(step, said=said)}  [{tokens}{_duration(step.duration_ms)}]"
    if step.outcome is None:
        return line
    outcome = step.outcome
    verb = "continue" if outcome.should_continue else f"stop ({outcome.stop_reason})"
    policy = outcome.policy_evaluation
    aside = f"; {_reason(policy)}" if policy and policy.criterion != outcome.resolved_by else ""
    return f"{line}  → {verb}, {outcome.resolved_by}{aside}"


def _reason(evaluation: ContinuationEvaluation) -> str:
    return shortened(evaluation.reason, 300).rstrip(".")


def _duration(milliseconds: float) -> str:
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms"
    return f"{milliseconds / 1000:,.1f} s"
