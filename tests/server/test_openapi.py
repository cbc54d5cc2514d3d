"""The document of the API, and the server that it describes, agree.

`python -m tests.server.test_openapi` writes the golden file. A file that an older version wrote is kept: what
takes something away from clients, or asks them for more, is a new version of the API and gets a new file.
"""

from __future__ import annotations

import ast
import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from jsonschema import Draft202012Validator

from tests.golden.fixed_run import FOLDER
from tests.server.streams_support import serving
from tests.server.support import DOCUMENT, Json, Lab, agent_with, path_of, reverb
from tests.support import RespondingModel
from whyloop import Agent, ModelRequest, ModelResponse
from whyloop.broadcasting import envelope_schema
from whyloop.server import bodies, requests
from whyloop.server.chats import ChatApi
from whyloop.server.openapi import VERSION, document
from whyloop.server.operations import OPERATIONS
from whyloop.stores import MemoryStore
from whyloop.stores.listing import cursor_of
from whyloop.testing import call

GOLDEN = FOLDER / f"openapi_v{VERSION}.json"
ROOT = Path(__file__).parents[2]
SEED, EXAMPLES = 20260116, 25
# Any text fits the schema of a place in a list, and only such as the server gave is taken. And of what is
# decided, some is to be of a session in which something waits.
# Hardly any message of another protocol that fits its schema is one that can be answered.
# A key that came with another request, and a version that is not the session's, are valid and refused.
SETTINGS = """
[checks.positive_data_acceptance]
expected-statuses = ["2xx", 401, 403, 404, 409, 412, 422, "5xx"]

[[operations]]
include-name = "GET /sessions"
parameters = { "query.after" = "%s" }

[[operations]]
include-name = ["POST /sessions/{agent_id}/approve", "POST /sessions/{agent_id}/deny"]
parameters = { "path.agent_id" = "waiting", "header.If-Match" = "*" }

[[operations]]
include-name = "POST /sessions/{agent_id}/resume"
parameters = { "path.agent_id" = "done", "header.If-Match" = "*" }

[[operations]]
include-name = "POST /vercel"
warnings = false

[[operations]]
include-name = ["GET /vercel/{agent_id}/messages", "GET /vercel/{agent_id}/stream"]
parameters = { "path.agent_id" = "done" }

[[operations]]
include-name = "GET /sessions/{agent_id}/steps/{index}"
parameters = { "path.agent_id" = "done", "path.index" = 1 }

# Two time limits are valid alone, and contradict each other.
[[operations]]
include-name = "GET /sessions/{agent_id}/what-if"
parameters = { "path.agent_id" = "done", "query.timeout" = "none" }
warnings = false

# An empty time is taken as one that is not given.
[[operations]]
include-name = "GET /what-if"
parameters = { "query.limit" = "max_steps" }

[[operations]]
include-name = "GET /stats"
parameters = { "query.days" = 14 }

# It never ends: see test_live.py.
[[operations]]
include-name = "GET /live"
enabled = false

[[operations]]
include-name = ["DELETE /sessions/{agent_id}", "POST /sessions/{agent_id}/fork"]
parameters = { "header.If-Match" = "*" }
"""


def _raised() -> set[str]:
    """Return the words for errors that the source of the server has."""
    found = {word for _, word in requests._STATUS.values()}
    for path in Path(bodies.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            given = {"BadRequestError": node.args[2:3], "Problem": node.args[:1]}.get(node.func.id, [])
            given += [each.value for each in node.keywords if each.arg == "type"]
            found |= {str(word.value) for word in given if isinstance(word, ast.Constant)}
    return found


def test_every_word_for_an_error_is_in_the_document() -> None:
    assert set(bodies.PROBLEMS) == _raised() | {"bad_request", "refused"}
    described = DOCUMENT["components"]["schemas"]["Problem"]["properties"]["type"]["description"]
    assert described == f"One of {', '.join(bodies.PROBLEMS)}."
    for path, method in (("messages", "post"), ("approve", "post"), ("resume", "post")):
        operation = DOCUMENT["paths"][f"/sessions/{{agent_id}}/{path}"][method]
        assert "`no_worker`" in operation["responses"]["503"]["description"]


def test_the_document_is_the_one_that_was_published() -> None:
    assert json.loads(GOLDEN.read_text(encoding="utf-8")) == DOCUMENT


async def test_the_server_serves_its_document() -> None:
    lab = Lab(MemoryStore(), agent_with(), also=[reverb()])
    assert (await lab.get("/openapi.json")).json == DOCUMENT


def test_the_document_is_valid_openapi() -> None:
    schema = schemathesis.openapi.from_dict(DOCUMENT)
    schema.validate()
    assert schema.specification.version == "3.1.0"
    assert sum(1 for _ in schema.get_all_operations()) == len(OPERATIONS)


def test_every_schema_is_one_and_refers_to_what_is_there() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)
    used = {each.removeprefix("#/components/schemas/") for each in references(DOCUMENT)}
    assert used == set(schemas)


