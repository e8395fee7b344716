-- Version 2 of the schema: a claim does not read the turns. What a release with version 1 calls is kept.

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
