"""`whyloop what-if`: recorded runs, judged under other rules."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from whyloop.cli.agents import find_rules
from whyloop.cli.command import ERROR_POLICIES
from whyloop.cli.formats import span_text
from whyloop.cli.renderer import show_explanation, table_lines
from whyloop.cli.store_access import filters_of, find_session
from whyloop.cli.terminal import (
    MOST_LISTED,
    USAGE_ERROR,
    CommandError,
    progress,
    write,
    write_json,
    write_lines,
    write_problems,
)
from whyloop.replay import Amounts, Ending, ExecutionReplay, Recording, Rules, RunProblem, judge, read_runs
from whyloop.replay.judge import Rule
from whyloop.rules.criteria import ContinuationCriteria
from whyloop.rules.criterion import as_criterion, criterion_name
from whyloop.rules.error_policy import ErrorPolicy
from whyloop.rules.limits import (
    CostLimit,
    CumulativeExecutionTimeLimit,
    ExecutionTimeLimit,
    Limit,
    StepsLimit,
    TimeLimit,
    TokenUsageLimit,
)
from whyloop.stores.store import Store
from whyloop.values.price import dollars
from whyloop.values.state import AgentStatus
from whyloop.values.text import counted, shortened


async def what_if(store: Store, args: argparse.Namespace) -> int:
    """Show how a session would have ended under other rules, or how many of all would."""
    rules = rules_of(args)
    if args.all:
        if args.id is not None:
            raise CommandError("name a session or give --all, not both", USAGE_ERROR)
        return await _all_sessions(store, args, rules)
    if any(filters_of(args).values()):
        raise CommandError("the conditions on sessions are for --all: add it, or leave them out", USAGE_ERROR)
    if args.id is None:
        raise CommandError("name a session by its id, or give --all for every session", USAGE_ERROR)
    recording = await Recording.read(store, (await find_session(store, args.id)).agent_id)
    replay = judge(recording, *rules, replace_all=args.replace_all, grants=not args.no_grants)
    if args.json:
        write_json({"rules": _names(rules), **replay.to_dict()})
        return 0
    several = len(replay.executions) > 1
    for number, execution in enumerate(replay.executions, 1):
        if several:
            write(f"{'' if number == 1 else chr(10)}Query {number} of {len(replay.executions)}\n")
        write_lines(_summary_lines(execution))
        if not several or execution.differs:
            write("\n")
            show_explanation(execution.explanation)
    return 0


def rules_of(args: argparse.Namespace) -> list[Rule]:
    """Return the rules that the command line names."""
    rules: list[Rule] = []
    limits = (
        (StepsLimit, args.max_steps),
        (TokenUsageLimit, args.max_tokens),
        (ExecutionTimeLimit, args.timeout),
        (CumulativeExecutionTimeLimit, args.cumulative_timeout),
    )
    rules += [limit(value) for limit, value in limits if value is not None]
    if args.max_cost is not None:
        rules.append(CostLimit(args.max_cost, unknown="allow"))
    if args.error_policy is not None:
        policy: ErrorPolicy = getattr(ErrorPolicy, args.error_policy)()
        rules.append(policy)
    for path in args.criteria:
        rules += find_rules(path)
    if not rules:
        raise CommandError(
            "name a rule to judge by, such as --max-steps 10, --error-policy retry_all or --criteria "
            "package.module:name",
            USAGE_ERROR,
        )
    return rules


def _names(rules: Sequence[Rule]) -> list[str]:
    return [shortened(rule_text(rule), 200) for rule in rules]


def rule_text(rule: Rule) -> str:
    """Return the name of a rule for people, with the number of a limit."""
    if isinstance(rule, Limit):
        return repr(rule)
    if isinstance(rule, ErrorPolicy):
        presets = [name for name in ERROR_POLICIES if getattr(ErrorPolicy, name)() == rule]
        return f"ErrorPolicy.{presets[0]}()" if presets else repr(rule)
    if isinstance(rule, ContinuationCriteria):
        return ", ".join(map(rule_text, rule.criteria))
    return criterion_name(as_criterion(rule))


# One session


def _summary_lines(execution: ExecutionReplay) -> list[str]:
    lines = [f"Recorded  {_end_text(execution.recorded_ending)}"]
    if execution.beyond:
        lines.append("What if   it would have continued past the recording, so its end is not known")
    else:
        lines.append(f"What if   {_end_text(execution.ending)}{' (assumed)' if execution.assumed else ''}")
        lines.append(f"Saved     {amounts_text(execution.saved)}")
    if execution.assumed_from is not None and not (execution.assumed or execution.beyond):
        lines.append("Assumed   an earlier wrap-up would have used as much as the recorded one")
    elif execution.assumed_from is not None:
        lines.append(
            f"Assumed   from step {execution.assumed_from} on: the rules would have changed what the model "
            "received"
        )
    return lines


def _end_text(ending: Ending) -> str:
    if ending.stopped_at is None:
        return f"{ending.status}"
    reason = f": {shortened(ending.reason, 200)}" if ending.reason else ""
    return f"{ending.status} at step {ending.stopped_at} ({ending.stop_reason}), {ending.resolved_by}{reason}"


def amounts_text(amounts: Amounts) -> str:
    """Return amounts on one line: "3 steps, 300 tokens, 4.2 s, $0.04"."""
    if amounts == Amounts():
        return "nothing"
    tokens = "unknown tokens" if amounts.tokens is None else counted(amounts.tokens, "token")
    cost = "cost unknown" if amounts.cost is None else dollars(amounts.cost)
    seconds = "time unknown" if amounts.seconds is None else span_text(amounts.seconds)
    return ", ".join([counted(amounts.steps, "step"), tokens, seconds, cost])


# All sessions


class Group(Struct):
    """The runs that one rule would have ended differently than recorded."""

    resolved_by: str
    stop_reason: str
    runs: int = 0
    completed: int = 0
    assumed: int = 0
    saved: Amounts = Amounts()
    unknown_tokens: int = 0
    unknown_time: int = 0
    unknown_cost: int = 0

    def add(self, execution: ExecutionReplay) -> None:
        """Count one more run."""
        saved = execution.saved
        self.runs += 1
        self.completed += execution.recorded.status is AgentStatus.COMPLETED
        self.assumed += execution.assumed
        self.unknown_tokens += saved.tokens is None
        self.unknown_time += saved.seconds is None
        self.unknown_cost += saved.cost is None
        self.saved += saved.known


class Report:
    """The findings in all runs so far, in bounded memory."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        kinds = {"tokens": TokenUsageLimit, "seconds": TimeLimit, "cost": CostLimit}
        self.limited = [
            amount for amount, kind in kinds.items() if any(isinstance(rule, kind) for rule in rules)
        ]
        self.sessions = self.runs = self.different = self.beyond = self.cut_completed = self.unknown = 0
        self.groups: dict[tuple[str, str], Group] = {}
        self.cut: list[dict[str, Any]] = []
        self.problems: list[RunProblem] = []

    def add(self, agent_id: str, executions: Sequence[ExecutionReplay], *, keep_all: bool) -> None:
        """Count the executions of one session."""
        self.sessions += 1
        self.runs += len(executions)
        for number, execution in enumerate(executions, 1):
            if not execution.differs:
                used = execution.used
                self.unknown += any(getattr(used, amount) is None for amount in self.limited)
                continue
            self.different += 1
            if execution.beyond:
                self.beyond += 1
                continue
            end = execution.ending
            key = (end.resolved_by or "", str(end.stop_reason or end.status))
            self.groups.setdefault(key, Group(*key)).add(execution)
            if execution.recorded.status is AgentStatus.COMPLETED and execution.is_cut:
                self.cut_completed += 1
                if keep_all or len(self.cut) < MOST_LISTED:
                    self.cut.append(_cut(agent_id, number, execution))


