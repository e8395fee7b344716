-- Version 1 of the schema. All functions run in the schema in which they are created.

-- The one row shows whose schema this is.
CREATE TABLE meta (
    application text    NOT NULL PRIMARY KEY,
    version     integer NOT NULL,
    -- The oldest schema version whose release of the library may use this schema.
    oldest      integer NOT NULL
);
INSERT INTO meta VALUES ('concentric', 0, 1);

-- The source of versions and fences. Without a cache, so that a later number is a greater one.
CREATE SEQUENCE counter CACHE 1;
-- The order of decisions and of used keys.
CREATE SEQUENCE positions CACHE 1;

-- A list of turns. Its first `parent_len` turns are those of its parent, so that a fork copies none.
CREATE TABLE logs (
    id         bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    parent     bigint  REFERENCES logs (id),
    parent_len bigint  NOT NULL,
    -- The number of its ancestors.
    depth      integer NOT NULL
);
CREATE INDEX logs_of_parent ON logs (parent, parent_len) WHERE parent IS NOT NULL;

CREATE TABLE turns (
    log   bigint NOT NULL,
    -- The position in the conversation.
    n     bigint NOT NULL,
    -- The checksum of this turn and of those before it.
    chain bytea  NOT NULL,
    -- The bytes of this turn and of those before it, so that the size of a fork is known without reading them.
    total bigint NOT NULL,
    -- The exact JSON: `jsonb` changes the order of names and the text of numbers.
    body  bytea  NOT NULL,
    PRIMARY KEY (log, n)
);

CREATE TABLE threads (
    tenant          text   COLLATE "C" NOT NULL,
    thread          text   COLLATE "C" NOT NULL,
    session         text   NOT NULL,
    version         bigint NOT NULL,
    -- The write that resulted in this version, so that its repetition is recognised.
    attempt         bytea  NOT NULL,
    log             bigint NOT NULL,
    -- The number of turns, and their bytes.
    len             bigint NOT NULL,
    bytes           bigint NOT NULL,
    -- The id of the last change.
    change          text,
    -- The suspended turn, without the first turns of its transcript, which are those of the thread.
    suspended       bytea,
    suspended_slots bytea,
    shared          bigint,
    PRIMARY KEY (tenant, thread)
);
CREATE INDEX threads_of_log ON threads (log);

CREATE TABLE slots (
    tenant text  COLLATE "C" NOT NULL,
    thread text  COLLATE "C" NOT NULL,
    slot   text  COLLATE "C" NOT NULL,
    place  text  COLLATE "C" NOT NULL,
    value  bytea NOT NULL,
    PRIMARY KEY (tenant, thread, slot, place)
);

