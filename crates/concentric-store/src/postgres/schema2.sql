-- Version 2 of the schema: pages of turns, deletion in steps, claims that do not read turns, and the outcomes of runs.
-- What a release with version 1 calls is kept.

-- The turns of a log from position `p_from` to before `p_len`, and their checksums.
CREATE FUNCTION log_read(
    p_log bigint, p_len bigint, p_from bigint, OUT chains bytea[], OUT bodies bytea[]
)
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT coalesce(array_agg(t.chain ORDER BY t.n), '{}'), coalesce(array_agg(t.body ORDER BY t.n), '{}')
    FROM log_parts(p_log, p_len) p
    JOIN turns t ON t.log = p.log AND t.n >= greatest(p.lo, p_from) AND t.n < p.hi
$$;

-- At most `p_limit` turns of a conversation from position `p_start` on, or the newest ones if it is null, and the
-- checksum of the turns before them; null if there are none, or the last turn before them is missing.
CREATE FUNCTION thread_turns(p_tenant text, p_thread text, p_start bigint, p_limit bigint)
RETURNS TABLE (version bigint, session text, len bigint, before bytea, chains bytea[], bodies bytea[])
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT t.version, t.session, t.len, log_chain(w.log, w.lo), r.chains, r.bodies
    FROM threads t,
    LATERAL (SELECT least(coalesce(p_start, greatest(t.len - p_limit, 0)), t.len) AS lo) start,
    LATERAL (SELECT start.lo, least(start.lo + p_limit, t.len) AS hi,
        CASE WHEN p_limit > 0 AND start.lo < t.len THEN t.log END AS log) w,
    LATERAL log_read(w.log, w.hi, w.lo) r
    WHERE t.tenant = p_tenant AND t.thread = p_thread
$$;

-- The call of `run_claim_abandoned` that has claimed the run last, so that its repetition is recognised.
ALTER TABLE leases ADD COLUMN attempt bytea;
CREATE INDEX leases_of_attempt ON leases (attempt) WHERE attempt IS NOT NULL;

-- Claims abandoned runs that no other call is claiming; or returns those that this attempt has claimed.
CREATE OR REPLACE FUNCTION run_claim_abandoned(
    p_limit bigint, p_max_takeovers integer, p_keep_waiting bigint, p_attempt bytea, p_now bigint,
    p_lease bigint
) RETURNS TABLE (o_tenant text, o_thread text, o_run text, o_fence bigint)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_now   bigint := now_or(p_now);
    -- In the order of the index, so that overdue runs are not read.
    v_after bigint := coalesce(v_now - p_keep_waiting, (-9223372036854775807)::bigint);
    v_id    bigint;
BEGIN
    -- The first call may still be running.
    PERFORM lock_name('abandoned', encode(p_attempt, 'hex'));
    RETURN QUERY
    SELECT r.tenant, r.thread, r.run, r.fence FROM leases l JOIN runs r ON r.id = l.run
    WHERE l.attempt = p_attempt AND r.attempt = p_attempt AND l.held ORDER BY r.fence;
    IF FOUND THEN
        RETURN;
    END IF;
    FOR v_id IN
        SELECT l.run FROM leases l JOIN runs r ON r.id = l.run
        WHERE l.held AND l.until <= v_now AND l.until > v_after AND l.takeovers < p_max_takeovers
        ORDER BY l.until, l.run LIMIT p_limit FOR NO KEY UPDATE OF r, l SKIP LOCKED
    LOOP
        o_fence := nextval('counter');
        UPDATE leases SET fence = o_fence, until = v_now + p_lease, takeovers = takeovers + 1,
            attempt = p_attempt
        WHERE run = v_id;
        UPDATE runs SET version = o_fence, fence = o_fence, attempt = p_attempt WHERE id = v_id
        RETURNING tenant, thread, run INTO o_tenant, o_thread, o_run;
        RETURN NEXT;
    END LOOP;
END $$;

