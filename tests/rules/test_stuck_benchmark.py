"""The benchmark of rules against stuck agents, on runs written by hand."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.stuck import RULES, Run, Verdict, main, parse_run, share

STUCK = [["edit", "a", "same", 0, f"text {n}"] for n in range(8)]
WORKING = [["edit", f"c{n}", f"r{n}", 0, "text"] for n in range(8)]
FAILING = [["edit", "a", f"e{n}", 1, f"text {n}"] for n in range(4)]
ALTERNATING = [["edit", "ab"[n % 2], "ab"[n % 2], 0, f"text {n}"] for n in range(10)]
REPLIES = [[None, None, "r", 0, f"text {n}"] for n in range(5)]
WORDED_ALIKE = [["edit", "a", "same", 0, "text"] for _ in range(8)]
LONG = [["edit", f"c{n}", f"r{n}", 0, "text"] for n in range(25)]


def line(steps: Any, *, resolved: bool | None = False, model: str = "small") -> str:
    return json.dumps({"model": model, "instance": "i", "resolved": resolved, "steps": steps})


def run_of(steps: Any) -> Run:
    run = parse_run(line(steps).encode())
    assert run is not None
    return run


@pytest.mark.parametrize(
    ("steps", "ours", "openhands"),
    [
        (STUCK, Verdict(3, 5), Verdict(None, 6)),  # By alternation, which compares no text.
        (WORDED_ALIKE, Verdict(3, 5), Verdict(None, 4)),
        (WORKING, Verdict(), Verdict()),
        (FAILING, Verdict(3), Verdict(None, 3)),
        (ALTERNATING, Verdict(4, 7), Verdict(None, 6)),
        (REPLIES, Verdict(3, 4), Verdict(None, 3)),
    ],
    ids=["reworded", "worded alike", "working", "failing", "alternating", "replies"],
)
def test_each_rule_decides_after_the_step_that_shows_the_pattern(
    steps: Any, ours: Verdict, openhands: Verdict
) -> None:
    run = run_of(steps)
    assert RULES["RepeatedCallCheck()"](run) == ours
    assert RULES["OpenHands' rules"](run) == openhands


def test_a_run_ends_with_its_first_finish_unless_asked_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finishing = [["edit", "a", "r", 0, "t"], *[["finish", "f", "", 0, "t"]] * 8]
    (tmp_path / "runs.jsonl").write_text(line(finishing, resolved=True))
    cut = []
    for options in ([], ["--after-finish"]):
        assert main([str(tmp_path / "runs.jsonl"), "--json", *options]) == 0
        rules = json.loads(capsys.readouterr().out)["rules"]
        cut.append(rules["RepeatedCallCheck()"]["cut"]["resolved"]["hits"])
    assert cut == [0, 1]


def test_a_step_limit_cuts_only_a_run_that_needs_more() -> None:
    assert RULES["max_steps=20"](run_of(LONG)) == Verdict(None, 20)
    assert RULES["max_steps=20"](run_of(LONG[:20])) == Verdict()


def test_the_numbers_are_those_of_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        line(STUCK),
        line(WORKING),
        line(WORKING, resolved=True, model="DS-V3"),
        line(STUCK, resolved=True),
        line(STUCK, resolved=None),
    ]
    file = tmp_path / "runs.jsonl.gz"
    file.write_bytes(gzip.compress("\n".join(lines).encode()))
    assert main([str(file), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["runs"], document["left_out"]) == (4, {"unknown_result": 1, "invalid_lines": 0})
    ours = document["rules"]["RepeatedCallCheck()"]
    counts = {group: (each["hits"], each["of"]) for group, each in ours["cut"].items()}
    assert counts == {"unresolved": (1, 2), "resolved": (1, 2), "strong_resolved": (0, 1)}
    assert (ours["steps_saved"]["hits"], ours["steps_saved"]["of"]) == (6, 32)


def test_broken_lines_are_named_and_the_rest_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = ["{", "[]", line(None), line([["edit", "a"]]), line([["edit", None, "r", 0, "t"]])]
    broken += [line([["edit", "a", "r", 7, "t"]]), line(STUCK).replace("false", '"no"', 1)]
    file = tmp_path / "runs.jsonl"
    file.write_text("\n".join([*broken, "", line(STUCK)]))
    assert main([str(file)]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("1 runs (0 without a known result and 7 invalid lines left out)")
    assert [text.split(" left out")[0] for text in printed.err.splitlines()] == [
        f"line {number}" for number in range(1, 8)
    ]


@pytest.mark.parametrize("content", [None, b"", b"\x1f\x8bnot gzip"])
def test_a_file_without_runs_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None
) -> None:
    file = tmp_path / "runs.jsonl"
    if content is not None:
        file.write_bytes(content)
    assert main([str(file)]) == 2
    assert "runs.jsonl" in capsys.readouterr().err


def test_the_interval_is_that_of_wilson() -> None:
    value = share(10, 413)
    assert [round(value[key], 1) for key in ("percent", "low", "high")] == [2.4, 1.3, 4.4]
    assert share(0, 10)["low"] == 0
    assert share(10, 10)["high"] == pytest.approx(100)
