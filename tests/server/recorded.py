"""Journals that are written by hand: entries that stand for the envelopes that a test asks for."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from whyloop import ContinuationDecision, ContinuationOutcome, Message, StopReason
from whyloop.stores import Store
from whyloop.stores.listing import summary_of
from whyloop.stores.live import live
from whyloop.stores.reading import read_end
from whyloop.values.judgement import Judged
from whyloop.values.state import AgentState
from whyloop.values.step_transitions import Answered, AnyTransition, Closed
from whyloop.values.transitions import Begun, Created, Queried, Resumed
from whyloop.wire.envelope import BroadcastConfig, envelope
from whyloop.wire.journal import Entry, encode_entry, entries_of
from whyloop.wire.view import chunk_received

NOW = datetime(2026, 1, 16, 10, tzinfo=UTC)
CONTINUE = ContinuationOutcome(ContinuationDecision.REQUEST_CONTINUATION, "ToolCallPresenceCheck")
STOP = ContinuationOutcome(ContinuationDecision.ALLOW_STOP, "ToolCallPresenceCheck", StopReason.COMPLETED)
PAUSE = ContinuationOutcome(ContinuationDecision.FORBID_CONTINUATION, "ApprovalRequired")


async def new_session(store: Store, agent_id: str = "a", identity: str | None = None) -> None:
    """Create a session in which nothing was asked."""
    empty = AgentState(agent_id=agent_id)
    created = Created(NOW, identity=identity or empty.identity, agent="agent")
    state = created.apply_to(empty)
    await store.create(summary_of(state), [Entry(encode_entry([created], empty))])


class Recorder:
    """Appends to a session, as a run of this process does.

    "begin", "step", "pause" and "end" stand for one numbered envelope each. "chunk" is streaming text.
    """

    def __init__(self, store: Store, agent_id: str = "a") -> None:
        self._store, self._agent_id = store, agent_id
        self._chunks = 0

    async def record(self, *kinds: str, execution: str = "e1", text: str = "hi") -> None:
        for kind in kinds:
            reading = await read_end(self._store, self._agent_id)
            state = reading.state
            if kind == "chunk":
                self._send_chunk(state)
                continue
            entries = entries_of(_transitions(kind, state, execution, text), state)
            await live(self._store).take_turn(self._agent_id)  # The text of a step goes before its entry.
            await self._store.append(self._agent_id, entries, after=reading.version)
            live(self._store).appended(self._agent_id)

    def _send_chunk(self, state: AgentState) -> None:
        self._chunks += 1
        event = chunk_received(state, NOW, "...", self._chunks, is_complete=False)
        body = msgspec.json.encode(envelope(event, BroadcastConfig.standard())).decode()
        live(self._store).send_chunk(self._agent_id, body)


def _transitions(kind: str, state: AgentState, execution: str, text: str) -> Sequence[AnyTransition]:
    match kind:
        case "begin" if execution == state.execution.id:
            return [Resumed(NOW), Begun(NOW)]
        case "begin":
            return [Queried(NOW, execution_id=execution, message=Message.user("go")), Begun(NOW)]
        case "step":
            number = state.execution.step_count + 1
            answered = Answered(NOW, started_at=NOW, message=Message.assistant(text))
            return [answered, Closed(NOW), Judged(NOW, outcome=CONTINUE, step=number)]
        case "pause":
            return [Judged(NOW, outcome=PAUSE)]
        case "end":
            return [Judged(NOW, outcome=STOP)]
    raise ValueError(kind)
