"""A whole session as one HTML file, without secrets, for a bug report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

import whyloop
from whyloop.inspector.saved import saved_page
from whyloop.server.bodies import ExecutionSummary, Trace
from whyloop.server.executions import Executions
from whyloop.server.operations import MessageQuery, TraceQuery
from whyloop.server.steps import message_sent
from whyloop.server.views import messages_page, state_view, trace_page
from whyloop.stores.live import reading_turns
from whyloop.stores.reading import Reading, read_session
from whyloop.stores.store import Store
from whyloop.stores.summaries import LONGEST_TITLE
from whyloop.values import encoding
from whyloop.values.redaction import Redaction, redacted
from whyloop.values.state import AgentState
from whyloop.values.step import RequestRecord
from whyloop.values.text import shortened
from whyloop.wire.document import step_document
from whyloop.wire.envelope import timestamp

_ALL = 10**9
FORMAT = 1


async def saved_session(store: Store, agent_id: str, redaction: Redaction | None) -> str:
    """Return a session as an HTML file."""
    reading = await read_session(store, agent_id)
    executions = await Executions(store, redaction).read(reading)
    trace = await trace_page(store, reading, TraceQuery(brief=True, limit=_ALL), redaction, executions)
    history = await messages_page(store, reading, MessageQuery(limit=_ALL), redaction)
    data = {
        "format": FORMAT,
        "saved_at": timestamp(store.now()),
        "info": {
            "version": whyloop.__version__,
            "store": "",
            "can_run": False,
            "read_only": True,
            "may_decide": False,
            "user": None,
        },
        # Other people read the file, so the texts of people and models are without secrets too.
        "state": _state(reading, redaction, executions),
        "trace": trace,
        "messages": redacted(_plain(history), redaction),
        "steps": await _steps(reading.state, redaction),
        "sent": await _sent(reading.state, redaction),
        "texts": redacted(_texts(reading.state), redaction),
    }
    return saved_page(_title(trace), msgspec.json.encode(data))


def _state(reading: Reading, redaction: Redaction | None, executions: Sequence[ExecutionSummary]) -> Any:
    """Return the session as it is shown, without secrets.

    In a text that was cut short a secret may not look like one. Executions have theirs cut after that.
    """
    shown = redacted(_plain(state_view(reading, redaction).body), redaction)
    if executions:
        first, last = executions[0], executions[-1]
        texts = {"title": first.query, "last_query": last.query, "reason": last.reason}
        for name, text in texts.items():
            if text:
                shown["session"][name] = text if name == "reason" else shortened(text, LONGEST_TITLE)
    return shown


def _plain(value: object) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


def _title(trace: Trace) -> str:
    return f"{trace.agent_id}: {trace.headline}"


async def _steps(state: AgentState, redaction: Redaction | None) -> list[Any]:
    """Return the steps in full; their requests refer to `sent` and `texts`, which many of them share."""
    turns, steps = reading_turns(), []
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
        steps.append({**redacted(shown, redaction), "request_sent": request})
        await turns.take()
    return steps


async def _sent(state: AgentState, redaction: Redaction | None) -> list[Any]:
    """Return all messages as the model reads them."""
    turns, messages = reading_turns(), []
    for message in state.messages:
        messages.append(redacted(message_sent(encoding.encode(message)), redaction))
        await turns.take()
    return messages


def _texts(state: AgentState) -> Mapping[str, Any]:
    """Return the texts that requests refer to, by their hashes: instructions as they are, others as JSON.

    Those of a step in progress, or of one that a fork left out, are in no request of the file.
    """
    coded = set[str | None]()
    for step in state.steps[state.steps.start :]:
        if (record := step.request) is not None:
            coded |= {record.tools, record.output}
            coded |= {place for place in record.messages or () if isinstance(place, str)}
    return {
        part.hash: msgspec.json.decode(part.text) if part.hash in coded else part.text
        for part in state.request_parts
    }
