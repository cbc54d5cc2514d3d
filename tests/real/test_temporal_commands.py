"""`whyloop worker`, `run`, `resume` and `chat` with sessions that Temporal runs."""

from __future__ import annotations

import asyncio
import io
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import Client as TemporalClient, WorkflowExecutionStatus
from temporalio.common import VersioningBehavior
from temporalio.service import RPCError, RPCStatusCode

from tests.cli.shop import WHYLOOP, environment
from tests.real.temporal import TemporalServer
from tests.real.test_temporal_versions import use
from whyloop import Agent, Session, tool
from whyloop.cli import main
from whyloop.cli.terminal import INTERRUPTED, USAGE_ERROR
from whyloop.errors import StoreError, StoreUnavailableError
from whyloop.stores import SqliteStore, open_store
from whyloop.temporal import TemporalRecovery, TemporalSession, WhyloopPlugin, workflow_id
from whyloop.temporal.display import STATUS
from whyloop.temporal.recovery import SECONDS_TO_START
from whyloop.testing import FakeClock, ScriptedModel, call
from whyloop.values.state import AgentState, AgentStatus

pytestmark = [pytest.mark.slow]

Capsys = pytest.CaptureFixture[str]
SECONDS = 40.0

# Both models look at the messages alone, so they answer the same in every process. `work` writes its process
# id into a file and waits for another file.
CREW = """
import asyncio, os, pathlib
from whyloop import Agent, FinishReason, ModelResponse, ToolCall, tool

class Asking:
    def __init__(self, name, arguments):
        self.name, self.arguments = name, arguments

    async def respond(self, request):
        if request.messages[-1].is_tool:
            yield ModelResponse(f"It is {request.messages[-1].content}.")
        else:
            call = ToolCall(f"call_{len(request.messages)}", self.name, self.arguments)
            yield ModelResponse("", (call,), FinishReason.TOOL_CALLS)

@tool(idempotent=True)
async def work() -> str:
    with open("started", "a") as file:
        file.write(f"{os.getpid()}\\n")
    while not pathlib.Path("finish").exists():
        await asyncio.sleep(0.01)
    return "done"

@tool(needs_approval=True)
def pay(amount: int) -> str:
    return f"paid {amount}"

agents = {
    "crew": Agent(Asking("work", {}), [work], name="crew"),
    "cashier": Agent(Asking("pay", {"amount": 5}), [pay], name="cashier"),
}
crew = agents["crew"]
"""


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A task queue of its own, beside a module of agents."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("LOGNAME", "ada")
    monkeypatch.setattr(
        "whyloop.cli.command.log_runs_to_stderr", lambda: None
    )  # It lasts longer than a test.
    monkeypatch.setenv("WHYLOOP_STORE", "sessions.db")
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(tmp_path / "none.toml"))
    monkeypatch.delitem(sys.modules, "crew", raising=False)  # Another test may have one of this name.
    (tmp_path / "crew.py").write_text(CREW, encoding="utf-8")
    return f"queue-{uuid4().hex}"


def options(temporal: TemporalServer, queue: str) -> list[str]:
    return ["--temporal", temporal.address, "--task-queue", queue]


@contextmanager
def worker(temporal: TemporalServer, queue: str, *more: str) -> Iterator[subprocess.Popen[str]]:
    command = [*WHYLOOP, "worker", *options(temporal, queue), "--agents", "crew:agents", *more]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment()) as process:
        try:
            assert process.stderr is not None
            assert process.stderr.readline() == (
                f"Running sessions of crew, cashier from Temporal at {temporal.address}, "
                f"namespace default, task queue {queue}.\n"
            )
            yield process
        finally:
            process.kill()


def whyloop(*arguments: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [*WHYLOOP, *arguments], stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment()
    )


def stored() -> list[AgentState]:
    async def read() -> list[AgentState]:
        async with open_store("sessions.db") as store:
            page = await store.sessions()
            return [await store.load(each.agent_id) for each in page.sessions]

    return asyncio.run(read())


def status_of(temporal: TemporalServer, queue: str) -> WorkflowExecutionStatus | None:
    """Return the status of the only workflow of a task queue; None before it starts."""

    async def find() -> WorkflowExecutionStatus | None:
        found = (await temporal.connect()).list_workflows(f"TaskQueue = '{queue}'")
        return next(iter([each.status async for each in found]), None)

    return asyncio.run(find())


