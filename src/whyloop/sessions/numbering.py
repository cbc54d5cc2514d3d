"""Numbering what is told of an execution onwards, when another process began to tell it."""

from __future__ import annotations

import logging

import msgspec
from msgspec import Struct

from whyloop.broadcasting.adapter import AgentEventEnvelopeAdapter
from whyloop.errors import StoreError
from whyloop.stores.store import Store
from whyloop.values.state import AgentState

# More chunks than anybody tells between two envelopes that are kept: theirs are numbers too.
LEAP = 1_000_000

_log = logging.getLogger("whyloop")


async def numbered_on(events: AgentEventEnvelopeAdapter, store: Store, state: AgentState) -> None:
    """See to it that no number of an execution is told twice.

    What this process told itself it knows. Of what another told all but chunks may be kept, so after
    one that died in the middle of it the count goes on at a distance.
    """
    execution_id = state.execution.id
    try:
        last = await store.last_event(state.agent_id, execution_id=execution_id)
    except StoreError as error:
        # Those who watch do not keep anybody from working.
        _log.warning("what was told of session %r cannot be read: %s", state.agent_id, error)
        return
    if last is not None and last.seq > events.last(execution_id):
        events.go_on_from(execution_id, last.seq if _is_ending(last.body) else last.seq + LEAP)


class _Status(Struct):
    status: str = ""


class _Envelope(Struct):
    event: str
    data: _Status


def _is_ending(body: str) -> bool:
    try:
        envelope = msgspec.json.decode(body, type=_Envelope)
    except msgspec.DecodeError:
        return False
    return envelope.event == "agent.status" and envelope.data.status != "in_progress"
