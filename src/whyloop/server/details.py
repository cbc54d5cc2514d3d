"""A session in full, without secrets: a step with its request, a snapshot, and all of it as one HTML file.

The file is for a bug report: the inspector with its script, its style and the data inside. It works offline
and requests nothing: its policy allows its own script and style, by their hashes.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

import whyloop
from whyloop.server.bodies import RequestSent, StepDetail
from whyloop.server.inputs import MessageQuery, TraceQuery
from whyloop.server.requests import BadRequestError
from whyloop.server.views import Executions, messages_page, state_view, trace_page, with_messages, with_steps
from whyloop.stores.reading import (
    Reading,
    ReadsJournals,
    first_reading,
    read_session,
    release,
    release_all,
    texts_after,
)
from whyloop.stores.turns import reading_turns
from whyloop.values import encoding
from whyloop.values.log import EMPTY
from whyloop.values.messages import Message
from whyloop.values.next_action import IMPORTED_RUN
from whyloop.values.redaction import Redaction, redacted
from whyloop.values.state import AgentState
from whyloop.values.step import OpenStep, RequestRecord, Step
from whyloop.values.text import counted
from whyloop.values.transitions import Noted, Restored
from whyloop.wire.document import open_step_document, step_document
from whyloop.wire.envelope import timestamp
from whyloop.wire.journal import decode_entries

_ALL = 10**9
_AT_ONCE = 50
FORMAT = 1
# As `encode_entry` writes them: entries without one of these are not decoded in a search for texts.
_WITH_TEXTS = ('"is":"noted"', '"is":"restored"')


async def step_detail(
    store: ReadsJournals, end: Reading, index: int, limit: int, redaction: Redaction | None
) -> StepDetail:
    """Return a step, open or closed, with the last messages of its request."""
    state, total = end.state, len(end.state.steps)
    step: Step | OpenStep
    if 1 <= index <= total:
        held = await with_steps(store, end, max(0, index - 2), index)
        step, shown = held.steps[index - 1], step_document(held, index, debug=True)
        first, messages = step.first_message, held.messages_of(step)
        release(held)
    elif index == total + 1 and state.open_step is not None:
        step, shown = state.open_step, open_step_document(state, debug=True) or {}
        first, messages = len(state.messages), () if step.message is None else (step.message,)
    else:
        has = counted(total, "closed step")
        raise BadRequestError(f"step {index} was not found: the session has {has}", 404, "no_such_step")
    sent = await _request_sent(store, end, step, first, limit, redaction)
    return StepDetail(**redacted(_with_answer(shown, messages), redaction), request_sent=sent)


def _with_answer(step: dict[str, Any], messages: Sequence[Message]) -> dict[str, Any]:
    """Return a step with the texts of its answer, the first of its messages."""
    said = messages[0] if messages and messages[0].is_assistant else None
    return {**step, "text": said.text if said else None, "reasoning": said.reasoning if said else None}


async def _request_sent(
    store: ReadsJournals,
    end: Reading,
    step: Step | OpenStep,
    history: int,
    limit: int,
    redaction: Redaction | None,
) -> RequestSent:
    """Return a request as the model got it, from its record.

    `history` messages came before.
    """
    record = step.request or RequestRecord()
    places = _places(record, history)
    wanted = places[max(0, len(places) - limit) :]
    hashes = {each for each in (record.instructions, record.tools, record.output) if each is not None}
    texts = await _texts(store, end, hashes | {place for place in wanted if isinstance(place, str)})
    indices = [place for place in wanted if isinstance(place, int)]
    held = end.state
    if indices:
        held = await with_messages(store, end, min(indices), max(indices) + 1)
    messages, turns = list[Any](), reading_turns()
    for place in wanted:
        if isinstance(place, int):
            messages.append(redacted(message_sent(encoding.encode(held.messages[place])), redaction))
        elif place in texts:
            messages.append(redacted(message_sent(msgspec.json.decode(texts[place])), redaction))
        await turns.take()
    release(held)
    lost = hashes | {place for place in wanted if isinstance(place, str)}
    shown = {
        "instructions": texts.get(record.instructions or ""),
        "tools": _decoded(texts, record.tools),
        "message_count": len(places),
        "output": _decoded(texts, record.output),
        "tool_choice": record.tool_choice,
        "max_tokens": record.max_tokens,
        "changed_by": list(record.changed_by),
        "incomplete": step.request is None or not lost <= texts.keys() or _is_imported(step),
    }
    return RequestSent(**redacted(shown, redaction), messages=messages)


def _places(record: RequestRecord, history: int) -> Sequence[int | str]:
    """Return the index in the history, or the hash, of each message of a request."""
    if record.messages is None:
        return range(history)
    places: list[int | str] = []
    for place in record.messages:
        places += [place] if isinstance(place, str) else range(*place)
    return places


async def _texts(store: ReadsJournals, end: Reading, hashes: Collection[str]) -> Mapping[str, str]:
    """Return the texts behind these hashes.

    Each is in the journal where it was first used.
    """
    found: dict[str, str] = {}
    if not hashes:
        return found
    start = await first_reading(store, end.state.agent_id)
    async with aclosing(texts_after(store, start.summary, 0, end.version)) as portions:
        async for _, texts in portions:
            for text in texts:
                if any(mark in text for mark in _WITH_TEXTS):
                    found |= _noted(text, hashes)
            if found.keys() >= set(hashes):
                break
    return found


def _noted(text: str, hashes: Collection[str]) -> dict[str, str]:
    parts = []
    for transition in decode_entries([text])[0].transitions:
        if isinstance(transition, Noted):
            parts.append(transition.part)
        elif isinstance(transition, Restored):
            parts += transition.apply_to(AgentState()).request_parts
    return {part.hash: part.text for part in parts if part.hash in hashes}


def _decoded(texts: Mapping[str, str], name: str | None) -> Any:
    return None if name is None or name not in texts else msgspec.json.decode(texts[name])


def message_sent(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message as a model reads it, without the bytes of images and files."""
    shown = {key: value for key, value in message.items() if key not in ("extras", "shown")}
    if isinstance(content := shown.get("content"), list):
        shown["content"] = [{key: part[key] for key in part if key != "data"} for part in content]
    return shown


