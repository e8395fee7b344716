-- A decision may also apply to a session. The check of a column cannot be changed in place.
CREATE TABLE new_decisions (
    n        INTEGER PRIMARY KEY,
    tenant   TEXT NOT NULL,
    id       TEXT NOT NULL,
    tool     TEXT NOT NULL,
    span     TEXT NOT NULL CHECK (span IN ('run', 'thread', 'session', 'always')),
    -- The first conversation of the session, for the span 'session'.
    thread   TEXT NOT NULL,
    run      TEXT NOT NULL,
    decision TEXT NOT NULL,
    UNIQUE (tenant, id)
) STRICT;
INSERT INTO new_decisions SELECT n, tenant, id, tool, span, thread, run, decision FROM decisions;
DROP TABLE decisions;
ALTER TABLE new_decisions RENAME TO decisions;
CREATE INDEX decisions_of_tool ON decisions (tenant, tool);
