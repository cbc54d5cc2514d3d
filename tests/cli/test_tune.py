"""`whyloop tune`: curves over the values of limits in the terminal, as JSON and as a page."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tests.cli.shop import run
from tests.cli.test_what_if import recorded
from whyloop import Usage
from whyloop.cli import tune as command
from whyloop.replay import recording

pytestmark = pytest.mark.usefixtures("in_the_shop")

Capsys = pytest.CaptureFixture[str]


@pytest.fixture
def fifty_runs(in_the_shop: None) -> None:
    for number, looks in enumerate([1, 2, 3, 4] * 10):
        recorded(f"done-{number}", looks)
    for number in range(10):
        recorded(f"stuck-{number}", 40, max_steps=12)


@pytest.mark.usefixtures("fifty_runs")
def test_each_limit_has_a_table_and_a_sentence(capsys: Capsys) -> None:
    code, out, err = run(capsys, "tune", "--limits", "max_steps", "max_cost", "--newer-than", "36500d")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "50 runs of 50 sessions, 40 completed."
    assert lines[2] == "max_steps"
    assert [line.split()[:3] for line in lines[4:6]] == [["1", "50", "40"], ["2", "40", "30"]]
    assert any(line.lstrip().startswith("5 ") and "← recommended" in line for line in lines)
    assert "  max_steps=5 keeps every completed run of the last" in out
    assert "  max_cost: no cost is known, so no value can be judged." in lines


def test_runs_without_usage_are_counted_and_named_as_left_out(capsys: Capsys) -> None:
    recorded("reported", 3)
    recorded("silent", 3, usage=Usage(reported=False))
    _, out, _ = run(capsys, "tune", "--limits", "max_steps")
    assert out.splitlines()[0] == "2 runs of 2 sessions, 2 completed."
    assert "  The saved tokens are unknown in up to 1 run; the sums leave them out." in out


@pytest.mark.usefixtures("fifty_runs")
def test_for_machines_every_value_is_there(capsys: Capsys) -> None:
    _, out, _ = run(capsys, "tune", "--limits", "max_steps", "--status", "completed", "--json")
    document = json.loads(out)
    assert (document["runs"], document["completed"]) == (40, 40)
    (steps,) = document["limits"]
    assert steps["recommended"] is None
    assert [(each["value"], each["cut"]) for each in steps["values"]] == [
        (1, 40),
        (2, 30),
        (3, 20),
        (4, 10),
        (5, 0),
    ]


@pytest.mark.usefixtures("fifty_runs")
def test_the_charts_are_written_as_a_page(capsys: Capsys, tmp_path: Path) -> None:
    code, _, err = run(capsys, "tune", "--html", "limits.html")
    assert (code, err) == (0, "Charts are in limits.html\n")
    page = (tmp_path / "limits.html").read_text()
    charts = page.split("<svg")[1:]
    assert len(charts) == 2  # No cost is known, and no time has passed.
    for chart in charts:
        ElementTree.fromstring(f"<svg{chart.split('</svg>')[0]}</svg>")
    assert "http" not in page
    code, _, err = run(capsys, "tune", "--html", "no/such/folder.html")
    assert code == 1
    assert "cannot write" in err


@pytest.mark.usefixtures("fifty_runs")
def test_several_processes_count_the_same(capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    _, alone, _ = run(capsys, "tune", "--json", "--processes", "1")
    monkeypatch.setattr(command, "PAGE", 4)
    monkeypatch.setattr(recording, "PAGE", 4)
    _, together, _ = run(capsys, "tune", "--json", "--processes", "2")
    assert json.loads(together) == json.loads(alone)


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["--limits", "steps"], "invalid limit 'steps'"),
        (["--keep", "0"], "invalid --keep 0: use a percentage"),
        (["--keep", "101"], "invalid --keep 101: use a percentage"),
        (["--processes", "0"], "invalid --processes 0"),
    ],
)
def test_invalid_options_are_refused(capsys: Capsys, argv: list[str], text: str) -> None:
    recorded("one", 1)
    code, _, err = run(capsys, "tune", *argv)
    assert code == 2
    assert text in err
