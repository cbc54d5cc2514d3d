"""How rules against stuck agents do on recorded runs: `make bench-stuck TRAJECTORIES=FILE`.

A file has one run a line, as JSON, and may be compressed with gzip:

    {"model": "…", "instance": "…", "resolved": true | false | null,
     "steps": [[tool | null, call | null, result, 1 if it failed, text], …]}

Calls, results and texts are hashes, so equality is all that can be judged. A step without a tool is a
reply. Each run is replayed step by step as if the model had ignored every nudge. Our rule is the criterion
that ships, on states made with the transitions of the loop. Runs whose `resolved` is null are left out.

A run ends with its first call of `finish`, which is how an agent of OpenHands says that it is done; a few
files go on, since the harness asked again. `--after-finish` replays those steps too.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from whyloop import AgentState, ContinuationCriteria, Message, RepeatedCallCheck
from whyloop.values.judgement import Judged
from whyloop.values.messages import ToolCall, ToolResult
from whyloop.values.step_transitions import Answered, CallFinished, Closed
from whyloop.values.transitions import Queried

STRONG = ("claude-3-5-sonnet", "gpt-4o-2024", "DS-V3", "DS-R1", "o1_high_fc")
"""The models that count as strong, by the beginning of their names."""
FINISH = "finish"
"""The tool with which an agent ends its run."""
STEP_LIMIT = 20
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class RecordedStep(NamedTuple):
    """A step of a file."""

    tool: str | None
    call: str | None
    result: str | None
    failed: bool
    text: str | None


class Run(NamedTuple):
    """A run of a file whose result is known."""

    model: str
    resolved: bool
    steps: tuple[RecordedStep, ...]

    def until_finish(self) -> Run:
        """Return the run up to the first call that ends it."""
        ends = next((n for n, step in enumerate(self.steps, 1) if step.tool == FINISH), len(self.steps))
        return self._replace(steps=self.steps[:ends])


class Verdict(NamedTuple):
    """The steps after which a rule nudged first and stopped the run; None if it did not."""

    nudged: int | None = None
    cut: int | None = None


Rule = Callable[[Run], Verdict]


class InvalidLineError(ValueError):
    """A line of a file that is not a run."""


# Reading


def read_runs(path: Path) -> tuple[list[Run], int, list[str]]:
    """Return the runs of a file, how many have no known result, and what is wrong with its other lines."""
    runs, unknown, problems = [], 0, []
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            run = parse_run(line)
        except InvalidLineError as error:
            problems.append(f"line {number} left out: {error}")
            continue
        if run is None:
            unknown += 1
        else:
            runs.append(run)
    return runs, unknown, problems


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        compressed = file.read(2) == b"\x1f\x8b"
    with gzip.open(path, "rb") if compressed else path.open("rb") as lines:
        yield from lines


def parse_run(line: bytes) -> Run | None:
    """Return the run of a line; None if its result is not known."""
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidLineError(f"not JSON ({error})") from None
    if not isinstance(document, dict):
        raise InvalidLineError("not an object: write one run a line")
    model, resolved, steps = document.get("model"), document.get("resolved"), document.get("steps")
    if not isinstance(model, str) or not isinstance(steps, list):
        raise InvalidLineError("model is not a string, or steps is not a list")
    if not isinstance(resolved, bool | None):
        raise InvalidLineError(f"invalid resolved {resolved!r}: use true, false or null")
    parsed = tuple([_parse_step(index, step) for index, step in enumerate(steps, 1)])
    return None if resolved is None else Run(model, resolved, parsed)


def _parse_step(index: int, step: Any) -> RecordedStep:
    if not isinstance(step, list) or len(step) != 5:
        raise InvalidLineError(f"step {index} is not a list of five: tool, call, result, failed, text")
    tool, call, result, failed, text = step
    if not all(isinstance(value, str | None) for value in (tool, call, result, text)):
        raise InvalidLineError(f"step {index} has a tool, call, result or text that is not a string or null")
    if failed not in (0, 1) or (tool is not None and call is None):
        raise InvalidLineError(f"step {index} has a tool without a call, or a mark that is neither 0 nor 1")
    return RecordedStep(tool, call, result, bool(failed), text)


# The rules


def repeated_call_check(run: Run) -> Verdict:
    """Replay a run under the criterion that ships."""
    criteria, nudged = ContinuationCriteria(RepeatedCallCheck()), None
    state: AgentState = Queried(NOW, execution_id="run", message=Message.user("task")).apply_to(AgentState())
    for number, step in enumerate(run.steps, 1):
        state = take_step(state, number, step)
        outcome = criteria.evaluate(state)
        if not outcome.should_continue:
            return Verdict(nudged, number)
        if nudged is None and outcome.evaluations[0].feedback is not None:
            nudged = number
        state = Judged(NOW, outcome=outcome, step=number).apply_to(state)
    return Verdict(nudged)


def take_step(state: AgentState, number: int, step: RecordedStep) -> AgentState:
    """Return the state after a step of a file, before it is judged."""
    calls = []
    if step.tool is not None:
        calls.append(ToolCall(f"call_{number}", step.tool, {"hash": step.call}))
    state = Answered(
        NOW,
        started_at=NOW,
        message=Message.assistant(step.text or "", calls),
        started=tuple(range(len(calls))),
    ).apply_to(state)
    if calls:
        result = ToolResult(step.result or "", "failed" if step.failed else None)
        state = CallFinished(NOW, index=0, result=result).apply_to(state)
    return Closed(NOW).apply_to(state)


def openhands(run: Run) -> Verdict:
    """Apply the documented rules of OpenHands, which stop a run at once."""
    steps = run.steps
    for number in range(1, len(steps) + 1):
        past = steps[:number]
        if (
            _alike(past, 4, lambda s: s.tool and (s.call, s.result, s.text))
            or _alike(past, 3, lambda s: s.tool and s.failed and s.call)
            or _alike(past, 3, lambda s: s.tool is None)
            or _alternates(past)
        ):
            return Verdict(None, number)
    return Verdict()


def _alike(steps: Sequence[RecordedStep], count: int, key: Callable[[RecordedStep], object]) -> bool:
    """Return whether the last steps have the same key, which is true."""
    keys = [key(step) for step in steps[-count:]]
    return len(keys) == count and bool(keys[0]) and keys.count(keys[0]) == count


def _alternates(steps: Sequence[RecordedStep]) -> bool:
    """Return whether the last six steps are two calls in turn, with the same results."""
    keys = [(step.call, step.result) for step in steps[-6:] if step.tool is not None]
    return len(keys) == 6 and keys[:2] * 3 == keys


def step_limit(run: Run) -> Verdict:
    """Cut a run that needs more steps than the limit."""
    return Verdict(None, STEP_LIMIT) if len(run.steps) > STEP_LIMIT else Verdict()


RULES: dict[str, Rule] = {
    "RepeatedCallCheck()": repeated_call_check,
    "OpenHands' rules": openhands,
    f"max_steps={STEP_LIMIT}": step_limit,
}


# The table


def share(hits: int, total: int) -> dict[str, Any]:
    """Return a share in percent with its 95 % interval after Wilson."""
    if not total:
        return {"hits": 0, "of": 0, "percent": None, "low": None, "high": None}
    z, p = 1.959964, hits / total
    centre, spread = p + z * z / (2 * total), z * math.sqrt(p * (1 - p) / total + z * z / (4 * total * total))
    scale = 100 / (1 + z * z / total)
    low, high = max(0.0, centre - spread) * scale, min(1 + z * z / total, centre + spread) * scale
    return {"hits": hits, "of": total, "percent": 100 * p, "low": low, "high": high}


def share_of_steps(saved: Sequence[int], taken: Sequence[int]) -> dict[str, Any]:
    """Return the share of steps that were saved; its interval is that of a ratio over runs."""
    total = sum(taken)
    if not total:
        return share(0, 0)
    ratio = sum(saved) / total
    squares = sum((s - ratio * t) ** 2 for s, t in zip(saved, taken, strict=True))
    spread = 1.959964 * math.sqrt(squares) / total
    low, high = max(0.0, ratio - spread), min(1.0, ratio + spread)
    return {
        "hits": sum(saved),
        "of": total,
        "percent": 100 * ratio,
        "low": 100 * low,
        "high": 100 * high,
    }


def measure(runs: Sequence[Run], rule: Rule, strong: Sequence[str] = STRONG) -> dict[str, Any]:
    """Return how many runs a rule nudges and cuts, of each group, and the steps it saves."""
    verdicts = [(run, rule(run)) for run in runs]
    groups: dict[str, Callable[[Run], bool]] = {
        "unresolved": lambda run: not run.resolved,
        "resolved": lambda run: run.resolved,
        "strong_resolved": lambda run: run.resolved and run.model.startswith(tuple(strong)),
    }
    measured: dict[str, Any] = {}
    for field in ("nudged", "cut"):
        measured[field] = {}
        for name, belongs in groups.items():
            chosen = [getattr(verdict, field) is not None for run, verdict in verdicts if belongs(run)]
            measured[field][name] = share(sum(chosen), len(chosen))
    saved = [0 if v.cut is None else len(run.steps) - v.cut for run, v in verdicts]
    measured["steps_saved"] = share_of_steps(saved, [len(run.steps) for run in runs])
    return measured


def table(results: dict[str, dict[str, Any]]) -> str:
    """Return the results as a Markdown table."""
    head = ("rule", "", "unresolved", "resolved", "strong resolved", "steps saved")
    rows = [head, tuple("---" for _ in head)]
    for name, measured in results.items():
        for field in ("nudged", "cut"):
            groups = measured[field].values()
            if field == "nudged" and not any(group["hits"] for group in groups):
                continue
            saved = _shown(measured["steps_saved"]) if field == "cut" else ""
            rows.append((name, field, *map(_shown, groups), saved))
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _shown(value: dict[str, Any]) -> str:
    if value["percent"] is None:
        return "no runs"
    return f"{value['percent']:.1f} % ({value['low']:.1f} to {value['high']:.1f})"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table of a file, or its numbers as JSON."""
    parser = argparse.ArgumentParser(prog="benchmarks.stuck", description="Measure rules on recorded runs.")
    parser.add_argument("file", type=Path, help="one run a line, JSON, may be gzip")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--strong", nargs="*", default=STRONG, help="beginnings of names of strong models")
    parser.add_argument("--after-finish", action="store_true", help="replay what follows a finish as well")
    options = parser.parse_args(arguments)
    try:
        runs, unknown, problems = read_runs(options.file)
    except (OSError, EOFError) as error:
        return _fail([f"cannot read {str(options.file)!r}: {error}: pass TRAJECTORIES=FILE"])
    if not runs:
        return _fail(
            [*problems, f"no run with a known result in {str(options.file)!r}: see benchmarks/stuck.py"]
        )
    _report(problems)
    if not options.after_finish:
        runs = [run.until_finish() for run in runs]
    results = {name: measure(runs, rule, options.strong) for name, rule in RULES.items()}
    if options.json:
        left_out = {"unknown_result": unknown, "invalid_lines": len(problems)}
        print(json.dumps({"runs": len(runs), "left_out": left_out, "rules": results}, indent=2))
    else:
        left_out_text = f"{unknown} without a known result and {len(problems)} invalid lines left out"
        print(f"{len(runs)} runs ({left_out_text}); shares with 95 % intervals\n")
        print(table(results))
    return 0


def _report(problems: Iterable[str]) -> None:
    for problem in problems:
        print(problem, file=sys.stderr)


def _fail(problems: Iterable[str]) -> int:
    _report(problems)
    return 2


if __name__ == "__main__":
    sys.exit(main())