-- Gives up claims of `run_claim_abandoned` whose runs were not read, which then do not count as takeovers.
CREATE FUNCTION run_give_back(
    p_tenants text[], p_threads text[], p_runs text[], p_fences bigint[], p_now bigint
) RETURNS void
LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    UPDATE leases l SET until = now_or(p_now), takeovers = l.takeovers - 1, attempt = NULL
    FROM unnest(p_tenants, p_threads, p_runs, p_fences) AS a (a_tenant, a_thread, a_run, a_fence)
    JOIN runs r ON r.tenant = a.a_tenant AND r.thread = a.a_thread AND r.run = a.a_run
    WHERE l.run = r.id AND l.fence = a.a_fence AND l.held AND l.attempt IS NOT NULL AND l.takeovers > 0
$$;

-- Deletes the turns of a log, and of its ancestors, that no run or conversation has.
CREATE OR REPLACE FUNCTION log_collect(p_log bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_log    bigint := p_log;
    v_parent bigint;
    v_used   bigint;
BEGIN
    WHILE v_log IS NOT NULL LOOP
        -- Until the end of the transaction, so that one of two transactions sees that nothing refers to the log. Runs
        -- can begin with its turns meanwhile.
        PERFORM FROM logs WHERE id = v_log FOR NO KEY UPDATE;
        EXIT WHEN NOT FOUND
            OR EXISTS (SELECT FROM threads WHERE log = v_log)
            OR EXISTS (SELECT FROM runs WHERE log = v_log);
        SELECT parent INTO v_parent FROM logs WHERE id = v_log FOR UPDATE;
        SELECT max(parent_len) INTO v_used FROM logs WHERE parent = v_log;
        DELETE FROM turns WHERE log = v_log AND n >= coalesce(v_used, 0);
        EXIT WHEN v_used IS NOT NULL;
        DELETE FROM logs WHERE id = v_log;
        v_log := v_parent;
    END LOOP;
END $$;

-- Deletes the turns of logs that nothing refers to any more, in an order that all calls have.
CREATE FUNCTION logs_collect(p_logs bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_log bigint;
BEGIN
    FOR v_log IN
        SELECT id FROM logs WHERE id = ANY (p_logs) ORDER BY parent NULLS FIRST, id
    LOOP
        PERFORM log_collect(v_log);
    END LOOP;
END $$;

-- Runs that were deleted with their conversations, so that their last turns do not create these again. They have no
-- names, since these are deleted.
CREATE TABLE deleted_runs (
    -- The digest of the key.
    run bytea PRIMARY KEY,
    at  bigint NOT NULL
);
CREATE INDEX deleted_runs_at ON deleted_runs (at);

-- Who has rights on the other tables may be a release with version 1, which purges this one, too.
DO $$
DECLARE
    v_right record;
BEGIN
    FOR v_right IN
        SELECT CASE r.grantee WHEN 0 THEN 'PUBLIC' ELSE r.grantee::regrole::text END AS role, r.privilege_type
        FROM pg_class c, aclexplode(c.relacl) r WHERE c.oid = 'runs'::regclass AND r.grantee <> c.relowner
    LOOP
        EXECUTE format('GRANT %s ON deleted_runs TO %s', v_right.privilege_type, v_right.role);
    END LOOP;
END $$;

CREATE FUNCTION run_digest(p_tenant text, p_thread text, p_run text) RETURNS bytea
LANGUAGE sql IMMUTABLE SET search_path FROM CURRENT AS $$
    SELECT sha256(sum_part(convert_to(p_tenant, 'UTF8')) || sum_part(convert_to(p_thread, 'UTF8'))
        || sum_part(convert_to(p_run, 'UTF8')))
$$;

-- How long a deleted run is remembered.
CREATE FUNCTION remember_deleted() RETURNS bigint
LANGUAGE sql IMMUTABLE SET search_path FROM CURRENT AS $$
    SELECT 3600000000000
$$;

-- Deletes runs with what belongs to them.
CREATE FUNCTION runs_delete(p_ids bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_run  record;
    v_logs bigint[];
BEGIN
    FOR v_run IN
        SELECT tenant, thread, run FROM runs WHERE id = ANY (p_ids) ORDER BY id FOR UPDATE
    LOOP
        DELETE FROM effects
        WHERE tenant = v_run.tenant AND thread = v_run.thread AND run = v_run.run AND run IS NOT NULL;
        DELETE FROM decisions
        WHERE tenant = v_run.tenant AND thread = v_run.thread AND run = v_run.run AND span = 'run';
    END LOOP;
    WITH gone AS (DELETE FROM runs WHERE id = ANY (p_ids) RETURNING log)
    SELECT array_agg(log) INTO v_logs FROM gone;
    PERFORM logs_collect(v_logs);
END $$;

-- Removes at most 100 expired entries of each kind; returns whether more may be left.
CREATE OR REPLACE FUNCTION purge(
    p_now bigint, p_keep_waiting bigint, p_keep_ended bigint, p_keep_effects bigint, p_keep_keys bigint,
    p_cache_entries bigint, p_cache_bytes bigint
) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_now  bigint := now_or(p_now);
    v_more boolean;
    v_rows bigint;
    v_runs bigint[];
BEGIN
    v_more := purge_waiting(v_now, p_keep_waiting);
    v_runs := ARRAY(
        SELECT id FROM runs WHERE status = 'ended' AND since <= v_now - p_keep_ended
        ORDER BY since LIMIT 100 FOR UPDATE SKIP LOCKED);
    PERFORM runs_delete(v_runs);
    v_rows := cardinality(v_runs);
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

    DELETE FROM deleted_runs WHERE run IN (
        SELECT run FROM deleted_runs WHERE at <= v_now - remember_deleted()
        LIMIT 100 FOR UPDATE SKIP LOCKED);
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    v_more := v_more OR v_rows >= 100;
    RETURN cache_trim(p_cache_entries, p_cache_bytes) OR v_more;
END $$;

-- Deletes at most 100 of these runs with their conversations, but fewer if they have more than 1000 turns. Those whose
-- processes may still append a turn are remembered. Returns whether some are left.
CREATE FUNCTION runs_delete_some(p_ids bigint[], p_now bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_now  bigint := now_or(p_now);
    v_some bigint[] := ARRAY(
        SELECT id FROM (
            SELECT r.id, sum(r.len - l.parent_len) OVER (ORDER BY r.id) - (r.len - l.parent_len) AS before
            FROM runs r LEFT JOIN logs l ON l.id = r.log WHERE r.id = ANY (p_ids)) found
        WHERE before < 1000 OR before IS NULL ORDER BY id LIMIT 100);
BEGIN
    -- So that no other transaction changes their status until they are deleted.
    PERFORM FROM runs WHERE id = ANY (v_some) ORDER BY id FOR UPDATE;
    INSERT INTO deleted_runs (run, at)
    SELECT run_digest(tenant, thread, run), v_now FROM runs
    WHERE id = ANY (v_some) AND (status = 'running' OR since > v_now - remember_deleted())
    ON CONFLICT (run) DO UPDATE SET at = excluded.at;
    PERFORM runs_delete(v_some);
    RETURN cardinality(v_some) < cardinality(p_ids);
END $$;

-- Deletes some of what belongs to a conversation, and in the end the conversation. Returns whether it existed, and
-- whether more may be left.
CREATE FUNCTION thread_delete_some(
    p_tenant text, p_thread text, p_now bigint, OUT o_existed boolean, OUT o_has_more boolean
)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_of   record;
    v_rows bigint;
    v_log  bigint;
BEGIN
    o_existed := false;
    -- Before the runs, as those lock it who append to it.
    PERFORM thread_lock(p_tenant, p_thread);
    o_has_more := runs_delete_some(ARRAY(
        SELECT id FROM runs WHERE tenant = p_tenant AND thread = p_thread ORDER BY run LIMIT 101), p_now);
    FOR v_of IN
        SELECT * FROM (VALUES ('effects', 'run IS NOT NULL'), ('decisions', $q$span IN ('run', 'thread')$q$),
            ('slots', 'true'), ('cache', 'true')) of (name, which)
    LOOP
        EXECUTE format(
            'DELETE FROM %1$I WHERE ctid = ANY (ARRAY(
                 SELECT ctid FROM %1$I WHERE tenant = $1 AND thread = $2 AND %2$s LIMIT 1000))',
            v_of.name, v_of.which) USING p_tenant, p_thread;
        GET DIAGNOSTICS v_rows = ROW_COUNT;
        o_has_more := o_has_more OR v_rows >= 1000;
    END LOOP;
    IF NOT o_has_more THEN
        DELETE FROM threads WHERE tenant = p_tenant AND thread = p_thread RETURNING log INTO v_log;
        o_existed := v_log IS NOT NULL;
        PERFORM log_collect(v_log);
    END IF;
END $$;

-- Deletes some of the entries of a tenant. Returns the number of conversations among them, and whether more entries
-- may be left.
CREATE FUNCTION tenant_delete(
    p_tenant text, p_now bigint, OUT o_conversations bigint, OUT o_has_deleted boolean
)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_ids     bigint[] := ARRAY(
        SELECT id FROM runs WHERE tenant = p_tenant ORDER BY thread, run LIMIT 100);
    v_threads text[] := ARRAY(
        SELECT thread FROM (
            SELECT thread, sum(len) OVER (ORDER BY thread) - len AS before FROM (
                SELECT thread, len FROM threads WHERE tenant = p_tenant ORDER BY thread LIMIT 100) first) found
        WHERE before < 1000);
    v_logs    bigint[];
    v_table   text;
    v_rows    bigint;
BEGIN
    PERFORM runs_delete_some(v_ids, p_now);
    WITH gone AS (
        DELETE FROM threads WHERE tenant = p_tenant AND thread = ANY (v_threads) RETURNING log
    ) SELECT count(*), array_agg(log) INTO o_conversations, v_logs FROM gone;
    PERFORM logs_collect(v_logs);
    o_has_deleted := cardinality(v_ids) > 0 OR o_conversations > 0;
    FOREACH v_table IN ARRAY '{effects,once,decisions,memories,slots,cache}'::text[] LOOP
        EXECUTE format(
            'DELETE FROM %1$I WHERE ctid = ANY (ARRAY(SELECT ctid FROM %1$I WHERE tenant = $1 LIMIT 1000))',
            v_table) USING p_tenant;
        GET DIAGNOSTICS v_rows = ROW_COUNT;
        o_has_deleted := o_has_deleted OR v_rows > 0;
    END LOOP;
END $$;

-- Removes at most 1000 entries of the cache, and returns their number.
CREATE FUNCTION cache_remove_some(p_tenant text, p_thread text, p_space text) RETURNS bigint
LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    WITH gone AS (
        DELETE FROM cache WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM cache WHERE tenant = p_tenant
                AND (p_thread IS NULL OR thread = p_thread) AND (p_space IS NULL OR space = p_space)
            LIMIT 1000))
        RETURNING digest
    ) SELECT count(*) FROM gone
