"""`whyloop serve`: the sessions of a store over HTTP, in a separate process."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.cli.shop import HERE, WHYLOOP, environment, greeting, in_store, refused
from whyloop import Session
from whyloop.cli import services
from whyloop.stores import Store

pytestmark = pytest.mark.usefixtures("in_the_shop")


@contextmanager
def serving(*options: str) -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """The process, its address, and what it said."""
    command = [*WHYLOOP, "serve", "--port", "0", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment()) as process:
        assert process.stderr is not None
        try:
            said = [process.stderr.readline()]
            yield process, urlsplit(said[0].split()[0]).netloc, said
        finally:
            process.kill()


TOKEN = "a secret of the operator"


def asked(address: str, method: str, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(address, timeout=20)
    try:
        given = {"content-type": "application/json", **headers}
        connection.request(method, path, json.dumps(body) if body is not None else None, given)
        response = connection.getresponse()
        read = response.read()
        return response.status, json.loads(read) if read.startswith(b"{") else read.decode()
    finally:
        connection.close()


def test_a_served_agent_answers_and_ctrl_c_ends_it() -> None:
    with serving("--agent", f"{HERE}:greeting") as (process, address, said):
        assert said == [f"http://{address}/  (open it in a browser; the API: /openapi.json)\n"]
        assert asked(address, "POST", "/sessions", {"agent_id": "q"})[0] == 201
        assert asked(address, "POST", "/sessions/q/messages", {"text": "Hi"})[0] == 202
        connection = http.client.HTTPConnection(address, timeout=20)
        connection.request("GET", "/sessions/q/events", headers={"accept": "text/event-stream"})
        stream = connection.getresponse()
        while b'"completed"' not in stream.readline():
            pass
        status, page = asked(address, "GET", "/sessions/q/messages")
        assert (status, page["messages"][-1]["content"]) == (200, "Hello there.")
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) in (0, 130, -signal.SIGINT)
        # The stream that is open has come to its end in good order, and nobody had to be cut off.
        assert stream.read().endswith(b"\n\n")
        assert process.stderr is not None
        # The log has the end of the run, and nothing else.
        created, line = process.stderr.read().splitlines()
        assert created == "Created whyloop.db, because it did not exist."
        assert line.endswith(
            "completed (completed) by ToolCallPresenceCheck: The model answered and asked for no tools"
        )
        connection.close()


def test_sigterm_closes_the_store(tmp_path: Path) -> None:
    store = tmp_path / "served.db"
    with serving("--agent", f"{HERE}:greeting", "--store", str(store)) as (process, address, _):
        assert asked(address, "POST", "/sessions", {"agent_id": "q"})[0] == 201
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0
    assert [path.name for path in tmp_path.glob("served.db*")] == ["served.db"]


def test_without_an_agent_it_shows_what_others_run() -> None:
    async def run(store: Store) -> None:
        await (await Session.open(store, greeting(), "q", create=True)).send("Hi")

    in_store(run)
    with serving() as (process, address, _):
        assert process.stderr is not None
        assert "runs none" in process.stderr.readline()
        _, listed = asked(address, "GET", "/sessions")
        assert [session["agent_id"] for session in listed["sessions"]] == ["q"]
        assert asked(address, "POST", "/sessions/q/messages", {"text": "Hi"})[0] == 405


def test_a_name_that_another_site_gave_to_this_machine_is_refused() -> None:
    with serving() as (_, address, _):
        port = address.rpartition(":")[2]
        assert asked(address, "GET", "/sessions", host="evil.example")[0] == 421
        assert asked(address, "GET", "/sessions", host=f"evil.example:{port}")[0] == 421
        assert asked(address, "GET", "/sessions", host="localhost")[0] == 421
        assert asked(address, "GET", "/sessions", host=f"localhost:{port}")[0] == 200
        sites = {"http://evil.example": 403, f"https://localhost:{port}": 403, "http://localhost": 403}
        for origin, status in (sites | {f"http://localhost:{port}": 405}).items():
            assert asked(address, "POST", "/sessions", {}, origin=origin)[0] == status


async def serves(*_: object) -> None:
    """Fail a test at once, instead of serving clients until its end."""
    raise AssertionError("it serves clients without a token")


@pytest.mark.parametrize("host", ["", "0", "0.0.0.0", "::0", "::"])
def test_an_address_that_other_machines_can_reach_needs_a_token(
    host: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WHYLOOP_TOKEN", raising=False)
    monkeypatch.setattr(services, "serve_until_signal", serves)
    in_store(no_sessions)
    words = refused(capsys, "serve", "--port", "0", "--host", host, code=2)
    assert "clients need a token: set $WHYLOOP_TOKEN" in words


class LanSocket:
    """A socket that listens on an address of a network."""

    closed = False

    def getsockname(self) -> tuple[str, int]:
        return "192.168.1.5", 8000

    def close(self) -> None:
        self.closed = True


def test_the_address_of_this_machine_in_its_network_needs_a_token(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WHYLOOP_TOKEN", raising=False)
    listening = LanSocket()
    monkeypatch.setattr(services, "listen", lambda *_: listening)
    monkeypatch.setattr(services, "serve_until_signal", serves)
    in_store(no_sessions)
    words = refused(capsys, "serve", "--host", "laptop.lan", code=2)
    assert words.startswith("'laptop.lan' can be reached from other machines, so clients need a token")
    assert listening.closed


def test_a_token_that_can_be_guessed_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    in_store(no_sessions)
    words = refused(capsys, "serve", "--port", "0", "--token", "hunter2", code=2)
    assert words == "the token is too short: use a secret of 16 characters or more"


@pytest.mark.parametrize("host", ["127.0.0.1", "0"])
def test_only_clients_with_the_token_are_let_in(host: str) -> None:
    in_store(no_sessions)
    token = "correct horse battery"
    with serving("--host", host, "--token", token) as (_, netloc, _):
        address = f"127.0.0.1:{netloc.rpartition(':')[2]}"
        for path in ("/sessions", "/openapi.json", "/nothing", "/sessions?token=wrong", "/sessions?token="):
            assert asked(address, "GET", path)[0] == 401
        for given in ("", "Bearer", "Bearer wrong", f"Basic {token}", token, "Bearer \xe9"):
            assert asked(address, "GET", "/sessions", authorization=given)[0] == 401
        assert asked(address, "GET", "/sessions", authorization=f"Bearer {token}")[0] == 200
        assert asked(address, "GET", "/sessions?token=correct%20horse%20battery")[0] == 200


def test_the_token_of_the_environment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHYLOOP_TOKEN", "correct horse battery")
    in_store(no_sessions)
    with serving() as (_, address, _):
        assert asked(address, "GET", "/sessions")[0] == 401


def test_an_address_that_is_named_is_the_server_s_own() -> None:
    in_store(no_sessions)
    with serving("--origin", "https://app.example.com") as (_, address, _):
        assert asked(address, "GET", "/sessions", host="app.example.com:443")[0] == 200
        assert asked(address, "POST", "/sessions", {}, origin="https://app.example.com")[0] == 405
        assert asked(address, "POST", "/sessions", {}, origin="http://app.example.com")[0] == 403


async def no_sessions(store: Store) -> None:
    """An empty store."""
    await store.sessions()


# Connections


class Transport:
    """A connection that only remembers how it ended."""

    ended: str | None = None

    def close(self) -> None:
        self.ended = "closed"

    def abort(self) -> None:
        self.ended = "aborted"


class Protocol:
    """As much of uvicorn's protocol as is looked at."""

    def __init__(self, connections: set[object]) -> None:
        self.connections = connections
        self.transport = Transport()
        self.cycle: Any = None
        self.timeout_keep_alive_task: object = None
        connections.add(self)


