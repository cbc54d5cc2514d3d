"""An explanation as plain text, as Markdown and as HTML."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from html import escape

from whyloop.values.call_explanation import CallStatus
from whyloop.values.continuation import ContinuationEvaluation, ContinuationOutcome
from whyloop.values.explanation import (
    REASON_LENGTH,
    Explanation,
    StepExplanation,
    ends_of,
    outcome_headline,
)
from whyloop.values.next_action import NAME_LENGTH, NextAction
from whyloop.values.price import dollars
from whyloop.values.state import AgentStatus
from whyloop.values.text import counted, shortened

MOST_STEPS = 60
"""The number of steps in a text; the middle of a longer run is omitted."""

PARTIAL = "This was recorded without the agent, so its other rules were not asked."
"""The remark about an outcome that has the evaluation of one rule alone."""

# The column of the cost, which is omitted if no cost is known.
_COST = 3
_MARKUP = re.compile(r"[\\`*_\[\]<>|~#&!$]")
_BACKTICKS = re.compile(r"`+")


def text_of(explanation: Explanation) -> str:
    """Return an explanation as text.

    It has the headline, a line for each step, the decision of each rule, and what would let the run continue.
    """
    lines = [explanation.headline]
    lines += section(steps_title(explanation), step_lines(explanation.steps))
    lines += section("Repeated calls", [f"  {call.text}" for call in explanation.repeated_calls])
    lines += evaluations_section(explanation)
    lines += section("To continue", [f"  {action}" for action in explanation.next_actions])
    return "\n".join(lines)


def text_of_outcome(outcome: ContinuationOutcome) -> str:
    """Return the decision, then what each rule decided."""
    lines = [f"{outcome_headline(outcome)}.", *evaluation_lines(outcome.evaluations)]
    return "\n".join([*lines, f"  {PARTIAL}"] if outcome.partial else lines)


def markdown_of(explanation: Explanation) -> str:
    """Return an explanation in Markdown: a paragraph, two tables and a list."""
    lines = [f"**{_escaped(explanation.headline)}**"]
    if explanation.steps:
        lines += ["", *_table(_steps_table(explanation))]
        if explanation.known_cost is not None:
            lines += ["", f"{_escaped(cost_text(explanation))}."]
    if explanation.repeated_calls:
        lines += ["", "Repeated calls:", "", *[f"- {_escaped(c.text)}" for c in explanation.repeated_calls]]
    if explanation.evaluations:
        lines += ["", *_table(_evaluations_table(explanation))]
    if explanation.partial:
        lines += ["", PARTIAL]
    if explanation.next_actions:
        lines += ["", "To continue:", "", *map(_action_item, explanation.next_actions)]
    return "\n".join(lines)


def html_of(explanation: Explanation) -> str:
    """Return an explanation as HTML, for notebooks. All texts are escaped."""
    parts = [f"<p><strong>{escape(explanation.headline)}</strong></p>"]
    if explanation.steps:
        parts.append(_html_table(_steps_table(explanation)))
        if explanation.known_cost is not None:
            parts.append(f"<p>{escape(cost_text(explanation))}.</p>")
    if explanation.repeated_calls:
        parts += ["<p>Repeated calls:</p>", _html_list([call.text for call in explanation.repeated_calls])]
    if explanation.evaluations:
        parts.append(_html_table(_evaluations_table(explanation)))
    if explanation.partial:
        parts.append(f"<p>{PARTIAL}</p>")
    if explanation.next_actions:
        parts += ["<p>To continue:</p>", _html_list([str(action) for action in explanation.next_actions])]
    return "\n".join(["<div>", *parts, "</div>"])


# The pieces, for other renderers


def section(title: str, lines: Sequence[str]) -> list[str]:
    """Return the lines under their title and a blank line; nothing if there are none."""
    return ["", title, *lines] if lines else []


def steps_title(explanation: Explanation) -> str:
    """Return the title of the steps, with their cost where one is known."""
    cost = cost_text(explanation)
    return f"Steps, {cost[0].lower()}{cost[1:]}" if cost else "Steps"


def cost_text(explanation: Explanation) -> str:
    """Return the cost of the steps: "Cost $0.0123"; empty if no cost is known."""
    if explanation.known_cost is None:
        return ""
    if explanation.cost is not None:
        return f"Cost {dollars(explanation.cost)}"
    return f"Cost unknown, at least {dollars(explanation.known_cost)}"


def step_lines(steps: Sequence[StepExplanation]) -> list[str]:
    """Return a line for each step, and one for those that are omitted."""
    rows = step_rows(steps)
    width = max((len(number) for number, _ in rows), default=0)
    return [f"  {number:>{max(3, width)}}  {text}" for number, text in rows]


def step_rows(steps: Sequence[StepExplanation]) -> list[tuple[str, str]]:
    """Return the same in two columns: the number, and what happened."""
    return [
        ("…", _left_out(step)) if isinstance(step, int) else (str(step.number), step_text(step))
        for step in _shown(steps)
    ]


def step_text(step: StepExplanation) -> str:
    """Return what a step did, its tokens and time, and what was decided after it."""
    if step.is_open:
        return step.summary
    line = f"{step.summary}  [{_amounts(step)}]"
    if step.verdict is None:
        return line
    return f"{line}  → {step.verdict}, {_name(step.resolved_by)}{_remarks(step)}"


def _amounts(step: StepExplanation) -> str:
    """Return the tokens, cost and time of a step, then which are unknown."""
    known = []
    if step.tokens:
        known.append(f"{'at least ' if 'tokens' in step.unknown else ''}{step.tokens:,} tokens")
    if step.cost is not None:
        known.append(dollars(step.cost))
    if "time" not in step.unknown:
        known.append(duration(step.duration_ms))
    unknown = [name for name in step.unknown if name != "tokens" or not step.tokens]
    return ", ".join([*known, f"{' and '.join(unknown)} unknown"] if unknown else known)


def _remarks(step: StepExplanation) -> str:
    """Return what the other rules did after a step that one rule decided."""
    return "".join([f"; {remark}" for remark in (step.policy, *step.feedback) if remark])


def evaluations_title(explanation: Explanation) -> str:
    """Return the title of the evaluations."""
    return f"What each rule decided {when_asked(explanation)}".rstrip()


def evaluations_section(explanation: Explanation) -> list[str]:
    """Return the lines about what each rule decided, or that only one was asked."""
    lines = evaluation_lines(explanation.evaluations)
    return section(evaluations_title(explanation), [*lines, f"  {PARTIAL}"] if explanation.partial else lines)


def when_asked(explanation: Explanation) -> str:
    """Return when the rules were evaluated: "after step 3"; empty before the first."""
    if not explanation.steps:
        return ""
    last = explanation.steps[-1]
    if not last.is_open:
        return f"after step {last.number}"
    decided = ", before people decided" if _has_decisions(explanation) else ""
    return f"in the middle of step {last.number}{decided}"


def _has_decisions(explanation: Explanation) -> bool:
    """Return whether people have decided since the run paused."""
    calls = explanation.steps[-1].calls
    approved = any(call.status is CallStatus.NOT_STARTED and call.approvals for call in calls)
    is_answered = approved or not any(call.status is CallStatus.WAITING for call in calls)
    return explanation.status is AgentStatus.PAUSED and is_answered


def evaluation_lines(evaluations: Sequence[ContinuationEvaluation]) -> list[str]:
    """Return a line for each rule: its decision, its name, its reason."""
    names = [_name(evaluation.criterion) for evaluation in evaluations]
    width = max(map(len, names), default=0)
    return [
        f"  {evaluation.decision.value:<8}{name:<{width}}  {shortened(evaluation.reason, REASON_LENGTH)}"
        for name, evaluation in zip(names, evaluations, strict=True)
    ]


def duration(milliseconds: float) -> str:
    """Return a time in milliseconds or seconds."""
    return f"{milliseconds:.0f} ms" if milliseconds < 1000 else f"{milliseconds / 1000:,.1f} s"


def _shown(steps: Sequence[StepExplanation]) -> Iterator[StepExplanation | int]:
    """Yield the steps to show, and in between the number of omitted ones."""
    before = steps[0].number - 1 if steps else 0
    for step in ends_of(steps, MOST_STEPS):
        if (hidden := step.number - before - 1) > 0:
            yield hidden
        yield step
        before = step.number


def _left_out(steps: int) -> str:
    return f"{counted(steps, 'step')} more, left out here"


def _name(rule: str | None) -> str:
    return shortened(rule or "", NAME_LENGTH)


# Tables


def _steps_table(explanation: Explanation) -> list[list[str]]:
    """Return the header and rows of the table; omit an unknown cost."""
    head = ["step", "what it did", "tokens", "cost", "time", "then", "decided by"]
    rows = [head, *map(_step_row, _shown(explanation.steps))]
    if explanation.known_cost is None:
        return [[*cells[:_COST], *cells[_COST + 1 :]] for cells in rows]
    return rows


def _step_row(step: StepExplanation | int) -> list[str]:
    if isinstance(step, int):
        return ["…", _left_out(step), "", "", "", "", ""]
    return [
        str(step.number),
        step.summary,
        f"{step.tokens:,}" if step.tokens else "unknown" if "tokens" in step.unknown else "",
        "" if step.cost is None else dollars(step.cost),
        "" if step.is_open else "unknown" if "time" in step.unknown else duration(step.duration_ms),
        step.verdict or "",
        f"{_name(step.resolved_by)}{_remarks(step)}",
    ]


def _evaluations_table(explanation: Explanation) -> list[list[str]]:
    head = ["decision", "rule", f"reason, {when}" if (when := when_asked(explanation)) else "reason"]
    return [
        head,
        *(
            [each.decision.value, _name(each.criterion), shortened(each.reason, REASON_LENGTH)]
            for each in explanation.evaluations
        ),
    ]


# HTML


def _html_table(rows: Sequence[Sequence[str]]) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"

    body = "".join(row(cells, "td") for cells in rows[1:])
    return f"<table><thead>{row(rows[0], 'th')}</thead><tbody>{body}</tbody></table>"


def _html_list(texts: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>"


# Markdown


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    return [
        _row(rows[0], str),
        _row(["---"] * len(rows[0]), str),
        *[_row(cells, _escaped) for cells in rows[1:]],
    ]


def _row(cells: Sequence[str], text_of_cell: Callable[[str], str]) -> str:
    return f"| {' | '.join(map(text_of_cell, cells))} |"


def _action_item(action: NextAction) -> str:
    return f"- {_escaped(action.text)}" + (f": {_code(action.code)}" if action.code else "")


def _escaped(text: str) -> str:
    """Return the text with every character escaped that could be markup."""
    return _MARKUP.sub(r"\\\g<0>", text)


def _code(text: str) -> str:
    """Return the text as code, fenced so that no backtick in it ends the code."""
    longest = max(map(len, _BACKTICKS.findall(text)), default=0)
    if not longest:
        return f"`{text}`"
    fence = "`" * (longest + 1)
    return f"{fence} {text} {fence}"
