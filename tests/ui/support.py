"""The JavaScript module as a process that answers, and the schema of a message."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

import whyloop

HERE = Path(__file__).parent
GUIDE = HERE.parent.parent / "docs/own-chat-ui.md"
PACKAGE = Path(whyloop.__file__).parent / "ui"
README = PACKAGE / "README.md"
SCHEMA = Path(whyloop.__file__).parent / "wire/schemas/ui_message.schema.json"
NODE = shutil.which("node")

needs_node = pytest.mark.skipif(NODE is None, reason="there is no node on this machine")


class JavaScript:
    """The JavaScript functions, in one process for any number of calls."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def call(self, function: str, *arguments: object) -> Any:
        """Return the result of an exported function, or of one in `answer.mjs`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"function": function, "arguments": arguments}) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def each(self, function: str, arguments: Iterable[Sequence[object]]) -> list[Any]:
        """Return the results for many lists of arguments."""
        results: list[Any] = self.call("each", function, list(arguments))
        return results


@contextmanager
def javascript() -> Iterator[JavaScript]:
    assert NODE is not None
    command = [NODE, str(HERE / "answer.mjs"), str(PACKAGE / "index.js")]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
    )
    try:
        yield JavaScript(process)
    finally:
        process.communicate()


@cache
def _validator() -> Draft202012Validator:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def assert_valid(messages: Iterable[dict[str, Any]]) -> None:
    """Check that every message fits the schema, and that no id occurs twice."""
    seen: set[str] = set()
    for message in messages:
        _validator().validate(message)
        assert message["id"] not in seen, f"{message['id']} occurs twice"
        seen.add(message["id"])


def as_json(value: Any) -> Any:
    """Return the value as it is after JSON."""
    return json.loads(json.dumps(value))


def envelope(event: str, seq: int, execution_id: str = "e1", /, **data: Any) -> dict[str, Any]:
    """Return an envelope, its time according to its number."""
    return {
        "v": 1,
        "event": f"agent.{event}",
        "seq": seq,
        "timestamp": f"2026-01-16T10:{seq // 60 % 60:02d}:{seq % 60:02d}.000Z",
        "agent_id": "a1",
        "session_id": "a1",
        "execution_id": execution_id,
        "data": data,
    }