class Cycle:
    def __init__(self, complete: bool) -> None:
        self.response_complete = complete


class Timers:
    """An event loop in which time passes when the test says so."""

    def __init__(self) -> None:
        self._due: list[tuple[Any, ...]] = []

    def call_later(self, seconds: float, function: Any, *args: object) -> None:
        self._due.append((function, *args))

    def pass_time(self) -> None:
        due, self._due = self._due, []
        for function, *args in due:
            function(*args)


def connected(monkeypatch: pytest.MonkeyPatch, others: int = 0) -> tuple[Protocol, Timers]:
    from uvicorn.protocols.http import auto

    connections: set[object] = {object() for _ in range(others)}
    timers = Timers()
    monkeypatch.setattr(auto, "AutoHTTPProtocol", lambda: Protocol(connections))
    monkeypatch.setattr("whyloop.cli.services.asyncio.get_running_loop", lambda: timers)
    protocol: Protocol = services._limited()
    timers.pass_time()
    return protocol, timers


def test_a_connection_too_many_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    assert connected(monkeypatch, services.MOST_CONNECTIONS - 1)[0].transport.ended is None
    assert connected(monkeypatch, services.MOST_CONNECTIONS)[0].transport.ended == "aborted"


def test_a_connection_that_sends_no_request_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    protocol, timers = connected(monkeypatch)
    timers.pass_time()
    assert protocol.transport.ended == "closed"


