"""`whyloop eval`: a table, files for CI and for the next run, and an exit code."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.cli.shop import refused, run

pytestmark = pytest.mark.usefixtures("in_the_shop")

Capsys = pytest.CaptureFixture[str]

CASES = """
from unittest import SkipTest
from whyloop import Agent
from whyloop.testing import ScriptedModel, text

def test_good():
    assert Agent(ScriptedModel([text("yes", usage=1200)])).run_sync("?").last_response == "yes"

def case_bad():
    assert Agent(ScriptedModel(["no"])).run_sync("?").last_response == "yes", "it said \\x1b[2J\\x00 no"

def test_skipped():
    raise SkipTest("no key")

def helper():
    raise AssertionError("not a case")

good, several = test_good, [test_good, test_good]
nothing = []
number = 3
"""


@pytest.fixture(autouse=True)
def _cases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / f"{module_of(tmp_path)}.py").write_text(CASES, encoding="utf-8")


def module_of(folder: Path) -> str:
    """A name for each test, since a module is imported once."""
    return f"cases_{abs(hash(folder.name))}"


def test_a_table_says_how_often_each_case_passed_and_how_its_runs_ended(
    capsys: Capsys, tmp_path: Path
) -> None:
    code, out, err = run(capsys, "eval", module_of(tmp_path), "--repeats", "2")
    assert code == 1
    rows = [line.split() for line in out.splitlines()]
    assert rows[1][:5] == ["✓", "test_good", "2/2", "1", "1,200"]
    assert " ".join(rows[1][-4:]) == "completed by ToolCallPresenceCheck ×2"
    assert rows[2][:3] == ["✗", "case_bad", "0/2"]
    assert rows[3] == ["–", "test_skipped", "skipped"]
    assert "helper" not in out
    assert "1 of 3 cases passed, 1 skipped. 2,400 tokens used." in out
    assert err.count("✓") == 2
    assert "\x1b" not in out + err
    assert "\x00" not in out + err


@pytest.mark.parametrize(("name", "cases"), [("good", 1), ("several", 2)])
def test_a_name_chooses_a_function_or_a_list(capsys: Capsys, tmp_path: Path, name: str, cases: int) -> None:
    code, out, _ = run(capsys, "eval", f"{module_of(tmp_path)}:{name}", "--json")
    assert code == 0
    assert [len(case["attempts"]) for case in json.loads(out)["cases"]] == [1] * cases


def test_the_results_are_compared_with_those_of_the_run_before(capsys: Capsys, tmp_path: Path) -> None:
    target = f"{module_of(tmp_path)}:good"
    _, first, _ = run(capsys, "eval", target, "--results", "results.json")
    assert "Since the previous run" not in first
    _, second, _ = run(capsys, "eval", target, "--results", "results.json")
    assert "Since the previous run: nothing changed." in second
    document = json.loads(Path("results.json").read_text())
    document["cases"][0]["attempts"][0]["steps"] = 9
    Path("results.json").write_text(json.dumps(document))
    _, third, _ = run(capsys, "eval", target, "--results", "results.json", "--json")
    assert json.loads(third)["changes"] == ["test_good went from 9 to 1 steps"]


def test_a_ci_server_can_read_the_report(capsys: Capsys, tmp_path: Path) -> None:
    run(capsys, "eval", module_of(tmp_path), "--junit", "report.xml")
    suite = ElementTree.parse("report.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "1")
    good, bad, skipped = suite.findall("testcase")
    assert good.findtext("system-out") == "1 × completed by ToolCallPresenceCheck"
    failure = bad.find("failure")
    assert failure is not None
    assert "passed 0 of 1, needed 1: it said" in (failure.get("message") or "")
    assert skipped.find("skipped") is not None


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("missing_module", "module 'missing_module' not found"),
        ("{cases}:missing", "has no 'missing'"),
        ("{cases}:nothing", "no cases found"),
        ("{cases}:number", "no cases found"),
        (".cases", "invalid module"),
    ],
)
def test_a_path_without_cases_is_refused(capsys: Capsys, tmp_path: Path, path: str, problem: str) -> None:
    assert problem in refused(capsys, "eval", path.format(cases=module_of(tmp_path)), code=2)


def test_a_file_that_is_not_a_report_is_kept(capsys: Capsys, tmp_path: Path) -> None:
    Path("results.json").write_text("precious")
    text = refused(capsys, "eval", f"{module_of(tmp_path)}:good", "--results", "results.json", code=2)
    assert "results.json is not a report of an eval" in text
    assert Path("results.json").read_text() == "precious"


def test_results_are_shown_although_a_file_cannot_be_written(capsys: Capsys, tmp_path: Path) -> None:
    code, out, err = run(capsys, "eval", f"{module_of(tmp_path)}:good", "--junit", "missing/report.xml")
    assert code == 1
    assert "1 of 1 case passed" in out
    assert "whyloop eval: cannot write missing/report.xml" in err


def test_output_that_cases_print_is_not_part_of_the_json(capsys: Capsys, tmp_path: Path) -> None:
    (tmp_path / "printing_cases.py").write_text("def test_prints():\n    print('hello')\n")
    code, out, err = run(capsys, "eval", "printing_cases", "--json")
    assert (code, len(json.loads(out)["cases"])) == (0, 1)
    assert "hello" in err


def test_a_function_with_bound_parameters_is_a_case_of_its_module(capsys: Capsys, tmp_path: Path) -> None:
    code = "from functools import partial\ndef ask(n):\n    assert n == 1\ntest_two = partial(ask, 2)\n"
    (tmp_path / "bound_cases.py").write_text(code)
    assert run(capsys, "eval", "bound_cases")[0] == 1