$$;

-- Claims a run whose record, which has this version, the caller has read. `p_replies` are null if there
-- are no new ones.
--
-- `o_code` is 'ok', 'not_found', 'ended', 'taken', 'quarantined' or 'corrupt'.
CREATE FUNCTION run_claim(
    p_tenant text, p_thread text, p_run text, p_version bigint, p_attempt bytea, p_now bigint,
    p_lease bigint, p_replies bytea, p_keep_waiting bigint, p_max_takeovers integer,
    OUT o_code text, OUT o_fence bigint, OUT o_until bigint, OUT o_takeovers integer,
    OUT o_replied_at bigint, OUT o_now bigint
)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_run   runs;
    v_lease leases;
    v_chain bytea;
BEGIN
    SELECT * INTO v_run FROM runs
    WHERE tenant = p_tenant AND thread = p_thread AND run = p_run FOR NO KEY UPDATE;
    SELECT * INTO v_lease FROM leases WHERE run = v_run.id FOR NO KEY UPDATE;
    o_now := now_or(p_now);
    v_chain := log_chain(v_run.log, v_run.len);
    o_code := CASE
        WHEN v_run.id IS NULL THEN 'not_found'
        WHEN v_run.attempt = p_attempt THEN 'ok'
        WHEN v_run.status = 'ended' THEN 'ended'
        -- The store ends overdue runs in batches, so this one may not be ended yet.
        WHEN CASE v_run.status WHEN 'suspended' THEN v_run.since ELSE v_lease.until END
            <= o_now - p_keep_waiting THEN 'ended'
        WHEN v_run.status = 'running' AND v_lease.until > o_now THEN 'taken'
        WHEN v_run.status = 'running' AND v_lease.takeovers >= p_max_takeovers THEN 'quarantined'
        WHEN v_run.version <> p_version THEN 'taken'
        -- A damaged row must not get a new checksum.
        WHEN v_run.checksum IS DISTINCT FROM
            run_sum(p_tenant, p_thread, p_run, v_run.head, v_run.replies, v_chain) THEN 'corrupt'
    END;
    IF o_code IS NULL THEN
        v_run.fence := nextval('counter');
        UPDATE leases SET held = true, fence = v_run.fence, until = o_now + p_lease,
            takeovers = takeovers + (v_run.status = 'running')::integer
        WHERE run = v_run.id RETURNING * INTO v_lease;
        IF p_replies IS NOT NULL THEN
            v_run.replied_at := coalesce(v_run.replied_at, o_now);
            v_run.checksum := run_sum(p_tenant, p_thread, p_run, v_run.head, p_replies, v_chain);
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

