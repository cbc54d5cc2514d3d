-- The tables of a SQLite store. Times are microseconds since 1970, in UTC.
CREATE TABLE migrations (name TEXT PRIMARY KEY, applied_at TEXT NOT NULL);

-- A number is never used twice, so that nothing of a deleted session, not even its leases, can be taken for
-- that of a later session with the same id. Some fields of the summary are columns: sessions are found and
-- counted by them. The table is narrow, since counting reads all of it.
-- `workflow` may be open at `engine` since then; `workflows` counts how often one was recorded.
CREATE TABLE sessions (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    agent_id TEXT NOT NULL UNIQUE,
    identity TEXT NOT NULL,
    status TEXT NOT NULL,
    stop_reason TEXT,
    resolved_by TEXT,
    waiting INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    leases INTEGER NOT NULL DEFAULT 0,
    lease_owner TEXT,
    lease_durable INTEGER NOT NULL DEFAULT 0,
    lease_seconds REAL,
    lease_until INTEGER,
    lease_runner TEXT,
    stop_request TEXT,
    engine TEXT,
    workflow TEXT,
    workflows INTEGER NOT NULL DEFAULT 0,
    workflow_since INTEGER
);
CREATE INDEX sessions_to_continue ON sessions (updated_at, agent_id)
    WHERE status = 'in_progress' OR (status = 'paused' AND waiting = 0);
CREATE INDEX sessions_waiting ON sessions (updated_at, agent_id) WHERE waiting > 0;
CREATE INDEX sessions_by_update ON sessions (updated_at);
CREATE INDEX open_workflows ON sessions (engine, workflow_since)
    WHERE engine IS NOT NULL AND status NOT IN ('in_progress', 'paused');
CREATE INDEX stop_requests ON sessions (number) WHERE stop_request IS NOT NULL;

-- The summary is JSON, the search text is compared with the terms of a search, and the labels, a JSON list,
-- are those in the last table below.
CREATE TABLE summaries (
    session INTEGER PRIMARY KEY,
    summary TEXT NOT NULL,
    search TEXT NOT NULL,
    labels TEXT NOT NULL,
    checksum INTEGER NOT NULL
);

-- The place of an entry is the number of its session and its own number there, in 32 bits each. So the
-- entries of a session are adjacent, and adding one touches one page: a key of two columns would need an
-- index beside the table, and every step would write twice as much. Places of checkpoints are those of
-- their entries. The counts of the last entry, a JSON list, are newer than those of the summary: to write them
-- here costs a step next to nothing.
CREATE TABLE entries (
    place INTEGER PRIMARY KEY,
    body TEXT NOT NULL,
    counts TEXT,
    checksum INTEGER NOT NULL
);
CREATE TABLE checkpoints (
    place INTEGER PRIMARY KEY,
    checksum INTEGER NOT NULL,
    execution_id TEXT NOT NULL,
    seq INTEGER NOT NULL,
    step_count INTEGER NOT NULL,
    message_count INTEGER NOT NULL,
    state TEXT NOT NULL
);
CREATE TABLE keys (
    session INTEGER NOT NULL,
    key TEXT NOT NULL,
    digest TEXT NOT NULL,
    version INTEGER NOT NULL,
    PRIMARY KEY (session, key)
) WITHOUT ROWID;

-- Large payloads of an engine; a key is the SHA-256 digest of the data.
CREATE TABLE claims (
    session INTEGER NOT NULL,
    key TEXT NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (session, key)
);

-- The index of the list: one row for each label of a session, in the order of the list.
CREATE TABLE labels (
    label INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    session INTEGER NOT NULL,
    PRIMARY KEY (label, started_at, session)
) WITHOUT ROWID;