def _cut(agent_id: str, number: int, execution: ExecutionReplay) -> dict[str, Any]:
    end = execution.ending
    return {
        "agent_id": agent_id,
        "query": number,
        "execution_id": execution.execution_id,
        "steps": execution.recorded.execution.step_count,
        "stopped_at": end.stopped_at,
        "stop_reason": end.stop_reason,
        "resolved_by": end.resolved_by,
        "reason": shortened(end.reason, 200),
        "saved": execution.saved.to_dict(),
    }


async def _all_sessions(store: Store, args: argparse.Namespace, rules: list[Rule]) -> int:
    judging, report = Rules(*rules, replace_all=args.replace_all, strict=True), Report(rules)
    with progress("judged") as advance:
        async for found in read_runs(store, filters_of(args)):
            advance()
            if isinstance(found, RunProblem):
                report.problems.append(found)
                continue
            try:
                replay = judging.judge(found, grants=not args.no_grants)
            except Exception as error:  # An error in one run must not affect the others.
                report.problems.append(RunProblem.of(found.agent_id, error))
                continue
            report.add(found.agent_id, replay.executions, keep_all=args.json)
    if args.json:
        write_json(_document(report, rules))
    else:
        write_lines(_report_lines(report, rules))
        write_problems(report.problems)
    return 0


