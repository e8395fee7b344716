-- Version 4 of the schema: quotas, permits and budgets.

-- The state of a limit, which is read, changed by the caller, and written if it is the same as when it was read. A
-- statement locks one row, and no lock outlives a statement: a process that stops in between delays no other.
CREATE TABLE limits (
    -- 'quota', 'permits' or 'budgets'.
    kind    text   COLLATE "C" NOT NULL,
    -- Of a bucket; of the tenant of budgets.
    name    text   COLLATE "C" NOT NULL,
    -- A random number for each write.
    version bigint NOT NULL,
    -- When it can be forgotten; null if never.
    until   bigint,
    -- JSON; null if there is none any more.
    state   bytea,
    PRIMARY KEY (kind, name)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX limits_until ON limits (until);

-- The state of a limit, and the time.
CREATE FUNCTION limit_get(p_kind text, p_name text, p_now bigint, OUT o_version bigint, OUT o_state bytea, OUT o_now bigint)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    SELECT version, state INTO o_version, o_state FROM limits WHERE kind = p_kind AND name = p_name;
    o_now := now_or(p_now);
END $$;

-- Removes at most a hundred limits that can be forgotten; returns whether more may be left.
CREATE FUNCTION limits_purge(p_now bigint) RETURNS boolean
LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    WITH gone AS (
        DELETE FROM limits WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM limits WHERE until <= now_or(p_now) LIMIT 100 FOR UPDATE SKIP LOCKED))
        RETURNING 1
    ) SELECT count(*) = 100 FROM gone
$$;

-- Writes the state of a limit that has the version `p_before`, which is null if there is none. Returns whether it had,
-- also of a repetition.
CREATE FUNCTION limit_put(
    p_kind text, p_name text, p_before bigint, p_version bigint, p_now bigint, p_until bigint, p_state bytea
) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_rows bigint;
BEGIN
    IF p_kind <> 'budgets' THEN
        -- It would be forgotten soon.
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    IF p_before IS NULL THEN
        INSERT INTO limits (kind, name, version, until, state) VALUES (p_kind, p_name, p_version, p_until, p_state)
        ON CONFLICT DO NOTHING;
    ELSE
        UPDATE limits SET version = p_version, until = p_until, state = p_state
        WHERE kind = p_kind AND name = p_name AND version = p_before;
    END IF;
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    IF p_version % 64 = 0 THEN
        PERFORM limits_purge(p_now);
    END IF;
    RETURN v_rows = 1 OR EXISTS (
        SELECT FROM limits WHERE kind = p_kind AND name = p_name AND version = p_version);
END $$;

-- Deletes the budgets of a tenant.
CREATE FUNCTION budgets_delete(p_tenant text) RETURNS void
LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    DELETE FROM limits WHERE kind = 'budgets' AND name = p_tenant
$$;