def wait_for(found: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + SECONDS
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8").split() if Path(path).exists() else []


def test_a_run_is_shown_as_it_happens_at_a_worker(
    temporal: TemporalServer, queue: str, capsys: Capsys
) -> None:
    Path("finish").touch()
    with worker(temporal, queue):
        code = main(["run", "Work", "--agent", "crew:crew", *options(temporal, queue)])
    shown = capsys.readouterr()
    assert (code, shown.out) == (0, "It is done.\n")
    assert "  work() ok" in shown.err
    assert "Completed after 2 steps. ToolCallPresenceCheck decided" in shown.err
    assert [state.agent for state in stored()] == ["crew"]


def test_a_session_continues_by_itself_once_it_is_decided_through_the_store(
    temporal: TemporalServer, queue: str, capsys: Capsys
) -> None:
    with worker(temporal, queue):
        main(["run", "Pay", "--agent", "cashier", *options(temporal, queue)])
        [paused] = stored()
        assert paused.status is AgentStatus.PAUSED
        assert (
            f"--agent cashier --temporal {temporal.address} --task-queue {queue}" in capsys.readouterr().err
        )
        assert main(["approve", paused.agent_id]) == 0
        wait_for(lambda: stored()[0].status is AgentStatus.COMPLETED)
    assert stored()[0].last_response == "It is paid 5."


def test_a_session_that_is_stopped_through_the_store_ends_its_workflow(
    temporal: TemporalServer, queue: str
) -> None:
    async def end_of(agent_id: str) -> tuple[Any, Any]:
        handle = (await temporal.connect()).get_workflow_handle(workflow_id(queue, agent_id))
        result = await asyncio.wait_for(handle.result(), SECONDS)
        return result, (await handle.describe()).typed_search_attributes[STATUS]

    with worker(temporal, queue):
        main(["run", "Pay", "--agent", "cashier", *options(temporal, queue)])
        [paused] = stored()
        assert main(["stop", paused.agent_id, "enough"]) == 0
        result, shown = asyncio.run(end_of(paused.agent_id))
    assert (result["status"], result["reason"]) == ("stopped", "enough")
    assert shown == "stopped"


def test_a_chat_asks_the_person_and_continues_at_the_worker(
    temporal: TemporalServer, queue: str, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("Pay\ny\n/why\n"))
    with worker(temporal, queue):
        assert main(["chat", "--agent", "cashier", *options(temporal, queue)]) == 0
    shown = capsys.readouterr()
    assert "It is paid 5." in shown.out
    assert "approved by ada" in shown.out
    assert f"cashier, run by the workers of Temporal at {temporal.address}" in shown.err


def test_a_chat_refuses_edited_arguments_that_do_not_fit_the_tool_of_the_workers(
    temporal: TemporalServer, queue: str, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO('Pay\ne {"amount": "lots"}\ne {"amount": 4}\n'))
    with worker(temporal, queue):
        assert main(["chat", "--agent", "cashier", *options(temporal, queue)]) == 0
    shown = capsys.readouterr()
    assert "invalid arguments for pay: " in shown.err
    assert "paid 4" in shown.out
    [state] = stored()
    assert state.status is AgentStatus.COMPLETED


def test_a_worker_that_leaves_lets_its_call_end(temporal: TemporalServer, queue: str) -> None:
    with worker(temporal, queue) as first:
        running = whyloop("run", "Work", "--agent", "crew", *options(temporal, queue))
        wait_for(lambda: lines("started"))
        first.send_signal(signal.SIGTERM)
        assert first.stderr is not None
        assert first.stderr.readline().startswith("Stopping: calls have 30 s to end")
        with worker(temporal, queue):
            Path("finish").touch()
            assert first.wait(SECONDS) == 0
            answer, _ = running.communicate(timeout=SECONDS)
    assert answer == "It is done.\n"
    assert lines("started") == [str(first.pid)]


def test_a_call_that_takes_too_long_to_drain_is_repeated_at_another_worker(
    temporal: TemporalServer, queue: str
) -> None:
    with worker(temporal, queue, "--drain", "0") as first:
        running = whyloop("run", "Work", "--agent", "crew", *options(temporal, queue))
        wait_for(lambda: lines("started"))
        first.send_signal(signal.SIGTERM)
        assert first.wait(SECONDS) == 0
        with worker(temporal, queue) as second:
            wait_for(lambda: len(lines("started")) == 2)
            Path("finish").touch()
            answer, _ = running.communicate(timeout=SECONDS)
    assert answer == "It is done.\n"
    assert lines("started") == [str(first.pid), str(second.pid)]


def test_ctrl_c_stops_the_run_at_its_worker(temporal: TemporalServer, queue: str) -> None:
    with worker(temporal, queue):
        running = whyloop("run", "Work", "--agent", "crew", *options(temporal, queue))
        wait_for(lambda: lines("started"))
        running.send_signal(signal.SIGINT)
        assert running.stderr is not None
        for line in running.stderr:
            if "stopping" in line:
                break
        Path("finish").touch()
        _, notes = running.communicate(timeout=SECONDS)
    assert "StopRequestedCheck decided: Ctrl-C was pressed" in notes


@pytest.mark.parametrize(("command", "code"), [(["run", "Work"], INTERRUPTED), (["chat"], 0)])
def test_ctrl_c_ends_what_no_worker_has_begun(
    temporal: TemporalServer, queue: str, command: list[str], code: int
) -> None:
    running = whyloop(*command, "--agent", "crew", *options(temporal, queue))
    try:
        assert running.stdin is not None
        running.stdin.write("Work\n")
        running.stdin.flush()
        wait_for(lambda: status_of(temporal, queue) is WorkflowExecutionStatus.RUNNING)
        running.send_signal(signal.SIGINT)
        _, notes = running.communicate(timeout=10)
    finally:
        running.kill()
    assert running.returncode == code
    assert "/resume continues" not in notes
    [state] = stored()
    assert (
        "no worker has begun: the request is queued, and runs when a worker starts. To drop it: "
        f"temporal workflow terminate --workflow-id {queue}:{state.agent_id} "
        f"--address {temporal.address} --namespace default\n"
    ) in notes


@pytest.mark.parametrize("command", [["run", "Hi"], ["chat"]], ids=lambda command: command[0])
def test_an_agent_that_no_worker_has_is_named_and_leaves_no_session(
    temporal: TemporalServer, queue: str, command: list[str], capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hi\nHi again\n"))
    with worker(temporal, queue):
        code = main([*command, "--agent", "nobody", *options(temporal, queue)])
    problem = "no agent is named 'nobody' here: the agents of this worker are cashier, crew"
    asked = 2 if command == ["chat"] else 1
    assert capsys.readouterr().err.count(problem) == asked
    assert code == (0 if command == ["chat"] else USAGE_ERROR)
    assert stored() == []


def test_workers_with_another_store_are_named_and_the_workflow_ends(
    temporal: TemporalServer, queue: str, capsys: Capsys
) -> None:
    with worker(temporal, queue, "--store", "other.db") as process:
        assert main(["run", "Hi", "--agent", "crew", *options(temporal, queue)]) == 1
        wait_for(lambda: status_of(temporal, queue) is WorkflowExecutionStatus.FAILED)
        process.terminate()
        assert process.stderr is not None
        logged = process.stderr.read()
    assert f"the workers of task queue '{queue}' use another store" in capsys.readouterr().err
    assert stored() == []
    assert "give the workers and their clients the same store" in logged
    assert "Traceback" not in logged


def test_an_unknown_namespace_is_the_error_of_a_session(temporal: TemporalServer, tmp_path: Path) -> None:
    async def send() -> None:
        async with SqliteStore(tmp_path / "sessions.db") as store:
            client = await TemporalClient.connect(
                temporal.address, namespace="nope", plugins=[WhyloopPlugin(store)]
            )
            await (await TemporalSession.open(client, store, "crew")).send("Hi")

    with pytest.raises(
        StoreError, match="refused a request in namespace 'nope': namespace nope is not found"
    ):
        asyncio.run(send())


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["run", "Hi", "--agent", "crew", "--deps", "crew:crew"], "leave out --deps"),
        (["run", "Hi", "--model", "local"], "leave out --model"),
        (["run", "Hi"], "name an agent of the workers"),
        (["worker", "--agents", "crew:agents", "--drain", "-1"], "invalid --drain -1"),
        (["worker", "--agents", "crew:agents", "--tool-queue", "work"], "use TOOL=QUEUE"),
        (["worker", "--agents", "crew:agents", "--tool-queue", "fly=x"], "the tools of the agents are pay"),
        (["worker", "--agents", "crew:agents", "--deployment", "crew"], "use NAME:BUILD"),
        (["worker", "--agents", "crew:agents", "--task-queue", "a:b"], "use a name without a colon"),
    ],
)
@pytest.mark.usefixtures("queue")
def test_options_that_cannot_work_are_refused(arguments: list[str], problem: str, capsys: Capsys) -> None:
    assert main([*arguments, "--temporal", "127.0.0.1:1"]) == USAGE_ERROR
    assert problem in capsys.readouterr().err