def _document(report: Report, rules: list[Rule]) -> dict[str, Any]:
    return {
        "rules": _names(rules),
        "sessions": report.sessions,
        "runs": report.runs,
        "different": report.different,
        "beyond": report.beyond,
        "unknown": report.unknown,
        "completed_runs_cut": report.cut_completed,
        "groups": [{**asdict(group), "saved": group.saved.to_dict()} for group in _sorted(report)],
        "cut": report.cut,
        "problems": [asdict(each) for each in report.problems],
    }


def _sorted(report: Report) -> list[Group]:
    return sorted(report.groups.values(), key=lambda group: (-group.runs, group.resolved_by))


def _report_lines(report: Report, rules: list[Rule]) -> list[str]:
    named = ", ".join(_names(rules))
    lines = [
        f"Judged {counted(report.runs, 'run')} of {counted(report.sessions, 'session')} under {named}.",
        f"{report.different:,} would end differently.",
    ]
    if report.groups:
        lines += ["", *_group_lines(report)]
    notes = []
    if assumed := sum(group.assumed for group in report.groups.values()):
        end = "the rules would have changed what the model received"
        notes.append(f"{counted(assumed, 'end')} assumed: {end}.")
    if report.beyond:
        runs = counted(report.beyond, "run")
        notes.append(f"{runs} would have continued past the recording: the end is not known.")
    if report.unknown:
        runs = counted(report.unknown, "run")
        notes.append(f"{runs} may have reached a limit: what was used is not all known.")
    for verb, name in (("tokens are", "tokens"), ("time is", "time"), ("cost is", "cost")):
        if number := sum(getattr(group, f"unknown_{name}") for group in report.groups.values()):
            runs = counted(number, "run")
            notes.append(f"The saved {verb} unknown in {runs}; the sums leave them out.")
    lines += [line for note in notes for line in ("", note)]
    if report.cut_completed:
        lines += ["", f"{counted(report.cut_completed, 'completed run')} would have been cut:"]
        lines += [
            f"  {shortened(each['agent_id'], 64)}  query {each['query']}: ended with step "
            f"{each['steps']}, would have ended with step {each['stopped_at']} ({each['stop_reason']})"
            for each in report.cut[:MOST_LISTED]
        ]
        if report.cut_completed > MOST_LISTED:
            lines.append(f"  … {report.cut_completed - MOST_LISTED:,} more: --json lists all")
    elif report.different:
        lines += ["", "No completed run would have been cut."]
    if report.problems:
        lines += ["", f"{counted(len(report.problems), 'session')} could not be judged."]
    return lines


def _group_lines(report: Report) -> list[str]:
    heads = ("ENDED BY", "STOP REASON", "RUNS", "COMPLETED", "STEPS SAVED", "TOKENS", "TIME", "COST")
    rows = [
        (
            shortened(group.resolved_by, 64),
            group.stop_reason,
            f"{group.runs:,}",
            f"{group.completed:,}",
            f"{group.saved.steps:,}",
            "unknown" if group.unknown_tokens == group.runs else f"{group.saved.tokens:,}",
            "unknown" if group.unknown_time == group.runs else span_text(group.saved.seconds or 0.0),
            "unknown" if group.unknown_cost == group.runs else dollars(group.saved.cost or Decimal(0)),
        )
        for group in _sorted(report)
    ]
    return table_lines([heads, *rows])
