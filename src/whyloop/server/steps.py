"""One step in full with the request that the model got, and a session as its snapshot."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from whyloop.broadcasting.feed import first_reading
from whyloop.server.bodies import RequestSent, StepDetail
from whyloop.server.requests import BadRequestError
from whyloop.server.views import with_messages, with_steps
from whyloop.stores.live import reading_turns
from whyloop.stores.reading import Reading, ReadsJournals, read_session, release, texts_after
from whyloop.values import encoding
from whyloop.values.log import Log
from whyloop.values.next_action import IMPORTED_RUN
from whyloop.values.redaction import Redaction, redacted
from whyloop.values.state import AgentState
from whyloop.values.step import OpenStep, RequestRecord, Step
from whyloop.values.text import counted
from whyloop.values.transitions import Noted, Restored
from whyloop.wire.document import open_step_document, step_document
from whyloop.wire.journal import decode_entries

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
        step, shown = held.steps[index - 1], step_document(held, index)
        first, messages = step.first_message, held.messages_of(step)
        release(held)
    elif index == total + 1 and state.open_step is not None:
        step, shown = state.open_step, open_step_document(state) or {}
        first, messages = len(state.messages), () if step.message is None else (step.message,)
    else:
        has = counted(total, "closed step")
        raise BadRequestError(f"step {index} was not found: the session has {has}", 404, "no_such_step")
    said = messages[0] if messages and messages[0].is_assistant else None
    sent = await _request_sent(store, end, step, first, limit, redaction)
    shown |= {"text": said.text if said else None, "reasoning": said.reasoning if said else None}
    return StepDetail(**redacted(shown, redaction), request_sent=sent)


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
    head = replace(state, messages=Log(), steps=Log(), request_parts=Log())
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
