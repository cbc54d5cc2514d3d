"""`whyloop eval`: runs cases, and compares the results with those of the previous run."""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import redirect_stdout
from pathlib import Path
from xml.etree import ElementTree

import msgspec

from whyloop.cli.agents import find_cases
from whyloop.cli.formats import span_text
from whyloop.cli.renderer import table_lines
from whyloop.cli.terminal import using_file, write_error, write_json, write_lines
from whyloop.testing.evals import Attempt, CaseResult, EvalReport, compare_reports, run_cases
from whyloop.values.model import Usage
from whyloop.values.price import dollars
from whyloop.values.text import clean, counted, shortened

LONGEST_NAME = 60
SOME_CASES_FAILED = 1
_HEADINGS = ("", "case", "passed", "steps", "tokens", "cost", "time", "ended")
_ON_THE_RIGHT = ("passed", "steps", "tokens", "cost", "time")


def evaluate(args: argparse.Namespace) -> int:
    """Run the cases and show the results; return 1 if one of them failed."""
    cases = find_cases(args.cases)
    before = _previous(args.results)
    with redirect_stdout(sys.stderr):  # Keep the output of cases out of the table and the JSON.
        report = asyncio.run(
            run_cases(cases, repeats=args.repeats, parallel=args.parallel, on_attempt=_show_progress)
        )
    changes = None if before is None else compare_reports(before, report)
    if args.json:
        document = msgspec.to_builtins(report)
        write_json(document if changes is None else {**document, "changes": changes})
    else:
        _show(report, changes)
    if args.results is not None:
        with using_file("write", args.results):
            report.write(args.results)
    if args.junit is not None:
        with using_file("write", args.junit):
            _junit(report).write(args.junit, "utf-8", xml_declaration=True)
    return 0 if report.passed else SOME_CASES_FAILED


def _previous(path: str | None) -> EvalReport | None:
    """Return the report of the previous run; None if there is none."""
    if path is None or not Path(path).exists():
        return None
    with using_file("read", path):
        return EvalReport.read(path)


def _show_progress(name: str, attempt: Attempt) -> None:
    note = f"  {shortened(attempt.problem, 120)}" if attempt.problem else ""
    write_error(f" {_sign(attempt.passed, attempt.skipped)}  {shortened(name, LONGEST_NAME)}{note}")


def _show(report: EvalReport, changes: list[str] | None) -> None:
    lines = table_lines([_HEADINGS, *map(_row, report.cases)], to_the_right=_ON_THE_RIGHT)
    failed = [case for case in report.cases if not case.passed]
    for case in failed:
        lines += ["", f"{shortened(case.name, LONGEST_NAME)}: {shortened(case.problem or '', 1000)}"]
    skipped = sum(case.skipped for case in report.cases)
    passed = len(report.cases) - len(failed) - skipped
    note = f", {skipped} skipped" if skipped else ""
    lines += ["", f"{passed} of {counted(len(report.cases), 'case')} passed{note}. {_used(report.usage)}"]
    if changes is not None:
        lines += ["", "Since the previous run:", *[f"  {shortened(change, 300)}" for change in changes]]
        if not changes:
            lines[-1] += " nothing changed."
    write_lines(lines)


def _row(case: CaseResult) -> tuple[str, ...]:
    if case.skipped:
        return ("–", shortened(case.name, LONGEST_NAME), "skipped", "", "", "", "", "")
    endings = [f"{ending} ×{count}" if count > 1 else ending for ending, count in case.endings.items()]
    return (
        _sign(case.passed),
        shortened(case.name, LONGEST_NAME),
        f"{case.passes}/{len(case.taken)}",
        f"{case.steps:,.10g}",
        f"{case.tokens:,.10g}",
        _cost(case.usage),
        span_text(case.seconds),
        shortened(", ".join(endings), 100),
    )


def _sign(passed: bool, skipped: bool = False) -> str:
    return "–" if skipped else "✓" if passed else "✗"


def _cost(usage: Usage) -> str:
    return "unknown" if usage.is_unpriced else dollars(usage.cost) if usage.cost is not None else "-"


def _used(usage: Usage) -> str:
    cost = f" for {dollars(usage.cost)}" if usage.cost is not None else ""
    return f"{counted(usage.total, 'token')} used{cost}."


def _junit(report: EvalReport) -> ElementTree.ElementTree:
    """Return the report in the format that CI servers read: a test for each case."""
    attempts = [attempt for case in report.cases for attempt in case.attempts]
    suite = ElementTree.Element(
        "testsuite",
        name="whyloop eval",
        tests=str(len(report.cases)),
        failures=str(sum(not case.passed for case in report.cases)),
        skipped=str(sum(case.skipped for case in report.cases)),
        time=f"{sum(attempt.seconds for attempt in attempts):.3f}",
    )
    for case in report.cases:
        seconds = sum(attempt.seconds for attempt in case.attempts)
        test = ElementTree.SubElement(suite, "testcase", name=_xml(case.name), time=f"{seconds:.3f}")
        if case.skipped:
            ElementTree.SubElement(test, "skipped", message=_xml(case.problem or ""))
        elif not case.passed:
            needed = min(case.needed, len(case.taken))
            message = f"passed {case.passes} of {len(case.taken)}, needed {needed}: {case.problem}"
            ElementTree.SubElement(test, "failure", message=_xml(message))
        endings = "\n".join(f"{count} × {ending}" for ending, count in case.endings.items())
        ElementTree.SubElement(test, "system-out").text = _xml(endings)
    return ElementTree.ElementTree(suite)


def _xml(text: str) -> str:
    """Return a text without the characters that XML cannot contain."""
    return "".join(sign for sign in clean(text) if sign in "\t\n" or sign.isprintable())
