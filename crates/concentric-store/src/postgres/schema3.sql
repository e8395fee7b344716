-- Version 3 of the schema: a run that waits appends to its conversation.
-- What a release with version 1 or 2 calls is kept.

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
