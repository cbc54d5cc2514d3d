"""Many sessions at once on two workers of a real Temporal server: what a step and a session cost."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest
from temporalio.client import Client

from tests.real.temporal import TemporalServer
from tests.real.temporal_worker import Ledger, WorkerProcess
from whyloop import AgentStatus
from whyloop.stores import SqliteStore
from whyloop.stores.records import SessionFilter
from whyloop.temporal import TemporalSession, WhyloopPlugin

CALLS = 4
QUEUE = "scale"
A_MILLION = 1_000_000


@pytest.mark.slow
async def test_thirty_sessions_run_at_once_on_two_workers(tmp_path: Path) -> None:
    await _run_at_once(tmp_path, 30)


@pytest.mark.soak(suite="temporal")
async def test_a_thousand_sessions_run_at_once_on_two_workers(tmp_path: Path) -> None:
    assert await _run_at_once(tmp_path, 1000) < 1_000_000


async def _run_at_once(tmp_path: Path, count: int) -> float:
    """Begin sessions at once and wait for their ends; return the bytes of memory of each."""
    steps = count * (CALLS + 1)
    server = TemporalServer(in_memory=True)  # It would wait for its file, and not for the sessions.
    server.start()
    path, ledger = str(tmp_path / "sessions.db"), Ledger(tmp_path / "ledger")
    workers: list[WorkerProcess] = []
    try:
        async with SqliteStore(path) as store:
            client = await server.connect(WhyloopPlugin(store))
            options = ("0.01", str(CALLS), "10")
            workers += [WorkerProcess(server.address, QUEUE, path, ledger.path, *options) for _ in range(2)]
            first = await TemporalSession.open(client, store, "clerk", "first", create=True, task_queue=QUEUE)
            await asyncio.wait_for(first.send("Go"), 60)
            pids = [worker.pid for worker in workers]
            before, cpu_before, server_before = _memory(pids), _cpu(pids), _cpu([server.pid])
            opened = [
                await TemporalSession.open(client, store, "clerk", f"s{n}", create=True, task_queue=QUEUE)
                for n in range(count)
            ]
            began = time.perf_counter()
            peak = asyncio.create_task(_peak(pids))
            open_at_once = asyncio.create_task(_most_open(client))
            async with asyncio.timeout(1800), asyncio.TaskGroup() as tasks:
                for session in opened:
                    tasks.create_task(session.begin("Go"))
            begun = time.perf_counter() - began
            async with asyncio.timeout(1800):
                while await _unfinished(store):
                    await asyncio.sleep(0.5)
            seconds = time.perf_counter() - began
            peak.cancel()
            open_at_once.cancel()
            most = max(await peak, _memory(pids))
            cpu, server_cpu = _cpu(pids) - cpu_before, _cpu([server.pid]) - server_before
            states = [await session.refresh() for session in opened]
            history = await opened[0].handle.fetch_history()
        assert {state.status for state in states} == {AgentStatus.COMPLETED}
        assert {len(state.execution_steps) for state in states} == {CALLS + 1}
        counts = ledger.counts()
        assert all(counts[key] == 1 for key in counts), "a call ran twice"
        size = sum(event.ByteSize() for event in history.events)
        rate, memory = steps / seconds, (most - before) / count
        print(f"\n{count} sessions of {CALLS + 1} steps, 2 workers: {seconds:.0f} s, begun in {begun:.0f} s")
        of_workers, of_server = 1000 * cpu / steps, 1000 * server_cpu / steps
        print(
            f"steps: {rate:.0f} a second; CPU of each: {of_workers:.1f} ms workers, {of_server:.1f} ms server"
        )
        print(
            f"memory: {before / 2e6:.0f} MB for each worker at rest, {memory / 1000:.0f} kB for each session"
        )
        print(f"history: {size / (CALLS + 1):,.0f} bytes a step, {len(history.events)} events a session")
        print(_for_a_million(cpu / steps, memory, size / (CALLS + 1)))
        print(f"open at once: {await open_at_once}")
        return memory
    finally:
        for worker in workers:
            worker.kill()
        server.remove()


def _for_a_million(cpu: float, memory: float, history: float) -> str:
    """Return what a million open sessions need, if each takes a step every minute while a model writes."""
    per_second = A_MILLION / 60
    return (
        f"a million sessions, a step a minute each: {per_second:,.0f} steps/s, "
        f"{per_second * cpu:,.0f} cores of workers, {A_MILLION * memory / 1e9:,.0f} GB if all are cached, "
        f"{per_second * history / 1e6:,.0f} MB of history a second"
    )


async def _unfinished(store: SqliteStore) -> bool:
    for status in (AgentStatus.PENDING, AgentStatus.IN_PROGRESS, AgentStatus.PAUSED):
        if (await store.find(SessionFilter(status=status), limit=1, after=None)).sessions:
            return True
    return False


async def _most_open(client: Client) -> int:
    """Return the most workflows that were open at once, until it is cancelled."""
    most = 0
    try:
        while True:
            most = max(most, (await client.count_workflows("ExecutionStatus = 'Running'")).count)
            await asyncio.sleep(1)
    except asyncio.CancelledError:
        return most


async def _peak(pids: list[int]) -> int:
    """Return the most memory of some processes, until it is cancelled."""
    most = 0
    try:
        while True:
            most = max(most, _memory(pids))
            await asyncio.sleep(0.5)
    except asyncio.CancelledError:
        return most


def _memory(pids: list[int]) -> int:
    pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids]
    return sum(pages) * os.sysconf("SC_PAGE_SIZE")


def _cpu(pids: list[int]) -> float:
    """Return the seconds of processor time that some processes have used."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split() for pid in pids]
    return sum(int(each[11]) + int(each[12]) for each in fields) / os.sysconf("SC_CLK_TCK")