def references(value: Any) -> set[str]:
    if isinstance(value, list):
        return set().union(*map(references, value))
    if not isinstance(value, dict):
        return set()
    own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
    return own.union(*map(references, value.values()))


def test_every_operation_is_described_and_done() -> None:
    described = {
        told["operationId"]: told for methods in DOCUMENT["paths"].values() for told in methods.values()
    }
    assert set(described) == {each.name for each in OPERATIONS}
    for operation in OPERATIONS:
        assert callable(getattr(ChatApi, operation.name))
        told = described[operation.name]
        assert told["summary"].endswith(".")
        assert all("Refusal" in str(each) for status, each in told["responses"].items() if status > "3")


def test_a_server_without_an_agent_describes_what_it_does() -> None:
    reading = document(each for each in OPERATIONS if each.needs is None)
    schema = schemathesis.openapi.from_dict(reading)
    schema.validate()
    assert not {"NewMessage", "NewSession", "Resume", "Grant"} & set(reading["components"]["schemas"])
    assert reading["paths"].keys() < DOCUMENT["paths"].keys()


def test_envelopes_are_described_as_the_package_does() -> None:
    published, told = envelope_schema(), DOCUMENT["components"]["schemas"]
    assert told["Envelope"]["required"] == published["required"]
    parts = {name.removeprefix("Envelope_") for name in told if name.startswith("Envelope_")}
    assert parts == set(published["$defs"])


# A real server


async def seeded() -> Lab:
    """Sessions of every kind, and an agent that answers at once."""
    store = MemoryStore()
    before = Lab(store, agent_with("hi", call("pay", {"amount": 7})))
    await before.asked("done")
    await before.asked("waiting")
    await before.made("new", user="ann")
    await before.server.close()

    async def respond(request: ModelRequest) -> Any:
        yield ModelResponse("hi")

    return Lab(store, Agent(RespondingModel(respond)))


@pytest.mark.slow
async def test_a_real_server_does_what_the_document_says(tmp_path: Path) -> None:
    """Whatever fits the document is accepted, whatever does not is refused, and nothing breaks the server."""
    lab = await seeded()
    [last, *_] = (await lab.store.sessions()).sessions
    (tmp_path / "schemathesis.toml").write_text(SETTINGS % cursor_of(last), encoding="utf-8")
    async with serving(lab.server, seconds=5) as server:
        done = await asyncio.to_thread(_schemathesis, f"{server.address}/openapi.json", tmp_path)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    there = [each for each in OPERATIONS if each.needs != "channels" and each.name != "get_live"]
    assert f"Operations:       {len(there)} selected" in done.stdout
    assert "Warnings" not in done.stdout
    left = (await lab.store.sessions(limit=1000)).sessions
    assert len(left) > 3
    for summary in left:
        assert (await lab.get(f"{path_of(summary.agent_id)}/trace")).status == 200


def _schemathesis(url: str, folder: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("schemathesis")
    options = {"--checks": "all", "--seed": SEED, "--max-examples": EXAMPLES, "--generation-database": "none"}
    return subprocess.run(
        [program, "run", url, "--no-color", *[str(word) for pair in options.items() for word in pair]],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "SCHEMATHESIS_HOOKS": "tests.server.schemathesis_hooks"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def written(told: Json) -> str:
    return json.dumps(told, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    GOLDEN.write_text(written(DOCUMENT), encoding="utf-8")
