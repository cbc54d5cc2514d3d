"""One stream for a page: several sessions from their cursors on, and the list as it changes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from msgspec.structs import replace
from starlette.types import Message

from tests.server.other_process import assert_run_appears
from tests.server.streams_support import stage
from tests.server.support import Json, Lab, agent_with
from tests.support import echo
from whyloop import Agent, Session, tool
from whyloop.loop.local_world import SystemClock
from whyloop.server import Access
from whyloop.server.live import SessionChanges
from whyloop.stores import Entry, MemoryStore, SqliteStore, Store
from whyloop.testing import call
from whyloop.wire.envelope import NUMBERED

Event = tuple[str, Json]


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is asked often, so that no test waits for long."""
    monkeypatch.setattr("whyloop.server.live.POLL_SECONDS", 0.01)


def timed(*replies: Any, **options: Any) -> Agent:
    """An agent that dates its sessions by the clock of this machine, as the store does."""
    return agent_with(*replies, clock=SystemClock(), **options)


class Following:
    """A client of the stream, in this process."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[Event | None] = asyncio.Queue()
        self.status = 0
        self.body = b""
        self.may_write = asyncio.Event()
        self.may_write.set()
        self.gone = asyncio.Event()

    async def next(self) -> Event:
        event = await asyncio.wait_for(self.events.get(), 10)
        assert event is not None, "the stream has ended"
        return event

    async def until(self, condition: Callable[[Event], object]) -> list[Event]:
        found = [await self.next()]
        while not condition(found[-1]):
            found.append(await self.next())
        return found

    async def listed(self, condition: Callable[[Json], object]) -> Json:
        """The first session of a list event for which a condition holds."""
        while True:
            name, data = await self.next()
            for session in data["sessions"] if name == "list" else []:
                if condition(session):
                    found: Json = session
                    return found

    async def ended(self) -> None:
        while await asyncio.wait_for(self.events.get(), 10) is not None:
            pass


def read(piece: bytes) -> list[Event]:
    found = []
    for block in piece.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line)
        if "data" in fields:
            found.append((fields["event"], json.loads(fields["data"])))
    return found


def numbered(events: list[Event], session: str) -> list[tuple[str, int]]:
    return [
        (data["cursor"], data["envelope"]["seq"])
        for name, data in events
        if name == "envelope" and data["session"] == session and data["envelope"]["event"] in NUMBERED
    ]


@asynccontextmanager
async def following(
    lab: Lab, *asked: tuple[str, str], socket: bool = False, headers: dict[str, str] | None = None
) -> AsyncIterator[Following]:
    """A client of `/live` with a query, by server-sent events or over a WebSocket."""
    client = Following()
    connect = [{"type": "websocket.connect"}] if socket else [{"type": "http.request"}]

    async def receive() -> Message:
        if connect:
            return connect.pop()
        await client.gone.wait()
        return {"type": "websocket.disconnect" if socket else "http.disconnect", "code": 1000}

    async def send(message: Message) -> None:
        await client.may_write.wait()
        match message["type"]:
            case "http.response.start":
                client.status = message["status"]
            case "http.response.body":
                client.body += message["body"]
                for event in read(message["body"]):
                    client.events.put_nowait(event)
            case "websocket.send":
                data = json.loads(message["text"])
                assert data.keys() == {"event", "data"}
                client.events.put_nowait((data["event"], data["data"]))
            case "websocket.close":
                client.status = message["code"]

    scope = lab.client.scope("/live", urlencode(asked), headers or {})
    kind: Json = {"type": "websocket", "subprotocols": []} if socket else {"type": "http", "method": "GET"}

    async def serve() -> None:
        await lab.server({**scope, **kind}, receive, send)
        client.events.put_nowait(None)

    task = asyncio.create_task(serve())
    try:
        yield client
    finally:
        client.gone.set()
        client.may_write.set()
        await asyncio.wait_for(task, 10)


def is_end(session: str) -> Callable[[Event], object]:
    def holds(event: Event) -> bool:
        name, data = event
        is_of = name == "envelope" and data["session"] == session
        return is_of and data["envelope"]["data"].get("status") in ("completed", "stopped", "paused")

    return holds


# Sessions


@pytest.mark.parametrize("socket", [False, True])
async def test_several_sessions_come_in_one_stream_each_after_its_cursor(store: Store, socket: bool) -> None:
    lab = Lab(store, timed(*(call("echo"), "done") * 4))
    for agent_id in ("a,b", "c"):
        await lab.asked(agent_id)
    whole = {}
    for agent_id in ("a,b", "c"):
        path = f"/sessions/{'a%2Cb' if agent_id == 'a,b' else 'c'}/events"
        whole[agent_id] = (await lab.get(path)).json["events"]
    cursor = f"{whole['c'][1]['execution_id']}:{whole['c'][1]['seq']}"
    asked = (("session", "a,b"), ("after", ""), ("session", "c"), ("after", cursor))
    async with following(lab, *asked, socket=socket) as client:
        heard: list[Event] = []
        ends = {"a,b", "c"}
        while ends:
            heard.append(await client.next())
            ends -= {each for each in ends if is_end(each)(heard[-1])}
        assert [data["envelope"] for name, data in heard if data["session"] == "a,b"] == whole["a,b"]
        assert [data["envelope"] for name, data in heard if data["session"] == "c"] == whole["c"][2:]
        # What is new comes too, and only once.
        await lab.post("/sessions/c/messages", {"text": "more"})
        more = await client.until(is_end("c"))
        assert {data["session"] for _, data in more} == {"c"}
        assert [seq for _, seq in numbered(more, "c")] == list(range(1, len(numbered(more, "c")) + 1))
    await lab.rest()
    # With the last cursor nothing comes twice.
    last = numbered(more, "c")[-1][0]
    async with following(lab, ("session", "c"), ("after", last), socket=socket) as client:
        await lab.post("/sessions/c/messages", {"text": "again"})
        _, data = await client.next()
        assert (data["envelope"]["seq"], data["envelope"]["data"]["status"]) == (1, "in_progress")
    await lab.rest()
    await lab.server.close()


async def test_a_session_that_is_not_there_ends_and_the_others_continue(store: Store) -> None:
    lab = Lab(store, timed("one", "two"))
    await lab.asked("a")
    await lab.asked("b")
    async with following(lab, ("session", "nobody"), ("session", "a"), ("session", "b")) as client:
        heard, wanted = [], {"nobody", "a", "b"}
        while wanted:
            heard.append(await client.next())
            name, data = heard[-1]
            wanted -= {data["session"]} if name == "ended" or is_end(data["session"])(heard[-1]) else set()
        [(_, missing)] = [event for event in heard if event[0] == "ended"]
        assert (missing["session"], missing["error"]["type"]) == ("nobody", "session_not_found")
        assert (await lab.delete("/sessions/a")).status == 204
        [*_, (_, gone)] = await client.until(lambda event: event[0] == "ended")
        assert gone["session"] == "a"
    await lab.server.close()


@pytest.mark.usefixtures("nothing_is_logged")
async def test_invalid_sessions_and_cursors_are_refused(store: Store) -> None:
    lab = Lab(store, timed("one"))
    await lab.asked()
    many = [("session", f"s{number}") for number in range(51)]
    for asked in ([], [("session", "a"), ("after", ""), ("after", "")], [("session", "a")] * 2, many):
        answer = await lab.get("/live", query=urlencode(asked))
        assert (answer.status, answer.error) == (400, "bad_request")
    async with following(lab, ("session", "a"), ("after", "nonsense")) as client:
        name, data = await client.next()
        assert (name, data["session"]) == ("ended", "a")
        assert "invalid cursor 'nonsense'" in data["error"]["message"]
    async with following(lab, socket=True) as client:
        await client.ended()
    assert client.status == 4400
    await lab.server.close()


async def test_a_client_sees_only_its_own_sessions(store: Store) -> None:
    def access(connection: Any) -> Access | None:
        user = connection.headers.get("x-user")
        return Access(user, {"user": user}, may=()) if user else None

    owner = Lab(store, timed("one", "two", "three"))
    await owner.asked("hers", user="ann")
    await owner.asked("his", user="bob")
    lab = Lab(store, access=access)
    asked = (("list", "true"), ("session", "hers"), ("session", "his"))

    def is_hers(event: Event) -> bool:
        return any(each["agent_id"].startswith("hers-") for each in event[1].get("sessions", ()))

    for socket in (False, True):
        async with following(lab, *asked, headers={"x-user": "ann"}, socket=socket) as client:
            heard = await client.until(is_end("hers"))
            await owner.made(f"his-{socket}", user="bob")
            await owner.made(f"hers-{socket}", user="ann")
            heard += await client.until(is_hers)
            await owner.delete(f"/sessions/his-{socket}")
            await owner.delete(f"/sessions/hers-{socket}")
            heard += await client.until(lambda event: event[1].get("deleted"))
        shown = [each["agent_id"] for _, data in heard for each in data.get("sessions", ())]
        gone = [agent_id for _, data in heard for agent_id in data.get("deleted", ())]
        assert not any(each.startswith("his") for each in shown + gone)
        assert gone == [f"hers-{socket}"]
        assert ("ended", "his") in [(name, data.get("session")) for name, data in heard]
        async with following(lab, *asked, socket=socket) as client:
            await client.ended()
        assert client.status == (4401 if socket else 401)
    await lab.server.close()
    await owner.server.close()


async def test_each_session_and_the_list_count_as_streams(store: Store) -> None:
    lab = Lab(store, timed("one"), max_streams=3)
    await lab.asked()
    async with following(lab, ("list", "true"), ("session", "a")) as client:
        await client.until(is_end("a"))
        for socket in (False, True):
            async with following(lab, ("list", "true"), ("session", "a"), socket=socket) as other:
                await other.ended()
            assert other.status == (1000 if socket else 503)  # A socket is not accepted
        async with following(lab, ("list", "true")) as other:
            await other.next()
    async with following(lab, ("list", "true"), ("session", "a")) as client:
        await client.until(is_end("a"))
    await lab.server.close()


@pytest.mark.parametrize("socket", [False, True])
async def test_closing_the_server_ends_the_stream(store: Store, socket: bool) -> None:
    lab = Lab(store, timed("one"))
    await lab.asked()
    async with following(lab, ("list", "true"), ("session", "a"), ("session", "b"), socket=socket) as client:
        await client.until(is_end("a"))
        await lab.server.close()
        await client.ended()
    assert [task.get_name() for task in asyncio.all_tasks() if task.get_name() == "whyloop list"] == []


async def test_a_slow_client_gets_everything_once_and_delays_no_other(store: Store) -> None:
    lab = Lab(store, timed("hi", *[call("echo")] * 300, "done", max_steps=400))
    await lab.asked()
    async with following(lab, ("session", "a")) as slow, following(lab, ("session", "a")) as client:
        await slow.until(is_end("a"))
        await client.until(is_end("a"))
        slow.may_write.clear()
        await lab.post("/sessions/a/messages", {"text": "go"})
        await client.until(is_end("a"))
        assert slow.events.empty()
        slow.may_write.set()
        seqs = [seq for _, seq in numbered(await slow.until(is_end("a")), "a")]
        assert seqs == list(range(1, len(seqs) + 1))
        assert len(seqs) > 900
    await lab.rest()
    await lab.server.close()


# The list


async def test_the_first_event_says_that_the_list_is_followed(store: Store) -> None:
    lab = Lab(store, timed("one"))
    async with following(lab, ("list", "true")) as client:
        assert await client.next() == ("list", {"sessions": [], "deleted": []})
        assert client.body.startswith(b"retry: 1000\n\nevent: list\ndata: {")
    await lab.server.close()


async def test_a_session_of_another_process_appears_changes_and_is_deleted(tmp_path: Path) -> None:
    path = tmp_path / "whyloop.db"
    async with SqliteStore(path) as here, SqliteStore(path) as there:
        lab = Lab(here)
        other = Lab(there, timed(call("echo"), call("pay", {"amount": 1}), "done"))
        async with following(lab, ("list", "true")) as client:
            await client.next()
            await other.made("a")
            assert (await client.listed(lambda each: each["agent_id"] == "a"))["status"] == "pending"
            await other.post("/sessions/a/messages", {"text": "go"})
            paused = await client.listed(lambda each: each["status"] == "paused")
            assert paused == (await lab.get("/sessions/a")).json["session"] | {
                "is_running": paused["is_running"]
            }
            await other.rest()
            await other.delete("/sessions/a")
            [*_, (_, data)] = await client.until(lambda event: event[1]["deleted"])
            assert data["deleted"] == ["a"]
        await other.server.close()
        await lab.server.close()


async def test_a_session_that_was_listed_before_is_deleted_by_another_process(tmp_path: Path) -> None:
    path = tmp_path / "whyloop.db"
    async with SqliteStore(path) as here, SqliteStore(path) as there:
        lab, other = Lab(here), Lab(there, timed("one"))
        long_ago = datetime(2020, 1, 1, tzinfo=UTC)
        for agent_id in ("a", "b"):
            await other.made(agent_id)
            there_is = await there.read(agent_id)
            await there.delete(agent_id)
            entries = [Entry(body) for body in there_is.entries]
            await there.create(replace(there_is.summary, updated_at=long_ago), entries)
        async with following(lab, ("list", "true")) as client:
            await client.next()
            await other.made("marker")  # The list has been read before this one is listed.
            heard = await client.until(lambda event: event[1]["sessions"])
            await other.delete("/sessions/a")
            heard += await client.until(lambda event: event[1]["deleted"])
        shown = [each["agent_id"] for _, data in heard for each in data["sessions"]]
        assert shown == ["marker"], "only what changed is sent"
        assert heard[-1][1]["deleted"] == ["a"]
        await other.server.close()
        await lab.server.close()


async def test_the_steps_of_a_session_that_runs_are_shown(store: Store) -> None:
    hold = asyncio.Event()

    async def wait() -> str:
        await hold.wait()
        return "ok"

    agent = timed(call("echo"), call("echo"), call("wait"), "done", tools=[echo, tool(wait)])
    lab = Lab(store, agent)
    await lab.made()
    async with following(lab, ("list", "true")) as client:
        await lab.post("/sessions/a/messages", {"text": "go"})
        running = await client.listed(lambda each: each["step_count"] == 2)
        assert (running["status"], running["is_running"]) == ("in_progress", True)
        hold.set()
        done = await client.listed(lambda each: each["status"] == "completed")
        assert done["step_count"] == 4
    await lab.rest()
    await lab.server.close()


async def test_the_store_is_asked_by_one_task_while_a_client_listens() -> None:
    class Counting(MemoryStore):
        lists = 0

        async def sessions(self, **options: Any) -> Any:
            self.lists += 1
            return await super().sessions(**options)

    def tasks() -> int:
        return [task.get_name() for task in asyncio.all_tasks()].count("whyloop list")

    store = Counting()
    lab = Lab(store, timed("one"))
    async with following(lab, ("list", "true")) as one, following(lab, ("list", "true")) as two:
        await one.next()
        await two.next()
        assert tasks() == 1
        await lab.made()
        await one.listed(lambda each: each["agent_id"] == "a")
        await two.listed(lambda each: each["agent_id"] == "a")
    while tasks():
        await asyncio.sleep(0.01)
    asked = store.lists
    await asyncio.sleep(0.05)
    assert store.lists == asked
    await lab.server.close()


async def test_a_client_that_misses_changes_of_the_list_is_disconnected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("whyloop.server.live.MOST_CHANGED", 10)
    store = MemoryStore()
    lab = Lab(store, timed())
    async with following(lab, ("list", "true")) as client:
        await client.next()
        client.may_write.clear()
        for number in range(20):
            await Session.open(store, timed("x"), f"s{number}", create=True)
            if number % 5 == 0:
                await asyncio.sleep(0.03)
        changes: SessionChanges = lab.server._api._changes
        while not changes._forgotten:
            await asyncio.sleep(0.01)
        client.may_write.set()
        await client.ended()
    await lab.server.close()


async def test_a_list_has_no_secret_in_it(store: Store) -> None:
    secret = "sk-proj-0123456789abcdefghijklmnop"
    lab = Lab(store, timed("one"))
    async with following(lab, ("list", "true"), ("session", "a")) as client:
        await client.next()
        await lab.asked("a", f"Use {secret}", note=f"it is {secret}")
        await client.listed(lambda each: each["status"] == "completed")
    assert secret.encode() not in client.body
    assert b"[removed]" in client.body
    await lab.server.close()


@pytest.mark.slow
@pytest.mark.parametrize("socket", [False, True])
async def test_a_run_of_another_process_appears_within_a_second_and_its_text_streams(
    tmp_path: Path, socket: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    path = tmp_path / "whyloop.db"
    async with stage(SqliteStore(path)) as a:
        await assert_run_appears(a, str(path), socket=socket)
