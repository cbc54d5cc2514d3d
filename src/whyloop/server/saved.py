"""A whole session as one HTML file, without secrets, for a bug report.

The file is the inspector with its script, its style and the data inside. It works offline and requests
nothing: its policy allows its own script and style, by their hashes.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import datetime
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

import whyloop
from whyloop.server.inputs import MessageQuery, TraceQuery
from whyloop.server.steps import message_sent, redacted_list
from whyloop.server.views import Executions, messages_page, state_view, trace_page
from whyloop.stores.live import reading_turns
from whyloop.stores.reading import ReadsJournals, read_session, release, release_all
from whyloop.values import encoding
from whyloop.values.messages import Message
from whyloop.values.redaction import Redaction, redacted
from whyloop.values.state import AgentState
from whyloop.values.step import RequestRecord
from whyloop.wire.document import step_document
from whyloop.wire.envelope import timestamp

_ALL = 10**9
_AT_ONCE = 50
FORMAT = 1


async def saved_session(
    store: ReadsJournals, agent_id: str, redaction: Redaction | None, saved_at: datetime
) -> list[str]:
    """Return a session as the pieces of an HTML file: that of 20,000 steps has 90 MB."""
    reading = await read_session(store, agent_id)
    executions = await Executions(store, redaction).read(reading)
    trace = await trace_page(store, reading, TraceQuery(brief=True, limit=_ALL), redaction, executions)
    history = await messages_page(store, reading, MessageQuery(limit=_ALL), redaction)
    data = {
        "format": FORMAT,
        "saved_at": timestamp(saved_at),
        "info": {
            "version": whyloop.__version__,
            "store": "",
            "can_run": False,
            "read_only": True,
            "may_decide": False,
            "user": None,
        },
        # Other people read the file, so the texts of people and models are without secrets too.
        "state": redacted(_plain(state_view(reading, redaction).body), redaction),
        "trace": trace,
        "messages": replace(history, messages=await redacted_list(map(_plain, history.messages), redaction)),
        "steps": await _steps(reading.state, redaction),
        "sent": await redacted_list(map(_sent, reading.state.messages), redaction),
        "texts": await _texts(reading.state, redaction),
    }
    start, end = _page_around(f"{trace.agent_id}: {trace.headline}")
    pieces = [start, *[piece async for piece in json_pieces(data, _json)], end]
    release(reading.state)
    release_all([*trace.steps, *history.messages])
    return pieces


async def json_pieces(value: object, encode: Callable[[object], str]) -> AsyncIterator[str]:
    """Yield a value as JSON in pieces, in turns with other tasks."""
    if isinstance(value, Struct):
        value = {field.encode_name: getattr(value, field.name) for field in msgspec.structs.fields(value)}
    if isinstance(value, Mapping):
        comma = "{"
        for name, each in value.items():
            yield f"{comma}{encode(name)}:"
            async for piece in json_pieces(each, encode):
                yield piece
            comma = ","
        yield "}" if value else "{}"
    elif isinstance(value, list):
        turns = reading_turns()
        yield "["
        for first in range(0, len(value), _AT_ONCE):
            yield ("," if first else "") + encode(value[first : first + _AT_ONCE])[1:-1]
            await turns.take()
        yield "]"
    else:
        yield encode(value)


def json_text(value: object) -> str:
    """Return a value as JSON."""
    return msgspec.json.encode(value).decode()


def _json(value: object) -> str:
    # Within JSON these characters are in texts only. Escaped, no text ends the element that it is in.
    text = json_text(value)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _plain(value: object) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


async def _steps(state: AgentState, redaction: Redaction | None) -> list[Raw]:
    """Return the steps in full.

    Their requests refer to the shared `sent` and `texts`.
    """
    turns, steps = reading_turns(), list[Raw]()
    for index in range(state.steps.start + 1, len(state.steps) + 1):
        step = state.steps[index - 1]
        said = next((each for each in state.messages_of(step)[:1] if each.is_assistant), None)
        record = step.request or RequestRecord()
        request = {
            **msgspec.structs.asdict(record),
            "messages": [[0, step.first_message]] if record.messages is None else record.messages,
            "incomplete": step.request is None,
        }
        shown = {
            **step_document(state, index),
            "text": said.text if said else None,
            "reasoning": said.reasoning if said else None,
        }
        steps.append(Raw(msgspec.json.encode({**redacted(shown, redaction), "request_sent": request})))
        await turns.take()
    return steps


def _sent(message: Message) -> dict[str, Any]:
    """Return a message as the model reads it."""
    return message_sent(encoding.encode(message))


async def _texts(state: AgentState, redaction: Redaction | None) -> Mapping[str, Raw]:
    """Return the texts that requests refer to, by hash.

    Instructions are text, others JSON.

    Those of a step in progress, or of one that a fork left out, are in no request of the file.
    """
    coded = set[str | None]()
    for step in state.steps[state.steps.start :]:
        if (record := step.request) is not None:
            coded |= {record.tools, record.output}
            coded |= {place for place in record.messages or () if isinstance(place, str)}
    parts = state.request_parts
    texts = [msgspec.json.decode(part.text) if part.hash in coded else part.text for part in parts]
    return dict(zip([part.hash for part in parts], await redacted_list(texts, redaction), strict=True))


# The file

_START = """<!doctype html>
<html lang="en" data-saved>
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<div id="app"></div>
<noscript>This file needs JavaScript. Its data is in it as JSON.</noscript>
<script type="application/json" id="whyloop-saved">"""

_END = """</script>
<script type="module">{script}</script>
</body>
</html>
"""


def _page_around(title: str) -> tuple[str, str]:
    """Return the page before and after its data, which `inspector/src/saved.ts` reads."""
    script, style = _asset("inspector.js"), _asset("inspector.css")
    policy = (
        f"default-src 'none'; script-src {_hash_of(script)}; style-src {_hash_of(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    start = _START.format(policy=policy, title=escape(title), style=style)
    return start, _END.format(script=script)


def _asset(name: str) -> str:
    return (files("whyloop") / "inspector" / "static" / name).read_text(encoding="utf-8").strip()


def _hash_of(content: str) -> str:
    return f"'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'"
