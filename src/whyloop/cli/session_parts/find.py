"""From what somebody typed to a session."""

from __future__ import annotations

from whyloop.cli.session_parts.options import short
from whyloop.cli.session_parts.refusal import USAGE_ERROR, Refusal
from whyloop.errors import SessionNotFoundError
from whyloop.stores.records import Stored, Summary
from whyloop.stores.store import Store
from whyloop.values.state import AgentState
from whyloop.values.text import clean, shortened
from whyloop.wire.journal import state_of

PAGE = 1000
MOST_CANDIDATES = 8


async def found(store: Store, typed: str) -> Stored:
    """The session of this id, or the only one whose id begins like this."""
    typed = clean(typed)
    if not typed.strip():
        raise Refusal("name a session by its id, or by the beginning of it", USAGE_ERROR)
    try:
        return await store.read(typed)
    except SessionNotFoundError:
        candidates = await _beginning_with(store, typed)
    if len(candidates) == 1:
        return await store.read(candidates[0].agent_id)
    if not candidates:
        named = f"there is no session {shortened(typed)!r} in this store"
        raise Refusal(f"{named}: whyloop sessions lists those that there are")
    raise Refusal(_ambiguous(typed, candidates))


async def loaded(store: Store, typed: str) -> tuple[Summary, AgentState]:
    """How a session is listed, and all of it."""
    stored = await found(store, typed)
    return stored.summary, state_of(stored.summary.agent_id, stored.entries)


async def _beginning_with(store: Store, typed: str) -> list[Summary]:
    candidates: list[Summary] = []
    cursor: str | None = None
    while len(candidates) <= MOST_CANDIDATES:
        page = await store.sessions(limit=PAGE, after=cursor)
        candidates += [summary for summary in page.sessions if summary.agent_id.startswith(typed)]
        cursor = page.next
        if cursor is None:
            break
    return candidates


def _ambiguous(typed: str, candidates: list[Summary]) -> str:
    shown = candidates[:MOST_CANDIDATES]
    length = unique_length([summary.agent_id for summary in shown])
    lines = [f"several sessions begin with {shortened(typed)!r}; type more of the id:"]
    lines += [
        f"  {shortened(short(summary.agent_id, length))}  {shortened(summary.title)}" for summary in shown
    ]
    return "\n".join([*lines, "  …"] if len(candidates) > len(shown) else lines)


def unique_length(agent_ids: list[str], least: int = 8) -> int:
    """How many characters of these ids tell them apart."""
    length, distinct = least, len(set(agent_ids))
    while len({agent_id[:length] for agent_id in agent_ids}) < distinct:
        length += 1
    return length