---------------------------------------------------------------------------------------------------
-- The outcomes of runs.

-- How the run ended; null before its end, and of a run that a release with version 1 has ended.
ALTER TABLE runs ADD COLUMN outcome text;
CREATE INDEX runs_of_client ON runs (tenant, thread, client_id, id);

CREATE FUNCTION run_get(p_tenant text, p_thread text, p_run text, p_now bigint, p_max bigint)
RETURNS TABLE (
    o_run text, o_client_id text, o_status text, o_version bigint, o_fence bigint, o_until bigint,
    o_takeovers integer, o_since bigint, o_now bigint, o_len bigint, o_bytes bigint, o_head bytea,
    o_replies bytea, o_replied_at bigint, o_checksum bytea, o_asked text[], o_chains bytea[],
    o_bodies bytea[], o_outcome text
)
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT o.*, r.outcome FROM runs r, run_open(r.id, NULL, p_now, p_max) o
    WHERE r.tenant = p_tenant AND r.thread = p_thread AND r.run = p_run
$$;

-- The newest run that raised any of these interrupts.
CREATE FUNCTION run_asking(
    p_tenant text, p_thread text, p_questions text[], p_now bigint, p_max bigint
) RETURNS TABLE (
    o_run text, o_client_id text, o_status text, o_version bigint, o_fence bigint, o_until bigint,
    o_takeovers integer, o_since bigint, o_now bigint, o_len bigint, o_bytes bigint, o_head bytea,
    o_replies bytea, o_replied_at bigint, o_checksum bytea, o_asked text[], o_chains bytea[],
    o_bodies bytea[], o_outcome text
)
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT o.*, r.outcome FROM (
        SELECT max(q.run) AS id FROM questions q
        WHERE q.tenant = p_tenant AND q.thread = p_thread AND q.question = ANY (p_questions)
    ) found JOIN runs r ON r.id = found.id, run_open(r.id, NULL, p_now, p_max) o