-- Times are nanoseconds since 1970.
CREATE TABLE runs (
    id         bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant     text    COLLATE "C" NOT NULL,
    thread     text    COLLATE "C" NOT NULL,
    run        text    COLLATE "C" NOT NULL,
    client_id  text    COLLATE "C" NOT NULL,
    status     text    COLLATE "C" NOT NULL CHECK (status IN ('running', 'suspended', 'ended')),
    version    bigint  NOT NULL,
    fence      bigint  NOT NULL,
    -- The write that resulted in this version, so that its repetition is recognised.
    attempt    bytea   NOT NULL,
    -- Since when it waits, or is over.
    since      bigint,
    -- Whether the run was ever suspended: such runs count towards the limits until they end.
    waited     boolean NOT NULL DEFAULT false,
    -- The message of the open round.
    message    text    COLLATE "C",
    log        bigint  NOT NULL,
    len        bigint  NOT NULL,
    bytes      bigint  NOT NULL,
    -- The state without its turns.
    head       bytea   NOT NULL,
    replies    bytea   NOT NULL,
    replied_at bigint,
    -- Of the names, the head, the replies and the turns.
    checksum   bytea   NOT NULL,
    UNIQUE (tenant, thread, run)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX runs_live ON runs (tenant, thread, client_id) WHERE status = 'running';
CREATE INDEX runs_open ON runs (tenant, thread, id) WHERE status <> 'ended';
CREATE INDEX runs_waiting ON runs (tenant, thread) WHERE waited AND status <> 'ended';
CREATE INDEX runs_suspended ON runs (since) WHERE status = 'suspended';
CREATE INDEX runs_ended ON runs (since) WHERE status = 'ended';
CREATE INDEX runs_of_log ON runs (log);

-- The lease of each run, apart from it, so that a renewal writes few bytes.
CREATE TABLE leases (
    run       bigint  PRIMARY KEY REFERENCES runs (id) ON DELETE CASCADE,
    -- Whether the run is running.
    held      boolean NOT NULL,
    fence     bigint  NOT NULL,
    until     bigint  NOT NULL,
    takeovers integer NOT NULL DEFAULT 0,
    cancel    boolean NOT NULL DEFAULT false
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX leases_until ON leases (until, run) WHERE held;

-- All interrupts that runs have raised, answered or not.
CREATE TABLE questions (
    run      bigint NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    tenant   text   COLLATE "C" NOT NULL,
    thread   text   COLLATE "C" NOT NULL,
    question text   COLLATE "C" NOT NULL,
    PRIMARY KEY (run, question)
);
CREATE INDEX questions_of_thread ON questions (tenant, thread, question);

CREATE TABLE effects (
    tenant     text    COLLATE "C" NOT NULL,
    key        text    COLLATE "C" NOT NULL,
    -- The run, if it is stored.
    thread     text    COLLATE "C",
    run        text    COLLATE "C",
    tool       text    NOT NULL,
    arguments  bytea   NOT NULL,
    -- Whether a later success replaces a failure.
    repeatable boolean NOT NULL,
    attempt    bytea   NOT NULL,
    -- When a purge saw an effect without a run first.
    seen       bigint,
    outcome    bytea,
    failed     boolean NOT NULL DEFAULT false,
    PRIMARY KEY (tenant, key)
);
CREATE INDEX effects_of_run ON effects (tenant, thread, run) WHERE run IS NOT NULL;
CREATE INDEX effects_of_none ON effects (seen) WHERE run IS NULL;

CREATE TABLE once (
    tenant  text   COLLATE "C" NOT NULL,
    key     text   COLLATE "C" NOT NULL,
    until   bigint NOT NULL,
    -- The position in the order of use.
    n       bigint NOT NULL,
    attempt bytea  NOT NULL,
    PRIMARY KEY (tenant, key)
);
CREATE INDEX once_until ON once (until);
CREATE INDEX once_used ON once (n);

CREATE TABLE decisions (
    tenant   text   COLLATE "C" NOT NULL,
    id       text   COLLATE "C" NOT NULL,
    n        bigint NOT NULL,
    tool     text   COLLATE "C" NOT NULL,
    span     text   COLLATE "C" NOT NULL CHECK (span IN ('run', 'thread', 'session', 'always')),
    -- The first conversation of the session, for the span 'session'.
    thread   text   COLLATE "C" NOT NULL,
    run      text   COLLATE "C" NOT NULL,
    decision bytea  NOT NULL,
    PRIMARY KEY (tenant, id)
);
CREATE INDEX decisions_of_tool ON decisions (tenant, tool);
CREATE INDEX decisions_of_thread ON decisions (tenant, thread);

CREATE TABLE memories (
    tenant text   COLLATE "C" NOT NULL,
    owner  text   COLLATE "C" NOT NULL,
    id     text   COLLATE "C" NOT NULL,
    at     bigint NOT NULL,
    -- Not `text`, which cannot contain the character 0.
    body   bytea  NOT NULL,
    PRIMARY KEY (tenant, owner, id)
);
CREATE INDEX memories_by_time ON memories (tenant, owner, at, id);

-- Results that can be made again.
CREATE TABLE cache (
    tenant text   COLLATE "C" NOT NULL,
    -- Empty for an entry that belongs to no conversation.
    thread text   COLLATE "C" NOT NULL,
    space  text   COLLATE "C" NOT NULL,
    digest bytea  NOT NULL,
    at     bigint NOT NULL,
    until  bigint NOT NULL,
    -- Of the names, the digest and the value.
    bytes  bigint NOT NULL,
    value  bytea  NOT NULL,
    PRIMARY KEY (tenant, thread, space, digest)
);
CREATE INDEX cache_until ON cache (until) INCLUDE (bytes);

-- A server may have been built without lz4.
DO $$ BEGIN
    ALTER TABLE turns ALTER COLUMN body SET COMPRESSION lz4;
    ALTER TABLE runs ALTER COLUMN head SET COMPRESSION lz4;
    ALTER TABLE cache ALTER COLUMN value SET COMPRESSION lz4;
EXCEPTION WHEN feature_not_supported THEN
    NULL;
END $$;

---------------------------------------------------------------------------------------------------
-- Times, locks and checksums.

-- The time of the caller if it has a clock of its own, else that of the server.
CREATE FUNCTION now_or(p_now bigint) RETURNS bigint
LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    SELECT coalesce(p_now, (extract(epoch FROM clock_timestamp()) * 1000000000)::bigint)
$$;

-- Locks a name until the end of the transaction, for rows that do not exist yet.
CREATE FUNCTION lock_name(VARIADIC p_names text[]) RETURNS void
LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    SELECT pg_advisory_xact_lock(
        hashtextextended(concat_ws(chr(31), VARIADIC current_schema()::text || p_names), 0))
$$;

-- A part of a checksum: its length in 8 bytes, the lowest first, and its bytes.
CREATE FUNCTION sum_part(p_part bytea) RETURNS bytea
LANGUAGE sql IMMUTABLE SET search_path FROM CURRENT AS $$
    SELECT set_byte(set_byte(set_byte(set_byte('\x0000000000000000'::bytea,
        0, octet_length(p_part) & 255), 1, (octet_length(p_part) >> 8) & 255),
        2, (octet_length(p_part) >> 16) & 255), 3, octet_length(p_part) >> 24) || p_part
$$;

CREATE FUNCTION run_sum(
    p_tenant text, p_thread text, p_run text, p_head bytea, p_replies bytea, p_chain bytea
) RETURNS bytea
LANGUAGE sql IMMUTABLE SET search_path FROM CURRENT AS $$
    SELECT sha256(sum_part(convert_to(p_tenant, 'UTF8')) || sum_part(convert_to(p_thread, 'UTF8'))
        || sum_part(convert_to(p_run, 'UTF8')) || sum_part(p_head) || sum_part(p_replies)
        || sum_part(p_chain))
$$;

---------------------------------------------------------------------------------------------------
-- Logs of turns. Their callers have locked the row of the run or the thread that the log belongs to.

-- The parts of the first `p_len` turns of a log, the newest part first.
CREATE FUNCTION log_parts(p_log bigint, p_len bigint)
RETURNS TABLE (ord integer, log bigint, lo bigint, hi bigint)
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    WITH RECURSIVE part (ord, log, parent, lo, hi) AS (
        SELECT 0, l.id, l.parent, least(l.parent_len, p_len), p_len FROM logs l WHERE l.id = p_log
        UNION ALL
        -- More ancestors are in no log that these functions have written, and could be a circle.
        SELECT part.ord + 1, l.id, l.parent, least(l.parent_len, part.lo), part.lo
        FROM part JOIN logs l ON l.id = part.parent WHERE part.ord < 18
    )
    SELECT part.ord, part.log, part.lo, part.hi FROM part
$$;

-- The checksum of the first `p_len` turns of a log, and their bytes; null if the last one is missing.
CREATE FUNCTION log_last(p_log bigint, p_len bigint, OUT chain bytea, OUT total bigint)
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT 'concentric/turns/1'::bytea, 0::bigint WHERE p_len = 0
    UNION ALL
    SELECT t.chain, t.total FROM log_parts(p_log, p_len) p
    JOIN turns t ON t.log = p.log AND t.n = p_len - 1
    WHERE p.lo <= p_len - 1 AND p.hi > p_len - 1
$$;

CREATE FUNCTION log_chain(p_log bigint, p_len bigint) RETURNS bytea
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT chain FROM log_last(p_log, p_len)
$$;

CREATE FUNCTION log_bytes(p_log bigint, p_len bigint) RETURNS bigint
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT total FROM log_last(p_log, p_len)
$$;

-- The first `p_len` turns of a log and their checksums.
CREATE FUNCTION log_read(p_log bigint, p_len bigint, OUT chains bytea[], OUT bodies bytea[])
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT coalesce(array_agg(t.chain ORDER BY t.n), '{}'), coalesce(array_agg(t.body ORDER BY t.n), '{}')
    FROM log_parts(p_log, p_len) p
    JOIN turns t ON t.log = p.log AND t.n >= p.lo AND t.n < p.hi
$$;

CREATE FUNCTION log_new(p_parent bigint, p_len bigint, p_depth integer) RETURNS bigint
LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    INSERT INTO logs (parent, parent_len, depth) VALUES (p_parent, p_len, p_depth) RETURNING id
$$;

-- Appends turns to a log that has `p_len` turns, and returns the last checksum.
CREATE FUNCTION log_append(p_log bigint, p_len bigint, p_bodies bytea[]) RETURNS bytea
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_chain bytea;
    v_total bigint;
    v_body  bytea;
    v_n     bigint := p_len;
BEGIN
    SELECT chain, total INTO v_chain, v_total FROM log_last(p_log, p_len);
    IF v_chain IS NULL THEN
        RAISE EXCEPTION 'the last of % turns of log % is missing', p_len, p_log
            USING ERRCODE = 'data_corrupted';
    END IF;
    FOREACH v_body IN ARRAY p_bodies LOOP
        v_chain := sha256(v_chain || v_body);
        v_total := v_total + octet_length(v_body);
        INSERT INTO turns (log, n, chain, total, body) VALUES (p_log, v_n, v_chain, v_total, v_body);
        v_n := v_n + 1;
    END LOOP;
    RETURN v_chain;
END $$;

-- Creates a log that begins with the first `p_len` turns of a log, and has at most `p_depth` ancestors.
CREATE FUNCTION log_fork(p_log bigint, p_len bigint, p_depth integer) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_part record;
    v_new  bigint;
BEGIN
    -- An ancestor may have all these turns.
    SELECT p.log, p.hi, l.depth INTO v_part FROM log_parts(p_log, p_len) p
    JOIN logs l ON l.id = p.log WHERE p.lo < p.hi ORDER BY p.ord LIMIT 1;
    IF NOT FOUND THEN
        RETURN log_new(NULL, 0, 0);
    END IF;
    IF v_part.depth < p_depth THEN
        RETURN log_new(v_part.log, v_part.hi, v_part.depth + 1);
    END IF;
    v_new := log_new(NULL, 0, 0);
    INSERT INTO turns (log, n, chain, total, body)
    SELECT v_new, t.n, t.chain, t.total, t.body FROM log_parts(p_log, p_len) p
    JOIN turns t ON t.log = p.log AND t.n >= p.lo AND t.n < p.hi;
    RETURN v_new;
END $$;

-- Removes the turns of a log after the first `p_len`; or returns another log with these, if other logs
-- or its ancestors have the removed ones.
CREATE FUNCTION log_cut(p_log bigint, p_len bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_own bigint;
BEGIN
    -- No fork of it is created until the end of the transaction: a foreign key locks its parent.
    SELECT parent_len INTO v_own FROM logs WHERE id = p_log FOR UPDATE;
    IF v_own > p_len OR EXISTS (SELECT FROM logs WHERE parent = p_log AND parent_len > p_len) THEN
        RETURN log_fork(p_log, p_len, 16);
    END IF;
    DELETE FROM turns WHERE log = p_log AND n >= p_len;
    RETURN p_log;
END $$;

-- Deletes the turns of a log, and of its ancestors, that no run or conversation has.
CREATE FUNCTION log_collect(p_log bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_log    bigint := p_log;
    v_parent bigint;
    v_used   bigint;
BEGIN
    WHILE v_log IS NOT NULL LOOP
        SELECT parent INTO v_parent FROM logs WHERE id = v_log FOR UPDATE;
        EXIT WHEN NOT FOUND
            OR EXISTS (SELECT FROM threads WHERE log = v_log)
            OR EXISTS (SELECT FROM runs WHERE log = v_log);
        SELECT max(parent_len) INTO v_used FROM logs WHERE parent = v_log;
        DELETE FROM turns WHERE log = v_log AND n >= coalesce(v_used, 0);
        EXIT WHEN v_used IS NOT NULL;
        DELETE FROM logs WHERE id = v_log;
        v_log := v_parent;
    END LOOP;
END $$;

-- Replaces the turns of a list after the first `p_keep`. With the code 'too_large', nothing is written,
-- and `o_bytes` is the size that it would have. The caller collects a log that it does not refer to any
-- more.
CREATE FUNCTION log_replace(
    p_log bigint, p_len bigint, p_bytes bigint, p_keep bigint, p_bodies bytea[], p_new_bytes bigint,
    p_max bigint,
    OUT o_code text, OUT o_log bigint, OUT o_len bigint, OUT o_bytes bigint, OUT o_chain bytea
)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    o_log := p_log;
    o_len := p_len;
    o_bytes := p_bytes;
    IF p_keep > p_len THEN
        o_code := 'keep';
        RETURN;
    END IF;
    IF p_keep < p_len THEN
        o_bytes := log_bytes(p_log, p_keep);
    END IF;
    o_bytes := o_bytes + p_new_bytes;
    IF o_bytes > p_max THEN
        o_code := 'too_large';
        RETURN;
    END IF;
    IF p_keep < p_len THEN
        o_log := log_cut(p_log, p_keep);
    END IF;
    o_len := p_keep + cardinality(p_bodies);
    o_chain := log_append(o_log, p_keep, p_bodies);
    o_code := 'ok';
END $$;

---------------------------------------------------------------------------------------------------
-- Conversations.

-- The end of a conversation, which a run may begin with.
CREATE FUNCTION thread_end(p_tenant text, p_thread text)
RETURNS TABLE (len bigint, chain bytea)
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT t.len, log_chain(t.log, t.len) FROM threads t WHERE t.tenant = p_tenant AND t.thread = p_thread
$$;

-- A conversation; without its turns if they exceed `p_max` bytes.
CREATE FUNCTION thread_load(p_tenant text, p_thread text, p_max bigint)
RETURNS TABLE (
    version bigint, session text, len bigint, bytes bigint, suspended bytea, suspended_slots bytea,
    shared bigint, slots bytea[], chains bytea[], bodies bytea[]
)
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT t.version, t.session, t.len, t.bytes, t.suspended, t.suspended_slots, t.shared,
        ARRAY(SELECT s.value FROM slots s WHERE s.tenant = p_tenant AND s.thread = p_thread
              ORDER BY s.slot, s.place),
        r.chains, r.bodies
    FROM threads t, log_read(t.log, CASE WHEN t.bytes > p_max THEN 0 ELSE t.len END) r
    WHERE t.tenant = p_tenant AND t.thread = p_thread
$$;

CREATE FUNCTION thread_list(p_tenant text, p_after text, p_limit bigint)
RETURNS TABLE (thread text, session text, version bigint, len bigint)
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT t.thread, t.session, t.version, t.len FROM threads t
    WHERE t.tenant = p_tenant AND (p_after IS NULL OR t.thread > p_after)
    ORDER BY t.thread LIMIT p_limit
$$;

-- Locks and returns a conversation, or the right to create it.
CREATE FUNCTION thread_lock(p_tenant text, p_thread text) RETURNS threads
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_thread threads;
BEGIN
    SELECT * INTO v_thread FROM threads WHERE tenant = p_tenant AND thread = p_thread FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM lock_name('thread', p_tenant, p_thread);
        SELECT * INTO v_thread FROM threads WHERE tenant = p_tenant AND thread = p_thread FOR UPDATE;
    END IF;
    RETURN v_thread;
END $$;

-- Appends to a conversation; or, with `p_to`, to a new one that begins with its first turns.
--
-- The run with the names `p_run` ends with it, if the claim `p_fence` of that run holds.
--
-- `o_code` is 'ok', and `o_n` the version; or 'moved' and the stored version, 'moved_to' and that of the
-- conversation `p_to`, 'not_found', 'keep' and the number of turns, 'too_large' and the size; or 'stale' if
-- the claim is lost.
CREATE FUNCTION thread_append(
    p_tenant text, p_thread text, p_to text, p_version bigint, p_attempt bytea, p_change text,
    p_run text[], p_fence bigint, p_now bigint, p_session text, p_keep bigint, p_bodies bytea[], p_new_bytes bigint, p_max bigint, p_clear boolean,
    p_slots text[], p_places text[], p_values bytea[], p_suspended bytea, p_suspended_slots bytea,
    p_shared bigint, OUT o_code text, OUT o_n bigint
)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_target text := coalesce(p_to, p_thread);
    v_old    threads := thread_lock(p_tenant, v_target);
    v_from   threads;
    v_run    runs;
    v_log    record;
    v_base   bigint;
BEGIN
    IF p_run IS NOT NULL THEN
        -- Null if another store has the run.
        SELECT * INTO v_run FROM runs
        WHERE tenant = p_run[1] AND thread = p_run[2] AND run = p_run[3] FOR NO KEY UPDATE;
        IF fence_code(v_run, p_fence) = 'stale' THEN
            o_code := 'stale';
            RETURN;
        END IF;
    END IF;
    o_code := 'ok';
    o_n := v_old.version;
    IF v_old.attempt = p_attempt OR v_old.change = p_change THEN
        PERFORM run_set_ended(v_run.id, now_or(p_now)) WHERE v_run.status = 'running';
        RETURN;
    END IF;
    IF p_to IS NULL THEN
        v_from := v_old;
    ELSIF v_old.version IS NOT NULL THEN
        o_code := 'moved_to';
        RETURN;
    ELSE
        -- Shared: it is not changed.
        SELECT * INTO v_from FROM threads WHERE tenant = p_tenant AND thread = p_thread FOR SHARE;
    END IF;
    IF coalesce(v_from.version, 0) <> p_version THEN
        o_code := 'moved';
        o_n := coalesce(v_from.version, 0);
        RETURN;
    END IF;
    IF v_from.version IS NULL AND p_to IS NOT NULL THEN
        o_code := 'not_found';
        RETURN;
    END IF;
    -- Before anything is written: `log_replace` checks the same of a list of its own.
    IF p_keep > coalesce(v_from.len, 0) THEN
        o_code := 'keep';
        o_n := coalesce(v_from.len, 0);
        RETURN;
    END IF;
    IF p_to IS NULL AND v_from.version IS NOT NULL THEN
        SELECT * INTO v_log FROM log_replace(
            v_from.log, v_from.len, v_from.bytes, p_keep, p_bodies, p_new_bytes, p_max);
    ELSE
        v_base := CASE WHEN p_keep = v_from.len THEN v_from.bytes ELSE log_bytes(v_from.log, p_keep) END;
        IF coalesce(v_base, 0) + p_new_bytes > p_max THEN
            o_code := 'too_large';
            o_n := coalesce(v_base, 0) + p_new_bytes;
            RETURN;
        END IF;
        SELECT * INTO v_log FROM log_replace(
            CASE WHEN p_to IS NULL THEN log_new(NULL, 0, 0) ELSE log_fork(v_from.log, p_keep, 16) END,
            p_keep, coalesce(v_base, 0), p_keep, p_bodies, p_new_bytes, p_max);
    END IF;
    IF v_log.o_code <> 'ok' THEN
        o_code := v_log.o_code;
        o_n := v_log.o_bytes;
        RETURN;
    END IF;

    IF p_to IS NOT NULL THEN
        INSERT INTO slots (tenant, thread, slot, place, value)
        SELECT tenant, p_to, slot, place, value FROM slots WHERE tenant = p_tenant AND thread = p_thread;
    END IF;
    IF p_clear THEN
        DELETE FROM slots WHERE tenant = p_tenant AND thread = v_target;
    END IF;
    -- Of two values of a slot, the last one.
    INSERT INTO slots (tenant, thread, slot, place, value)
    SELECT DISTINCT ON (new.slot, new.place) p_tenant, v_target, new.slot, new.place, new.value
    FROM unnest(p_slots, p_places, p_values) WITH ORDINALITY AS new (slot, place, value, ord)
    ORDER BY new.slot, new.place, new.ord DESC
    ON CONFLICT (tenant, thread, slot, place) DO UPDATE SET value = excluded.value;

    o_n := nextval('counter');
    INSERT INTO threads (tenant, thread, session, version, attempt, log, len, bytes, change, suspended,
                         suspended_slots, shared)
    VALUES (p_tenant, v_target,
            CASE WHEN v_old.version IS NULL THEN coalesce(p_session, v_from.session, v_target)
                 ELSE v_old.session END,
            o_n, p_attempt, v_log.o_log, v_log.o_len, v_log.o_bytes, p_change, p_suspended,
            p_suspended_slots, p_shared)
    ON CONFLICT (tenant, thread) DO UPDATE SET
        version = excluded.version, attempt = excluded.attempt, log = excluded.log, len = excluded.len,
        bytes = excluded.bytes, change = excluded.change, suspended = excluded.suspended,
        suspended_slots = excluded.suspended_slots, shared = excluded.shared;
    IF v_old.log <> v_log.o_log THEN
        PERFORM log_collect(v_old.log);
    END IF;
    PERFORM run_set_ended(v_run.id, now_or(p_now)) WHERE v_run.status = 'running';
END $$;

-- Deletes a conversation with everything that belongs to it, and returns whether it existed.
CREATE FUNCTION thread_delete(p_tenant text, p_thread text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_logs   bigint[];
    v_thread bigint;
    v_log    bigint;
BEGIN
    DELETE FROM threads WHERE tenant = p_tenant AND thread = p_thread RETURNING log INTO v_thread;
    WITH gone AS (DELETE FROM runs WHERE tenant = p_tenant AND thread = p_thread RETURNING log)
    SELECT array_agg(log ORDER BY log) INTO v_logs FROM gone;
    DELETE FROM effects WHERE tenant = p_tenant AND thread = p_thread AND run IS NOT NULL;
    DELETE FROM decisions
    WHERE tenant = p_tenant AND thread = p_thread AND span IN ('run', 'thread');
    DELETE FROM slots WHERE tenant = p_tenant AND thread = p_thread;
    DELETE FROM cache WHERE tenant = p_tenant AND thread = p_thread;
    FOREACH v_log IN ARRAY coalesce(v_logs, '{}') || v_thread LOOP
        PERFORM log_collect(v_log);
    END LOOP;
    RETURN v_thread IS NOT NULL;
END $$;

---------------------------------------------------------------------------------------------------
-- Runs.

-- A run. Without its turns if the state exceeds `p_max` bytes; or if it has another version than
-- `p_version`, or is running, so that it cannot be claimed.
CREATE FUNCTION run_open(p_id bigint, p_version bigint, p_now bigint, p_max bigint)
RETURNS TABLE (
    o_run text, o_client_id text, o_status text, o_version bigint, o_fence bigint, o_until bigint,
    o_takeovers integer, o_since bigint, o_now bigint, o_len bigint, o_bytes bigint, o_head bytea,
    o_replies bytea, o_replied_at bigint, o_checksum bytea, o_asked text[], o_chains bytea[],
    o_bodies bytea[]
)
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT r.run, r.client_id, r.status, r.version, r.fence, l.until, l.takeovers, r.since, t.now,
        r.len, r.bytes, r.head, r.replies, r.replied_at, r.checksum,
        ARRAY(SELECT q.question FROM questions q WHERE q.run = r.id ORDER BY q.question),
        t.chains, t.bodies
    FROM runs r JOIN leases l ON l.run = r.id,
    LATERAL (SELECT now_or(p_now) AS now) clock,
    LATERAL (SELECT clock.now, turns.* FROM log_read(r.log, CASE
        WHEN r.bytes + octet_length(r.head) > p_max THEN 0
        WHEN p_version IS NOT NULL
            AND (r.version <> p_version OR r.status = 'running' AND l.until > clock.now) THEN 0
        ELSE r.len END) turns) t
    WHERE r.id = p_id
$$;

CREATE FUNCTION run_get(
    p_tenant text, p_thread text, p_run text, p_version bigint, p_now bigint, p_max bigint
) RETURNS TABLE (
    o_run text, o_client_id text, o_status text, o_version bigint, o_fence bigint, o_until bigint,
    o_takeovers integer, o_since bigint, o_now bigint, o_len bigint, o_bytes bigint, o_head bytea,
    o_replies bytea, o_replied_at bigint, o_checksum bytea, o_asked text[], o_chains bytea[],
    o_bodies bytea[]
)
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT o.* FROM runs r, run_open(r.id, p_version, p_now, p_max) o
    WHERE r.tenant = p_tenant AND r.thread = p_thread AND r.run = p_run
$$;

-- The newest run that raised any of these interrupts.
CREATE FUNCTION run_find(
    p_tenant text, p_thread text, p_questions text[], p_now bigint, p_max bigint
) RETURNS TABLE (
    o_run text, o_client_id text, o_status text, o_version bigint, o_fence bigint, o_until bigint,
    o_takeovers integer, o_since bigint, o_now bigint, o_len bigint, o_bytes bigint, o_head bytea,
    o_replies bytea, o_replied_at bigint, o_checksum bytea, o_asked text[], o_chains bytea[],
    o_bodies bytea[]
)
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT o.* FROM (
        SELECT max(q.run) AS id FROM questions q
        WHERE q.tenant = p_tenant AND q.thread = p_thread AND q.question = ANY (p_questions)
    ) found, run_open(found.id, NULL, p_now, p_max) o
$$;

CREATE FUNCTION run_is_live(p_tenant text, p_thread text, p_client_id text) RETURNS boolean
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT EXISTS (
        SELECT FROM runs WHERE tenant = p_tenant AND thread = p_thread AND client_id = p_client_id
            AND status = 'running')
$$;

CREATE FUNCTION run_list(p_tenant text, p_thread text, p_message text, p_now bigint, p_limit bigint)
RETURNS TABLE (
    o_run text, o_client_id text, o_status text, o_version bigint, o_fence bigint, o_until bigint,
    o_takeovers integer, o_since bigint, o_now bigint
)
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT r.run, r.client_id, r.status, r.version, r.fence, l.until, l.takeovers, r.since, now_or(p_now)
    FROM runs r JOIN leases l ON l.run = r.id
    WHERE r.tenant = p_tenant AND r.thread = p_thread AND r.status <> 'ended'
        AND (p_message IS NULL OR r.message = p_message)
    ORDER BY r.status = 'running', CASE WHEN r.status = 'running' THEN l.until ELSE r.id END, r.id
    LIMIT p_limit
$$;

-- Begins a run. Its first `p_shared` turns are those of its conversation, whose checksum is `p_chain`.
--
-- `o_code` is 'ok', and `o_fence` the fence; or 'exists', 'live', or 'moved' if the conversation does not
-- end with these turns any more.
CREATE FUNCTION run_begin(
    p_tenant text, p_thread text, p_run text, p_client_id text, p_attempt bytea, p_now bigint,
    p_lease bigint, p_shared bigint, p_chain bytea, p_bodies bytea[], p_bytes bigint, p_head bytea,
    p_replies bytea, p_asks text[], p_message text, OUT o_code text, OUT o_fence bigint
)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_run    record;
    v_thread record;
    v_log    bigint;
    v_chain  bytea;
    v_id     bigint;
BEGIN
    PERFORM lock_name('client', p_tenant, p_thread, p_client_id);
    SELECT attempt, fence INTO v_run FROM runs
    WHERE tenant = p_tenant AND thread = p_thread AND run = p_run;
    IF FOUND THEN
        o_fence := v_run.fence;
        o_code := CASE WHEN v_run.attempt = p_attempt THEN 'ok' ELSE 'exists' END;
        RETURN;
    END IF;
    IF run_is_live(p_tenant, p_thread, p_client_id) THEN
        o_code := 'live';
        RETURN;
    END IF;
    IF p_shared > 0 THEN
        SELECT log, len INTO v_thread FROM threads
        WHERE tenant = p_tenant AND thread = p_thread FOR SHARE;
        IF v_thread.len IS DISTINCT FROM p_shared
            OR log_chain(v_thread.log, v_thread.len) IS DISTINCT FROM p_chain THEN
            o_code := 'moved';
            RETURN;
        END IF;
        v_log := log_fork(v_thread.log, p_shared, 17);
    ELSE
        v_log := log_new(NULL, 0, 0);
    END IF;
    v_chain := log_append(v_log, p_shared, p_bodies);
    o_fence := nextval('counter');
    INSERT INTO runs (tenant, thread, run, client_id, status, version, fence, attempt, message, log, len,
                      bytes, head, replies, checksum)
    VALUES (p_tenant, p_thread, p_run, p_client_id, 'running', o_fence, o_fence, p_attempt, p_message, v_log,
            p_shared + cardinality(p_bodies), p_bytes, p_head, p_replies,
            run_sum(p_tenant, p_thread, p_run, p_head, p_replies, v_chain))
    RETURNING id INTO v_id;
    INSERT INTO leases (run, held, fence, until) VALUES (v_id, true, o_fence, now_or(p_now) + p_lease);
    INSERT INTO questions (run, tenant, thread, question)
    SELECT v_id, p_tenant, p_thread, unnest(p_asks) ON CONFLICT DO NOTHING;
    o_code := 'ok';
END $$;

-- Claims a run whose row and version the caller has read. `p_replies` are null if there are no new ones.
--
-- `o_code` is 'ok', 'not_found', 'ended' or 'taken'.
CREATE FUNCTION run_claim(
    p_tenant text, p_thread text, p_run text, p_version bigint, p_attempt bytea, p_now bigint,
    p_lease bigint, p_replies bytea,
    OUT o_code text, OUT o_fence bigint, OUT o_until bigint, OUT o_takeovers integer,
    OUT o_replied_at bigint
)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_run   runs;
    v_lease leases;
    v_now   bigint;
BEGIN
    SELECT * INTO v_run FROM runs
    WHERE tenant = p_tenant AND thread = p_thread AND run = p_run FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        o_code := 'not_found';
        RETURN;
    END IF;
    SELECT * INTO v_lease FROM leases WHERE run = v_run.id FOR NO KEY UPDATE;
    v_now := now_or(p_now);
    o_code := CASE
        WHEN v_run.attempt = p_attempt THEN 'ok'
        WHEN v_run.status = 'ended' THEN 'ended'
        WHEN v_run.status = 'running' AND v_lease.until > v_now OR v_run.version <> p_version THEN 'taken'
    END;
    IF o_code IS NULL THEN
        v_run.fence := nextval('counter');
        UPDATE leases SET held = true, fence = v_run.fence, until = v_now + p_lease,
            takeovers = takeovers + (v_run.status = 'running')::integer
        WHERE run = v_run.id RETURNING * INTO v_lease;
        IF p_replies IS NOT NULL THEN
            v_run.replied_at := coalesce(v_run.replied_at, v_now);
            v_run.checksum := run_sum(
                p_tenant, p_thread, p_run, v_run.head, p_replies, log_chain(v_run.log, v_run.len));
        END IF;
        UPDATE runs SET status = 'running', version = v_run.fence, fence = v_run.fence, attempt = p_attempt,
            replies = coalesce(p_replies, replies), replied_at = v_run.replied_at, checksum = v_run.checksum
        WHERE id = v_run.id;
        o_code := 'ok';
    END IF;
    o_fence := v_run.fence;
    o_until := v_lease.until;
    o_takeovers := v_lease.takeovers;
    o_replied_at := v_run.replied_at;
END $$;

-- Claims abandoned runs that no other call is claiming.
CREATE FUNCTION run_claim_abandoned(
    p_limit bigint, p_max_takeovers integer, p_keep_waiting bigint, p_attempt bytea, p_now bigint,
    p_lease bigint
) RETURNS TABLE (o_tenant text, o_thread text, o_run text, o_fence bigint)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_now bigint := now_or(p_now);
    v_id  bigint;
BEGIN
    FOR v_id IN
        SELECT l.run FROM leases l JOIN runs r ON r.id = l.run
        WHERE l.held AND l.until <= v_now AND l.takeovers < p_max_takeovers
            AND coalesce(l.until > v_now - p_keep_waiting, true)
        ORDER BY l.until, l.run LIMIT p_limit FOR NO KEY UPDATE OF r, l SKIP LOCKED
    LOOP
        o_fence := nextval('counter');
        UPDATE leases SET fence = o_fence, until = v_now + p_lease, takeovers = takeovers + 1
        WHERE run = v_id;
        UPDATE runs SET version = o_fence, fence = o_fence, attempt = p_attempt WHERE id = v_id
        RETURNING tenant, thread, run INTO o_tenant, o_thread, o_run;
        RETURN NEXT;
    END LOOP;
END $$;

-- The code that rejects a write with this fence; null if there is none.
CREATE FUNCTION fence_code(p_run runs, p_fence bigint) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path FROM CURRENT AS $$
    SELECT CASE
        WHEN p_run.id IS NULL THEN 'not_found'
        WHEN p_run.fence <> p_fence OR p_run.status = 'suspended' THEN 'stale'
        WHEN p_run.status = 'ended' THEN 'ended'
    END
$$;

-- Changes the state of a run: with `p_fence` and `p_lease`, of one that continues; with `p_fence` alone,
-- of one that waits from now on; without `p_fence`, of one with this version that can be claimed.
--
-- `o_code` is 'ok', and `o_n` the version; or 'not_found', 'stale', 'ended', 'taken', 'quarantined',
-- 'keep' and the number of turns, 'too_large' and the size, 'thread_full', 'tenant_full'.
CREATE FUNCTION run_write(
    p_tenant text, p_thread text, p_run text, p_fence bigint, p_version bigint, p_attempt bytea,
    p_now bigint, p_lease bigint, p_keep bigint, p_bodies bytea[], p_new_bytes bigint, p_max bigint,
    p_head bytea, p_asks text[], p_message text, p_max_thread bigint, p_max_tenant bigint,
    p_keep_waiting bigint, p_max_takeovers integer, OUT o_code text, OUT o_n bigint
)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_run     runs;
    v_lease   leases;
    v_log     record;
    v_now     bigint;
    v_waits   boolean := p_fence IS NOT NULL AND p_lease IS NULL;
    v_replies bytea := '[]';
BEGIN
    SELECT * INTO v_run FROM runs
    WHERE tenant = p_tenant AND thread = p_thread AND run = p_run FOR NO KEY UPDATE;
    SELECT * INTO v_lease FROM leases WHERE run = v_run.id FOR NO KEY UPDATE;
    v_now := now_or(p_now);
    IF v_run.attempt = p_attempt THEN
        o_code := 'ok';
        o_n := v_run.version;
        RETURN;
    END IF;
    IF p_fence IS NOT NULL THEN
        o_code := fence_code(v_run, p_fence);
    ELSE
        o_code := CASE
            WHEN v_run.id IS NULL THEN 'not_found'
            WHEN v_run.status = 'ended' THEN 'ended'
            WHEN CASE v_run.status WHEN 'suspended' THEN v_run.since ELSE v_lease.until END
                <= v_now - p_keep_waiting THEN 'ended'
            WHEN v_run.status = 'running' AND v_lease.until > v_now THEN 'taken'
            WHEN v_run.status = 'running' AND v_lease.takeovers >= p_max_takeovers THEN 'quarantined'
            WHEN v_run.version <> p_version THEN 'taken'
        END;
        v_replies := v_run.replies;
    END IF;
    IF o_code IS NOT NULL THEN
        RETURN;
    END IF;
    IF v_waits AND NOT v_run.waited THEN
        o_code := wait_code(p_tenant, p_thread, p_max_thread, p_max_tenant);
        IF o_code IS NOT NULL THEN
            -- Some may be overdue.
            PERFORM purge_waiting(v_now, p_keep_waiting);
            o_code := wait_code(p_tenant, p_thread, p_max_thread, p_max_tenant);
            IF o_code IS NOT NULL THEN
                RETURN;
            END IF;
        END IF;
    END IF;
    -- The head counts towards the limit.
    SELECT * INTO v_log FROM log_replace(v_run.log, v_run.len, v_run.bytes, p_keep, p_bodies, p_new_bytes,
        p_max - octet_length(p_head));
    IF v_log.o_code <> 'ok' THEN
        o_code := v_log.o_code;
        o_n := CASE o_code WHEN 'keep' THEN v_log.o_len ELSE v_log.o_bytes + octet_length(p_head) END;
        RETURN;
    END IF;
    o_n := nextval('counter');
    UPDATE runs SET version = o_n, attempt = p_attempt, message = p_message, log = v_log.o_log,
        len = v_log.o_len, bytes = v_log.o_bytes, head = p_head, replies = v_replies,
        replied_at = CASE WHEN p_fence IS NULL THEN replied_at END,
        checksum = run_sum(p_tenant, p_thread, p_run, p_head, v_replies, v_log.o_chain),
        status = CASE WHEN v_waits THEN 'suspended' ELSE status END,
        since = CASE WHEN v_waits THEN v_now WHEN p_fence IS NULL THEN since END,
        waited = waited OR v_waits
    WHERE id = v_run.id;
    IF v_waits THEN
        UPDATE leases SET held = false, takeovers = 0, cancel = false WHERE run = v_run.id;
    ELSIF p_fence IS NOT NULL THEN
        UPDATE leases SET until = v_now + p_lease, takeovers = 0 WHERE run = v_run.id;
    END IF;
    INSERT INTO questions (run, tenant, thread, question)
    SELECT v_run.id, p_tenant, p_thread, unnest(p_asks) ON CONFLICT DO NOTHING;
    IF v_log.o_log <> v_run.log THEN
        PERFORM log_collect(v_run.log);
    END IF;
    o_code := 'ok';
END $$;

-- The code of a limit of waiting runs that is reached; null if there is none.
CREATE FUNCTION wait_code(p_tenant text, p_thread text, p_max_thread bigint, p_max_tenant bigint)
RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_waiting bigint;
BEGIN
    PERFORM lock_name('waiting', p_tenant, p_thread);
    -- Counts at most up to the limit, to bound the work.
    SELECT count(*) INTO v_waiting FROM (
        SELECT FROM runs WHERE tenant = p_tenant AND thread = p_thread AND waited AND status <> 'ended'
        LIMIT p_max_thread) found;
    IF v_waiting >= p_max_thread THEN
        RETURN 'thread_full';
    END IF;
    -- The tenant is locked near its limit only, so that its conversations do not wait for each other.
    FOR v_pass IN 1..2 LOOP
        SELECT count(*) INTO v_waiting FROM (
            SELECT FROM runs WHERE tenant = p_tenant AND waited AND status <> 'ended'
            LIMIT p_max_tenant) found;
        IF v_waiting >= p_max_tenant THEN
            RETURN 'tenant_full';
        END IF;
        EXIT WHEN v_waiting < p_max_tenant - 256;
        PERFORM lock_name('waiting', p_tenant);
    END LOOP;
    RETURN NULL;
END $$;

-- Renews leases. `o_code` is 'held', 'cancel', 'not_found', 'stale' or 'ended', in the order of the
-- arguments; or 'locked' for a lease that another transaction is changing, so that a slow write of one run
-- does not delay the leases of others.
--
-- It does not wait for the disk: a lost renewal costs a takeover, which the fence makes safe.
CREATE FUNCTION run_renew(
    p_tenants text[], p_threads text[], p_runs text[], p_fences bigint[], p_leases bigint[], p_now bigint
) RETURNS TABLE (o_code text)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_now bigint := now_or(p_now);
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    RETURN QUERY
    WITH asked AS (
        SELECT a.*, r.id, r.status, r.fence
        FROM unnest(p_tenants, p_threads, p_runs, p_fences, p_leases)
            WITH ORDINALITY AS a (a_tenant, a_thread, a_run, a_fence, a_lease, ord)
        LEFT JOIN runs r ON r.tenant = a.a_tenant AND r.thread = a.a_thread AND r.run = a.a_run
    ), newest AS (
        SELECT DISTINCT ON (id) * FROM asked WHERE fence = a_fence AND status = 'running'
        ORDER BY id, ord DESC
    ), free AS (
        SELECT l.run FROM leases l JOIN newest ON l.run = newest.id
        WHERE l.fence = newest.a_fence AND l.held FOR NO KEY UPDATE OF l SKIP LOCKED
    ), renewed AS (
        UPDATE leases l SET until = v_now + newest.a_lease,
            takeovers = CASE WHEN newest.a_lease = 0 THEN 0 ELSE l.takeovers END
        FROM newest JOIN free ON free.run = newest.id WHERE l.run = newest.id
        RETURNING l.run, l.cancel
    )
    SELECT CASE
        WHEN a.id IS NULL THEN 'not_found'
        WHEN a.fence <> a.a_fence THEN 'stale'
        WHEN renewed.cancel THEN 'cancel'
        WHEN renewed.run IS NOT NULL THEN 'held'
        WHEN a.status = 'ended' THEN 'ended'
        WHEN a.status = 'suspended' THEN 'stale'
        ELSE 'locked'
    END
    FROM asked a LEFT JOIN renewed ON renewed.run = a.id ORDER BY a.ord;
END $$;

-- Asks for the cancellation of a running run, and returns whether there is one.
CREATE FUNCTION run_cancel(p_tenant text, p_thread text, p_run text) RETURNS boolean
LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    WITH cancelled AS (
        UPDATE leases l SET cancel = true FROM runs r
        WHERE r.tenant = p_tenant AND r.thread = p_thread AND r.run = p_run AND l.run = r.id AND l.held
        RETURNING l.run
    ) SELECT EXISTS (SELECT FROM cancelled)
$$;

-- Lets a quarantined run be claimed again, and returns whether it was quarantined.
CREATE FUNCTION run_release(
    p_tenant text, p_thread text, p_run text, p_now bigint, p_max_takeovers integer
) RETURNS boolean
LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    WITH released AS (
        UPDATE leases l SET takeovers = 0 FROM runs r
        WHERE r.tenant = p_tenant AND r.thread = p_thread AND r.run = p_run AND l.run = r.id
            AND l.held AND l.until <= now_or(p_now) AND l.takeovers >= p_max_takeovers
        RETURNING l.run
    ) SELECT EXISTS (SELECT FROM released)
$$;

CREATE FUNCTION run_set_ended(p_id bigint, p_now bigint) RETURNS void
LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    UPDATE runs SET status = 'ended', version = nextval('counter'), since = p_now WHERE id = p_id;
    UPDATE leases SET held = false WHERE run = p_id;
$$;

-- Ends a run. `o_code` is 'ok', 'not_found' or 'stale'.
CREATE FUNCTION run_end(p_tenant text, p_thread text, p_run text, p_fence bigint, p_now bigint)
RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_run  runs;
    v_code text;
BEGIN
    SELECT * INTO v_run FROM runs
    WHERE tenant = p_tenant AND thread = p_thread AND run = p_run FOR NO KEY UPDATE;
    v_code := fence_code(v_run, p_fence);
    IF v_code IS NULL THEN
        PERFORM run_set_ended(v_run.id, now_or(p_now));
    END IF;
    RETURN CASE coalesce(v_code, 'ended') WHEN 'ended' THEN 'ok' ELSE v_code END;
END $$;

-- Ends all runs of a conversation that wait for replies, and returns their number.
CREATE FUNCTION run_withdraw(p_tenant text, p_thread text, p_now bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_now   bigint := now_or(p_now);
    v_id    bigint;
    v_ended bigint := 0;
BEGIN
    FOR v_id IN
        SELECT id FROM runs WHERE tenant = p_tenant AND thread = p_thread AND status = 'suspended'
        ORDER BY id FOR NO KEY UPDATE
    LOOP
        PERFORM run_set_ended(v_id, v_now);
        v_ended := v_ended + 1;
    END LOOP;
    RETURN v_ended;
END $$;

---------------------------------------------------------------------------------------------------
-- Retention. A null `p_keep_..` keeps entries for ever. Rows that another transaction has locked are left
-- for the next purge.

-- Ends at most 100 overdue runs of each kind; returns whether more may be left.
CREATE FUNCTION purge_waiting(p_now bigint, p_keep_waiting bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_id        bigint;
    v_waiting   bigint := 0;
    v_abandoned bigint := 0;
BEGIN
    FOR v_id IN
        SELECT id FROM runs WHERE status = 'suspended' AND since <= p_now - p_keep_waiting
        ORDER BY since LIMIT 100 FOR NO KEY UPDATE SKIP LOCKED
    LOOP
        PERFORM run_set_ended(v_id, p_now);
        v_waiting := v_waiting + 1;
    END LOOP;
    FOR v_id IN
        SELECT r.id FROM leases l JOIN runs r ON r.id = l.run
        WHERE l.held AND l.until <= p_now - p_keep_waiting
        ORDER BY l.until LIMIT 100 FOR NO KEY UPDATE OF r, l SKIP LOCKED
    LOOP
        PERFORM run_set_ended(v_id, p_now);
        v_abandoned := v_abandoned + 1;
    END LOOP;
    RETURN v_waiting >= 100 OR v_abandoned >= 100;
END $$;

-- Removes entries of the cache beyond its limits, at most 100; returns whether more may be left.
CREATE FUNCTION cache_trim(p_entries bigint, p_bytes bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_entries bigint;
    v_bytes   bigint;
    v_entry   record;
    v_removed boolean := false;
BEGIN
    SELECT count(*) - p_entries, coalesce(sum(bytes), 0)::bigint - p_bytes INTO v_entries, v_bytes FROM cache;
    IF v_entries <= 0 AND v_bytes <= 0 THEN
        RETURN false;
    END IF;
    FOR v_entry IN
        SELECT tenant, thread, space, digest, bytes FROM cache
        ORDER BY until LIMIT 100 FOR UPDATE SKIP LOCKED
    LOOP
        EXIT WHEN v_entries <= 0 AND v_bytes <= 0;
        DELETE FROM cache
        WHERE tenant = v_entry.tenant AND thread = v_entry.thread AND space = v_entry.space
            AND digest = v_entry.digest;
        v_entries := v_entries - 1;
        v_bytes := v_bytes - v_entry.bytes;
        v_removed := true;
    END LOOP;
    RETURN v_removed AND (v_entries > 0 OR v_bytes > 0);
END $$;

-- Removes at most 100 expired entries of each kind; returns whether more may be left.
CREATE FUNCTION purge(
    p_now bigint, p_keep_waiting bigint, p_keep_ended bigint, p_keep_effects bigint, p_keep_keys bigint,
    p_cache_entries bigint, p_cache_bytes bigint
) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_now  bigint := now_or(p_now);
    v_more boolean;
    v_rows bigint := 0;
    v_run  record;
BEGIN
    v_more := purge_waiting(v_now, p_keep_waiting);
    FOR v_run IN
        SELECT id, tenant, thread, run, log FROM runs
        WHERE status = 'ended' AND since <= v_now - p_keep_ended
        ORDER BY since LIMIT 100 FOR UPDATE SKIP LOCKED
    LOOP
        DELETE FROM runs WHERE id = v_run.id;
        DELETE FROM effects
        WHERE tenant = v_run.tenant AND thread = v_run.thread AND run = v_run.run AND run IS NOT NULL;
        DELETE FROM decisions
        WHERE tenant = v_run.tenant AND thread = v_run.thread AND run = v_run.run AND span = 'run';
        PERFORM log_collect(v_run.log);
        v_rows := v_rows + 1;
    END LOOP;
    v_more := v_more OR v_rows >= 100;

    UPDATE effects SET seen = v_now WHERE (tenant, key) IN (
        SELECT tenant, key FROM effects WHERE run IS NULL AND seen IS NULL
        LIMIT 100 FOR UPDATE SKIP LOCKED);
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    v_more := v_more OR v_rows >= 100;
    DELETE FROM effects WHERE (tenant, key) IN (
        SELECT tenant, key FROM effects WHERE run IS NULL AND seen <= v_now - p_keep_effects
        LIMIT 100 FOR UPDATE SKIP LOCKED);
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    v_more := v_more OR v_rows >= 100;

    -- Examines only the first expired keys: most may be too recent to be removed, and a full scan would
    -- then be repeated at each purge.
    DELETE FROM once WHERE (tenant, key) IN (
        SELECT first.tenant, first.key FROM (
            SELECT tenant, key, n FROM once WHERE until <= v_now
            ORDER BY until LIMIT 100 FOR UPDATE SKIP LOCKED) first
        WHERE first.n <= (SELECT max(n) FROM once) - p_keep_keys);
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    v_more := v_more OR v_rows >= 100;

    DELETE FROM cache WHERE (tenant, thread, space, digest) IN (
        SELECT tenant, thread, space, digest FROM cache WHERE until <= v_now
        LIMIT 100 FOR UPDATE SKIP LOCKED);
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    v_more := v_more OR v_rows >= 100;
    RETURN cache_trim(p_cache_entries, p_cache_bytes) OR v_more;
END $$;

---------------------------------------------------------------------------------------------------
-- Effects, used keys, decisions, memories and caches.

-- Starts an effect. `p_known` are the arguments of an earlier call that the caller found to be equal.
--
-- `o_code` is 'new', 'stale', 'known', or 'differs' if the tool or the bytes of the arguments differ.
CREATE FUNCTION effect_begin(
    p_tenant text, p_key text, p_thread text, p_run text, p_fence bigint, p_tool text, p_arguments bytea,
    p_known bytea, p_repeatable boolean, p_attempt bytea,
    OUT o_code text, OUT o_tool text, OUT o_arguments bytea, OUT o_outcome bytea
)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_run    runs;
    v_effect effects;
BEGIN
    IF p_run IS NOT NULL THEN
        -- No claim of the run comes in between.
        SELECT * INTO v_run FROM runs
        WHERE tenant = p_tenant AND thread = p_thread AND run = p_run FOR SHARE;
        IF fence_code(v_run, p_fence) IS NOT NULL THEN
            o_code := 'stale';
            RETURN;
        END IF;
    END IF;
    -- Again if another transaction deletes the effect in between.
    LOOP
        INSERT INTO effects (tenant, key, thread, run, tool, arguments, repeatable, attempt)
        VALUES (p_tenant, p_key, p_thread, p_run, p_tool, p_arguments, p_repeatable, p_attempt)
        ON CONFLICT DO NOTHING;
        SELECT * INTO v_effect FROM effects WHERE tenant = p_tenant AND key = p_key FOR NO KEY UPDATE;
        EXIT WHEN FOUND;
    END LOOP;
    IF v_effect.attempt = p_attempt THEN
        o_code := 'new';
        RETURN;
    END IF;
    o_tool := v_effect.tool;
    o_arguments := v_effect.arguments;
    o_outcome := v_effect.outcome;
    IF v_effect.tool <> p_tool OR v_effect.arguments NOT IN (p_arguments, p_known) THEN
        o_code := 'differs';
        RETURN;
    END IF;
    IF v_effect.repeatable <> p_repeatable THEN
        UPDATE effects SET repeatable = p_repeatable WHERE tenant = p_tenant AND key = p_key;
    END IF;
    o_code := 'known';
END $$;

-- Records an outcome, and returns whether the effect was started.
CREATE FUNCTION effect_finish(
    p_tenant text, p_key text, p_outcome bytea, p_failed boolean, p_done boolean
) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    UPDATE effects SET outcome = p_outcome, failed = p_failed
    WHERE tenant = p_tenant AND key = p_key
        AND (outcome IS NULL OR repeatable AND failed AND p_done);
    RETURN FOUND OR EXISTS (SELECT FROM effects WHERE tenant = p_tenant AND key = p_key);
END $$;

CREATE FUNCTION effect_known(p_tenant text, p_key text) RETURNS TABLE (outcome bytea)
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT e.outcome FROM effects e WHERE e.tenant = p_tenant AND e.key = p_key
$$;

CREATE FUNCTION effect_retract(p_tenant text, p_key text) RETURNS void
LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    DELETE FROM effects WHERE tenant = p_tenant AND key = p_key AND outcome IS NULL
$$;

-- Returns whether a key is used for the first time.
CREATE FUNCTION once_use(p_tenant text, p_key text, p_now bigint, p_keep bigint, p_attempt bytea)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    -- A repeated use must not advance the order of uses.
    IF NOT EXISTS (SELECT FROM once WHERE tenant = p_tenant AND key = p_key) THEN
        INSERT INTO once (tenant, key, until, n, attempt)
        VALUES (p_tenant, p_key, now_or(p_now) + p_keep, nextval('positions'), p_attempt)
        ON CONFLICT DO NOTHING;
    END IF;
    RETURN EXISTS (
        SELECT FROM once WHERE tenant = p_tenant AND key = p_key AND attempt = p_attempt);
END $$;

CREATE FUNCTION decision_remember(
    p_tenant text, p_id text, p_tool text, p_span text, p_thread text, p_run text, p_decision bytea
) RETURNS void
LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    INSERT INTO decisions (tenant, id, n, tool, span, thread, run, decision)
    VALUES (p_tenant, p_id, nextval('positions'), p_tool, p_span, p_thread, p_run, p_decision)
    -- A new position, so that the decision becomes the newest.
    ON CONFLICT (tenant, id) DO UPDATE SET n = excluded.n, tool = excluded.tool, span = excluded.span,
        thread = excluded.thread, run = excluded.run, decision = excluded.decision
$$;

CREATE FUNCTION decision_recall(
    p_tenant text, p_tool text, p_run text, p_thread text, p_session text
) RETURNS TABLE (id text, decision bytea)
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT d.id, d.decision FROM decisions d
    WHERE d.tenant = p_tenant AND d.tool = p_tool
        AND (d.span = 'always' OR d.span = 'session' AND d.thread = p_session
             OR d.thread = p_thread AND (d.span = 'thread' OR d.span = 'run' AND d.run = p_run))
    ORDER BY d.n DESC
$$;

CREATE FUNCTION decision_list(p_tenant text) RETURNS TABLE (id text, decision bytea)
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT d.id, d.decision FROM decisions d WHERE d.tenant = p_tenant ORDER BY d.n DESC
$$;

CREATE FUNCTION decision_revoke(p_tenant text, p_id text) RETURNS boolean
LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    WITH gone AS (DELETE FROM decisions WHERE tenant = p_tenant AND id = p_id RETURNING id)
    SELECT EXISTS (SELECT FROM gone)
$$;

-- Stores a memory, and removes the oldest ones of its owner beyond `p_max`.
CREATE FUNCTION memory_put(
    p_tenant text, p_owner text, p_id text, p_at bigint, p_body bytea, p_max bigint
) RETURNS void
LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    INSERT INTO memories (tenant, owner, id, at, body) VALUES (p_tenant, p_owner, p_id, p_at, p_body)
    ON CONFLICT (tenant, owner, id) DO UPDATE SET at = excluded.at, body = excluded.body;
    DELETE FROM memories WHERE (tenant, owner, id) IN (
        SELECT tenant, owner, id FROM memories WHERE tenant = p_tenant AND owner = p_owner
        ORDER BY at DESC, id DESC OFFSET p_max);
$$;

CREATE FUNCTION memory_all(p_tenant text, p_owner text) RETURNS TABLE (id text, at bigint, body bytea)
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT m.id, m.at, m.body FROM memories m WHERE m.tenant = p_tenant AND m.owner = p_owner
$$;

CREATE FUNCTION memory_forget(p_tenant text, p_owner text, p_id text) RETURNS bigint
LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    WITH gone AS (
        DELETE FROM memories WHERE tenant = p_tenant AND owner = p_owner AND (p_id IS NULL OR id = p_id)
        RETURNING id
    ) SELECT count(*) FROM gone
$$;

CREATE FUNCTION cache_get(p_tenant text, p_thread text, p_space text, p_digest bytea, p_now bigint)
RETURNS TABLE (value bytea, age bigint)
LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    WITH t AS MATERIALIZED (SELECT now_or(p_now) AS now)
    SELECT c.value, greatest(t.now - c.at, 0) FROM cache c, t
    WHERE c.tenant = p_tenant AND c.thread = p_thread AND c.space = p_space AND c.digest = p_digest
        AND c.until > t.now
$$;

-- Stores an entry, and removes those beyond the limits at some of the writes, since their check reads the
-- sizes of all entries.
--
-- It does not wait for the disk: what is lost is made again.
CREATE FUNCTION cache_put(
    p_tenant text, p_thread text, p_space text, p_digest bytea, p_now bigint, p_keep bigint,
    p_size bigint, p_value bytea, p_entries bigint, p_bytes bigint
) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_now bigint := now_or(p_now);
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    INSERT INTO cache (tenant, thread, space, digest, at, until, bytes, value)
    VALUES (p_tenant, p_thread, p_space, p_digest, v_now, v_now + p_keep, p_size, p_value)
    ON CONFLICT (tenant, thread, space, digest) DO UPDATE SET at = excluded.at,
        until = excluded.until, bytes = excluded.bytes, value = excluded.value;
    IF get_byte(p_digest, 0) % 16 = 0 THEN
        PERFORM cache_trim(p_entries, p_bytes);
    END IF;
END $$;

CREATE FUNCTION cache_remove(p_tenant text, p_thread text, p_space text) RETURNS bigint
LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    WITH gone AS (
        DELETE FROM cache WHERE tenant = p_tenant
            AND (p_thread IS NULL OR thread = p_thread) AND (p_space IS NULL OR space = p_space)
        RETURNING digest
    ) SELECT count(*) FROM gone
$$;
