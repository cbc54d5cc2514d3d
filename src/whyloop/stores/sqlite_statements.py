"""What a SQLite store asks of its file."""

from __future__ import annotations

# The one question before every change: may it be made? Version and lease are all that it takes.
SESSION = """
SELECT number, leases, lease_owner, lease_seconds, lease_until, stop_request,
       (SELECT coalesce(max(place), 0) & 0xFFFFFFFF FROM entries
        WHERE place > number << 32 AND place < (number + 1) << 32)
FROM sessions WHERE agent_id = ?
"""

# The one write of a running session, twice a step: it finds the lease as it should be, or does nothing.
ADD_AT_ONCE = """
INSERT INTO entries (place, body, checksum) SELECT ?, ?, ? FROM sessions
WHERE number = ? AND leases = ? AND lease_owner IS NOT NULL AND stop_request IS NULL
"""

SUMMARY = """
    listed.agent_id, listed.status, listed.stop_reason, listed.started_at, listed.updated_at,
    listed.step_count, listed.title, listed.parent_agent_id, listed.metadata,
    listed.checksum, listed.lease_owner, listed.lease_seconds, listed.lease_until,
    (SELECT coalesce(max(place), 0) & 0xFFFFFFFF FROM entries
     WHERE place > listed.number << 32 AND place < (listed.number + 1) << 32),
    listed.number
"""
READ_SUMMARY = f"SELECT {SUMMARY} FROM sessions AS listed WHERE agent_id = ?"
READ_ENTRIES = """
SELECT place & 0xFFFFFFFF, body, checksum FROM entries
WHERE place > (?1 << 32) + ?2 AND place < (?1 + 1) << 32 ORDER BY place
"""

CREATE = """
INSERT INTO sessions (
    status, stop_reason, started_at, updated_at, step_count, title, parent_agent_id, metadata, checksum,
    agent_id
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
UPDATE = """
UPDATE sessions SET
    status = ?, stop_reason = ?, started_at = ?, updated_at = ?, step_count = ?, title = ?,
    parent_agent_id = ?, metadata = ?, checksum = ?
WHERE number = ?
"""
ADD_ENTRY = "INSERT INTO entries (place, body, checksum) VALUES (?, ?, ?)"

ACQUIRE = """
UPDATE sessions SET
    leases = leases + 1, lease_owner = ?, lease_seconds = ?, lease_until = ?
WHERE number = ?
"""
RENEW = "UPDATE sessions SET lease_until = ? WHERE number = ?"
RELEASE = """
UPDATE sessions SET
    lease_owner = NULL, lease_seconds = NULL, lease_until = NULL, stop_request = NULL
WHERE number = ?
"""
ASK_TO_STOP = "UPDATE sessions SET stop_request = ? WHERE number = ?"

# What was told of a session has its place as entries have.
LAST_PLACE = """
SELECT coalesce((SELECT max(place) FROM events WHERE place < (number + 1) << 32), 0), number
FROM sessions WHERE agent_id = ?
"""
ADD_EVENT = "INSERT INTO events (place, execution_id, seq, body, checksum) VALUES (?, ?, ?, ?, ?)"
READ_EVENTS = """
SELECT place & 0xFFFFFFFF, execution_id, seq, body, checksum FROM events
WHERE place > (?1 << 32) + ?2 AND place < (?1 + 1) << 32 ORDER BY place LIMIT ?3
"""
LAST_EVENT = """
SELECT place & 0xFFFFFFFF, execution_id, seq, body, checksum FROM events
WHERE place > ?1 << 32 AND place < (?1 + 1) << 32 ORDER BY place DESC LIMIT 1
"""
LAST_OF_EXECUTION = """
SELECT place & 0xFFFFFFFF, execution_id, seq, body, checksum FROM events
WHERE execution_id = ?2 AND seq <= ?3 AND place > ?1 << 32 AND place < (?1 + 1) << 32
ORDER BY seq DESC, place DESC LIMIT 1
"""

DELETE_EVENTS = "DELETE FROM events WHERE place > ?1 << 32 AND place < (?1 + 1) << 32"
DELETE_ENTRIES = "DELETE FROM entries WHERE place > ?1 << 32 AND place < (?1 + 1) << 32"
DELETE_SESSION = "DELETE FROM sessions WHERE number = ?"

# What a session's places in the index follow from.
LISTING = "SELECT status, stop_reason, started_at, metadata, checksum FROM sessions WHERE number = ?"
EVERY_SESSION = "SELECT number, status, stop_reason, started_at, metadata FROM sessions"
ADD_LABEL = "INSERT INTO labels (label, started_at, session) VALUES (?, ?, ?)"
REMOVE_LABEL = "DELETE FROM labels WHERE label = ? AND started_at = ? AND session = ?"
COUNT_LABEL = """
SELECT count(*) FROM (
    SELECT 1 FROM labels WHERE label = ? AND started_at > ? AND started_at <= ? LIMIT ?
)
"""

_ALSO = """
    AND EXISTS (
        SELECT 1 FROM labels
        WHERE label = ? AND started_at = found.started_at AND session = found.session
    )
"""


def page(others: int) -> str:
    """The youngest sessions of one place in the index that have some other labels as well.

    CROSS JOIN keeps the order of the two tables, and with it that of the list.
    """
    return f"""
SELECT {SUMMARY} FROM labels AS found CROSS JOIN sessions AS listed ON listed.number = found.session
WHERE found.label = ? AND found.started_at > ? AND found.started_at <= ? {_ALSO * others}
    AND (found.started_at < ? OR listed.agent_id < ?)
ORDER BY found.started_at DESC, listed.agent_id DESC LIMIT ?
"""