@pytest.mark.usefixtures("queue")
def test_the_options_of_temporal_need_its_address(capsys: Capsys) -> None:
    assert main(["run", "Hi", "--agent", "crew:crew", "--task-queue", "x"]) == USAGE_ERROR
    assert "--task-queue needs --temporal ADDRESS" in capsys.readouterr().err


COMMANDS_OF_TEMPORAL = [
    ["worker", "--agents", "crew:agents"],
    ["run", "Hi", "--agent", "crew"],
    ["chat", "--agent", "crew"],
    ["serve", "--agent", "crew", "--port", "0"],
]


@pytest.mark.parametrize("arguments", COMMANDS_OF_TEMPORAL, ids=lambda arguments: arguments[0])
@pytest.mark.usefixtures("queue")
def test_a_server_that_is_not_there_is_an_error_with_its_address(
    arguments: list[str], capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hi\n"))
    assert main([*arguments, "--temporal", "127.0.0.1:1"]) == 1
    assert capsys.readouterr().err == (
        f"whyloop {arguments[0]}: Temporal could not be reached at 127.0.0.1:1: connection refused. "
        "Start it, or correct --temporal\n"
    )
    assert stored() == []


@pytest.mark.parametrize("arguments", COMMANDS_OF_TEMPORAL, ids=lambda arguments: arguments[0])
def test_an_unknown_namespace_is_refused_before_anything_is_created(
    temporal: TemporalServer,
    queue: str,
    arguments: list[str],
    capsys: Capsys,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hi\n"))
    assert main([*arguments, *options(temporal, queue), "--namespace", "nope"]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith(f"whyloop {arguments[0]}: namespace 'nope' cannot be used: ")
    assert len(shown.splitlines()) == 1
    assert stored() == []


def test_a_session_stays_with_the_version_of_its_worker(temporal: TemporalServer, queue: str) -> None:
    async def choose() -> None:
        await use(await temporal.connect(), queue, "1.0")

    async def version_of(agent_id: str) -> Any:
        handle = (await temporal.connect()).get_workflow_handle(workflow_id(queue, agent_id))
        return (await handle.describe()).raw_description.workflow_execution_info.versioning_info

    Path("finish").touch()
    with worker(temporal, queue, "--deployment", f"{queue}:1.0"):
        asyncio.run(choose())
        assert main(["run", "Work", "--agent", "crew", *options(temporal, queue)]) == 0
        version = asyncio.run(version_of(stored()[0].agent_id))
    assert version.behavior == VersioningBehavior.PINNED
    assert version.deployment_version.build_id == "1.0"


def test_a_tool_runs_at_the_workers_of_its_own_task_queue(temporal: TemporalServer, queue: str) -> None:
    Path("finish").touch()
    with (
        worker(temporal, queue, "--tool-queue", f"work={queue}-tools"),
        worker(temporal, f"{queue}-tools", "--tools-only") as tools,
    ):
        running = whyloop("run", "Work", "--agent", "crew", *options(temporal, queue))
        answer, _ = running.communicate(timeout=SECONDS)
    assert answer == "It is done.\n"
    assert lines("started") == [str(tools.pid)]


class Client:
    """Counts what is started, and what is woken without being started."""

    namespace = "default"
    service_client = SimpleNamespace(config=SimpleNamespace(target_host="127.0.0.1:1"))

    def __init__(self) -> None:
        self.woken: list[str] = []
        self.ended: list[str] = []
        self.status: WorkflowExecutionStatus | None = WorkflowExecutionStatus.RUNNING
        self.fails = False

    def get_workflow_handle(self, workflow: str) -> Handle:
        return Handle(self, workflow)

    async def start_workflow(self, _: Any, start: Any, *, start_signal: str, **options: Any) -> None:
        assert start_signal == "wake"
        self.woken.append(start.agent_id)


class Handle:
    def __init__(self, client: Client, workflow: str) -> None:
        self._client, self._workflow = client, workflow

    async def describe(self) -> SimpleNamespace:
        if self._client.fails:
            raise RPCError("unavailable", RPCStatusCode.UNAVAILABLE, b"")
        if self._client.status is None:
            raise RPCError("no such workflow", RPCStatusCode.NOT_FOUND, b"")
        return SimpleNamespace(status=self._client.status)

    async def signal(self, name: str) -> None:
        assert name == "wake"
        self._client.ended.append(self._workflow)


@tool(needs_approval=True)
def pay() -> str:
    """Pay."""
    return "paid"


async def test_sessions_of_the_agents_are_woken_once_for_each_change(tmp_path: Path) -> None:
    client: Any = Client()
    async with SqliteStore(tmp_path / "sessions.db") as store:
        recovery = TemporalRecovery(client, store, ["cashier"])
        for name in ("cashier", "other"):
            agent = Agent(ScriptedModel([call("pay")]), [pay], name=name)
            session = await Session.open(store, agent, name, create=True)
            state = await session.send("Pay")
            assert await recovery.look() == [], "it waits for a person"
            await session.approve(state.pending_calls[0].id)
            assert await recovery.look() == (["cashier"] if name == "cashier" else [])
            assert await recovery.look() == []
    assert client.woken == ["cashier"]


async def paused_session(store: SqliteStore, agent_id: str) -> Session:
    """Return a session that waits for a person, and whose workflow is recorded."""
    agent = Agent(ScriptedModel([call("pay")]), [pay], name="cashier")
    session = await Session.open(store, agent, agent_id, create=True)
    await session.send("Pay")
    await store.record_workflow(agent_id, "temporal:default", workflow_id("whyloop", agent_id))
    return session


async def test_sessions_that_were_stopped_while_no_worker_ran_are_woken_by_the_first_one(
    tmp_path: Path,
) -> None:
    client: Any = Client()
    async with SqliteStore(tmp_path / "sessions.db") as store:
        session = await paused_session(store, "one")
        assert await TemporalRecovery(client, store, ["cashier"]).look() == []
        await session.request_stop("not today")
    clock = FakeClock(datetime.now(UTC) + timedelta(days=300))
    async with SqliteStore(tmp_path / "sessions.db", clock=clock) as store:
        assert await TemporalRecovery(client, store, ["cashier"]).look() == ["one"]
    assert client.ended == [workflow_id("whyloop", "one")]


async def test_a_stopped_session_is_woken_once_and_again_after_an_error(tmp_path: Path) -> None:
    client: Any = Client()
    async with SqliteStore(tmp_path / "sessions.db") as store:
        recovery = TemporalRecovery(client, store, ["cashier"])
        for name in ("one", "two"):
            await (await paused_session(store, name)).request_stop("not today")
        client.fails = True
        with pytest.raises(StoreUnavailableError):
            await recovery.look()
        client.fails = False
        assert sorted(await recovery.look()) == ["one", "two"]
        assert await recovery.look() == []
        recovery._woken.clear()  # As if the time between two looks at a session had passed.
        assert await recovery.look() == []
        assert len(await store.open_workflows("temporal:default", limit=9)) == 2
    assert sorted(client.ended) == [workflow_id("whyloop", "one"), workflow_id("whyloop", "two")]


@pytest.mark.parametrize("status", [None, *set(WorkflowExecutionStatus) - {WorkflowExecutionStatus.RUNNING}])
async def test_a_closed_workflow_is_forgotten_once_no_client_can_be_about_to_start_it(
    tmp_path: Path, status: WorkflowExecutionStatus | None
) -> None:
    client: Any = Client()
    client.status = status
    clock = FakeClock(datetime.now(UTC))
    async with SqliteStore(tmp_path / "sessions.db", clock=clock) as store:
        recovery = TemporalRecovery(client, store, ["cashier"])
        await (await paused_session(store, "one")).request_stop("not today")
        clock.advance(SECONDS_TO_START - 1)
        assert await recovery.look() == []
        assert len(await store.open_workflows("temporal:default", limit=9)) == 1
        clock.advance(1)
        recovery._woken.clear()  # As if the time between two looks at a session had passed.
        assert await recovery.look() == []
        assert await store.open_workflows("temporal:default", limit=9) == ()
        await store.delete("one")
    assert client.ended == []
