-- The tables of a PostgreSQL store, and the functions that change them. The store fills in its schema.
--
-- Each change is one function, and so one statement and one round trip: it locks the row of the session,
-- checks, and then either changes everything or returns the reason why it changed nothing. Changes come as
-- JSON, which PostgreSQL turns into rows itself.

CREATE TABLE {schema}.migrations (
    name text PRIMARY KEY,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE {schema}.sessions (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    agent_id text COLLATE "C" NOT NULL UNIQUE,
    identity text NOT NULL,
    status text COLLATE "C" NOT NULL,
    stop_reason text COLLATE "C",
    resolved_by text COLLATE "C",  -- JSON, which can hold a NUL
    waiting bigint NOT NULL,
    started_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    labels bigint[] NOT NULL,
    lease_owner text,
    lease_durable boolean NOT NULL DEFAULT false,
    lease_token bigint,
    lease_mark bigint,
    lease_lock bigint,  -- the advisory lock that the runner holds while it lives; NULL if it has none, or is durable
    lease_seconds double precision,
    lease_until timestamptz,
    stop_request text,
    engine text COLLATE "C",
    workflow text,
    workflow_token bigint,
    workflow_since timestamptz
) WITH (fillfactor = 80);  -- leaves room to renew a lease without a change of any index
CREATE INDEX ON {schema}.sessions (updated_at, agent_id)
    WHERE status = 'in_progress' OR (status = 'paused' AND waiting = 0);
CREATE INDEX ON {schema}.sessions (updated_at, agent_id) WHERE waiting > 0;
CREATE INDEX ON {schema}.sessions (updated_at);
CREATE INDEX ON {schema}.sessions (engine, workflow_since)
    WHERE engine IS NOT NULL AND status NOT IN ('in_progress', 'paused');
CREATE INDEX ON {schema}.sessions (lease_token) WHERE stop_request IS NOT NULL;

-- The wide part of a session, apart from the table that is read from end to end to count sessions. A search
-- text is compared as it is, so it is not compressed.
CREATE TABLE {schema}.summaries (
    session bigint PRIMARY KEY,
    summary text NOT NULL,  -- JSON; not jsonb, which refuses some texts that JSON allows
    search text COLLATE "C" NOT NULL
) WITH (fillfactor = 80, toast_tuple_target = 8160);

-- The tables below have no reference to sessions, which PostgreSQL would check row by row. Only the
-- functions below change them, and each of these holds the lock of the session's row.
CREATE TABLE {schema}.entries (
    session bigint NOT NULL,
    seq integer NOT NULL,
    body text NOT NULL,
    counts text,  -- a JSON list; those of the last entry are newer than those of the summary
    PRIMARY KEY (session, seq)
);

CREATE TABLE {schema}.checkpoints (
    session bigint NOT NULL,
    version integer NOT NULL,  -- that of the entry that it belongs to
    execution_id text COLLATE "C" NOT NULL,
    seq bigint NOT NULL,
    step_count bigint NOT NULL,
    message_count bigint NOT NULL,
    state text NOT NULL,
    PRIMARY KEY (session, version)
);

CREATE TABLE {schema}.keys (
    session bigint NOT NULL,
    key text COLLATE "C" NOT NULL,
    digest text NOT NULL,
    version integer NOT NULL,
    PRIMARY KEY (session, key)
);

-- Large payloads of an engine; a key is the SHA-256 digest of the data. They are not compressed, which would
-- take longer than to write them.
CREATE TABLE {schema}.claims (
    session bigint NOT NULL,
    key text COLLATE "C" NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (session, key)
);
ALTER TABLE {schema}.claims ALTER COLUMN data SET STORAGE EXTERNAL;

-- The index of the list: one row for each label of a session, in the order of the list.
CREATE TABLE {schema}.labels (
    label bigint NOT NULL,
    started_at timestamptz NOT NULL,
    agent_id text COLLATE "C" NOT NULL,
    PRIMARY KEY (label, started_at, agent_id)
);

-- One sequence for all sessions: no lease of a deleted session is ever that of a later one.
CREATE SEQUENCE {schema}.tokens;

-- How a session is listed: its summary, the fields of it that are columns too, and its labels.
CREATE TYPE {schema}.listing AS (
    identity text, status text, stop_reason text, resolved_by text, waiting bigint, started_at timestamptz,
    updated_at timestamptz, labels bigint[], summary text, search text
);

-- An entry and its checkpoint; an entry without one has no state.
CREATE TYPE {schema}.entry AS (
    body text, counts text, execution_id text, seq bigint, step_count bigint, message_count bigint, state text
);

-- A new session, or an append to one.
CREATE TYPE {schema}.change AS (
    agent_id text, entries {schema}.entry[], after bigint, token bigint, release boolean,
    key text, digest text, listed {schema}.listing
);

-- The result of a function: 'done', or the reason why it changed nothing.
CREATE TYPE {schema}.answer AS (
    outcome text, version integer, owner text, seconds double precision, token bigint,
    stop_request text, digest text, identity text, workflow text
);

CREATE FUNCTION {schema}.answered(
    outcome text, version integer DEFAULT NULL, owner text DEFAULT NULL,
    seconds double precision DEFAULT NULL, token bigint DEFAULT NULL, stop_request text DEFAULT NULL,
    digest text DEFAULT NULL, identity text DEFAULT NULL, workflow text DEFAULT NULL
) RETURNS {schema}.answer LANGUAGE sql IMMUTABLE AS $whyloop$
    SELECT ROW(
        outcome, version, owner, seconds, token, stop_request, digest, identity, workflow
    )::{schema}.answer
$whyloop$;

-- Return that a workflow of an engine is recorded for a session.
CREATE FUNCTION {schema}.opened(stored {schema}.sessions)
RETURNS {schema}.answer LANGUAGE sql IMMUTABLE AS $whyloop$
    SELECT {schema}.answered(
        'open', owner => stored.engine, token => stored.workflow_token, workflow => stored.workflow)
$whyloop$;

-- Return how long a lease still holds: 0 once it has lapsed, if a wrong clock gave it, or if its runner
-- is dead. A runner lives while its lock cannot be had; shared locks do not disturb each other.
CREATE FUNCTION {schema}.seconds_left(
    until timestamptz, seconds double precision, lock bigint, moment timestamptz
) RETURNS double precision LANGUAGE plpgsql VOLATILE AS $whyloop$
DECLARE
    remaining double precision := extract(epoch FROM until - coalesce(moment, clock_timestamp()));
BEGIN
    IF remaining > 0 AND remaining <= 2 * seconds THEN
        IF lock IS NULL OR NOT pg_try_advisory_xact_lock_shared(lock) THEN
            RETURN remaining;
        END IF;
    END IF;
    RETURN 0;
END
$whyloop$;

-- The mark is new with every request, so a request that comes again is known. The owner of a durable lease may
-- acquire it again while it is held.
CREATE FUNCTION {schema}.acquire(
    the_id text, the_owner text, for_seconds double precision, durable boolean, lock bigint, mark bigint,
    moment timestamptz
) RETURNS {schema}.answer LANGUAGE plpgsql AS $whyloop$
DECLARE
    stored {schema}.sessions;
    seconds double precision;
    version integer;
BEGIN
    SELECT * INTO stored FROM {schema}.sessions WHERE agent_id = the_id FOR UPDATE;
    IF stored.number IS NULL THEN
        RETURN {schema}.answered('missing');
    END IF;
    IF stored.lease_mark IS DISTINCT FROM mark THEN
        seconds := {schema}.seconds_left(stored.lease_until, stored.lease_seconds, stored.lease_lock, moment);
        IF seconds > 0 AND NOT (durable AND stored.lease_durable AND stored.lease_owner = the_owner) THEN
            RETURN {schema}.answered('running', owner => stored.lease_owner, seconds => seconds);
        END IF;
        UPDATE {schema}.sessions SET
            lease_owner = the_owner, lease_durable = durable, lease_token = nextval('{schema}.tokens'), lease_mark = mark,
            lease_lock = lock, lease_seconds = for_seconds,
            lease_until = coalesce(moment, clock_timestamp()) + make_interval(secs => for_seconds)
        WHERE number = stored.number RETURNING * INTO stored;
    END IF;
    SELECT coalesce(max(seq), 0) INTO version FROM {schema}.entries WHERE session = stored.number;
    RETURN {schema}.answered(
        'done', token => stored.lease_token, version => version, identity => stored.identity);
END
$whyloop$;

CREATE FUNCTION {schema}.renew(the_id text, the_token bigint, lock bigint, moment timestamptz)
RETURNS {schema}.answer LANGUAGE plpgsql AS $whyloop$
DECLARE
    stored {schema}.sessions;
BEGIN
    SELECT * INTO stored FROM {schema}.sessions WHERE agent_id = the_id FOR UPDATE;
    IF stored.number IS NULL THEN
        RETURN {schema}.answered('missing');
    END IF;
    IF stored.lease_token IS DISTINCT FROM the_token THEN
        RETURN {schema}.answered('lost', owner => stored.lease_owner);
    END IF;
    UPDATE {schema}.sessions
    SET lease_until = coalesce(moment, clock_timestamp()) + make_interval(secs => stored.lease_seconds),
        lease_lock = CASE WHEN stored.lease_durable THEN NULL ELSE lock END
    WHERE number = stored.number;
    RETURN {schema}.answered('done', stop_request => stored.stop_request);
END
$whyloop$;

CREATE FUNCTION {schema}.release(the_id text, the_token bigint)
RETURNS {schema}.answer LANGUAGE plpgsql AS $whyloop$
DECLARE
    request text;
BEGIN
    SELECT stop_request INTO request FROM {schema}.sessions
    WHERE agent_id = the_id AND lease_token = the_token FOR UPDATE;
    UPDATE {schema}.sessions SET
        lease_owner = NULL, lease_durable = false, lease_token = NULL, lease_mark = NULL,
        lease_lock = NULL, lease_seconds = NULL, lease_until = NULL, stop_request = NULL
    WHERE agent_id = the_id AND lease_token = the_token;
    RETURN {schema}.answered('done', stop_request => request);
END
$whyloop$;

CREATE FUNCTION {schema}.ask_to_stop(
    the_id text, request text, the_key text, the_digest text, again boolean, moment timestamptz
) RETURNS {schema}.answer LANGUAGE plpgsql AS $whyloop$
DECLARE
    stored {schema}.sessions;
    used {schema}.keys;
BEGIN
    SELECT * INTO stored FROM {schema}.sessions WHERE agent_id = the_id FOR UPDATE;
    IF stored.number IS NULL THEN
        RETURN {schema}.answered('missing');
    END IF;
    SELECT * INTO used FROM {schema}.keys WHERE session = stored.number AND key = the_key;
    IF FOUND THEN
        IF again AND used.digest = the_digest THEN
            RETURN {schema}.answered('done');
        END IF;
        RETURN {schema}.answered('used', version => used.version, digest => used.digest);
    END IF;
    IF {schema}.seconds_left(stored.lease_until, stored.lease_seconds, stored.lease_lock, moment) = 0 THEN
        RETURN {schema}.answered('free');
    END IF;
    UPDATE {schema}.sessions SET stop_request = request WHERE number = stored.number;
    IF the_key IS NOT NULL THEN
        INSERT INTO {schema}.keys SELECT stored.number, the_key, the_digest, coalesce(max(seq), 0)
        FROM {schema}.entries WHERE session = stored.number;
    END IF;
    RETURN {schema}.answered('done');
END
$whyloop$;

-- Tell whether a journal has these entries after the first ones.
CREATE FUNCTION {schema}.has_entries(the_number bigint, after bigint, wanted {schema}.entry[])
RETURNS boolean LANGUAGE sql STABLE AS $whyloop$
    SELECT coalesce(array_agg(body ORDER BY seq), ARRAY[]::text[]) = ARRAY(
        SELECT new.body FROM unnest(wanted) WITH ORDINALITY AS new ORDER BY new.ordinality
    )
    FROM {schema}.entries
    WHERE session = the_number AND seq > after AND seq <= after + cardinality(wanted)
$whyloop$;

-- Add entries with their checkpoints, and the key that they came with.
CREATE FUNCTION {schema}.add_entries(the_number bigint, after integer, change {schema}.change)
RETURNS void LANGUAGE plpgsql AS $whyloop$
BEGIN
    INSERT INTO {schema}.entries (session, seq, body, counts)
    SELECT the_number, after + new.ordinality, new.body, new.counts
    FROM unnest(change.entries) WITH ORDINALITY AS new;
    IF EXISTS (SELECT FROM unnest(change.entries) AS new WHERE new.state IS NOT NULL) THEN
        INSERT INTO {schema}.checkpoints
        SELECT the_number, after + new.ordinality, new.execution_id, new.seq, new.step_count,
            new.message_count, new.state
        FROM unnest(change.entries) WITH ORDINALITY AS new WHERE new.state IS NOT NULL;
    END IF;
    IF change.key IS NOT NULL THEN
        INSERT INTO {schema}.keys
        VALUES (the_number, change.key, change.digest, after + cardinality(change.entries));
    END IF;
END
$whyloop$;

-- Move a session in the index; rows that stay the same are not touched.
CREATE FUNCTION {schema}.reindex(
    the_id text, started_before timestamptz, before bigint[], started_after timestamptz, after bigint[]
) RETURNS void LANGUAGE plpgsql AS $whyloop$
BEGIN
    DELETE FROM {schema}.labels
    WHERE label = ANY (before) AND started_at = started_before AND agent_id = the_id
        AND NOT (started_before = started_after AND label = ANY (after));
    INSERT INTO {schema}.labels (label, started_at, agent_id)
    SELECT new.label, started_after, the_id FROM unnest(after) AS new (label)
    ON CONFLICT DO NOTHING;
END
$whyloop$;

-- `again` comes from a caller that does not know whether its first attempt arrived: entries that are
-- there already, at their version and to the letter, then count as done.
CREATE FUNCTION {schema}.create_session(change {schema}.change, again boolean)
RETURNS {schema}.answer LANGUAGE plpgsql AS $whyloop$
DECLARE
    listed {schema}.listing := change.listed;
    added bigint;
BEGIN
    INSERT INTO {schema}.sessions (
        agent_id, identity, status, stop_reason, resolved_by, waiting, started_at, updated_at, labels
    ) VALUES (
        change.agent_id, listed.identity, listed.status, listed.stop_reason, listed.resolved_by,
        listed.waiting, listed.started_at, listed.updated_at, listed.labels
    ) ON CONFLICT (agent_id) DO NOTHING RETURNING number INTO added;
    IF added IS NULL THEN
        SELECT number INTO added FROM {schema}.sessions
        WHERE agent_id = change.agent_id AND identity = listed.identity AND started_at = listed.started_at;
        IF again AND added IS NOT NULL AND {schema}.has_entries(added, 0, change.entries) THEN
            RETURN {schema}.answered('done');
        END IF;
        RETURN {schema}.answered('exists');
    END IF;
    INSERT INTO {schema}.summaries VALUES (added, listed.summary, listed.search);
    PERFORM {schema}.add_entries(added, 0, change);
    PERFORM {schema}.reindex(
        change.agent_id, listed.started_at, ARRAY[]::bigint[], listed.started_at, listed.labels);
    RETURN {schema}.answered('done');
END
$whyloop$;

CREATE FUNCTION {schema}.append_one(
    change {schema}.change, waiting boolean, again boolean, moment timestamptz
) RETURNS {schema}.answer LANGUAGE plpgsql AS $whyloop$
DECLARE
    listed {schema}.listing := change.listed;
    stored {schema}.sessions;
    used {schema}.keys;
    version integer;
    request text;
    seconds double precision;
BEGIN
    IF waiting THEN
        SELECT * INTO stored FROM {schema}.sessions WHERE agent_id = change.agent_id FOR UPDATE;
    ELSE
        SELECT * INTO stored FROM {schema}.sessions WHERE agent_id = change.agent_id
        FOR UPDATE SKIP LOCKED;
        IF NOT FOUND AND EXISTS (SELECT FROM {schema}.sessions WHERE agent_id = change.agent_id) THEN
            RETURN {schema}.answered('locked');
        END IF;
    END IF;
    IF stored.number IS NULL THEN
        RETURN {schema}.answered('missing');
    END IF;
    IF stored.lease_token = change.token THEN
        request := stored.stop_request;
    END IF;
    IF again AND cardinality(change.entries) > 0
        AND {schema}.has_entries(stored.number, change.after, change.entries)
    THEN
        RETURN {schema}.answered('done', stop_request => request);
    END IF;
    IF change.key IS NOT NULL THEN
        SELECT * INTO used FROM {schema}.keys WHERE session = stored.number AND key = change.key;
        IF FOUND THEN
            RETURN {schema}.answered('used', version => used.version, digest => used.digest);
        END IF;
    END IF;
    IF change.token IS NULL THEN
        seconds := {schema}.seconds_left(
            stored.lease_until, stored.lease_seconds, stored.lease_lock, moment);
        IF seconds > 0 THEN
            RETURN {schema}.answered('running', owner => stored.lease_owner, seconds => seconds);
        END IF;
    ELSIF change.token IS DISTINCT FROM stored.lease_token THEN
        RETURN {schema}.answered('lost', owner => stored.lease_owner);
    END IF;
    SELECT coalesce(max(seq), 0) INTO version FROM {schema}.entries WHERE session = stored.number;
    IF version <> change.after THEN
        RETURN {schema}.answered('conflict', version => version);
    END IF;
    PERFORM {schema}.add_entries(stored.number, version, change);
    IF listed.status IS NOT NULL THEN
        UPDATE {schema}.sessions SET
            status = listed.status, stop_reason = listed.stop_reason, resolved_by = listed.resolved_by,
            waiting = listed.waiting, started_at = listed.started_at, updated_at = listed.updated_at,
            labels = listed.labels
        WHERE number = stored.number;
        UPDATE {schema}.summaries SET summary = listed.summary, search = listed.search
        WHERE session = stored.number;
        IF stored.labels <> listed.labels OR stored.started_at <> listed.started_at THEN
            PERFORM {schema}.reindex(
                stored.agent_id, stored.started_at, stored.labels, listed.started_at, listed.labels);
        END IF;
    END IF;
    IF change.release AND change.token IS NOT NULL THEN
        PERFORM {schema}.release(stored.agent_id, change.token);
    END IF;
    RETURN {schema}.answered('done', stop_request => request);
END
$whyloop$;

-- Append to many sessions in one transaction, and return one answer for each append. Unless it is
-- waiting, a session whose row is locked is 'locked', so that it does not hold up the others.
CREATE FUNCTION {schema}.append(
    changes json, waiting boolean, again boolean, moment timestamptz
) RETURNS SETOF {schema}.answer LANGUAGE plpgsql AS $whyloop$
DECLARE
    change {schema}.change;
BEGIN
    FOR change IN SELECT * FROM json_populate_recordset(NULL::{schema}.change, changes) LOOP
        RETURN NEXT {schema}.append_one(change, waiting, again, moment);
    END LOOP;
END
$whyloop$;

-- The session stays where it is meanwhile; claims of one session do not wait for each other.
CREATE FUNCTION {schema}.keep_claim(the_id text, the_key text, the_data bytea)
RETURNS {schema}.answer LANGUAGE plpgsql AS $whyloop$
DECLARE
    the_number bigint;
BEGIN
    SELECT number INTO the_number FROM {schema}.sessions WHERE agent_id = the_id FOR KEY SHARE;
    IF the_number IS NULL THEN
        RETURN {schema}.answered('missing');
    END IF;
    INSERT INTO {schema}.claims VALUES (the_number, the_key, the_data) ON CONFLICT (session, key) DO NOTHING;
    RETURN {schema}.answered('done');
END
$whyloop$;

CREATE FUNCTION {schema}.record_workflow(
    the_id text, the_engine text, the_workflow text, moment timestamptz
) RETURNS {schema}.answer LANGUAGE plpgsql AS $whyloop$
DECLARE
    stored {schema}.sessions;
BEGIN
    SELECT * INTO stored FROM {schema}.sessions WHERE agent_id = the_id FOR UPDATE;
    IF stored.number IS NULL THEN
        RETURN {schema}.answered('missing');
    END IF;
    IF stored.engine IS NOT NULL AND (stored.engine, stored.workflow) <> (the_engine, the_workflow) THEN
        RETURN {schema}.opened(stored);
    END IF;
    UPDATE {schema}.sessions SET
        engine = the_engine, workflow = the_workflow, workflow_token = nextval('{schema}.tokens'),
        workflow_since = coalesce(moment, clock_timestamp())
    WHERE number = stored.number RETURNING * INTO stored;
    RETURN {schema}.answered('done', token => stored.workflow_token);
END
$whyloop$;

CREATE FUNCTION {schema}.forget_workflow(the_id text, the_token bigint)
RETURNS {schema}.answer LANGUAGE plpgsql AS $whyloop$
BEGIN
    UPDATE {schema}.sessions
    SET engine = NULL, workflow = NULL, workflow_token = NULL, workflow_since = NULL
    WHERE agent_id = the_id AND workflow_token = the_token;
    RETURN {schema}.answered('done');
END
$whyloop$;

CREATE FUNCTION {schema}.delete_session(
    the_id text, expected bigint, again boolean, moment timestamptz
) RETURNS {schema}.answer LANGUAGE plpgsql AS $whyloop$
DECLARE
    stored {schema}.sessions;
    version integer;
    seconds double precision;
BEGIN
    SELECT * INTO stored FROM {schema}.sessions WHERE agent_id = the_id FOR UPDATE;
    IF stored.number IS NULL THEN
        RETURN {schema}.answered(CASE WHEN again THEN 'done' ELSE 'missing' END);
    END IF;
    seconds := {schema}.seconds_left(stored.lease_until, stored.lease_seconds, stored.lease_lock, moment);
    IF seconds > 0 THEN
        RETURN {schema}.answered('running', owner => stored.lease_owner, seconds => seconds);
    END IF;
    IF stored.engine IS NOT NULL THEN
        RETURN {schema}.opened(stored);
    END IF;
    SELECT coalesce(max(seq), 0) INTO version FROM {schema}.entries WHERE session = stored.number;
    IF version <> expected THEN
        RETURN {schema}.answered('conflict', version => version);
    END IF;
    PERFORM {schema}.reindex(
        stored.agent_id, stored.started_at, stored.labels, stored.started_at, ARRAY[]::bigint[]);
    DELETE FROM {schema}.keys WHERE session = stored.number;
    DELETE FROM {schema}.claims WHERE session = stored.number;
    DELETE FROM {schema}.checkpoints WHERE session = stored.number;
    DELETE FROM {schema}.entries WHERE session = stored.number;
    DELETE FROM {schema}.summaries WHERE session = stored.number;
    DELETE FROM {schema}.sessions WHERE number = stored.number;
    RETURN {schema}.answered('done');
END
$whyloop$;

-- Count the sessions under a label, or all of them, by kind and by the day of their last change. To count is to
-- read many rows, so it may read tables from end to end, as nothing else here does. The inner query hides from
-- the planner how many moments there are: it would expect as many groups, and sort all rows.
CREATE FUNCTION {schema}.tally(
    the_label bigint, others bigint[], terms text[], since timestamptz, until timestamptz,
    updated_after timestamptz, updated_before timestamptz, first_day timestamptz
) RETURNS TABLE (
    status text, stop_reason text, resolved_by text, day integer, sessions bigint, waiting bigint,
    questions bigint
) LANGUAGE plpgsql STABLE SET enable_seqscan = on SET enable_bitmapscan = on AS $whyloop$
DECLARE
    query text := $query$
        SELECT session.status, session.stop_reason, session.resolved_by, session.waiting,
            CASE WHEN session.updated_at >= $8
                THEN floor(date_part('epoch', session.updated_at - $8) / 86400)::integer END AS day
        FROM {schema}.sessions AS session
    $query$;
BEGIN
    IF the_label IS NOT NULL THEN
        query := query || $query$
            JOIN {schema}.labels AS found ON found.agent_id = session.agent_id AND found.label = $1
                AND found.started_at = session.started_at
                AND ($4 IS NULL OR found.started_at > $4) AND ($5 IS NULL OR found.started_at < $5)
        $query$;
    END IF;
    IF cardinality(terms) > 0 THEN
        query := query || $query$
            JOIN {schema}.summaries ON summaries.session = session.number AND NOT EXISTS (
                SELECT FROM unnest($3) AS wanted (term) WHERE strpos(summaries.search, wanted.term) = 0
            )
        $query$;
    END IF;
    query := query || $query$
        WHERE session.labels @> $2
            AND ($4 IS NULL OR session.started_at > $4) AND ($5 IS NULL OR session.started_at < $5)
            AND ($6 IS NULL OR session.updated_at > $6) AND ($7 IS NULL OR session.updated_at < $7)
    $query$;
    RETURN QUERY EXECUTE format(
        'SELECT status, stop_reason, resolved_by, day, count(*), count(*) FILTER (WHERE waiting > 0), '
        'sum(waiting)::bigint FROM (%s OFFSET 0) AS counted GROUP BY 1, 2, 3, 4', query
    ) USING the_label, others, terms, since, until, updated_after, updated_before, first_day;
END
$whyloop$;

-- Send the chunks of those sessions that another connection follows, in payloads that a notification can
-- hold. A follower holds a shared advisory lock on a number in `space` for each session, or on 0 for all.
CREATE FUNCTION {schema}.send_chunks(
    channel text, space integer, chunks json, longest integer
) RETURNS void LANGUAGE plpgsql AS $whyloop$
DECLARE
    followed integer[];
    chunk text;
    payload text := '';
BEGIN
    SELECT array_agg(DISTINCT objid::bigint::integer) INTO followed FROM pg_locks
    WHERE locktype = 'advisory' AND objsubid = 2 AND classid::bigint = space AND granted
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND pid <> pg_backend_pid();
    IF followed IS NULL THEN
        RETURN;
    END IF;
    FOR chunk IN
        SELECT new.chunk FROM json_to_recordset(chunks) AS new (session integer, chunk text)
        WHERE new.session = ANY (followed) OR 0 = ANY (followed)
    LOOP
        IF octet_length(payload) + octet_length(chunk) > longest THEN
            PERFORM pg_notify(channel, payload);
            payload := '';
        END IF;
        payload := payload || chunk;
    END LOOP;
    IF payload <> '' THEN
        PERFORM pg_notify(channel, payload);
    END IF;
END
$whyloop$;