def test_a_second_request_may_not_take_longer_than_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    protocol, timers = connected(monkeypatch)
    protocol.cycle = Cycle(complete=True)
    timers.pass_time()
    assert protocol.transport.ended is None
    timers.pass_time()
    assert protocol.transport.ended == "closed"


def test_a_connection_that_is_being_answered_or_kept_alive_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    protocol, timers = connected(monkeypatch)
    protocol.cycle = Cycle(complete=False)
    for _ in range(5):
        timers.pass_time()
    protocol.cycle.response_complete = True
    protocol.timeout_keep_alive_task = object()
    timers.pass_time()
    assert protocol.transport.ended is None


def test_a_websocket_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    protocol, timers = connected(monkeypatch)
    protocol.connections.clear()
    timers.pass_time()
    assert protocol.transport.ended is None


def test_a_real_connection_that_stays_silent_is_closed() -> None:
    in_store(no_sessions)
    code = "from whyloop.cli import main, services; services.SECONDS_FOR_HEADERS = 0.2; main()"
    command = [sys.executable, "-c", code, "serve", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment()) as process:
        assert process.stderr is not None
        try:
            host, port = urlsplit(process.stderr.readline().split()[0]).netloc.split(":")
            with socket.create_connection((host, int(port)), timeout=20) as slow:
                slow.sendall(b"GET /sessions HTTP/1.1\r\nHost: ")
                assert slow.recv(1) == b""
        finally:
            process.kill()


def test_a_port_that_is_taken_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as (_, address, _):
        port = address.rpartition(":")[2]
        assert port in refused(capsys, "serve", "--port", port)


def test_a_read_only_server_shows_sessions_and_changes_none() -> None:
    with serving("--read-only", "--agent", f"{HERE}:greeting") as (_, address, _said):
        assert asked(address, "GET", "/sessions")[0] == 200
        assert asked(address, "POST", "/sessions", {"agent_id": "q"})[0] == 403


@pytest.mark.parametrize(
    ("options", "may"),
    [
        ((), ["send", "decide", "inspect", "manage"]),
        (("--token", TOKEN), ["send", "decide", "inspect", "manage"]),
        (("--read-only",), ["inspect"]),
        (("--token", TOKEN, "--read-only"), ["inspect"]),
    ],
    ids=["public", "token", "read-only", "token read-only"],
)
def test_clients_have_all_rights_or_with_read_only_the_one_to_inspect(
    options: tuple[str, ...], may: list[str]
) -> None:
    with serving(*options) as (_, address, _said):
        _, info = asked(address, "GET", "/info", authorization=f"Bearer {TOKEN}")
        assert info["may"] == may
