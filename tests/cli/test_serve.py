"""`whyloop serve`: the sessions of a store over HTTP, in a process of its own."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.cli.shop import HERE, WHYLOOP, environment, greeting, in_store, refused
from whyloop import Session
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
        assert said == [f"http://{address}/sessions  (the API: /openapi.json)\n"]
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
        (line,) = process.stderr.read().splitlines()
        assert line.endswith(
            "completed (completed) by ToolCallPresenceCheck: The model answered and asked for no tools"
        )
        connection.close()


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
        assert asked(address, "GET", "/sessions", host="evil.example")[0] == 400
        assert asked(address, "GET", "/sessions", host="localhost")[0] == 200


def test_a_port_that_is_taken_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as (_, address, _):
        port = address.rpartition(":")[2]
        assert port in refused(capsys, "serve", "--port", port)