def _is_imported(step: Step | OpenStep) -> bool:
    outcome = step.outcome if isinstance(step, Step) else None
    return outcome is not None and outcome.evaluation_for(IMPORTED_RUN) is not None


# Snapshots


async def snapshot_view(store: ReadsJournals, agent_id: str, redaction: Redaction | None) -> dict[str, Any]:
    """Return the state of a session as `to_dict` writes it, without credentials."""
    state = (await read_session(store, agent_id)).state
    head = replace(state, messages=EMPTY, steps=EMPTY, request_parts=EMPTY)
    shown: dict[str, Any] = redacted(head.to_dict(), redaction)
    for name in ("messages", "steps", "request_parts"):
        shown[name] = await redacted_list(map(encoding.encode, getattr(state, name)), redaction)
    release(state)
    return shown


async def redacted_list(values: Iterable[object], redaction: Redaction | None) -> list[Raw]:
    """Return plain values as JSON without secrets, in turns with other tasks."""
    turns, shown = reading_turns(), list[Raw]()
    for value in values:
        shown.append(Raw(msgspec.json.encode(redacted(value, redaction))))
        await turns.take()
    return shown


# The file


async def saved_session(
    store: ReadsJournals, agent_id: str, redaction: Redaction | None, saved_at: datetime
) -> list[str]:
    """Return a session as the pieces of an HTML file, which may have 90 MB."""
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
            "may": ["inspect"],
            "user": None,
        },
        # Other people read the file, so secrets are removed even from texts of people and models.
        "state": redacted(_plain(state_view(reading, redaction).body), redaction),
        "trace": trace,
        "messages": replace(history, messages=await redacted_list(map(_plain, history.messages), redaction)),
        "steps": await _steps(reading.state, redaction),
        "sent": await redacted_list(map(_sent, reading.state.messages), redaction),
        "texts": await _all_texts(reading.state, redaction),
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
    # In JSON, these characters only occur in strings. Escaping them keeps a string from ending its element.
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
        record = step.request or RequestRecord()
        request = {
            **msgspec.structs.asdict(record),
            "messages": [[0, step.first_message]] if record.messages is None else record.messages,
            "incomplete": step.request is None,
        }
        shown = _with_answer(step_document(state, index, debug=True), state.messages_of(step))
        steps.append(Raw(msgspec.json.encode({**redacted(shown, redaction), "request_sent": request})))
        await turns.take()
    return steps


def _sent(message: Message) -> dict[str, Any]:
    """Return a message as the model reads it."""
    return message_sent(encoding.encode(message))


async def _all_texts(state: AgentState, redaction: Redaction | None) -> Mapping[str, Raw]:
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