$$;

-- The live run of a client id, or else the newest one. Each part reads one entry of an index, however many runs have
-- the id.
CREATE FUNCTION run_of_client(p_tenant text, p_thread text, p_client_id text, p_now bigint)
RETURNS TABLE (
    o_run text, o_client_id text, o_status text, o_version bigint, o_fence bigint, o_until bigint,
    o_takeovers integer, o_since bigint, o_now bigint, o_outcome text
)
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT r.run, r.client_id, r.status, r.version, r.fence, l.until, l.takeovers, r.since, now_or(p_now),
        r.outcome
    FROM runs r JOIN leases l ON l.run = r.id
    WHERE r.id = coalesce(
        (SELECT id FROM runs WHERE tenant = p_tenant AND thread = p_thread AND client_id = p_client_id
             AND status = 'running' LIMIT 1),
        (SELECT id FROM runs WHERE tenant = p_tenant AND thread = p_thread AND client_id = p_client_id
         ORDER BY id DESC LIMIT 1))
$$;

CREATE FUNCTION run_set_ended(p_id bigint, p_now bigint, p_outcome text) RETURNS void
LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    UPDATE runs SET status = 'ended', version = nextval('counter'), since = p_now, outcome = p_outcome
    WHERE id = p_id;
    UPDATE leases SET held = false WHERE run = p_id;
$$;

-- Ends a run. `o_code` is 'ok', 'not_found' or 'stale'.
CREATE FUNCTION run_end(
    p_tenant text, p_thread text, p_run text, p_fence bigint, p_now bigint, p_outcome text
) RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_run  runs;
    v_code text;
