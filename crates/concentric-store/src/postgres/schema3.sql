-- Version 3 of the schema: a run that waits appends to its conversation; conversations are listed by their last writes.
-- What a release with version 1 or 2 calls is kept.

-- When a conversation was written last. It is not known of those that are stored now.
DO $$ BEGIN
    EXECUTE format('ALTER TABLE threads ADD COLUMN at bigint NOT NULL DEFAULT %s', now_or(NULL));
END $$;
-- Versions increase with each write.
CREATE INDEX threads_by_version ON threads (tenant, version);

-- At most `p_limit` conversations with versions below `p_before`, which may be null, the newest first.
CREATE FUNCTION thread_list(p_tenant text, p_before bigint, p_limit bigint)
RETURNS TABLE (thread text, session text, version bigint, len bigint, at bigint)
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT t.thread, t.session, t.version, t.len, t.at FROM threads t
    WHERE t.tenant = p_tenant AND t.version < coalesce(p_before, 9223372036854775807)
    ORDER BY t.version DESC LIMIT p_limit
$$;

-- The turns of a conversation as in version 2, and when it was written last.
CREATE FUNCTION thread_page(p_tenant text, p_thread text, p_start bigint, p_limit bigint)
RETURNS TABLE (
    version bigint, session text, len bigint, before bytea, chains bytea[], bodies bytea[], at bigint
)
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT r.version, r.session, r.len, r.before, r.chains, r.bodies, t.at
    FROM thread_turns(p_tenant, p_thread, p_start, p_limit) r
    JOIN threads t ON t.tenant = p_tenant AND t.thread = p_thread
$$;

-- As in version 1, with the time of the write.
CREATE OR REPLACE FUNCTION thread_append(
    p_tenant text, p_thread text, p_to text, p_version bigint, p_attempt bytea, p_change text,
    p_run text[], p_fence bigint, p_now bigint, p_session text, p_keep bigint, p_bodies bytea[],
    p_new_bytes bigint, p_max bigint, p_clear boolean, p_slots text[], p_places text[], p_values bytea[],
    p_suspended bytea, p_suspended_slots bytea, p_shared bigint, OUT o_code text, OUT o_n bigint
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
                         suspended_slots, shared, at)
    VALUES (p_tenant, v_target,
            CASE WHEN v_old.version IS NULL THEN coalesce(p_session, v_from.session, v_target)
                 ELSE v_old.session END,
            o_n, p_attempt, v_log.o_log, v_log.o_len, v_log.o_bytes, p_change, p_suspended,
            p_suspended_slots, p_shared, now_or(p_now))
    ON CONFLICT (tenant, thread) DO UPDATE SET
        version = excluded.version, attempt = excluded.attempt, log = excluded.log, len = excluded.len,
        bytes = excluded.bytes, change = excluded.change, suspended = excluded.suspended,
        suspended_slots = excluded.suspended_slots, shared = excluded.shared, at = excluded.at;
    IF v_old.log <> v_log.o_log THEN
        PERFORM log_collect(v_old.log);
    END IF;
    PERFORM run_set_ended(v_run.id, now_or(p_now)) WHERE v_run.status = 'running';
END $$;

-- Appends to a conversation as in version 2. Without an outcome, the run with the names `p_run` does not end with it.
CREATE OR REPLACE FUNCTION thread_append(
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
    IF o_code = 'ok' AND v_run.status = 'running' AND p_outcome IS NOT NULL THEN
        PERFORM run_set_ended(v_run.id, now_or(p_now), p_outcome);
    END IF;
END $$;