BEGIN
    SELECT * INTO v_run FROM runs
    WHERE tenant = p_tenant AND thread = p_thread AND run = p_run FOR NO KEY UPDATE;
    v_code := fence_code(v_run, p_fence);
    IF v_code IS NULL THEN
        PERFORM run_set_ended(v_run.id, now_or(p_now), p_outcome);
    END IF;
    RETURN CASE coalesce(v_code, 'ended') WHEN 'ended' THEN 'ok' ELSE v_code END;
END $$;

-- As in version 1, with an outcome.
CREATE OR REPLACE FUNCTION run_withdraw(p_tenant text, p_thread text, p_now bigint) RETURNS bigint
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
        PERFORM run_set_ended(v_id, v_now, '{"Ok":{"aborted":{"reason":"user"}}}');
        v_ended := v_ended + 1;
    END LOOP;
    RETURN v_ended;
END $$;

-- As in version 1, with an outcome.
CREATE OR REPLACE FUNCTION purge_waiting(p_now bigint, p_keep_waiting bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_expired   text := '{"Ok":{"aborted":{"reason":{"other":"expired"}}}}';
    v_id        bigint;
    v_waiting   bigint := 0;
    v_abandoned bigint := 0;
BEGIN
    FOR v_id IN
        SELECT id FROM runs WHERE status = 'suspended' AND since <= p_now - p_keep_waiting
        ORDER BY since LIMIT 100 FOR NO KEY UPDATE SKIP LOCKED
    LOOP
        PERFORM run_set_ended(v_id, p_now, v_expired);
        v_waiting := v_waiting + 1;
    END LOOP;
    FOR v_id IN
        SELECT r.id FROM leases l JOIN runs r ON r.id = l.run
        WHERE l.held AND l.until <= p_now - p_keep_waiting
        ORDER BY l.until LIMIT 100 FOR NO KEY UPDATE OF r, l SKIP LOCKED
    LOOP
        PERFORM run_set_ended(v_id, p_now, v_expired);
        v_abandoned := v_abandoned + 1;
    END LOOP;
    RETURN v_waiting >= 100 OR v_abandoned >= 100;
END $$;

-- Appends to a conversation as in version 1. The run with the names `p_run` ends with it, with an outcome.
CREATE FUNCTION thread_append(
    p_tenant text, p_thread text, p_to text, p_version bigint, p_attempt bytea, p_change text,
    p_run text[], p_fence bigint, p_now bigint, p_session text, p_keep bigint, p_bodies bytea[],
    p_new_bytes bigint, p_max bigint, p_clear boolean, p_slots text[], p_places text[], p_values bytea[],
    p_suspended bytea, p_suspended_slots bytea, p_shared bigint, p_outcome text,
    OUT o_code text, OUT o_n bigint
)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_run runs;
BEGIN
    IF p_run IS NOT NULL THEN
        -- In the order of version 1.
        PERFORM thread_lock(p_tenant, coalesce(p_to, p_thread));
        -- Null if it was deleted, or another store has it.
        SELECT * INTO v_run FROM runs
        WHERE tenant = p_run[1] AND thread = p_run[2] AND run = p_run[3] FOR NO KEY UPDATE;
        IF v_run.id IS NULL AND EXISTS (
            SELECT FROM deleted_runs WHERE run = run_digest(p_run[1], p_run[2], p_run[3]))
        THEN
            o_code := 'not_found';
            RETURN;
        END IF;
        IF fence_code(v_run, p_fence) = 'stale' THEN
            o_code := 'stale';
            RETURN;
        END IF;
    END IF;
    SELECT a.o_code, a.o_n INTO o_code, o_n FROM thread_append(
        p_tenant, p_thread, p_to, p_version, p_attempt, p_change, NULL, NULL, p_now, p_session, p_keep,
        p_bodies, p_new_bytes, p_max, p_clear, p_slots, p_places, p_values, p_suspended,
        p_suspended_slots, p_shared) a;
    IF o_code = 'ok' AND v_run.status = 'running' THEN
        PERFORM run_set_ended(v_run.id, now_or(p_now), p_outcome);
    END IF;
END $$;
